//! The operations in candle tensors: see [`super`].

use super::{
    TensorMatrix, TensorOperations, TensorRows, activate, norm_values, normalise,
    padded::{GroupLimits, PaddedAttention},
    stored_dtype,
};
use crate::{
    errors::failed,
    kept::{HostValues, KeptRow},
    load::{Part, Weight},
    operations::{Attention, Lookup, Norm, Operations, Precision, Result, Rows},
    pass::refuse_unknown,
};
use candle_core::{DType, Tensor};
use candle_nn::ops::sigmoid;
use std::borrow::Cow;
use text_embeddings_backend_core::Activation;

impl Operations for TensorOperations {
    type Tensor = Tensor;
    type Operand = Tensor;
    type Table = Tensor;
    type Matrix = TensorMatrix;
    type GatedMatrix = [TensorMatrix; 2];
    type Vector = Tensor;
    type Rows<'a> = TensorRows;
    type Kept = HostValues;

    fn table(&self, values: Weight) -> Result<Tensor> {
        // In the stored type, so that no precision is lost.
        let dtype = stored_dtype(&values).unwrap_or(DType::F32);
        self.upload(&[&values], dtype)
    }

    fn gated_matrix(&self, gate: Part, up: Part, precision: Precision) -> Result<[TensorMatrix; 2]> {
        Ok([self.matrix(vec![gate], precision)?, self.matrix(vec![up], precision)?])
    }

    fn matrix(&self, parts: Vec<Part>, _: Precision) -> Result<TensorMatrix> {
        let weights: Vec<&Weight> = parts.iter().map(|part| &part.weight).collect();
        let weight = self.upload(&weights, self.dtype)?;
        let has_bias = parts.iter().any(|part| part.bias.is_some());
        let bias = has_bias.then(|| self.vector(parts.into_iter().flat_map(Part::into_bias).collect()));
        let bias = bias.transpose()?;
        Ok(TensorMatrix { weight, bias })
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

    #[cfg(feature = "cuda")]
    fn bind_thread(&mut self, waits: bool) -> Result<()> {
        crate::device::bind_thread(&self.device, waits).map_err(failed)
    }

    fn embed(
        &mut self,
        lookups: &[Lookup<'_, Tensor>],
        scale: f32,
        norm: Option<&Norm<Tensor>>,
    ) -> Result<Tensor> {
        let mut sum: Option<Tensor> = None;
        for Lookup { table, ids } in lookups {
            // A GPU does not answer a wrong id with an error. It stops computing for good.
            refuse_unknown(ids, table.dim(0).map_err(failed)?)?;
            let ids = Tensor::new(*ids, &self.device).map_err(failed)?;
            let rows =
                table.index_select(&ids, 0).and_then(|rows| rows.to_dtype(DType::F32)).map_err(failed)?;
            sum = Some(match sum {
                Some(sum) => (sum + rows).map_err(failed)?,
                None => rows,
            });
        }
        let mut sum = sum.unwrap_or_else(|| unreachable!("a plan has a table for the token ids"));
        if scale.to_bits() != 1.0_f32.to_bits() {
            sum = (sum * f64::from(scale)).map_err(failed)?;
        }
        match norm {
            Some(norm) => self.norm(&sum, norm),
            None => Ok(sum),
        }
    }

    fn norm(&mut self, x: &Tensor, norm: &Norm<Tensor>) -> Result<Tensor> {
        normalise(x, norm).map_err(failed)
    }

    fn operand(&mut self, x: &Tensor, _: Precision) -> Result<Tensor> {
        x.to_dtype(self.dtype).map_err(failed)
    }

    fn norm_operand(&mut self, x: &Tensor, norm: &Norm<Tensor>, precision: Precision) -> Result<Tensor> {
        let normed = self.norm(x, norm)?;
        self.operand(&normed, precision)
    }

    fn norm_in_place(&mut self, x: &mut Tensor, norm: &Norm<Tensor>, precision: Precision) -> Result<Tensor> {
        *x = self.norm(x, norm)?;
        self.operand(x, precision)
    }

    fn norm_columns(&mut self, x: &mut Tensor, norm: &Norm<Tensor>) -> Result<()> {
        let width = norm.weight.elem_count();
        let normed = x.narrow(1, 0, width).and_then(|first| normalise(&first.contiguous()?, norm));
        // In place: a product made `x`, so no other tensor shares its memory.
        normed.and_then(|normed| x.slice_set(&normed, 1, 0)).map_err(failed)
    }

    fn add(&mut self, x: &Tensor, norm: Option<&Norm<Tensor>>, sum: &mut Tensor) -> Result<()> {
        let x = norm.map_or_else(|| Ok(x.clone()), |norm| normalise(x, norm));
        *sum = x.and_then(|x| x + &*sum).map_err(failed)?;
        Ok(())
    }

    fn linear(&mut self, x: &Tensor, weight: &TensorMatrix) -> Result<Tensor> {
        weight.product(x).and_then(|product| product.to_dtype(DType::F32)).map_err(failed)
    }

    fn add_linear(&mut self, x: &Tensor, weight: &TensorMatrix, sum: &mut Tensor) -> Result<()> {
        *sum = (self.linear(x, weight)? + &*sum).map_err(failed)?;
        Ok(())
    }

    fn activated(
        &mut self,
        x: &Tensor,
        weight: &TensorMatrix,
        activation: Activation,
        _: Precision,
    ) -> Result<Tensor> {
        weight.product(x).and_then(|product| activate(&product, activation)).map_err(failed)
    }

    fn gated(
        &mut self,
        x: &Tensor,
        [gate, up]: &[TensorMatrix; 2],
        activation: Activation,
        _: Precision,
    ) -> Result<Tensor> {
        let gates = gate.product(x).and_then(|gates| activate(&gates, activation));
        gates.and_then(|gates| gates * up.product(x)?).map_err(failed)
    }

    fn rows(&mut self, rows: Rows<'_>) -> Result<TensorRows> {
        let Rows { angles, heads, .. } = rows;
        let tensor = |values: Vec<f32>| Tensor::from_vec(values, ((), heads.size / 2), &self.device);
        let angles = angles.map(|angles| {
            let cosines = angles.iter().flat_map(|(cosines, _)| *cosines).copied().collect();
            let sines = angles.iter().flat_map(|(_, sines)| *sines).copied().collect();
            Ok([tensor(cosines)?, tensor(sines)?])
        });
        let angles = angles.transpose().map_err(failed)?;
        let attention = PaddedAttention::new(&rows, GroupLimits::GPU, &self.device).map_err(failed)?;
        Ok(TensorRows { angles, attention, heads })
    }

    fn turn_keys(
        &mut self,
        keys_values: &mut Tensor,
        norm: Option<&Norm<Tensor>>,
        rows: &TensorRows,
    ) -> Result<()> {
        if norm.is_none() && rows.angles.is_none() {
            return Ok(());
        }
        let keys = keys_values.narrow(1, 0, rows.heads.keys * rows.heads.size);
        let turned = keys.and_then(|keys| rows.turn(&keys.contiguous()?, norm));
        // In place: a product made `keys_values`, so no other tensor shares its memory.
        turned.and_then(|turned| keys_values.slice_set(&turned, 1, 0)).map_err(failed)
    }

    fn norm_values(
        &mut self,
        keys_values: &mut Tensor,
        norm: &Norm<Tensor>,
        rows: &TensorRows,
    ) -> Result<()> {
        norm_values(keys_values, norm, rows.heads).map_err(failed)
    }

    fn gate_rows(&mut self, x: &mut Tensor, factors: &Tensor, activation: Activation) -> Result<()> {
        *x = activate(x, activation).and_then(|x| x * factors).map_err(failed)?;
        Ok(())
    }

    fn scale_values(&mut self, x: &mut Tensor, factor: f32) -> Result<()> {
        *x = (&*x * f64::from(factor)).map_err(failed)?;
        Ok(())
    }

    fn keep(&mut self, x: &Tensor, rows: &[usize]) -> Result<HostValues> {
        let rows = self.select(x, rows)?;
        Ok(HostValues::F32(self.values(&rows)?.into_owned()))
    }

    fn append(&mut self, x: &mut Tensor, rows: &[KeptRow<'_, HostValues>], layer: usize) -> Result<()> {
        let columns = x.dim(1).map_err(failed)?;
        let mut values = vec![0.0; rows.len() * columns];
        for (KeptRow { layers, row }, out) in rows.iter().zip(values.chunks_exact_mut(columns)) {
            layers[layer].read(*row, out);
        }
        let below = Tensor::from_vec(values, ((), columns), &self.device);
        *x = below.and_then(|below| Tensor::cat(&[&*x, &below], 0)).map_err(failed)?;
        Ok(())
    }

    fn kept_bytes(&self) -> usize {
        size_of::<f32>()
    }

    fn attention(
        &mut self,
        Attention { queries, query_norm, keys_values, gate, disentangled }: Attention<'_, Self>,
        rows: &TensorRows,
        precision: Precision,
    ) -> Result<Tensor> {
        let turned = rows.turn(queries, query_norm).map_err(failed)?;
        let mut context = self.attend(&rows.attention, &turned, keys_values, disentangled)?;
        if let Some(gate) = gate {
            context = sigmoid(gate).and_then(|gate| context * gate).map_err(failed)?;
        }
        self.operand(&context, precision)
    }

    fn copy(&mut self, x: &Tensor) -> Result<Tensor> {
        Ok(x.clone())
    }

    fn select(&mut self, x: &Tensor, rows: &[usize]) -> Result<Tensor> {
        x.index_select(&self.ids(rows)?, 0).map_err(failed)
    }

    fn add_rows(&mut self, x: &Tensor, rows: &[usize], factors: &[f32], sum: &mut Tensor) -> Result<()> {
        let factors = Tensor::new(factors, &self.device).and_then(|factors| factors.unsqueeze(1));
        let scaled = factors.and_then(|factors| x.broadcast_mul(&factors)).map_err(failed)?;
        *sum = sum.index_add(&self.ids(rows)?, &scaled, 0).map_err(failed)?;
        Ok(())
    }
}
