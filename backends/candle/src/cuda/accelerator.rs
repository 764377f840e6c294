//! The few things that a GPU must do for [`super::CudaOperations`].
//!
//! Everything else is arithmetic on sizes and rows. The tests run it on the CPU, with the same kernels
//! compiled for the CPU instead of the device.

use super::sequences::Sequences;
use crate::attention::Heads;
use candle_core::{DType, Device, Error, Result, Tensor};
use std::ffi::c_int;
#[cfg(any(feature = "cuda", all(test, target_os = "linux")))]
use std::ffi::c_void;

/// An argument of a kernel.
#[derive(Clone, Copy)]
pub(crate) enum Argument<'a> {
    /// The address of a contiguous tensor's first value.
    Tensor(&'a Tensor),
    /// The address of the first value of a matrix, whose rows may be apart.
    Rows(&'a Tensor),
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

/// An argument in the form that a kernel's parameter has in memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Word {
    /// The address of values; 0 is a null pointer.
    Address(u64),
    /// A C `int`.
    Int(c_int),
    /// A C `float`.
    Float(f32),
}

#[cfg(any(feature = "cuda", all(test, target_os = "linux")))]
impl Word {
    /// The address of the word's value, which a launch only reads.
    pub(crate) fn value_pointer(&self) -> *mut c_void {
        match self {
            Self::Address(address) => std::ptr::from_ref(address).cast_mut().cast(),
            Self::Int(value) => std::ptr::from_ref(value).cast_mut().cast(),
            Self::Float(value) => std::ptr::from_ref(value).cast_mut().cast(),
        }
    }
}

/// A kernel of `kernels.cu`, with everything that a launch needs.
pub(crate) struct Launch<'a> {
    /// The kernel's name, without the suffix for the type.
    pub(crate) kernel: &'static str,
    /// The type that the full name ends with; absent if the kernel has only one form.
    pub(crate) dtype: Option<DType>,
    /// The number of blocks.
    pub(crate) blocks: usize,
    /// Threads per block: a multiple of 32.
    pub(crate) threads: usize,
    /// The arguments, in the kernel's order.
    pub(crate) arguments: &'a [Argument<'a>],
}

impl Launch<'_> {
    /// The kernel's full name.
    pub(crate) fn name(&self) -> String {
        match self.dtype {
            Some(DType::F32) => format!("{}_f32", self.kernel),
            Some(DType::F16) => format!("{}_f16", self.kernel),
            Some(_) => format!("{}_bf16", self.kernel),
            None => self.kernel.to_owned(),
        }
    }

    /// The arguments on this device.
    pub(crate) fn words(&self, accelerator: &impl Accelerator) -> Result<Vec<Word>> {
        self.arguments
            .iter()
            .map(|&argument| {
                Ok(match argument {
                    Argument::Tensor(tensor) if !tensor.is_contiguous() => {
                        return Err(Error::Msg(format!("{} needs contiguous values", self.kernel)));
                    }
                    Argument::Tensor(tensor) | Argument::Rows(tensor) => {
                        Word::Address(accelerator.address(tensor)?)
                    }
                    Argument::Null => Word::Address(0),
                    Argument::Int(value) => Word::Int(int(value)?),
                    Argument::Float(value) => Word::Float(value),
                })
            })
            .collect()
    }
}

/// The values from one row of a matrix to the next.
pub(crate) fn row_stride(matrix: &Tensor) -> Result<usize> {
    match *matrix.stride() {
        [stride, 1] => Ok(stride),
        _ => Err(Error::Msg(format!("not a matrix of rows: {:?}", matrix.layout()))),
    }
}

/// A size as a C `int`.
pub(crate) fn int(value: usize) -> Result<c_int> {
    c_int::try_from(value).map_err(|_| Error::Msg(format!("the size {value} does not fit a C `int`")))
}

/// The input of flash attention, and memory for its results.
#[cfg_attr(
    all(feature = "cuda", not(feature = "flash-attn"), not(test)),
    expect(dead_code, reason = "only flash attention reads it")
)]
pub(crate) struct FlashInput<'a> {
    pub(crate) heads: Heads,
    /// `[rows, heads · size]`: the requested rows, sequence after sequence.
    pub(crate) queries: &'a Tensor,
    /// `[tokens, 2 · key heads · size]`: each token's keys, then its values, sequence after sequence.
    pub(crate) keys_values: &'a Tensor,
    /// `[rows, heads · size]`, in the type of the queries.
    pub(crate) context: &'a Tensor,
    /// `[heads, rows]` in `f32`: the logarithm of each query's sum of weights, which nothing reads.
    pub(crate) sums: &'a Tensor,
}

/// The largest head size of `candle-flash-attn`'s kernels.
const MAX_FLASH_SIZE: usize = 256;

/// Whether flash attention takes these heads: its kernels read 16 bytes at a time.
pub(super) fn has_flash_size(heads: Heads) -> bool {
    heads.size.is_multiple_of(8) && heads.size <= MAX_FLASH_SIZE
}

/// A device that runs kernels, multiplies matrices and has flash attention.
pub(crate) trait Accelerator: Send + Sync + Sized + 'static {
    /// The device that holds the tensors.
    fn device(&self) -> &Device;

    /// A new tensor `[rows, columns]` with undefined values.
    fn allocate_tensor(&self, rows: usize, columns: usize, dtype: DType) -> Result<Tensor>;

    /// Starts a kernel, at [`Accelerator::flush_calls`] at the latest. It ends before anything that is
    /// started later begins. This holds for products and flash attention, too.
    /// The error may be an earlier kernel's.
    fn launch(&self, launch: &Launch<'_>) -> Result<()>;

    /// `x · weightᵀ` for `[rows, inputs]` and `[outputs, inputs]` of 16 bits, with sums in `f32`. The product
    /// is written to `out`, `[rows, outputs]`, of the same type or `f32`. With `adds`, it is added to the
    /// values in `out`.
    fn multiply(&self, x: &Tensor, weight: &Tensor, out: &Tensor, adds: bool) -> Result<()>;

    /// Whether [`Accelerator::attend_sequences`] computes at all.
    fn has_flash(&self) -> bool;

    /// Writes the context of each query of the sequences.
    fn attend_sequences(&self, input: &FlashInput<'_>, sequences: &Sequences) -> Result<()>;

    /// Starts everything that was not started yet: candle may use the tensors then.
    fn flush_calls(&self) -> Result<()> {
        Ok(())
    }

    /// Forgets the calls that were not started yet: their pass failed.
    fn forget_calls(&self) {}

    /// Copies numbers to a list on the device, `[words]` of 32 bits.
    fn write_list(&self, words: &[u32], list: &Tensor) -> Result<()>;

    /// The words of a tensor with values of 32 bits, when all work before is done.
    fn read_words(&self, values: &Tensor) -> Result<Vec<u32>>;

    /// Makes values NaN that nothing may read any more.
    #[cfg(test)]
    fn spoil_values(&self, values: &Tensor);

    /// Gives memory that no tensor has back to the device, once all work is done.
    fn trim_memory(&self) -> Result<()>;

    /// The address of a tensor's first value on the device.
    fn address(&self, tensor: &Tensor) -> Result<u64>;
}
