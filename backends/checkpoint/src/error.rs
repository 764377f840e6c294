//! Why a checkpoint file cannot be read.

use std::{io, path::PathBuf};

/// A file that is not read, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The operating system refuses it.
    #[error("cannot read {path}: {cause}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer. It is not the `source` of this error, which would be printed a second time.
        cause: io::Error,
    },
    /// A directory, a pipe or a device.
    #[error("{path} is {kind}, not a file: put the file itself there")]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// A Git LFS pointer.
    #[error("{path} is only a Git LFS pointer, not the file itself: run `git lfs pull` in its folder")]
    LfsPointer {
        /// The file.
        path: PathBuf,
    },
    /// The file is longer or shorter than it says.
    #[error(
        "{path} has {actual} bytes where its header promises {expected}: delete it and download it again"
    )]
    WrongLength {
        /// The file.
        path: PathBuf,
        /// Bytes by the header.
        expected: u64,
        /// Bytes on disk.
        actual: u64,
    },
    /// The file's content contradicts itself.
    #[error("{path} is damaged ({reason}): delete it and download it again")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The file is whole, but holds something that is not supported.
    #[error("{path}: {reason}")]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What it is, and what to do.
        reason: String,
    },
}
