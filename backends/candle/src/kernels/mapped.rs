//! Files mapped into memory: checkpoints are read by the page, when a product first needs them, and shared with the
//! page cache instead of copied.

use memmap2::Mmap;
use std::{fs::File, io, path::Path};

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
