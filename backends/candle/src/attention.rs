//! The types that describe attention over a packed forest to every device: the heads, the queries, and the
//! tokens that a query sees in its own segment and in its ancestors.
//!
//! Each device has one function for all models: [`crate::cpu`] uses packed tiles and a running softmax,
//! `crate::plain` uses candle tensors. Both are checked against `plain::reference`, which is slow and
//! obvious.

use crate::bias::DistanceBias;
use std::ops::Range;
use text_embeddings_backend_core::Batch;

/// The heads of an attention layer. Each key head serves an equal number of consecutive query heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Heads {
    pub(crate) queries: usize,
    /// Key and value heads.
    pub(crate) keys: usize,
    /// Values per head.
    pub(crate) size: usize,
}

/// The tokens that a query sees, by their positions in its text: at most `before` positions earlier, at most
/// `after` positions later, and its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mask {
    /// The number of earlier tokens.
    pub(crate) before: usize,
    /// The number of later tokens.
    pub(crate) after: usize,
}

impl Mask {
    /// The query's own token and everything before it.
    pub(crate) const CAUSAL: Self = Self { before: usize::MAX, after: 0 };
    /// The whole text.
    pub(crate) const FULL: Self = Self { before: usize::MAX, after: usize::MAX };

    /// The keys that a query at `position` sees in a segment of `tokens` tokens whose first key has the
    /// position `first`.
    pub(crate) fn visible(self, position: usize, first: usize, tokens: usize) -> Range<usize> {
        let from = position.saturating_sub(self.before).saturating_sub(first).min(tokens);
        let to = position.saturating_add(self.after).saturating_add(1).saturating_sub(first).min(tokens);
        from..to.max(from)
    }
}

/// How products of query and key become weights.
#[derive(Clone, Copy)]
pub(crate) struct Scoring<'a> {
    pub(crate) mask: Mask,
    /// The divisor of the product: usually the root of a head's size.
    pub(crate) divisor: f32,
    /// With a cap, divided products `s` become `cap · tanh(s / cap)`.
    pub(crate) soft_cap: Option<f32>,
    /// Added to the product before the division, by head and distance. Its values are already multiplied by
    /// `divisor`.
    pub(crate) bias: Option<&'a DistanceBias>,
    /// Whether each layer adds scores of its own ([`Attention::disentangled`](crate::operations::Attention)).
    #[cfg_attr(
        not(any(test, feature = "tensors")),
        expect(dead_code, reason = "the kernels read the layer's scores instead")
    )]
    pub(crate) disentangled: bool,
}

/// A run of queries: consecutive tokens of one segment in consecutive rows of the queries' tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QuerySpan {
    pub(crate) segment: usize,
    /// The index of the first query's token in the segment.
    pub(crate) offset: usize,
    /// Their rows in the queries' tensor.
    pub(crate) rows: Range<usize>,
}

/// The spans of queries for the tokens in these rows of the batch; query `i` is the token in `rows[i]`. The
/// rows must be ascending and distinct.
pub(crate) fn queries_at(batch: &Batch, rows: &[usize]) -> Vec<QuerySpan> {
    let mut spans = Vec::new();
    let (mut segment, mut query) = (0, 0);
    while let Some(&row) = rows.get(query) {
        segment += batch.segments()[segment..].partition_point(|segment| segment.rows.end <= row);
        let own = &batch.segments()[segment].rows;
        let consecutive = rows[query..].iter().zip(row..own.end).take_while(|(found, next)| *found == next);
        let count = consecutive.count();
        spans.push(QuerySpan { segment, offset: row - own.start, rows: query..query + count });
        query += count;
    }
    spans
}

/// A token: its row among the queries or keys, and its position in its text.
#[derive(Clone, Copy)]
pub(crate) struct PlacedToken {
    pub(crate) row: usize,
    pub(crate) position: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use text_embeddings_backend_core::{BatchBuilder, Packing, Text, Wanted};

    #[test]
    fn masks_are_ranges_of_positions_cut_to_a_segment() {
        for (mask, position, first, tokens, expected) in [
            (Mask::FULL, 3, 0, 10, 0..10),
            (Mask::CAUSAL, 3, 0, 10, 0..4),
            (Mask::CAUSAL, 3, 5, 10, 0..0),
            (Mask::CAUSAL, 20, 5, 10, 0..10),
            (Mask { before: 2, after: 0 }, 20, 5, 10, 10..10),
            (Mask { before: 6, after: 0 }, 20, 5, 10, 9..10),
            (Mask { before: 2, after: 3 }, 4, 0, 6, 2..6),
            (Mask { before: 2, after: 3 }, 1, 0, 9, 0..5),
        ] {
            assert_eq!(
                mask.visible(position, first, tokens),
                expected,
                "{mask:?} {position} {first} {tokens}"
            );
        }
    }

    #[test]
    fn spans_name_the_rows_that_were_asked_for_in_as_few_runs_as_possible() {
        let mut rng = StdRng::seed_from_u64(24);
        for _ in 0..200 {
            let mut builder = BatchBuilder::new(Packing::SHARED);
            for _ in 0..rng.random_range(1..6) {
                let ids: Vec<u32> = (0..rng.random_range(1..9)).map(|_| rng.random_range(0..2)).collect();
                builder.push(&Text::new(ids, Wanted::WHOLE));
            }
            let batch = builder.build();
            let all: Vec<usize> = (0..batch.token_ids().len()).collect();
            let segments = batch.segments().iter().enumerate();
            let whole = segments.map(|(segment, s)| QuerySpan { segment, offset: 0, rows: s.rows.clone() });
            assert_eq!(queries_at(&batch, &all), whole.collect::<Vec<_>>());
            let asked: Vec<usize> = all.into_iter().filter(|_| rng.random_bool(0.6)).collect();
            let spans = queries_at(&batch, &asked);
            let row = |span: &QuerySpan| batch.segments()[span.segment].rows.start + span.offset;
            let named = spans.iter().flat_map(|span| row(span)..row(span) + span.rows.len());
            assert_eq!(named.collect::<Vec<_>>(), asked);
            assert!(spans.iter().flat_map(|span| span.rows.clone()).eq(0..asked.len()));
            let joined = |pair: &[QuerySpan]| {
                pair[0].segment == pair[1].segment && row(&pair[0]) + pair[0].rows.len() == row(&pair[1])
            };
            assert!(!spans.windows(2).any(joined), "{spans:?}");
        }
    }
}
