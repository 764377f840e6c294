//! A file of a model, on disk or in memory.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use bytes::Bytes;

/// A file of a model: on disk, in the binary, or made from another file's metadata.
#[derive(Clone, PartialEq, Eq)]
pub enum ModelFile {
    /// A path.
    Disk(PathBuf),
    /// A content without a path.
    Memory {
        /// The file's name, for messages.
        name: PathBuf,
        /// The content.
        bytes: Bytes,
    },
}

impl Default for ModelFile {
    /// A file without a name, which cannot be read.
    fn default() -> Self {
        Self::Disk(PathBuf::new())
    }
}

impl ModelFile {
    /// The file's path; in memory, its name.
    pub fn path(&self) -> &Path {
        match self {
            Self::Disk(path) => path,
            Self::Memory { name, .. } => name,
        }
    }

    /// The file's length in bytes.
    ///
    /// # Errors
    ///
    /// The system's error, if the file cannot be found.
    pub fn length(&self) -> io::Result<u64> {
        match self {
            Self::Disk(path) => fs::metadata(path).map(|metadata| metadata.len()),
            Self::Memory { bytes, .. } => Ok(bytes.len() as u64),
        }
    }
}

impl fmt::Debug for ModelFile {
    /// The name. The content may be long.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path().fmt(f)
    }
}

impl From<PathBuf> for ModelFile {
    fn from(path: PathBuf) -> Self {
        Self::Disk(path)
    }
}

impl From<&Path> for ModelFile {
    fn from(path: &Path) -> Self {
        Self::Disk(path.into())
    }
}

impl From<&PathBuf> for ModelFile {
    fn from(path: &PathBuf) -> Self {
        Self::Disk(path.clone())
    }
}
