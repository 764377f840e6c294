//! Opens and reads the files of a model, which may come from anyone.
//!
//! Input: a path. Output: the open file, or its text. What must hold: only regular files are opened, because
//! opening a pipe blocks until another process writes to it, and a device may never end; at most the limit is
//! read.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::error::FilesError;

const MIB: u64 = 1 << 20;
/// The longest `tokenizer.json`, in bytes. The largest in use have 35 MB.
const LONGEST_TOKENIZER: u64 = 256 * MIB;
/// The longest index of shards, in bytes. An index has about 100 bytes per tensor.
const LONGEST_INDEX: u64 = 64 * MIB;
/// The longest other file that is not a weight file: configurations and templates. The largest list many
/// labels.
const LONGEST_OTHER: u64 = 16 * MIB;

/// The first bytes of a Git LFS pointer, which replaces a file that was not fetched.
const LFS_PREFIX: &[u8] = b"version https://git-lfs";
/// The number of first bytes by which [`is_lfs_pointer`] recognises a pointer.
pub(super) const LFS_BYTES: u64 = LFS_PREFIX.len() as u64;

/// The most bytes of a file that is not a weight file, by its name.
pub(super) fn longest(file: &str) -> u64 {
    let name = file.rsplit('/').next().unwrap_or(file);
    match name {
        super::folder::TOKENIZER => LONGEST_TOKENIZER,
        index if super::weights::is_index(index) => LONGEST_INDEX,
        _ => LONGEST_OTHER,
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

/// Reads a UTF-8 text of at most `longest` bytes.
pub(super) fn text(path: &Path, longest: u64) -> Result<String, FilesError> {
    let (file, length) = open(path)?;
    let too_long = || Err(FilesError::TooLong { file: path.display().to_string(), longest });
    if length > longest {
        return too_long();
    }
    let mut text = String::with_capacity(length as usize);
    file.take(longest + 1).read_to_string(&mut text).map_err(|error| FilesError::io(path, error))?;
    // Files in /proc report no length, and other files may grow.
    if text.len() as u64 > longest { too_long() } else { Ok(text) }
}

/// Whether a file with these first bytes is a Git LFS pointer.
pub(super) fn is_lfs_pointer(start: &[u8]) -> bool {
    start.starts_with(LFS_PREFIX)
}
