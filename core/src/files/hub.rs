//! A model's repository on the Hub, and its copy in the cache.
//!
//! Input: the [`ModelSource`] that the user asked for, and the [`HubOptions`] to reach the Hub. Output: a
//! [`HubRepository`], which fetches the files that `read.rs` opens. What must hold:
//! - no file is used before all of it has arrived (`hub/transfer.rs`);
//! - nothing that the Hub sends becomes a path before it is checked (`names.rs`, `client.rs`).

mod answers;
mod cache;
#[cfg_attr(not(feature = "tls"), path = "hub/no_client.rs")]
mod client;
#[cfg(all(test, feature = "tls"))]
mod tests;
mod transfer;

pub(super) use answers::{Failure, Listing};

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use http::StatusCode;

use self::cache::Cache;
use self::client::Client;
use super::error::FilesError;
use super::names::{Bound, stays_below};
use super::reading::remedy;
use super::source::{HubOptions, ModelSource, Reader};
use crate::secret::Secret;

/// A revision of a repository on the Hub.
pub(super) struct HubRepository<'a> {
    pub(super) hub: Hub<'a>,
    pub(super) listing: Listing,
}

impl HubRepository<'_> {
    /// The repository in messages.
    pub(super) fn place(&self) -> String {
        format!("the repository {} at {}", self.hub.model_id, self.listing.sha)
    }

    /// The folder of the fetched files.
    pub(super) fn root(&self) -> PathBuf {
        self.hub.cache.snapshot(&self.listing.sha)
    }

    pub(super) fn names(&self) -> &BTreeSet<String> {
        &self.listing.files
    }

    /// Records in the cache that all files of the revision are there, for starts without the Hub.
    pub(super) fn record_complete(&self) -> Result<(), FilesError> {
        let Hub { cache, source, .. } = &self.hub;
        cache.record(&source.revision, &self.listing.sha)?;
        cache.clean();
        Ok(())
    }

    /// Fetches a file that is not yet in the cache. Returns its path.
    pub(super) async fn fetch_file(&self, name: &str, bound: Bound) -> Result<PathBuf, FilesError> {
        self.hub.fetch_file(&self.listing.sha, name, bound).await
    }
}

/// A revision whose files were fetched before.
pub(super) struct CachedRevision {
    pub(super) sha: String,
    /// The folder with its files.
    pub(super) root: PathBuf,
}

/// A model of the Hub, and the way to its files.
pub(super) struct Hub<'a> {
    source: &'a ModelSource,
    /// The Hub's name of the model.
    pub(super) model_id: &'a str,
    /// The backend that reads its files.
    pub(super) reader: Reader,
    options: &'a HubOptions,
    client: Client,
    cache: Cache,
}

impl<'a> Hub<'a> {
    pub(super) fn new(source: &'a ModelSource, options: &'a HubOptions) -> Result<Self, FilesError> {
        if !stays_below(&source.revision) {
            return Err(FilesError::Refused(format!(
                "`--revision {}` cannot be a revision: give a branch, a tag, a full commit id or refs/pr/N",
                source.revision
            )));
        }
        let given = source.token.as_ref().or(options.token.as_ref()).map(Secret::expose);
        let token = given.filter(|token| !token.is_empty());
        let (model_id, reader) = source.split_file()?;
        let client = Client::new(model_id, token, options);
        let client = client.map_err(|reason| {
            FilesError::Refused(format!(
                "the Hub client cannot start: {reason}; check HF_ENDPOINT, which must be a URL such as \
                 https://huggingface.co"
            ))
        })?;
        let root = source.cache_dir.clone().unwrap_or_else(|| options.cache.clone());
        Ok(Self { source, model_id, reader, options, client, cache: Cache::new(root, model_id) })
    }

    /// The Hub's address.
    pub(super) fn endpoint(&self) -> &str {
        self.client.endpoint()
    }

    pub(super) fn cache_root(&self) -> &Path {
        self.cache.root()
    }

    /// Asks the Hub for the revision's commit and its files.
    pub(super) async fn list_files(&self) -> Result<Listing, Failure> {
        self.client.fetch_listing(&self.source.revision).await
    }

    /// The commit that the cache has recorded for the revision, and the folder with its files.
    pub(super) fn find_cached(&self) -> Option<CachedRevision> {
        let sha = self.cache.recorded(&self.source.revision)?;
        Some(CachedRevision { root: self.cache.snapshot(&sha), sha })
    }

    /// A refusal of the Hub as an error with a remedy.
    pub(super) fn refusal(&self, file: Option<&str>, failure: Failure) -> FilesError {
        let what = self.what(file);
        let (model_id, revision) = (self.model_id, &self.source.revision);
        let endpoint = self.client.endpoint();
        let not_delivered = |reason: String| {
            format!("the Hub did not deliver {what}: {reason}; try again later, or check HF_ENDPOINT")
        };
        let (status, code) = match failure {
            Failure::Refused(status, code) => (status, code),
            Failure::Strange(reason) | Failure::Unreachable(reason) => {
                return FilesError::Refused(not_delivered(reason));
            }
        };
        let code = code.as_deref();
        FilesError::Refused(match (status, file) {
            (StatusCode::UNAUTHORIZED, _) if code != Some("GatedRepo") => format!(
                "the Hub wants a login for {what} (401): pass a valid token with `--hf-token` or HF_TOKEN, and check \
                 the model id, because a misspelled one gets the same answer"
            ),
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => format!(
                "the Hub refuses access to {what}: if the model is gated, accept its conditions at \
                 {endpoint}/{model_id}, and pass a token that may read it (`--hf-token` or HF_TOKEN)"
            ),
            (StatusCode::NOT_FOUND, Some(file)) => {
                let (place, remedy) = (model_id.to_owned(), remedy(file));
                return FilesError::Missing { place, remedy, file: file.to_owned() };
            }
            (StatusCode::NOT_FOUND, None)
                if code.map_or(revision != "main", |code| code == "RevisionNotFound") =>
            {
                format!(
                    "the model `{model_id}` has no revision `{revision}`: check `--revision` (a branch, a tag, a full \
                     commit id or refs/pr/N)"
                )
            }
            (StatusCode::NOT_FOUND, None) => format!(
                "there is no model `{model_id}` at {endpoint}, and no directory of that name: check `--model-id`; a \
                 private model looks like this too without a token that may read it (`--hf-token` or HF_TOKEN)"
            ),
            _ => not_delivered(format!("it answers {status}")),
        })
    }

    /// The words for the model, or for one of its files, in messages.
    fn what(&self, file: Option<&str>) -> String {
        let model_id = self.model_id;
        file.map_or_else(
            || format!("the model `{model_id}`"),
            |file| format!("`{file}` of the model `{model_id}`"),
        )
    }
}
