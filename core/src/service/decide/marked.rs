//! Decisions by Laya, which reads a question, its options behind markers, and the text.
//!
//! Input: questions. Output: the texts that the model reads for them, and the logits of its markers. What
//! must hold: the authors' package writes the same texts (`laya/common.py`, `render_options`).

use text_embeddings_backend_core::Output;

use super::{AskedQuestion, DecisionRequest, DecisionText, Question, QuestionKind, QuestionOption};
use crate::{
    error::Error,
    model::{Decider, Laya},
    service::task::Inputs,
    tokenization::{Input, MarkedQuestion},
};

/// The most bytes of all texts as lines.
const MAX_LINE_BYTES: usize = 8 << 20;

/// The questions of a request about its text.
pub(super) struct MarkedInputs {
    pub(super) state: String,
    pub(super) questions: Vec<MarkedQuestion>,
}

impl MarkedInputs {
    /// The texts as the decider's authors write them.
    pub(super) fn from_request(
        request: &DecisionRequest,
        asked: &[AskedQuestion<'_>],
        decider: &Decider,
    ) -> Result<Self, Error> {
        let is_pointer = matches!(decider, Decider::Pointer(_));
        if is_pointer {
            check_lines(request)?;
        }
        let state = if is_pointer { request.state.flat_text() } else { request.state.spaced_text() };
        let mut questions = Vec::with_capacity(asked.len());
        for AskedQuestion { question, is_reversed } in asked {
            questions.push(match decider {
                Decider::Pointer(_) => question.pointed_question(*is_reversed),
                Decider::Laya(_) | Decider::Labels(_) => question.marked_question(*is_reversed),
            });
        }
        Ok(Self { state, questions })
    }
}

/// Refuses values so deep in each other that their lines would take far more memory than the request.
fn check_lines(request: &DecisionRequest) -> Result<(), Error> {
    let mut got = request.state.count_flat_bytes();
    for question in &request.questions {
        got += question.instructions.count_flat_bytes();
        got += match &question.kind {
            QuestionKind::Choice(options) => options
                .iter()
                .filter_map(|it| it.description.as_ref())
                .map(DecisionText::count_flat_bytes)
                .sum(),
            QuestionKind::Score(levels) => levels.iter().map(DecisionText::count_flat_bytes).sum::<usize>(),
            QuestionKind::Noul { yes, no } => {
                [yes, no].into_iter().flatten().map(DecisionText::count_flat_bytes).sum()
            }
        };
    }
    if got <= MAX_LINE_BYTES {
        return Ok(());
    }
    Err(Error::Validation(format!(
        "the texts are {got} bytes as lines, which this model reads, and at most {MAX_LINE_BYTES} are read: send \
         less, or values that are not so deep in each other"
    )))
}

impl Inputs for MarkedInputs {
    fn count(&self) -> usize {
        self.questions.len()
    }

    fn input(&self, index: usize) -> Input<'_> {
        Input::Question { state: &self.state, question: &self.questions[index] }
    }

    fn have_one_query(&self) -> bool {
        true
    }
}

impl Question {
    /// The question as Laya reads it. With `is_reversed`, the options of a choice are listed last to first.
    pub fn marked_question(&self, is_reversed: bool) -> MarkedQuestion {
        let (kind, name) = self.laya_type();
        let mut options: Vec<String> = match &self.kind {
            QuestionKind::Choice(options) => options.iter().map(QuestionOption::described_name).collect(),
            QuestionKind::Score(levels) => {
                let levels = levels.iter().enumerate();
                levels.map(|(index, level)| format!("level {index}: {}", level.spaced_text())).collect()
            }
            QuestionKind::Noul { yes, no } => vec![
                format!("false: {}", given_text(no.as_ref(), "no, the statement does not hold")),
                format!("true: {}", given_text(yes.as_ref(), "yes, the statement holds")),
            ],
        };
        if is_reversed {
            options.reverse();
        }
        MarkedQuestion {
            kind,
            text: format!("{name} question: {}", self.instructions.spaced_text()),
            options,
        }
    }

    /// The number and the name of its type.
    fn laya_type(&self) -> (u32, &'static str) {
        match self.kind {
            QuestionKind::Choice(_) => (0, "choice"),
            QuestionKind::Score(_) => (1, "score"),
            QuestionKind::Noul { .. } => (2, "noul"),
        }
    }
}

impl QuestionOption {
    fn described_name(&self) -> String {
        match &self.description {
            Some(description) if !description.is_empty() => {
                format!("{}: {}", self.name, description.spaced_text())
            }
            _ => self.name.clone(),
        }
    }
}

fn given_text(text: Option<&DecisionText>, default: &str) -> String {
    match text {
        Some(text) if !text.is_empty() => text.spaced_text(),
        _ => default.to_owned(),
    }
}

impl Laya {
    /// The logits of a question's options in the order of its decision; absent if the backend gave another
    /// number.
    pub(super) fn option_logits(&self, question: &Question, output: &Output) -> Option<Vec<f64>> {
        let count = question.count_options();
        let (number, name) = question.laya_type();
        let temperature = self.find_temperature(number, name, count);
        let logits = output.tokens.values.iter().map(|logit| f64::from(*logit) / temperature);
        let mut logits: Vec<f64> = logits.collect();
        if let QuestionKind::Noul { .. } = question.kind {
            // The model reads false before true.
            logits.reverse();
        }
        (logits.len() == count).then_some(logits)
    }
}
