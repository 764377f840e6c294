//! Why a checkpoint file cannot be read.

use std::{io, path::PathBuf};

/// The reason why a file was refused, and the way to repair it.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The operating system failed to read it.
    #[error("cannot read {path}: {cause}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error. It is not the `source` of this error, which would print it a second time.
        cause: io::Error,
    },
    /// A directory, a pipe or a device.
    #[error("{path} is {kind}, not a file: put the file itself there")]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// The kind of path, with its article.
        kind: &'static str,
    },
    /// A Git LFS pointer.
    #[error("{path} is only a Git LFS pointer, not the file itself: run `git lfs pull` in its folder")]
    LfsPointer {
        /// The file.
        path: PathBuf,
    },
    /// The file's length contradicts its header.
    #[error(
        "{path} has {actual} bytes where its header promises {expected}: delete it and download it again"
    )]
    WrongLength {
        /// The file.
        path: PathBuf,
        /// The length by the header, in bytes.
        expected: u64,
        /// The length on disk, in bytes.
        actual: u64,
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
    #[error("the checkpoint has no tensor `{name}`: it is incomplete or of another model; download it again")]
    Missing {
        /// The tensor.
        name: String,
    },
    /// Two files have the tensor, or one has it under two spellings.
    #[error("tensor `{name}` is in the checkpoint twice: in {earlier} and in {path}")]
    Repeated {
        /// The tensor.
        name: String,
        /// The first file.
        earlier: PathBuf,
        /// The second file.
        path: PathBuf,
    },
    /// The tensor does not fit the model's settings.
    #[error("tensor `{name}` in {path} has shape {shape:?}, but config.json asks for {expected:?}")]
    WrongShape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
        /// The shape by the settings.
        expected: Vec<usize>,
    },
    /// The model does not use the tensor.
    #[error(
        "tensor `{name}` in {path} is not part of this architecture: the model needs something that is not \
         supported"
    )]
    Unused {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
    },
}
