//! The models and how they are found: by `model_type` in `config.json`.

mod qwen3;

use crate::{
    load::Checkpoint,
    operations::{Operations, Result},
    pass::Pass,
};
use text_embeddings_backend_core::BackendError;

pub(crate) use qwen3::Qwen3;

/// The input embedding in checkpoints.
pub(crate) const INPUT_EMBEDDING: &str = "embed_tokens.weight";
/// The output embedding in checkpoints. Of a model that does not answer in words, or whose output embedding is tied to
/// the input's, it may be there and unused.
pub(crate) const OUTPUT_EMBEDDING: &str = "lm_head.weight";

/// What a head needs to know of the model below it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Token ids are below it.
    pub(crate) vocabulary: usize,
    /// Values of a hidden state.
    pub(crate) hidden: usize,
    /// The tensor, `[vocabulary, hidden]`, that turns hidden states into logits.
    pub(crate) output_embedding: &'static str,
    /// Layers, each of which makes keys and values.
    pub(crate) layers: usize,
    /// Values of a token's keys and values in one layer.
    pub(crate) keys_values: usize,
    /// The token that pads texts in training.
    pub(crate) padding: Option<u32>,
}

/// Loads the model that `config` (the content of `config.json`) describes, without a head.
///
/// # Errors
///
/// [`BackendError::Load`] if the architecture, one of its settings or one of its weights is not supported.
pub(crate) fn load<O: Operations + 'static>(
    config: &serde_json::Value,
    checkpoint: &Checkpoint,
    operations: &O,
) -> Result<Qwen3<O>> {
    match config["model_type"].as_str() {
        Some("qwen3") => Qwen3::load(config, checkpoint, operations),
        other => Err(BackendError::Load(format!(
            "config.json: model_type {} is not supported; supported: \"qwen3\"",
            other.map_or_else(|| "(missing)".to_owned(), |name| format!("{name:?}"))
        ))),
    }
}

/// A model's forward pass.
pub(crate) trait Model<O: Operations>: Send {
    /// The hidden states, after the final norm, of some rows of the batch: `[rows, hidden]`. `rows` is ascending, without
    /// repetition and not empty, and of rows that the pass computes. Each layer's keys and values go through
    /// [`Pass::exchange`].
    fn forward(&mut self, operations: &mut O, pass: &mut Pass<'_>, rows: &[usize]) -> Result<O::Tensor>;

    /// What a head needs to know.
    fn shape(&self) -> Shape;
}
