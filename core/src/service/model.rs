//! The demands of a request on the model: the right kind, and a prompt of this name.
//!
//! Input: a request. Output: the part of the [`Model`](crate::model::Model) that answers it. What must hold:
//! a prompt that a request names is one of the model's, or an error lists them.

use super::{EmbedEncoding, Service, scoring::RawScore};
use std::sync::atomic::{AtomicBool, Ordering};
use text_embeddings_backend_core::{ModelType, Pool};

use crate::{
    error::Error,
    model::{CosineRanking, EmbeddingModel, Prompts, Reranker},
};

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

/// How a model scores pairs of a query and a document.
#[derive(Debug, Clone, Copy)]
pub(super) enum PairScoring<'a> {
    /// It reads both together.
    Reranker(&'a Reranker),
    /// It gives each a vector.
    Cosine(&'a CosineRanking),
}

impl PairScoring<'_> {
    pub(super) fn score_probability(self, raw: RawScore) -> f32 {
        match self {
            Self::Reranker(model) => model.score.value.probability(raw.per_vector),
            Self::Cosine(_) => CosineRanking::SCORE.probability(raw.per_vector),
        }
    }

    /// The score by the model's rule.
    pub(super) fn default_score(self, raw: RawScore) -> f32 {
        match self {
            Self::Reranker(model) => model.default_score(raw.raw, raw.per_vector),
            Self::Cosine(_) => CosineRanking::SCORE.apply(raw.per_vector),
        }
    }
}

impl Service {
    /// The prompt that a request names, or else the server's default; `None` if there is neither.
    pub(super) fn prompt(&self, name: Option<&str>) -> Result<Option<&str>, Error> {
        let prompts = self.config.model.prompts();
        match name {
            None if prompts.default.is_empty() => Ok(None),
            None => Ok(Some(&prompts.default)),
            Some(name) => prompts.find(name).map(Some).map_err(|_| unknown_prompt(name, prompts)),
        }
    }

    /// The prompt for inputs that are encoded in this way. A name has priority over a type.
    pub(super) fn embed_prompt(&self, encoding: &EmbedEncoding) -> Result<Option<&str>, Error> {
        match (encoding.input_type, &encoding.prompt_name) {
            (Some(input_type), None) => {
                let prompt = self.config.model.prompts().for_input_type(input_type);
                Ok(if prompt.is_empty() { None } else { Some(prompt) })
            }
            (_, name) => self.prompt(name.as_deref()),
        }
    }

    /// The model, if it is a re-ranker; otherwise the error of a request to one.
    pub(super) fn reranker(&self) -> Result<&Reranker, Error> {
        self.config.model.reranker().ok_or_else(|| self.other_kind("model is not a re-ranker model"))
    }

    /// How the model scores pairs; otherwise the error of a request to a re-ranker.
    pub(super) fn pair_scoring(&self) -> Result<PairScoring<'_>, Error> {
        let model = &self.config.model;
        let cosine = model.cosine_ranking().map(PairScoring::Cosine);
        cosine.map_or_else(|| self.reranker().map(PairScoring::Reranker), Ok)
    }

    /// The model, if it is an embedding model; otherwise the error of a request to one.
    pub(super) fn embedder(&self) -> Result<&EmbeddingModel, Error> {
        self.config.model.embedder().ok_or_else(|| self.other_kind("Model is not an embedding model"))
    }

    /// Whether the model was trained so that vectors can be cut to this length, as far as its files say. If
    /// not, the log says so once.
    pub(super) fn is_trained_for(&self, length: usize) -> bool {
        static IS_SAID: AtomicBool = AtomicBool::new(false);
        let trained = self.embedder().map_or(&[][..], |model| &model.trained_lengths);
        if trained.is_empty() || length == self.config.dimensions || trained.contains(&length) {
            return true;
        }
        if !IS_SAID.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "a request wants vectors of {length} values, and the model was trained to be cut to {trained:?} \
                 (`matryoshka_dimensions` of config.json): such vectors compare worse (said once)"
            );
        }
        false
    }

    /// The error of a request that this kind of model does not answer.
    pub(super) fn other_kind(&self, problem: &'static str) -> Error {
        let reads_apart = self.config.model.reranker().is_some_and(|model| model.late.is_some());
        let advice = match self.config.model.model_type() {
            ModelType::Reranker if reads_apart => {
                "it is a late-interaction re-ranker: POST /rerank, or /embed_all for the vectors of tokens"
            }
            ModelType::Embedding(Pool::Splade) => "it is a SPLADE model: POST /embed_sparse",
            ModelType::Embedding(_) => "it is an embedding model: POST /embed",
            ModelType::Classifier => "it is a classifier: POST /predict",
            ModelType::Reranker | ModelType::ListwiseReranker => "it is a re-ranker: POST /rerank",
            ModelType::Decider => "it is a decider: POST /v1/decisions",
        };
        Error::ModelType { problem, advice }
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
