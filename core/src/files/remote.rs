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
use super::names::stays_below;
use super::read::{GivenParts, read_model};
use super::repository::Repository;
use super::source::{HubOptions, ModelSource};

/// Reads a model of the Hub, whose files are fetched into the cache. If the Hub cannot be reached, a complete
/// copy in the cache is used instead, with a warning.
///
/// # Errors
///
/// Any variant of [`FilesError`] about the Hub, the cache or a file.
pub(super) async fn load_remote(
    source: &ModelSource,
    options: &HubOptions,
    describe: &Describe,
    base: Option<&ModelFolder>,
) -> Result<ModelFolder, FilesError> {
    if !stays_below(&source.revision) {
        return Err(FilesError::InvalidRevision { revision: source.revision.clone() });
    }
    let hub = Hub::new(source, options)?;
    let cache = hub.cache_root().to_owned();
    let (model_id, revision) = (source.model_id.clone(), source.revision.clone());
    if options.offline {
        let named = NamedRevision { revision: &source.revision, base };
        return read_cached(&hub, named, describe, |reason| FilesError::NotCached {
            model_id,
            revision,
            cache,
            reason,
        })
        .await;
    }
    match hub.list_files().await {
        Ok(listing) => read_listed(hub, listing, describe, base).await,
        Err(Failure::Unreachable(reason)) => {
            let endpoint = hub.endpoint();
            let named = NamedRevision { revision: &source.revision, base };
            let model = read_cached(&hub, named, describe, |_| {
                let (endpoint, reason) = (endpoint.to_owned(), reason.clone());
                FilesError::Unreachable { endpoint, reason, cache }
            })
            .await?;
            tracing::warn!(
                "cannot reach the Hub at {endpoint} ({reason}); using the copy of {model_id} in {}",
                model.root.display()
            );
            Ok(model)
        }
        Err(refused) => Err(hub.refusal(None, refused)),
    }
}

/// The repository of a model of the Hub, before anything is fetched; if the Hub cannot be reached, the copy
/// in the cache.
///
/// # Errors
///
/// Any variant of [`FilesError`] about the Hub or the cache.
pub(super) async fn open_repository<'a>(
    source: &'a ModelSource,
    options: &'a HubOptions,
) -> Result<Repository<'a>, FilesError> {
    let revision = source.revision.clone();
    if !stays_below(&revision) {
        return Err(FilesError::InvalidRevision { revision });
    }
    let hub = Hub::new(source, options)?;
    let (cache, cached) = (hub.cache_root().to_owned(), hub.find_cached());
    let unreachable = match if options.offline { None } else { Some(hub.list_files().await) } {
        Some(Ok(listing)) => return Ok(Repository::Hub(Box::new(HubRepository::new(hub, listing)))),
        Some(Err(Failure::Unreachable(reason))) => {
            FilesError::Unreachable { endpoint: hub.endpoint().to_owned(), reason, cache }
        }
        Some(Err(refused)) => return Err(hub.refusal(None, refused)),
        None => {
            let reason = format!("it does not know the revision `{revision}`");
            FilesError::NotCached { model_id: source.model_id.clone(), revision, cache, reason }
        }
    };
    cached.map(|cached| Repository::Folder(cached.root)).ok_or(unreachable)
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
    let repository = HubRepository::new(hub, listing);
    tracing::info!("fetching {} into {cache}", repository.place());
    let repository = Repository::Hub(Box::new(repository));
    let model = read_model(&repository, GivenParts { selection: None, base }, &reader, describe).await?;
    if let Repository::Hub(repository) = &repository {
        repository.record_complete()?;
        tracing::info!("all files are in {}", repository.root().display());
    }
    Ok(ModelFolder { revision_sha: Some(sha), ..model })
}

/// The revision to read, and the model to which it is added if it is an adapter.
#[derive(Clone, Copy)]
struct NamedRevision<'a> {
    revision: &'a str,
    base: Option<&'a ModelFolder>,
}

/// Reads the copy in the cache. `incomplete` is the error if there is no copy, or if it lacks a file.
async fn read_cached(
    hub: &Hub<'_>,
    NamedRevision { revision, base }: NamedRevision<'_>,
    describe: &Describe,
    incomplete: impl FnOnce(String) -> FilesError,
) -> Result<ModelFolder, FilesError> {
    let Some(cached) = hub.find_cached() else {
        return Err(incomplete(format!("it does not know the revision `{revision}`")));
    };
    match read_model(
        &Repository::Folder(cached.root),
        GivenParts { selection: None, base },
        &hub.reader,
        describe,
    )
    .await
    {
        Ok(model) => Ok(ModelFolder { revision_sha: Some(cached.sha), ..model }),
        Err(error) if error.is_about_absence() => Err(incomplete(error.to_string())),
        Err(error) => Err(error),
    }
}
