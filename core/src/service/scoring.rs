//! How a re-ranker's request becomes prompts, and how their outputs become raw scores.
//!
//! Input: a request that lists its pairs, then the outputs of its prompts. Output: the prompts' inputs, then
//! one raw score for each pair, in order. What must hold: another way to score is another arm here, and
//! nothing else in the service asks which way it is.

use super::task::PromptInputs;
use crate::{error::Error, model::RerankScoring};
use std::sync::Arc;
use text_embeddings_backend_core::{Output, TokenVectors};

/// The raw score of a pair.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RawScore {
    /// The authors' raw score.
    pub(super) raw: f32,
    /// The mean over the query's vectors, if the raw score is a sum over them; else the raw score.
    pub(super) per_vector: f32,
}

impl RawScore {
    /// A raw score that is not a sum over vectors.
    pub(super) fn from_value(raw: f32) -> Self {
        Self { raw, per_vector: raw }
    }
}

impl RerankScoring {
    /// The raw score of each pair, from the outputs of the request's prompts, in order.
    pub(super) fn raw_scores(
        self,
        prompts: &[PromptInputs],
        outputs: &[Arc<Output>],
    ) -> Result<Vec<RawScore>, Error> {
        let scores = match self {
            Self::Logits { .. } => outputs.iter().map(|output| self.relevance_score(&output.whole)).collect(),
            Self::Lists => list_scores(prompts, outputs)?,
            // Compared while they are computed, by `MaxSim`.
            Self::MaxSim => return Err(missing_vector()),
        };
        if scores.iter().any(|score| score.is_nan()) {
            return Err(Error::MissingValues);
        }
        Ok(scores.into_iter().map(RawScore::from_value).collect())
    }
}

fn list_scores(lists: &[PromptInputs], outputs: &[Arc<Output>]) -> Result<Vec<f32>, Error> {
    let mut scores = Vec::new();
    let mut outputs = outputs.iter();
    for list in lists {
        let documents = list.input_range().len();
        let mut prompts: Vec<ListVectors> = Vec::new();
        while prompts.iter().map(|prompt| prompt.documents.len()).sum::<usize>() < documents {
            let vectors = outputs.next().and_then(|output| ListVectors::new(&output.tokens));
            prompts.push(vectors.ok_or_else(missing_vector)?);
        }
        scores.extend(list_cosines(&prompts));
    }
    Ok(scores)
}

pub(super) fn missing_vector() -> Error {
    Error::Inference("the backend did not give one vector for each document".to_owned())
}

/// The vectors of a prompt's marked tokens, in double precision.
struct ListVectors {
    /// At least one.
    documents: Vec<Vec<f64>>,
    query: Vec<f64>,
}

impl ListVectors {
    /// The last vector is the query's. `None` without a vector of a document.
    fn new(tokens: &TokenVectors) -> Option<Self> {
        let rows = tokens.values.chunks_exact(tokens.width.max(1));
        let mut documents: Vec<Vec<f64>> =
            rows.map(|row| row.iter().copied().map(f64::from).collect()).collect();
        let query = documents.pop()?;
        if documents.is_empty() { None } else { Some(Self { documents, query }) }
    }
}

/// The cosines of a list's documents with its query. The arithmetic is jina-reranker-v3's own (`rerank` in
/// `modeling.py`): if a list needs several prompts, the query's vector is the mean of its vectors in all
/// prompts, each weighted by the prompt's best document.
fn list_cosines(prompts: &[ListVectors]) -> Vec<f32> {
    // The best cosine of each prompt, moved from [-1, 1] to [0, 1].
    let weights = prompts.iter().map(|ListVectors { documents, query }| {
        let cosines = documents.iter().map(|document| f64::midpoint(vector_cosine(document, query), 1.0));
        cosines.fold(0.0, f64::max)
    });
    let weights: Vec<f64> = weights.collect();
    // A single prompt's query vector is used unchanged, whatever its weight.
    let is_flat = prompts.len() < 2 || weights.iter().sum::<f64>() == 0.0;
    let width = prompts.first().map_or(0, |prompt| prompt.query.len());
    let mut query = vec![0.0; width];
    for (prompt, weight) in prompts.iter().zip(weights) {
        let weight = if is_flat { 1.0 } else { weight };
        query.iter_mut().zip(&prompt.query).for_each(|(sum, value)| *sum += weight * value);
    }
    let documents = prompts.iter().flat_map(|prompt| &prompt.documents);
    documents.map(|document| vector_cosine(document, &query) as f32).collect()
}

/// The cosine of two vectors; 0 if one has length zero, as in torch.
fn vector_cosine(a: &[f64], b: &[f64]) -> f64 {
    let lengths = (dot_product(a, a) * dot_product(b, b)).sqrt();
    if lengths == 0.0 { 0.0 } else { dot_product(a, b) / lengths }
}

fn dot_product(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    fn raw_scores(
        scoring: RerankScoring,
        prompts: &[PromptInputs],
        outputs: Vec<Output>,
    ) -> Result<Vec<RawScore>, Error> {
        scoring.raw_scores(prompts, &outputs.into_iter().map(Arc::new).collect::<Vec<_>>())
    }

    #[test]
    fn the_relevance_of_two_labels_is_the_positive_logit_less_the_other() {
        for (positive, logits, wanted) in [
            (None, vec![1.5], Ok(vec![1.5])),
            (Some(0), vec![1.5, -2.0], Ok(vec![3.5])),
            (Some(1), vec![1.5, -2.0], Ok(vec![-3.5])),
            (Some(1), vec![f32::INFINITY, f32::INFINITY], Err(Error::MissingValues)),
        ] {
            let scoring = RerankScoring::Logits { positive };
            let found = raw_scores(scoring, &[PromptInputs::One(0)], vec![Output::whole(logits)]);
            assert_eq!(found, wanted.map(|scores| scores.into_iter().map(RawScore::from_value).collect()));
        }
    }

    /// The output of a prompt: the vectors of its documents, then the query's.
    fn prompt(rows: &[[f32; 2]]) -> Output {
        let tokens = TokenVectors { values: rows.as_flattened().to_vec(), width: 2 };
        Output { tokens, ..Output::default() }
    }

    fn scores(documents: usize, prompts: Vec<Output>) -> Result<Vec<f32>, Error> {
        raw_values(raw_scores(RerankScoring::Lists, &[PromptInputs::List(0..documents)], prompts))
    }

    fn raw_values(scores: Result<Vec<RawScore>, Error>) -> Result<Vec<f32>, Error> {
        scores.map(|scores| scores.into_iter().map(|score| score.raw).collect())
    }

    fn assert_close(got: Result<Vec<f32>, Error>, expected: &[f32]) {
        let got = got.unwrap_or_default();
        assert_eq!(got.len(), expected.len());
        assert!(got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{got:?} {expected:?}");
    }

    #[test]
    fn one_prompt_gives_the_cosines_with_its_query() {
        let list = prompt(&[[1.0, 0.0], [-3.0, 0.0], [1.0, 1.0], [0.0, 0.0], [2.0, 0.0]]);
        assert_close(scores(4, vec![list]), &[1.0, -1.0, 0.5_f32.sqrt(), 0.0]);
        // The only document is the opposite of the query, so its weight is zero.
        assert_close(scores(1, vec![prompt(&[[-1.0, 0.0], [2.0, 0.0]])]), &[-1.0]);
    }

    #[test]
    fn the_query_of_several_prompts_is_their_mean_weighed_by_the_best_document() {
        // Weights 1 and (1 + 0) / 2: the query is (1, 0) + (0, 2) / 2.
        let list = vec![prompt(&[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), prompt(&[[1.0, 0.0], [0.0, 2.0]])];
        let half = 0.5_f32.sqrt();
        assert_close(scores(3, list), &[half, half, half]);
        // Two prompts with weight zero count equally.
        let list = vec![prompt(&[[-1.0, 0.0], [1.0, 0.0]]), prompt(&[[0.0, -1.0], [0.0, 1.0]])];
        assert_close(scores(2, list), &[-half, -half]);
    }

    #[test]
    fn each_list_has_its_own_query_and_a_missing_vector_is_an_error() {
        let lists = [PromptInputs::List(0..1), PromptInputs::List(1..2)];
        let outputs = || vec![prompt(&[[1.0, 0.0], [1.0, 0.0]]), prompt(&[[1.0, 0.0], [-1.0, 0.0]])];
        assert_close(raw_values(raw_scores(RerankScoring::Lists, &lists, outputs())), &[1.0, -1.0]);
        for missing in [vec![], vec![prompt(&[[1.0, 0.0]])], vec![Output::default()]] {
            assert_eq!(scores(1, missing), Err(missing_vector()));
        }
        let nan = vec![prompt(&[[f32::NAN, 0.0], [1.0, 0.0]])];
        assert_eq!(scores(1, nan), Err(Error::MissingValues));
    }
}
