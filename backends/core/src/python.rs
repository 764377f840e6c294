//! The options that only the Python backend takes.

use crate::Pool;
use std::path::PathBuf;

/// The interpreter, its permissions and its checks.
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
