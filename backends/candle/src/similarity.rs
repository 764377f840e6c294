//! The comparison of texts by the vectors of their tokens (`MaxSim`), with the CPU's vector instructions.
//!
//! Input: the vectors of a query and of documents, in main memory. Output: a sum for each document.
//! What must hold: products are in `f32` whatever the model computes in; a document's products stay in the
//! caches until their maxima are taken.

use crate::kernels::{
    InstructionSet,
    compute::Compute,
    matrix::{ColumnOrder, Matrix},
    pack::{OperandFormat, Words},
    stored::StoredMatrix,
    threads::Threads,
};
use text_embeddings_backend_core::{BackendError, TokenSimilarity, TokenVectors};

/// The documents that a thread compares before it takes the next ones.
const DOCUMENTS_PER_ITEM: usize = 16;

/// Compares with the model's threads where they are free, else on the caller's thread.
pub(crate) struct CpuSimilarity {
    threads: Threads,
    /// One thread, for the documents of an item.
    compute: Compute,
}

impl CpuSimilarity {
    pub(crate) fn new(set: InstructionSet, threads: Threads) -> Result<Self, BackendError> {
        Ok(Self { threads, compute: Compute { set, threads: Threads::start(1)? } })
    }

    fn fill_sums(&self, query: &Matrix, documents: &[&TokenVectors], sums: &mut [f64]) {
        let mut words = Words::default();
        for (document, sum) in documents.iter().zip(sums) {
            let (values, width) = (document.values.as_slice(), document.width);
            let mut operand = self.compute.operand(values, width, OperandFormat::F32, words, |row, _| row);
            let maxima = self.compute.max_products(&operand, query);
            *sum = maxima.into_iter().map(f64::from).sum();
            words = operand.take_words();
        }
    }
}

impl TokenSimilarity for CpuSimilarity {
    fn sum_max_products(&self, query: &TokenVectors, documents: &[&TokenVectors]) -> Vec<f64> {
        let rows = [StoredMatrix::from_values(&query.values, query.width)];
        let query = Matrix::pack(&self.compute, &rows, OperandFormat::F32, ColumnOrder::Plain);
        let mut sums = vec![0.0; documents.len()];
        let items = documents.chunks(DOCUMENTS_PER_ITEM).zip(sums.chunks_mut(DOCUMENTS_PER_ITEM));
        self.threads.for_each(items, |(documents, sums)| self.fill_sums(&query, documents, sums));
        sums
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use text_embeddings_backend_core::PlainSimilarity;

    #[test]
    fn sums_equal_the_plain_ones_with_every_instruction_set_and_at_odd_sizes() {
        let seed = rand::rng().random();
        let mut rng = StdRng::seed_from_u64(seed);
        let mut random = |count: usize, width: usize| {
            let values = (0..count * width).map(|_| rng.random_range(-1.0..1.0)).collect();
            TokenVectors { values, width }
        };
        for set in InstructionSet::available() {
            let similarity = CpuSimilarity::new(set, Threads::start(2).unwrap()).unwrap();
            for (count, width) in [(1, 1), (2, 17), (31, 48), (32, 96), (33, 128), (70, 9)] {
                let query = random(count, width);
                let counts = [1, 5, 6, 7, 29, 180].into_iter().cycle().take(2 * DOCUMENTS_PER_ITEM + 3);
                let documents: Vec<_> = counts.map(|count| random(count, width)).collect();
                let documents: Vec<_> = documents.iter().collect();
                let found = similarity.sum_max_products(&query, &documents);
                let expected = PlainSimilarity.sum_max_products(&query, &documents);
                let is_near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-5 * count as f64;
                assert!(found.iter().zip(&expected).all(is_near), "{set} {count} {width} {seed}");
                // A document's sum has the same bits alone.
                let alone = similarity.sum_max_products(&query, &documents[4..5]);
                assert_eq!(alone[0].to_bits(), found[4].to_bits(), "{set} {count} {width} {seed}");
            }
        }
    }
}
