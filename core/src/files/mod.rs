//! The way from `--model-id` to a model folder and the model's kind.
//!
//! Input: a Hub id or a directory. Output: a [`ModelFolder`] on local disk, and with [`detect()`] the kind of
//! the model. What must hold: an incomplete file is never used; each error names the file or flag, and the
//! remedy.

mod config;
mod demo;
mod dense;
mod detect;
mod error;
#[cfg(test)]
mod fake_hub;
mod folder;
mod gguf;
mod head;
mod hub;
mod layer_norm;
mod modules;
mod onnx;
mod progress;
mod python;
mod reading;
mod source;
mod templates;
mod weights;

use std::sync::Arc;

pub use config::{LogitScore, ModelConfig, Module, PoolingConfig};
pub use demo::DEMO_MODEL_ID;
pub use detect::{DetectError, KindFlags, ModelFacts, RequestedType, check_head, detect, template_has_roles};
pub use error::FilesError;
pub use folder::{ChosenTemplate, Describe, ModelFolder};
pub use head::{class_labels, embedding_head, positive_label, scores_head};
pub use hub::{LocalModel, fetch};
pub use source::{HubOptions, ModelSource, Reader};
pub use text_embeddings_checkpoint::Format;
pub use weights::StoredWeights;

/// Fetches the model of `source`, unless it is local, and reads its folder. `demo` is the model in the
/// binary; write `./demo` for a directory of that name. `describe` refuses a model that no backend supports
/// before its weights are fetched.
///
/// # Errors
///
/// [`FilesError`] if the model cannot be fetched, is incomplete or not supported.
pub async fn load(
    source: &ModelSource,
    options: &HubOptions,
    describe: &Describe,
) -> Result<ModelFolder, FilesError> {
    if source.model_id == DEMO_MODEL_ID {
        let unpacked = demo::unpack()?;
        let folder = ModelFolder::open(unpacked.path(), &source.reader, describe)?;
        let model_id = source.model_id.clone();
        let given_name = Some(model_id.clone());
        return Ok(ModelFolder { model_id, given_name, unpacked: Some(Arc::new(unpacked)), ..folder });
    }
    let LocalModel { root, revision_sha, weights } = fetch(source, options, describe).await?;
    let folder = match weights {
        Some(weights) => ModelFolder::open_selected(&root, &weights, source.reader.backend, describe)?,
        None => ModelFolder::open(&root, &source.named()?.1, describe)?,
    };
    Ok(ModelFolder { model_id: source.model_id.clone(), revision_sha, ..folder })
}
