//! DeBERTa's scores with positions, which attention adds to the scores of queries and keys.

use super::{Activations, CpuOperations};
use crate::{
    attention::PlacedToken,
    bias::Buckets,
    kernels::matrix::Matrix,
    operations::{Disentangled, Precision},
};

/// Scores of queries and keys with the position vectors of all buckets (DeBERTa). There is one query head per
/// key head.
pub(crate) struct DisentangledScores<'a> {
    /// The buckets of distances.
    pub(crate) buckets: &'a Buckets,
    /// For each head, the scores of the queries with the positions of keys, `[rows, buckets]`; empty if the
    /// model does not use them.
    pub(crate) of_queries: Vec<Activations>,
    /// For each head, the scores of the batch's keys with the positions of queries, `[tokens, buckets]`;
    /// empty if the model does not use them.
    pub(crate) of_keys: Vec<Activations>,
}

impl DisentangledScores<'_> {
    /// Writes to `out` the additional scores of one query with consecutive keys, beginning with
    /// `first`.
    pub(super) fn write(&self, head: usize, query: PlacedToken, first: PlacedToken, out: &mut [f32]) {
        out.fill(0.0);
        for (key, out) in out.iter_mut().enumerate() {
            let bucket = self.buckets.bucket_of(query.position, first.position + key);
            if let Some(scores) = self.of_queries.get(head) {
                *out += scores.row(query.row)[bucket];
            }
            if let Some(scores) = self.of_keys.get(head) {
                *out += scores.row(first.row + key)[bucket];
            }
        }
    }
}

impl CpuOperations {
    /// The scores of queries and of keys with the position vectors of all buckets. The rows have the order of
    /// the queries and of the batch.
    pub(super) fn disentangled_scores<'d>(
        &mut self,
        disentangled: &'d Disentangled<Matrix>,
        queries: &Activations,
        keys_values: &Activations,
        places: &[usize],
        size: usize,
    ) -> DisentangledScores<'d> {
        let scores = |x: &Activations, rows: &[usize], positions: Option<&[Matrix]>| -> Vec<Activations> {
            positions
                .unwrap_or_default()
                .iter()
                .enumerate()
                .map(|(head, positions)| {
                    let columns = head * size..(head + 1) * size;
                    let row = |&row: &usize| &x.values()[row * x.columns..][columns.clone()];
                    let values: Vec<f32> = rows.iter().flat_map(row).copied().collect();
                    let operand = self.pack(&values, size, Precision::High, |row, _| row);
                    let mut out = self.activations(rows.len(), positions.outputs());
                    self.compute.product(&operand.operand, positions, out.values_mut());
                    out
                })
                .collect()
        };
        let all: Vec<usize> = (0..queries.rows()).collect();
        DisentangledScores {
            buckets: &disentangled.buckets,
            of_queries: scores(queries, &all, disentangled.position_keys.as_deref()),
            of_keys: scores(keys_values, places, disentangled.position_queries.as_deref()),
        }
    }
}
