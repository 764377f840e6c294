//! The operations on an NVIDIA GPU in 16 bits: fused kernels, flash attention, and products that add to the
//! residual stream.
//!
//! [`crate::operations`] describes input and output. The residual stream is `f32`; operands, queries, keys
//! and values have 16 bits; all sums are `f32`. What must hold: each kernel reads and writes its rows once
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
mod operations;
mod proof;
mod sequences;
mod shared;
pub(crate) mod target;
mod tensor;
#[cfg(all(test, target_os = "linux"))]
pub(crate) mod tests;
#[cfg(all(test, target_os = "linux"))]
mod twins;

use crate::{
    errors::failed,
    operations::Result,
    plain::{TensorMatrix, TensorOperations},
};
use accelerator::Accelerator;
use candle_core::{DType, Tensor};
use candle_nn::ops::sigmoid;
use launches::{Launches, ScatteredRows};
use memory::DeviceMemory;
use proof::FlashProof;
use shared::{Appended, Indices, SharedByLayers, TurnedHeads};
use std::{ops::Range, sync::Arc, thread::ThreadId};
use tensor::CudaTensor;

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
