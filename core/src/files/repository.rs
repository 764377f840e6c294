//! Where a model's files come from: a folder, the Hub, or memory.
//!
//! Input: the name of a file. Output: whether the repository has it, and a [`ModelFile`] to read. What must
//! hold: `read.rs` asks every repository the same questions in the same order; on the Hub, a file is fetched
//! when it is opened.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use text_embeddings_checkpoint::ModelFile;

use super::error::FilesError;
use super::hub::HubRepository;
use super::names::{Bound, ONNX_FOLDER};
use super::reading::{FileText, MemoryFiles, read_text};

/// The files of a model, by their names.
pub(super) enum Repository<'a> {
    /// A folder on this machine.
    Folder(PathBuf),
    /// Files in memory.
    Memory(MemoryFiles),
    /// A revision of a repository on the Hub.
    Hub(Box<HubRepository<'a>>),
}

impl Repository<'_> {
    /// The repository in messages.
    pub(super) fn place(&self) -> String {
        match self {
            Self::Folder(root) | Self::Memory(MemoryFiles { root, .. }) => root.display().to_string(),
            Self::Hub(hub) => hub.place(),
        }
    }

    /// The folder of the opened files.
    pub(super) fn root(&self) -> PathBuf {
        match self {
            Self::Folder(root) | Self::Memory(MemoryFiles { root, .. }) => root.clone(),
            Self::Hub(hub) => hub.root(),
        }
    }

    /// The names of the files. Of a folder: those in it and in its folder of exported models.
    pub(super) fn names(&self) -> Vec<String> {
        match self {
            Self::Folder(root) => names_in_folder(root),
            Self::Memory(memory) => memory.files.keys().cloned().collect(),
            Self::Hub(hub) => hub.names().iter().cloned().collect(),
        }
    }

    /// Whether there is a file of this name. Of a folder: or a folder of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        match self {
            Self::Folder(root) => root.join(name).exists(),
            Self::Memory(memory) => memory.files.contains_key(name),
            Self::Hub(hub) => hub.names().contains(name),
        }
    }

    /// Opens a file, which the Hub sends now; absent if no file has this name.
    pub(super) async fn open(&self, name: &str, bound: Bound) -> Result<Option<ModelFile>, FilesError> {
        match self {
            Self::Folder(root) => {
                let path = root.join(name);
                let exists = path.try_exists().map_err(|error| FilesError::io(&path, error))?;
                Ok(exists.then_some(ModelFile::Disk(path)))
            }
            Self::Memory(MemoryFiles { root, files }) => Ok(files
                .get(name)
                .map(|bytes| ModelFile::Memory { name: root.join(name), bytes: bytes.clone() })),
            Self::Hub(hub) if hub.names().contains(name) => {
                hub.fetch_file(name, bound).await.map(ModelFile::Disk).map(Some)
            }
            Self::Hub(_) => Ok(None),
        }
    }

    /// Opens a file that must exist. Otherwise the error contains `remedy`.
    pub(super) async fn require(
        &self,
        name: &str,
        bound: Bound,
        remedy: &'static str,
    ) -> Result<ModelFile, FilesError> {
        let file = self.open(name, bound).await?;
        file.ok_or_else(|| self.missing(name, remedy))
    }

    /// The error for a file that is not there.
    pub(super) fn missing(&self, name: &str, remedy: &'static str) -> FilesError {
        FilesError::Missing { place: self.place(), file: name.to_owned(), remedy }
    }

    /// Reads a text; absent if there is no file of this name.
    pub(super) async fn read_text(&self, name: &str) -> Result<Option<FileText>, FilesError> {
        self.open(name, Bound::Small).await?.map(|file| read_text(&file)).transpose()
    }

    /// Reads a JSON file; absent if there is no file of this name.
    pub(super) async fn read_json<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, FilesError> {
        self.read_text(name).await?.map(|text| text.parse()).transpose()
    }
}

/// The names of the files in a folder, then in its folder of exported models, each sorted.
fn names_in_folder(root: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for folder in ["", ONNX_FOLDER] {
        let entries = std::fs::read_dir(root.join(folder)).into_iter().flatten().flatten();
        let below = entries.map(|entry| format!("{folder}{}", entry.file_name().to_string_lossy()));
        let mut below: Vec<String> = below.collect();
        below.sort();
        names.extend(below);
    }
    names
}
