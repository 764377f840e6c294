//! What is served, and within which limits, as both transports tell it.
//!
//! Input: the configuration, and what start-up learned of the model. Output: [`Info`], which a transport puts into its
//! own form.

use std::fmt;

use text_embeddings_backend_core::{ModelType, Pool};
use tokenizers::Tokenizer;

use crate::{
    config::Config,
    startup::reranker::{Prompt, Resolved},
};

/// The answer to who asks what this server is.
#[derive(Debug, Clone)]
pub(crate) struct Info {
    /// How the model is served.
    pub(crate) config: Config,
    /// What the model's files say.
    pub(crate) model: ModelDetails,
    /// This server's version.
    pub(crate) version: &'static str,
    /// The commit it was built from, if the build knew it.
    pub(crate) sha: Option<&'static str>,
    /// The label of its container image, if the build knew it.
    pub(crate) docker_label: Option<&'static str>,
}

/// What start-up learns of the model beside its [`Config`].
#[derive(Debug, Clone, Default)]
pub(crate) struct ModelDetails {
    /// The commit on the Hub; none for a local folder.
    pub(crate) sha: Option<String>,
    /// What `model_dtype` says, in TEI's words: `float16` where the flag asks for it, else the arithmetic.
    pub(crate) dtype: String,
    /// The arithmetic in force.
    pub(crate) arithmetic: String,
    /// The backend that computes: `candle`, `ort` or `python`.
    pub(crate) backend: &'static str,
    /// The files that the weights come from, their format, and the types that they store.
    pub(crate) weights: String,
    /// The CPU's vector instructions in use; none where it does not compute.
    pub(crate) instruction_set: Option<String>,
    /// The most bytes kept of prefixes; 0 where none are.
    pub(crate) prefix_cache_bytes: usize,
    /// The classes in order; for a generative re-ranker `["yes"]`.
    pub(crate) labels: Vec<String>,
    /// The instruction in force where a request has none.
    pub(crate) default_instruction: Option<String>,
    /// What sentence-transformers applies to a re-ranker's raw score, such as `identity`.
    pub(crate) score_activation: Option<String>,
    /// What decides a re-ranker's scores.
    pub(crate) reranker: Option<RerankerDetails>,
}

/// What decides a re-ranker's scores, each with what says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RerankerDetails {
    /// The family, if it is of one.
    pub(crate) family: Option<String>,
    /// What says that it is of this family.
    pub(crate) family_reason: Option<String>,
    /// Where the prompt comes from.
    pub(crate) prompt: String,
    /// A generative re-ranker's answers, and where they come from.
    pub(crate) answers: Option<String>,
    /// Layers gone through before a layer-wise re-ranker scores; none for other models.
    pub(crate) cutoff_layers: Option<usize>,
    /// Whether a document's score depends on the other documents of its request.
    pub(crate) scores_depend_on_request: bool,
    /// What scores are of raw ones, such as `sigmoid(x/5)`.
    pub(crate) score: String,
    /// What says so.
    pub(crate) score_reason: String,
}

impl RerankerDetails {
    /// The words for what start-up resolved.
    pub(crate) fn new(resolved: &Resolved, tokenizer: &Tokenizer) -> Self {
        let (family, family_reason) =
            resolved.family.as_ref().map(|(family, reason)| (family.name.to_owned(), reason.clone())).unzip();
        let token = |id: u32| format!("`{}` ({id})", tokenizer.id_to_token(id).unwrap_or_default());
        let answers = resolved.answers.as_ref().map(|(answers, origin)| {
            let no = answers.false_id.map(|id| format!(" less {}", token(id)));
            format!("{}{}, by {origin}", token(answers.true_id), no.unwrap_or_default())
        });
        Self {
            family,
            family_reason,
            prompt: resolved.prompt.1.clone(),
            answers,
            cutoff_layers: resolved.cutoff_layers,
            scores_depend_on_request: matches!(resolved.prompt.0, Prompt::Listwise(_)),
            score: resolved.score.0.to_string(),
            score_reason: resolved.score.1.clone(),
        }
    }
}

impl fmt::Display for RerankerDetails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.family, &self.family_reason) {
            (Some(family), Some(reason)) => write!(f, "The re-ranker is of the family {family}: {reason}; ")?,
            _ => f.write_str("The re-ranker is of no known family; ")?,
        }
        write!(f, "the prompt is {}; ", self.prompt)?;
        if let Some(answers) = &self.answers {
            write!(f, "raw scores are the logit of {answers}; ")?;
        }
        if let Some(layers) = self.cutoff_layers {
            write!(f, "it scores after {layers} layers; ")?;
        }
        if self.scores_depend_on_request {
            f.write_str(
                "documents of a request are read together and compared by their vectors, so that a score depends on the others; ",
            )?;
        }
        write!(f, "scores are {} of the raw score x, by {}", self.score, self.score_reason)
    }
}

impl Info {
    /// The answer for a model served as `config` says.
    pub(crate) fn new(config: Config, model: ModelDetails) -> Self {
        Self {
            config,
            model,
            version: env!("CARGO_PKG_VERSION"),
            sha: option_env!("GIT_SHA"),
            docker_label: option_env!("DOCKER_LABEL"),
        }
    }

    /// The kind of model in a word: with `listwise-reranker` for what TEI calls a re-ranker too.
    pub(crate) fn model_kind(&self) -> &'static str {
        match self.config.model_type {
            ModelType::Embedding(_) => "embedding",
            ModelType::Classifier => "classifier",
            ModelType::Reranker => "reranker",
            ModelType::ListwiseReranker => "listwise-reranker",
        }
    }
}

/// A way of pooling as TEI's answers name it: as on the command line, but for `last_token`.
pub(crate) fn pooling(pool: Pool) -> String {
    pool.to_string().replace('-', "_")
}
