//! The model that is served, and its limits, as both transports describe them.
//!
//! Input: the configuration, and the details of the model. Output: [`Info`], which a transport puts into its
//! own form.

use std::fmt;

use text_embeddings_backend_core::{ModelType, Pool};

use crate::config::Config;

/// The answer to requests about the server itself.
#[derive(Debug, Clone)]
pub(crate) struct Info {
    /// How the model is served.
    pub(crate) config: Config,
    /// The details of the model.
    pub(crate) model: ModelDetails,
    /// This server's version.
    pub(crate) version: &'static str,
    /// The commit it was built from, if the build knew it.
    pub(crate) sha: Option<&'static str>,
    /// The label of its container image, if the build knew it.
    pub(crate) docker_label: Option<&'static str>,
}

/// The details of the model that are not in its [`Config`].
#[derive(Debug, Clone, Default)]
pub(crate) struct ModelDetails {
    /// The commit on the Hub; absent for a local folder.
    pub(crate) sha: Option<String>,
    /// The value of `model_dtype`, as TEI has it: `float16` if the flag asks for it, otherwise the
    /// arithmetic.
    pub(crate) dtype: String,
    /// The arithmetic in use.
    pub(crate) arithmetic: String,
    /// The backend that computes: `candle`, `ort` or `python`.
    pub(crate) backend: &'static str,
    /// The files that the weights come from, their format, and the types that they store.
    pub(crate) weights: String,
    /// The CPU's vector instructions in use; absent if another device computes.
    pub(crate) instruction_set: Option<String>,
    /// The most bytes of the prefix cache; 0 without one.
    pub(crate) prefix_cache_bytes: usize,
    /// The classes in order; for a generative re-ranker `["yes"]`.
    pub(crate) labels: Vec<String>,
    /// The instruction of requests without one.
    pub(crate) default_instruction: Option<String>,
    /// The function that sentence-transformers applies to a re-ranker's raw score, such as `identity`.
    pub(crate) score_activation: Option<String>,
    /// The settings that decide a re-ranker's scores.
    pub(crate) reranker: Option<RerankerDetails>,
}

/// The settings that decide a re-ranker's scores, each with its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RerankerDetails {
    /// The family, if it belongs to one.
    pub(crate) family: Option<String>,
    /// The reason why it belongs to this family.
    pub(crate) family_reason: Option<String>,
    /// Where the prompt comes from.
    pub(crate) prompt: String,
    /// A generative re-ranker's answers, and where they come from.
    pub(crate) answers: Option<String>,
    /// The number of layers after which a layer-wise re-ranker scores; absent for other models.
    pub(crate) cutoff_layers: Option<usize>,
    /// Whether a document's score depends on the other documents of its request.
    pub(crate) scores_depend_on_request: bool,
    /// How scores follow from raw scores, such as `sigmoid(x/5)`.
    pub(crate) score: String,
    /// The source of that rule.
    pub(crate) score_reason: String,
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
                "documents of a request are read together and compared by their vectors, so that a score \
                 depends on the others; ",
            )?;
        }
        write!(f, "scores are {} of the raw score x, by {}", self.score, self.score_reason)
    }
}

impl Info {
    /// The answer for a model with this configuration.
    pub(crate) fn new(config: Config, model: ModelDetails) -> Self {
        Self {
            config,
            model,
            version: env!("CARGO_PKG_VERSION"),
            sha: COMMIT,
            docker_label: option_env!("DOCKER_LABEL"),
        }
    }

    /// The kind of model in a word. TEI calls a `listwise-reranker` a re-ranker, too.
    pub(crate) fn model_kind(&self) -> &'static str {
        match self.config.model_type {
            ModelType::Embedding(_) => "embedding",
            ModelType::Classifier => "classifier",
            ModelType::Reranker => "reranker",
            ModelType::ListwiseReranker => "listwise-reranker",
        }
    }
}

/// The commit that this program was built from, if the build knew it.
pub(crate) const COMMIT: Option<&str> = option_env!("ROUTER_COMMIT");

/// The program with its version, and with the commit if the build knew it.
pub(crate) const PROGRAM: &str = concat!("text-embeddings-router ", env!("ROUTER_VERSION"));

/// A way of pooling as TEI's answers name it: as on the command line, but for `last_token`.
pub(crate) fn pooling(pool: Pool) -> String {
    pool.to_string().replace('-', "_")
}
