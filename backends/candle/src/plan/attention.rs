//! Attention: its matrices, its norms, and DeBERTa's relative positions.

use super::{MatrixPlan, NormPlan, TablePlan};

/// The weights of attention.
#[derive(Debug, Clone)]
pub(crate) struct AttentionPlan {
    /// The index of its kind in [`super::Plan::views`].
    pub(crate) view: usize,
    /// `[query heads · size, hidden]`
    pub(crate) query: MatrixPlan,
    /// `[2 · key heads · size, hidden]`: keys, then values.
    pub(crate) key_value: MatrixPlan,
    /// `[hidden, query heads · size]`
    pub(crate) output: MatrixPlan,
    /// Norms of queries and keys.
    pub(crate) norms: HeadNormsPlan,
    /// `[query heads · size, hidden]`: the context is multiplied by the sigmoid of this product.
    pub(crate) gate: Option<MatrixPlan>,
    /// DeBERTa's relative positions.
    pub(crate) disentangled: Option<DisentangledPlan>,
}

impl AttentionPlan {
    /// Attention of the first kind, without norms, a gate and relative positions.
    pub(crate) fn from_matrices(
        query: impl Into<MatrixPlan>,
        key_value: impl Into<MatrixPlan>,
        output: impl Into<MatrixPlan>,
    ) -> Self {
        Self {
            view: 0,
            query: query.into(),
            key_value: key_value.into(),
            output: output.into(),
            norms: HeadNormsPlan::None,
            gate: None,
            disentangled: None,
        }
    }
}

/// Norms of queries and keys, applied before rotation, and of values.
#[derive(Debug, Clone)]
pub(crate) enum HeadNormsPlan {
    /// None.
    None,
    /// Each head is normalised on its own.
    EachHead {
        /// The norm of the query heads.
        query: NormPlan,
        /// The norm of the key heads.
        key: NormPlan,
        /// The epsilon of the norm of the value heads, which has no weights; absent if there is no such norm.
        value_epsilon: Option<f32>,
    },
    /// One norm for queries, one for keys. All heads of a token are normalised at once.
    AllHeads(NormPlan, NormPlan),
}

/// DeBERTa's relative positions.
#[derive(Debug, Clone)]
pub(crate) struct DisentangledPlan {
    /// The table of relative positions, `[2 · span, hidden]`.
    pub(crate) table: TablePlan,
    /// Its norm.
    pub(crate) norm: Option<NormPlan>,
    /// The matrix from the table to keys, if queries are scored with positions (c2p).
    pub(crate) keys: Option<MatrixPlan>,
    /// The matrix from the table to queries, if keys are scored with positions (p2c).
    pub(crate) queries: Option<MatrixPlan>,
    /// The table's row for a distance, query position minus key position.
    pub(crate) bucket: LogBuckets,
}

/// DeBERTa's buckets of distances: one for each near distance, logarithmic beyond.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogBuckets {
    /// Half of the table's rows.
    pub(crate) span: usize,
    /// Half of the buckets; if absent, each distance has a bucket of its own.
    pub(crate) buckets: Option<usize>,
    /// The first distance of the last bucket.
    pub(crate) max_distance: usize,
}
