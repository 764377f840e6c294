//! The comparison of texts by the vectors of their tokens (`MaxSim`).
//!
//! Input: the vectors of a query and of documents. Output: a sum for each document. What must hold: a
//! document's sum does not depend on the other documents.

use crate::TokenVectors;

/// Compares texts by the vectors of their tokens.
pub trait TokenSimilarity: Send + Sync {
    /// For each document, the sum over the query's vectors of the largest product with a vector of the
    /// document. `query` and each of `documents` have one width and at least one vector.
    fn sum_max_products(&self, query: &TokenVectors, documents: &[&TokenVectors]) -> Vec<f64>;
}

/// The comparison without vector instructions beyond the ones for which the program is compiled.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlainSimilarity;

impl TokenSimilarity for PlainSimilarity {
    fn sum_max_products(&self, query: &TokenVectors, documents: &[&TokenVectors]) -> Vec<f64> {
        let mut sums = Vec::with_capacity(documents.len());
        for document in documents {
            let mut sum = 0.0;
            for query in query.values.chunks_exact(query.width) {
                let mut best = f32::NEG_INFINITY;
                for document in document.values.chunks_exact(document.width) {
                    best = best.max(query.iter().zip(document).map(|(a, b)| a * b).sum());
                }
                sum += f64::from(best);
            }
            sums.push(sum);
        }
        sums
    }
}
