//! Reads a model of the Hub: from the files that the Hub sends, or from their copy in the cache.
//!
//! Input: the [`ModelSource`] that the user asked for, and the [`HubOptions`] to reach the Hub. Output:
//! [`ModelFolder`]. What must hold:
//! - a snapshot of the Hub's cache is used only if it is complete;
//! - the cache's record of the revision (`refs/…`) is written after all files, so an interrupted download
//!   never looks complete.

use super::error::FilesError;
use super::folder::{Describe, ModelFolder};
use super::hub::{Failure, Hub, HubRepository, Listing};
use super::read::{GivenParts, read_model};
use super::repository::Repository;
use super::source::{HubOptions, ModelSource};

/// Reads a model of the Hub, whose files are fetched into the cache. If the Hub cannot be reached, a complete
/// copy in the cache is used instead, with a warning.
pub(super) async fn load_remote(
    source: &ModelSource,
    options: &HubOptions,
    describe: &Describe,
    base: Option<&ModelFolder>,
) -> Result<ModelFolder, FilesError> {
    let hub = Hub::new(source, options)?;
    let unreachable = match list_files(&hub, source, options).await? {
        Ok(listing) => return read_listed(hub, listing, describe, base).await,
        Err(unreachable) => unreachable,
    };
    let Some(cached) = hub.find_cached() else { return Err(unreachable) };
    let (repository, parts) = (Repository::Folder(cached.root), GivenParts { selection: None, base });
    match (read_model(&repository, parts, &hub.reader, describe).await, unreachable) {
        (Ok(model), unreachable) => {
            if let FilesError::Unreachable { endpoint, reason, .. } = unreachable {
                tracing::warn!(
                    "cannot reach the Hub at {endpoint} ({reason}); using the copy of {} in {}",
                    source.model_id,
                    model.root.display()
                );
            }
            Ok(ModelFolder { revision_sha: Some(cached.sha), ..model })
        }
        (Err(error), FilesError::NotCached { model_id, revision, cache, .. }) if error.is_about_absence() => {
            Err(FilesError::NotCached { model_id, revision, cache, reason: error.to_string() })
        }
        (Err(error), unreachable) => Err(if error.is_about_absence() { unreachable } else { error }),
    }
}

/// The repository of a model of the Hub, before anything is fetched; if the Hub cannot be reached, the copy
/// in the cache.
pub(super) async fn open_repository<'a>(
    source: &'a ModelSource,
    options: &'a HubOptions,
) -> Result<Repository<'a>, FilesError> {
    let hub = Hub::new(source, options)?;
    match list_files(&hub, source, options).await? {
        Ok(listing) => Ok(Repository::Hub(Box::new(HubRepository { hub, listing }))),
        Err(unreachable) => match hub.find_cached() {
            Some(cached) => Ok(Repository::Folder(cached.root)),
            None => Err(unreachable),
        },
    }
}

/// The files of the model on the Hub, or the error for a cache without a copy of them, because the Hub cannot
/// be reached or must not be asked.
async fn list_files(
    hub: &Hub<'_>,
    source: &ModelSource,
    options: &HubOptions,
) -> Result<Result<Listing, FilesError>, FilesError> {
    let cache = hub.cache_root().to_owned();
    if options.offline {
        let (model_id, revision) = (source.model_id.clone(), source.revision.clone());
        let reason = format!("it does not know the revision `{revision}`");
        return Ok(Err(FilesError::NotCached { model_id, revision, cache, reason }));
    }
    match hub.list_files().await {
        Ok(listing) => Ok(Ok(listing)),
        Err(Failure::Unreachable(reason)) => {
            Ok(Err(FilesError::Unreachable { endpoint: hub.endpoint().to_owned(), reason, cache }))
        }
        Err(refused) => Err(hub.refusal(None, refused)),
    }
}

/// Reads the model, whose missing files the Hub sends, and records that it is complete.
async fn read_listed(
    hub: Hub<'_>,
    listing: Listing,
    describe: &Describe,
    base: Option<&ModelFolder>,
) -> Result<ModelFolder, FilesError> {
    let (sha, reader) = (listing.sha.clone(), hub.reader.clone());
    let cache = hub.cache_root().display().to_string();
    let repository = HubRepository { hub, listing };
    tracing::info!("fetching {} into {cache}", repository.place());
    let repository = Repository::Hub(Box::new(repository));
    let model = read_model(&repository, GivenParts { selection: None, base }, &reader, describe).await?;
    if let Repository::Hub(repository) = &repository {
        repository.record_complete()?;
        tracing::info!("all files are in {}", repository.root().display());
    }
    Ok(ModelFolder { revision_sha: Some(sha), ..model })
}
