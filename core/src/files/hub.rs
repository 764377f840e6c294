//! Fetches a model to local disk.
//!
//! Input: the [`ModelSource`] that the user asked for, and the [`HubOptions`] to reach the Hub. Output:
//! [`LocalModel`], a folder with all files of the model that this server reads. What must hold:
//! - a directory is used as it is; a snapshot of the Hub's cache is used only if it is complete;
//! - no file is used before all of it has arrived (`hub/transfer.rs`);
//! - nothing that the Hub sends becomes a path before it is checked (`hub/names.rs`);
//! - weights come last and the cache's record of the revision (`refs/…`) after them, so an interrupted
//!   download never looks complete.

mod cache;
mod client;
mod names;
#[cfg(test)]
mod tests;
mod transfer;

use std::path::PathBuf;

use reqwest::StatusCode;
use text_embeddings_backend_core::BackendKind;

use self::cache::Cache;
use self::client::{Client, Failure, Listing};
pub(super) use self::names::stays_below;
use self::transfer::Bound;
use super::config::{ModelConfig, Module, read_optional_json};
use super::dense;
use super::error::FilesError;
use super::folder::{CONFIG, Describe, MODULES, TOKENIZER, optional_files, remedy, required};
use super::modules::{config_of, module_files, refuse_unknown, steps};
use super::onnx;
use super::python;
use super::source::{HubOptions, ModelSource, Reader, local};
use super::templates;
use super::weights::{Selection, Shards, missing_shard, select, select_local, shards, weight_files};

/// A model on local disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalModel {
    /// Its folder.
    pub root: PathBuf,
    /// The commit of the Hub's repository; absent for a local directory.
    pub revision_sha: Option<String>,
    /// The files with the weights; absent if the folder decides.
    pub(super) weights: Option<Selection>,
}

/// Fetches the model that `source` names: a local directory is used as it is, another model comes from the
/// Hub into its cache. If the Hub cannot be reached, a complete copy in the cache is used instead, with a
/// warning.
///
/// # Errors
///
/// Any variant of [`FilesError`] about the Hub, the cache or a missing file.
pub async fn fetch(
    source: &ModelSource,
    options: &HubOptions,
    describe: &Describe,
) -> Result<LocalModel, FilesError> {
    let (model_id, reader) = source.named()?;
    if let Some((root, file)) = local(model_id)? {
        let weights = file.map(|file| named_file(model_id, file, &reader)).transpose()?;
        return Ok(LocalModel { root, revision_sha: None, weights });
    }
    if !stays_below(&source.revision) {
        return Err(FilesError::InvalidRevision { revision: source.revision.clone() });
    }
    let hub = Hub::new(source, options)?;
    let cache = hub.cache.root().to_owned();
    if options.offline {
        let (model_id, revision) = (source.model_id.clone(), source.revision.clone());
        return hub.cached().map_err(|reason| FilesError::NotCached { model_id, revision, cache, reason });
    }
    match hub.client.listing(&source.revision).await {
        Ok(listing) => hub.download(&listing, describe).await,
        Err(Failure::Unreachable(reason)) => {
            let endpoint = hub.client.endpoint().to_owned();
            let Ok(local) = hub.cached() else {
                return Err(FilesError::Unreachable { endpoint, reason, cache });
            };
            tracing::warn!(
                "cannot reach the Hub at {endpoint} ({reason}); using the copy of {model_id} in {}",
                local.root.display()
            );
            Ok(local)
        }
        Err(refused) => Err(hub.refusal(None, refused)),
    }
}

/// The weights, if `model_id` is a file.
fn named_file(model_id: &str, file: String, reader: &Reader) -> Result<Selection, FilesError> {
    let selection = Selection::named(&file);
    match (reader.backend, &selection, &reader.gguf_file) {
        (_, _, Some(flag)) if *flag != file => {
            Err(FilesError::TwoFiles { model_id: model_id.to_owned(), file: flag.clone() })
        }
        (BackendKind::Candle, ..) => Ok(selection),
        (backend, Selection::Gguf(_), _) => Err(FilesError::GgufForAnother { file, backend }),
        // Other backends choose among the files of a folder themselves.
        _ => Err(FilesError::NotADirectory { model_id: model_id.to_owned() }),
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
        let (model_id, reader) = source.named()?;
        let client = Client::new(model_id, token, options);
        let client = client.map_err(|reason| FilesError::Client { reason })?;
        let root = source.cache_dir.clone().unwrap_or_else(|| options.cache.clone());
        Ok(Self { source, model_id, reader, options, client, cache: Cache::new(root, model_id) })
    }

    /// Downloads the files that are needed and not yet in the cache: small files first, weights last.
    async fn download(&self, listing: &Listing, describe: &Describe) -> Result<LocalModel, FilesError> {
        let place = format!("the repository {} at {}", self.model_id, listing.sha);
        let has = |file: &str| listing.files.contains(file);
        let names: Vec<String> = listing.files.iter().cloned().collect();
        let selected = select(&place, &names, &self.reader);
        let selected = match selected {
            Err(error) if error.is_about_gguf() => return Err(error),
            selected => selected,
        };
        if let Ok(weights @ Selection::Gguf(_)) = selected {
            tracing::info!("fetching {place} into {}", self.cache.root().display());
            // The file's own modules are inside it.
            self.download_modules(listing, &place, &[]).await?;
            return self.download_weights(listing, place, weights).await;
        }
        let missing = |file: &str| FilesError::Missing {
            place: place.clone(),
            file: file.to_owned(),
            remedy: remedy(file),
        };
        if !has(CONFIG) {
            return Err(missing(CONFIG));
        }
        tracing::info!("fetching {place} into {}", self.cache.root().display());
        let small = |file| self.file(&listing.sha, file, Bound::Small);
        let config = ModelConfig::load(&small(CONFIG).await?)?;
        let has_onnx = || listing.files.iter().any(|file| onnx::is_graph(file));
        describe(&config.raw).map_err(|error| FilesError::refused(error, has_onnx()))?;
        if !has(TOKENIZER) {
            return Err(missing(TOKENIZER));
        }
        let weights = selected?;
        for file in [TOKENIZER].into_iter().chain(optional_files().filter(|file| has(file))) {
            small(file).await?;
        }
        for file in templates::additional(listing.files.iter()) {
            small(file).await?;
        }
        if self.reader.backend == BackendKind::Python {
            let wanted = python::wanted(&listing.files, self.reader.python_code)?;
            let large = wanted.weights.iter().map(|file| (file, Bound::Weights(u64::MAX)));
            for (file, bound) in wanted.small.iter().map(|file| (file, Bound::Small)).chain(large) {
                self.file(&listing.sha, file, bound).await?;
            }
        } else {
            let modules = self.cache.snapshot(&listing.sha).join(MODULES);
            let modules: Vec<Module> = read_optional_json(&modules)?.unwrap_or_default();
            refuse_unknown(&modules)?;
            self.download_modules(listing, &place, &modules).await?;
        }
        self.download_weights(listing, place, weights).await
    }

    /// Downloads the files of the modules that modules.json or the user names.
    async fn download_modules(
        &self,
        listing: &Listing,
        place: &str,
        modules: &[Module],
    ) -> Result<(), FilesError> {
        for class in ["Pooling", "SpladePooling", "LogitScore"] {
            if let Some(file) = config_of(modules, class).filter(|file| listing.files.contains(file)) {
                self.file(&listing.sha, &file, Bound::Small).await?;
            }
        }
        for step in steps(modules, self.source.dense_path.as_deref())? {
            let [config, weights] = module_files(&step.path, |file| listing.files.contains(file));
            for (file, bound) in [(config, Bound::Small), (weights, Bound::Weights(u64::MAX))] {
                if !listing.files.contains(&file) {
                    return Err(dense::missing(place.to_owned(), file));
                }
                self.file(&listing.sha, &file, bound).await?;
            }
        }
        Ok(())
    }

    /// Downloads the weights, which come last, and records that the model is complete.
    async fn download_weights(
        &self,
        listing: &Listing,
        place: String,
        weights: Selection,
    ) -> Result<LocalModel, FilesError> {
        let Listing { sha, files } = listing;
        match &weights {
            Selection::File(name) | Selection::Gguf(name) => {
                self.file(sha, name, Bound::Weights(u64::MAX)).await?;
            }
            Selection::Shards(index) => {
                let Shards { names, mut most } = shards(&self.file(sha, index, Bound::Small).await?)?;
                if let Some(missing) = names.iter().find(|name| !files.contains(*name)) {
                    return Err(missing_shard(place, missing.clone()));
                }
                for name in &names {
                    let path = self.file(sha, name, Bound::Weights(most)).await?;
                    most = most.saturating_sub(super::reading::open(&path)?.1);
                }
            }
            Selection::Graph(graph) => {
                let path = self.file(sha, graph, Bound::Weights(u64::MAX)).await?;
                for name in onnx::values(graph, &path)? {
                    if !files.contains(&name) {
                        return Err(onnx::missing_values(place, name));
                    }
                    self.file(sha, &name, Bound::Weights(u64::MAX)).await?;
                }
            }
        }
        self.cache.record(&self.source.revision, sha)?;
        self.cache.clean();
        let root = self.cache.snapshot(sha);
        tracing::info!("all files are in {}", root.display());
        Ok(LocalModel { root, revision_sha: Some(sha.clone()), weights: Some(weights) })
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

    /// The complete copy in the cache, or the reason why it is not complete.
    fn cached(&self) -> Result<LocalModel, String> {
        let revision = &self.source.revision;
        let sha = self.cache.recorded(revision);
        let sha = sha.ok_or_else(|| format!("it does not know the revision `{revision}`"))?;
        let root = self.cache.snapshot(&sha);
        let weights = select_local(&root, &self.reader).map_err(|error| error.to_string())?;
        let needed = match weights {
            Selection::Gguf(_) => &[][..],
            _ => &[CONFIG, TOKENIZER],
        };
        for file in needed {
            required(&root, file).map_err(|error| error.to_string())?;
        }
        weight_files(&root, &weights).map_err(|error| error.to_string())?;
        Ok(LocalModel { root, revision_sha: Some(sha), weights: Some(weights) })
    }
}
