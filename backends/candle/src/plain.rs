//! The operations in candle tensors, for devices that candle drives.
//!
//! Activations and attention are `f32`: scores with a tenth of its precision would differ noticeably.
//! Products take operands in `f32` or bfloat16 and round their results to the same type. On candle's CPU
//! device, these operations are the reference for the kernels' tests.

mod operations;
pub(crate) mod padded;
pub(crate) mod positions;
#[cfg(test)]
pub(crate) mod reference;

use crate::{
    attention::Heads,
    errors::failed,
    kernels::pack::Stored,
    load::Weight,
    operations::{Disentangled, Norm, Result},
    plan::NormKind,
};
use candle_core::{D, DType, Device, Tensor};
use candle_nn::{
    ops::{rms_norm, sigmoid},
    rotary_emb::rope_thd,
};
use padded::PaddedAttention;
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
