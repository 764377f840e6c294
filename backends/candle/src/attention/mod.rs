//! Attention over a packed forest: each query sees its ancestors' tokens and, causally, those of its own segment.
//!
//! One function for all models, per device: [`cpu`] with packed tiles and a running softmax, and [`mod@reference`], slow
//! and obvious, in candle tensors, which is the oracle of the former and what other devices run.

pub(crate) mod cpu;
pub(crate) mod reference;

use std::ops::Range;
use text_embeddings_backend_core::Batch;

/// The heads of an attention layer. Query heads are shared evenly among the key heads, in order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads {
    /// Query heads.
    pub(crate) queries: usize,
    /// Key and value heads.
    pub(crate) keys: usize,
    /// Values per head.
    pub(crate) size: usize,
}

/// Queries that stand next to each other in one segment and in the queries' rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QuerySpan {
    /// Their segment.
    pub(crate) segment: usize,
    /// The first one's place in the segment.
    pub(crate) offset: usize,
    /// Their rows in the queries' tensor.
    pub(crate) rows: Range<usize>,
}

/// Every token of the batch as a query.
pub(crate) fn all_queries(batch: &Batch) -> Vec<QuerySpan> {
    let segments = batch.segments().iter().enumerate();
    segments.map(|(segment, s)| QuerySpan { segment, offset: 0, rows: s.rows.clone() }).collect()
}

/// The last token of every text as a query, in the texts' order.
pub(crate) fn last_queries(batch: &Batch) -> Vec<QuerySpan> {
    let leaves = batch.leaves().iter().enumerate();
    leaves
        .map(|(row, &segment)| {
            let offset = batch.segments()[segment].rows.len() - 1;
            QuerySpan { segment, offset, rows: row..row + 1 }
        })
        .collect()
}
