//! The operations on an NVIDIA GPU in 16 bits: fused kernels, flash attention, and products that add to the
//! residual stream.
//!
//! [`Operations`] describes input and output. The residual stream is `f32`; operands, queries, keys and
//! values have 16 bits; all sums are `f32`. What must hold: each kernel reads and writes its rows once
//! (`kernels.cu`); only the values of answers are copied to main memory. `plain` computes rare operations,
//! and attention that flash attention cannot express.

pub(crate) mod accelerator;
#[cfg(feature = "cuda")]
pub(crate) mod device;
#[cfg(all(test, target_os = "linux"))]
mod emulated;
mod kept;
#[cfg(all(test, target_os = "linux"))]
mod kernel_tests;
mod launches;
mod proof;
mod sequences;
pub(crate) mod target;
#[cfg(all(test, target_os = "linux"))]
pub(crate) mod tests;
#[cfg(all(test, target_os = "linux"))]
mod twins;

use crate::{
    attention::Heads,
    kept::KeptRow,
    load::Weight,
    operations::{Attention, Lookup, Norm, Operations, Part, Precision, Result, Rows, refuse_unknown},
    plain::{
        TensorMatrix, TensorOperations, failed, norm_values,
        padded::{GroupLimits, PaddedAttention},
    },
};
use accelerator::{Accelerator, Turned, has_flash_size};
use candle_core::{DType, Tensor};
use candle_nn::ops::sigmoid;
use kept::{DeviceValues, Finite};
use launches::{Launches, MAX_LOOKUPS, TurnedHeads, Turns, UploadedLookup};
use proof::FlashProof;
use sequences::Sequences;
use std::{borrow::Cow, sync::Arc};
use text_embeddings_backend_core::Activation;

/// Operations on one accelerator.
pub(crate) struct CudaOperations<A> {
    accelerator: Arc<A>,
    launches: Launches<A>,
    /// Computes whatever has no kernel of its own.
    plain: TensorOperations,
    /// The type of operands: 16 bits.
    dtype: DType,
    /// The rows that all layers of this pass keep.
    keeping: Option<Keeping<A>>,
    /// The addresses of the rows that follow the keys and values of the next attention.
    appended: Option<Tensor>,
    /// Whether the log already says that attention takes the general path.
    is_told: bool,
    proof: FlashProof,
}

/// The rows whose keys and values every layer of a pass keeps.
struct Keeping<A> {
    /// The rows of the batch that are kept, in main memory and on the device.
    rows: Vec<usize>,
    uploaded: Tensor,
    /// Whether all kept values are finite.
    finite: Arc<Finite<A>>,
}

/// Some rows of a batch on the device.
pub(crate) struct CudaRows {
    heads: Heads,
    turns: Option<Turns>,
    attention: Path,
}

/// How attention is computed.
enum Path {
    /// Flash attention.
    Flash(Sequences),
    /// Padded groups in `f32`.
    General(PaddedAttention),
}

impl CudaRows {
    /// The first `count` heads of each row, with this norm.
    fn turned<'a>(&'a self, count: usize, norm: Option<&'a Norm<Tensor>>) -> TurnedHeads<'a> {
        TurnedHeads { count, size: self.heads.size, norm, turns: self.turns.as_ref() }
    }
}

impl<A: Accelerator> CudaOperations<A> {
    /// Operations with operands of `dtype`, bfloat16 or float16.
    pub(crate) fn new(accelerator: A, dtype: DType) -> Self {
        let plain = TensorOperations::new(accelerator.device().clone(), dtype);
        let accelerator = Arc::new(accelerator);
        let launches = Launches::new(&accelerator);
        Self {
            accelerator,
            launches,
            plain,
            dtype,
            keeping: None,
            appended: None,
            is_told: false,
            proof: FlashProof::default(),
        }
    }

    /// A new tensor of the shape of `x`, with undefined values.
    fn empty_like(&self, x: &Tensor, dtype: DType) -> Result<Tensor> {
        let (rows, columns) = x.dims2().map_err(failed)?;
        self.accelerator.empty(rows, columns, dtype).map_err(failed)
    }

    /// `x · weightᵀ`, without the bias, in `dtype`.
    fn product(&self, x: &Tensor, weight: &TensorMatrix, dtype: DType) -> Result<Tensor> {
        let (rows, columns) = (x.dim(0).map_err(failed)?, weight.weight.dim(0).map_err(failed)?);
        let out = self.accelerator.empty(rows, columns, dtype).map_err(failed)?;
        self.accelerator.multiply(x, &weight.weight, &out, false).map_err(failed)?;
        Ok(out)
    }

    /// Adds a matrix's bias, if it has one, to each row of `x`.
    fn add_bias(&self, x: &Tensor, weight: &TensorMatrix) -> Result<()> {
        weight.bias.as_ref().map_or(Ok(()), |bias| self.launches.add_bias(x, bias))
    }

    /// The rows of `x`, and then those at the addresses `others`.
    fn joined(&self, x: &Tensor, others: Option<&Tensor>) -> Result<Tensor> {
        if others.is_some() { self.launches.gather_rows(x, others, None) } else { Ok(x.clone()) }
    }

    fn ids(&self, ids: &[u32]) -> Result<Tensor> {
        Tensor::new(ids, self.accelerator.device()).map_err(failed)
    }
}

/// The values in `f32`. If `x` is already `f32`, this is `x` itself.
fn exact(x: &Tensor) -> Result<Tensor> {
    x.to_dtype(DType::F32).map_err(failed)
}

/// The context times the sigmoid of its gate, in the context's type.
fn gate_context(context: &Tensor, gate: &Tensor) -> Result<Tensor> {
    let share = sigmoid(gate).and_then(|share| share.to_dtype(context.dtype()));
    share.and_then(|share| context * share).map_err(failed)
}

impl<A: Accelerator> Operations for CudaOperations<A> {
    type Tensor = Tensor;
    type Operand = Tensor;
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

    fn gated_matrix(&self, gate: Part, up: Part, precision: Precision) -> Result<TensorMatrix> {
        self.plain.matrix(vec![gate, up], precision)
    }

    fn vector(&self, values: Vec<f32>) -> Result<Tensor> {
        self.plain.vector(values)
    }

    fn tensor(&mut self, values: &[f32], columns: usize) -> Result<Tensor> {
        self.plain.tensor(values, columns)
    }

    fn values<'a>(&mut self, x: &'a Tensor) -> Result<Cow<'a, [f32]>> {
        Ok(Cow::Owned(self.plain.values(&exact(x)?)?.into_owned()))
    }

    fn enter<R: Send>(&mut self, pass: impl FnOnce(&mut Self) -> R + Send) -> R {
        (self.keeping, self.appended) = (None, None);
        pass(self)
    }

    fn bind_thread(&self, waits: bool) -> Result<()> {
        self.plain.bind_thread(waits)
    }

    fn trim_memory(&mut self) -> bool {
        self.accelerator.trim_memory().is_ok()
    }

    fn embed(
        &mut self,
        lookups: &[Lookup<'_, Tensor>],
        scale: f32,
        norm: Option<&Norm<Tensor>>,
    ) -> Result<Tensor> {
        let is_of_one_type = lookups.windows(2).all(|pair| pair[0].table.dtype() == pair[1].table.dtype());
        if !(1..=MAX_LOOKUPS).contains(&lookups.len()) || !is_of_one_type {
            return self.plain.embed(lookups, scale, norm);
        }
        let mut uploaded = Vec::with_capacity(lookups.len());
        for &Lookup { table, ids } in lookups {
            // A GPU does not answer a wrong id with an error. It stops computing for good.
            refuse_unknown(ids, table.dim(0).map_err(failed)?)?;
            uploaded.push(UploadedLookup { table, ids: self.ids(ids)? });
        }
        self.launches.embed(&uploaded, scale, norm)
    }

    fn norm(&mut self, x: &Tensor, norm: &Norm<Tensor>) -> Result<Tensor> {
        let out = self.empty_like(x, DType::F32)?;
        self.launches.norm(&exact(x)?, norm, self.dtype, None, Some(&out))?;
        Ok(out)
    }

    fn operand(&mut self, x: &Tensor, _: Precision) -> Result<Tensor> {
        x.to_dtype(self.dtype).map_err(failed)
    }

    fn norm_operand(&mut self, x: &Tensor, norm: &Norm<Tensor>, _: Precision) -> Result<Tensor> {
        let operand = self.empty_like(x, self.dtype)?;
        self.launches.norm(&exact(x)?, norm, self.dtype, Some(&operand), None)?;
        Ok(operand)
    }

    fn norm_in_place(&mut self, x: &mut Tensor, norm: &Norm<Tensor>, _: Precision) -> Result<Tensor> {
        *x = exact(x)?;
        let operand = self.empty_like(x, self.dtype)?;
        self.launches.norm(x, norm, self.dtype, Some(&operand), Some(x))?;
        Ok(operand)
    }

    fn norm_columns(&mut self, x: &mut Tensor, norm: &Norm<Tensor>) -> Result<()> {
        self.launches.norm_columns(x, norm)
    }

    fn add(&mut self, x: &Tensor, norm: Option<&Norm<Tensor>>, sum: &mut Tensor) -> Result<()> {
        *sum = exact(sum)?;
        self.launches.add_norm(x, norm, sum)
    }

    fn linear(&mut self, x: &Tensor, weight: &TensorMatrix) -> Result<Tensor> {
        let product = self.product(x, weight, self.dtype)?;
        self.add_bias(&product, weight)?;
        Ok(product)
    }

    fn linear_exact(&mut self, x: &Tensor, weight: &TensorMatrix) -> Result<Tensor> {
        let product = self.product(x, weight, DType::F32)?;
        self.add_bias(&product, weight)?;
        Ok(product)
    }

    fn add_linear(&mut self, x: &Tensor, weight: &TensorMatrix, sum: &mut Tensor) -> Result<()> {
        *sum = exact(sum)?;
        self.accelerator.multiply(x, &weight.weight, sum, true).map_err(failed)?;
        self.add_bias(sum, weight)
    }

    fn activated(
        &mut self,
        x: &Tensor,
        weight: &TensorMatrix,
        activation: Activation,
        _: Precision,
    ) -> Result<Tensor> {
        let product = self.product(x, weight, self.dtype)?;
        self.launches.activate(&product, weight.bias.as_ref(), activation)?;
        Ok(product)
    }

    fn gated(
        &mut self,
        x: &Tensor,
        gate_up: &TensorMatrix,
        activation: Activation,
        _: Precision,
    ) -> Result<Tensor> {
        let product = self.product(x, gate_up, self.dtype)?; // [rows, 2 · outputs]
        self.launches.gate(&product, gate_up.bias.as_ref(), activation)
    }

    fn rows(&mut self, rows: Rows<'_>) -> Result<CudaRows> {
        let device = self.accelerator.device();
        let turns = rows.angles.map(|angles| Turns::new(angles, rows.heads.size, device)).transpose()?;
        let sequences = if self.accelerator.has_flash() && has_flash_size(rows.heads) {
            Sequences::new(&rows, device).map_err(failed)?
        } else {
            None
        };
        let attention = if let Some(sequences) = sequences {
            self.proof.give(&*self.accelerator, self.dtype, rows.heads.size, rows.scoring.mask)?;
            Path::Flash(sequences)
        } else {
            if !std::mem::replace(&mut self.is_told, true) {
                tracing::info!(
                    "Some of this model's layers compute attention by general kernels: flash attention has no biases, \
                     soft caps or heads of this size, or this build lacks it"
                );
            }
            Path::General(PaddedAttention::new(&rows, GroupLimits::GPU, device).map_err(failed)?)
        };
        Ok(CudaRows { heads: rows.heads, turns, attention })
    }

    fn turn_keys(
        &mut self,
        keys_values: &mut Tensor,
        norm: Option<&Norm<Tensor>>,
        rows: &CudaRows,
    ) -> Result<()> {
        if norm.is_none() && rows.turns.is_none() {
            return Ok(());
        }
        self.launches.turn_heads(keys_values, &rows.turned(rows.heads.keys, norm), keys_values)
    }

    fn norm_values(&mut self, keys_values: &mut Tensor, norm: &Norm<Tensor>, rows: &CudaRows) -> Result<()> {
        norm_values(keys_values, norm, rows.heads).map_err(failed)
    }

    fn gate_rows(&mut self, x: &mut Tensor, factors: &Tensor, activation: Activation) -> Result<()> {
        *x = exact(x)?;
        self.plain.gate_rows(x, &exact(factors)?, activation)
    }

    fn scale_values(&mut self, x: &mut Tensor, factor: f32) -> Result<()> {
        *x = exact(x)?;
        self.plain.scale_values(x, factor)
    }

    fn keep(&mut self, x: &Tensor, rows: &[usize]) -> Result<DeviceValues<A>> {
        // Every layer keeps the same rows: their list goes to the device once.
        let keeping = match self.keeping.take().filter(|keeping| keeping.rows == rows) {
            Some(keeping) => keeping,
            None => Keeping {
                rows: rows.to_vec(),
                uploaded: self.plain.ids(rows)?,
                finite: Arc::new(Finite::new(&self.accelerator)?),
            },
        };
        let keeping = self.keeping.insert(keeping);
        let values = self.launches.gather_rows(x, None, Some(&keeping.uploaded))?;
        keeping.finite.look_at(&values)?;
        Ok(DeviceValues::new(values, Arc::clone(&keeping.finite)))
    }

    /// Only notes where the rows are: attention gathers them together with the rows of `x`, so that each row
    /// is copied once.
    fn append(&mut self, x: &mut Tensor, rows: &[KeptRow<'_, DeviceValues<A>>]) -> Result<()> {
        let row_bytes = x.dim(1).map_err(failed)? * self.dtype.size_in_bytes();
        let mut addresses = Vec::with_capacity(rows.len());
        for KeptRow { keeper, row } in rows {
            addresses.push((keeper.address()? + (row * row_bytes) as u64) as i64);
        }
        self.appended = Some(Tensor::new(addresses, self.accelerator.device()).map_err(failed)?);
        Ok(())
    }

    fn kept_bytes(&self) -> usize {
        self.dtype.size_in_bytes()
    }

    fn attention(&mut self, attention: Attention<'_, Self>, rows: &CudaRows, _: Precision) -> Result<Tensor> {
        let Heads { queries: heads, keys: key_heads, size } = rows.heads;
        let (count, columns) = attention.queries.dims2().map_err(failed)?;
        let queries = if attention.query_norm.is_none() && rows.turns.is_none() {
            attention.queries.clone()
        } else {
            let turned = self.empty_like(attention.queries, self.dtype)?;
            self.launches.turn_heads(
                attention.queries,
                &rows.turned(heads, attention.query_norm),
                &turned,
            )?;
            turned
        };
        let appended = self.appended.take();
        let sequences = match &rows.attention {
            Path::Flash(sequences) => sequences,
            Path::General(padded) => {
                let keys_values = self.joined(attention.keys_values, appended.as_ref())?;
                let (queries, keys_values) = (exact(&queries)?, exact(&keys_values)?);
                let context = self.plain.attend(padded, &queries, &keys_values, attention.disentangled)?;
                let context = self.operand(&context, Precision::Low)?;
                return attention.gate.map_or(Ok(context.clone()), |gate| gate_context(&context, gate));
            }
        };
        let keys_values = match &sequences.gathered {
            Some(rows) => self.launches.gather_rows(attention.keys_values, appended.as_ref(), Some(rows))?,
            None => self.joined(attention.keys_values, appended.as_ref())?,
        };
        let context = (|| {
            let queries = queries.reshape((count, heads, size))?;
            let keys_values = keys_values.reshape(((), 2 * key_heads, size))?;
            let keys = keys_values.narrow(1, 0, key_heads)?;
            let values = keys_values.narrow(1, key_heads, key_heads)?;
            let turned = Turned { queries: &queries, keys: &keys, values: &values };
            self.accelerator.flash(&turned, sequences)?.reshape((count, columns))
        })();
        let context = context.map_err(failed)?;
        attention.gate.map_or(Ok(context.clone()), |gate| gate_context(&context, gate))
    }

    fn copy(&mut self, x: &Tensor) -> Result<Tensor> {
        // Sums are written in place, so a second handle to the same memory would change, too.
        x.copy().map_err(failed)
    }

    fn select(&mut self, x: &Tensor, rows: &[usize]) -> Result<Tensor> {
        self.launches.gather_rows(x, None, Some(&self.plain.ids(rows)?))
    }

    fn add_rows(&mut self, x: &Tensor, rows: &[usize], factors: &[f32], sum: &mut Tensor) -> Result<()> {
        *sum = exact(sum)?;
        self.plain.add_rows(&exact(x)?, rows, factors, sum)
    }

    fn means(&mut self, x: &Tensor, _: usize, texts: &[Vec<usize>]) -> Result<Vec<f32>> {
        let mut starts = vec![0];
        for text in texts {
            starts.push(starts[starts.len() - 1] + text.len());
        }
        let (starts, rows) = (self.plain.ids(&starts)?, self.plain.ids(&texts.concat())?);
        let means = self.launches.mean_rows(&exact(x)?, &starts, &rows)?;
        Ok(self.values(&means)?.into_owned())
    }
}
