//! Chooses and loads a backend: candle, with this project's own kernels on the CPU, or one that a Cargo feature builds in.
//!
//! What must hold: the backend that is asked for loads the model or says why it does not; never does another one.

pub use text_embeddings_backend_candle::{CUTOFF_LAYERS, InstructionSet, LORA_TASK, ON_CPU};
use text_embeddings_backend_core::describe_any;
pub use text_embeddings_backend_core::{
    Activation, AnswerTokens, Backend, BackendError, BackendKind, Batch, BatchBuilder, DenseModule,
    Description, Head, LoadOptions, Loaded, ModelType, Pool, Text, Wanted,
};

use serde_json::Value;

/// Whether this binary has the backend.
#[must_use]
pub fn is_built_in(backend: BackendKind) -> bool {
    match backend {
        BackendKind::Candle => true,
        BackendKind::Ort => cfg!(feature = "ort"),
        BackendKind::Python => cfg!(feature = "python"),
    }
}

/// The facts that follow from `config.json` alone, for the backend that will load the model.
///
/// # Errors
///
/// [`BackendError::Architecture`] if the backend has no such architecture, [`BackendError::Load`] if a setting is missing
/// or not supported.
pub fn describe(config: &Value, backend: BackendKind) -> Result<Description, BackendError> {
    match backend {
        BackendKind::Candle => text_embeddings_backend_candle::describe(config),
        BackendKind::Ort | BackendKind::Python => describe_any(config),
    }
}

/// Loads a model with the backend that `options` name, and runs it once.
///
/// # Errors
///
/// [`BackendError::Load`] if a file, setting or weight is missing, broken or not supported, if the model's answers are not
/// numbers, or if this binary does not have the backend.
pub fn load(options: &LoadOptions) -> Result<Loaded, BackendError> {
    match options.backend {
        BackendKind::Candle => text_embeddings_backend_candle::load(options),
        #[cfg(feature = "ort")]
        BackendKind::Ort => text_embeddings_backend_ort::load(options),
        #[cfg(not(feature = "ort"))]
        BackendKind::Ort => Err(BackendError::Load(not_built_in(options.backend))),
        BackendKind::Python => Err(BackendError::Load(not_built_in(options.backend))),
    }
}

/// The words for a backend that this binary does not have.
#[must_use]
pub fn not_built_in(backend: BackendKind) -> String {
    format!(
        "this binary was built without the Cargo feature `{backend}`: build it with `--features {backend}`, or choose \
         `--backend candle`"
    )
}

#[cfg(test)]
mod tests;
