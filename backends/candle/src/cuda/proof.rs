//! Compares flash attention with a known result, before a model relies on it.
//!
//! Input: a GPU, and the kernels of flash attention that a model needs. Output: an error if one of them gives
//! wrong values. What must hold: a kernel is compared once. `candle-flash-attn` reports no error if a build
//! lacks a kernel for the GPU; it then leaves its output undefined.

use super::{
    accelerator::{Accelerator, FlashInput},
    memory::DeviceMemory,
    sequences::Sequences,
};
use crate::{
    attention::{Heads, Mask},
    errors::failed,
    operations::Result,
};
use candle_core::{DType, Tensor};
use text_embeddings_backend_core::BackendError;

/// The widest window that is compared: wider ones use the same kernels.
const MAX_WINDOW: usize = 1022;

/// The sizes of heads and the masks with which flash attention gave the right values.
#[derive(Debug, Default)]
pub(super) struct FlashProof(Vec<(usize, Mask)>);

impl FlashProof {
    /// Compares flash attention for heads of `size` and a mask, unless that was done before.
    pub(super) fn compare_kernel(
        &mut self,
        memory: &DeviceMemory<impl Accelerator>,
        dtype: DType,
        size: usize,
        mask: Mask,
    ) -> Result<()> {
        if self.0.contains(&(size, mask)) {
            return Ok(());
        }
        // One more token than a query sees, so that the window matters.
        let side =
            [mask.before, mask.after].into_iter().filter(|&side| side != usize::MAX).max().unwrap_or(0);
        let tokens = side.min(MAX_WINDOW) + 2;
        let device = memory.accelerator().device();
        // With equal keys, a query's result is the mean of the values that it sees. Each value is its token's
        // share of the text, so that means differ.
        let value = |token: usize| token as f32 / tokens as f32;
        let given = (|| {
            let equal = Tensor::ones((tokens, size), dtype, device)?;
            let values: Vec<f32> = (0..tokens).map(value).collect();
            let values = Tensor::from_vec(values, (tokens, 1), device)?;
            let values = values.broadcast_as((tokens, size))?.to_dtype(dtype)?;
            let keys_values = Tensor::cat(&[&equal, &values], 1)?;
            Ok((equal, keys_values))
        })();
        let (queries, keys_values) = given.map_err(failed)?;
        let context = memory.empty_tensor(tokens, size, dtype)?;
        let sums = memory.empty_tensor(1, tokens, DType::F32)?;
        let sequences = Sequences::one(tokens, mask, |words| memory.place_list(words))?;
        let input = FlashInput {
            heads: Heads { queries: 1, keys: 1, size },
            queries: &queries,
            keys_values: &keys_values,
            context: &context,
            sums: &sums,
        };
        memory.send_lists()?;
        let result = memory.accelerator().attend_sequences(&input, &sequences);
        let result = result.and_then(|()| memory.accelerator().flush_calls());
        let result = result.and_then(|()| context.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>());
        let result = result.map_err(failed)?;
        let is_right = result.chunks(size).enumerate().all(|(token, values)| {
            let seen = mask.visible(token, 0, tokens);
            let mean = seen.clone().map(value).sum::<f32>() / seen.len() as f32;
            values.iter().all(|value| (value - mean).abs() < 0.02)
        });
        if result.is_empty() || !is_right {
            return Err(BackendError::Load(format!(
                "flash attention gives wrong values on this GPU (heads of {size}, {mask:?}): set \
                 USE_FLASH_ATTENTION=False, and report it"
            )));
        }
        self.0.push((size, mask));
        Ok(())
    }
}
