//! Chooses and loads a backend: candle, with this project's own kernels on the CPU, or one that a Cargo
//! feature adds.
//!
//! What must hold: the requested backend loads the model or says why it does not. No other backend steps in.

pub use text_embeddings_backend_candle::{
    ArithmeticSpeed, DEVICE, InstructionSet, ModelShape, ON_CPU, PassSettings, PassWork, StoredValues,
    measure_machine,
};
pub use text_embeddings_backend_core::{
    Activation, AnswerRule, AnswerToken, AnswerTokens, Backend, BackendError, BackendKind, Batch,
    BatchBuilder, DenseModule, Description, Head, LoadOptions, Loaded, ModelType, Pool, Pooling, Probe,
    PythonOptions, Text, Wanted, WeightChoices,
};

use serde_json::Value;
use text_embeddings_backend_host::describe_any;

/// Whether this binary contains the backend.
pub fn is_built_in(backend: BackendKind) -> bool {
    match backend {
        BackendKind::Candle => true,
        BackendKind::Ort => cfg!(feature = "ort"),
        BackendKind::Python => cfg!(feature = "python"),
    }
}

/// The description of a model from its `config.json` and the user's choices among its weights, for the
/// backend that will load it.
///
/// # Errors
///
/// [`BackendError::Architecture`] if the backend does not know the architecture, [`BackendError::Load`] if a
/// setting is missing or not supported, or if the model does not offer a choice.
pub fn describe(
    config: &Value,
    choices: &WeightChoices,
    backend: BackendKind,
) -> Result<Description, BackendError> {
    match backend {
        BackendKind::Candle => text_embeddings_backend_candle::describe(config, choices),
        BackendKind::Ort | BackendKind::Python => describe_any(config),
    }
}

/// Loads a model with the backend in `options`, and runs it once.
///
/// # Errors
///
/// [`BackendError::Load`] if a file, setting or weight is missing, broken or not supported, if the model's
/// answers are not finite, or if this binary does not contain the backend.
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

/// Like [`load`] with the Python backend, which takes further options.
///
/// # Errors
///
/// [`BackendError::Load`], as for [`load`], and also if the worker does not start.
#[cfg_attr(not(feature = "python"), expect(unused_variables, reason = "another build uses them"))]
pub fn load_python(options: &LoadOptions, python: &PythonOptions) -> Result<Loaded, BackendError> {
    #[cfg(feature = "python")]
    return text_embeddings_backend_python::load(options, python);
    #[cfg(not(feature = "python"))]
    Err(BackendError::Load(not_built_in(BackendKind::Python)))
}

/// The error for a backend that this binary does not contain.
pub fn not_built_in(backend: BackendKind) -> String {
    format!(
        "this binary was built without the Cargo feature `{backend}`: build it with `--features {backend}`, \
         or choose `--backend candle`"
    )
}

#[cfg(test)]
mod tests;
