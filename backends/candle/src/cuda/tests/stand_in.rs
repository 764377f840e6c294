//! A stand-in for a GPU: the kernels compiled for the CPU, and slow, obvious versions of cuBLAS and flash
//! attention.
#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use crate::attention::Heads;
use crate::cuda::{
    CudaOperations,
    accelerator::{Accelerator, FlashInput, Launch},
    emulated::kernels,
    sequences::Sequences,
};
use candle_core::{CpuStorage, DType, Device, Result, Storage, Tensor, bail};

/// The device.
pub(crate) struct StandIn {
    pub(in crate::cuda) has_flash: bool,
    /// Without it, flash attention leaves its output as it is, as `candle-flash-attn` does on a GPU that a
    /// build has no kernel for.
    pub(in crate::cuda) has_kernel: bool,
}

/// The GPU's operations with operands of `dtype`, with or without flash attention; `None` on a machine that
/// cannot compile the kernels.
#[cfg_attr(feature = "cuda", expect(dead_code, reason = "a build for GPUs tests whole models on the GPU"))]
pub(crate) fn gpu(dtype: DType, has_flash: bool) -> Option<CudaOperations<StandIn>> {
    kernels().map(|_| CudaOperations::new(StandIn { has_flash, has_kernel: true }, dtype))
}

impl Accelerator for StandIn {
    fn device(&self) -> &Device {
        &Device::Cpu
    }

    fn allocate_tensor(&self, rows: usize, columns: usize, dtype: DType) -> Result<Tensor> {
        let empty = Tensor::zeros((rows, columns), dtype, &Device::Cpu)?;
        self.spoil_values(&empty);
        Ok(empty)
    }

    fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        kernels().unwrap().launch(&launch.name(), launch.blocks, launch.threads, &launch.words(self)?);
        Ok(())
    }

    fn multiply(&self, x: &Tensor, weight: &Tensor, out: &Tensor, adds: bool) -> Result<()> {
        assert!(x.dtype() == weight.dtype() && x.dtype() != DType::F32);
        assert!(out.dtype() == DType::F32 || out.dtype() == x.dtype() && !adds);
        let product = x.to_dtype(DType::F32)?.matmul(&weight.to_dtype(DType::F32)?.t()?)?;
        let product = if adds { (product + out)? } else { product };
        out.slice_set(&product.to_dtype(out.dtype())?, 0, 0)
    }

    fn has_flash(&self) -> bool {
        self.has_flash
    }

    fn attend_sequences(&self, input: &FlashInput<'_>, sequences: &Sequences) -> Result<()> {
        let context = if self.has_kernel { flash(input, sequences)? } else { input.context.zeros_like()? };
        input.context.slice_set(&context, 0, 0)
    }

    fn write_list(&self, words: &[u32], list: &Tensor) -> Result<()> {
        list.slice_set(&Tensor::new(words, &Device::Cpu)?, 0, 0)
    }

    fn read_words(&self, values: &Tensor) -> Result<Vec<u32>> {
        let values = values.flatten_all()?;
        match values.dtype() {
            DType::U32 => values.to_vec1(),
            _ => Ok(values.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect()),
        }
    }

    fn spoil_values(&self, values: &Tensor) {
        let spoilt = match values.dtype() {
            DType::U32 => Tensor::full(u32::MAX, values.shape(), &Device::Cpu),
            dtype => Tensor::full(f32::NAN, values.shape(), &Device::Cpu).unwrap().to_dtype(dtype),
        };
        values.slice_set(&spoilt.unwrap(), 0, 0).unwrap();
    }

    fn trim_memory(&self) -> Result<()> {
        bail!("main memory has no pool")
    }

    fn address(&self, tensor: &Tensor) -> Result<u64> {
        let (storage, layout) = tensor.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else { bail!("a tensor that is not in main memory") };
        let base = match storage {
            CpuStorage::F32(values) => values.as_ptr() as u64,
            CpuStorage::F16(values) => values.as_ptr() as u64,
            CpuStorage::BF16(values) => values.as_ptr() as u64,
            CpuStorage::U32(values) => values.as_ptr() as u64,
            CpuStorage::I64(values) => values.as_ptr() as u64,
            _ => bail!("no kernel takes {:?}", tensor.dtype()),
        };
        Ok(base + (layout.start_offset() * tensor.dtype().size_in_bytes()) as u64)
    }
}

/// Flash attention as its authors define it: in a sequence of `q` queries and `k` keys, query `i` is at the
/// position of key `i + k - q`.
fn flash(input: &FlashInput<'_>, sequences: &Sequences) -> Result<Tensor> {
    let Heads { queries: heads, keys: key_heads, size } = input.heads;
    let host =
        |x: &Tensor, heads: usize| x.to_dtype(DType::F32)?.reshape(((), heads, size))?.to_vec3::<f32>();
    let queries = host(input.queries, heads)?;
    let width = key_heads * size;
    let keys = host(&input.keys_values.narrow(1, 0, width)?.contiguous()?, key_heads)?;
    let values = host(&input.keys_values.narrow(1, width, width)?.contiguous()?, key_heads)?;
    let (count, shared) = (queries.len(), heads / key_heads);
    assert_eq!((input.sums.dtype(), input.sums.elem_count()), (DType::F32, heads * count));
    let starts = |x: &Tensor| x.to_vec1::<u32>();
    let (query_starts, key_starts) = (starts(&sequences.query_starts)?, starts(&sequences.key_starts)?);
    let mut out = Vec::with_capacity(count * heads * size);
    for (query_ends, key_ends) in query_starts.windows(2).zip(key_starts.windows(2)) {
        let [first_query, end_query] = [query_ends[0] as usize, query_ends[1] as usize];
        let [first_key, end_key] = [key_ends[0] as usize, key_ends[1] as usize];
        assert!(end_query - first_query <= sequences.max_queries);
        assert!(end_key - first_key <= sequences.max_keys);
        for (query, heads_of_query) in (first_query..end_query).zip(&queries[first_query..end_query]) {
            // The last query is at the position of the last key.
            let own = query as i64 + end_key as i64 - end_query as i64;
            let side = |tokens: usize| i64::try_from(tokens).unwrap_or(i64::MAX / 4);
            let seen: Vec<usize> = (first_key..end_key)
                .filter(|&key| {
                    let distance = key as i64 - own;
                    distance >= -side(sequences.mask.before) && distance <= side(sequences.mask.after)
                })
                .collect();
            for head in 0..heads {
                let score = |&key: &usize| -> f64 {
                    let pairs = heads_of_query[head].iter().zip(&keys[key][head / shared]);
                    let product: f64 = pairs.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                    product * f64::from(sequences.scale)
                };
                let scores: Vec<f64> = seen.iter().map(score).collect();
                let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let of_column = |column: usize| -> f64 {
                    let parts = seen.iter().zip(&weights);
                    parts.map(|(&key, weight)| weight * f64::from(values[key][head / shared][column])).sum()
                };
                out.extend((0..size).map(|column| (of_column(column) / sum) as f32));
            }
        }
    }
    Tensor::from_vec(out, (count, heads * size), &Device::Cpu)?.to_dtype(input.queries.dtype())
}
