//! Presents an adapter of the family any2jev as a repository of `transformers`.
//!
//! Input: a repository with `any2jev.json`, an adapter (PEFT), a head and a tokenizer, and the model to which
//! the adapter is added, its base, which is in a repository of its own. Output: the small files in memory,
//! so that code which reads models needs no special case: the base's `config.json` has the settings of the
//! decider in the field `any2jev`. The weights stay in the files of both repositories.

use serde::Deserialize;
use serde_json::{Map, Value};
use text_embeddings_checkpoint::ModelFile;

use super::adapter::{Adapter, read_adapter};
use super::error::FilesError;
use super::folder::ModelFolder;
use super::names::{Bound, CONFIG, POINTER};
use super::reading::{MemoryFiles, read_text};
use super::repository::Repository;
use super::source::{ModelSource, Reader, local};
use super::tokenizer_folder::TokenizerFolder;

/// The files and folders next to the settings.
const ADAPTER: &str = "adapter";
const HEAD: &str = "head.safetensors";
const REMEDY: &str = "a decider of any2jev has it: download the model again";
/// The base that is supported.
const QWEN3: &str = "qwen3";
/// The revision of the base if the settings name none.
const MAIN: &str = "main";

#[derive(Debug, Deserialize)]
pub(super) struct Base {
    /// Its id on the Hub, or its folder.
    #[serde(rename = "base")]
    name: String,
    /// Its revision on the Hub.
    revision: Option<String>,
}

/// The settings that decide how much is read.
#[derive(Deserialize)]
struct Lengths {
    max_state: u64,
    max_branch: u64,
}

pub(super) struct PointerFiles {
    pub(super) files: MemoryFiles,
    /// The files of the weights: the base's, the adapter's and the head's.
    pub(super) weights: Vec<ModelFile>,
}

/// The error of an adapter that is read without its base.
pub(super) async fn lacks_base(repository: &Repository<'_>) -> FilesError {
    let place = repository.place();
    match read_base(repository).await {
        Ok(Base { name, revision }) => FilesError::LacksBase { place, base: name, revision },
        Err(error) => error,
    }
}

async fn read_base(repository: &Repository<'_>) -> Result<Base, FilesError> {
    read_text(&repository.require(POINTER, Bound::Small, REMEDY).await?)?.parse()
}

/// The source of a base: a folder of its name next to the folder of the adapter; otherwise the model that
/// `--model-id` would find by its name. An adapter of the Hub names no path of this machine.
pub(super) fn base_source(
    adapter: &ModelSource,
    base: String,
    revision: Option<String>,
) -> Result<ModelSource, FilesError> {
    let last = base.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let folder = local(&adapter.model_id)?.map(|(folder, _)| folder);
    let beside = folder.as_deref().map(|folder| folder.join("..").join(last));
    let model_id = match (&folder, beside) {
        (Some(_), Some(beside)) if !last.is_empty() && beside.is_dir() => beside.display().to_string(),
        (None, _) if base.starts_with(['/', '.', '~']) => {
            return Err(FilesError::InvalidModelId { model_id: base });
        }
        _ => base,
    };
    Ok(ModelSource {
        model_id,
        revision: revision.unwrap_or_else(|| MAIN.to_owned()),
        token: adapter.token.clone(),
        cache_dir: adapter.cache_dir.clone(),
        reader: Reader { backend: adapter.reader.backend, ..Reader::default() },
    })
}

pub(super) async fn unpack_files(
    repository: &Repository<'_>,
    base: &ModelFolder,
) -> Result<PointerFiles, FilesError> {
    let text = read_text(&repository.require(POINTER, Bound::Small, REMEDY).await?)?;
    let mut settings: Map<String, Value> = text.parse()?;
    let Lengths { max_state, max_branch } = text.parse()?;
    let model_type = base.config.model_type.as_deref();
    let (true, Some(config)) = (model_type == Some(QWEN3), base.config.raw.as_object()) else {
        return Err(FilesError::UnsupportedField {
            path: base.root.join(CONFIG),
            field: "model_type",
            value: model_type.unwrap_or_default().to_owned(),
            known: "`qwen3` is",
        });
    };
    let Adapter { weights: adapter, scale, token_rows } = read_adapter(repository, ADAPTER, REMEDY).await?;
    settings.insert("lora_scale".to_owned(), scale.into());
    settings.insert("token_rows".to_owned(), token_rows.into());
    let mut config = config.clone();
    config.insert("any2jev".to_owned(), Value::Object(settings));
    let max_length = max_state.saturating_add(max_branch);
    let files = TokenizerFolder::read_folder(repository).await?.into_model(repository, config, max_length);
    let head = repository.require(HEAD, Bound::ANY, REMEDY).await?;
    let weights = base.weights.iter().cloned().chain([adapter, head]).collect();
    Ok(PointerFiles { files, weights })
}
