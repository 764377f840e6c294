//! The options and the result of loading a model: the same for every backend.

use crate::{Backend, BackendKind, DType, Head};
use std::path::PathBuf;

/// The files and settings that a model is loaded with.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// The backend that loads them.
    pub backend: BackendKind,
    /// The model's folder.
    pub folder: PathBuf,
    /// The content of `config.json`.
    pub config: serde_json::Value,
    /// The files of weights; for ONNX Runtime the graph.
    pub weights: Vec<PathBuf>,
    /// The longest input in tokens, prompt included: what bounds the memory of a backend that pads.
    pub max_input_length: usize,
    /// The head: it turns the last hidden states into answers.
    pub head: Head,
    /// The arithmetic. If absent: what the checkpoint is stored in where the CPU multiplies that natively, else `f32`.
    pub dtype: Option<DType>,
    /// Compute threads on the CPU.
    pub threads: usize,
    /// Whether each of them is kept on a CPU of its own.
    pub pin_threads: bool,
    /// The name of the vector instructions to use, only on the CPU. If absent: the best it has.
    pub instruction_set: Option<String>,
    /// The most bytes of keys and values kept for later texts that begin alike; 0 for none.
    pub prefix_cache_bytes: usize,
    /// Whether a GPU may use flash attention, in a build that has it.
    pub flash_attention: bool,
}

/// A loaded model and the words for where it computes.
pub struct Loaded {
    /// The model.
    pub backend: Box<dyn Backend>,
    /// Which backend it is.
    pub kind: BackendKind,
    /// The name and version of the library that computes, such as `ONNX Runtime 1.31.1`; none where this binary does.
    pub library: Option<String>,
    /// `cpu`, `cuda` or `metal`: the `x-compute-type` of answers.
    pub device: &'static str,
    /// The arithmetic in force.
    pub dtype: DType,
    /// The name of the vector instructions in use; none where the CPU does not compute.
    pub instruction_set: Option<String>,
    /// The most bytes of keys and values that are kept for later texts; 0 where nothing is.
    pub prefix_cache_bytes: usize,
}
