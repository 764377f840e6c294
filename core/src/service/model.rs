//! What is known of the served model beside its kind: its labels, its prompts, the length of its vectors.
//!
//! Input: what start-up read off the model's files. Output: the words and numbers in which requests are checked and
//! answered. What must hold: a prompt that a request names is one of the model's, or an error that lists them.

use super::Service;
use crate::{
    error::{Error, NOT_A_RERANKER, NOT_AN_EMBEDDING_MODEL},
    families::ScoreRule,
};
use std::collections::BTreeMap;
use text_embeddings_backend_core::ModelType;

/// What the model's files say of its answers and prompts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServedModel {
    /// The label of each class of a classification head; `["yes"]` for a generative re-ranker; none for an embedding
    /// model.
    pub labels: Vec<String>,
    /// Of a re-ranker with two classes the one that means "relevant". Its raw score is this class's logit less the
    /// other's, so that its sigmoid is the class's softmax.
    pub positive: Option<usize>,
    /// What a re-ranker's default score is of its raw one.
    pub score: ScoreRule,
    /// The prompts of an embedding model.
    pub prompts: Prompts,
    /// The length of an embedding model's vectors.
    pub dimensions: usize,
    /// Whether an embedding model that is not SPLADE gives sparse vectors, too, as bge-m3 does.
    pub is_lexical: bool,
    /// The ids of tokens that stand for no part of a text, which have no place in such a model's sparse vectors.
    pub empty_tokens: Vec<u32>,
}

/// The prompts that can be put before an embedded text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompts {
    /// Prompts by name.
    pub named: BTreeMap<String, String>,
    /// What is put before the texts of requests that name none; may be empty.
    pub default: String,
}

impl Prompts {
    /// The prompt of a name.
    ///
    /// # Errors
    ///
    /// If there is none: what is wrong, and which names there are.
    pub fn find(&self, name: &str) -> Result<&str, String> {
        self.named.get(name).map(String::as_str).ok_or_else(|| {
            let names: Vec<_> = self.named.keys().map(|name| format!("`{name}`")).collect();
            let known = if names.is_empty() { "no prompts".to_owned() } else { names.join(", ") };
            format!("`{name}` is unknown: this model has {known}")
        })
    }
}

/// In the words of text-embeddings-inference, which names its flag here, and then the field that the client sent.
fn unknown_prompt(name: &str, prompts: &Prompts) -> Error {
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
    /// The raw score of a re-ranker's pair, from its logits, one for each class.
    ///
    /// # Errors
    ///
    /// [`Error::MissingValues`] if it is not a number.
    pub fn relevance(&self, logits: &[f32]) -> Result<f32, Error> {
        let raw = match self.positive {
            Some(class) => logits[class] - logits[1 - class],
            None => logits[0],
        };
        if raw.is_nan() { Err(Error::MissingValues) } else { Ok(raw) }
    }

    /// The label of a class, numbered as transformers does where there is none.
    pub(super) fn label(&self, class: usize) -> String {
        self.labels.get(class).cloned().unwrap_or_else(|| format!("LABEL_{class}"))
    }
}

impl Service {
    /// The prompt that a request names, else the server's default; none if there is neither.
    pub(super) fn prompt(&self, name: Option<&str>) -> Result<Option<&str>, Error> {
        let prompts = &self.config.model.prompts;
        match name {
            None => Ok(Some(prompts.default.as_str()).filter(|prompt| !prompt.is_empty())),
            Some(name) => prompts.find(name).map(Some).map_err(|_| unknown_prompt(name, prompts)),
        }
    }

    /// Refuses what only a re-ranker can answer if the model is none.
    pub(super) fn require_reranker(&self) -> Result<(), Error> {
        match self.config.model_type {
            ModelType::Reranker | ModelType::ListwiseReranker => Ok(()),
            ModelType::Embedding(_) | ModelType::Classifier => Err(NOT_A_RERANKER),
        }
    }

    /// Refuses what only an embedding model can answer if the model is none.
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

    #[test]
    fn the_relevance_of_two_labels_is_the_positive_logit_less_the_other() {
        let model = |positive| ServedModel { positive, ..ServedModel::default() };
        for (positive, logits, wanted) in [
            (None, &[1.5][..], Ok(1.5)),
            (Some(0), &[1.5, -2.0], Ok(3.5)),
            (Some(1), &[1.5, -2.0], Ok(-3.5)),
            (Some(1), &[f32::INFINITY, f32::INFINITY], Err(Error::MissingValues)),
        ] {
            assert_eq!(model(positive).relevance(logits), wanted);
        }
    }
}
