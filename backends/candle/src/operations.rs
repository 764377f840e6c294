//! The operations that models are written in, for every device.
//!
//! A model is generic over [`Operations`], so that it is written once. [`crate::cpu`] computes them with the kernels,
//! [`crate::tensors`] with candle on any candle device; the second is also the first's oracle in the tests.

use crate::{
    attention::{Heads, QuerySpan},
    kernels::{mapped::MappedMatrix, pack::Format},
    rope::RopeTable,
};
use std::borrow::Cow;
use text_embeddings_backend_core::{BackendError, Batch};

/// The result of an operation.
pub(crate) type Result<T> = std::result::Result<T, BackendError>;

/// A root-mean-square norm: its weight and what keeps the root from zero.
pub(crate) struct Norm<V> {
    /// One factor per column.
    pub(crate) weight: V,
    /// Added to the mean square.
    pub(crate) epsilon: f32,
}

/// How exact a product is in arithmetic of bytes. Both of its operands must be made for the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Precision {
    /// Bytes.
    Low,
    /// Bytes after a rotation that spreads a few large values over many: for gated activations, of which a few are many
    /// times larger than the rest, so that steps of one size which reach up to them would lose the rest. Both operands are
    /// rotated alike, and their product stays what it was.
    Spread,
    /// More than bytes: where all that follows builds on the result.
    High,
}

/// Some rows of a batch, as all layers of a pass see them.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// The batch.
    pub(crate) batch: &'a Batch,
    /// For each row of the batch, which row of keys and values is its.
    pub(crate) places: &'a [usize],
    /// Where the rows stand in the batch.
    pub(crate) spans: &'a [QuerySpan],
    /// By the rows' positions.
    pub(crate) rotation: Rotation<'a>,
    /// Of each row's queries, and of its keys and values.
    pub(crate) heads: Heads,
}

/// What a model's forward pass is made of. Activations and norms are `f32`; products may convert their operands.
pub(crate) trait Operations: Send {
    /// Activations `[rows, columns]`.
    type Tensor: Send;
    /// Activations `[rows, columns]` in the form that products take.
    type Operand: Send;
    /// A table of vectors `[ids, columns]`.
    type Table: Send;
    /// A weight `[outputs, inputs]`.
    type Matrix: Send + Sync;
    /// Two weights `[outputs, inputs]` whose products gate each other.
    type GatedMatrix: Send + Sync;
    /// A weight of one dimension.
    type Vector: Send + Sync;
    /// Some rows of a batch, with what attention and rotation need of them.
    type Rows<'a>;

    /// A table.
    fn table(&self, values: MappedMatrix) -> Result<Self::Table>;

    /// A weight, made of parts that stand one below the other and have the same number of inputs.
    fn matrix(&self, parts: Vec<MappedMatrix>, precision: Precision) -> Result<Self::Matrix>;

    /// Two weights of the same shape: the gate's and the other's.
    fn gated_matrix(
        &self,
        gate: MappedMatrix,
        up: MappedMatrix,
        precision: Precision,
    ) -> Result<Self::GatedMatrix>;

    /// A vector.
    fn vector(&self, values: Vec<f32>) -> Result<Self::Vector>;

    /// Activations from values in main memory, row after row; they are whole rows of `columns`.
    fn tensor(&mut self, values: &[f32], columns: usize) -> Result<Self::Tensor>;

    /// The values of `x` in main memory, row after row.
    fn values<'a>(&mut self, x: &'a Self::Tensor) -> Result<Cow<'a, [f32]>>;

    /// Runs `pass`, a forward pass, in whatever surroundings make its operations cheap.
    fn enter<R: Send>(&mut self, pass: impl FnOnce(&mut Self) -> R + Send) -> R;

    /// The rows of `table` that `ids` name: `[ids, columns]`.
    fn embed(&mut self, table: &Self::Table, ids: &[u32]) -> Result<Self::Tensor>;

    /// The root-mean-square norm of each row.
    fn norm(&mut self, x: &Self::Tensor, norm: &Norm<Self::Vector>) -> Result<Self::Tensor>;

    /// `x` for products.
    fn operand(&mut self, x: &Self::Tensor, precision: Precision) -> Result<Self::Operand>;

    /// The root-mean-square norm of each row, for products.
    fn norm_operand(
        &mut self,
        x: &Self::Tensor,
        norm: &Norm<Self::Vector>,
        precision: Precision,
    ) -> Result<Self::Operand>;

    /// `x · weightᵀ`: `[rows, outputs]`.
    fn linear(&mut self, x: &Self::Operand, weight: &Self::Matrix) -> Result<Self::Tensor>;

    /// `sum += x · weightᵀ`.
    fn add_linear(&mut self, x: &Self::Operand, weight: &Self::Matrix, sum: &mut Self::Tensor) -> Result<()>;

    /// `silu(x · gateᵀ) ∘ (x · upᵀ)`: `[rows, outputs]`, for products of `precision`.
    fn swiglu(
        &mut self,
        x: &Self::Operand,
        gate_up: &Self::GatedMatrix,
        precision: Precision,
    ) -> Result<Self::Operand>;

    /// Makes ready, once for all layers of a pass, what only depends on where rows stand.
    fn rows<'a>(&mut self, rows: Rows<'a>) -> Result<Self::Rows<'a>>;

    /// Normalises each key of keys and values `[rows, 2 · key heads · size]` and turns it by the row's position.
    fn norm_and_rotate(
        &mut self,
        keys_values: &mut Self::Tensor,
        norm: &Norm<Self::Vector>,
        rows: &Self::Rows<'_>,
    ) -> Result<()>;

    /// Adds whole rows below those of `x`.
    fn append(&mut self, x: &mut Self::Tensor, rows: &[f32]) -> Result<()>;

    /// The precision in which attention takes keys and values in: keeping more of them would change nothing.
    fn keys_format(&self) -> Format;

    /// Attention of the queries of some rows, `[rows, heads · size]` with each head still to be normalised and turned, to the
    /// batch's keys and values, `[tokens, 2 · key heads · size]` with all keys of a token before its values, as an operand
    /// `[rows, heads · size]` for products of `precision`.
    fn attention(
        &mut self,
        queries: (&Self::Tensor, &Norm<Self::Vector>),
        keys_values: &Self::Tensor,
        rows: &Self::Rows<'_>,
        precision: Precision,
    ) -> Result<Self::Operand>;

    /// Some rows of `x`, in that order.
    fn select(&mut self, x: &Self::Tensor, rows: &[usize]) -> Result<Self::Tensor>;

    /// The product of each row with `vector`, accumulated in at least `f32`.
    fn dot(&mut self, x: &Self::Tensor, vector: &Self::Vector) -> Result<Vec<f32>>;
}

/// Checks that a table of so many vectors has one for each of `ids`.
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

/// Rotary positions of some rows.
#[derive(Clone, Copy)]
pub(crate) struct Rotation<'a> {
    /// The angles' cosines and sines, for at least all positions of `positions`.
    pub(crate) table: &'a RopeTable,
    /// The position of each row.
    pub(crate) positions: &'a [usize],
}
