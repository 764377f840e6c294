//! Attention in candle tensors, in a handful of operations for any number of texts.
//!
//! Input: rotated and scaled queries `[rows, heads · size]`; keys and values side by side `[tokens, 2 · key
//! heads · size]`. Output: `[rows, heads · size]`. Queries that see about as many keys form a group: its
//! queries, and the keys and values that they see, are gathered into tensors of one shape. What must hold:
//! all padding of a group is masked, or its results are never read; everything that depends only on the
//! places of rows is on the device before the first layer ([`PaddedAttention::new`]).

use crate::{
    attention::{Heads, Mask, PlacedToken},
    bias::DistanceBias,
    operations::Rows,
    plain::positions::PositionScores,
};
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::ops::softmax_last_dim;
use std::{cmp::Reverse, ops::Range};
use text_embeddings_backend_core::Batch;

/// The limits of groups, in values of a tensor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupLimits {
    /// The most queries of a piece. Longer runs are cut, so that their first queries are not computed with
    /// keys that only the last ones see.
    pub(crate) queries: usize,
    /// The most values that a group computes.
    pub(crate) group: usize,
    /// How many values padding may add to a group beyond doubling it. Computing these values takes less time
    /// than launching another group's kernels.
    pub(crate) padding: usize,
    /// The most values of masks that are kept from layer to layer.
    pub(crate) masks: usize,
}

impl GroupLimits {
    /// For GPUs: 256 MiB for one group's values, and 1 GiB for the masks, in `f32`.
    pub(crate) const GPU: Self = Self { queries: 512, group: 1 << 26, padding: 1 << 22, masks: 1 << 28 };
}

/// Consecutive queries in one segment.
#[derive(Debug, Clone)]
struct QueryPiece {
    segment: usize,
    /// Their rows in the queries' tensor.
    rows: Range<usize>,
    /// The first query's position in its text, which is the number of keys before its own.
    position: usize,
    /// The number of keys that the last query may see, counted from the start of its text.
    keys: usize,
}

/// The shape to which pieces are padded.
#[derive(Debug, Clone, Copy, Default)]
struct Shape {
    pieces: usize,
    queries: usize,
    keys: usize,
}

impl Shape {
    fn new(piece: &QueryPiece) -> Self {
        Self { pieces: 1, queries: piece.rows.len(), keys: piece.keys }
    }

    fn with(self, piece: &QueryPiece) -> Self {
        let Self { queries, keys, .. } = Self::new(piece);
        Self { pieces: self.pieces + 1, queries: self.queries.max(queries), keys: self.keys.max(keys) }
    }

    fn scores(self, heads: Heads) -> usize {
        self.pieces * heads.queries * self.queries * self.keys
    }

    /// The number of scores, keys, values, queries and results.
    fn values(self, heads: Heads) -> usize {
        let rows = heads.keys * self.keys + heads.queries * self.queries;
        self.scores(heads) + 2 * self.pieces * rows * heads.size
    }
}

/// Pieces that are padded to one shape.
#[derive(Debug, Default)]
struct Group {
    pieces: Vec<QueryPiece>,
    shape: Shape,
    /// The values that the pieces would need without padding.
    unpadded: usize,
}

impl Group {
    /// Whether `piece` can join.
    fn takes(&self, piece: &QueryPiece, heads: Heads, limits: GroupLimits) -> bool {
        let padded = self.shape.with(piece).values(heads);
        let unpadded = self.unpadded + Shape::new(piece).values(heads);
        padded <= limits.group && padded <= 2 * unpadded + limits.padding
    }

    fn push(&mut self, piece: QueryPiece, heads: Heads) {
        self.shape = self.shape.with(&piece);
        self.unpadded += Shape::new(&piece).values(heads);
        self.pieces.push(piece);
    }
}

/// Cuts spans into pieces. Each piece fits a group on its own, unless a single query is too large.
fn pieces(&Rows { batch, spans, heads, scoring, .. }: &Rows<'_>, limits: GroupLimits) -> Vec<QueryPiece> {
    let mut pieces = Vec::new();
    for span in spans {
        let segment = &batch.segments()[span.segment];
        let position = segment.position + span.offset;
        let tokens = batch.attended_tokens(span.segment);
        let seen = |queries: usize| scoring.mask.visible(position + queries - 1, 0, tokens).end;
        let keys = seen(span.rows.len());
        let max_queries = (limits.group / (heads.queries * keys)).clamp(1, limits.queries);
        let length = span.rows.len().div_ceil(span.rows.len().div_ceil(max_queries));
        for from in (0..span.rows.len()).step_by(length) {
            let first = span.rows.start + from;
            let rows = first..span.rows.end.min(first + length);
            let keys = seen(from + rows.len());
            pieces.push(QueryPiece { segment: span.segment, rows, position: position + from, keys });
        }
    }
    pieces
}

/// Groups pieces of similar shapes.
fn groups(mut pieces: Vec<QueryPiece>, heads: Heads, limits: GroupLimits) -> Vec<Group> {
    pieces.sort_by_key(|piece| {
        let Shape { queries, keys, .. } = Shape::new(piece);
        Reverse((queries.next_power_of_two(), keys))
    });
    let mut groups: Vec<Group> = Vec::new();
    for piece in pieces {
        match groups.last_mut() {
            Some(group) if group.takes(&piece, heads, limits) => group.push(piece, heads),
            _ => {
                let mut group = Group::default();
                group.push(piece, heads);
                groups.push(group);
            }
        }
    }
    groups
}

/// A group on the device. Each head of a row is a row of its own here: the gathered tensors' last dimension
/// is the size of a head.
struct Gathered {
    shape: Shape,
    /// Indices of the query heads to gather, in the order `[piece, query head, query]`.
    queries: Tensor,
    /// Indices of the key and value heads to gather, in the order `[key or value, piece, key head, key]`.
    keys_values: Tensor,
    /// The first and the last key that each query sees, each `[piece · query head · query, 1]`.
    seen: [Tensor; 2],
    /// The biases by distance, `[piece · query head · query, keys]`.
    bias: Option<Tensor>,
    /// See [`Gathered::mask`]. Absent if each layer makes the mask anew, because keeping all masks would take
    /// too much memory.
    mask: Option<Tensor>,
    /// With a cap, scores `s` become `cap · tanh(s / cap)`.
    soft_cap: Option<f64>,
}

/// The rows of keys and values that a piece's queries may see, in the order of their positions.
fn keys_of(piece: &QueryPiece, batch: &Batch, places: &[usize]) -> Vec<usize> {
    let path = batch.path(piece.segment).into_iter();
    let rows = path.flat_map(|segment| batch.segments()[segment].rows.clone());
    rows.take(piece.keys).map(|row| places[row]).collect()
}

/// A group's biases by distance, `[piece · query head · query, keys]`. Padding has zeros.
fn distance_bias(group: &Group, rows: &Rows<'_>, bias: &DistanceBias, device: &Device) -> Result<Tensor> {
    let Shape { queries, keys, .. } = group.shape;
    let mut values = Vec::with_capacity(group.shape.scores(rows.heads));
    for piece in &group.pieces {
        for head in 0..rows.heads.queries {
            for query in 0..queries {
                let is_padding = query >= piece.rows.len();
                let line =
                    bias.biases_of(head, piece.position + query.min(piece.rows.len() - 1), 0, piece.keys);
                values.extend((0..keys).map(|key| {
                    let bias = if is_padding { None } else { line.get(key) };
                    bias.map_or(0.0, |bias| bias / rows.scoring.divisor)
                }));
            }
        }
    }
    Tensor::from_vec(values, ((), keys), device)
}

impl Gathered {
    fn new(group: &Group, rows: &Rows<'_>, device: &Device) -> Result<Self> {
        let &Rows { batch, places, heads, scoring, .. } = rows;
        let shape = group.shape;
        let (mut queries, mut seen) = (Vec::new(), [Vec::new(), Vec::new()]);
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for piece in &group.pieces {
            for head in 0..heads.queries {
                for query in 0..shape.queries {
                    let row = piece.rows.start + query.min(piece.rows.len() - 1);
                    queries.push((row * heads.queries + head) as u32);
                    let visible = visible(scoring.mask, piece, query);
                    seen[0].push(visible.start as u32);
                    seen[1].push(visible.end as u32 - 1);
                }
            }
            let places = keys_of(piece, batch, places);
            for head in 0..heads.keys {
                for key in 0..shape.keys {
                    let first = places[key.min(places.len() - 1)] * 2 * heads.keys;
                    keys.push((first + head) as u32);
                    values.push((first + heads.keys + head) as u32);
                }
            }
        }
        keys.append(&mut values);
        let [first, last] = seen;
        let bias = scoring.bias.map(|bias| distance_bias(group, rows, bias, device)).transpose()?;
        Ok(Self {
            shape,
            queries: Tensor::from_vec(queries, ((),), device)?,
            keys_values: Tensor::from_vec(keys, ((),), device)?,
            seen: [Tensor::from_vec(first, ((), 1), device)?, Tensor::from_vec(last, ((), 1), device)?],
            bias,
            mask: None,
            soft_cap: scoring.soft_cap.map(f64::from),
        })
    }

    /// Zero where a query sees a key, else minus infinity, plus the biases, if there are any: `[piece · query
    /// head · query, keys]`. It has the shape of the scores, because adding tensors of two shapes takes
    /// several times as long.
    fn mask(&self) -> Result<Tensor> {
        let [first, last] = &self.seen;
        let keys = Tensor::arange(0, self.shape.keys as u32, last.device())?.unsqueeze(0)?;
        let is_seen = (keys.broadcast_le(last)? * keys.broadcast_ge(first)?)?;
        // The logarithms of one and of zero.
        let mask = is_seen.to_dtype(DType::F32)?.log()?;
        match &self.bias {
            Some(bias) => mask + bias,
            None => Ok(mask),
        }
    }

    /// Turns heads `[row · head, size]` into the group's results `[piece · query head · query, size]`.
    /// `added` is added to the scores.
    fn attention(
        &self,
        queries: &Tensor,
        keys_values: &Tensor,
        heads: Heads,
        added: Option<&Tensor>,
    ) -> Result<Tensor> {
        let Shape { pieces, queries: each, keys: seen } = self.shape;
        // The queries of all heads that share a key head become rows of one matrix.
        let (count, rows) = (pieces * heads.keys, heads.queries / heads.keys * each);
        let queries = queries.index_select(&self.queries, 0)?.reshape((count, rows, heads.size))?;
        let keys_values = keys_values.index_select(&self.keys_values, 0)?;
        let keys_values = keys_values.reshape((2, count, seen, heads.size))?;
        let (keys, values) = (keys_values.get(0)?, keys_values.get(1)?);
        let mask = self.mask.clone().map_or_else(|| self.mask(), Ok)?;
        let mut scores = queries.matmul(&keys.t()?)?;
        if let Some(cap) = self.soft_cap {
            scores = ((scores / cap)?.tanh()? * cap)?;
        }
        if let Some(added) = added {
            scores = (scores + added.reshape((count, rows, seen))?)?;
        }
        let scores = (scores + mask.reshape((count, rows, seen))?)?;
        softmax_last_dim(&scores)?.matmul(&values)?.reshape(((), heads.size))
    }
}

/// The keys that a query of a piece sees. A padding query sees the keys of the last real query.
fn visible(mask: Mask, piece: &QueryPiece, query: usize) -> Range<usize> {
    mask.visible(piece.position + query.min(piece.rows.len() - 1), 0, piece.keys)
}

/// The places of a pass's queries and of the keys that they see. They are the same in all layers with one
/// kind of attention.
pub(crate) struct PaddedAttention {
    pub(crate) heads: Heads,
    /// The divisor of queries, to be applied before [`PaddedAttention::attention`].
    pub(crate) divisor: f64,
    groups: Vec<Gathered>,
    /// For each head of each row, its index in the groups' results.
    back: Tensor,
    /// The data for DeBERTa's scores.
    positions: Option<Positions>,
}

/// The groups and their keys, for scores that each layer computes anew.
struct Positions {
    groups: Vec<Group>,
    keys: Vec<Vec<Vec<usize>>>,
    divisor: f32,
}

impl PaddedAttention {
    /// Prepares attention for the queries of `rows`.
    pub(crate) fn new(rows: &Rows<'_>, limits: GroupLimits, device: &Device) -> Result<Self> {
        let &Rows { batch, places, spans, heads, scoring, .. } = rows;
        let groups = groups(pieces(rows, limits), heads, limits);
        let count: usize = spans.iter().map(|span| span.rows.len()).sum();
        let mut back = vec![0; count * heads.queries];
        let (mut first, mut masks) = (0, 0);
        let mut gathered = Vec::with_capacity(groups.len());
        for group in &groups {
            for piece in &group.pieces {
                for head in 0..heads.queries {
                    for (query, row) in piece.rows.clone().enumerate() {
                        back[row * heads.queries + head] = (first + query) as u32;
                    }
                    first += group.shape.queries;
                }
            }
            let mut group = Gathered::new(group, rows, device)?;
            masks += group.shape.scores(heads);
            if masks <= limits.masks {
                group.mask = Some(group.mask()?);
            }
            gathered.push(group);
        }
        let positions = scoring.disentangled.then(|| Positions {
            keys: groups
                .iter()
                .map(|group| group.pieces.iter().map(|piece| keys_of(piece, batch, places)).collect())
                .collect(),
            divisor: scoring.divisor,
            groups,
        });
        Ok(Self {
            heads,
            divisor: f64::from(scoring.divisor),
            groups: gathered,
            back: Tensor::from_vec(back, ((),), device)?,
            positions,
        })
    }

    /// Attention, as this module's documentation describes it.
    pub(crate) fn attention(
        &self,
        queries: &Tensor,
        keys_values: &Tensor,
        scores: Option<&PositionScores<'_>>,
    ) -> Result<Tensor> {
        let size = self.heads.size;
        let (queries, keys_values) = (queries.reshape(((), size))?, keys_values.reshape(((), size))?);
        let results = self.groups.iter().enumerate().map(|(index, group)| {
            let added = scores.zip(self.positions.as_ref());
            let added = added
                .map(|(scores, positions)| positions.scores(index, scores, self.heads, queries.device()));
            group.attention(&queries, &keys_values, self.heads, added.transpose()?.as_ref())
        });
        let results = results.collect::<Result<Vec<_>>>()?;
        let rows = Tensor::cat(&results, 0)?.index_select(&self.back, 0)?;
        rows.reshape(((), self.heads.queries * size))
    }
}

impl Positions {
    /// DeBERTa's scores of a group, divided like the products of queries and keys.
    fn scores(
        &self,
        index: usize,
        scores: &PositionScores<'_>,
        heads: Heads,
        device: &Device,
    ) -> Result<Tensor> {
        let group = &self.groups[index];
        let mut values = Vec::with_capacity(group.shape.scores(heads));
        for (piece, keys) in group.pieces.iter().zip(&self.keys[index]) {
            for head in 0..heads.queries {
                for query in 0..group.shape.queries {
                    for key in 0..group.shape.keys {
                        let is_padding = query >= piece.rows.len() || key >= keys.len();
                        values.push(if is_padding {
                            0.0
                        } else {
                            let (row, position) = (piece.rows.start + query, piece.position + query);
                            let query = PlacedToken { row, position };
                            let key = PlacedToken { row: keys[key], position: key };
                            scores.score_of(head, query, key) / self.divisor
                        });
                    }
                }
            }
        }
        Tensor::from_vec(values, ((), group.shape.keys), device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::{Scoring, queries_at};
    use text_embeddings_backend_core::{BatchBuilder, Packing, Text, Wanted};

    const HEADS: Heads = Heads { queries: 16, keys: 8, size: 128 };

    /// Texts whose own parts have these lengths, after a common beginning of 60 tokens.
    fn batch(lengths: impl Iterator<Item = u32>) -> Batch {
        let mut builder = BatchBuilder::new(Packing::SHARED);
        for (text, length) in lengths.enumerate() {
            // The first token after the common beginning differs between texts.
            let own = 100_000 * (text as u32 + 1);
            let ids: Vec<u32> = (0..60).chain(own..own + length).collect();
            builder.push(&Text::new(ids, Wanted::WHOLE));
        }
        builder.build()
    }

    fn groups_of(batch: &Batch, rows: impl Iterator<Item = usize>, limits: GroupLimits) -> Vec<Group> {
        let spans = queries_at(batch, &rows.collect::<Vec<_>>());
        let scoring =
            Scoring { mask: Mask::CAUSAL, divisor: 1.0, soft_cap: None, bias: None, disentangled: false };
        let rows = Rows { batch, places: &[], spans: &spans, angles: None, heads: HEADS, scoring };
        groups(pieces(&rows, limits), HEADS, limits)
    }

    #[test]
    fn a_request_of_texts_of_about_one_length_is_few_groups() {
        let batch = batch((0..32).map(|text| 180 + 2 * text));
        let all = groups_of(&batch, 0..batch.token_ids().len(), GroupLimits::GPU);
        assert!(all.len() <= 2, "{:?}", all.iter().map(|group| group.shape).collect::<Vec<_>>());
        assert_eq!(groups_of(&batch, batch.last_rows(), GroupLimits::GPU).len(), 1);
    }

    #[test]
    fn groups_keep_to_their_limits_and_hold_every_query_once() {
        let batch = batch([1, 900, 7, 300, 2000, 41, 40, 1, 513, 512].into_iter());
        for (queries, group, padding) in
            [(512, 1 << 26, 1 << 22), (512, 1 << 22, 0), (100, 1 << 26, 0), (512, 1, 0)]
        {
            let limits = GroupLimits { queries, group, padding, masks: 0 };
            let groups = groups_of(&batch, 0..batch.token_ids().len(), limits);
            let mut rows = Vec::new();
            for Group { pieces, shape, unpadded } in &groups {
                let values = shape.values(HEADS);
                assert!(pieces.len() == 1 || values <= group && values <= 2 * unpadded + padding);
                assert_eq!(shape.pieces, pieces.len());
                for piece in pieces {
                    let Shape { queries: own, keys, .. } = Shape::new(piece);
                    assert!(own <= shape.queries && own <= queries && keys <= shape.keys);
                    rows.extend(piece.rows.clone());
                }
            }
            rows.sort_unstable();
            assert!(rows.into_iter().eq(0..batch.token_ids().len()));
        }
    }
}
