//! A model's repository on the Hub, and its copy in the cache.
//!
//! Input: the [`ModelSource`] that the user asked for, and the [`HubOptions`] to reach the Hub. Output: the
//! model, read from a [`HubRepository`], which fetches the files that `read.rs` opens. What must hold:
//! - a snapshot of the Hub's cache is used only if it is complete;
//! - no file is used before all of it has arrived (`hub/transfer.rs`);
//! - nothing that the Hub sends becomes a path before it is checked (`names.rs`);
//! - the cache's record of the revision (`refs/…`) is written after all files, so an interrupted download
//!   never looks complete.

mod cache;
mod client;
#[cfg(test)]
mod tests;
mod transfer;

use std::collections::BTreeSet;
use std::path::PathBuf;

use reqwest::StatusCode;

use self::cache::Cache;
use self::client::{Client, Failure, Listing};
use super::error::FilesError;
use super::folder::{Describe, ModelFolder};
use super::names::stays_below;
use super::read::read_model;
use super::reading::remedy;
use super::repository::{Bound, Repository};
use super::source::{HubOptions, ModelSource, Reader};

/// Reads a model of the Hub, whose files are fetched into the cache. If the Hub cannot be reached, a complete
/// copy in the cache is used instead, with a warning.
///
/// # Errors
///
/// Any variant of [`FilesError`] about the Hub, the cache or a file.
pub(super) async fn load(
    source: &ModelSource,
    options: &HubOptions,
    describe: &Describe,
) -> Result<ModelFolder, FilesError> {
    if !stays_below(&source.revision) {
        return Err(FilesError::InvalidRevision { revision: source.revision.clone() });
    }
    let hub = Hub::new(source, options)?;
    let cache = hub.cache.root().to_owned();
    let (model_id, revision) = (source.model_id.clone(), source.revision.clone());
    if options.offline {
        let not_cached = |reason| FilesError::NotCached { model_id, revision, cache, reason };
        return hub.read_cached(describe, not_cached).await;
    }
    match hub.client.listing(&revision).await {
        Ok(listing) => hub.read_listed(listing, describe).await,
        Err(Failure::Unreachable(reason)) => {
            let endpoint = hub.client.endpoint();
            let unreachable = |_| {
                let (endpoint, reason) = (endpoint.to_owned(), reason.clone());
                FilesError::Unreachable { endpoint, reason, cache }
            };
            let model = hub.read_cached(describe, unreachable).await?;
            tracing::warn!(
                "cannot reach the Hub at {endpoint} ({reason}); using the copy of {model_id} in {}",
                model.root.display()
            );
            Ok(model)
        }
        Err(refused) => Err(hub.refusal(None, refused)),
    }
}

/// A revision of a repository on the Hub.
pub(super) struct HubRepository<'a> {
    hub: Hub<'a>,
    listing: Listing,
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

    /// The names of its files.
    pub(super) fn names(&self) -> &BTreeSet<String> {
        &self.listing.files
    }

    /// Fetches a file that is not yet in the cache. Returns its path.
    pub(super) async fn fetch_file(&self, name: &str, bound: Bound) -> Result<PathBuf, FilesError> {
        self.hub.fetch_file(&self.listing.sha, name, bound).await
    }
}

struct Hub<'a> {
    source: &'a ModelSource,
    /// The Hub's name of the model.
    model_id: &'a str,
    /// The backend that reads its files.
    reader: Reader,
    options: &'a HubOptions,
    client: Client,
    cache: Cache,
}

impl<'a> Hub<'a> {
    fn new(source: &'a ModelSource, options: &'a HubOptions) -> Result<Self, FilesError> {
        let given = source.token.as_ref().or(options.token.as_ref()).map(String::as_str);
        let token = given.filter(|token| !token.is_empty());
        let (model_id, reader) = source.split_file()?;
        let client = Client::new(model_id, token, options);
        let client = client.map_err(|reason| FilesError::Client { reason })?;
        let root = source.cache_dir.clone().unwrap_or_else(|| options.cache.clone());
        Ok(Self { source, model_id, reader, options, client, cache: Cache::new(root, model_id) })
    }

    /// Reads the model, whose missing files the Hub sends, and records that it is complete.
    async fn read_listed(self, listing: Listing, describe: &Describe) -> Result<ModelFolder, FilesError> {
        let (sha, reader) = (listing.sha.clone(), self.reader.clone());
        let repository = HubRepository { hub: self, listing };
        let (place, root) = (repository.place(), repository.root());
        tracing::info!("fetching {place} into {}", repository.hub.cache.root().display());
        let repository = Repository::Hub(Box::new(repository));
        let model = read_model(&repository, None, &reader, describe).await?;
        if let Repository::Hub(repository) = &repository {
            let Hub { cache, source, .. } = &repository.hub;
            cache.record(&source.revision, &sha)?;
            cache.clean();
        }
        tracing::info!("all files are in {}", root.display());
        Ok(ModelFolder { revision_sha: Some(sha), ..model })
    }

    /// Reads the copy in the cache. `incomplete` is the error if there is no copy, or if it lacks a file.
    async fn read_cached(
        &self,
        describe: &Describe,
        incomplete: impl FnOnce(String) -> FilesError,
    ) -> Result<ModelFolder, FilesError> {
        let revision = &self.source.revision;
        let Some(sha) = self.cache.recorded(revision) else {
            return Err(incomplete(format!("it does not know the revision `{revision}`")));
        };
        let snapshot = Repository::Folder(self.cache.snapshot(&sha));
        match read_model(&snapshot, None, &self.reader, describe).await {
            Ok(model) => Ok(ModelFolder { revision_sha: Some(sha), ..model }),
            Err(error) if error.is_about_absence() => Err(incomplete(error.to_string())),
            Err(error) => Err(error),
        }
    }

    /// A refusal of the Hub as an error with a remedy.
    fn refusal(&self, file: Option<&str>, failure: Failure) -> FilesError {
        let what = self.what(file);
        let (model_id, revision) = (self.model_id.to_owned(), self.source.revision.clone());
        let endpoint = self.client.endpoint().to_owned();
        let (status, code) = match failure {
            Failure::Refused(status, code) => (status, code),
            Failure::Strange(reason) | Failure::Unreachable(reason) => {
                return FilesError::Hub { what, reason };
            }
        };
        let code = code.as_deref();
        match (status, file) {
            (StatusCode::UNAUTHORIZED, _) if code != Some("GatedRepo") => FilesError::LoginRequired { what },
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => {
                FilesError::AccessDenied { what, page: format!("{endpoint}/{model_id}") }
            }
            (StatusCode::NOT_FOUND, Some(file)) => {
                FilesError::Missing { place: model_id, remedy: remedy(file), file: file.to_owned() }
            }
            (StatusCode::NOT_FOUND, None)
                if code.map_or(revision != "main", |code| code == "RevisionNotFound") =>
            {
                FilesError::UnknownRevision { model_id, revision }
            }
            (StatusCode::NOT_FOUND, None) => FilesError::UnknownRepository { model_id, endpoint },
            _ => FilesError::Hub { what, reason: format!("it answers {status}") },
        }
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
