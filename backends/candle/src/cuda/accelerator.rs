//! The few things that a GPU does for [`super::CudaOperations`].
//!
//! All else is arithmetic on sizes and rows, which the tests run on the CPU: there the same kernels, compiled
//! for the CPU, stand in for the device.

use super::sequences::Sequences;
use crate::attention::Heads;
use candle_core::{DType, Device, Result, Tensor};

/// An argument of a kernel.
#[derive(Clone, Copy)]
pub(crate) enum Argument<'a> {
    /// The address of a contiguous tensor's first value.
    Tensor(&'a Tensor),
    /// A null pointer.
    Null,
    /// A C `int`.
    Int(usize),
    /// A C `float`.
    Float(f32),
}

impl<'a> From<Option<&'a Tensor>> for Argument<'a> {
    fn from(tensor: Option<&'a Tensor>) -> Self {
        tensor.map_or(Self::Null, Self::Tensor)
    }
}

/// A kernel of `kernels.cu` with all that a launch takes.
pub(crate) struct Launch<'a> {
    /// Its name, without the suffix of the type.
    pub(crate) kernel: &'static str,
    /// The type that the name ends with; absent if the kernel has one form only.
    pub(crate) dtype: Option<DType>,
    /// Blocks.
    pub(crate) blocks: usize,
    /// Threads of a block: a multiple of 32.
    pub(crate) threads: usize,
    /// The arguments, in the kernel's order.
    pub(crate) arguments: &'a [Argument<'a>],
}

impl Launch<'_> {
    /// The kernel's whole name.
    pub(crate) fn name(&self) -> String {
        match self.dtype {
            Some(DType::F32) => format!("{}_f32", self.kernel),
            Some(DType::F16) => format!("{}_f16", self.kernel),
            Some(_) => format!("{}_bf16", self.kernel),
            None => self.kernel.to_owned(),
        }
    }
}

/// Queries, keys and values for attention: `[rows, heads, size]` each. The last dimension is contiguous.
pub(crate) struct Turned<'a> {
    /// Of the rows that are asked for.
    pub(crate) queries: &'a Tensor,
    /// Sequence after sequence.
    pub(crate) keys: &'a Tensor,
    /// Likewise.
    pub(crate) values: &'a Tensor,
}

/// A device that runs kernels, multiplies matrices and has flash attention.
pub(crate) trait Accelerator: Send + Sync + 'static {
    /// Where tensors are.
    fn device(&self) -> &Device;

    /// A new tensor `[rows, columns]` with any values.
    fn empty(&self, shape: (usize, usize), dtype: DType) -> Result<Tensor>;

    /// Starts a kernel, which is done before anything that is started later begins.
    ///
    /// # Errors
    ///
    /// Those of the device, of this kernel or of any that was started before.
    fn launch(&self, launch: &Launch<'_>) -> Result<()>;

    /// `x · weightᵀ`, `[rows, inputs]` and `[outputs, inputs]` of 16 bits, with sums in `f32`. It is written
    /// to `out`, `[rows, outputs]`, of the same type or `f32`; with `adds` it is added to what is there.
    fn multiply(&self, x: &Tensor, weight: &Tensor, out: &Tensor, adds: bool) -> Result<()>;

    /// Whether [`Accelerator::flash`] takes these heads.
    fn has_flash(&self, heads: Heads) -> bool;

    /// Attention of the sequences: `[rows, heads, size]`.
    fn flash(&self, turned: &Turned<'_>, sequences: &Sequences) -> Result<Tensor>;

    /// The address of a contiguous tensor's first value on the device.
    fn address(&self, tensor: &Tensor) -> Result<u64>;
}
