//! DeBERTa's scores with positions, for queries and keys in main memory.

use crate::{attention::PlacedToken, bias::Buckets};

/// DeBERTa's scores with positions, in main memory.
pub(crate) struct PositionScores<'a> {
    pub(crate) buckets: &'a Buckets,
    /// For each head `[query rows, buckets]`; empty if the model lacks these scores.
    pub(crate) of_queries: Vec<Vec<f32>>,
    /// For each head `[rows of keys, buckets]`; empty if the model lacks these scores.
    pub(crate) of_keys: Vec<Vec<f32>>,
}

impl PositionScores<'_> {
    pub(super) fn score_of(&self, head: usize, query: PlacedToken, key: PlacedToken) -> f32 {
        let bucket = self.buckets.bucket_of(query.position, key.position);
        let score = |scores: &[Vec<f32>], row: usize, rows: usize| {
            scores.get(head).map_or(0.0, |scores| scores[row * (scores.len() / rows) + bucket])
        };
        score(&self.of_queries, query.row, self.rows(&self.of_queries))
            + score(&self.of_keys, key.row, self.rows(&self.of_keys))
    }

    fn rows(&self, scores: &[Vec<f32>]) -> usize {
        let buckets = self.buckets.of_distance.iter().max().map_or(1, |last| *last as usize + 1);
        scores.first().map_or(1, |scores| scores.len() / buckets)
    }
}
