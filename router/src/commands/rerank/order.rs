//! The order of scored documents, the best first.
//!
//! Input: scores in the order of the documents. Output: all of them, or the best `limit`, in the order of the
//! server's answers: by raw score, equal ones in the order of the documents. What must hold: a kept document
//! takes 16 bytes, and at most `limit` are kept.

use std::{cmp::Ordering, collections::BinaryHeap};

/// A document's score, and the place of its text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scored {
    /// Its place in the source.
    pub(super) place: u64,
    /// Its number in the source.
    pub(super) index: u32,
    /// Its score before the sigmoid.
    pub(super) raw: f32,
}

const _: () = assert!(size_of::<Scored>() == 16);

impl Ord for Scored {
    /// A better document is less, so that it is sorted first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.raw.total_cmp(&self.raw).then(self.index.cmp(&other.index))
    }
}

impl PartialOrd for Scored {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Scored {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Scored {}

/// The documents that are kept.
#[derive(Debug)]
pub(super) struct Ranking {
    /// The worst of them is the heap's greatest.
    best: BinaryHeap<Scored>,
    limit: usize,
}

impl Ranking {
    /// Keeps the best `limit`, or all.
    pub(super) fn new(limit: Option<usize>) -> Self {
        Self { best: BinaryHeap::new(), limit: limit.unwrap_or(usize::MAX) }
    }

    /// Adds a document, and drops the worst if there are too many.
    pub(super) fn push(&mut self, scored: Scored) {
        if self.best.len() < self.limit {
            self.best.push(scored);
        } else if let Some(mut worst) = self.best.peek_mut()
            && scored < *worst
        {
            *worst = scored;
        }
    }

    /// The documents, the best first.
    pub(super) fn into_sorted(self) -> Vec<Scored> {
        self.best.into_sorted_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    #[test]
    fn the_best_of_random_scores_are_those_of_sorting_them_all() {
        let mut rng = StdRng::seed_from_u64(7);
        for round in 0..200 {
            let count = rng.random_range(0..60);
            // Few different scores, so that many are equal; zeros of both signs and infinities.
            let values = [-0.0, 0.0, f32::INFINITY, f32::NEG_INFINITY, 1.5, -3.0, 1e-30];
            let scores: Vec<f32> = (0..count).map(|_| values[rng.random_range(0..values.len())]).collect();
            let mut expected: Vec<usize> = (0..count).collect();
            expected.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
            for limit in [None, Some(1), Some(2), Some(count.max(1)), Some(count + 1)] {
                let mut ranking = Ranking::new(limit);
                for (index, &raw) in scores.iter().enumerate() {
                    ranking.push(Scored { place: index as u64 * 10, index: index as u32, raw });
                }
                let got = ranking.into_sorted();
                assert!(got.iter().all(|s| s.place == u64::from(s.index) * 10), "round {round}");
                let got: Vec<_> = got.iter().map(|scored| scored.index as usize).collect();
                let wanted = &expected[..limit.unwrap_or(count).min(count)];
                assert_eq!(got, wanted, "round {round}, limit {limit:?}");
            }
        }
    }
}
