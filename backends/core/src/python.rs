//! What only the Python backend is told of a model.

use crate::Pool;
use std::{path::PathBuf, time::Duration};

/// The interpreter, and what it may do.
#[derive(Debug, Clone)]
pub struct PythonOptions {
    /// The interpreter, which has PyTorch and sentence-transformers.
    pub interpreter: PathBuf,
    /// Whether Python files of the model may run.
    pub trust_remote_code: bool,
    /// How an embedding model pools whose files do not say it; none where its modules do.
    pub pooling: Option<Pool>,
    /// Texts with their ids, by which the tokenizers are compared.
    pub probes: Vec<Probe>,
    /// How long a batch may take before the engine takes the device for hung; any time if absent.
    pub device_timeout: Option<Duration>,
}

/// A text or a pair with the ids that the router's tokenizer gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// The text, or the two texts of a pair.
    pub texts: Vec<String>,
    /// Its ids.
    pub ids: Vec<u32>,
    /// The index of the first token of type 1.
    pub second: Option<usize>,
}
