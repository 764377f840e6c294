//! Decisions by deciders of the family any2jev, which read a text, then a question with its options between
//! tokens.
//!
//! Input: questions. Output: the texts that the model reads for them, and logits from the vectors of its
//! marked tokens. What must hold: the authors' package writes the same texts (`any2jev/schema.py`).

use text_embeddings_backend_core::Output;

use super::{DecisionText, Question, QuestionKind};
use crate::{model::Pointer, tokenization::MarkedQuestion};

impl Question {
    /// The question as any2jev reads it. With `is_reversed`, the options of a choice are listed last to
    /// first.
    pub fn pointed_question(&self, is_reversed: bool) -> MarkedQuestion {
        let mut options: Vec<String> = match &self.kind {
            QuestionKind::Choice(options) => options
                .iter()
                .map(|option| labelled_option(&option.name, option.description.as_ref()))
                .collect(),
            QuestionKind::Score(levels) => levels.iter().map(DecisionText::flat_text).collect(),
            QuestionKind::Noul { yes, no } => {
                vec![labelled_option("no", no.as_ref()), labelled_option("yes", yes.as_ref())]
            }
        };
        if is_reversed {
            options.reverse();
        }
        MarkedQuestion { kind: 0, text: self.instructions.flat_text(), options }
    }
}

fn labelled_option(name: &str, description: Option<&DecisionText>) -> String {
    match description {
        Some(description) if !description.is_empty() => format!("{name}: {}", description.flat_text()),
        _ => name.to_owned(),
    }
}

impl Pointer {
    /// The logits of a question's options in the order of its decision; absent if the backend gave another
    /// number. Each marked token has a vector of an option, then one of the end.
    pub(super) fn option_logits(&self, question: &Question, output: &Output) -> Option<Vec<f64>> {
        let vectors: Vec<&[f32]> = output.tokens.values.chunks_exact(2 * self.size).collect();
        let (end, options) = vectors.split_last()?;
        let end = &end[self.size..];
        let divisor = (self.size as f64).sqrt() * self.temperature;
        let mut logits: Vec<f64> = options
            .iter()
            .map(|option| {
                let products = option.iter().zip(end).map(|(one, other)| f64::from(*one) * f64::from(*other));
                products.sum::<f64>() / divisor
            })
            .collect();
        if let QuestionKind::Noul { .. } = question.kind {
            // The model reads no before yes.
            logits.reverse();
        }
        (logits.len() == question.count_options()).then_some(logits)
    }
}
