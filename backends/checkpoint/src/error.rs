//! Why a checkpoint file cannot be read.

use std::{io, path::PathBuf};

/// The reason why a file was refused, and the way to repair it.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Any other reason.
    #[error("{0}")]
    Refused(String),
    /// The operating system failed to read it.
    #[error("cannot read {path}: {cause}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error. It is not the `source` of this error, which would print it a second time.
        cause: io::Error,
    },
    /// The file's content contradicts itself.
    #[error("{path} is damaged ({reason}): delete it and download it again")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The defect.
        reason: String,
    },
    /// The file is complete but uses a feature that is not supported.
    #[error("{path}: {reason}")]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The feature, and the remedy.
        reason: String,
    },
    /// No file has the tensor.
    #[error(
        "the checkpoint has no tensor `{name}`: it is incomplete, or config.json was changed or is another model's; download it again"
    )]
    Missing {
        /// The tensor.
        name: String,
    },
}
