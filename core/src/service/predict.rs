//! Classification of texts and pairs; for a re-ranker, a pair's score under the label of its positive class.
//!
//! Input: a [`PredictRequest`]. Output: for each input its labels with their scores, the best first. What must hold: a
//! pair's score is the one that re-ranking its second text by its first gives.

use super::{
    Answer, Service,
    request::{check_length, measured, method},
    score::Prompts,
};
use crate::{
    error::Error,
    postprocess::{order, probabilities},
    tokenization::{PromptText, TruncationDirection},
};
use std::sync::Arc;
use text_embeddings_backend_core::ModelType;

/// One input: a text, or a pair (for a re-ranker: query and document).
#[derive(Debug, Clone, PartialEq)]
pub enum PredictInput {
    /// One text.
    Single(String),
    /// Two texts.
    Pair(String, String),
}

/// Inputs to classify.
#[derive(Debug, Clone, PartialEq)]
pub struct PredictRequest {
    /// The inputs. Must not be empty.
    pub inputs: Vec<PredictInput>,
    /// Whether too long inputs are truncated; the server's default if absent.
    pub truncate: Option<bool>,
    /// From which end an input is cut.
    pub truncation_direction: TruncationDirection,
    /// Scores before the softmax or sigmoid.
    pub raw_scores: bool,
}

/// A label and its score.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    /// A probability, or a raw score if the request asked for it.
    pub score: f32,
    /// The class.
    pub label: String,
}

/// A request's inputs, each of them a query and a document.
struct Pairs(Vec<(String, String)>);

impl Service {
    /// Labels each input.
    ///
    /// # Errors
    ///
    /// [`Error::ModelType`] if the model is not a re-ranker; [`Error::Empty`], [`Error::BatchTooLarge`] and
    /// [`Error::Validation`] for a request that cannot be served, [`Error::TooLong`] for an input that must not be
    /// truncated; [`Error::Overloaded`] without a free permit; what goes wrong in the tokenizer or the model.
    pub async fn predict(&self, request: PredictRequest) -> Result<Answer<Vec<Vec<Prediction>>>, Error> {
        measured(method(request.inputs.len()), self.label(request)).await
    }

    async fn label(&self, request: PredictRequest) -> Result<Answer<Vec<Vec<Prediction>>>, Error> {
        self.require_reranker()?;
        check_length("inputs", request.inputs.len(), self.config.max_client_batch_size)?;
        let pairs = Arc::new(Pairs(request.inputs.into_iter().map(pair).collect::<Result<_, _>>()?));
        let truncation = self.truncation(request.truncate, request.truncation_direction);
        let scored = self.score(&pairs, truncation).await?;
        let predictions = |raw: Vec<f32>| {
            let scores = if request.raw_scores { raw } else { probabilities(&raw) };
            let prediction = |class| Prediction { score: scores[class], label: self.class_label(class) };
            order(&scores, None).into_iter().map(prediction).collect()
        };
        let value = scored.raw_scores.into_iter().map(predictions).collect();
        Ok(Answer { value, cost: scored.cost })
    }

    /// The name of a class: a generative re-ranker has one, its answer "yes"; others are numbered as transformers
    /// does where a model names none.
    fn class_label(&self, class: usize) -> String {
        match self.config.model_type {
            ModelType::ListwiseReranker => "yes".to_owned(),
            _ => format!("LABEL_{class}"),
        }
    }
}

/// The query and the document that a re-ranker wants.
fn pair(input: PredictInput) -> Result<(String, String), Error> {
    match input {
        PredictInput::Pair(query, _) if query.trim().is_empty() => Err(Error::Empty { field: "inputs" }),
        PredictInput::Pair(query, document) => Ok((query, document)),
        PredictInput::Single(_) => Err(Error::Validation(
            "a re-ranker predicts on pairs: each of `inputs` must be `[query, document]`, not a single text"
                .to_owned(),
        )),
    }
}

impl Prompts for Pairs {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn prompt(&self, index: usize) -> PromptText<'_> {
        let (query, document) = &self.0[index];
        PromptText { instruction: None, query, document }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::{
        metrics::testing::recorded,
        postprocess::sigmoid,
        service::testing::{block_on, fixture, fixture_with},
    };
    use text_embeddings_backend_core::Pool;

    fn request(inputs: Vec<PredictInput>) -> PredictRequest {
        PredictRequest {
            inputs,
            truncate: None,
            truncation_direction: TruncationDirection::Right,
            raw_scores: false,
        }
    }

    fn pair(query: &str, document: &str) -> PredictInput {
        PredictInput::Pair(query.to_owned(), document.to_owned())
    }

    #[tokio::test]
    async fn a_pair_gets_the_score_of_its_rerank_under_the_label_yes() {
        for (model_type, label) in [(ModelType::ListwiseReranker, "yes"), (ModelType::Reranker, "LABEL_0")] {
            let fixture = fixture_with(100, |config| config.model_type = model_type);
            let pairs = [("w100 w101", "w102"), ("w103", ""), ("w102", "w100 w101")];
            let inputs: Vec<_> = pairs.iter().map(|(query, document)| pair(query, document)).collect();
            for raw_scores in [false, true] {
                let request = PredictRequest { raw_scores, ..request(inputs.clone()) };
                let answer = fixture.service.predict(request).await.unwrap();
                let wanted: Vec<_> = pairs
                    .iter()
                    .map(|(query, document)| {
                        let raw = fixture.raw_score(None, query, document).0;
                        let score = if raw_scores { raw } else { sigmoid(raw) };
                        vec![Prediction { score, label: label.to_owned() }]
                    })
                    .collect();
                assert_eq!(answer.value, wanted);
                assert_eq!(answer.cost.characters, 13 + 4 + 13);
            }
        }
    }

    #[tokio::test]
    async fn what_cannot_be_predicted_is_refused() {
        let single = || PredictInput::Single("w100".to_owned());
        let service = fixture(100).service;
        for (inputs, wanted) in [
            (vec![], Error::Empty { field: "inputs" }),
            (vec![single(); 5], Error::BatchTooLarge { got: 5, max: 4 }),
            (vec![pair(" ", "w100")], Error::Empty { field: "inputs" }),
        ] {
            assert_eq!(service.predict(request(inputs)).await.unwrap_err(), wanted);
        }
        let error = service.predict(request(vec![pair("w100", "w101"), single()])).await.unwrap_err();
        assert!(matches!(&error, Error::Validation(text) if text.contains("[query, document]")), "{error:?}");

        for model_type in [ModelType::Embedding(Pool::LastToken), ModelType::Classifier] {
            let service = fixture_with(100, |config| config.model_type = model_type).service;
            let error = service.predict(request(vec![])).await.unwrap_err();
            assert_eq!(error.to_string(), "model is not a re-ranker model");
        }
    }

    #[test]
    fn one_input_counts_as_single_and_several_as_a_batch() {
        let service = fixture(100).service;
        for (inputs, method) in [(1, "single"), (3, "batch")] {
            let counts = recorded(|| {
                block_on(service.predict(request(vec![pair("w100", "w101"); inputs]))).unwrap();
            });
            assert_eq!(counts[&format!("te_request_count{{method=\"{method}\"}}")], [1.0]);
            assert_eq!(counts[&format!("te_request_success{{method=\"{method}\"}}")], [1.0]);
            assert_eq!(counts["te_predict_count"], [inputs as f64]);
            assert_eq!(counts["te_predict_success"], [inputs as f64]);
            assert_eq!(counts["te_predict_duration"].len(), inputs);
            assert_eq!(counts["te_request_duration"].len(), 1);
        }
    }
}
