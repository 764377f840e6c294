//! The operations in candle tensors, for devices that candle drives.
//!
//! Activations and attention are `f32`: scores with a tenth of its precision would differ noticeably.
//! Products take operands in `f32` or bfloat16 and round their results to the same type. On candle's CPU
//! device, these operations are the reference for the kernels' tests.

pub(crate) mod padded;
pub(crate) mod positions;
#[cfg(test)]
pub(crate) mod reference;

use crate::{
    attention::Heads,
    errors::failed,
    kept::{HostValues, KeptRow},
    kernels::pack::Stored,
    load::{Part, Weight},
    operations::{Attention, Disentangled, Lookup, Norm, Operations, Precision, Result, Rows},
    pass::refuse_unknown,
    plan::NormKind,
};
use candle_core::{D, DType, Device, Tensor};
use candle_nn::{
    ops::{rms_norm, sigmoid},
    rotary_emb::rope_thd,
};
use padded::{GroupLimits, PaddedAttention};
use std::borrow::Cow;
use text_embeddings_backend_core::{Activation, BackendError};

/// Operations on one candle device.
pub(crate) struct TensorOperations {
    device: Device,
    /// The type of products' operands.
    dtype: DType,
}

/// A weight with its bias.
pub(crate) struct TensorMatrix {
    /// `[outputs, inputs]`
    pub(crate) weight: Tensor,
    /// `[outputs]`, in `f32`.
    pub(crate) bias: Option<Tensor>,
}

impl TensorMatrix {
    /// `x · weightᵀ + bias`, in the operands' type.
    fn product(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let product = x.matmul(&self.weight.t()?)?;
        match &self.bias {
            Some(bias) => product.broadcast_add(&bias.to_dtype(product.dtype())?),
            None => Ok(product),
        }
    }
}

impl TensorOperations {
    /// Operations on `device` with products in `dtype`, `f32` or bfloat16.
    pub(crate) fn new(device: Device, dtype: DType) -> Self {
        Self { device, dtype }
    }

    fn upload(&self, weights: &[&Weight], dtype: DType) -> Result<Tensor> {
        let columns = weights[0].columns();
        let values = if weights.iter().all(|part| stored_dtype(part) == Some(dtype)) {
            let bytes: Vec<&[u8]> = weights.iter().map(|part| part.bytes()).collect();
            let rows = weights.iter().map(|part| part.rows()).sum::<usize>();
            let bytes =
                if let [bytes] = bytes[..] { Cow::Borrowed(bytes) } else { Cow::Owned(bytes.concat()) };
            Tensor::from_raw_buffer(&bytes, dtype, &[rows, columns], &self.device)
        } else {
            let rows = weights.iter().flat_map(|part| (0..part.rows()).flat_map(|row| part.row(row)));
            let values = Tensor::from_vec(rows.collect::<Vec<f32>>(), ((), columns), &self.device);
            values.and_then(|values| values.to_dtype(dtype))
        };
        values.map_err(failed)
    }

    /// Indices on the device.
    pub(crate) fn ids(&self, rows: &[usize]) -> Result<Tensor> {
        let rows: Vec<u32> = rows.iter().map(|&row| row as u32).collect();
        Tensor::new(rows, &self.device).map_err(failed)
    }

    /// Attention over the groups of `padded`, from rotated queries `[rows, heads · size]`, keys and values,
    /// and DeBERTa's positions, if the model has them.
    pub(crate) fn attend(
        &self,
        padded: &PaddedAttention,
        queries: &Tensor,
        keys_values: &Tensor,
        disentangled: Option<&Disentangled<TensorMatrix>>,
    ) -> Result<Tensor> {
        let size = padded.heads.size;
        let scores = disentangled.map(|disentangled| {
            let Disentangled { buckets, position_keys, position_queries } = disentangled;
            Ok::<_, BackendError>(positions::PositionScores {
                buckets,
                of_queries: self.position_scores(queries, position_keys.as_deref(), size)?,
                of_keys: self.position_scores(keys_values, position_queries.as_deref(), size)?,
            })
        });
        let scores = scores.transpose()?;
        let scaled = (queries / padded.divisor).map_err(failed)?;
        padded.attention(&scaled, keys_values, scores.as_ref()).map_err(failed)
    }

    /// Each head's scores with the positions of all buckets, in main memory: `[head][rows][buckets]`.
    fn position_scores(
        &self,
        x: &Tensor,
        positions: Option<&[TensorMatrix]>,
        size: usize,
    ) -> Result<Vec<Vec<f32>>> {
        positions
            .unwrap_or_default()
            .iter()
            .enumerate()
            .map(|(head, positions)| {
                let x = x.narrow(1, head * size, size).and_then(|x| x.contiguous()?.to_dtype(self.dtype));
                let scores =
                    x.and_then(|x| positions.product(&x)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1());
                scores.map_err(failed)
            })
            .collect()
    }
}

/// Some rows of a batch on a device.
pub(crate) struct TensorRows {
    /// The cosines and sines of each row's angles: `[rows, size / 2]`; absent if positions are not rotary.
    angles: Option<[Tensor; 2]>,
    attention: PaddedAttention,
    heads: Heads,
}

impl TensorRows {
    /// Normalises the heads of `x`, `[rows, heads · size]`, and rotates them by the rows' positions.
    fn turn(&self, x: &Tensor, norm: Option<&Norm<Tensor>>) -> candle_core::Result<Tensor> {
        let (rows, columns) = x.dims2()?;
        let mut heads = x.reshape((1, rows, columns / self.heads.size, self.heads.size))?;
        if let Some(norm) = norm {
            heads = rms_norm(&heads, &norm.weight, norm.epsilon)?;
        }
        if let Some([cosines, sines]) = &self.angles {
            heads = rope_thd(&heads, cosines, sines)?;
        }
        heads.reshape((rows, columns))
    }
}

/// The stored type in candle's terms; `None` for blocks.
fn stored_dtype(weight: &Weight) -> Option<DType> {
    match weight.stored() {
        Stored::F32 => Some(DType::F32),
        Stored::F16 => Some(DType::F16),
        Stored::Bf16 => Some(DType::BF16),
        Stored::Blocks(_) => None,
    }
}

fn activate(x: &Tensor, activation: Activation) -> candle_core::Result<Tensor> {
    match activation {
        Activation::Identity => Ok(x.clone()),
        Activation::Silu => x.silu(),
        Activation::Gelu => x.gelu_erf(),
        Activation::GeluTanh => x.gelu(),
        Activation::Relu => x.relu(),
        Activation::Tanh => x.tanh(),
        Activation::Sigmoid => sigmoid(x),
    }
}

fn normalise(x: &Tensor, norm: &Norm<Tensor>) -> candle_core::Result<Tensor> {
    match (norm.kind, &norm.bias) {
        (NormKind::Layer, Some(bias)) => {
            let centred = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
            let variance = centred.sqr()?.mean_keepdim(D::Minus1)?;
            let scaled = centred.broadcast_div(&(variance + f64::from(norm.epsilon))?.sqrt()?)?;
            scaled.broadcast_mul(&norm.weight)?.broadcast_add(bias)
        }
        _ => rms_norm(&x.contiguous()?, &norm.weight, norm.epsilon),
    }
}

/// Normalises each value head of keys and values.
pub(crate) fn norm_values(
    keys_values: &Tensor,
    norm: &Norm<Tensor>,
    heads: Heads,
) -> candle_core::Result<()> {
    let (rows, width) = (keys_values.dim(0)?, heads.keys * heads.size);
    let values = keys_values.narrow(1, width, width)?.contiguous()?.to_dtype(DType::F32)?;
    let normed = rms_norm(&values.reshape((rows, heads.keys, heads.size))?, &norm.weight, norm.epsilon)?;
    let normed = normed.reshape((rows, width))?.to_dtype(keys_values.dtype())?;
    // In place: a product made it, so no other tensor shares its memory.
    keys_values.slice_set(&normed, 1, width)
}

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
