//! The text that a decider reads for a question, after the text that the question is about.
//!
//! Input: a question, and the labels of its options. Output: lines; the first begins with two ASCII
//! characters. What must hold: the form is the first version of the prompt of `SGLang`'s
//! `serving_decisions.py`, so that two servers can be compared.

use super::{Question, QuestionKind, QuestionOption};
use crate::tokenization::LabelTokens;

/// A re-ranker's instruction.
pub(super) const OPTION_INSTRUCTION: &str = "Given a question about the document and a candidate answer, judge whether the document supports that the \
     candidate answer is the right one";

impl Question {
    /// The lines of a prompt that lists the options. With `is_reversed`, the options of a choice are listed
    /// last to first.
    pub fn prompt_text(&self, labels: &LabelTokens, is_reversed: bool) -> String {
        let mut lines = self.first_line();
        let last = match &self.kind {
            QuestionKind::Choice(options) => {
                for place in 0..options.len() {
                    let option = &options[if is_reversed { options.len() - 1 - place } else { place }];
                    let label = labels.option_label(place, options.len());
                    lines.push(format!("{label}: {}", option.option_text()));
                }
                "Answer with the letter of one option only."
            }
            QuestionKind::Score(levels) => {
                lines.extend(levels.iter().enumerate().map(|(index, level)| format!("{index}: {level}")));
                "Answer with the number of one level only."
            }
            QuestionKind::Noul { yes, no } => {
                for (label, text) in [("yes", yes), ("no", no)] {
                    lines.extend(text.as_ref().map(|text| format!("{label}: {text}")));
                }
                "Answer with yes or no only."
            }
        };
        lines.push(last.to_owned());
        lines.join("\n")
    }

    /// A re-ranker's query for each option.
    pub(super) fn option_queries(&self) -> Vec<String> {
        let answers: Vec<String> = match &self.kind {
            QuestionKind::Choice(options) => options.iter().map(QuestionOption::option_text).collect(),
            QuestionKind::Score(levels) => levels.iter().map(ToString::to_string).collect(),
            QuestionKind::Noul { yes, no } => [("yes", yes), ("no", no)]
                .map(|(label, text)| match text {
                    Some(text) => format!("{label} - {text}"),
                    None => label.to_owned(),
                })
                .into(),
        };
        let mut queries = Vec::with_capacity(answers.len());
        for answer in answers {
            let mut lines = self.first_line();
            lines.push(format!("Candidate answer: {answer}"));
            queries.push(lines.join("\n"));
        }
        queries
    }

    /// The line with the instructions, if there is one.
    fn first_line(&self) -> Vec<String> {
        let instructions: &str = &self.instructions;
        match (&self.kind, instructions.is_empty()) {
            (QuestionKind::Noul { .. }, true) => vec!["Is the following true?".to_owned()],
            (QuestionKind::Noul { .. }, false) => vec![format!("Is the following true? {instructions}")],
            (_, true) => Vec::new(),
            (_, false) => vec![format!("Question: {instructions}")],
        }
    }
}

impl QuestionOption {
    fn option_text(&self) -> String {
        match &self.description {
            Some(description) => format!("{} - {description}", self.name),
            None => self.name.clone(),
        }
    }
}
