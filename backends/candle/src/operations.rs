//! The operations that models are written in, for every device.
//!
//! [`crate::transformer`] is generic over [`Operations`], so models are written once. [`crate::cpu`] has them
//! with this crate's kernels, `crate::plain` with candle. The tests check `cpu` against `plain`.

pub(crate) use crate::precision::Precision;
use crate::{
    attention::{Heads, QuerySpan, Scoring},
    bias::Buckets,
    delta::{self, DeltaRule, Walk},
    kept::{Kept, KeptRow},
    load::{Part, Weight},
    plan::{DeltaSizes, NormKind},
    rope::Angles,
    short_convolution::ShortConvolution,
};
use std::borrow::Cow;
use text_embeddings_backend_core::{Activation, BackendError, Batch, RowsToCompute};
use text_embeddings_backend_host::mean_state;

/// The result of an operation.
pub(crate) type Result<T> = std::result::Result<T, BackendError>;

/// A norm of each row.
#[derive(Clone)]
pub(crate) struct Norm<V> {
    pub(crate) kind: NormKind,
    /// One factor per column.
    pub(crate) weight: V,
    /// One addend per column, for a layer norm; zeros if the checkpoint has no bias.
    pub(crate) bias: Option<V>,
    /// Added to the mean square, or to the variance.
    pub(crate) epsilon: f32,
}

/// The weights of a layer's queries, and of its keys and values. All read the same operand.
pub(crate) struct AttentionMatrices<M> {
    pub(crate) query: M,
    pub(crate) key_value: M,
    /// Both in one, with the same memory, if the device can compute both products at once.
    pub(crate) joined: Option<M>,
}

/// Rows of an embedding table, one for each id.
#[derive(Debug)]
pub(crate) struct Lookup<'a, T: ?Sized> {
    pub(crate) table: &'a T,
    pub(crate) ids: &'a [u32],
}

/// Some rows of a batch, as all layers with one kind of attention see them.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub(crate) batch: &'a Batch,
    /// For each row of the batch, its row in the keys and values.
    pub(crate) places: &'a [usize],
    /// The places of the rows in the batch.
    pub(crate) spans: &'a [QuerySpan],
    /// The rotation angles of each row's heads; absent if positions are not rotary.
    pub(crate) angles: Option<&'a [Angles<'a>]>,
    pub(crate) heads: Heads,
    pub(crate) scoring: Scoring<'a>,
}

/// The input of attention.
pub(crate) struct Attention<'a, O: Operations + ?Sized> {
    /// `[rows, heads · size]`, before each head's norm and rotation.
    pub(crate) queries: &'a O::Tensor,
    /// The norm of each head of the queries, if any.
    pub(crate) query_norm: Option<&'a Norm<O::Vector>>,
    /// The batch's keys and values, `[tokens, 2 · key heads · size]`. Each row has all of a token's keys,
    /// then its values.
    pub(crate) keys_values: &'a O::Tensor,
    /// `[rows, heads · size]`: the context is multiplied by its sigmoid.
    pub(crate) gate: Option<&'a O::Tensor>,
    /// The layer's own scores, if any.
    pub(crate) disentangled: Option<&'a Disentangled<O::Matrix>>,
}

pub(crate) struct DeltaInput<'a, O: Operations + ?Sized> {
    /// Queries, keys and values of all computed rows before the convolution: `[computed, channels]`.
    pub(crate) channels: &'a O::Tensor,
    /// The products for strengths and decays: `[computed, 2 · value heads]`.
    pub(crate) rates: &'a O::Tensor,
    /// The gate of each row of the result: `[rows, value heads · value size]`.
    pub(crate) gate: O::Tensor,
    /// The rows of the result among the computed rows, if not all are wanted.
    pub(crate) rows: Option<&'a [usize]>,
    /// The way through the batch.
    pub(crate) walk: &'a Walk,
    /// States that earlier batches kept.
    pub(crate) known: &'a [&'a [f32]],
}

pub(crate) struct ConvolutionInput<'a, O: Operations + ?Sized> {
    /// For all computed rows, the gates of the inputs, then the inputs: `[computed, 2 · width]`.
    pub(crate) values: &'a O::Tensor,
    /// The gate of each row of the result: `[rows, width]`.
    pub(crate) gate: O::Tensor,
    /// The rows of the result among the computed rows, if not all are wanted.
    pub(crate) rows: Option<&'a [usize]>,
    /// The way through the batch.
    pub(crate) walk: &'a Walk,
    /// States that earlier batches kept.
    pub(crate) known: &'a [&'a [f32]],
}

/// The building blocks of a forward pass. Activations and norms are `f32`; products may convert their
/// operands.
pub(crate) trait Operations: Send {
    /// Activations `[rows, columns]`.
    type Tensor: Send;
    /// Activations `[rows, columns]` in the form that products read.
    type Operand: Send;
    /// A table of vectors `[ids, columns]`.
    type Table: Send + Sync;
    /// A weight `[outputs, inputs]`, perhaps with a bias, which the product adds.
    type Matrix: Send + Sync;
    /// Two weights `[outputs, inputs]` whose products gate each other.
    type GatedMatrix: Send + Sync;
    /// A weight of one dimension.
    type Vector: Send + Sync;
    /// Some rows of a batch, prepared for attention and rotation.
    type Rows<'a>;
    /// Rows of keys and values that are kept for later batches.
    type Kept: Kept;

    /// Puts a table onto the device.
    fn table(&self, values: Weight) -> Result<Self::Table>;

    /// A weight whose rows are the rows of its parts, in order. All parts have the same number of inputs.
    fn matrix(&self, parts: Vec<Part>, precision: Precision) -> Result<Self::Matrix>;

    /// The weights of queries, and of keys and values.
    fn attention_matrices(
        &self,
        query: Vec<Part>,
        key_value: Vec<Part>,
        precision: Precision,
    ) -> Result<AttentionMatrices<Self::Matrix>> {
        let (query, key_value) = (self.matrix(query, precision)?, self.matrix(key_value, precision)?);
        Ok(AttentionMatrices { query, key_value, joined: None })
    }

    /// Two weights of the same shape for [`Operations::gated`]. `gate` goes through the activation.
    fn gated_matrix(&self, gate: Part, up: Part, precision: Precision) -> Result<Self::GatedMatrix>;

    /// Puts a vector onto the device.
    fn vector(&self, values: Vec<f32>) -> Result<Self::Vector>;

    /// Activations from values in main memory, row after row. The values must be whole rows of `columns`.
    fn tensor(&mut self, values: &[f32], columns: usize) -> Result<Self::Tensor>;

    /// The values of `x` in main memory, row after row.
    fn values<'a>(&mut self, x: &'a Self::Tensor) -> Result<Cow<'a, [f32]>>;

    /// Runs `pass`, a forward pass, in the context in which this device's operations are cheapest.
    fn enter<R: Send>(&mut self, pass: impl FnOnce(&mut Self) -> R + Send) -> R;

    /// As [`Operations::enter`]: once, or for parts of the batch at the same time. `_rows` counts the rows to
    /// compute. Returns each part's texts with its result.
    fn run_parts<R: Send>(
        &mut self,
        batch: &Batch,
        _rows: impl FnOnce() -> RowsToCompute,
        pass: impl Fn(&mut Self, &Batch) -> R + Send + Sync,
    ) -> Vec<(Vec<usize>, R)> {
        vec![((0..batch.leaves().len()).collect(), self.enter(|operations| pass(operations, batch)))]
    }

    /// Prepares this thread for work on the device: models are loaded, run and dropped by different threads.
    /// With `waits`, all threads' work is done afterwards.
    fn bind_thread(&mut self, _waits: bool) -> Result<()> {
        Ok(())
    }

    /// Gives free memory back to the device. Returns whether a pass that ran out of memory may fit now.
    fn trim_memory(&mut self) -> bool {
        false
    }

    /// For each row, adds the vectors that the row's ids name in all `lookups`, multiplies the sum by
    /// `scale`, and applies the norm, if there is one: `[ids, columns]`. There is at least one lookup. All
    /// tables have the same columns, and all lists the same length.
    fn embed(
        &mut self,
        lookups: &[Lookup<'_, Self::Table>],
        scale: f32,
        norm: Option<&Norm<Self::Vector>>,
    ) -> Result<Self::Tensor>;

    /// The norm of each row.
    fn norm(&mut self, x: &Self::Tensor, norm: &Norm<Self::Vector>) -> Result<Self::Tensor>;

    /// Converts `x` to an operand of products.
    fn operand(&mut self, x: &Self::Tensor, precision: Precision) -> Result<Self::Operand>;

    /// The norm of each row, as an operand of products.
    fn norm_operand(
        &mut self,
        x: &Self::Tensor,
        norm: &Norm<Self::Vector>,
        precision: Precision,
    ) -> Result<Self::Operand>;

    /// Replaces each row of `x` by its norm, and returns the result as an operand, too.
    fn norm_in_place(
        &mut self,
        x: &mut Self::Tensor,
        norm: &Norm<Self::Vector>,
        precision: Precision,
    ) -> Result<Self::Operand>;

    /// Replaces the first columns of each row, as many as `norm` has, by their norm.
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

    /// The queries, and the keys and values, of the same rows, if the device computes both at once.
    fn linear_joined(
        &mut self,
        _x: &Self::Operand,
        _weights: &AttentionMatrices<Self::Matrix>,
    ) -> Result<Option<[Self::Tensor; 2]>> {
        Ok(None)
    }

    /// [`Operations::linear`] with results in `f32`, even where other results have fewer bits.
    fn linear_exact(&mut self, x: &Self::Operand, weight: &Self::Matrix) -> Result<Self::Tensor> {
        self.linear(x, weight)
    }

    /// `sum += x · weightᵀ`.
    fn add_linear(&mut self, x: &Self::Operand, weight: &Self::Matrix, sum: &mut Self::Tensor) -> Result<()>;

    /// `activation(x · weightᵀ)`: `[rows, outputs]`, as an operand of `precision`.
    fn activated(
        &mut self,
        x: &Self::Operand,
        weight: &Self::Matrix,
        activation: Activation,
        precision: Precision,
    ) -> Result<Self::Operand>;

    /// `activation(x · gateᵀ) ∘ (x · upᵀ)`: `[rows, outputs]`, as an operand of `precision`.
    fn gated(
        &mut self,
        x: &Self::Operand,
        gate_up: &Self::GatedMatrix,
        activation: Activation,
        precision: Precision,
    ) -> Result<Self::Operand>;

    /// Prepares everything that depends only on the places of rows, once for all layers with one kind of
    /// attention.
    fn rows<'a>(&mut self, rows: Rows<'a>) -> Result<Self::Rows<'a>>;

    /// Normalises each key head of keys and values `[rows, 2 · key heads · size]`, if there is a norm, and
    /// rotates it by the row's angles, if positions are rotary.
    fn turn_keys(
        &mut self,
        keys_values: &mut Self::Tensor,
        norm: Option<&Norm<Self::Vector>>,
        rows: &Self::Rows<'_>,
    ) -> Result<()>;

    /// Normalises each value head of keys and values `[rows, 2 · key heads · size]`.
    fn norm_values(
        &mut self,
        keys_values: &mut Self::Tensor,
        norm: &Norm<Self::Vector>,
        rows: &Self::Rows<'_>,
    ) -> Result<()>;

    /// Replaces each value of `x` by its activation times the value of `factors` in the same place.
    fn gate_rows(
        &mut self,
        x: &mut Self::Tensor,
        factors: &Self::Tensor,
        activation: Activation,
    ) -> Result<()>;

    fn scale_values(&mut self, x: &mut Self::Tensor, factor: f32) -> Result<()>;

    /// Copies some rows of keys and values, `[rows, columns]`, in the precision that attention reads.
    fn keep(&mut self, x: &Self::Tensor, rows: &[usize]) -> Result<Self::Kept>;

    /// Appends kept rows of a layer to the rows of `x`, the keys and values of the next
    /// [`Operations::attention`]. All layers of a pass append the same rows.
    fn append(&mut self, x: &mut Self::Tensor, rows: &[KeptRow<'_, Self::Kept>], layer: usize) -> Result<()>;

    /// Bytes per kept value.
    fn kept_bytes(&self) -> usize;

    /// Whether weights that the checkpoint stores in four bits are multiplied with these.
    fn keeps_four_bits(&self) -> bool {
        false
    }

    /// Attention of some rows, as an operand `[rows, heads · size]` of `precision`.
    fn attention(
        &mut self,
        attention: Attention<'_, Self>,
        rows: &Self::Rows<'_>,
        precision: Precision,
    ) -> Result<Self::Operand>;

    /// A gated delta rule over the computed rows, as an operand `[rows, value heads · value size]` of
    /// `precision`; and the states that the walk keeps. Here, it is computed in main memory.
    fn delta_rule(
        &mut self,
        input: DeltaInput<'_, Self>,
        rule: &DeltaRule,
        precision: Precision,
    ) -> Result<(Self::Operand, Vec<Vec<f32>>)> {
        let (channels, rates) = (self.values(input.channels)?, self.values(input.rates)?);
        let recurred = delta::plain_results(rule, &channels, &rates, input.walk, input.known);
        let gate = self.values(&input.gate)?;
        let all: Vec<usize> = (0..gate.len() / rule.sizes.value_count()).collect();
        let rows = input.rows.unwrap_or(&all);
        let gated = delta::gated_norm(rule, &recurred.results, rows, &gate);
        let gated = self.tensor(&gated, rule.sizes.value_count())?; // [rows, values]
        Ok((self.operand(&gated, precision)?, recurred.kept))
    }

    /// The number of values of a state of [`Operations::delta_rule`].
    fn delta_state_values(&self, sizes: DeltaSizes) -> usize {
        delta::state_values(sizes)
    }

    /// A gated convolution over the computed rows, as an operand `[rows, width]` of `precision`; and the
    /// states that the walk keeps. Here, it is computed in main memory.
    fn short_convolution(
        &mut self,
        input: ConvolutionInput<'_, Self>,
        rule: &ShortConvolution,
        precision: Precision,
    ) -> Result<(Self::Operand, Vec<Vec<f32>>)> {
        let convolved = rule.convolve_batch(&self.values(input.values)?, input.walk, input.known);
        let mut gated = self.values(&input.gate)?.into_owned();
        for (index, gate) in gated.chunks_exact_mut(rule.width).enumerate() {
            rule.gate_row(&convolved.results, input.rows.map_or(index, |rows| rows[index]), gate);
        }
        let gated = self.tensor(&gated, rule.width)?; // [rows, width]
        Ok((self.operand(&gated, precision)?, convolved.kept))
    }

    fn copy(&mut self, x: &Self::Tensor) -> Result<Self::Tensor>;

    /// The rows of `x` at these indices, in their order.
    fn select(&mut self, x: &Self::Tensor, rows: &[usize]) -> Result<Self::Tensor>;

    /// Multiplies each row of `x` by its value in `factors`, and adds it to the row of `sum` that `rows`
    /// names. Each row is named at most once.
    fn add_rows(
        &mut self,
        x: &Self::Tensor,
        rows: &[usize],
        factors: &[f32],
        sum: &mut Self::Tensor,
    ) -> Result<()>;

    /// For each text, the mean of some rows of `x`, `[rows, columns]`, in main memory: `[texts, columns]`.
    /// Each text has at least one row.
    fn means(&mut self, x: &Self::Tensor, columns: usize, texts: &[Vec<usize>]) -> Result<Vec<f32>> {
        let values = self.values(x)?;
        Ok(texts
            .iter()
            .flat_map(|rows| mean_state(rows.iter().map(|&row| &values[row * columns..][..columns]), columns))
            .collect())
    }
}

/// DeBERTa's extra scores: query with the key's position, and key with the query's position, by the bucket of
/// their distance.
pub(crate) struct Disentangled<M> {
    /// The buckets of distances, query position minus key position.
    pub(crate) buckets: Buckets,
    /// For each head, the keys made of all buckets' positions `[buckets, size]`; absent if the model lacks
    /// these scores.
    pub(crate) position_keys: Option<Vec<M>>,
    /// The same for queries.
    pub(crate) position_queries: Option<Vec<M>>,
}
