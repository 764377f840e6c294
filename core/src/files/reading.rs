//! Opens and reads the files of a model, which may come from anyone.
//!
//! Input: a file. Output: the open file, or its text. What must hold: only regular files are opened, because
//! opening a pipe blocks until another process writes to it, and a device may never end; at most the limit is
//! read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use serde::de::DeserializeOwned;
use text_embeddings_checkpoint::ModelFile;

use super::error::FilesError;
use super::names::{TOKENIZER, max_bytes};

/// The first bytes of a Git LFS pointer, which replaces a file that was not fetched.
const LFS_PREFIX: &[u8] = b"version https://git-lfs";
/// The number of first bytes by which [`is_lfs_pointer`] recognises a pointer.
pub(super) const LFS_BYTES: u64 = LFS_PREFIX.len() as u64;

/// The remedy for a missing `config.json` or `tokenizer.json`.
pub(super) fn remedy(file: &str) -> &'static str {
    if file == TOKENIZER {
        "this server needs the tokenizer as tokenizer.json (a fast tokenizer; `AutoTokenizer.from_pretrained(…)\
         .save_pretrained(…)` writes it)"
    } else {
        "check that `--model-id` names a model in the layout of `transformers`"
    }
}

/// Files without a folder.
pub(super) struct MemoryFiles {
    /// The name of the folder in messages.
    pub(super) root: PathBuf,
    /// The contents by name.
    pub(super) files: BTreeMap<String, Bytes>,
}

impl MemoryFiles {
    /// Files by name.
    pub(super) fn from_files<N: Into<String>, C: Into<Bytes>>(
        root: PathBuf,
        files: impl IntoIterator<Item = (N, C)>,
    ) -> Self {
        let files = files.into_iter().map(|(name, content)| (name.into(), content.into())).collect();
        Self { root, files }
    }
}

/// A text file of a model.
#[derive(Debug)]
pub(super) struct FileText {
    /// Its path; in memory, its name.
    pub(super) path: PathBuf,
    pub(super) text: String,
}

impl FileText {
    /// Its content as JSON.
    pub(super) fn parse<T: DeserializeOwned>(&self) -> Result<T, FilesError> {
        serde_json::from_str(&self.text)
            .map_err(|error| FilesError::Json { path: self.path.clone(), reason: error.to_string() })
    }
}

/// Reads a text file, which must be UTF-8.
pub(super) fn read_text(file: &ModelFile) -> Result<FileText, FilesError> {
    let path = file.path().to_owned();
    let text = match file {
        ModelFile::Disk(path) => text(path, max_bytes(&file_name(path)))?,
        ModelFile::Memory { bytes, .. } => String::from_utf8(bytes.to_vec())
            .map_err(|error| FilesError::Json { path: path.clone(), reason: error.to_string() })?,
    };
    if is_lfs_pointer(text.as_bytes()) {
        return Err(FilesError::LfsPointer { path });
    }
    Ok(FileText { path, text })
}

/// Checks that a file other than weights is a regular file of plausible length and not a Git LFS pointer.
pub(super) fn check_small_file(file: &ModelFile) -> Result<(), FilesError> {
    let ModelFile::Disk(path) = file else { return Ok(()) };
    let mut start = Vec::new();
    let (file, length) = open(path)?;
    let max_length = max_bytes(&file_name(path));
    if length > max_length {
        return Err(FilesError::TooLong { file: path.display().to_string(), max_length });
    }
    file.take(LFS_BYTES).read_to_end(&mut start).map_err(|error| FilesError::io(path, error))?;
    if is_lfs_pointer(&start) { Err(FilesError::LfsPointer { path: path.into() }) } else { Ok(()) }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The result of reading files that are on this machine. Only the Hub makes a reader wait.
pub(super) fn run_ready<T>(reading: impl Future<Output = T>) -> T {
    let mut reading = pin!(reading);
    loop {
        if let Poll::Ready(result) = reading.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return result;
        }
        std::thread::yield_now();
    }
}

/// Opens a regular file. Also returns its length in bytes.
pub(super) fn open(path: &Path) -> Result<(File, u64), FilesError> {
    let unreadable = |error| FilesError::io(path, error);
    let metadata = path.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        let kind = if metadata.is_dir() { "a directory" } else { "a pipe, a socket or a device" };
        return Err(FilesError::NotAFile { path: path.into(), kind });
    }
    Ok((File::open(path).map_err(unreadable)?, metadata.len()))
}

/// Reads a UTF-8 text of at most `max_length` bytes.
pub(super) fn text(path: &Path, max_length: u64) -> Result<String, FilesError> {
    let (file, length) = open(path)?;
    let too_long = || Err(FilesError::TooLong { file: path.display().to_string(), max_length });
    if length > max_length {
        return too_long();
    }
    let mut text = String::with_capacity(length as usize);
    file.take(max_length + 1).read_to_string(&mut text).map_err(|error| FilesError::io(path, error))?;
    // Files in /proc report no length, and other files may grow.
    if text.len() as u64 > max_length { too_long() } else { Ok(text) }
}

/// Whether a file with these first bytes is a Git LFS pointer.
pub(super) fn is_lfs_pointer(start: &[u8]) -> bool {
    start.starts_with(LFS_PREFIX)
}
