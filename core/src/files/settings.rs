//! Reads `config.json` and `modules.json` of a model, and nothing else.
//!
//! Input: the model that the user names, and the settings for reaching the Hub. Output: the content of its
//! `config.json`, or the settings that its weights tell: a GGUF file's, and the sizes of a static embedding
//! model; and whether it is a SPLADE model. What must hold: no weights are fetched; the cache's record of the
//! revision stays as it is, so that an incomplete copy never looks complete.

use serde_json::Value;
use text_embeddings_checkpoint::{ModelFile, gguf};

use super::config::{ModelConfig, Module};
use super::error::FilesError;
use super::names::{Bound, CONFIG, MODULES, is_gguf};
use super::reading::{read_text, remedy};
use super::repository::Repository;
use super::source::{HubOptions, ModelSource, local};
use super::static_embedding::find_static;
use super::weights::{NEEDS_WEIGHTS, Selection, select};
use super::{DEMO_MODEL_ID, demo, remote};

/// A model's settings without its weights.
#[derive(Debug, Clone)]
pub struct ModelSettings {
    /// The content of `config.json`.
    pub config: Value,
    /// Whether they come from a GGUF file, whose values are quantised.
    pub is_gguf: bool,
    /// Whether it is a SPLADE model, which needs memory for its logits.
    pub is_splade: bool,
}

/// Reads the settings of `source`: a folder or file of this machine, the model in the binary, or a repository
/// of the Hub, whose `config.json` and `modules.json` alone are fetched.
///
/// # Errors
///
/// [`FilesError`] if there is no such model, if its `config.json` cannot be read, or for a model of the Hub
/// whose weights would be fetched.
pub async fn load_settings(source: &ModelSource, options: &HubOptions) -> Result<ModelSettings, FilesError> {
    if source.model_id == DEMO_MODEL_ID {
        return read_settings(&Repository::Memory(demo::files(source.reader.backend)?), None).await;
    }
    let (model_id, reader) = source.split_file()?;
    if let Some((root, file)) = local(model_id)? {
        let repository = Repository::Folder(root);
        let named = file.or(reader.gguf_file.clone()).filter(|name| is_gguf(name));
        let gguf = match named {
            None if !repository.has(CONFIG) => match select(&repository, &reader) {
                Ok(Selection::Gguf(name)) => Some(name),
                _ => None,
            },
            named => named,
        };
        return read_settings(&repository, gguf).await;
    }
    let repository = remote::open_repository(source, options).await?;
    let has_gguf = !repository.has(CONFIG) && repository.names().iter().any(|name| is_gguf(name));
    if reader.gguf_file.is_some() || has_gguf || find_static(&repository).await?.is_some() {
        return Err(FilesError::Refused(format!(
            "the settings of {} are in its weights, which are not fetched here: fetch them with \
             `text-embeddings-router download`, and name the folder or the file that it prints",
            repository.place()
        )));
    }
    read_settings(&repository, None).await
}

/// The settings in a GGUF file of the repository, else of a static embedding model, else in `config.json`.
async fn read_settings(
    repository: &Repository<'_>,
    gguf: Option<String>,
) -> Result<ModelSettings, FilesError> {
    if let Some(name) = gguf {
        let file: ModelFile = repository.require(&name, Bound::ANY, NEEDS_WEIGHTS).await?;
        let file = gguf::File::open(file).map_err(FilesError::Weights)?;
        let config = gguf::config(&file).map_err(FilesError::Weights)?;
        return Ok(ModelSettings { config, is_gguf: true, is_splade: false });
    }
    let unpacked = match find_static(repository).await? {
        Some(found) => Some(Repository::Memory(found.unpack_files(repository).await?.files)),
        None => None,
    };
    let files = unpacked.as_ref().unwrap_or(repository);
    let file = files.require(CONFIG, Bound::Small, remedy(CONFIG)).await?;
    let config = ModelConfig::from_text(&read_text(&file)?)?;
    let modules: Vec<Module> = files.read_json(MODULES).await?.unwrap_or_default();
    let is_splade = modules.iter().any(|module| module.class_name() == "SpladePooling");
    Ok(ModelSettings { config: config.raw, is_gguf: false, is_splade })
}
