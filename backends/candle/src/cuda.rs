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
mod sequences;
#[cfg(all(test, target_os = "linux"))]
pub(crate) mod tests;
#[cfg(all(test, target_os = "linux"))]
mod twins;

use crate::{
    attention::Heads,
    load::Weight,
    operations::{Attention, Norm, NormKind, Operations, Part, Precision, Result, Rows, refuse_unknown},
    plain::{
        PositionMatrices, TensorMatrix, TensorOperations, failed,
        padded::{Limits, PaddedAttention},
    },
    rope::Angles,
};
use accelerator::{Accelerator, Argument, Launch, Turned};
use candle_core::{DType, Tensor};
use kept::{DeviceValues, Finite};
use sequences::Sequences;
use std::{borrow::Cow, collections::HashMap, sync::Arc};
use text_embeddings_backend_core::{Activation, BackendError};

/// The most threads of a block that computes one row.
const MOST_THREADS: usize = 1024;
/// Threads of a block that averages rows: eight warps, which share the rows of 32 columns.
const MEAN_THREADS: usize = 256;
/// Values of a row per thread: 16 bytes of 16-bit values. A thread computes more if a block would need more
/// threads.
const VALUES_PER_THREAD: usize = 8;
/// The most tables whose vectors one kernel adds up.
const MOST_LOOKUPS: usize = 3;

/// Operations on one accelerator.
pub(crate) struct CudaOperations<A> {
    accelerator: Arc<A>,
    /// Computes whatever has no kernel of its own.
    plain: TensorOperations,
    /// The type of operands: 16 bits.
    dtype: DType,
    /// Whether all values that this pass keeps are finite.
    finite: Option<Arc<Finite<A>>>,
    /// Whether the log already says that attention takes the general path.
    is_told: bool,
}

/// Some rows of a batch on the device.
pub(crate) struct CudaRows {
    heads: Heads,
    turns: Option<Turns>,
    attention: Path,
}

/// The angles by which rows are rotated.
struct Turns {
    /// `[different angles, size / 2]`
    cosines: Tensor,
    /// `[different angles, size / 2]`
    sines: Tensor,
    /// For each row, the index of its angle.
    of_rows: Tensor,
}

/// How attention is computed.
enum Path {
    /// Flash attention.
    Flash(Sequences),
    /// Padded groups in `f32`.
    General(PaddedAttention),
}

impl<A: Accelerator> CudaOperations<A> {
    /// Operations with operands of `dtype`, bfloat16 or float16.
    pub(crate) fn new(accelerator: A, dtype: DType) -> Self {
        let plain = TensorOperations::new(accelerator.device().clone(), dtype);
        Self { accelerator: Arc::new(accelerator), plain, dtype, finite: None, is_told: false }
    }

    fn empty(&self, rows: usize, columns: usize, dtype: DType) -> Result<Tensor> {
        self.accelerator.empty((rows, columns), dtype).map_err(failed)
    }

    /// Launches a kernel with a block for each row. `dtype` selects the kernel's form, if it has several.
    fn launch_rows(
        &self,
        kernel: &'static str,
        dtype: Option<DType>,
        [rows, columns]: [usize; 2],
        arguments: &[Argument<'_>],
    ) -> Result<()> {
        let threads = columns.div_ceil(VALUES_PER_THREAD).next_multiple_of(32).min(MOST_THREADS);
        let launch = Launch { kernel, dtype, blocks: rows, threads, arguments };
        self.accelerator.launch(&launch).map_err(failed)
    }

    /// Writes the norm of each row as an operand, in `f32`, or both.
    fn normed(
        &self,
        x: &Tensor,
        norm: &Norm<Tensor>,
        operand: Option<&Tensor>,
        exact: Option<&Tensor>,
    ) -> Result<()> {
        let (rows, columns) = x.dims2().map_err(failed)?;
        let arguments = [
            Argument::Tensor(x),
            Argument::Tensor(&norm.weight),
            norm.bias.as_ref().into(),
            operand.into(),
            exact.into(),
            Argument::Int(rows),
            Argument::Int(columns),
            Argument::Float(norm.epsilon),
            kind(Some(norm.kind)),
        ];
        self.launch_rows("norm", Some(self.dtype), [rows, columns], &arguments)
    }

    /// `x · weightᵀ`, without the bias.
    fn product(&self, x: &Tensor, weight: &TensorMatrix) -> Result<Tensor> {
        let (rows, _) = x.dims2().map_err(failed)?;
        let out = self.empty(rows, weight.weight.dim(0).map_err(failed)?, self.dtype)?;
        self.accelerator.multiply(x, &weight.weight, &out, false).map_err(failed)?;
        Ok(out)
    }

    /// Adds a matrix's bias, if it has one, to each row of `x`.
    fn add_bias(&self, x: &Tensor, weight: &TensorMatrix) -> Result<()> {
        let Some(bias) = &weight.bias else { return Ok(()) };
        let (rows, columns) = x.dims2().map_err(failed)?;
        let arguments =
            [Argument::Tensor(x), Argument::Tensor(bias), Argument::Int(rows), Argument::Int(columns)];
        self.launch_rows("add_bias", Some(x.dtype()), [rows, columns], &arguments)
    }

    /// Normalises and rotates the first `heads` heads of each row of `x`, and writes them to the same places
    /// of `out`.
    fn turn(
        &self,
        x: &Tensor,
        heads: usize,
        norm: Option<&Norm<Tensor>>,
        rows: &CudaRows,
        out: &Tensor,
    ) -> Result<()> {
        let (count, columns) = x.dims2().map_err(failed)?;
        let turns = rows.turns.as_ref();
        let arguments = [
            Argument::Tensor(x),
            Argument::Tensor(out),
            norm.map(|norm| &norm.weight).into(),
            turns.map(|turns| &turns.cosines).into(),
            turns.map(|turns| &turns.sines).into(),
            turns.map(|turns| &turns.of_rows).into(),
            Argument::Int(count),
            Argument::Int(heads),
            Argument::Int(rows.heads.size),
            Argument::Int(columns),
            Argument::Float(norm.map_or(0.0, |norm| norm.epsilon)),
        ];
        self.launch_rows("turn_heads", Some(x.dtype()), [count, heads * rows.heads.size], &arguments)
    }

    /// The rows of `x` that `rows` names, in that order.
    fn gather(&self, x: &Tensor, rows: &Tensor) -> Result<Tensor> {
        let (_, columns) = x.dims2().map_err(failed)?;
        let count = rows.elem_count();
        let out = self.empty(count, columns, x.dtype())?;
        let arguments = [
            Argument::Tensor(x),
            Argument::Tensor(rows),
            Argument::Tensor(&out),
            Argument::Int(count),
            Argument::Int(columns * x.dtype().size_in_bytes()),
        ];
        self.launch_rows("gather_rows", None, [count, columns], &arguments)?;
        Ok(out)
    }

    fn ids(&self, ids: &[u32]) -> Result<Tensor> {
        Tensor::new(ids, self.accelerator.device()).map_err(failed)
    }

    fn turns(&self, angles: &[Angles<'_>], size: usize) -> Result<Turns> {
        let (different, of_rows) = different(angles);
        let table = |part: fn(&Angles<'_>) -> Vec<f32>| {
            let values: Vec<f32> = different.iter().flat_map(part).collect();
            Tensor::from_vec(values, ((), size / 2), self.accelerator.device()).map_err(failed)
        };
        Ok(Turns {
            cosines: table(|(cosines, _)| cosines.to_vec())?,
            sines: table(|(_, sines)| sines.to_vec())?,
            of_rows: self.ids(&of_rows)?,
        })
    }

    /// Attention in `f32` by padded groups, if flash attention cannot express it.
    fn general_attention(
        &self,
        padded: &PaddedAttention,
        queries: &Tensor,
        attention: &Attention<'_, Self>,
    ) -> Result<Tensor> {
        let positions = attention.disentangled.map(|disentangled| PositionMatrices {
            buckets: &disentangled.buckets,
            keys: disentangled.position_keys.as_deref(),
            queries: disentangled.position_queries.as_deref(),
        });
        let keys_values = exact(attention.keys_values)?;
        self.plain.attend(padded, &exact(queries)?, &keys_values, positions)
    }
}

/// The different angles, and for each row the index of its angle. Rows at the same position share slices of a
/// table, so slices are compared by address.
fn different<'a>(angles: &[Angles<'a>]) -> (Vec<Angles<'a>>, Vec<u32>) {
    let mut different: Vec<Angles<'a>> = Vec::new();
    let mut known: HashMap<*const f32, u32> = HashMap::new();
    let of_rows = angles.iter().map(|angle| {
        *known.entry(angle.0.as_ptr()).or_insert_with(|| {
            different.push(*angle);
            different.len() as u32 - 1
        })
    });
    let of_rows = of_rows.collect();
    (different, of_rows)
}

/// The number of a norm's kind in `kernels.cu`.
fn kind(kind: Option<NormKind>) -> Argument<'static> {
    Argument::Int(match kind {
        None => 0,
        Some(NormKind::Rms) => 1,
        Some(NormKind::Layer) => 2,
    })
}

/// The values in `f32`. If `x` is already `f32`, this is `x` itself.
fn exact(x: &Tensor) -> Result<Tensor> {
    x.to_dtype(DType::F32).map_err(failed)
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
        let values = exact(x)?.flatten_all().and_then(|x| x.to_vec1());
        values.map(Cow::Owned).map_err(failed)
    }

    fn enter<R: Send>(&mut self, pass: impl FnOnce(&mut Self) -> R + Send) -> R {
        self.finite = None;
        pass(self)
    }

    fn embed(
        &mut self,
        lookups: &[(&Tensor, &[u32])],
        scale: f32,
        norm: Option<&Norm<Tensor>>,
    ) -> Result<Tensor> {
        let Some((first, ids)) = lookups.first() else {
            return Err(BackendError::Inference("a model without embeddings".to_owned()));
        };
        if lookups.len() > MOST_LOOKUPS || lookups.iter().any(|(table, _)| table.dtype() != first.dtype()) {
            return self.plain.embed(lookups, scale, norm);
        }
        let columns = first.dim(1).map_err(failed)?;
        let mut uploaded = Vec::with_capacity(lookups.len());
        for (table, ids) in lookups {
            // A GPU does not answer a wrong id with an error. It stops computing for good.
            refuse_unknown(ids, table.dim(0).map_err(failed)?)?;
            uploaded.push(self.ids(ids)?);
        }
        let out = self.empty(ids.len(), columns, DType::F32)?;
        let mut arguments = Vec::with_capacity(2 * MOST_LOOKUPS + 8);
        for lookup in 0..MOST_LOOKUPS {
            arguments.push(lookups.get(lookup).map(|(table, _)| *table).into());
            arguments.push(uploaded.get(lookup).into());
        }
        arguments.extend([
            Argument::Float(scale),
            norm.map(|norm| &norm.weight).into(),
            norm.and_then(|norm| norm.bias.as_ref()).into(),
            Argument::Tensor(&out),
            Argument::Int(ids.len()),
            Argument::Int(columns),
            Argument::Float(norm.map_or(0.0, |norm| norm.epsilon)),
            kind(norm.map(|norm| norm.kind)),
        ]);
        self.launch_rows("embed", Some(first.dtype()), [ids.len(), columns], &arguments)?;
        Ok(out)
    }

    fn norm(&mut self, x: &Tensor, norm: &Norm<Tensor>) -> Result<Tensor> {
        let x = exact(x)?;
        let (rows, columns) = x.dims2().map_err(failed)?;
        let out = self.empty(rows, columns, DType::F32)?;
        self.normed(&x, norm, None, Some(&out))?;
        Ok(out)
    }

    fn operand(&mut self, x: &Tensor, _: Precision) -> Result<Tensor> {
        x.to_dtype(self.dtype).map_err(failed)
    }

    fn norm_operand(&mut self, x: &Tensor, norm: &Norm<Tensor>, _: Precision) -> Result<Tensor> {
        let x = exact(x)?;
        let (rows, columns) = x.dims2().map_err(failed)?;
        let operand = self.empty(rows, columns, self.dtype)?;
        self.normed(&x, norm, Some(&operand), None)?;
        Ok(operand)
    }

    fn norm_in_place(&mut self, x: &mut Tensor, norm: &Norm<Tensor>, _: Precision) -> Result<Tensor> {
        *x = exact(x)?;
        let (rows, columns) = x.dims2().map_err(failed)?;
        let operand = self.empty(rows, columns, self.dtype)?;
        self.normed(x, norm, Some(&operand), Some(x))?;
        Ok(operand)
    }

    fn norm_columns(&mut self, x: &mut Tensor, norm: &Norm<Tensor>) -> Result<()> {
        let (rows, stride) = x.dims2().map_err(failed)?;
        let arguments = [
            Argument::Tensor(x),
            Argument::Tensor(&norm.weight),
            norm.bias.as_ref().into(),
            Argument::Int(rows),
            Argument::Int(norm.weight.elem_count()),
            Argument::Int(stride),
            Argument::Float(norm.epsilon),
            kind(Some(norm.kind)),
        ];
        self.launch_rows("norm_columns", Some(x.dtype()), [rows, norm.weight.elem_count()], &arguments)
    }

    fn add(&mut self, x: &Tensor, norm: Option<&Norm<Tensor>>, sum: &mut Tensor) -> Result<()> {
        *sum = exact(sum)?;
        let (rows, columns) = x.dims2().map_err(failed)?;
        let arguments = [
            Argument::Tensor(x),
            norm.map(|norm| &norm.weight).into(),
            norm.and_then(|norm| norm.bias.as_ref()).into(),
            Argument::Tensor(sum),
            Argument::Int(rows),
            Argument::Int(columns),
            Argument::Float(norm.map_or(0.0, |norm| norm.epsilon)),
            kind(norm.map(|norm| norm.kind)),
        ];
        self.launch_rows("add_norm", Some(x.dtype()), [rows, columns], &arguments)
    }

    fn linear(&mut self, x: &Tensor, weight: &TensorMatrix) -> Result<Tensor> {
        let product = self.product(x, weight)?;
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
        let product = self.product(x, weight)?;
        let (rows, columns) = product.dims2().map_err(failed)?;
        let arguments = [
            Argument::Tensor(&product),
            weight.bias.as_ref().into(),
            // In place: each value is read by the thread that writes it.
            Argument::Tensor(&product),
            Argument::Int(rows),
            Argument::Int(columns),
            Argument::Int(activation as usize),
        ];
        self.launch_rows("activate", Some(self.dtype), [rows, columns], &arguments)?;
        Ok(product)
    }

    fn gated(
        &mut self,
        x: &Tensor,
        gate_up: &TensorMatrix,
        activation: Activation,
        _: Precision,
    ) -> Result<Tensor> {
        let product = self.product(x, gate_up)?; // [rows, 2 · outputs]
        let (rows, columns) = product.dims2().map_err(failed)?;
        let out = self.empty(rows, columns / 2, self.dtype)?;
        let arguments = [
            Argument::Tensor(&product),
            gate_up.bias.as_ref().into(),
            Argument::Tensor(&out),
            Argument::Int(rows),
            Argument::Int(columns / 2),
            Argument::Int(activation as usize),
        ];
        self.launch_rows("gate", Some(self.dtype), [rows, columns / 2], &arguments)?;
        Ok(out)
    }

    fn rows(&mut self, rows: Rows<'_>) -> Result<CudaRows> {
        let turns = rows.angles.map(|angles| self.turns(angles, rows.heads.size)).transpose()?;
        let device = self.accelerator.device();
        let sequences = if self.accelerator.has_flash(rows.heads) {
            Sequences::new(&rows, device).map_err(failed)?
        } else {
            None
        };
        let attention = if let Some(sequences) = sequences {
            Path::Flash(sequences)
        } else {
            if !std::mem::replace(&mut self.is_told, true) {
                tracing::info!(
                    "Some of this model's layers compute attention by general kernels: flash attention has no biases, \
                     soft caps or heads of this size, or this build lacks it"
                );
            }
            Path::General(PaddedAttention::new(&rows, Limits::GPU, device).map_err(failed)?)
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
        self.turn(keys_values, rows.heads.keys, norm, rows, keys_values)
    }

    fn keep(&mut self, x: &Tensor, rows: &[usize]) -> Result<DeviceValues<A>> {
        let rows: Vec<u32> = rows.iter().map(|&row| row as u32).collect();
        let values = self.gather(x, &self.ids(&rows)?)?;
        let finite = match &self.finite {
            Some(finite) => Arc::clone(finite),
            None => Arc::clone(self.finite.insert(Arc::new(Finite::new(&self.accelerator)?))),
        };
        finite.look_at(&values)?;
        Ok(DeviceValues::new(values, finite))
    }

    fn append(&mut self, x: &mut Tensor, rows: &[(&DeviceValues<A>, usize)]) -> Result<()> {
        let (above, columns) = x.dims2().map_err(failed)?;
        let row_bytes = columns * self.dtype.size_in_bytes();
        let all = self.empty(above + rows.len(), columns, self.dtype)?;
        all.slice_set(x, 0, 0).map_err(failed)?;
        let mut addresses = Vec::with_capacity(rows.len());
        for (kept, row) in rows {
            addresses.push((kept.address()? + (row * row_bytes) as u64) as i64);
        }
        let addresses = Tensor::new(addresses, self.accelerator.device()).map_err(failed)?;
        let below = all.narrow(0, above, rows.len()).map_err(failed)?;
        let arguments = [
            Argument::Tensor(&addresses),
            Argument::Tensor(&below),
            Argument::Int(rows.len()),
            Argument::Int(row_bytes),
        ];
        self.launch_rows("gather_addresses", None, [rows.len(), columns], &arguments)?;
        *x = all;
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
            let turned = self.empty(count, columns, self.dtype)?;
            self.turn(attention.queries, heads, attention.query_norm, rows, &turned)?;
            turned
        };
        let sequences = match &rows.attention {
            Path::Flash(sequences) => sequences,
            Path::General(padded) => {
                let context = self.general_attention(padded, &queries, &attention)?;
                return self.operand(&context, Precision::Low);
            }
        };
        let keys_values = match &sequences.gathered {
            Some(gathered) => self.gather(attention.keys_values, gathered)?,
            None => attention.keys_values.clone(),
        };
        let context = (|| {
            let queries = queries.reshape((count, heads, size))?;
            let keys_values = keys_values.reshape(((), 2 * key_heads, size))?;
            let keys = keys_values.narrow(1, 0, key_heads)?;
            let values = keys_values.narrow(1, key_heads, key_heads)?;
            let turned = Turned { queries: &queries, keys: &keys, values: &values };
            self.accelerator.flash(&turned, sequences)?.reshape((count, columns))
        })();
        context.map_err(failed)
    }

    fn copy(&mut self, x: &Tensor) -> Result<Tensor> {
        // Sums are written in place, so a second handle to the same memory would change, too.
        x.copy().map_err(failed)
    }

    fn select(&mut self, x: &Tensor, rows: &[usize]) -> Result<Tensor> {
        let rows: Vec<u32> = rows.iter().map(|&row| row as u32).collect();
        self.gather(x, &self.ids(&rows)?)
    }

    fn add_rows(&mut self, x: &Tensor, rows: &[usize], factors: &[f32], sum: &mut Tensor) -> Result<()> {
        *sum = exact(sum)?;
        self.plain.add_rows(&exact(x)?, rows, factors, sum)
    }

    fn means(&mut self, x: &Tensor, columns: usize, texts: &[Vec<usize>]) -> Result<Vec<f32>> {
        let mut starts = vec![0];
        let rows: Vec<u32> = texts.iter().flatten().map(|&row| row as u32).collect();
        for text in texts {
            starts.push(starts[starts.len() - 1] + text.len() as u32);
        }
        let x = exact(x)?;
        let (starts, rows) = (self.ids(&starts)?, self.ids(&rows)?);
        let out = self.empty(texts.len(), columns, DType::F32)?;
        let arguments = [
            Argument::Tensor(&x),
            Argument::Tensor(&starts),
            Argument::Tensor(&rows),
            Argument::Tensor(&out),
            Argument::Int(texts.len()),
            Argument::Int(columns),
        ];
        let launch = Launch {
            kernel: "mean_rows",
            dtype: None,
            // A block computes as many columns of a text as a warp has threads.
            blocks: texts.len() * columns.div_ceil(32),
            threads: MEAN_THREADS,
            arguments: &arguments,
        };
        self.accelerator.launch(&launch).map_err(failed)?;
        Ok(self.values(&out)?.into_owned())
    }
}
