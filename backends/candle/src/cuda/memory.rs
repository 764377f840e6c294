//! Memory on the device for the tensors of passes.
//!
//! A call of the driver takes the host about a microsecond, and a short pass makes hundreds of tensors. So
//! tensors are parts of a few large chunks that stay from pass to pass, and lists of numbers go to the device
//! together. What must hold: a part is reused only after its last tensor was dropped. Kernels run in the
//! order of their launches, so the old values are then no longer read.

use super::{accelerator::Accelerator, tensor::CudaTensor};
use crate::{errors::failed, operations::Result};
use candle_core::{DType, Tensor};
use std::{
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Parts begin at multiples of this number of values: cuBLAS and wide accesses want at least 16 bytes.
const ALIGNMENT: usize = 128;
/// The least room for the lists of a pass, in words.
const MIN_LIST_WORDS: usize = 1 << 14;
/// Lists begin at multiples of this number of words.
const LIST_ALIGNMENT: usize = 4;

/// The chunks, and the lists on their way to the device.
pub(crate) struct DeviceMemory<A> {
    accelerator: Arc<A>,
    pools: Arc<Mutex<Vec<ChunkPool>>>,
    lists: Mutex<Lists>,
}

/// The chunks of one type.
struct ChunkPool {
    dtype: DType,
    chunks: Vec<MemoryChunk>,
    /// Values that tensors have now, and had at most.
    used: usize,
    max_used: usize,
    /// The values of the last chunk that was made of all others.
    joined: usize,
}

struct MemoryChunk {
    /// `[values]`
    values: Tensor,
    /// The ranges that no tensor has: ascending, with something between any two.
    free: Vec<Range<usize>>,
}

/// A tensor's part of a chunk.
struct ChunkPart<A: Accelerator> {
    #[cfg_attr(not(test), expect(dead_code, reason = "tests spoil free memory"))]
    accelerator: Arc<A>,
    pools: Arc<Mutex<Vec<ChunkPool>>>,
    pool: usize,
    chunk: usize,
    range: Range<usize>,
}

/// Lists of numbers for kernels.
#[derive(Default)]
struct Lists {
    /// `[words]`, on the device; absent before the first list of a pass.
    device: Option<CudaTensor>,
    /// The words that `device` has, or will have when they are sent.
    words: Vec<u32>,
    /// The number of words that `device` has room for.
    room: usize,
    /// The number of words that were sent.
    sent: usize,
    /// The most words that a pass needed so far, rounded up.
    max_words: usize,
}

fn lock_memory<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ChunkPool {
    fn new(dtype: DType) -> Self {
        Self { dtype, chunks: Vec::new(), used: 0, max_used: 0, joined: 0 }
    }

    /// Whether it has several chunks, and no tensor is in one of them.
    fn is_grown(&self) -> bool {
        self.chunks.len() > 1 && self.chunks.iter().all(MemoryChunk::is_free)
    }

    /// Takes a part of the first chunk that has room.
    fn take_range(&mut self, length: usize) -> Option<(usize, Range<usize>)> {
        let mut chunks = self.chunks.iter_mut().enumerate();
        let taken = chunks.find_map(|(index, chunk)| Some((index, chunk.take_range(length)?)))?;
        self.used += length;
        self.max_used = self.max_used.max(self.used);
        Some(taken)
    }
}

impl MemoryChunk {
    fn is_free(&self) -> bool {
        self.free.iter().map(Range::len).sum::<usize>() == self.values.elem_count()
    }

    /// Takes the beginning of the smallest free range that is long enough.
    fn take_range(&mut self, length: usize) -> Option<Range<usize>> {
        let fitting = self.free.iter().enumerate().filter(|(_, free)| free.len() >= length);
        let (index, _) = fitting.min_by_key(|(_, free)| free.len())?;
        let free = &mut self.free[index];
        let taken = free.start..free.start + length;
        free.start = taken.end;
        if free.start == free.end {
            self.free.remove(index);
        }
        Some(taken)
    }

    fn give_back(&mut self, range: &Range<usize>) {
        let index = self.free.partition_point(|free| free.start < range.start);
        self.free.insert(index, range.clone());
        if self.free.get(index + 1).is_some_and(|next| next.start == range.end) {
            self.free[index].end = self.free.remove(index + 1).end;
        }
        if index > 0 && self.free[index - 1].end == range.start {
            self.free[index - 1].end = self.free.remove(index).end;
        }
    }
}

impl<A: Accelerator> Drop for ChunkPart<A> {
    fn drop(&mut self) {
        let mut pools = lock_memory(&self.pools);
        let pool = &mut pools[self.pool];
        pool.used -= self.range.len();
        let chunk = &mut pool.chunks[self.chunk];
        #[cfg(test)]
        if let Ok(values) = chunk.values.narrow(0, self.range.start, self.range.len()) {
            self.accelerator.spoil_values(&values);
        }
        chunk.give_back(&self.range);
    }
}

impl<A: Accelerator> DeviceMemory<A> {
    pub(super) fn new(accelerator: Arc<A>) -> Self {
        Self { accelerator, pools: Arc::default(), lists: Mutex::default() }
    }

    pub(super) fn accelerator(&self) -> &A {
        &self.accelerator
    }

    /// A tensor `[rows, columns]` with undefined values.
    pub(super) fn empty_tensor(&self, rows: usize, columns: usize, dtype: DType) -> Result<CudaTensor> {
        let count = rows * columns;
        let length = count.next_multiple_of(ALIGNMENT).max(ALIGNMENT);
        let mut pools = lock_memory(&self.pools);
        let pool = pools.iter().position(|pool| pool.dtype == dtype).unwrap_or_else(|| {
            pools.push(ChunkPool::new(dtype));
            pools.len() - 1
        });
        let mut taken = pools[pool].take_range(length);
        if taken.is_none() {
            pools[pool].chunks.push(self.new_chunk(length, dtype)?);
            taken = pools[pool].take_range(length);
        }
        let (chunk, range) = taken.unwrap_or_else(|| unreachable!("a new chunk has room"));
        let view = pools[pool].chunks[chunk].values.narrow(0, range.start, count);
        let view = view.and_then(|view| view.reshape((rows, columns)));
        drop(pools);
        let (accelerator, pools) = (Arc::clone(&self.accelerator), Arc::clone(&self.pools));
        let part = ChunkPart { accelerator, pools, pool, chunk, range };
        Ok(CudaTensor::in_chunk(view.map_err(failed)?, Arc::new(part)))
    }

    fn new_chunk(&self, length: usize, dtype: DType) -> Result<MemoryChunk> {
        let values =
            self.accelerator.allocate_tensor(1, length, dtype).and_then(|values| values.flatten_all());
        Ok(MemoryChunk { values: values.map_err(failed)?, free: std::iter::once(0..length).collect() })
    }

    /// A tensor `[rows, columns]` with undefined values and an allocation of its own.
    pub(super) fn empty_apart(&self, rows: usize, columns: usize, dtype: DType) -> Result<CudaTensor> {
        self.accelerator.allocate_tensor(rows, columns, dtype).map(CudaTensor::from).map_err(failed)
    }

    /// Prepares for a pass. If the last one had to add chunks, they become one, in which the same pass finds
    /// all of its memory.
    pub(super) fn begin_pass(&self) {
        self.accelerator.forget_calls();
        let mut lists = lock_memory(&self.lists);
        *lists = Lists { max_words: lists.max_words, ..Lists::default() };
        drop(lists);
        let mut pools = lock_memory(&self.pools);
        let mut grown: Vec<&mut ChunkPool> = pools.iter_mut().filter(|pool| pool.is_grown()).collect();
        if grown.is_empty() {
            return;
        }
        for pool in &mut grown {
            pool.chunks.clear();
        }
        // The driver would keep the small chunks next to the large one. A device that fails here will fail in
        // the pass, which says so; without room for a large chunk, the pass makes small ones again.
        let _ = self.accelerator.trim_memory();
        for pool in grown {
            // Some room for the gaps between tensors of different sizes.
            pool.joined = (pool.joined.max(pool.max_used) / 4 * 5).next_multiple_of(ALIGNMENT);
            match self.new_chunk(pool.joined, pool.dtype) {
                Ok(chunk) => pool.chunks.push(chunk),
                Err(_) => pool.joined = 0,
            }
        }
    }

    /// Gives the memory that no tensor has back to the device.
    pub(super) fn trim_chunks(&self) -> candle_core::Result<()> {
        self.accelerator.forget_calls();
        *lock_memory(&self.lists) = Lists::default();
        let mut pools = lock_memory(&self.pools);
        // A part names its chunk by the index, so chunks go only from the end.
        for pool in pools.iter_mut() {
            let kept = pool.chunks.iter().rposition(|chunk| !chunk.is_free()).map_or(0, |last| last + 1);
            pool.chunks.truncate(kept);
        }
        drop(pools);
        self.accelerator.trim_memory()
    }

    /// A list for kernels, `[words]`. It is on the device when the next kernel starts.
    pub(super) fn place_list(&self, words: impl IntoIterator<Item = u32>) -> Result<CudaTensor> {
        let mut lists = lock_memory(&self.lists);
        let words: Vec<u32> = words.into_iter().collect();
        let mut start = lists.words.len().next_multiple_of(LIST_ALIGNMENT);
        if start + words.len() > lists.room {
            self.send_new(&mut lists)?;
            let room = lists.max_words.max(start + words.len()).max(MIN_LIST_WORDS).next_power_of_two();
            let device = Some(self.empty_tensor(1, room, DType::U32)?);
            *lists = Lists { device, room, max_words: room, ..Lists::default() };
            start = 0;
        }
        lists.words.resize(start, 0);
        lists.words.extend(&words);
        let device = lists.device.clone().unwrap_or_else(|| unreachable!("there is room only with a device"));
        device.with_view(device.flatten_all().and_then(|all| all.narrow(0, start, words.len())))
    }

    /// The bits of a tensor's values, of 32 bits each. candle would copy the whole chunk.
    pub(super) fn read_words(&self, values: &CudaTensor) -> Result<Vec<u32>> {
        self.send_lists()?;
        self.accelerator.read_words(values).map_err(failed)
    }

    /// Sends the lists that were not sent yet. Whoever starts work that reads lists calls this first.
    pub(super) fn send_lists(&self) -> Result<()> {
        self.send_new(&mut lock_memory(&self.lists))
    }

    fn send_new(&self, lists: &mut Lists) -> Result<()> {
        let Lists { device: Some(device), words, sent, .. } = lists else { return Ok(()) };
        if *sent == words.len() {
            return Ok(());
        }
        let to = device.flatten_all().and_then(|all| all.narrow(0, *sent, words.len() - *sent));
        to.and_then(|to| self.accelerator.write_list(&words[*sent..], &to)).map_err(failed)?;
        *sent = words.len();
        Ok(())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

    use super::*;
    use crate::cuda::tests::stand_in::StandIn;
    use candle_core::Device;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    fn device_memory() -> DeviceMemory<StandIn> {
        DeviceMemory::new(Arc::new(StandIn { has_flash: true, has_kernel: true }))
    }

    fn count_chunks(memory: &DeviceMemory<StandIn>, dtype: DType) -> usize {
        lock_memory(&memory.pools)
            .iter()
            .filter(|pool| pool.dtype == dtype)
            .map(|pool| pool.chunks.len())
            .sum()
    }

    /// Makes, fills and drops tensors. Two that shared memory would change each other's values.
    fn use_memory(memory: &DeviceMemory<StandIn>, rng: &mut StdRng) {
        let mut live: Vec<(CudaTensor, f32)> = Vec::new();
        for step in 0..200 {
            if live.len() > 12 || !live.is_empty() && rng.random_bool(0.45) {
                let (tensor, value) = live.swap_remove(rng.random_range(0..live.len()));
                let values: Vec<f32> =
                    tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap();
                assert!(
                    values.iter().all(|found| found.to_bits() == value.to_bits()),
                    "{value} became {values:?}"
                );
                continue;
            }
            let (rows, columns) = (rng.random_range(0..20), rng.random_range(1..300));
            let dtype = if rng.random_bool(0.5) { DType::F32 } else { DType::BF16 };
            let tensor = memory.empty_tensor(rows, columns, dtype).unwrap();
            assert_eq!(tensor.dims2().unwrap(), (rows, columns));
            let spoilt = tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap();
            assert!(spoilt.to_vec1::<f32>().unwrap().iter().all(|value| value.is_nan()));
            let filled = Tensor::full(step as f32, (rows, columns), &Device::Cpu).unwrap();
            tensor.slice_set(&filled.to_dtype(dtype).unwrap(), 0, 0).unwrap();
            live.push((tensor, step as f32));
        }
    }

    #[test]
    fn tensors_share_chunks_but_no_memory() {
        let memory = device_memory();
        let mut is_one = 0;
        for round in 0..40 {
            memory.begin_pass();
            use_memory(&memory, &mut StdRng::seed_from_u64(81 + round / 10));
            is_one += usize::from(
                count_chunks(&memory, DType::F32) == 1 && count_chunks(&memory, DType::BF16) == 1,
            );
        }
        assert!(is_one > 25, "{is_one}");
        // A tensor stays, however much memory is given back.
        let kept = memory.empty_tensor(3, 100, DType::F32).unwrap();
        kept.slice_set(&Tensor::full(7_f32, (3, 100), &Device::Cpu).unwrap(), 0, 0).unwrap();
        assert!(memory.trim_chunks().is_err(), "main memory has no pool");
        use_memory(&memory, &mut StdRng::seed_from_u64(90));
        assert_eq!(memory.read_words(&kept).unwrap(), [7_f32.to_bits(); 300]);
        drop(kept);
        let _ = memory.trim_chunks();
        assert_eq!(count_chunks(&memory, DType::F32) + count_chunks(&memory, DType::BF16), 0);
    }

    #[test]
    fn lists_are_on_the_device_when_they_are_sent() {
        let memory = device_memory();
        let mut rng = StdRng::seed_from_u64(82);
        for _ in 0..6 {
            memory.begin_pass();
            let mut lists = Vec::new();
            for _ in 0..40 {
                let words: Vec<u32> = (0..rng.random_range(0..3000)).map(|_| rng.random()).collect();
                lists.push((memory.place_list(words.clone()).unwrap(), words));
                if rng.random_bool(0.3) {
                    memory.send_lists().unwrap();
                }
            }
            for (list, words) in lists {
                assert_eq!(memory.read_words(&list).unwrap(), words);
            }
        }
        // The lists of a pass go together, if there is room for them.
        memory.begin_pass();
        let (first, second) = (memory.place_list([1, 2, 3]).unwrap(), memory.place_list([4]).unwrap());
        assert_eq!(first.to_vec1::<u32>().unwrap(), [u32::MAX; 3]);
        memory.send_lists().unwrap();
        assert_eq!([first.to_vec1::<u32>().unwrap(), second.to_vec1().unwrap()], [vec![1, 2, 3], vec![4]]);
    }
}
