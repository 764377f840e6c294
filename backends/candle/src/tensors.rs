//! The operations in candle tensors, for the devices that candle drives, in `f32`.
//!
//! Written for clarity: nothing is fused. On candle's CPU device they are the oracle that the kernels are held to.

use crate::{
    attention::{Heads, reference},
    kernels::mapped::MappedMatrix,
    kernels::pack::Format,
    operations::{Norm, Operations, Precision, Queries, Result, Rotation, refuse_unknown},
};
use candle_core::{D, DType, Device, Tensor};
use std::borrow::Cow;
use text_embeddings_backend_core::{BackendError, Batch};

/// Operations on one candle device.
pub(crate) struct TensorOperations {
    device: Device,
}

impl TensorOperations {
    /// Operations on `device`.
    pub(crate) fn new(device: Device) -> Self {
        Self { device }
    }
}

/// candle's errors, in the backend's terms.
#[expect(clippy::needless_pass_by_value, reason = "the form that `map_err` takes")]
pub(crate) fn failed(error: candle_core::Error) -> BackendError {
    BackendError::Inference(error.to_string())
}

fn rms_norm(x: &Tensor, norm: &Norm<Tensor>) -> candle_core::Result<Tensor> {
    let mean_square = x.sqr()?.mean_keepdim(D::Minus1)?;
    let root = (mean_square + f64::from(norm.epsilon))?.sqrt()?;
    x.broadcast_div(&root)?.broadcast_mul(&norm.weight)
}

impl Operations for TensorOperations {
    type Tensor = Tensor;
    type Operand = Tensor;
    type Table = Tensor;
    type Matrix = Tensor;
    type GatedMatrix = [Tensor; 2];
    type Vector = Tensor;

    fn table(&self, values: MappedMatrix) -> Result<Tensor> {
        self.matrix(vec![values], Precision::High)
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
        let columns = parts[0].columns();
        let values: Vec<f32> =
            parts.iter().flat_map(|part| (0..part.rows()).flat_map(|row| part.row(row))).collect();
        Tensor::from_vec(values, ((), columns), &self.device).map_err(failed)
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
        table.index_select(&ids, 0).map_err(failed)
    }

    fn norm(&mut self, x: &Tensor, norm: &Norm<Tensor>) -> Result<Tensor> {
        rms_norm(x, norm).map_err(failed)
    }

    fn operand(&mut self, x: &Tensor, _: Precision) -> Result<Tensor> {
        Ok(x.clone())
    }

    fn norm_operand(&mut self, x: &Tensor, norm: &Norm<Tensor>, _: Precision) -> Result<Tensor> {
        self.norm(x, norm)
    }

    fn linear(&mut self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        x.matmul(&weight.t().map_err(failed)?).map_err(failed)
    }

    fn add_linear(&mut self, x: &Tensor, weight: &Tensor, sum: &mut Tensor) -> Result<()> {
        *sum = (self.linear(x, weight)? + &*sum).map_err(failed)?;
        Ok(())
    }

    fn swiglu(&mut self, x: &Tensor, [gate, up]: &[Tensor; 2], _: Precision) -> Result<Tensor> {
        let gates = self.linear(x, gate)?.silu().map_err(failed)?;
        (gates * self.linear(x, up)?).map_err(failed)
    }

    fn norm_and_rotate(
        &mut self,
        x: &mut Tensor,
        heads: usize,
        norm: &Norm<Tensor>,
        rotation: Rotation<'_>,
    ) -> Result<()> {
        *x = norm_and_rotate(x, heads, norm, rotation).map_err(failed)?;
        Ok(())
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
        queries: Queries<'_, Tensor, Tensor>,
        keys_values: (&Tensor, &[usize]),
        heads: Heads,
        batch: &Batch,
        _: Precision,
    ) -> Result<Tensor> {
        norm_and_rotate(queries.values, heads.queries, queries.norm, queries.rotation)
            .and_then(|turned| reference::attention((&turned, queries.spans), keys_values, heads, batch))
            .map_err(failed)
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

fn norm_and_rotate(
    x: &Tensor,
    heads: usize,
    norm: &Norm<Tensor>,
    rotation: Rotation<'_>,
) -> candle_core::Result<Tensor> {
    let (rows, columns) = x.dims2()?;
    let size = norm.weight.dim(0)?;
    let angles = || rotation.positions.iter().map(|&position| rotation.table.at(position));
    let tensor = |values: Vec<f32>| Tensor::from_vec(values, (rows, 1, size / 2), x.device());
    let cosines = tensor(angles().flat_map(|(cosines, _)| cosines).copied().collect())?;
    let sines = tensor(angles().flat_map(|(_, sines)| sines).copied().collect())?;
    let turned = x.narrow(1, 0, heads * size)?.reshape((rows, heads, size))?;
    let halves = rms_norm(&turned, norm)?.chunk(2, 2)?;
    let first = (halves[0].broadcast_mul(&cosines)? - halves[1].broadcast_mul(&sines)?)?;
    let second = (halves[1].broadcast_mul(&cosines)? + halves[0].broadcast_mul(&sines)?)?;
    let turned = Tensor::cat(&[first, second], 2)?.reshape((rows, heads * size))?;
    Tensor::cat(&[turned, x.narrow(1, heads * size, columns - heads * size)?], 1)
}
