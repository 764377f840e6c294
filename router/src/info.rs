//! The model that is served, and its limits, as both transports describe them.
//!
//! Output: [`Info`], which a transport puts into its own form.

use text_embeddings_backend_core::{ModelType, Pool};
use text_embeddings_core::{infer::EngineLimits, service::ServiceConfig};

use crate::{args::CascadeArgs, machine::Machine};

/// The answer to requests about the server itself.
#[derive(Debug, Clone)]
pub(crate) struct Info {
    /// The model, as the user named it.
    pub(crate) model_id: String,
    /// The model's name in answers.
    pub(crate) served_model_name: String,
    /// The commit on the Hub; absent for a local folder.
    pub(crate) model_sha: Option<String>,
    /// The model, and the limits on a request.
    pub(crate) config: ServiceConfig,
    /// The limits on batches and on requests in flight.
    pub(crate) limits: EngineLimits,
    /// The threads.
    pub(crate) machine: Machine,
    /// How the model computes.
    pub(crate) computation: Computation,
    /// The hash of a prompt, by which a calibration knows its model; only of models that can have one.
    #[cfg_attr(not(feature = "plain-http"), expect(dead_code, reason = "gRPC's information lacks it"))]
    pub(crate) prompt_hash: Option<String>,
    /// The two models, if it is a cascade.
    pub(crate) cascade: Option<CascadeArgs>,
}

/// How a loaded model computes.
#[derive(Debug, Clone)]
pub(crate) struct Computation {
    /// The backend that computes: `candle`, `ort` or `python`.
    pub(crate) backend: &'static str,
    /// The device that computes, for `x-compute-type`: `cpu`, `cuda` or `metal`.
    pub(crate) device: &'static str,
    /// The value of `model_dtype`, as TEI has it: `float16` if the flag asks for it, otherwise the
    /// arithmetic.
    pub(crate) dtype: String,
    /// The arithmetic in use.
    pub(crate) arithmetic: String,
    /// The files that the weights come from, their format, and the types that they store.
    pub(crate) weights: String,
    /// The CPU's vector instructions in use; absent if another device computes.
    pub(crate) instruction_set: Option<String>,
    /// Whether each compute thread has a CPU of its own.
    pub(crate) pinned_threads: bool,
    /// The most bytes of the prefix cache; 0 without one.
    pub(crate) prefix_cache_bytes: usize,
}

impl Info {
    /// The kind of model in a word. TEI calls a `listwise-reranker` a re-ranker, too.
    pub(crate) fn model_kind(&self) -> &'static str {
        match self.config.model.model_type() {
            ModelType::Embedding(_) => "embedding",
            ModelType::Classifier => "classifier",
            ModelType::Reranker => "reranker",
            ModelType::ListwiseReranker => "listwise-reranker",
            ModelType::Decider => "decider",
        }
    }
}

/// This server's version.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit that this program was built from, if the build knew it.
pub(crate) const COMMIT: Option<&str> = option_env!("ROUTER_COMMIT");

/// The label of its container image, if the build knew it.
pub(crate) const DOCKER_LABEL: Option<&str> = option_env!("DOCKER_LABEL");

/// The program with its version, and with the commit if the build knew it.
pub(crate) const PROGRAM: &str = concat!("text-embeddings-router ", env!("ROUTER_VERSION"));

/// A way of pooling as TEI's answers name it: as on the command line, but for `last_token`.
pub(crate) fn pooling(pool: Pool) -> String {
    pool.to_string().replace('-', "_")
}
