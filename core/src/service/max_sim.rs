//! `MaxSim` of pairs, compared while the device computes the next documents.
//!
//! Input: outputs with the vectors of tokens, each query's before its documents'. Output: one raw score for
//! each document, in order. What must hold: the values are finite, which `unit_vectors` sees to; a request
//! holds the vectors of few of its documents, however many it has; a score does not depend on the documents
//! that are compared with it.

use super::{
    compute::OutputReceiver,
    scoring::{RawScore, missing_vector},
};
use crate::error::Error;
use std::{mem, sync::Arc};
use text_embeddings_backend_core::{Output, TokenSimilarity, TokenVectors};

/// The values of documents from which on they are compared. One more document may come on top.
const VALUES_AT_A_TIME: usize = 1 << 20;

/// The scores so far, and the vectors that wait to be compared.
pub(super) struct MaxSim {
    similarity: Arc<dyn TokenSimilarity>,
    has_one_query: bool,
    waiting: Vec<QueryDocuments>,
    /// The values of the documents that wait.
    values: usize,
    scores: Vec<RawScore>,
}

struct QueryDocuments {
    query: Arc<Output>,
    documents: Vec<Arc<Output>>,
}

impl MaxSim {
    /// The outputs are one query and its documents, or else pairs of a query and a document.
    pub(super) fn from_similarity(similarity: Arc<dyn TokenSimilarity>, has_one_query: bool) -> Self {
        Self { similarity, has_one_query, waiting: Vec::new(), values: 0, scores: Vec::new() }
    }

    /// The raw scores of all documents.
    pub(super) async fn into_scores(mut self) -> Result<Vec<RawScore>, Error> {
        self.compare_waiting().await?;
        Ok(self.scores)
    }

    async fn compare_waiting(&mut self) -> Result<(), Error> {
        self.values = 0;
        let waiting = mem::take(&mut self.waiting);
        if self.has_one_query {
            let query = waiting.last().map(|last| Arc::clone(&last.query));
            self.waiting.extend(query.map(|query| QueryDocuments { query, documents: Vec::new() }));
        }
        let similarity = Arc::clone(&self.similarity);
        // Long documents take some hundred milliseconds, which must not hold up other requests.
        let scores = tokio::task::spawn_blocking(move || {
            let mut scores = Vec::new();
            for QueryDocuments { query, documents } in waiting {
                let documents: Vec<_> = documents.iter().map(|document| &document.tokens).collect();
                scores.extend(query_scores(similarity.as_ref(), &query.tokens, &documents)?);
            }
            Ok(scores)
        });
        self.scores.extend(scores.await.map_err(|_| Error::Unhealthy)??);
        Ok(())
    }
}

impl OutputReceiver for MaxSim {
    async fn take_output(&mut self, output: Arc<Output>) -> Result<(), Error> {
        match self.waiting.last_mut() {
            Some(last) if self.has_one_query || last.documents.is_empty() => {
                self.values += output.tokens.values.len();
                last.documents.push(output);
            }
            _ => self.waiting.push(QueryDocuments { query: output, documents: Vec::new() }),
        }
        if self.values < VALUES_AT_A_TIME { Ok(()) } else { self.compare_waiting().await }
    }
}

/// The sums, over the query's vectors, of the largest product with a vector of each document. All have length
/// one.
fn query_scores(
    similarity: &dyn TokenSimilarity,
    query: &TokenVectors,
    documents: &[&TokenVectors],
) -> Result<Vec<RawScore>, Error> {
    for vectors in std::iter::once(&query).chain(documents) {
        if vectors.width == 0 || vectors.width != query.width || vectors.values.is_empty() {
            return Err(missing_vector());
        }
    }
    let count = (query.values.len() / query.width) as f64;
    let sums = similarity.sum_max_products(query, documents).into_iter();
    Ok(sums.map(|sum| RawScore { raw: sum as f32, per_vector: (sum / count) as f32 }).collect())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use text_embeddings_backend_core::PlainSimilarity;

    const WIDTH: usize = 64;

    fn random_output(rng: &mut StdRng, tokens: usize) -> Arc<Output> {
        let values = (0..tokens * WIDTH).map(|_| rng.random_range(-1.0..1.0)).collect();
        Arc::new(Output { tokens: TokenVectors { values, width: WIDTH }, ..Output::whole(Vec::new()) })
    }

    /// The sum of the largest products, by the definition.
    fn plain_score(query: &Output, document: &Output) -> f32 {
        let rows = |output: &Output| -> Vec<Vec<f64>> {
            let rows = output.tokens.values.chunks(WIDTH);
            rows.map(|row| row.iter().map(|&value| f64::from(value)).collect()).collect()
        };
        let best = |query: &Vec<f64>| {
            let products =
                rows(document).into_iter().map(|row| row.iter().zip(query).map(|(a, b)| a * b).sum());
            products.fold(f64::NEG_INFINITY, f64::max)
        };
        rows(query).iter().map(best).sum::<f64>() as f32
    }

    #[tokio::test]
    async fn scores_are_those_of_each_pair_alone_and_few_documents_wait() {
        let rng = &mut StdRng::seed_from_u64(11);
        // 4 and 5 documents of a quarter of the limit; a document of more than the limit.
        for (has_one_query, lengths) in [
            (true, vec![]),
            (true, vec![1]),
            (true, vec![4096; 4]),
            (true, vec![4096, 4095, 4097, 4096, 4096, 1]),
            (false, vec![3, 4096, 20_000, 1]),
            (false, vec![4096; 9]),
        ] {
            let mut found = MaxSim::from_similarity(Arc::new(PlainSimilarity), has_one_query);
            let (mut query, mut expected) = (random_output(rng, 3), Vec::new());
            if has_one_query {
                found.take_output(Arc::clone(&query)).await.unwrap();
            }
            for &length in &lengths {
                if !has_one_query {
                    query = random_output(rng, 2);
                    found.take_output(Arc::clone(&query)).await.unwrap();
                }
                let document = random_output(rng, length);
                expected.push(plain_score(&query, &document));
                found.take_output(document).await.unwrap();
                let waiting = found.waiting.iter().flat_map(|waiting| &waiting.documents);
                let values: usize = waiting.map(|document| document.tokens.values.len()).sum();
                assert!(values < VALUES_AT_A_TIME && values == found.values, "{values} values wait");
            }
            let scores = found.into_scores().await.unwrap();
            assert_eq!(scores.len(), expected.len());
            for (score, expected) in scores.iter().zip(expected) {
                assert!(
                    (score.raw - expected).abs() <= 1e-4 * expected.abs().max(1.0),
                    "{score:?} {expected}"
                );
                let vectors = if has_one_query { 3.0 } else { 2.0 };
                assert!((score.per_vector - score.raw / vectors).abs() < 1e-4, "{score:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_missing_vector_is_an_error() {
        let rng = &mut StdRng::seed_from_u64(12);
        let mut found = MaxSim::from_similarity(Arc::new(PlainSimilarity), true);
        found.take_output(random_output(rng, 2)).await.unwrap();
        found.take_output(Arc::new(Output::whole(Vec::new()))).await.unwrap();
        assert_eq!(found.into_scores().await.err(), Some(missing_vector()));
    }
}
