//! The operations that models are written in, for every device.
//!
//! [`crate::transformer`] is generic over [`Operations`], so that models are written once. [`crate::cpu`]
//! computes them with the kernels, [`crate::plain`] with candle on any candle device; the second is also the
//! first's oracle in the tests.

use crate::{
    attention::{Heads, QuerySpan, Scoring},
    kept::Kept,
    load::Weight,
    rope::Angles,
};
use std::borrow::Cow;
use text_embeddings_backend_core::{Activation, BackendError, Batch, mean};

/// The result of an operation.
pub(crate) type Result<T> = std::result::Result<T, BackendError>;

/// A norm of each row.
pub(crate) struct Norm<V> {
    /// What it divides by.
    pub(crate) kind: NormKind,
    /// One factor per column.
    pub(crate) weight: V,
    /// One addend per column, of a layer norm; zeros if the checkpoint has none.
    pub(crate) bias: Option<V>,
    /// Added to the mean square, or to the variance.
    pub(crate) epsilon: f32,
}

/// What a norm divides by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NormKind {
    /// The root of the mean square.
    Rms,
    /// The standard deviation, after the mean was subtracted. It always has a bias.
    Layer,
}

/// A part of a matrix as the checkpoint has it.
pub(crate) struct Part {
    /// `[outputs, inputs]`
    pub(crate) weight: Weight,
    /// `[outputs]`
    pub(crate) bias: Option<Vec<f32>>,
}

/// How exact a product is in arithmetic of bytes. Both of its operands must be made for the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Precision {
    /// Bytes.
    Low,
    /// Bytes after a rotation that spreads a few large values over many: for activations of an MLP, of which
    /// a few are many times larger than the rest, so that steps of one size which reach up to them would lose
    /// the rest. Both operands are rotated alike, and their product stays what it was.
    Spread,
    /// More than bytes: where all that follows builds on the result.
    High,
}

/// Some rows of a batch, as the layers of one kind see them.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// The batch.
    pub(crate) batch: &'a Batch,
    /// For each row of the batch, which row of keys and values is its.
    pub(crate) places: &'a [usize],
    /// Where the rows stand in the batch.
    pub(crate) spans: &'a [QuerySpan],
    /// By what each row's heads are turned; absent where positions are not rotary.
    pub(crate) angles: Option<&'a [Angles<'a>]>,
    /// Of each row's queries, and of its keys and values.
    pub(crate) heads: Heads,
    /// How scores become weights.
    pub(crate) scoring: Scoring<'a>,
}

/// The input of attention.
pub(crate) struct Attention<'a, O: Operations + ?Sized> {
    /// `[rows, heads · size]`, each head still to be normalised and turned.
    pub(crate) queries: &'a O::Tensor,
    /// The norm of each head of the queries, if any.
    pub(crate) query_norm: Option<&'a Norm<O::Vector>>,
    /// The batch's keys and values, `[tokens, 2 · key heads · size]`, all keys of a token before its values.
    pub(crate) keys_values: &'a O::Tensor,
    /// Scores of the layer's own, if any.
    pub(crate) disentangled: Option<&'a Disentangled<O>>,
}

/// What the model's forward pass is made of. Activations and norms are `f32`; products may convert their
/// operands.
pub(crate) trait Operations: Send {
    /// Activations `[rows, columns]`.
    type Tensor: Send;
    /// Activations `[rows, columns]` in the form that products take.
    type Operand: Send;
    /// A table of vectors `[ids, columns]`.
    type Table: Send;
    /// A weight `[outputs, inputs]`, perhaps with a bias, which is part of its product.
    type Matrix: Send + Sync;
    /// Two weights `[outputs, inputs]` whose products gate each other.
    type GatedMatrix: Send + Sync;
    /// A weight of one dimension.
    type Vector: Send + Sync;
    /// Some rows of a batch, with what attention and rotation need of them.
    type Rows<'a>;
    /// Rows of keys and values that are kept for later batches.
    type Kept: Kept;

    /// A table.
    fn table(&self, values: Weight) -> Result<Self::Table>;

    /// A weight, made of parts that stand one below the other and have the same number of inputs.
    fn matrix(&self, parts: Vec<Part>, precision: Precision) -> Result<Self::Matrix>;

    /// Two weights of the same shape: the gate's and the other's.
    fn gated_matrix(&self, gate: Part, up: Part, precision: Precision) -> Result<Self::GatedMatrix>;

    /// A vector.
    fn vector(&self, values: Vec<f32>) -> Result<Self::Vector>;

    /// Activations from values in main memory, row after row; they are whole rows of `columns`.
    fn tensor(&mut self, values: &[f32], columns: usize) -> Result<Self::Tensor>;

    /// The values of `x` in main memory, row after row.
    fn values<'a>(&mut self, x: &'a Self::Tensor) -> Result<Cow<'a, [f32]>>;

    /// Runs `pass`, a forward pass, in whatever surroundings make its operations cheap.
    fn enter<R: Send>(&mut self, pass: impl FnOnce(&mut Self) -> R + Send) -> R;

    /// For each row, the sum over `lookups` of the vector that its id names, times `scale`, and its norm, if
    /// there is one: `[ids, columns]`. All tables have the same columns, and all lists the same length.
    fn embed(
        &mut self,
        lookups: &[(&Self::Table, &[u32])],
        scale: f32,
        norm: Option<&Norm<Self::Vector>>,
    ) -> Result<Self::Tensor>;

    /// The norm of each row.
    fn norm(&mut self, x: &Self::Tensor, norm: &Norm<Self::Vector>) -> Result<Self::Tensor>;

    /// `x` for products.
    fn operand(&mut self, x: &Self::Tensor, precision: Precision) -> Result<Self::Operand>;

    /// The norm of each row, for products.
    fn norm_operand(
        &mut self,
        x: &Self::Tensor,
        norm: &Norm<Self::Vector>,
        precision: Precision,
    ) -> Result<Self::Operand>;

    /// Makes each row of `x` its norm, and gives the same for products.
    fn norm_in_place(
        &mut self,
        x: &mut Self::Tensor,
        norm: &Norm<Self::Vector>,
        precision: Precision,
    ) -> Result<Self::Operand>;

    /// Makes the first columns of each row, as many as `norm` has, their norm.
    fn norm_columns(&mut self, x: &mut Self::Tensor, norm: &Norm<Self::Vector>) -> Result<()>;

    /// `sum += norm(x)`, or `sum += x` without a norm.
    fn add(
        &mut self,
        x: &Self::Tensor,
        norm: Option<&Norm<Self::Vector>>,
        sum: &mut Self::Tensor,
    ) -> Result<()>;

    /// `x · weightᵀ`: `[rows, outputs]`.
    fn linear(&mut self, x: &Self::Operand, weight: &Self::Matrix) -> Result<Self::Tensor>;

    /// `sum += x · weightᵀ`.
    fn add_linear(&mut self, x: &Self::Operand, weight: &Self::Matrix, sum: &mut Self::Tensor) -> Result<()>;

    /// `activation(x · weightᵀ)`: `[rows, outputs]`, for products of `precision`.
    fn activated(
        &mut self,
        x: &Self::Operand,
        weight: &Self::Matrix,
        activation: Activation,
        precision: Precision,
    ) -> Result<Self::Operand>;

    /// `activation(x · gateᵀ) ∘ (x · upᵀ)`: `[rows, outputs]`, for products of `precision`.
    fn gated(
        &mut self,
        x: &Self::Operand,
        gate_up: &Self::GatedMatrix,
        activation: Activation,
        precision: Precision,
    ) -> Result<Self::Operand>;

    /// Makes ready, once for all layers of a kind, what only depends on where rows stand.
    fn rows<'a>(&mut self, rows: Rows<'a>) -> Result<Self::Rows<'a>>;

    /// Normalises each key head of keys and values `[rows, 2 · key heads · size]`, if there is a norm, and
    /// turns it by the row's angles, if positions are rotary.
    fn turn_keys(
        &mut self,
        keys_values: &mut Self::Tensor,
        norm: Option<&Norm<Self::Vector>>,
        rows: &Self::Rows<'_>,
    ) -> Result<()>;

    /// Copies some rows of keys and values, `[rows, columns]`, to be kept as exactly as attention takes them
    /// in.
    fn keep(&mut self, x: &Self::Tensor, rows: &[usize]) -> Result<Self::Kept>;

    /// Adds kept rows below those of `x`: of each, the keeper and its index there.
    fn append(&mut self, x: &mut Self::Tensor, rows: &[(&Self::Kept, usize)]) -> Result<()>;

    /// Bytes of a value that is kept.
    fn kept_bytes(&self) -> usize;

    /// Attention of some rows, as an operand `[rows, heads · size]` for products of `precision`.
    fn attention(
        &mut self,
        attention: Attention<'_, Self>,
        rows: &Self::Rows<'_>,
        precision: Precision,
    ) -> Result<Self::Operand>;

    /// The same values again.
    fn copy(&mut self, x: &Self::Tensor) -> Result<Self::Tensor>;

    /// Some rows of `x`, in that order.
    fn select(&mut self, x: &Self::Tensor, rows: &[usize]) -> Result<Self::Tensor>;

    /// Adds to each of the `rows` of `sum` the next row of `x` times the next of `factors`. No row comes
    /// twice.
    fn add_rows(
        &mut self,
        x: &Self::Tensor,
        rows: &[usize],
        factors: &[f32],
        sum: &mut Self::Tensor,
    ) -> Result<()>;

    /// The mean of some rows of `x`, `[rows, columns]`, for each text, in main memory: `[texts, columns]`.
    /// Each text has at least one row.
    fn means(&mut self, x: &Self::Tensor, columns: usize, texts: &[Vec<usize>]) -> Result<Vec<f32>> {
        let values = self.values(x)?;
        let state = |&row: &usize| &values[row * columns..][..columns];
        Ok(texts.iter().flat_map(|rows| mean(rows.iter().map(state), columns)).collect())
    }
}

/// DeBERTa's extra scores: query with the key's position, and key with the query's position, by the bucket of
/// their distance.
pub(crate) struct Disentangled<O: Operations + ?Sized> {
    /// The buckets of distances, query less key.
    pub(crate) buckets: Buckets,
    /// For each head, the keys of all buckets' positions `[buckets, size]`; absent if the model lacks these
    /// scores.
    pub(crate) position_keys: Option<Vec<O::Matrix>>,
    /// The same of queries.
    pub(crate) position_queries: Option<Vec<O::Matrix>>,
}

/// Buckets of distances. Beyond the outermost distances, these count.
pub(crate) struct Buckets {
    /// For each distance from `-reach` to `reach`.
    pub(crate) of_distance: Vec<u32>,
    /// Half of the distances.
    pub(crate) reach: usize,
}

impl Buckets {
    /// The bucket of a query and a key at these positions.
    pub(crate) fn of(&self, query: usize, key: usize) -> usize {
        let reach = self.reach as i64;
        let distance = (query as i64 - key as i64).clamp(-reach, reach);
        self.of_distance[(distance + reach) as usize] as usize
    }
}

/// Checks that a table has a vector for each of `ids`.
///
/// # Errors
///
/// [`BackendError::Inference`] naming an id that it has none for.
pub(crate) fn refuse_unknown(ids: &[u32], vocabulary: usize) -> Result<()> {
    match ids.iter().find(|&&id| id as usize >= vocabulary) {
        Some(id) => Err(BackendError::Inference(format!(
            "token {id} is outside the model's vocabulary of {vocabulary}: tokenizer.json is of another model"
        ))),
        None => Ok(()),
    }
}
