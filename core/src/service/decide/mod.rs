//! Decisions: one text, many questions about it, a probability for each listed answer.
//!
//! Input: a [`DecisionRequest`]. Output: a [`Decision`] for each question, in order. What must hold: a
//! question's probabilities have the same bits whatever else the request asks, and nothing is ever cut.
//!
//! An instruct model reads each question behind the text. All these prompts begin with the text, so that it
//! is computed once. A re-ranker reads a prompt for each option, with the text at its end.

mod decision;
mod flat;
mod marked;
mod pointer;
mod prompt;
mod text;

use std::sync::Arc;

use super::{Answer, ScoreRequest, Service, compute::Computed, request::Failed, task::ModelTask};
use crate::{
    error::Error,
    model::{Decider, Deciding, Reading, Reranker},
    tokenization::{LabelKind, MAX_LEVELS, MAX_OPTIONS, Truncation, TruncationDirection},
};
use marked::MarkedInputs;
use prompt::OPTION_INSTRUCTION;
use text_embeddings_backend_core::{Output, Wanted, amount};

pub use decision::Decision;
pub use text::{DecisionText, JsonStrings};

/// The most bytes of text and instructions that a re-ranker reads for a request. It reads them once for each
/// option, so that they may be a thousand times the request.
const MAX_REPEATED_BYTES: usize = 16 << 20;

/// A text and the questions about it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DecisionRequest {
    /// The text. It may be empty.
    pub state: DecisionText,
    /// The questions; at least one.
    pub questions: Vec<Question>,
    /// Whether each choice is also asked with its options last to first, and both answers are averaged.
    pub both_orders: bool,
}

/// A question.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// The path of its list of answers in the request, for messages.
    pub place: String,
    /// The question; may be empty, but not for a yes-or-no question without descriptions.
    pub instructions: DecisionText,
    /// The answers.
    pub kind: QuestionKind,
}

/// The listed answers of a question.
#[derive(Debug, Clone, PartialEq)]
pub enum QuestionKind {
    /// One of these.
    Choice(Vec<QuestionOption>),
    /// One of these levels, lowest first.
    Score(Vec<DecisionText>),
    /// Yes or no, with descriptions of both.
    Noul {
        /// The description of yes.
        yes: Option<DecisionText>,
        /// The description of no.
        no: Option<DecisionText>,
    },
}

/// An option of a choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuestionOption {
    /// Its name.
    pub name: String,
    /// Its description.
    pub description: Option<DecisionText>,
}

impl Question {
    fn label_kind(&self) -> LabelKind {
        match &self.kind {
            QuestionKind::Choice(options) => LabelKind::Options(options.len()),
            QuestionKind::Score(levels) => LabelKind::Levels(levels.len()),
            QuestionKind::Noul { .. } => LabelKind::YesNo,
        }
    }

    /// Refuses a list of answers that is empty, longer than `max_options`, or says nothing.
    fn check_answers(&self, max_options: usize) -> Result<(), Error> {
        let (count, max, noun) = match &self.kind {
            QuestionKind::Choice(options) => (options.len(), max_options, "option"),
            QuestionKind::Score(levels) => (levels.len(), MAX_LEVELS, "level"),
            QuestionKind::Noul { yes: None, no: None } if self.instructions.is_empty() => {
                return Err(Error::Validation(format!(
                    "`{}`: a yes-or-no question needs instructions or a description of one of its answers",
                    self.place
                )));
            }
            QuestionKind::Noul { .. } => return Ok(()),
        };
        if (1..=max).contains(&count) {
            return Ok(());
        }
        let why = match noun {
            "option" if max < MAX_OPTIONS => {
                format!(", because the tokenizer has labels for no more (of {MAX_OPTIONS})")
            }
            _ => String::new(),
        };
        Err(Error::Validation(format!("`{}` has {}: give 1 to {max}{why}", self.place, amount(count, noun))))
    }
}

impl Service {
    /// Answers questions about a text.
    ///
    /// # Errors
    ///
    /// [`Error::ModelType`] if the model does not decide; [`Error::Empty`] and [`Error::Validation`] for an
    /// invalid request; [`Error::TooLong`] for a text that does not fit together with a question;
    /// [`Error::Overloaded`] without a free permit; failures of tokenizer and model.
    pub async fn decide(&self, request: DecisionRequest) -> Result<Answer<Vec<Decision>>, Error> {
        self.model_metrics().measured("batch", self.decide_all(request)).await
    }

    async fn decide_all(&self, request: DecisionRequest) -> Result<Answer<Vec<Decision>>, Failed> {
        let deciding = self.how_it_decides()?;
        if request.questions.is_empty() {
            return Err(Error::Validation("`questions` must have at least one question".to_owned()).into());
        }
        let (got, max) = (request.questions.len(), self.config.max_questions);
        if got > max {
            let message =
                format!("`questions` has {got} questions: at most {max} are answered (`--max-questions`)");
            return Err(Error::Validation(message).into());
        }
        let max_options = match deciding {
            Deciding::Together(decider) => decider.max_options(),
            Deciding::Options(_) => MAX_OPTIONS,
        };
        for question in &request.questions {
            question.check_answers(max_options)?;
        }
        match deciding {
            Deciding::Together(decider) => self.decide_together(decider, &request).await,
            Deciding::Options(reranker) => self.decide_by_options(reranker, request).await,
        }
    }

    /// Asks a model that reads all options of a question together.
    async fn decide_together(
        &self,
        decider: &Decider,
        request: &DecisionRequest,
    ) -> Result<Answer<Vec<Decision>>, Failed> {
        let asked = request.all_asked();
        let truncation = self.uncut_truncation();
        let Computed { outputs, cost } = match decider {
            Decider::Labels(decider) => {
                let beginning = decider.conversation.value.message_beginning(&request.state);
                let questions =
                    asked.iter().map(|it| it.question.prompt_text(&decider.labels, it.is_reversed));
                let (queries, documents) = (vec![beginning], questions.collect());
                let inputs = Arc::new(ScoreRequest { queries, documents, ..ScoreRequest::default() });
                self.compute(&inputs, ModelTask::Decide(Wanted::WHOLE), truncation).await?
            }
            Decider::Laya(_) | Decider::Pointer(_) => {
                let inputs = MarkedInputs::from_request(request, &asked, decider)?;
                self.compute(&Arc::new(inputs), ModelTask::Decide(Wanted::TOKENS), truncation).await?
            }
        };
        let mut decisions = Vec::with_capacity(outputs.len());
        for (asked, output) in asked.iter().zip(&outputs) {
            let temperature = self.decision_temperature(asked.question);
            decisions.push(decider.read_decision(asked.question, output, temperature)?);
        }
        let reversed = decisions.split_off(request.questions.len());
        let mut reversed = reversed.iter();
        for (question, decision) in request.questions.iter().zip(&mut decisions) {
            if request.asks_twice(question)
                && let Some(other) = reversed.next()
            {
                *decision = decision.mean_with_reversed(other);
            }
        }
        Ok(Answer { value: decisions, cost })
    }

    async fn decide_by_options(
        &self,
        reranker: &Reranker,
        request: DecisionRequest,
    ) -> Result<Answer<Vec<Decision>>, Failed> {
        let DecisionRequest { state, questions, .. } = request;
        let counts: Vec<usize> = questions.iter().map(Question::count_options).collect();
        let temperatures: Vec<f64> = questions.iter().map(|it| self.decision_temperature(it)).collect();
        let (got, max) = (counts.iter().sum::<usize>(), self.config.max_rerank_texts);
        if got > max {
            return Err(Error::Validation(format!(
                "`questions` has {got} options in all: this model is a re-ranker, which reads a prompt for each \
                 option, and at most {max} are read (`--max-rerank-texts`)"
            ))
            .into());
        }
        check_repeated(&state, &questions)?;
        let takes_instruction = match &reranker.reading {
            Reading::Template(template) => template.has_instruction(),
            Reading::Joined => false,
        };
        let inputs = Arc::new(ScoreRequest {
            instruction: takes_instruction.then(|| OPTION_INSTRUCTION.to_owned()),
            queries: questions.iter().flat_map(Question::option_queries).collect(),
            documents: vec![state.into_text()],
            ..ScoreRequest::default()
        });
        let admitted = self.admit_request(self.max_tokens(inputs.as_ref()), 0).await?;
        let scores = self.raw_scores(&admitted, &inputs, self.uncut_truncation());
        let (scores, cost) = self.in_time(&admitted, scores).await?;
        let mut logits = scores.iter().map(|score| f64::from(score.raw));
        let decisions = counts.iter().zip(temperatures).map(|(&count, temperature)| {
            let logits: Vec<f64> = logits.by_ref().take(count).collect();
            Decision::from_logits(&logits, temperature)
        });
        Ok(Answer { value: decisions.collect(), cost })
    }

    /// The divisor of the logits of a question, from `--calibration`.
    fn decision_temperature(&self, question: &Question) -> f64 {
        let calibration = self.config.calibration.as_ref();
        let Some(fitted) = calibration.and_then(|calibration| calibration.decisions) else { return 1.0 };
        match question.kind {
            QuestionKind::Choice(_) => fitted.choice,
            QuestionKind::Score(_) => fitted.score,
            QuestionKind::Noul { .. } => fitted.noul,
        }
    }

    /// How the model decides; otherwise the error of a request to decide.
    fn how_it_decides(&self) -> Result<Deciding<'_>, Error> {
        self.check_single_stage()?;
        self.config.model.how_it_decides().ok_or_else(|| self.other_kind("model is not a decider"))
    }

    /// A text that does not fit is refused, because a decision about a part of it would look like one about
    /// all of it.
    fn uncut_truncation(&self) -> Truncation {
        Truncation { truncate: false, ..self.truncation(Some(false), TruncationDirection::Right) }
    }
}

/// Refuses a text and instructions that are too long to be read once for each option.
fn check_repeated(state: &str, questions: &[Question]) -> Result<(), Error> {
    let bytes = questions.iter().map(|it| it.count_options() * (state.len() + it.instructions.len()));
    let got: usize = bytes.sum();
    if got <= MAX_REPEATED_BYTES {
        return Ok(());
    }
    Err(Error::Validation(format!(
        "this model is a re-ranker, which reads the text and the instructions once for each option: here that \
         is {got} bytes, and at most {MAX_REPEATED_BYTES} are read; send a shorter text, or fewer options"
    )))
}

/// A question in one order of its options.
struct AskedQuestion<'a> {
    question: &'a Question,
    /// Whether its options are listed last to first.
    is_reversed: bool,
}

impl DecisionRequest {
    /// The questions in their order, then those that are asked again.
    fn all_asked(&self) -> Vec<AskedQuestion<'_>> {
        let first = self.questions.iter().map(|question| AskedQuestion { question, is_reversed: false });
        let again = self.questions.iter().filter(|question| self.asks_twice(question));
        first.chain(again.map(|question| AskedQuestion { question, is_reversed: true })).collect()
    }

    /// Whether a question is asked again with its options in the opposite order.
    fn asks_twice(&self, question: &Question) -> bool {
        let several = matches!(&question.kind, QuestionKind::Choice(options) if options.len() > 1);
        self.both_orders && several
    }
}

impl Question {
    fn count_options(&self) -> usize {
        match &self.kind {
            QuestionKind::Choice(options) => options.len(),
            QuestionKind::Score(levels) => levels.len(),
            QuestionKind::Noul { .. } => 2,
        }
    }
}

impl Decider {
    /// The decision from the logits of all labels, or of the marked tokens.
    fn read_decision(
        &self,
        question: &Question,
        output: &Output,
        temperature: f64,
    ) -> Result<Decision, Error> {
        let logits: Option<Vec<f64>> = match self {
            Self::Labels(decider) => {
                let places = decider.labels.label_places(question.label_kind());
                output.whole.get(places).map(|found| found.iter().copied().map(f64::from).collect())
            }
            Self::Laya(decider) => decider.option_logits(question, output),
            Self::Pointer(decider) => decider.option_logits(question, output),
        };
        let logits = logits.ok_or_else(|| Error::Inference("the backend left answers out".to_owned()))?;
        if logits.iter().all(|logit| logit.is_finite()) {
            Ok(Decision::from_logits(&logits, temperature))
        } else {
            Err(Error::MissingValues)
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::service::{ServiceConfig, testing::fixture_with};
    use text_embeddings_backend_core::{AnswerTokens, Head};

    fn choice(instructions: &str, options: usize) -> Question {
        let options =
            (0..options).map(|index| QuestionOption { name: format!("w{index}"), description: None });
        let (place, kind) = ("q".to_owned(), QuestionKind::Choice(options.collect()));
        Question { place, instructions: instructions.into(), kind }
    }

    #[tokio::test]
    async fn a_re_ranker_does_not_read_a_long_text_once_for_each_of_many_options() {
        let change = |config: &mut ServiceConfig| {
            Arc::make_mut(&mut config.model).head = Head::answers(AnswerTokens::difference(1, Some(2)));
        };
        let service = fixture_with(1000, change).service;
        let long = "w300 ".repeat(1 << 18);
        for (state, instructions) in [(long.as_str(), "w1"), ("w1", &long)] {
            let questions = vec![choice(instructions, 16)];
            let request = DecisionRequest { state: state.into(), questions, both_orders: false };
            let error = service.decide(request).await.unwrap_err().to_string();
            assert!(error.contains("the text and the instructions once for each option"), "{error}");
        }
        let request =
            DecisionRequest { state: "w1".into(), questions: vec![choice("w2", 16)], both_orders: false };
        assert_eq!(service.decide(request).await.unwrap().value[0].probabilities.len(), 16);
    }
}
