//! The models and how they are found: by `model_type` in `config.json`.

mod qwen3;

use crate::{
    load::Checkpoint,
    operations::{Operations, Result},
};
use text_embeddings_backend_core::{AnswerTokens, BackendError, Batch};

pub(crate) use qwen3::Qwen3;

/// Loads the model that `config` (the content of `config.json`) describes, as a generative re-ranker.
///
/// # Errors
///
/// [`BackendError::Load`] if the architecture, one of its settings or one of its weights is not supported.
pub(crate) fn load<O: Operations + 'static>(
    config: &serde_json::Value,
    checkpoint: Checkpoint,
    answers: AnswerTokens,
    operations: &O,
) -> Result<Qwen3<O>> {
    match config["model_type"].as_str() {
        Some("qwen3") => Qwen3::load(config, checkpoint, answers, operations),
        other => Err(BackendError::Load(format!(
            "config.json: model_type {} is not supported; supported: \"qwen3\"",
            other.map_or_else(|| "(missing)".to_owned(), |name| format!("{name:?}"))
        ))),
    }
}

/// A model's forward pass.
pub(crate) trait Model<O: Operations>: Send {
    /// The raw score of each text in the batch.
    fn forward(&mut self, operations: &mut O, batch: &Batch) -> Result<Vec<f32>>;
}
