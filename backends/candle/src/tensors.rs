//! The operations in candle tensors, for the devices that candle drives.
//!
//! Activations are `f32`, and so is attention: scores of a tenth of its precision would be felt. Products take operands in `f32`
//! or bfloat16 and round their results to the same. On candle's CPU device these operations are the oracle that the kernels are
//! held to.

use crate::{
    attention::{
        Heads,
        padded::{Limits, Plan},
    },
    kernels::{
        mapped::MappedMatrix,
        pack::{Format, Stored},
    },
    operations::{Norm, Operations, Precision, Result, Rows, refuse_unknown},
};
use candle_core::{D, DType, Device, Tensor};
use candle_nn::{ops::rms_norm, rotary_emb::rope_thd};
use std::borrow::Cow;
use text_embeddings_backend_core::BackendError;

/// Operations on one candle device.
pub(crate) struct TensorOperations {
    device: Device,
    /// Of products' operands.
    dtype: DType,
}

impl TensorOperations {
    /// Operations on `device` with products in `dtype`, `f32` or bfloat16.
    pub(crate) fn new(device: Device, dtype: DType) -> Self {
        Self { device, dtype }
    }

    fn upload(&self, parts: &[MappedMatrix], dtype: DType) -> Result<Tensor> {
        let rows = parts.iter().flat_map(|part| (0..part.rows()).flat_map(|row| part.row(row)));
        let values = Tensor::from_vec(rows.collect::<Vec<f32>>(), ((), parts[0].columns()), &self.device);
        values.and_then(|values| values.to_dtype(dtype)).map_err(failed)
    }
}

/// Some rows of a batch on a device.
pub(crate) struct TensorRows {
    /// Of the angles of each row: `[rows, size / 2]`.
    cosines: Tensor,
    sines: Tensor,
    attention: Plan,
    heads: Heads,
}

impl TensorRows {
    /// Normalises the heads of `x`, `[rows, heads · size]`, and turns them by the rows' positions.
    fn norm_and_rotate(&self, x: &Tensor, weight: &Tensor, epsilon: f32) -> candle_core::Result<Tensor> {
        let (rows, columns) = x.dims2()?;
        let heads = x.reshape((1, rows, columns / self.heads.size, self.heads.size))?;
        let normed = rms_norm(&heads, weight, epsilon)?;
        rope_thd(&normed, &self.cosines, &self.sines)?.reshape((rows, columns))
    }
}

/// candle's errors, in the backend's terms.
#[expect(clippy::needless_pass_by_value, reason = "the form that `map_err` takes")]
pub(crate) fn failed(error: candle_core::Error) -> BackendError {
    BackendError::Inference(error.to_string())
}

/// `x · weightᵀ`, in the operands' own type.
fn product(x: &Tensor, weight: &Tensor) -> candle_core::Result<Tensor> {
    x.matmul(&weight.t()?)
}

impl Operations for TensorOperations {
    type Tensor = Tensor;
    type Operand = Tensor;
    type Table = Tensor;
    type Matrix = Tensor;
    type GatedMatrix = [Tensor; 2];
    type Vector = Tensor;
    type Rows<'a> = TensorRows;

    fn table(&self, values: MappedMatrix) -> Result<Tensor> {
        // As exact as it is stored.
        let dtype = match values.stored() {
            Stored::F32 => DType::F32,
            Stored::F16 => DType::F16,
            Stored::Bf16 => DType::BF16,
        };
        self.upload(&[values], dtype)
    }

    fn gated_matrix(
        &self,
        gate: MappedMatrix,
        up: MappedMatrix,
        precision: Precision,
    ) -> Result<[Tensor; 2]> {
        Ok([self.matrix(vec![gate], precision)?, self.matrix(vec![up], precision)?])
    }

    fn matrix(&self, parts: Vec<MappedMatrix>, _: Precision) -> Result<Tensor> {
        self.upload(&parts, self.dtype)
    }

    fn vector(&self, values: Vec<f32>) -> Result<Tensor> {
        Tensor::new(values, &self.device).map_err(failed)
    }

    fn tensor(&mut self, values: &[f32], columns: usize) -> Result<Tensor> {
        Tensor::from_slice(values, ((), columns), &self.device).map_err(failed)
    }

    fn values<'a>(&mut self, x: &'a Tensor) -> Result<Cow<'a, [f32]>> {
        x.flatten_all().and_then(|x| x.to_vec1()).map(Cow::Owned).map_err(failed)
    }

    fn enter<R: Send>(&mut self, pass: impl FnOnce(&mut Self) -> R + Send) -> R {
        pass(self)
    }

    fn embed(&mut self, table: &Tensor, ids: &[u32]) -> Result<Tensor> {
        // A GPU does not answer a wrong id with an error: it computes nothing any more.
        refuse_unknown(ids, table.dim(0).map_err(failed)?)?;
        let ids = Tensor::new(ids, &self.device).map_err(failed)?;
        table.index_select(&ids, 0).and_then(|rows| rows.to_dtype(DType::F32)).map_err(failed)
    }

    fn norm(&mut self, x: &Tensor, norm: &Norm<Tensor>) -> Result<Tensor> {
        rms_norm(x, &norm.weight, norm.epsilon).map_err(failed)
    }

    fn operand(&mut self, x: &Tensor, _: Precision) -> Result<Tensor> {
        x.to_dtype(self.dtype).map_err(failed)
    }

    fn norm_operand(&mut self, x: &Tensor, norm: &Norm<Tensor>, precision: Precision) -> Result<Tensor> {
        let normed = self.norm(x, norm)?;
        self.operand(&normed, precision)
    }

    fn linear(&mut self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        product(x, weight).and_then(|product| product.to_dtype(DType::F32)).map_err(failed)
    }

    fn add_linear(&mut self, x: &Tensor, weight: &Tensor, sum: &mut Tensor) -> Result<()> {
        *sum = (self.linear(x, weight)? + &*sum).map_err(failed)?;
        Ok(())
    }

    fn swiglu(&mut self, x: &Tensor, [gate, up]: &[Tensor; 2], _: Precision) -> Result<Tensor> {
        let gates = product(x, gate).and_then(|gates| gates.silu());
        gates.and_then(|gates| gates * product(x, up)?).map_err(failed)
    }

    fn rows(&mut self, Rows { batch, places, spans, rotation, heads }: Rows<'_>) -> Result<TensorRows> {
        let angles = || rotation.positions.iter().map(|&position| rotation.table.at(position));
        let tensor = |values: Vec<f32>| Tensor::from_vec(values, ((), heads.size / 2), &self.device);
        let cosines = tensor(angles().flat_map(|(cosines, _)| cosines).copied().collect()).map_err(failed)?;
        let sines = tensor(angles().flat_map(|(_, sines)| sines).copied().collect()).map_err(failed)?;
        let attention = Plan::new(spans, (batch, places), heads, Limits::GPU, &self.device);
        let attention = attention.map_err(failed)?;
        Ok(TensorRows { cosines, sines, attention, heads })
    }

    fn norm_and_rotate(
        &mut self,
        keys_values: &mut Tensor,
        norm: &Norm<Tensor>,
        rows: &TensorRows,
    ) -> Result<()> {
        let keys = keys_values.narrow(1, 0, rows.heads.keys * rows.heads.size);
        let keys = keys.and_then(|keys| keys.contiguous()).map_err(failed)?;
        let turned = rows.norm_and_rotate(&keys, &norm.weight, norm.epsilon);
        // In place: a product made these, and nobody else has them.
        turned.and_then(|turned| keys_values.slice_set(&turned, 1, 0)).map_err(failed)
    }

    fn append(&mut self, x: &mut Tensor, rows: &[f32]) -> Result<()> {
        let below = Tensor::from_slice(rows, ((), x.dim(1).map_err(failed)?), &self.device);
        *x = below.and_then(|below| Tensor::cat(&[&*x, &below], 0)).map_err(failed)?;
        Ok(())
    }

    fn keys_format(&self) -> Format {
        Format::F32
    }

    fn attention(
        &mut self,
        (queries, norm): (&Tensor, &Norm<Tensor>),
        keys_values: &Tensor,
        rows: &TensorRows,
        precision: Precision,
    ) -> Result<Tensor> {
        // Scaled as scores must be.
        let weight = (&norm.weight / (rows.heads.size as f64).sqrt()).map_err(failed)?;
        let turned = rows.norm_and_rotate(queries, &weight, norm.epsilon).map_err(failed)?;
        let context = rows.attention.attention(&turned, keys_values).map_err(failed)?;
        self.operand(&context, precision)
    }

    fn select(&mut self, x: &Tensor, rows: &[usize]) -> Result<Tensor> {
        let rows: Vec<u32> = rows.iter().map(|&row| row as u32).collect();
        let rows = Tensor::new(rows, &self.device).map_err(failed)?;
        x.index_select(&rows, 0).map_err(failed)
    }

    fn dot(&mut self, x: &Tensor, vector: &Tensor) -> Result<Vec<f32>> {
        let wide =
            |tensor: &Tensor| tensor.to_device(&Device::Cpu).and_then(|tensor| tensor.to_dtype(DType::F64));
        let products = wide(x).and_then(|x| x.broadcast_mul(&wide(vector)?)).map_err(failed)?;
        let sums = products.sum(D::Minus1).and_then(|sums| sums.to_dtype(DType::F32)).map_err(failed)?;
        sums.to_vec1().map_err(failed)
    }
}
