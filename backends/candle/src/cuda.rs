//! The operations on an NVIDIA GPU in 16 bits: fused kernels, flash attention, and products that add to the
//! residual stream.
//!
//! [`Operations`] describes input and output. The residual stream is `f32`; operands, queries, keys and
//! values have 16 bits; all sums are `f32`. What must hold: each kernel reads and writes its rows once
//! (`kernels.cu`); only the values of answers are copied to main memory. `plain` computes rare operations,
//! and attention that flash attention cannot express.

pub(crate) mod accelerator;
#[cfg(any(test, feature = "cuda"))]
mod call_queue;
#[cfg(feature = "cuda")]
mod calls;
#[cfg(feature = "cuda")]
pub(crate) mod device;
#[cfg(all(test, target_os = "linux"))]
mod emulated;
#[cfg(feature = "flash-attn")]
mod flash;
mod kept;
#[cfg(all(test, target_os = "linux"))]
mod kernel_tests;
mod launches;
mod memory;
mod proof;
mod sequences;
mod shared;
pub(crate) mod target;
mod tensor;
#[cfg(all(test, target_os = "linux"))]
pub(crate) mod tests;
mod turns;
#[cfg(all(test, target_os = "linux"))]
mod twins;

use crate::{
    errors::failed,
    kept::KeptRow,
    load::{Part, Weight},
    operations::{Attention, AttentionMatrices, Lookup, Norm, Operations, Precision, Result, Rows},
    pass::refuse_unknown,
    plain::{
        TensorMatrix, TensorOperations, norm_values,
        padded::{GroupLimits, PaddedAttention},
    },
};
use accelerator::{Accelerator, FlashInput, has_flash_size};
use candle_core::{DType, Tensor};
use candle_nn::ops::sigmoid;
use kept::DeviceValues;
use launches::{Launches, MAX_LOOKUPS, ScatteredRows, UploadedLookup, list_addresses};
use memory::DeviceMemory;
use proof::FlashProof;
use sequences::Sequences;
use shared::{Appended, CudaRows, Indices, Path, SharedByLayers};
use std::{
    borrow::Cow,
    ops::Range,
    sync::Arc,
    thread::{self, ThreadId},
};
use tensor::CudaTensor;
use text_embeddings_backend_core::Activation;
use turns::{TurnedHeads, Turns};

/// Operations on one accelerator.
pub(crate) struct CudaOperations<A> {
    memory: Arc<DeviceMemory<A>>,
    launches: Launches<A>,
    /// Computes whatever has no kernel of its own.
    plain: TensorOperations,
    /// The type of operands: 16 bits.
    dtype: DType,
    shared: SharedByLayers,
    /// Whether the log already says that attention takes the general path.
    is_told: bool,
    proof: FlashProof,
    /// The thread that called the device last.
    thread: Option<ThreadId>,
}

impl<A: Accelerator> CudaOperations<A> {
    /// Operations with operands of `dtype`, bfloat16 or float16.
    pub(crate) fn new(accelerator: A, dtype: DType) -> Self {
        let plain = TensorOperations::new(accelerator.device().clone(), dtype);
        let memory = Arc::new(DeviceMemory::new(Arc::new(accelerator)));
        let launches = Launches::new(&memory);
        Self {
            memory,
            launches,
            plain,
            dtype,
            shared: SharedByLayers::default(),
            is_told: false,
            proof: FlashProof::default(),
            thread: None,
        }
    }

    /// A new tensor of the shape of `x`, with undefined values.
    fn empty_like(&self, x: &Tensor, dtype: DType) -> Result<CudaTensor> {
        let (rows, columns) = x.dims2().map_err(failed)?;
        self.memory.empty_tensor(rows, columns, dtype)
    }

    /// `out = x · weightᵀ`, or `out += x · weightᵀ`, without the bias.
    fn multiply_into(&self, x: &Tensor, weight: &TensorMatrix, out: &Tensor, adds: bool) -> Result<()> {
        self.memory.accelerator().multiply(x, &weight.weight, out, adds).map_err(failed)
    }

    /// `x · weightᵀ`, without the bias, in `dtype`.
    fn product(&self, x: &Tensor, weight: &TensorMatrix, dtype: DType) -> Result<CudaTensor> {
        let (rows, columns) = (x.dim(0).map_err(failed)?, weight.weight.dim(0).map_err(failed)?);
        let out = self.memory.empty_tensor(rows, columns, dtype)?;
        self.multiply_into(x, weight, &out, false)?;
        Ok(out)
    }

    /// Adds a matrix's bias, if it has one, to each row of `x`.
    fn add_bias(&self, x: &Tensor, weight: &TensorMatrix) -> Result<()> {
        weight.bias.as_ref().map_or(Ok(()), |bias| self.launches.add_bias(x, bias))
    }

    /// The rows of `x` that `rows` names.
    fn gather(&self, x: &CudaTensor, rows: &CudaTensor) -> Result<CudaTensor> {
        self.gather_turned(x, None, Some(rows), None)
    }

    /// Of the rows of `x` and then the others: the rows that `rows` names, or all. The heads of rows of `x`
    /// are turned. If these are all rows, `x` itself is changed.
    fn gather_turned(
        &self,
        x: &CudaTensor,
        others: Option<&Appended>,
        rows: Option<&CudaTensor>,
        turn: Option<&TurnedHeads>,
    ) -> Result<CudaTensor> {
        let (own, columns) = x.dims2().map_err(failed)?;
        let out = match (rows, others) {
            (None, None) => x.clone(),
            (Some(rows), _) => self.memory.empty_tensor(rows.elem_count(), columns, x.dtype())?,
            (None, Some(others)) => self.memory.empty_tensor(own + others.count, columns, x.dtype())?,
        };
        let places = others.map(|others| &*others.places);
        let from = ScatteredRows { own: x, others: places, layer: others.map_or(0, |others| others.layer) };
        let is_in_place = rows.is_none() && others.is_none();
        let rows = rows.map(|rows| &**rows);
        match turn {
            Some(turn) => self.launches.gather_turned(&from, rows, turn, &out)?,
            None if is_in_place => {}
            None => self.launches.gather_rows(&from, rows, &out)?,
        }
        Ok(out)
    }

    /// The operations of candle, which may now use the tensors.
    fn flushed_plain(&mut self) -> Result<&mut TensorOperations> {
        self.memory.accelerator().flush_calls().map_err(failed)?;
        Ok(&mut self.plain)
    }

    /// The values in `f32`. If `x` is already `f32`, this is `x` itself.
    fn to_exact(&self, x: &CudaTensor) -> Result<CudaTensor> {
        self.to_dtype(x, DType::F32)
    }

    /// The values in `dtype`. If `x` already has this type, this is `x` itself.
    fn to_dtype(&self, x: &CudaTensor, dtype: DType) -> Result<CudaTensor> {
        if x.dtype() == dtype {
            return Ok(x.clone());
        }
        self.memory.accelerator().flush_calls().map_err(failed)?;
        x.to_dtype(dtype).map(CudaTensor::from).map_err(failed)
    }

    /// The values in `f32` after a change by a plain operation, which may make a new tensor or use the old
    /// one.
    fn change_exact(
        &mut self,
        x: &CudaTensor,
        change: impl FnOnce(&mut TensorOperations, &mut Tensor) -> Result<()>,
    ) -> Result<CudaTensor> {
        let x = self.to_exact(x)?;
        let mut changed = (*x).clone();
        change(self.flushed_plain()?, &mut changed)?;
        x.with_view(Ok(changed))
    }

    /// The context times the sigmoid of its gate, in the context's type.
    fn gate_context(&mut self, context: CudaTensor, gate: Option<&CudaTensor>) -> Result<CudaTensor> {
        let Some(gate) = gate else { return Ok(context) };
        self.flushed_plain()?;
        let share = sigmoid(gate).and_then(|share| share.to_dtype(context.dtype()));
        share.and_then(|share| &*context * share).map(CudaTensor::from).map_err(failed)
    }

    /// A list of rows on the device. Layers need the same lists again and again.
    fn indices(&mut self, rows: &[usize]) -> Result<CudaTensor> {
        if let Some(known) = self.shared.indices.iter().find(|known| known.rows == rows) {
            return Ok(known.uploaded.clone());
        }
        let uploaded = self.memory.place_list(rows.iter().map(|&row| row as u32))?;
        self.shared.indices.push(Indices { rows: rows.to_vec(), uploaded: uploaded.clone() });
        Ok(uploaded)
    }
}

/// The matrix of some outputs, in the same memory.
fn outputs_of(matrix: &TensorMatrix, range: Range<usize>) -> candle_core::Result<TensorMatrix> {
    let (start, count) = (range.start, range.len());
    let bias = matrix.bias.as_ref().map(|bias| bias.narrow(0, start, count)).transpose()?;
    Ok(TensorMatrix { weight: matrix.weight.narrow(0, start, count)?, bias })
}

impl<A: Accelerator> Operations for CudaOperations<A> {
    type Tensor = CudaTensor;
    type Operand = CudaTensor;
    type Table = Tensor;
    type Matrix = TensorMatrix;
    /// `[2 · outputs, inputs]`: the gate's rows, then the other matrix's.
    type GatedMatrix = TensorMatrix;
    type Vector = Tensor;
    type Rows<'a> = CudaRows;
    type Kept = DeviceValues<A>;

    fn table(&self, values: Weight) -> Result<Tensor> {
        self.plain.table(values)
    }

    fn matrix(&self, parts: Vec<Part>, precision: Precision) -> Result<TensorMatrix> {
        self.plain.matrix(parts, precision)
    }

    fn attention_matrices(
        &self,
        query: Vec<Part>,
        key_value: Vec<Part>,
        precision: Precision,
    ) -> Result<AttentionMatrices<TensorMatrix>> {
        let queries = query.iter().map(|part| part.weight.rows()).sum();
        let joined = self.matrix(query.into_iter().chain(key_value).collect(), precision)?;
        let outputs = joined.weight.dim(0).map_err(failed)?;
        Ok(AttentionMatrices {
            query: outputs_of(&joined, 0..queries).map_err(failed)?,
            key_value: outputs_of(&joined, queries..outputs).map_err(failed)?,
            joined: Some(joined),
        })
    }

    fn gated_matrix(&self, gate: Part, up: Part, precision: Precision) -> Result<TensorMatrix> {
        self.plain.matrix(vec![gate, up], precision)
    }

    fn vector(&self, values: Vec<f32>) -> Result<Tensor> {
        self.plain.vector(values)
    }

    fn tensor(&mut self, values: &[f32], columns: usize) -> Result<CudaTensor> {
        self.plain.tensor(values, columns).map(CudaTensor::from)
    }

    fn values<'a>(&mut self, x: &'a CudaTensor) -> Result<Cow<'a, [f32]>> {
        Ok(Cow::Owned(self.memory.read_words(&self.to_exact(x)?)?.into_iter().map(f32::from_bits).collect()))
    }

    fn enter<R: Send>(&mut self, pass: impl FnOnce(&mut Self) -> R + Send) -> R {
        self.shared = SharedByLayers::default();
        self.memory.begin_pass();
        pass(self)
    }

    /// Each thread has a stream of its own. A thread that goes on where another one stopped waits for it.
    fn bind_thread(&mut self, waits: bool) -> Result<()> {
        let this = thread::current().id();
        let is_other = self.thread.replace(this).is_some_and(|last| last != this);
        self.plain.bind_thread(waits || is_other)
    }

    fn trim_memory(&mut self) -> bool {
        self.shared = SharedByLayers::default();
        self.memory.trim_chunks().is_ok()
    }

    fn embed(
        &mut self,
        lookups: &[Lookup<'_, Tensor>],
        scale: f32,
        norm: Option<&Norm<Tensor>>,
    ) -> Result<CudaTensor> {
        let is_of_one_type = lookups.windows(2).all(|pair| pair[0].table.dtype() == pair[1].table.dtype());
        if !(1..=MAX_LOOKUPS).contains(&lookups.len()) || !is_of_one_type {
            return self.plain.embed(lookups, scale, norm).map(CudaTensor::from);
        }
        let mut uploaded = Vec::with_capacity(lookups.len());
        for &Lookup { table, ids } in lookups {
            // A GPU does not answer a wrong id with an error. It stops computing for good.
            refuse_unknown(ids, table.dim(0).map_err(failed)?)?;
            uploaded.push(UploadedLookup { table, ids: self.memory.place_list(ids.iter().copied())? });
        }
        self.launches.embed(&uploaded, scale, norm)
    }

    fn norm(&mut self, x: &CudaTensor, norm: &Norm<Tensor>) -> Result<CudaTensor> {
        let out = self.empty_like(x, DType::F32)?;
        self.launches.norm(&*self.to_exact(x)?, norm, self.dtype, None, Some(&out))?;
        Ok(out)
    }

    fn operand(&mut self, x: &CudaTensor, _: Precision) -> Result<CudaTensor> {
        self.to_dtype(x, self.dtype)
    }

    fn norm_operand(&mut self, x: &CudaTensor, norm: &Norm<Tensor>, _: Precision) -> Result<CudaTensor> {
        let operand = self.empty_like(x, self.dtype)?;
        self.launches.norm(&*self.to_exact(x)?, norm, self.dtype, Some(&operand), None)?;
        Ok(operand)
    }

    fn norm_in_place(&mut self, x: &mut CudaTensor, norm: &Norm<Tensor>, _: Precision) -> Result<CudaTensor> {
        *x = self.to_exact(x)?;
        let operand = self.empty_like(x, self.dtype)?;
        self.launches.norm(x, norm, self.dtype, Some(&operand), Some(x))?;
        Ok(operand)
    }

    fn norm_columns(&mut self, x: &mut CudaTensor, norm: &Norm<Tensor>) -> Result<()> {
        self.launches.norm_columns(x, norm)
    }

    fn add(&mut self, x: &CudaTensor, norm: Option<&Norm<Tensor>>, sum: &mut CudaTensor) -> Result<()> {
        *sum = self.to_exact(sum)?;
        self.launches.add_norm(x, norm, sum)
    }

    fn linear(&mut self, x: &CudaTensor, weight: &TensorMatrix) -> Result<CudaTensor> {
        let product = self.product(x, weight, self.dtype)?;
        self.add_bias(&product, weight)?;
        Ok(product)
    }

    fn linear_joined(
        &mut self,
        x: &CudaTensor,
        weights: &AttentionMatrices<TensorMatrix>,
    ) -> Result<Option<[CudaTensor; 2]>> {
        let Some(joined) = &weights.joined else { return Ok(None) };
        let product = self.linear(x, joined)?;
        let queries = weights.query.weight.dim(0).map_err(failed)?;
        let others = weights.key_value.weight.dim(0).map_err(failed)?;
        let parts = [product.narrow(1, 0, queries), product.narrow(1, queries, others)];
        let [queries, keys_values] = parts.map(|part| product.with_view(part));
        Ok(Some([queries?, keys_values?]))
    }

    fn linear_exact(&mut self, x: &CudaTensor, weight: &TensorMatrix) -> Result<CudaTensor> {
        let product = self.product(x, weight, DType::F32)?;
        self.add_bias(&product, weight)?;
        Ok(product)
    }

    fn add_linear(&mut self, x: &CudaTensor, weight: &TensorMatrix, sum: &mut CudaTensor) -> Result<()> {
        *sum = self.to_exact(sum)?;
        self.multiply_into(x, weight, sum, true)?;
        self.add_bias(sum, weight)
    }

    fn activated(
        &mut self,
        x: &CudaTensor,
        weight: &TensorMatrix,
        activation: Activation,
        _: Precision,
    ) -> Result<CudaTensor> {
        let product = self.product(x, weight, self.dtype)?;
        self.launches.activate(&product, weight.bias.as_ref(), activation)?;
        Ok(product)
    }

    fn gated(
        &mut self,
        x: &CudaTensor,
        gate_up: &TensorMatrix,
        activation: Activation,
        _: Precision,
    ) -> Result<CudaTensor> {
        let product = self.product(x, gate_up, self.dtype)?; // [rows, 2 · outputs]
        self.launches.gate(&product, gate_up.bias.as_ref(), activation)
    }

    fn rows(&mut self, rows: Rows<'_>) -> Result<CudaRows> {
        let accelerator = self.memory.accelerator();
        let turns = rows.angles.map(|angles| Turns::new(angles, &self.memory)).transpose()?.map(Arc::new);
        let sequences = if accelerator.has_flash() && has_flash_size(rows.heads) {
            Sequences::new(&rows, |words| self.memory.place_list(words))?
        } else {
            None
        };
        let attention = if let Some(sequences) = sequences {
            self.proof.compare_kernel(&self.memory, self.dtype, rows.heads.size, rows.scoring.mask)?;
            Path::Flash(sequences)
        } else {
            if !std::mem::replace(&mut self.is_told, true) {
                tracing::info!(
                    "Some of this model's layers compute attention by general kernels: flash attention has no biases, \
                     soft caps or heads of this size, or this build lacks it"
                );
            }
            Path::General(
                PaddedAttention::new(&rows, GroupLimits::GPU, accelerator.device()).map_err(failed)?,
            )
        };
        Ok(CudaRows { heads: rows.heads, turns, attention })
    }

    /// Only notes how keys are turned: the kernels that copy their rows do it.
    fn turn_keys(&mut self, _: &mut CudaTensor, norm: Option<&Norm<Tensor>>, rows: &CudaRows) -> Result<()> {
        self.shared.key_turn = rows.turned_heads(rows.heads.keys, norm);
        Ok(())
    }

    fn norm_values(
        &mut self,
        keys_values: &mut CudaTensor,
        norm: &Norm<Tensor>,
        rows: &CudaRows,
    ) -> Result<()> {
        self.flushed_plain()?;
        norm_values(keys_values, norm, rows.heads).map_err(failed)
    }

    fn gate_rows(&mut self, x: &mut CudaTensor, factors: &CudaTensor, activation: Activation) -> Result<()> {
        let factors = self.to_exact(factors)?;
        *x = self.change_exact(x, |plain, x| plain.gate_rows(x, &factors, activation))?;
        Ok(())
    }

    fn scale_values(&mut self, x: &mut CudaTensor, factor: f32) -> Result<()> {
        *x = self.change_exact(x, |plain, x| plain.scale_values(x, factor))?;
        Ok(())
    }

    fn keep(&mut self, x: &CudaTensor, rows: &[usize]) -> Result<DeviceValues<A>> {
        let rows = self.indices(rows)?;
        let values = self.gather_turned(x, None, Some(&rows), self.shared.key_turn.as_ref())?;
        Ok(DeviceValues::new(values, &self.memory))
    }

    /// Only notes where the rows are: attention gathers them together with the rows of `x`, so that each row
    /// is copied once. The places in all layers go to the device once.
    fn append(
        &mut self,
        x: &mut CudaTensor,
        rows: &[KeptRow<'_, DeviceValues<A>>],
        layer: usize,
    ) -> Result<()> {
        if let Some(appended) = &mut self.shared.appended {
            appended.layer = layer;
            return Ok(());
        }
        let row_bytes = x.dim(1).map_err(failed)? * self.dtype.size_in_bytes();
        let mut places = Vec::with_capacity(rows.len());
        for KeptRow { layers, row } in rows {
            places.push(DeviceValues::place_of_row(layers, *row, row_bytes)?);
        }
        let places = self.memory.place_list(list_addresses(places.into_iter().flatten()))?;
        self.shared.appended = Some(Appended { places, count: rows.len(), layer });
        Ok(())
    }

    fn kept_bytes(&self) -> usize {
        self.dtype.size_in_bytes()
    }

    fn attention(
        &mut self,
        attention: Attention<'_, Self>,
        rows: &CudaRows,
        _: Precision,
    ) -> Result<CudaTensor> {
        let (count, columns) = attention.queries.dims2().map_err(failed)?;
        let queries = match rows.turned_heads(rows.heads.queries, attention.query_norm) {
            Some(turn) => {
                let turned = self.empty_like(attention.queries, self.dtype)?;
                let from = ScatteredRows { own: attention.queries, others: None, layer: 0 };
                self.launches.gather_turned(&from, None, &turn, &turned)?;
                turned
            }
            None => attention.queries.clone(),
        };
        let key_turn = self.shared.key_turn.take();
        let appended = self.shared.appended.as_ref();
        let sequences = match &rows.attention {
            Path::Flash(sequences) => sequences,
            Path::General(padded) => {
                let keys_values =
                    self.gather_turned(attention.keys_values, appended, None, key_turn.as_ref())?;
                let (queries, keys_values) = (self.to_exact(&queries)?, self.to_exact(&keys_values)?);
                let context =
                    self.flushed_plain()?.attend(padded, &queries, &keys_values, attention.disentangled)?;
                let context = self.to_dtype(&context.into(), self.dtype)?;
                return self.gate_context(context, attention.gate);
            }
        };
        let keys_values = self.gather_turned(
            attention.keys_values,
            appended,
            sequences.gathered.as_ref(),
            key_turn.as_ref(),
        )?;
        let context = self.memory.empty_tensor(count, columns, self.dtype)?;
        let sums = self.memory.empty_tensor(rows.heads.queries, count, DType::F32)?;
        let input = FlashInput {
            heads: rows.heads,
            queries: &queries,
            keys_values: &keys_values,
            context: &context,
            sums: &sums,
        };
        self.memory.send_lists()?;
        self.memory.accelerator().attend_sequences(&input, sequences).map_err(failed)?;
        self.gate_context(context, attention.gate)
    }

    fn copy(&mut self, x: &CudaTensor) -> Result<CudaTensor> {
        // Sums are written in place, so a second handle to the same memory would change, too.
        let out = self.empty_like(x, x.dtype())?;
        let from = ScatteredRows { own: x, others: None, layer: 0 };
        self.launches.gather_rows(&from, None, &out)?;
        Ok(out)
    }

    fn select(&mut self, x: &CudaTensor, rows: &[usize]) -> Result<CudaTensor> {
        let rows = self.indices(rows)?;
        self.gather(x, &rows)
    }

    fn add_rows(
        &mut self,
        x: &CudaTensor,
        rows: &[usize],
        factors: &[f32],
        sum: &mut CudaTensor,
    ) -> Result<()> {
        let x = self.to_exact(x)?;
        *sum = self.change_exact(sum, |plain, sum| plain.add_rows(&x, rows, factors, sum))?;
        Ok(())
    }

    fn means(&mut self, x: &CudaTensor, _: usize, texts: &[Vec<usize>]) -> Result<Vec<f32>> {
        let mut starts = vec![0];
        for text in texts {
            starts.push(starts[starts.len() - 1] + text.len());
        }
        let (starts, rows) = (self.indices(&starts)?, self.indices(&texts.concat())?);
        let means = self.launches.mean_rows(&*self.to_exact(x)?, &starts, &rows)?;
        Ok(self.values(&means)?.into_owned())
    }
}
