//! The way from `--model-id` to a model folder.
//!
//! Input: a Hub id or a directory. Output: a [`ModelFolder`] on local disk. What must hold: an incomplete
//! file is never used; each error names the file or flag, and the remedy.

mod adapter;
mod class_settings;
mod config;
mod demo;
mod error;
#[cfg(test)]
pub(crate) mod fake_hub;
mod folder;
mod gguf;
mod head;
mod hub;
mod late_interaction;
mod laya;
mod module_settings;
mod modules;
mod names;
mod onnx;
mod pointer;
mod progress;
mod python;
mod read;
mod reading;
mod remote;
mod repository;
mod settings;
mod small_files;
mod source;
mod static_embedding;
mod templates;
mod tokenizer_folder;
mod weights;

pub use config::{LogitScore, ModelConfig, Module, PoolingConfig};
pub use demo::DEMO_MODEL_ID;
pub use error::FilesError;
pub use folder::{Describe, ModelFolder};
pub(crate) use head::{class_labels, positive_label};
pub use head::{embedding_head, scores_head};
pub(crate) use late_interaction::{Expansion, LateInteraction, Marking};
pub use settings::{ModelSettings, load_settings};
pub use source::{HubOptions, ModelSource, Reader};
pub(crate) use static_embedding::StaticTokens;
pub use templates::ChosenTemplate;
pub use text_embeddings_checkpoint::Format;
pub use weights::StoredWeights;

use read::{GivenParts, read_model};
use repository::Repository;
use source::local;
use weights::Selection;

/// Reads the model of `source`: a folder or file of this machine, the model in the binary (`demo`; write
/// `./demo` for a directory of that name), or a repository of the Hub, whose files are fetched. `describe`
/// refuses a model that no backend supports before its weights are fetched.
///
/// # Errors
///
/// [`FilesError`] if the model cannot be fetched, is incomplete or not supported.
pub async fn load(
    source: &ModelSource,
    options: &HubOptions,
    describe: &Describe,
) -> Result<ModelFolder, FilesError> {
    match Box::pin(load_with(source, options, describe, None)).await {
        Err(FilesError::LacksBase { place, base, revision }) => {
            let found = Box::pin(load_base(source, options, describe, base.clone(), revision)).await;
            let found = found.map_err(|cause| {
                FilesError::Refused(format!(
                    "{place} is an adapter of the model `{base}`, which cannot be read: {cause} (a folder with the \
                     last part of its name next to the adapter's folder is used instead of the Hub)"
                ))
            })?;
            Box::pin(load_with(source, options, describe, Some(&found))).await
        }
        other => other,
    }
}

/// Reads the model to which the adapter `source` is added.
async fn load_base(
    source: &ModelSource,
    options: &HubOptions,
    describe: &Describe,
    base: String,
    revision: Option<String>,
) -> Result<ModelFolder, FilesError> {
    let base = pointer::base_source(source, base, revision)?;
    load_with(&base, options, describe, None).await
}

/// Reads the model of `source`. `base` is the model to which it is added, if it is an adapter.
async fn load_with(
    source: &ModelSource,
    options: &HubOptions,
    describe: &Describe,
    base: Option<&ModelFolder>,
) -> Result<ModelFolder, FilesError> {
    let given = source.model_id.clone();
    if given == DEMO_MODEL_ID {
        let files = Repository::Memory(demo::files(source.reader.backend)?);
        let model = read_model(&files, GivenParts::default(), &source.reader, describe).await?;
        return Ok(ModelFolder { given_name: Some(given.clone()), model_id: given, ..model });
    }
    let (model_id, reader) = source.split_file()?;
    let model = match local(model_id)? {
        Some((root, file)) => {
            let selection = file.map(|file| Selection::new(model_id, file, &reader)).transpose()?;
            read_model(&Repository::Folder(root), GivenParts { selection, base }, &reader, describe).await?
        }
        None => remote::load_remote(source, options, describe, base).await?,
    };
    Ok(ModelFolder { model_id: given, ..model })
}
