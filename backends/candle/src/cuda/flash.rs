//! The call of flash attention 2 in `candle-flash-attn`'s library.
//!
//! Unlike that crate's own call, it writes to memory that the caller has, sets nothing to zero first, and
//! fails if a kernel did not start.
#![expect(unsafe_code, reason = "the library's functions are outside of Rust's checks")]

use super::{
    accelerator::{Accelerator, FlashInput, int, row_stride},
    sequences::Sequences,
};
use crate::attention::{Heads, Mask};
use candle_core::{
    DType, Result, bail,
    cuda_backend::{
        WrapErr,
        cudarc::driver::{CudaStream, sys::CUstream},
    },
};
// The crate links the library.
use candle_flash_attn as _;
use std::ffi::c_int;

/// The library's sizes are rounded up to these multiples.
const SIZE_STEP: u32 = 32;
const LENGTH_STEP: u32 = 128;

unsafe extern "C" {
    /// The last error of the CUDA runtime in this thread.
    fn cudaGetLastError() -> c_int;

    /// `kernels/flash_api.cu` of `candle-flash-attn` 0.11.1. Strides are in values; a mask without an end
    /// is -1.
    fn run_mha(
        queries: u64,
        keys: u64,
        values: u64,
        context: u64,
        sums: u64,
        alibi_slopes: u64,
        query_starts: u64,
        key_starts: u64,
        query_batch_stride: u32,
        key_batch_stride: u32,
        value_batch_stride: u32,
        context_batch_stride: u32,
        alibi_slopes_batch_stride: u32,
        query_row_stride: u32,
        key_row_stride: u32,
        value_row_stride: u32,
        context_row_stride: u32,
        query_head_stride: u32,
        key_head_stride: u32,
        value_head_stride: u32,
        context_head_stride: u32,
        sequences: u32,
        heads: u32,
        key_heads: u32,
        size: u32,
        rounded_size: u32,
        scale: f32,
        max_queries: u32,
        max_keys: u32,
        rounded_max_queries: u32,
        rounded_max_keys: u32,
        rows: u32,
        is_bf16: c_int,
        is_causal: c_int,
        has_unpadded_sums: c_int,
        before: c_int,
        after: c_int,
        soft_cap: f32,
        block_table: u64,
        block_table_batch_stride: u32,
        page_block_size: c_int,
        prefix_ranges: u64,
        prefix_range_batch_stride: u32,
        max_prefix_ranges: c_int,
        stream: CUstream,
    );
}

/// The keys that a query sees before and after its own, as the library takes them.
#[derive(Debug, PartialEq)]
struct Window {
    before: c_int,
    after: c_int,
    is_causal: bool,
}

impl Window {
    fn new(mask: Mask, max_keys: usize) -> Result<Self> {
        let [before, after] =
            [mask.before, mask.after].map(|side| if side > max_keys { Ok(-1) } else { int(side) });
        let (before, after) = (before?, after?);
        // The kernels take a window that is open on one side only if it is causal.
        let wide = int(max_keys)?;
        Ok(match (before, after) {
            (-1, 0) => Self { before: wide, after, is_causal: true },
            (-1, 1..) => Self { before: wide, after, is_causal: false },
            (0.., -1) => Self { before, after: wide, is_causal: false },
            _ => Self { before, after, is_causal: false },
        })
    }
}

/// Checks that sizes and types fit each other.
fn check_input(input: &FlashInput<'_>, sequences: &Sequences) -> Result<()> {
    let &FlashInput { heads, queries, keys_values, context, sums } = input;
    let Heads { queries: query_heads, keys: key_heads, size } = heads;
    let (rows, width) = queries.dims2()?;
    let (tokens, both) = keys_values.dims2()?;
    let dtype = queries.dtype();
    let is_right = width == query_heads * size
        && both == 2 * key_heads * size
        && tokens > 0
        && query_heads.is_multiple_of(key_heads)
        && context.dims2()? == (rows, width)
        && context.is_contiguous()
        && sums.elem_count() == query_heads * rows
        && matches!(dtype, DType::F16 | DType::BF16)
        && [keys_values, context].iter().all(|other| other.dtype() == dtype)
        && sums.dtype() == DType::F32
        && sequences.query_starts.elem_count() == sequences.key_starts.elem_count();
    if !is_right {
        bail!(
            "flash attention does not take queries {dtype:?} {:?} and keys and values {:?} {:?} of {heads:?}",
            queries.shape(),
            keys_values.dtype(),
            keys_values.shape()
        );
    }
    Ok(())
}

/// A size as the library takes it.
fn unsigned_size(value: usize) -> Result<u32> {
    Ok(int(value)?.unsigned_abs())
}

/// A call of flash attention: addresses, and sizes in values.
#[derive(Debug, PartialEq)]
pub(super) struct FlashCall {
    queries: u64,
    keys: u64,
    values: u64,
    context: u64,
    sums: u64,
    query_starts: u64,
    key_starts: u64,
    query_stride: u32,
    key_stride: u32,
    context_stride: u32,
    sequences: u32,
    heads: u32,
    key_heads: u32,
    size: u32,
    scale: f32,
    max_queries: u32,
    max_keys: u32,
    rows: u32,
    is_bf16: bool,
    window: Window,
}

impl FlashCall {
    pub(super) fn new(gpu: &impl Accelerator, input: &FlashInput<'_>, sequences: &Sequences) -> Result<Self> {
        check_input(input, sequences)?;
        let &FlashInput { heads, queries, keys_values, context, sums } = input;
        let (rows, width) = queries.dims2()?;
        let Sequences { max_queries, max_keys, mask, scale, .. } = *sequences;
        let (dtype, keys) = (queries.dtype(), gpu.address(keys_values)?);
        Ok(Self {
            queries: gpu.address(queries)?,
            keys,
            values: keys + (heads.keys * heads.size * dtype.size_in_bytes()) as u64,
            context: gpu.address(context)?,
            sums: gpu.address(sums)?,
            query_starts: gpu.address(&sequences.query_starts)?,
            key_starts: gpu.address(&sequences.key_starts)?,
            query_stride: unsigned_size(row_stride(queries)?)?,
            key_stride: unsigned_size(row_stride(keys_values)?)?,
            context_stride: unsigned_size(width)?,
            sequences: unsigned_size(sequences.query_starts.elem_count() - 1)?,
            heads: unsigned_size(heads.queries)?,
            key_heads: unsigned_size(heads.keys)?,
            size: unsigned_size(heads.size)?,
            scale,
            max_queries: unsigned_size(max_queries)?,
            max_keys: unsigned_size(max_keys)?,
            rows: unsigned_size(rows)?,
            is_bf16: dtype == DType::BF16,
            window: Window::new(mask, max_keys)?,
        })
    }

    /// Starts the kernel that writes the context.
    pub(super) fn start_kernel(&self, stream: &CudaStream) -> Result<()> {
        // SAFETY: the parameters are the library's in type and order; the sizes were checked above, and
        // `Sequences` gives starts within the rows. All tensors are alive during this call, and memory is
        // reused in the same stream only.
        let error = unsafe {
            run_mha(
                self.queries,
                self.keys,
                self.values,
                self.context,
                self.sums,
                0,
                self.query_starts,
                self.key_starts,
                0,
                0,
                0,
                0,
                0,
                self.query_stride,
                self.key_stride,
                self.key_stride,
                self.context_stride,
                self.size,
                self.size,
                self.size,
                self.size,
                self.sequences,
                self.heads,
                self.key_heads,
                self.size,
                self.size.next_multiple_of(SIZE_STEP),
                self.scale,
                self.max_queries,
                self.max_keys,
                self.max_queries.next_multiple_of(LENGTH_STEP),
                self.max_keys.next_multiple_of(LENGTH_STEP),
                self.rows,
                c_int::from(self.is_bf16),
                c_int::from(self.window.is_causal),
                1,
                self.window.before,
                self.window.after,
                0.0,
                0,
                0,
                0,
                0,
                0,
                0,
                stream.cu_stream(),
            );
            // The library ignores that a kernel did not start, and would leave the context undefined. The
            // error is still there if `scripts/cuda-nvcc.sh` compiled the library.
            cudaGetLastError()
        };
        if error != 0 {
            // Errors of earlier kernels come with their names here.
            stream.synchronize().w()?;
            bail!("flash attention did not start: error {error} of the CUDA runtime");
        }
        Ok(())
    }
}
