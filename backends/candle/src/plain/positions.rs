//! DeBERTa's scores with positions, for queries and keys in main memory.

use crate::operations::Buckets;

/// DeBERTa's scores with positions, in main memory.
pub(crate) struct PositionScores<'a> {
    /// The buckets of distances.
    pub(crate) buckets: &'a Buckets,
    /// For each head `[query rows, buckets]`; empty if the model lacks these scores.
    pub(crate) of_queries: Vec<Vec<f32>>,
    /// For each head `[rows of keys, buckets]`; empty if the model lacks these scores.
    pub(crate) of_keys: Vec<Vec<f32>>,
}

impl PositionScores<'_> {
    pub(super) fn of(&self, head: usize, (row, query): (usize, usize), (place, key): (usize, usize)) -> f32 {
        let bucket = self.buckets.of(query, key);
        let score = |scores: &[Vec<f32>], row: usize, rows: usize| {
            scores.get(head).map_or(0.0, |scores| scores[row * (scores.len() / rows) + bucket])
        };
        score(&self.of_queries, row, self.rows(&self.of_queries))
            + score(&self.of_keys, place, self.rows(&self.of_keys))
    }

    fn rows(&self, scores: &[Vec<f32>]) -> usize {
        let buckets = self.buckets.of_distance.iter().max().map_or(1, |last| *last as usize + 1);
        scores.first().map_or(1, |scores| scores.len() / buckets)
    }
}
