//! The options and the result of loading a model, the same for every backend.

use crate::{Backend, BackendKind, DType, Head, ModelFile, Numbers, Pool, TokenSimilarity};
use std::{path::PathBuf, sync::Arc, time::Duration};

/// The files and settings that a model is loaded with.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// The backend that loads the model.
    pub backend: BackendKind,
    /// The model's folder.
    pub folder: PathBuf,
    /// The content of `config.json`.
    pub config: serde_json::Value,
    /// The choices among the weights.
    pub choices: WeightChoices,
    /// The files with weights; for ONNX Runtime, the graph.
    pub weights: Vec<ModelFile>,
    /// The longest input in tokens, prompt included. It bounds the memory of a backend that pads.
    pub max_input_length: usize,
    /// The head: it turns the last hidden states into answers.
    pub head: Head,
    /// The requested arithmetic: [`Numbers::choose`].
    pub dtype: Option<DType>,
    /// Compute threads on the CPU.
    pub threads: usize,
    /// Whether each compute thread is pinned to a CPU of its own. Absent: if there are as many CPUs, and the
    /// system can do it.
    pub pin_threads: Option<bool>,
    /// The name of the CPU's vector instructions to use. If absent: the best that the CPU has.
    pub instruction_set: Option<String>,
    /// The size of the cache of keys and values for later texts with the same prefix, in bytes; 0 for no
    /// cache.
    pub prefix_cache_bytes: usize,
    /// Whether a GPU may use flash attention, in a build that has it.
    pub flash_attention: bool,
    /// How long a batch may take before the engine treats the device as hung; no limit if absent.
    pub device_timeout: Option<Duration>,
}

impl LoadOptions {
    /// The options for loading this model with candle on one thread, without a cache and a deadline, in the
    /// arithmetic that fits the machine.
    pub fn new(config: serde_json::Value, weights: Vec<ModelFile>, head: Head) -> Self {
        Self {
            backend: BackendKind::Candle,
            folder: PathBuf::new(),
            config,
            choices: WeightChoices::default(),
            weights,
            max_input_length: 0,
            head,
            dtype: None,
            threads: 1,
            pin_threads: Some(false),
            instruction_set: None,
            prefix_cache_bytes: 0,
            flash_attention: true,
            device_timeout: None,
        }
    }

    /// How long a backend that can stop a batch lets it run: nine tenths of the time after which the engine
    /// treats the device as hung and fails all waiting requests. So only the batch fails.
    pub fn batch_limit(&self) -> Option<Duration> {
        self.device_timeout.map(|limit| limit * 9 / 10)
    }
}

/// The user's choices among the weights of a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WeightChoices {
    /// The task whose adapter is added to the weights; absent: no adapter.
    pub lora_task: Option<String>,
    /// The number of layers after which a layer-wise re-ranker scores; absent: its authors' choice.
    pub cutoff_layers: Option<usize>,
}

/// A loaded model and the description of the place where it computes.
pub struct Loaded {
    /// The model.
    pub backend: Box<dyn Backend>,
    /// The backend that it runs on.
    pub kind: BackendKind,
    /// The name and version of the library that computes, such as `ONNX Runtime 1.31.1`; `None` if this
    /// binary computes itself.
    pub library: Option<String>,
    /// `cpu`, `cuda` or `metal`: the header `x-compute-type` of answers.
    pub device: &'static str,
    /// The arithmetic in force.
    pub numbers: Numbers,
    /// The name of the vector instructions in use; `None` if the model does not run on the CPU.
    pub instruction_set: Option<String>,
    /// Whether each compute thread has a CPU of its own.
    pub pinned_threads: bool,
    /// The size of the cache of keys and values for later texts, in bytes; 0 without a cache.
    pub prefix_cache_bytes: usize,
    /// Compares texts by the vectors of their tokens.
    pub similarity: Arc<dyn TokenSimilarity>,
}

/// The options that only the Python backend takes: the interpreter, its permissions and its checks.
#[derive(Debug, Clone)]
pub struct PythonOptions {
    /// The Python interpreter. It must have PyTorch and sentence-transformers.
    pub interpreter: PathBuf,
    /// Whether Python files of the model may run.
    pub trust_remote_code: bool,
    /// The pooling of an embedding model whose files do not name one; `None` if its modules do.
    pub pooling: Option<Pool>,
    /// Texts with their ids. The worker's tokenizer must give the same ids.
    pub probes: Vec<Probe>,
}

/// A text or a pair, with the ids from the router's tokenizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// The text, or the two texts of a pair.
    pub texts: Vec<String>,
    /// Its ids.
    pub ids: Vec<u32>,
    /// The index of the first token of type 1.
    pub second: Option<usize>,
}
