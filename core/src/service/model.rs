//! The facts about the served model besides its kind: its labels, its prompts, the length of its vectors.
//!
//! Input: the facts that the start read from the model's files. Output: the data by which requests are
//! checked and answered. What must hold: a prompt that a request names is one of the model's, or an error
//! lists them.

use super::{Service, scoring::RerankScoring};
use crate::{
    error::{Error, NOT_A_RERANKER, NOT_AN_EMBEDDING_MODEL},
    families::ScoreRule,
};
use std::collections::BTreeMap;
use text_embeddings_backend_core::{ModelType, Wanted};

/// The facts about answers and prompts in the model's files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServedModel {
    /// The label of each class of a classification head. `["yes"]` for a generative re-ranker; empty for an
    /// embedding model.
    pub labels: Vec<String>,
    /// How a re-ranker scores.
    pub scoring: RerankScoring,
    /// The rule from a re-ranker's raw score to its default score.
    pub score: ScoreRule,
    /// The prompts of an embedding model.
    pub prompts: Prompts,
    /// The length of an embedding model's vectors.
    pub dimensions: usize,
    /// The outputs of an embedding model. SPLADE has sparse weights only, bge-m3 has all three.
    pub outputs: Wanted,
    /// The ids of tokens that do not stand for a part of a text. The sparse vectors of a model that has dense
    /// vectors, too, leave them out.
    pub empty_tokens: Vec<u32>,
}

/// The prompts that can precede an embedded text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompts {
    /// Prompts by name.
    pub named: BTreeMap<String, String>,
    /// The prompt for requests that do not name one; may be empty.
    pub default: String,
}

impl Prompts {
    /// The prompt with this name.
    ///
    /// # Errors
    ///
    /// A message with the problem and the known names, if there is no such prompt.
    pub fn find(&self, name: &str) -> Result<&str, String> {
        self.named.get(name).map(String::as_str).ok_or_else(|| {
            let names: Vec<_> = self.named.keys().map(|name| format!("`{name}`")).collect();
            let known = if names.is_empty() { "no prompts".to_owned() } else { names.join(", ") };
            format!("`{name}` is unknown: this model has {known}")
        })
    }
}

/// The most bytes of a request's `prompt_name` in a message.
const MAX_SHOWN_NAME: usize = 100;

/// The error in the words of text-embeddings-inference, which names its own flag, followed by the request's
/// field.
fn unknown_prompt(name: &str, prompts: &Prompts) -> Error {
    // The message becomes an answer and a line of the log.
    let name = if name.len() > MAX_SHOWN_NAME {
        format!("{}…", &name[..name.floor_char_boundary(MAX_SHOWN_NAME)])
    } else {
        name.to_owned()
    };
    let known: Vec<_> = prompts.named.keys().collect();
    let problem = if known.is_empty() {
        "no prompts were found in the Sentence Transformers configuration".to_owned()
    } else {
        format!("it was not found in the Sentence Transformers prompts. Available prompts: {known:?}")
    };
    Error::Validation(format!(
        "`default-prompt-name` is set to `{name}` but {problem}. The name is the request's `prompt_name`"
    ))
}

impl ServedModel {
    /// The label of a class. A class without a label gets the numbered label of transformers.
    pub(super) fn label(&self, class: usize) -> String {
        self.labels.get(class).cloned().unwrap_or_else(|| format!("LABEL_{class}"))
    }
}

impl Service {
    /// The prompt that a request names, or else the server's default; `None` if there is neither.
    pub(super) fn prompt(&self, name: Option<&str>) -> Result<Option<&str>, Error> {
        let prompts = &self.config.model.prompts;
        match name {
            None => Ok(Some(prompts.default.as_str()).filter(|prompt| !prompt.is_empty())),
            Some(name) => prompts.find(name).map(Some).map_err(|_| unknown_prompt(name, prompts)),
        }
    }

    /// Refuses a request if the model is not a re-ranker.
    pub(super) fn require_reranker(&self) -> Result<(), Error> {
        match self.config.model_type {
            ModelType::Reranker | ModelType::ListwiseReranker => Ok(()),
            ModelType::Embedding(_) | ModelType::Classifier => Err(NOT_A_RERANKER),
        }
    }

    /// Refuses a request if the model is not an embedding model.
    pub(super) fn require_embedding(&self) -> Result<(), Error> {
        match self.config.model_type {
            ModelType::Embedding(_) => Ok(()),
            ModelType::Classifier | ModelType::Reranker | ModelType::ListwiseReranker => {
                Err(NOT_AN_EMBEDDING_MODEL)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Before, a name of 1.9 MB came back whole and was a line of the log.
    #[test]
    fn an_endless_name_of_a_prompt_is_cut_in_the_message() {
        let message = |name: &str| unknown_prompt(name, &Prompts::default()).to_string();
        assert!(message("query").contains("`default-prompt-name` is set to `query` but no prompts"));
        let cut = message(&"é".repeat(1_000_000));
        assert!(cut.contains(&format!("`{}…` but", "é".repeat(50))) && cut.len() < 400, "{cut}");
    }
}
