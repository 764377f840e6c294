//! Why a checkpoint file cannot be read.

use std::{io, path::PathBuf};

/// The reason why a file was refused, and the way to repair it.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each sentence explains its fields")]
pub enum CheckpointError {
    /// Any other reason.
    #[error("{0}")]
    Refused(String),
    /// The operating system failed to read it.
    #[error("cannot read {path}: {cause}")]
    Io {
        path: PathBuf,
        /// The system's error. It is not the `source` of this error, which would print it a second time.
        cause: io::Error,
    },
    /// The file's content contradicts itself.
    #[error("{path} is damaged ({reason}): delete it and download it again")]
    Damaged { path: PathBuf, reason: String },
    /// The file is complete but uses a feature that is not supported.
    #[error("{path}: {reason}")]
    Unsupported { path: PathBuf, reason: String },
    /// No file has the tensor.
    #[error(
        "the checkpoint has no tensor `{name}`: it is incomplete, or config.json was changed or is another model's; download it again"
    )]
    Missing { name: String },
}
