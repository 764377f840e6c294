//! Checkpoint files as tensors by name: safetensors, PyTorch's pickles, GGUF.
//!
//! Input: a [`ModelFile`]. Output: a [`CheckpointFile`], whose tensors are read when they are needed. What
//! must hold:
//! - every length, count and offset in a file is checked against the file's length before memory is taken for
//!   it;
//! - nothing in a file is executed, and no file is mapped into memory;
//! - a tensor has the name, shape and order of values that `transformers` gives it;
//! - reading a tensor of a type that is not supported is an error that names the tensor.

mod blocks;
mod encoding;
mod error;
pub mod gguf;
mod model_file;
mod pickle;
mod safetensors;
mod tensor;
mod tensors;

pub use blocks::FourBits;
pub use encoding::{BF16, Encoding, F16, F32, UNSCALED_BYTES};
pub use error::CheckpointError;
pub use model_file::ModelFile;
pub use tensor::Tensor;
pub use tensors::Tensors;

use bytes::Bytes;
use std::{
    collections::{BTreeMap, btree_map},
    fmt,
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The first bytes of a Git LFS pointer, which replaces a file that was not fetched.
const LFS_PREFIX: &[u8] = b"version https://git-lfs";
/// The most bytes by which formats are told apart.
const MAX_MAGIC: u64 = 16;

/// Whether the value of a setting, in JSON, means that it is not set.
pub fn is_switched_off(setting: &serde_json::Value) -> bool {
    use serde_json::Value;
    match setting {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// A format of checkpoint files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `.safetensors`
    Safetensors,
    /// `.bin` and `.pt` of `torch.save`
    Pickle,
    /// `.gguf` of llama.cpp
    Gguf,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Safetensors => "safetensors",
            Self::Pickle => "PyTorch pickle",
            Self::Gguf => "GGUF",
        })
    }
}

/// The content of a file.
#[derive(Debug)]
pub struct CheckpointFile {
    /// Its format.
    pub format: Format,
    /// Its tensors.
    pub tensors: BTreeMap<String, Tensor>,
}

/// An open file, shared by its tensors.
#[derive(Debug)]
pub(crate) struct Source {
    path: PathBuf,
    content: Content,
    /// The file's length in bytes when it was opened.
    length: u64,
}

/// Where the bytes of a file are.
#[derive(Debug)]
pub(crate) enum Content {
    File(File),
    Memory(Bytes),
}

impl Source {
    fn open(file: &ModelFile) -> Result<Self, CheckpointError> {
        let source = match file {
            ModelFile::Disk(path) => Self::open_path(path)?,
            ModelFile::Memory { name, bytes } => {
                let length = bytes.len() as u64;
                Self { path: name.clone(), content: Content::Memory(bytes.clone()), length }
            }
        };
        if source.start(LFS_PREFIX.len() as u64)? == LFS_PREFIX {
            return Err(CheckpointError::Refused(format!(
                "{} is only a Git LFS pointer, not the file itself: run `git lfs pull` in its folder",
                source.path.display()
            )));
        }
        Ok(source)
    }

    fn open_path(path: &Path) -> Result<Self, CheckpointError> {
        let failed = |cause| CheckpointError::Io { path: path.into(), cause };
        // Opening a pipe would block until another process writes to it.
        let metadata = path.metadata().map_err(failed)?;
        if !metadata.is_file() {
            let kind = if metadata.is_dir() { "a directory" } else { "a pipe, a socket or a device" };
            return Err(CheckpointError::Refused(format!(
                "{} is {kind}, not a file: put the file itself there",
                path.display()
            )));
        }
        let file = File::open(path).map_err(failed)?;
        Ok(Self { path: path.into(), content: Content::File(file), length: metadata.len() })
    }

    /// The first bytes of the file, at most `max_length`.
    fn start(&self, max_length: u64) -> Result<Vec<u8>, CheckpointError> {
        self.read(0, max_length.min(self.length) as usize)
    }

    /// `length` bytes from offset `place`. The file may have become shorter since it was opened.
    fn read(&self, place: u64, length: usize) -> Result<Vec<u8>, CheckpointError> {
        let file = match &self.content {
            Content::File(file) => file,
            Content::Memory(bytes) => {
                let part = usize::try_from(place).ok().and_then(|start| bytes.get(start..)?.get(..length));
                return part
                    .map(<[u8]>::to_vec)
                    .ok_or_else(|| self.damaged(format!("it has no {length} bytes from byte {place} on")));
            }
        };
        let mut bytes = vec![0; length];
        let read = file.read_exact_at(&mut bytes, place);
        read.map_err(|cause| CheckpointError::Io { path: self.path.clone(), cause })?;
        Ok(bytes)
    }

    fn damaged(&self, reason: impl Into<String>) -> CheckpointError {
        CheckpointError::Damaged { path: self.path.clone(), reason: reason.into() }
    }

    fn unsupported(&self, reason: impl Into<String>) -> CheckpointError {
        CheckpointError::Unsupported { path: self.path.clone(), reason: reason.into() }
    }
}

/// Opens a checkpoint file, recognises its format by its first bytes, and reads the descriptions of its
/// tensors.
///
/// # Errors
///
/// [`CheckpointError`] naming the file if it cannot be read, is incomplete, or has a feature that is not
/// supported.
pub fn open(file: impl Into<ModelFile>) -> Result<CheckpointFile, CheckpointError> {
    let source = Arc::new(Source::open(&file.into())?);
    let start = source.start(MAX_MAGIC)?;
    if start.starts_with(gguf::MAGIC) {
        let tensors = gguf::tensors(&gguf::File::read(source)?)?;
        return Ok(CheckpointFile { format: Format::Gguf, tensors });
    }
    if pickle::is_pickle(&start) {
        return Ok(CheckpointFile { format: Format::Pickle, tensors: pickle::tensors(&source)? });
    }
    let tensors = safetensors::tensors(&source).map_err(|error| match error {
        CheckpointError::Damaged { path, .. } if path.extension().is_some_and(|ending| ending == "bin") => {
            CheckpointError::Damaged { path, reason: "it is no file of `torch.save`".to_owned() }
        }
        other => other,
    })?;
    Ok(CheckpointFile { format: Format::Safetensors, tensors })
}

fn insert(
    tensors: &mut BTreeMap<String, Tensor>,
    name: String,
    tensor: Tensor,
) -> Result<(), CheckpointError> {
    match tensors.entry(name) {
        btree_map::Entry::Vacant(entry) => {
            entry.insert(tensor);
            Ok(())
        }
        btree_map::Entry::Occupied(entry) => {
            let reason = format!("it holds the tensor `{}` twice", entry.key());
            Err(CheckpointError::Damaged { path: tensor.path().into(), reason })
        }
    }
}
