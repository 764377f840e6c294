//! The reasons why a model is not served, at the start. Each names a file or flag, and the remedy.

use std::fmt::Display;
use std::path::Path;

use crate::families::{self, BUILTIN};
use crate::files::FilesError;
use crate::tokenization::EncoderError;

/// A model that cannot be served, or not with these flags.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// A file is not supported.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The tokenizer does not fit the prompt or the answers.
    #[error(transparent)]
    Encoder(#[from] EncoderError),
    /// Its kind is unclear, or a flag does not fit its kind, its length, the backend or the device.
    #[error("{0}")]
    Kind(String),
    /// An instruction is missing, or the model's prompt has no place for it or for the files' prompt.
    #[error("{0}")]
    Instruction(String),
    /// Any other reason.
    #[error("{0}")]
    Other(String),
}

impl Refusal {
    /// The refusal of the file that `--chat-template` names.
    pub fn template_file(path: &Path, cause: &impl Display) -> Self {
        let names = families::ALL.iter().map(|family| family.name);
        let names: Vec<_> = [BUILTIN].into_iter().chain(names).collect();
        let (path, names) = (path.display(), names.join(", "));
        Self::Other(format!("`--chat-template {path}`: give a Jinja file, or one of {names}: {cause}"))
    }

    /// The refusal of the repository's chat template, which is at `place`.
    pub(super) fn chat_template(place: &str, cause: &impl Display) -> Self {
        Self::Other(format!("the repository's chat template ({place}): {cause}"))
    }

    /// The refusal of the file that `--calibration` names.
    pub fn calibration(path: &Path, problem: &impl Display) -> Self {
        Self::Other(format!("`--calibration {}`: {problem}", path.display()))
    }

    /// The part of the model that is refused, in the words of `verify`: `kind`, `answers`, `template` or
    /// `prompt`.
    pub fn part(&self) -> &'static str {
        match self {
            Self::Encoder(
                EncoderError::AnswerId { .. }
                | EncoderError::AnswerToken { .. }
                | EncoderError::SameAnswers { .. },
            ) => "answers",
            Self::Instruction(_) => "prompt",
            Self::Kind(_) => "kind",
            Self::Files(_) | Self::Encoder(_) | Self::Other(_) => "template",
        }
    }
}
