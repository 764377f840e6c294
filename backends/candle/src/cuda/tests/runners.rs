//! Two devices run the kernels in their tests: the CPU, for which they are compiled, and a card.

use crate::cuda::{
    accelerator::Word,
    emulated::{Guarded, Kernels},
};

/// A device that runs kernels.
pub(crate) trait Runner {
    /// Memory that holds these bytes, from a multiple of 16 on. It is noticed if a kernel writes behind them.
    fn place_bytes(&self, bytes: &[u8]) -> Box<dyn Bytes>;

    /// Runs a kernel: blocks, threads of a block, and arguments in the kernel's order.
    fn run_kernel(&self, name: &str, blocks: usize, threads: usize, words: &[Word]);

    /// Tests of rows with this number of columns take fewer rows than this.
    fn max_rows(&self, columns: usize) -> usize;
}

/// Memory of a runner.
pub(crate) trait Bytes {
    /// The address of the first byte.
    fn first_address(&self) -> u64;

    /// The bytes, when all kernels have ended.
    fn all_bytes(&self) -> Vec<u8>;
}

impl Runner for Kernels {
    fn place_bytes(&self, bytes: &[u8]) -> Box<dyn Bytes> {
        Box::new(Guarded::new(self, bytes))
    }

    fn run_kernel(&self, name: &str, blocks: usize, threads: usize, words: &[Word]) {
        self.launch(name, blocks, threads, words);
    }

    fn max_rows(&self, _: usize) -> usize {
        5
    }
}

impl Bytes for Guarded {
    fn first_address(&self) -> u64 {
        self.bytes().as_ptr() as u64
    }

    fn all_bytes(&self) -> Vec<u8> {
        self.bytes().to_vec()
    }
}

#[cfg(feature = "cuda")]
pub(crate) use on_a_card::this_card;

#[cfg(feature = "cuda")]
mod on_a_card {
    use super::{Bytes, Runner, Word};
    use crate::{
        cuda::{accelerator::Accelerator, device::Gpu, kernel_tests::SPOILT},
        tests::emulated_gpu::is_emulated,
    };
    use candle_core::{DType, Tensor};

    /// Bytes behind each memory.
    const BEHIND: usize = 512;

    /// The card of this build.
    pub(crate) fn this_card() -> Gpu {
        Gpu::new(crate::tests::device(), DType::F16, true).unwrap()
    }

    struct OnTheCard {
        words: Tensor,
        count: usize,
        address: u64,
    }

    impl Runner for Gpu {
        fn place_bytes(&self, bytes: &[u8]) -> Box<dyn Bytes> {
            let mut padded = bytes.to_vec();
            padded.resize((bytes.len() + BEHIND).next_multiple_of(4), SPOILT);
            let words: Vec<u32> =
                padded.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect();
            let words = Tensor::new(words, self.device()).unwrap();
            let address = self.address(&words).unwrap();
            Box::new(OnTheCard { words, count: bytes.len(), address })
        }

        fn run_kernel(&self, name: &str, blocks: usize, threads: usize, words: &[Word]) {
            self.run_kernel_by_name(name, blocks, threads, words).unwrap();
        }

        /// An emulated card takes its time for rows.
        fn max_rows(&self, columns: usize) -> usize {
            if is_emulated() { 5 } else { (250_000 / columns).clamp(5, 300) }
        }
    }

    impl Bytes for OnTheCard {
        fn first_address(&self) -> u64 {
            self.address
        }

        fn all_bytes(&self) -> Vec<u8> {
            let words = self.words.to_vec1::<u32>().unwrap();
            let mut bytes: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
            let behind = bytes.split_off(self.count);
            assert!(behind.iter().all(|&byte| byte == SPOILT), "a kernel wrote behind its memory");
            bytes
        }
    }
}
