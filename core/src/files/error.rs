//! What can go wrong between `--model-id` and a model folder that is complete and readable.
//!
//! Every message is one sentence for the person who starts the server: which file or flag, and what to do.

use std::path::PathBuf;

/// A model that cannot be fetched or read.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// `--model-id` looks like a path and is no directory.
    #[error(
        "`--model-id {model_id}` looks like a path, but there is no such directory: correct the path, or give \
         a Hub id such as `Qwen/Qwen3-Reranker-0.6B`"
    )]
    NoSuchDirectory {
        /// What was given.
        model_id: String,
    },
    /// `--model-id` is a file.
    #[error("`--model-id {model_id}` is a file: give the directory that holds config.json and the weights")]
    NotADirectory {
        /// What was given.
        model_id: String,
    },
    /// `--model-id` is neither a path nor a possible Hub id.
    #[error(
        "`--model-id {model_id}` is neither a directory nor a Hub id: a Hub id is `owner/name`, of letters, \
         digits, `-`, `_` and `.`"
    )]
    InvalidModelId {
        /// What was given.
        model_id: String,
    },
    /// The Hub client refuses its settings.
    #[error(
        "the Hub client cannot start: {reason}; check HF_ENDPOINT, which must be a URL such as https://huggingface.co"
    )]
    Client {
        /// The client's words.
        reason: String,
    },
    /// The Hub answered 401.
    #[error(
        "the Hub wants a login for {what} (401): pass a valid token with `--hf-token` or HF_TOKEN, and check the \
         model id, because a misspelled one gets the same answer"
    )]
    LoginRequired {
        /// The repository or the file in it.
        what: String,
    },
    /// The Hub answered 403, or that the repository is gated.
    #[error(
        "the Hub refuses access to {what}: if the model is gated, accept its conditions at {page}, and pass a token \
         that may read it (`--hf-token` or HF_TOKEN)"
    )]
    AccessDenied {
        /// The repository or the file in it.
        what: String,
        /// The model's page.
        page: String,
    },
    /// There is no such repository.
    #[error(
        "there is no model `{model_id}` at {endpoint}, and no directory of that name: check `--model-id`; a private \
         model looks like this too without a token that may read it (`--hf-token` or HF_TOKEN)"
    )]
    UnknownRepository {
        /// The Hub id.
        model_id: String,
        /// The Hub's address.
        endpoint: String,
    },
    /// The repository has no such revision.
    #[error(
        "the model `{model_id}` has no revision `{revision}`: check `--revision` (a branch, a tag, a full commit id \
         or refs/pr/N)"
    )]
    UnknownRevision {
        /// The Hub id.
        model_id: String,
        /// What was asked for.
        revision: String,
    },
    /// The Hub cannot be reached, and the cache has no complete copy.
    #[error(
        "cannot reach the Hub at {endpoint} ({reason}), and the cache {cache} has no complete copy of the model: check \
         the network and HF_ENDPOINT, or give `--model-id` a local directory"
    )]
    Unreachable {
        /// The Hub's address.
        endpoint: String,
        /// What happened to the request.
        reason: String,
        /// The cache folder.
        cache: PathBuf,
    },
    /// The cache lacks the model and the network may not be used.
    #[error(
        "HF_HUB_OFFLINE is set and the cache {cache} has no complete copy of `{model_id}` at revision `{revision}` \
         ({reason}): start once without HF_HUB_OFFLINE, or point HF_HOME or `--huggingface-hub-cache` to the cache \
         that has it"
    )]
    NotCached {
        /// The Hub id.
        model_id: String,
        /// What was asked for.
        revision: String,
        /// The cache folder.
        cache: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// A transfer ended before the file did.
    #[error("the download of `{file}` broke off ({reason}): nothing of it is used; start again to repeat it")]
    Dropped {
        /// The file in the repository.
        file: String,
        /// What happened.
        reason: String,
    },
    /// Any other answer of the Hub.
    #[error("the Hub did not deliver {what}: {reason}; try again later, or check HF_ENDPOINT")]
    Hub {
        /// The repository or the file in it.
        what: String,
        /// The answer.
        reason: String,
    },
    /// A file that every model needs is not there.
    #[error("`{file}` is missing in {place}: {remedy}")]
    Missing {
        /// The folder or the repository.
        place: String,
        /// The file.
        file: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A Git LFS pointer stands where the file should.
    #[error("{path} is only a Git LFS pointer, not the file itself: run `git lfs pull` in its folder")]
    LfsPointer {
        /// The file.
        path: PathBuf,
    },
    /// A weight file is longer or shorter than its header says.
    #[error(
        "{path} has {actual} bytes where its header promises {expected}: delete it and download it again"
    )]
    WrongLength {
        /// The file.
        path: PathBuf,
        /// Bytes by the header.
        expected: u64,
        /// Bytes on disk.
        actual: u64,
    },
    /// A file's content is not what its name promises.
    #[error("{path} is damaged ({reason}): delete it and download it again")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A JSON file cannot be read.
    #[error("{path} is not what it should be: {reason}; correct it, or delete it and download it again")]
    Json {
        /// The file.
        path: PathBuf,
        /// The parser's words, with line and column.
        reason: String,
    },
    /// The operating system refuses a file.
    #[error(
        "cannot read or write {path}: {source}; check that it exists, its permissions and the free space"
    )]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
}
