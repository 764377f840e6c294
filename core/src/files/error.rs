//! The errors on the way from `--model-id` to a complete and readable model folder.
//!
//! Every message is one sentence for the person who starts the server. It says which file or flag is wrong
//! and what to do.

use std::path::PathBuf;

use text_embeddings_backend_core::{BackendError, BackendKind};
use text_embeddings_checkpoint::CheckpointError;

use super::names::is_graph;

/// A model that cannot be fetched or read.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each sentence explains its fields")]
pub enum FilesError {
    /// Any other refusal, on which nothing depends but the sentence.
    #[error("{0}")]
    Refused(String),
    /// There are no weights for the backend, or several and none is named.
    #[error("{0}")]
    NoWeights(String),
    /// The GGUF file that is named is not there, or there are several and none is named.
    #[error("{0}")]
    NoGguf(String),
    /// `--model-id` is a file.
    #[error(
        "`--model-id {model_id}` is a file, but not one of weights (.safetensors, .bin or .gguf): give one, \
         or the directory that holds config.json and the weights; `--onnx-file` names an ONNX file in it"
    )]
    NotADirectory { model_id: String },
    /// `--model-id` is neither a path nor a possible Hub id.
    #[error(
        "`--model-id {model_id}` is neither a directory nor a Hub id: a Hub id is `owner/name`, of letters, \
         digits, `-`, `_` and `.`, and `owner/name:FILE.gguf` names a GGUF file"
    )]
    InvalidModelId { model_id: String },
    /// The Hub cannot be reached, and the cache has no complete copy.
    #[error(
        "cannot reach the Hub at {endpoint} ({reason}), and the cache {cache} has no complete copy of the \
         model: check the network, HTTPS_PROXY and HF_ENDPOINT, or give `--model-id` a local directory"
    )]
    Unreachable { endpoint: String, reason: String, cache: PathBuf },
    /// The cache lacks the model and the network may not be used.
    #[error(
        "HF_HUB_OFFLINE is set and the cache {cache} has no complete copy of `{model_id}` at revision \
         `{revision}` ({reason}): start once without HF_HUB_OFFLINE, or point HF_HOME or \
         `--huggingface-hub-cache` to the cache that has it"
    )]
    NotCached { model_id: String, revision: String, cache: PathBuf, reason: String },
    /// A file that every model needs is not there.
    #[error("`{file}` is missing in {place}: {remedy}")]
    Missing { place: String, file: String, remedy: &'static str },
    /// An adapter without the model to which it is added.
    #[error(
        "{place} is an adapter of the model `{base}`, which must be given with it, and must not be an adapter \
         itself: serve the adapter with `--model-id`"
    )]
    LacksBase { place: String, base: String, revision: Option<String> },
    /// The file is only a Git LFS pointer.
    #[error("{path} is only a Git LFS pointer, not the file itself: run `git lfs pull` in its folder")]
    LfsPointer { path: PathBuf },
    /// A weight file that cannot be read.
    #[error("{0}")]
    Weights(CheckpointError),
    /// A GGUF file for a backend that reads none.
    #[error(
        "`{file}` is a GGUF file, which `--backend {backend}` does not read: leave `--backend` out, or \
         `--gguf-file`"
    )]
    GgufForAnother { file: String, backend: BackendKind },
    /// Two names for one file.
    #[error("`--model-id {model_id}` and `--gguf-file {file}` name different files: leave one of them out")]
    TwoFiles { model_id: String, file: String },
    /// The content of a file contradicts its name.
    #[error("{path} is damaged ({reason}): delete it and download it again")]
    Damaged { path: PathBuf, reason: String },
    /// A JSON file cannot be read.
    #[error("{path} is not what it should be: {reason}; correct it, or delete it and download it again")]
    Json { path: PathBuf, reason: String },
    /// A field has a value that is not supported.
    #[error("`{field}` of {path} is `{value}`, which is not supported: only {known}")]
    UnsupportedField { path: PathBuf, field: &'static str, value: String, known: &'static str },
    /// A module of sentence-transformers is not supported, or not in this position.
    #[error(
        "modules.json names the module `{class}`{after}, which is not supported: an embedding model may have \
         Transformer, Pooling, any number of Dense and LayerNorm, and Normalize, in this order, or \
         StaticEmbedding and Normalize"
    )]
    UnsupportedModule {
        class: String,
        /// The preceding module if the position is wrong, with a space before it. Otherwise empty.
        after: String,
    },
    /// The files belong to a re-ranker, but the flags ask for embeddings.
    #[error(
        "modules.json names `LogitScore`, or a last Dense that gives `scores`, so this is a re-ranker and \
         not an embedding model: leave `--pooling` and `--model-type` out, or give \
         `--model-type listwise-reranker` for the first"
    )]
    RerankerModule,
    /// The backend does not support the model that `config.json` describes.
    #[error("{0}")]
    Unsupported(BackendError),
    /// The backend does not know the architecture.
    #[error("{reason}")]
    Architecture {
        reason: String,
        /// Whether there is an ONNX file, which another backend could serve.
        has_onnx: bool,
    },
    /// The path is a directory, a pipe or a device, and not a file.
    #[error("{path} is {kind}, not a file: put the file itself there")]
    NotAFile { path: PathBuf, kind: &'static str },
    /// A file other than weights is longer than any such file.
    #[error(
        "`{file}` is longer than {max_length} bytes, the most that this server reads of such a file: check that \
         it is what its name says"
    )]
    TooLong { file: String, max_length: u64 },
    /// The operating system refused access to a file.
    #[error("cannot read or write {path}: {cause}; check that it exists, its permissions and the free space")]
    Io {
        path: PathBuf,
        /// The system's error. It is not the `source` of this error, which would print it a second time.
        cause: std::io::Error,
    },
}

impl FilesError {
    /// The error for a backend's refusal of `config.json`, in a folder or repository with these files.
    pub(super) fn from_backend(error: BackendError, files: &[String]) -> Self {
        match error {
            BackendError::Architecture(reason) => {
                Self::Architecture { reason, has_onnx: files.iter().any(|name| is_graph(name)) }
            }
            error => Self::Unsupported(error),
        }
    }

    /// Whether files are missing, not damaged.
    pub(super) fn is_about_absence(&self) -> bool {
        matches!(self, Self::Missing { .. } | Self::NoWeights(_) | Self::NoGguf(_))
    }

    pub(super) fn io(path: impl Into<PathBuf>, cause: std::io::Error) -> Self {
        Self::Io { path: path.into(), cause }
    }
}
