//! The launches of the kernels: one function for each kernel of `kernels.cu`, with the kernel's arguments in
//! their order.

use super::{
    accelerator::{
        Accelerator,
        Argument::{self, Float, Int},
        Launch, row_stride,
    },
    memory::DeviceMemory,
    shared::TurnedHeads,
    tensor::CudaTensor,
};
use crate::{
    errors::failed,
    operations::{Norm, Result},
    plan::NormKind,
};
use candle_core::{DType, Tensor};
use std::sync::Arc;
use text_embeddings_backend_core::Activation;

/// The most threads of a block that computes one row.
const MAX_THREADS: usize = 1024;
/// Values of a row per thread: 16 bytes of 16-bit values. A thread computes more if a block would need more
/// threads.
const VALUES_PER_THREAD: usize = 8;
/// Threads of a block that does not compute a row of its own.
const THREADS: usize = 256;
/// Columns of a text that one block averages: one for each thread of a warp.
const MEAN_COLUMNS: usize = 32;
/// Values of a tensor that one block checks for being finite.
const CHECKED_PER_BLOCK: usize = 1 << 14;
/// The words of an address in a list.
const WORDS_OF_ADDRESS: usize = 2;
/// The most tables whose vectors one kernel adds up.
pub(super) const MAX_LOOKUPS: usize = 3;

/// The kernels of one accelerator.
pub(super) struct Launches<A> {
    memory: Arc<DeviceMemory<A>>,
}

/// A table, and the ids of its rows on the same device.
pub(super) struct UploadedLookup<'a> {
    pub(super) table: &'a Tensor,
    pub(super) ids: CudaTensor,
}

/// Rows in several places.
pub(super) struct ScatteredRows<'a> {
    /// The first rows.
    pub(super) own: &'a Tensor,
    /// The rows after those: for each the address of the first layer's row, and the bytes from there to the
    /// next layer's ([`list_addresses`]).
    pub(super) others: Option<&'a Tensor>,
    /// The layer whose rows the others are.
    pub(super) layer: usize,
}

impl ScatteredRows<'_> {
    /// The kernels' arguments for the places of rows.
    fn arguments(&self) -> Result<[Argument<'_>; 5]> {
        let stride = row_stride(self.own).map_err(failed)? * self.own.dtype().size_in_bytes();
        Ok([
            Argument::Rows(self.own),
            Int(self.own.dim(0).map_err(failed)?),
            Int(stride),
            self.others.into(),
            Int(self.layer),
        ])
    }
}

/// The words of a list of addresses, or of distances in bytes.
pub(super) fn list_addresses(addresses: impl IntoIterator<Item = u64>) -> impl Iterator<Item = u32> {
    addresses.into_iter().flat_map(|bytes| [bytes as u32, (bytes >> 32) as u32])
}

/// The arguments of a kernel for its norm. Without a norm, pointers are null and the kind is 0.
struct NormArguments<'a> {
    weight: Argument<'a>,
    bias: Argument<'a>,
    epsilon: Argument<'a>,
    kind: Argument<'a>,
}

impl<'a> From<Option<&'a Norm<Tensor>>> for NormArguments<'a> {
    fn from(norm: Option<&'a Norm<Tensor>>) -> Self {
        Self {
            weight: norm.map(|norm| &norm.weight).into(),
            bias: norm.and_then(|norm| norm.bias.as_ref()).into(),
            epsilon: Float(norm.map_or(0.0, |norm| norm.epsilon)),
            kind: Int(norm_number(norm.map(|norm| norm.kind))),
        }
    }
}

/// The kernels' number for a kind of norm; 0 means no norm.
pub(super) fn norm_number(kind: Option<NormKind>) -> usize {
    match kind {
        None => 0,
        Some(NormKind::Rms) => 1,
        Some(NormKind::Layer) => 2,
    }
}

/// The kernels' number for an activation.
pub(super) fn activation_number(activation: Activation) -> usize {
    match activation {
        Activation::Identity => 0,
        Activation::Silu => 1,
        Activation::Gelu => 2,
        Activation::GeluTanh => 3,
        Activation::Relu => 4,
        Activation::Tanh => 5,
        Activation::Sigmoid => 6,
    }
}

impl<A: Accelerator> Launches<A> {
    pub(super) fn new(memory: &Arc<DeviceMemory<A>>) -> Self {
        Self { memory: Arc::clone(memory) }
    }

    fn start_kernel(&self, launch: &Launch<'_>) -> Result<()> {
        self.memory.send_lists()?;
        self.memory.accelerator().launch(launch).map_err(failed)
    }

    /// Launches a kernel with a block for each row. `dtype` selects the kernel's form, if it has several.
    fn launch_rows(
        &self,
        kernel: &'static str,
        dtype: Option<DType>,
        [rows, columns]: [usize; 2],
        arguments: &[Argument<'_>],
    ) -> Result<()> {
        let threads = columns.div_ceil(VALUES_PER_THREAD).next_multiple_of(32).min(MAX_THREADS);
        self.start_kernel(&Launch { kernel, dtype, blocks: rows, threads, arguments })
    }

    /// Writes the norm of each row of `x`, which is `f32`: as an operand of `dtype`, in `f32`, or both.
    /// `exact` may be `x`.
    pub(super) fn norm(
        &self,
        x: &Tensor,
        norm: &Norm<Tensor>,
        dtype: DType,
        operand: Option<&Tensor>,
        exact: Option<&Tensor>,
    ) -> Result<()> {
        let (rows, columns) = x.dims2().map_err(failed)?;
        let NormArguments { weight, bias, epsilon, kind } = Some(norm).into();
        let arguments = [
            Argument::Tensor(x),
            weight,
            bias,
            operand.into(),
            exact.into(),
            Int(rows),
            Int(columns),
            epsilon,
            kind,
        ];
        self.launch_rows("norm", Some(dtype), [rows, columns], &arguments)
    }

    /// Normalises the first columns of each row, as many as the norm has.
    pub(super) fn norm_columns(&self, x: &Tensor, norm: &Norm<Tensor>) -> Result<()> {
        let (rows, stride) = x.dims2().map_err(failed)?;
        let columns = norm.weight.elem_count();
        let NormArguments { weight, bias, epsilon, kind } = Some(norm).into();
        let arguments =
            [Argument::Tensor(x), weight, bias, Int(rows), Int(columns), Int(stride), epsilon, kind];
        self.launch_rows("norm_columns", Some(x.dtype()), [rows, columns], &arguments)
    }

    /// Adds the norm of each row of `x`, or the row itself, to `sum`, which is `f32`.
    pub(super) fn add_norm(&self, x: &Tensor, norm: Option<&Norm<Tensor>>, sum: &Tensor) -> Result<()> {
        let (rows, columns) = x.dims2().map_err(failed)?;
        let NormArguments { weight, bias, epsilon, kind } = norm.into();
        let arguments = [
            Argument::Tensor(x),
            weight,
            bias,
            Argument::Tensor(sum),
            Int(rows),
            Int(columns),
            epsilon,
            kind,
        ];
        self.launch_rows("add_norm", Some(x.dtype()), [rows, columns], &arguments)
    }

    /// Writes to `out`, `[count, columns]`, the rows that `rows` names, in that order, or all. The first
    /// heads of own rows are normalised and rotated. If `out` is `from.own`, only these heads change.
    pub(super) fn gather_turned(
        &self,
        from: &ScatteredRows<'_>,
        rows: Option<&Tensor>,
        heads: &TurnedHeads,
        out: &Tensor,
    ) -> Result<()> {
        let TurnedHeads { count: head_count, size, norm, turns } = heads;
        let (count, columns) = out.dims2().map_err(failed)?;
        let NormArguments { weight, epsilon, .. } = norm.as_ref().into();
        let mut arguments = from.arguments()?.to_vec();
        arguments.extend([
            rows.into(),
            Argument::Rows(out),
            Int(row_stride(out).map_err(failed)?),
            Int(count),
            Int(columns),
            weight,
            turns.as_ref().map(|turns| &*turns.cosines).into(),
            turns.as_ref().map(|turns| &*turns.sines).into(),
            turns.as_ref().map(|turns| &*turns.of_rows).into(),
            Int(*head_count),
            Int(*size),
            epsilon,
        ]);
        // A thread turns the two halves of a head together.
        self.launch_rows("gather_turned", Some(out.dtype()), [count, columns / 2], &arguments)
    }

    /// Adds the bias, and applies the activation in place: each value is read by the thread that writes it.
    pub(super) fn activate(&self, x: &Tensor, bias: Option<&Tensor>, activation: Activation) -> Result<()> {
        let (rows, columns) = x.dims2().map_err(failed)?;
        let arguments = [
            Argument::Tensor(x),
            bias.into(),
            Argument::Tensor(x),
            Int(rows),
            Int(columns),
            Int(activation_number(activation)),
        ];
        self.launch_rows("activate", Some(x.dtype()), [rows, columns], &arguments)
    }

    /// `activation(gate) ∘ up`, `[rows, columns]`, of rows that hold the gate and then the other product;
    /// with the bias of both.
    pub(super) fn gate(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        activation: Activation,
    ) -> Result<CudaTensor> {
        let (rows, both) = x.dims2().map_err(failed)?;
        let columns = both / 2;
        let out = self.memory.empty_tensor(rows, columns, x.dtype())?;
        let arguments = [
            Argument::Tensor(x),
            bias.into(),
            Argument::Tensor(&out),
            Int(rows),
            Int(columns),
            Int(activation_number(activation)),
        ];
        self.launch_rows("gate", Some(x.dtype()), [rows, columns], &arguments)?;
        Ok(out)
    }

    /// Adds a bias to each row.
    pub(super) fn add_bias(&self, x: &Tensor, bias: &Tensor) -> Result<()> {
        let (rows, columns) = x.dims2().map_err(failed)?;
        let arguments = [Argument::Tensor(x), Argument::Tensor(bias), Int(rows), Int(columns)];
        self.launch_rows("add_bias", Some(x.dtype()), [rows, columns], &arguments)
    }

    /// The norm, if there is one, of `scale` times the sum of the vectors that each table has for a row's id,
    /// in `f32`. There are 1 to [`MAX_LOOKUPS`] tables of one type, each with its ids.
    pub(super) fn embed(
        &self,
        lookups: &[UploadedLookup<'_>],
        scale: f32,
        norm: Option<&Norm<Tensor>>,
    ) -> Result<CudaTensor> {
        let UploadedLookup { table: first, ids } = &lookups[0];
        let (rows, columns) = (ids.elem_count(), first.dim(1).map_err(failed)?);
        let out = self.memory.empty_tensor(rows, columns, DType::F32)?;
        let mut arguments = Vec::with_capacity(2 * MAX_LOOKUPS + 8);
        for lookup in 0..MAX_LOOKUPS {
            let lookup = lookups.get(lookup);
            arguments.push(lookup.map(|lookup| lookup.table).into());
            arguments.push(lookup.map(|lookup| &*lookup.ids).into());
        }
        let NormArguments { weight, bias, epsilon, kind } = norm.into();
        arguments.extend([
            Float(scale),
            weight,
            bias,
            Argument::Tensor(&out),
            Int(rows),
            Int(columns),
            epsilon,
            kind,
        ]);
        self.launch_rows("embed", Some(first.dtype()), [rows, columns], &arguments)?;
        Ok(out)
    }

    /// Writes to `out`, `[count, columns]`, the rows that `rows` names, in that order, or all.
    pub(super) fn gather_rows(
        &self,
        from: &ScatteredRows<'_>,
        rows: Option<&Tensor>,
        out: &Tensor,
    ) -> Result<()> {
        let (count, columns) = out.dims2().map_err(failed)?;
        let row_bytes = Int(columns * out.dtype().size_in_bytes());
        let mut arguments = from.arguments()?.to_vec();
        arguments.extend([rows.into(), Argument::Tensor(out), Int(count), row_bytes]);
        self.launch_rows("gather_rows", None, [count, columns], &arguments)
    }

    /// Writes to `out`, `[layers · rows, columns]`, the rows that `rows` names of the matrix at each of these
    /// addresses ([`list_addresses`]), which have the type and the columns of `out`.
    pub(super) fn copy_layers(&self, layers: &Tensor, rows: &Tensor, out: &Tensor) -> Result<()> {
        let (all, columns) = out.dims2().map_err(failed)?;
        let arguments = [
            Argument::Tensor(layers),
            Argument::Tensor(rows),
            Argument::Tensor(out),
            Int(layers.elem_count() / WORDS_OF_ADDRESS),
            Int(rows.elem_count()),
            Int(columns * out.dtype().size_in_bytes()),
        ];
        self.launch_rows("copy_layers", None, [all, columns], &arguments)
    }

    /// For each text, the mean of the rows of `x`, which is `f32`, that `rows` names from its start up to the
    /// next text's.
    pub(super) fn mean_rows(&self, x: &Tensor, starts: &Tensor, rows: &Tensor) -> Result<CudaTensor> {
        let (_, columns) = x.dims2().map_err(failed)?;
        let texts = starts.elem_count() - 1;
        let out = self.memory.empty_tensor(texts, columns, DType::F32)?;
        let launch = Launch {
            kernel: "mean_rows",
            dtype: None,
            blocks: texts * columns.div_ceil(MEAN_COLUMNS),
            threads: THREADS,
            arguments: &[
                Argument::Tensor(x),
                Argument::Tensor(starts),
                Argument::Tensor(rows),
                Argument::Tensor(&out),
                Int(texts),
                Int(columns),
            ],
        };
        self.start_kernel(&launch)?;
        Ok(out)
    }

    /// Sets the number `found` to 1 if the tensors at these addresses ([`list_addresses`]) have a value that
    /// is not finite. All have the type and the size of `example`.
    pub(super) fn not_finite(&self, addresses: &Tensor, example: &Tensor, found: &Tensor) -> Result<()> {
        let (tensors, count) = (addresses.elem_count() / WORDS_OF_ADDRESS, example.elem_count());
        let launch = Launch {
            kernel: "not_finite",
            dtype: Some(example.dtype()),
            blocks: tensors * count.div_ceil(CHECKED_PER_BLOCK).max(1),
            threads: THREADS,
            arguments: &[
                Argument::Tensor(addresses),
                Argument::Tensor(found),
                Int(tensors),
                Int(count),
                Int(CHECKED_PER_BLOCK),
            ],
        };
        self.start_kernel(&launch)
    }
}
