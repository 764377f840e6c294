//! The forest of a batch as flash attention takes it: sequences of queries, each with its own sequence of
//! keys.
//!
//! Input: queries in spans, and what they see. Output: each span is a sequence. Its keys are the tokens of
//! its text up to the last one that its last query sees, gathered in the order of their positions; the first
//! ones that no query sees are left out. What must hold: flash attention aligns masks at the end, so the last
//! query of a masked span is at the position of the last key.

use crate::{
    attention::{Mask, QuerySpan},
    operations::Rows,
};
use candle_core::{Device, Result, Tensor};
use std::ops::Range;
use text_embeddings_backend_core::Batch;

/// The sequences of a batch, on the device.
pub(crate) struct Sequences {
    /// For each key, sequence after sequence, its row of keys and values; absent if it is that row already.
    pub(crate) gathered: Option<Tensor>,
    /// Where each sequence of queries begins, and where the last one ends.
    pub(crate) query_starts: Tensor,
    /// The same for the keys.
    pub(crate) key_starts: Tensor,
    /// Queries of the longest sequence.
    pub(crate) most_queries: usize,
    /// Keys of the longest sequence.
    pub(crate) most_keys: usize,
    /// What a query sees.
    pub(crate) mask: Mask,
    /// Products of queries and keys are multiplied by this.
    pub(crate) scale: f32,
}

/// The same in main memory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HostSequences {
    gathered: Vec<u32>,
    query_starts: Vec<u32>,
    key_starts: Vec<u32>,
    most_queries: usize,
    most_keys: usize,
}

/// The keys of a span, as positions in its text: absent if the alignment at the end cannot say which of them
/// a query sees.
fn keys_of(span: &QuerySpan, mask: Mask, batch: &Batch) -> Option<Range<usize>> {
    let segment = &batch.segments()[span.segment];
    let tokens = segment.position + segment.rows.len();
    let first = segment.position + span.offset;
    let last = first + span.rows.len() - 1;
    if mask == Mask::FULL {
        return Some(0..tokens);
    }
    let seen = mask.visible(first, 0, tokens).start..mask.visible(last, 0, tokens).end;
    (seen.end == last + 1).then_some(seen)
}

impl HostSequences {
    fn new(rows: &Rows<'_>) -> Option<Self> {
        let &Rows { batch, places, spans, scoring, .. } = rows;
        let mut sequences = Self {
            gathered: Vec::with_capacity(places.len()),
            query_starts: vec![0],
            key_starts: vec![0],
            most_queries: 0,
            most_keys: 0,
        };
        for span in spans {
            let keys = keys_of(span, scoring.mask, batch)?;
            let path = batch.path(span.segment);
            let tokens = path.into_iter().flat_map(|segment| batch.segments()[segment].rows.clone());
            let tokens = tokens.skip(keys.start).take(keys.len());
            sequences.gathered.extend(tokens.map(|row| places[row] as u32));
            sequences.query_starts.push(span.rows.end as u32);
            sequences.key_starts.push(sequences.gathered.len() as u32);
            sequences.most_queries = sequences.most_queries.max(span.rows.len());
            sequences.most_keys = sequences.most_keys.max(keys.len());
        }
        Some(sequences)
    }
}

impl Sequences {
    /// The sequences of these queries; absent where flash attention cannot say what they see: with biases,
    /// soft caps or scores of a layer's own, or if a query sees keys behind its span and not all of them.
    pub(crate) fn new(rows: &Rows<'_>, device: &Device) -> Result<Option<Self>> {
        let scoring = rows.scoring;
        if scoring.bias.is_some() || scoring.soft_cap.is_some() || scoring.disentangled {
            return Ok(None);
        }
        let Some(host) = HostSequences::new(rows) else { return Ok(None) };
        let in_place = host.gathered.iter().enumerate().all(|(key, &row)| key == row as usize);
        let tensor = |values: Vec<u32>| Tensor::new(values, device);
        let gathered = if in_place { None } else { Some(tensor(host.gathered)?) };
        Ok(Some(Self {
            gathered,
            query_starts: tensor(host.query_starts)?,
            key_starts: tensor(host.key_starts)?,
            most_queries: host.most_queries,
            most_keys: host.most_keys,
            mask: scoring.mask,
            scale: 1.0 / scoring.divisor,
        }))
    }
}
