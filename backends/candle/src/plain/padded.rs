//! Attention in candle tensors, in a handful of operations however many texts there are.
//!
//! Input: turned and scaled queries `[rows, heads · size]`, keys and values side by side `[tokens, 2 · key
//! heads · size]`. Output: `[rows, heads · size]`. Queries that see about as many keys form a group: its
//! queries, and the keys and values that they see, are gathered into tensors of one shape. What must hold:
//! what pads a group is either masked or read by nobody, and all that follows from where rows stand is on the
//! device before the first layer ([`PaddedAttention::new`]).

use crate::{
    attention::{Heads, Mask},
    bias::DistanceBias,
    operations::Rows,
    plain::positions::PositionScores,
};
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::ops::softmax_last_dim;
use std::{cmp::Reverse, ops::Range};
use text_embeddings_backend_core::Batch;

/// What groups are limited to, in values of a tensor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// The most queries of a piece: longer runs are cut, which spares them keys that only the last of them
    /// see.
    pub(crate) queries: usize,
    /// The most values that a group computes.
    pub(crate) group: usize,
    /// How many values padding may add to a group beside as many as it would have without: computing these
    /// takes less time than launching another group's kernels.
    pub(crate) padding: usize,
    /// The most values of masks that are kept from layer to layer.
    pub(crate) masks: usize,
}

impl Limits {
    /// For GPUs: a quarter of a gigabyte of scores at a time, and one of masks, in `f32`.
    pub(crate) const GPU: Self = Self { queries: 512, group: 1 << 26, padding: 1 << 22, masks: 1 << 28 };
}

/// Queries next to each other in one segment.
#[derive(Debug, Clone)]
struct Piece {
    segment: usize,
    /// Their rows in the queries' tensor.
    rows: Range<usize>,
    /// The first one's position in its text: how many keys stand before its own.
    position: usize,
    /// The keys that the last of them may see: the first tokens of its text.
    keys: usize,
}

/// The shape that pieces are padded to.
#[derive(Debug, Clone, Copy, Default)]
struct Shape {
    pieces: usize,
    queries: usize,
    keys: usize,
}

impl Shape {
    fn of(piece: &Piece) -> Self {
        Self { pieces: 1, queries: piece.rows.len(), keys: piece.keys }
    }

    fn with(self, piece: &Piece) -> Self {
        let Self { queries, keys, .. } = Self::of(piece);
        Self { pieces: self.pieces + 1, queries: self.queries.max(queries), keys: self.keys.max(keys) }
    }

    fn scores(self, heads: Heads) -> usize {
        self.pieces * heads.queries * self.queries * self.keys
    }

    /// Scores, keys and values, queries and results.
    fn values(self, heads: Heads) -> usize {
        let rows = heads.keys * self.keys + heads.queries * self.queries;
        self.scores(heads) + 2 * self.pieces * rows * heads.size
    }
}

/// Pieces of one shape, once padded.
#[derive(Debug, Default)]
struct Group {
    pieces: Vec<Piece>,
    shape: Shape,
    /// What the pieces would come to each on its own.
    unpadded: usize,
}

impl Group {
    /// Whether `piece` can join.
    fn takes(&self, piece: &Piece, heads: Heads, limits: Limits) -> bool {
        let padded = self.shape.with(piece).values(heads);
        let unpadded = self.unpadded + Shape::of(piece).values(heads);
        padded <= limits.group && padded <= 2 * unpadded + limits.padding
    }

    fn push(&mut self, piece: Piece, heads: Heads) {
        self.shape = self.shape.with(&piece);
        self.unpadded += Shape::of(&piece).values(heads);
        self.pieces.push(piece);
    }
}

/// Cuts spans into pieces, each of which fits a group on its own where one query does.
fn pieces(&Rows { batch, spans, heads, scoring, .. }: &Rows<'_>, limits: Limits) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for span in spans {
        let segment = &batch.segments()[span.segment];
        let position = segment.position + span.offset;
        let tokens = segment.position + segment.rows.len();
        let seen = |queries: usize| scoring.mask.visible(position + queries - 1, 0, tokens).end;
        let keys = seen(span.rows.len());
        let most = (limits.group / (heads.queries * keys)).clamp(1, limits.queries);
        let length = span.rows.len().div_ceil(span.rows.len().div_ceil(most));
        for from in (0..span.rows.len()).step_by(length) {
            let first = span.rows.start + from;
            let rows = first..span.rows.end.min(first + length);
            let keys = seen(from + rows.len());
            pieces.push(Piece { segment: span.segment, rows, position: position + from, keys });
        }
    }
    pieces
}

/// Puts pieces of similar shapes together.
fn groups(mut pieces: Vec<Piece>, heads: Heads, limits: Limits) -> Vec<Group> {
    pieces.sort_by_key(|piece| {
        let Shape { queries, keys, .. } = Shape::of(piece);
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

fn numbers(values: Vec<u32>, device: &Device) -> Result<Tensor> {
    let count = values.len();
    Tensor::from_vec(values, count, device)
}

/// A group on the device. A head of a row is a row of its own here: the gathered tensors' last dimension is a
/// head's size.
struct Gathered {
    shape: Shape,
    /// Heads of the queries' rows: of each `[piece, query head, query]`.
    queries: Tensor,
    /// Heads of the rows of keys and values: of each `[key or value, piece, key head, key]`.
    keys_values: Tensor,
    /// The first and the last key that each query sees: of each `[piece · query head · query, 1]`.
    seen: [Tensor; 2],
    /// What is added to scores by distance, likewise with keys.
    bias: Option<Tensor>,
    /// See [`Gathered::mask`]. Absent where it is made in each layer, because all of them would take too much
    /// memory.
    mask: Option<Tensor>,
    /// Scores `s` become `cap · tanh(s / cap)`.
    soft_cap: Option<f64>,
}

/// The rows of keys and values that a piece's queries may see, in the order of their positions.
fn keys_of(piece: &Piece, batch: &Batch, places: &[usize]) -> Vec<usize> {
    let path = batch.path(piece.segment).into_iter();
    let rows = path.flat_map(|segment| batch.segments()[segment].rows.clone());
    rows.take(piece.keys).map(|row| places[row]).collect()
}

/// The biases by distance of a group, `[piece · query head · query, keys]`. Padding has zeros.
fn distance_bias(group: &Group, rows: &Rows<'_>, bias: &DistanceBias, device: &Device) -> Result<Tensor> {
    let Shape { queries, keys, .. } = group.shape;
    let mut values = Vec::with_capacity(group.shape.scores(rows.heads));
    for piece in &group.pieces {
        for head in 0..rows.heads.queries {
            for query in 0..queries {
                let is_padding = query >= piece.rows.len();
                let line = bias.of(head, piece.position + query.min(piece.rows.len() - 1), 0, piece.keys);
                let value = |key| {
                    line.get(key).filter(|_| !is_padding).map_or(0.0, |bias| bias / rows.scoring.divisor)
                };
                values.extend((0..keys).map(value));
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
            queries: numbers(queries, device)?,
            keys_values: numbers(keys, device)?,
            seen: [numbers(first, device)?.unsqueeze(1)?, numbers(last, device)?.unsqueeze(1)?],
            bias,
            mask: None,
            soft_cap: scoring.soft_cap.map(f64::from),
        })
    }

    /// Zero where a query sees a key, else minus infinity: `[piece · query head · query, keys]`; with biases,
    /// where there are any. Of the scores' own shape, because a sum of tensors of two shapes takes several
    /// times as long.
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

    /// Of heads `[row · head, size]` to those of this group, `[piece · query head · query, size]`. `added` is
    /// added to scores.
    fn attention(
        &self,
        queries: &Tensor,
        keys_values: &Tensor,
        heads: Heads,
        added: Option<&Tensor>,
    ) -> Result<Tensor> {
        let Shape { pieces, queries: each, keys: seen } = self.shape;
        // The queries of all heads that share a key head stand one below the other.
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

/// The keys that a query of a piece sees; what pads a group's queries sees those of the last one.
fn visible(mask: Mask, piece: &Piece, query: usize) -> Range<usize> {
    mask.visible(piece.position + query.min(piece.rows.len() - 1), 0, piece.keys)
}

/// Where the queries of a pass and the keys that they see stand: the same in all layers of a kind.
pub(crate) struct PaddedAttention {
    /// Of each row.
    pub(crate) heads: Heads,
    /// What queries must be divided by before [`PaddedAttention::attention`].
    pub(crate) divisor: f64,
    groups: Vec<Gathered>,
    /// For each head of each row its place in the groups' results.
    back: Tensor,
    /// What DeBERTa's scores need.
    positions: Option<Positions>,
}

/// The groups and their batch, for scores that each layer makes anew.
struct Positions {
    groups: Vec<Group>,
    keys: Vec<Vec<Vec<usize>>>,
    divisor: f32,
}

impl PaddedAttention {
    /// The plan for the queries of `rows`.
    pub(crate) fn new(rows: &Rows<'_>, limits: Limits, device: &Device) -> Result<Self> {
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
        let keys = |group: &Group| group.pieces.iter().map(|piece| keys_of(piece, batch, places)).collect();
        let positions = scoring.disentangled.then(|| Positions {
            keys: groups.iter().map(keys).collect(),
            divisor: scoring.divisor,
            groups,
        });
        Ok(Self {
            heads,
            divisor: f64::from(scoring.divisor),
            groups: gathered,
            back: numbers(back, device)?,
            positions,
        })
    }

    /// See the head of this file.
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
    /// DeBERTa's scores of a group, divided as the products of queries and keys are.
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
                        let query = (piece.rows.start + query, piece.position + query);
                        let value = || scores.of(head, query, (keys[key], key)) / self.divisor;
                        values.push(if is_padding { 0.0 } else { value() });
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

    /// Texts of these lengths after a common beginning of 60 tokens.
    fn batch(lengths: impl Iterator<Item = u32>) -> Batch {
        let mut builder = BatchBuilder::new(Packing::SHARED);
        for (text, length) in lengths.enumerate() {
            // The first token after the beginning tells the texts apart.
            let own = 100_000 * (text as u32 + 1);
            let ids: Vec<u32> = (0..60).chain(own..own + length).collect();
            builder.push(&Text::new(ids, Wanted::WHOLE));
        }
        builder.build()
    }

    fn groups_of(batch: &Batch, rows: impl Iterator<Item = usize>, limits: Limits) -> Vec<Group> {
        let spans = queries_at(batch, &rows.collect::<Vec<_>>());
        let scoring =
            Scoring { mask: Mask::CAUSAL, divisor: 1.0, soft_cap: None, bias: None, disentangled: false };
        let rows = Rows { batch, places: &[], spans: &spans, angles: None, heads: HEADS, scoring };
        groups(pieces(&rows, limits), HEADS, limits)
    }

    #[test]
    fn a_request_of_texts_of_about_one_length_is_few_groups() {
        let batch = batch((0..32).map(|text| 180 + 2 * text));
        let all = groups_of(&batch, 0..batch.token_ids().len(), Limits::GPU);
        assert!(all.len() <= 2, "{:?}", all.iter().map(|group| group.shape).collect::<Vec<_>>());
        assert_eq!(groups_of(&batch, batch.last_rows(), Limits::GPU).len(), 1);
    }

    #[test]
    fn groups_keep_to_their_limits_and_hold_every_query_once() {
        let batch = batch([1, 900, 7, 300, 2000, 41, 40, 1, 513, 512].into_iter());
        for (queries, group, padding) in
            [(512, 1 << 26, 1 << 22), (512, 1 << 22, 0), (100, 1 << 26, 0), (512, 1, 0)]
        {
            let limits = Limits { queries, group, padding, masks: 0 };
            let groups = groups_of(&batch, 0..batch.token_ids().len(), limits);
            let mut rows = Vec::new();
            for Group { pieces, shape, unpadded } in &groups {
                let values = shape.values(HEADS);
                assert!(pieces.len() == 1 || values <= group && values <= 2 * unpadded + padding);
                assert_eq!(shape.pieces, pieces.len());
                for piece in pieces {
                    let Shape { queries: own, keys, .. } = Shape::of(piece);
                    assert!(own <= shape.queries && own <= queries && keys <= shape.keys);
                    rows.extend(piece.rows.clone());
                }
            }
            rows.sort_unstable();
            assert!(rows.into_iter().eq(0..batch.token_ids().len()));
        }
    }
}
