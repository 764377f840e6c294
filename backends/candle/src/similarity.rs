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

/// Compares on the caller's thread: the threads of the model may be computing a batch.
pub(crate) struct CpuSimilarity {
    compute: Compute,
}

impl CpuSimilarity {
    /// # Errors
    ///
    /// None: one thread is the caller's own.
    pub(crate) fn from_set(set: InstructionSet) -> Result<Self, BackendError> {
        Ok(Self { compute: Compute { set, threads: Threads::start(1)? } })
    }
}

impl TokenSimilarity for CpuSimilarity {
    fn sum_max_products(&self, query: &TokenVectors, documents: &[&TokenVectors]) -> Vec<f64> {
        let rows = [StoredMatrix::from_values(&query.values, query.width)];
        let query = Matrix::pack(&self.compute, &rows, OperandFormat::F32, ColumnOrder::Plain);
        let mut words = Words::default();
        let mut sums = Vec::with_capacity(documents.len());
        for document in documents {
            let (values, width) = (document.values.as_slice(), document.width);
            let memory = std::mem::take(&mut words);
            let mut operand = self.compute.operand(values, width, OperandFormat::F32, memory, |row, _| row);
            let maxima = self.compute.max_products(&operand, &query);
            sums.push(maxima.into_iter().map(f64::from).sum());
            words = operand.take_words();
        }
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
            let similarity = CpuSimilarity::from_set(set).unwrap();
            for (count, width) in [(1, 1), (2, 17), (31, 48), (32, 96), (33, 128), (70, 9)] {
                let query = random(count, width);
                let documents: Vec<_> = [1, 5, 6, 7, 29, 180].map(|count| random(count, width)).into();
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
