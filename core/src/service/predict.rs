//! Classifies texts and pairs. For a re-ranker, gives a pair's score under the label of its positive class.
//!
//! Input: a [`PredictRequest`]. Output: for each input, its labels with their scores, the best first. What
//! must hold: a re-ranker's score of a pair equals the score of re-ranking its second text for its first; a
//! classifier gives scores for all its classes, and they sum to one unless they are raw.

use super::{
    Answer, Service,
    compute::Computed,
    request::{Failed, check_length, method},
    scoring::RawScore,
    task::{Inputs, ModelTask},
};
use crate::{
    error::Error,
    model::{ModelKind, RerankScoring, Reranker},
    postprocess::{order, probabilities},
    tokenization::{Input, PairText, TruncationDirection},
};
use std::sync::Arc;

/// An input: a text, or a pair (for a re-ranker, query and document).
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
    /// Whether the client sent a list, even of a single input.
    pub is_batch: bool,
    /// Whether too long inputs are truncated; the server's default if absent.
    pub truncate: Option<bool>,
    /// The end at which an input is cut.
    pub truncation_direction: TruncationDirection,
    /// Whether to return raw scores, without softmax or sigmoid.
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

impl Service {
    /// Labels each input.
    ///
    /// # Errors
    ///
    /// [`Error::Empty`] and [`Error::BatchTooLarge`] for a list that is empty or too long;
    /// [`Error::ModelType`] if the model has no labels; [`Error::EmptyInput`], [`Error::Validation`] and
    /// [`Error::TooLong`] for an invalid input; [`Error::Overloaded`] without a free permit; failures of
    /// tokenizer and model.
    pub async fn predict(&self, request: PredictRequest) -> Result<Answer<Vec<Vec<Prediction>>>, Error> {
        self.model_metrics().measured(method(request.is_batch), self.label(request)).await
    }

    async fn label(&self, request: PredictRequest) -> Result<Answer<Vec<Vec<Prediction>>>, Failed> {
        check_length("inputs", request.inputs.len(), self.config.max_client_batch_size)?;
        let reranker = match &self.config.model.kind {
            ModelKind::Embedder(_) | ModelKind::Decider(_) => {
                let error = self.other_kind("Model is not a classifier model");
                return Err(Failed::of_texts(error, request.inputs.len()));
            }
            ModelKind::Classifier(_) => None,
            ModelKind::Reranker(reranker) => {
                self.check_single_stage()?;
                Some(reranker)
            }
        };
        if reranker.is_some() {
            let takes_single_texts = self.tokenization.encoder().takes_single_texts();
            request.inputs.iter().try_for_each(|input| check_pair(input, takes_single_texts))?;
        }
        let inputs = Arc::new(LabelledInputs(request.inputs));
        let truncation = self.truncation(request.truncate, request.truncation_direction);
        if let Some(reranker) = reranker {
            let admitted = self.admit_request(self.max_tokens(inputs.as_ref()), 0).await?;
            let work = self.raw_scores(&admitted, &inputs, truncation);
            let (raw, cost) = self.in_time(&admitted, work).await?;
            let predict_pair = |raw| vec![self.predict_pair(reranker, raw, request.raw_scores)];
            return Ok(Answer { value: raw.into_iter().map(predict_pair).collect(), cost });
        }
        let task = ModelTask::Score(RerankScoring::default());
        let Computed { outputs, cost } = self.compute(&inputs, task, truncation).await?;
        let classes = outputs.iter().map(|output| self.predict_classes(&output.whole, request.raw_scores));
        Ok(Answer { value: classes.collect::<Result<_, _>>()?, cost })
    }

    /// A re-ranker's score under the label of its positive class.
    fn predict_pair(&self, reranker: &Reranker, score: RawScore, raw_scores: bool) -> Prediction {
        let RawScore { raw, per_vector } = score;
        let score = if raw_scores { raw } else { reranker.default_score(raw, per_vector) };
        let class = match reranker.scoring {
            RerankScoring::Logits { positive } => positive.unwrap_or(0),
            RerankScoring::Lists | RerankScoring::MaxSim => 0,
        };
        Prediction { score, label: self.config.model.label(class) }
    }

    fn predict_classes(&self, logits: &[f32], raw_scores: bool) -> Result<Vec<Prediction>, Error> {
        let scores = if raw_scores { logits.to_vec() } else { probabilities(logits) };
        if scores.iter().any(|score| score.is_nan()) {
            return Err(Error::MissingValues);
        }
        Ok(order(&scores)
            .into_iter()
            .map(|class| Prediction { score: scores[class], label: self.config.model.label(class) })
            .collect())
    }
}

/// Refuses an input that a re-ranker cannot score.
fn check_pair(input: &PredictInput, takes_single_texts: bool) -> Result<(), Error> {
    match input {
        PredictInput::Pair(query, _) if query.trim().is_empty() => Err(Error::EmptyInput { field: "inputs" }),
        PredictInput::Pair(..) => Ok(()),
        PredictInput::Single(_) if takes_single_texts => Ok(()),
        PredictInput::Single(_) => Err(Error::Validation(
            "this re-ranker predicts on pairs: each of `inputs` must be `[query, document]`, not a single \
             text"
                .to_owned(),
        )),
    }
}

/// A request's inputs. For a re-ranker, a pair is a query and a document.
struct LabelledInputs(Vec<PredictInput>);

impl Inputs for LabelledInputs {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn input(&self, index: usize) -> Input<'_> {
        match &self.0[index] {
            PredictInput::Single(text) => Input::Text { prompt: "", text },
            PredictInput::Pair(query, document) => {
                Input::Pair(PairText { instruction: None, query, document })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::{
        postprocess::sigmoid,
        service::{
            RerankRequest,
            testing::{classifier_fixture, embedding_fixture, fixture, fixture_with, reranker},
        },
    };

    fn request(inputs: Vec<PredictInput>) -> PredictRequest {
        PredictRequest {
            is_batch: true,
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
        for (is_generative, labels, label) in
            [(true, &["yes"][..], "yes"), (false, &["relevance"], "relevance"), (false, &[], "LABEL_0")]
        {
            let fixture = fixture_with(100, |config| {
                reranker(config).is_generative = is_generative;
                reranker(config).labels = labels.iter().map(|&label| label.to_owned()).collect();
            });
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
    async fn of_two_labels_a_re_ranker_gives_the_positive_ones_probability() {
        for positive in [0, 1] {
            let fixture = fixture_with(100, |config| {
                reranker(config).is_generative = false;
                reranker(config).labels = vec!["no".to_owned(), "Yes".to_owned()];
                reranker(config).scoring = RerankScoring::Logits { positive: Some(positive) };
            });
            let prompt = PairText { instruction: None, query: "w100", document: "w101" };
            let logits = fixture.values(&Input::Pair(prompt));
            let exponentials: Vec<f64> = logits.iter().map(|logit| f64::from(*logit).exp()).collect();
            let softmax = exponentials[positive] / exponentials.iter().sum::<f64>();
            let answer = fixture.service.predict(request(vec![pair("w100", "w101")])).await.unwrap().value;
            assert_eq!((answer[0].len(), answer[0][0].label.as_str()), (1, ["no", "Yes"][positive]));
            assert!((f64::from(answer[0][0].score) - softmax).abs() < 1e-6);
            let texts = vec!["w101".to_owned()];
            let rerank = RerankRequest {
                query: "w100".to_owned(),
                texts,
                raw_scores: true,
                ..RerankRequest::default()
            };
            let raw = fixture.service.rerank(rerank).await.unwrap().value[0].score;
            assert!((raw - (logits[positive] - logits[1 - positive])).abs() < 1e-6);
        }
    }

    #[tokio::test]
    async fn a_classifier_gives_every_label_the_best_first() {
        let labels = ["contradiction", "neutral", "entailment"];
        let fixture = classifier_fixture(&labels);
        let single = || PredictInput::Single("w100 w101".to_owned());
        let inputs = vec![single(), pair("w100", "w101"), pair("", "w101")];
        let logits = [
            fixture.values(&Input::Text { prompt: "", text: "w100 w101" }),
            fixture.values(&Input::Pair(PairText { instruction: None, query: "w100", document: "w101" })),
            fixture.values(&Input::Pair(PairText { instruction: None, query: "", document: "w101" })),
        ];
        for raw_scores in [false, true] {
            let request = PredictRequest { raw_scores, ..request(inputs.clone()) };
            let answer = fixture.service.predict(request).await.unwrap();
            assert_eq!(answer.cost.characters, 9 + 8 + 4);
            for (predictions, logits) in answer.value.iter().zip(&logits) {
                assert!(predictions.is_sorted_by(|a, b| a.score >= b.score) && predictions.len() == 3);
                let exponentials: Vec<f64> = logits.iter().map(|logit| f64::from(*logit).exp()).collect();
                for prediction in predictions {
                    let class = labels.iter().position(|label| *label == prediction.label).unwrap();
                    let softmax = exponentials[class] / exponentials.iter().sum::<f64>();
                    let wanted = if raw_scores { f64::from(logits[class]) } else { softmax };
                    assert!((f64::from(prediction.score) - wanted).abs() < 1e-6, "{prediction:?}");
                }
            }
        }
        let many = fixture.service.predict(request(vec![single(); 5])).await.unwrap_err();
        assert_eq!(many, Error::BatchTooLarge { got: 5, max: 4 });
        let nan = fixture.service.predict(request(vec![pair("w100", "nan")])).await.unwrap_err();
        assert_eq!(nan, Error::MissingValues);
    }

    #[tokio::test]
    async fn what_cannot_be_predicted_is_refused() {
        let single = || PredictInput::Single("w100".to_owned());
        let service = fixture(100).service;
        for (inputs, wanted) in [
            (vec![], Error::Empty { field: "inputs" }),
            (vec![single(); 5], Error::BatchTooLarge { got: 5, max: 4 }),
            (vec![pair(" ", "w100")], Error::EmptyInput { field: "inputs" }),
        ] {
            assert_eq!(service.predict(request(inputs)).await.unwrap_err(), wanted);
        }
        let error = service.predict(request(vec![pair("w100", "w101"), single()])).await.unwrap_err();
        assert!(matches!(&error, Error::Validation(text) if text.contains("[query, document]")), "{error:?}");

        let service = embedding_fixture(100, |_| ()).service;
        let error = service.predict(request(vec![single()])).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "Backend error: Model is not a classifier model; it is an embedding model: POST /embed"
        );
        let many = service.predict(request(vec![single(); 5])).await.unwrap_err();
        assert_eq!(many, Error::BatchTooLarge { got: 5, max: 4 }, "too many comes before the wrong kind");
        let classifier = classifier_fixture(&["a", "b"]).service;
        for empty in [PredictInput::Single(String::new()), pair("", "")] {
            let error = classifier.predict(request(vec![single(), empty])).await.unwrap_err();
            assert_eq!(error, Error::EmptyInput { field: "inputs" }.of_input(1));
        }
    }
}
