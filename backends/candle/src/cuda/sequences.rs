//! The forest of a batch in the form that flash attention takes: sequences of queries, each with its own
//! sequence of keys.
//!
//! Input: queries in spans, and the mask. Output: a sequence for each span. Its keys are the tokens of its
//! text from the first one that a query sees to the last one that the last query sees, gathered in the order
//! of their positions. What must hold: flash attention aligns masks at the end, so the last query of a masked
//! span is at the position of the last key.

use super::tensor::CudaTensor;
use crate::{
    attention::{Mask, QuerySpan},
    operations::{Result, Rows},
};
use std::ops::Range;
use text_embeddings_backend_core::Batch;

/// The most sequences of a launch: flash attention's grid has one row of blocks for each, and CUDA's grids
/// have at most this many rows.
const MAX_SEQUENCES: usize = 65_535;

/// The sequences of a batch, on the device.
#[cfg_attr(
    all(feature = "cuda", not(feature = "flash-attn"), not(test)),
    expect(dead_code, reason = "only flash attention reads most of it")
)]
pub(crate) struct Sequences {
    /// For each key, sequence after sequence, its row of keys and values; absent if the rows are already in
    /// this order.
    pub(crate) gathered: Option<CudaTensor>,
    /// The start of each sequence of queries, and the end of the last one.
    pub(crate) query_starts: CudaTensor,
    /// The start of each sequence of keys, and the end of the last one.
    pub(crate) key_starts: CudaTensor,
    /// The number of queries of the longest sequence.
    pub(crate) max_queries: usize,
    /// The number of keys of the longest sequence.
    pub(crate) max_keys: usize,
    /// The tokens that a query sees.
    pub(crate) mask: Mask,
    /// The factor of products of queries and keys.
    pub(crate) scale: f32,
}

/// The keys of a span, as positions in its text; `None` if alignment at the end cannot express the span's
/// mask.
fn keys_of(span: &QuerySpan, mask: Mask, batch: &Batch) -> Option<Range<usize>> {
    let segment = &batch.segments()[span.segment];
    let tokens = batch.attended_tokens(span.segment);
    let first = segment.position + span.offset;
    let last = first + span.rows.len() - 1;
    if mask == Mask::FULL {
        return Some(0..tokens);
    }
    let seen = mask.visible(first, 0, tokens).start..mask.visible(last, 0, tokens).end;
    (seen.end == last + 1).then_some(seen)
}

impl Sequences {
    /// A text of its own, whose queries and keys are in the order of its tokens. Products are not scaled.
    pub(crate) fn one(
        tokens: usize,
        mask: Mask,
        place_list: impl Fn(Vec<u32>) -> Result<CudaTensor>,
    ) -> Result<Self> {
        let starts = || place_list(vec![0, tokens as u32]);
        Ok(Self {
            gathered: None,
            query_starts: starts()?,
            key_starts: starts()?,
            max_queries: tokens,
            max_keys: tokens,
            mask,
            scale: 1.0,
        })
    }

    /// The sequences of these queries. `None` if flash attention cannot express them: with biases, soft caps
    /// or a layer's own scores, if a query sees some but not all keys behind its span, or if there are too
    /// many sequences.
    pub(crate) fn new(
        rows: &Rows<'_>,
        place_list: impl Fn(Vec<u32>) -> Result<CudaTensor>,
    ) -> Result<Option<Self>> {
        let &Rows { batch, places, spans, scoring, .. } = rows;
        let has_own_scores = scoring.bias.is_some() || scoring.soft_cap.is_some() || scoring.disentangled;
        if has_own_scores || spans.len() > MAX_SEQUENCES {
            return Ok(None);
        }
        let mut gathered = Vec::with_capacity(places.len());
        let (mut query_starts, mut key_starts) = (vec![0], vec![0]);
        let (mut max_queries, mut max_keys) = (0, 0);
        for span in spans {
            let Some(keys) = keys_of(span, scoring.mask, batch) else { return Ok(None) };
            let mut rest = keys.clone();
            for segment in batch.path(span.segment) {
                // Whole slices: for thousands of tokens, one row after the other takes several times as long.
                let places = &places[batch.segments()[segment].rows.clone()];
                let seen = rest.start.min(places.len())..rest.end.min(places.len());
                gathered.extend(places[seen].iter().map(|&place| place as u32));
                rest = rest.start.saturating_sub(places.len())..rest.end.saturating_sub(places.len());
            }
            query_starts.push(span.rows.end as u32);
            key_starts.push(gathered.len() as u32);
            max_queries = max_queries.max(span.rows.len());
            max_keys = max_keys.max(keys.len());
        }
        let in_place = gathered.iter().enumerate().all(|(key, &row)| key == row as usize);
        Ok(Some(Self {
            gathered: if in_place { None } else { Some(place_list(gathered)?) },
            query_starts: place_list(query_starts)?,
            key_starts: place_list(key_starts)?,
            max_queries,
            max_keys,
            mask: scoring.mask,
            scale: 1.0 / scoring.divisor,
        }))
    }
}
