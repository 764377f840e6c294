//! Files mapped into memory: checkpoints are read by the page, when a product first needs them, and shared with the
//! page cache instead of copied.

use memmap2::{Mmap, UncheckedAdvice};
use std::{fs::File, io, ops::Range, path::Path};

/// Maps `path` for reading.
///
/// # Errors
///
/// Whatever opening or mapping the file fails with.
pub(crate) fn map(path: &Path) -> io::Result<Mmap> {
    let file = File::open(path)?;
    // SAFETY: a mapping is unsound to read while another process shortens or rewrites the file. Model files are
    // written once: the Hub's cache renames complete files into place, and the documentation tells users not to
    // overwrite the folder of a running server.
    unsafe { Mmap::map(&file) }
}

/// Lets the system take back the memory of these bytes, which will hardly be read again: if they are, they come from the
/// file as before.
pub(crate) fn release(file: &Mmap, bytes: Range<usize>) {
    // SAFETY: the mapping is shared and read-only, so its pages hold nothing but the file's content. A refusal by the
    // system costs memory and nothing else.
    let _ = unsafe { file.unchecked_advise_range(UncheckedAdvice::DontNeed, bytes.start, bytes.len()) };
}
