//! Attention over a packed forest, as all devices understand it: heads, queries, and what a query sees of its
//! ancestors' tokens and of its own segment's.
//!
//! One function for all models, per device: [`crate::cpu`] with packed tiles and a running softmax, and
//! [`crate::plain`] in candle tensors. The oracle of both is `plain::reference`, slow and obvious.

use crate::bias::DistanceBias;
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

/// The tokens that a query sees, by their positions in its text: from `before` in front of it up to `after`
/// behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mask {
    /// Tokens in front of the query's own.
    pub(crate) before: usize,
    /// Tokens behind it.
    pub(crate) after: usize,
}

impl Mask {
    /// Everything up to the query's own token.
    pub(crate) const CAUSAL: Self = Self { before: usize::MAX, after: 0 };
    /// The whole text.
    pub(crate) const FULL: Self = Self { before: usize::MAX, after: usize::MAX };

    /// Which keys of a segment, whose first one has the position `first`, a query at `position` sees.
    pub(crate) fn visible(self, position: usize, first: usize, tokens: usize) -> Range<usize> {
        let from = position.saturating_sub(self.before).saturating_sub(first).min(tokens);
        let to = position.saturating_add(self.after).saturating_add(1).saturating_sub(first).min(tokens);
        from..to.max(from)
    }
}

/// How scores become weights, besides the product of query and key.
#[derive(Clone, Copy)]
pub(crate) struct Scoring<'a> {
    /// Which keys count.
    pub(crate) mask: Mask,
    /// The divisor of the product: usually the root of a head's size.
    pub(crate) divisor: f32,
    /// Divided products `s` become `cap · tanh(s / cap)`.
    pub(crate) soft_cap: Option<f32>,
    /// Added by head and distance; its values are made for `divisor`.
    pub(crate) bias: Option<&'a DistanceBias>,
    /// Whether each layer adds scores of its own ([`Attention::disentangled`](crate::operations::Attention)).
    pub(crate) disentangled: bool,
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

/// The tokens in some rows of the batch, ascending and each once, as queries in that order.
pub(crate) fn queries_at(batch: &Batch, rows: &[usize]) -> Vec<QuerySpan> {
    let mut spans: Vec<QuerySpan> = Vec::new();
    for (query, &row) in rows.iter().enumerate() {
        let segment = batch.segments().partition_point(|segment| segment.rows.end <= row);
        let offset = row - batch.segments()[segment].rows.start;
        match spans.last_mut() {
            Some(span) if span.segment == segment && span.offset + span.rows.len() == offset => {
                span.rows.end = query + 1;
            }
            _ => spans.push(QuerySpan { segment, offset, rows: query..query + 1 }),
        }
    }
    spans
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
