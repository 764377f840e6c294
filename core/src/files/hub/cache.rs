//! A model's folder in the cache, which is shared with Python's `huggingface_hub`.
//!
//! ```text
//! models--OWNER--NAME/refs/REVISION              the commit of a revision
//! models--OWNER--NAME/snapshots/COMMIT/FILE  ->  ../../blobs/ETAG
//! .locks/models--OWNER--NAME/ETAG.lock           held while a blob is written
//! ```
//!
//! Input: names that `names.rs` has checked. Output: paths below the cache. What must hold: only a symbolic
//! link of a snapshot and the record of a revision are ever overwritten; a symbolic link points to a blob of
//! the same model.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::super::error::FilesError;
use super::super::names::{is_commit, stays_below};
use super::super::reading;

/// The suffix of this server's unfinished downloads. Other programs write the parts of a file in another
/// order, so their downloads cannot be continued.
const UNFINISHED: &str = ".router.incomplete";
/// The longest record of a revision, in bytes. A commit has 40.
const MAX_RECORD: u64 = 1024;

/// A model's folder in the cache.
pub(super) struct Cache {
    root: PathBuf,
    /// `models--OWNER--NAME`.
    name: String,
}

/// Held while a blob is written. Another process waits for it, Python's included.
pub(super) struct Lock {
    _file: Option<File>,
}

impl Cache {
    pub(super) fn new(root: PathBuf, model_id: &str) -> Self {
        Self { root, name: format!("models--{}", model_id.replace('/', "--")) }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    fn folder(&self) -> PathBuf {
        self.root.join(&self.name)
    }

    /// The folder of a commit's files.
    pub(super) fn snapshot(&self, sha: &str) -> PathBuf {
        self.folder().join("snapshots").join(sha)
    }

    fn blobs(&self) -> PathBuf {
        self.folder().join("blobs")
    }

    /// The content with this `ETag`.
    pub(super) fn blob(&self, name: &str) -> PathBuf {
        self.blobs().join(name)
    }

    /// The content with this `ETag` while it is downloaded.
    pub(super) fn unfinished(&self, name: &str) -> PathBuf {
        self.blobs().join(format!("{name}{UNFINISHED}"))
    }

    /// Makes the folder of the contents.
    pub(super) fn prepare(&self) -> Result<(), FilesError> {
        let blobs = self.blobs();
        fs::create_dir_all(&blobs).map_err(|error| FilesError::io(blobs, error))
    }

    /// The lock of a content; absent while another process has it.
    pub(super) fn try_lock(&self, name: &str) -> Result<Option<Lock>, FilesError> {
        let folder = self.root.join(".locks").join(&self.name);
        let path = folder.join(format!("{name}.lock"));
        let file = fs::create_dir_all(&folder)
            .and_then(|()| File::options().write(true).create(true).truncate(false).open(&path))
            .map_err(|error| FilesError::io(path.clone(), error))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock { _file: Some(file) })),
            Err(TryLockError::WouldBlock) => Ok(None),
            // Some network file systems have no locks. Python's library continues without one, too.
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {
                Ok(Some(Lock { _file: None }))
            }
            Err(TryLockError::Error(error)) => Err(FilesError::io(path, error)),
        }
    }

    /// Gives a snapshot's file the content `blob`.
    pub(super) fn link(&self, sha: &str, file: &str, blob: &str) -> Result<PathBuf, FilesError> {
        let pointer = self.snapshot(sha).join(file);
        let up = "../".repeat(2 + file.matches('/').count());
        self.place(&pointer, &format!("{up}blobs/{blob}"))
            .map_err(|error| FilesError::io(pointer.clone(), error))?;
        Ok(pointer)
    }

    fn place(&self, pointer: &Path, target: &str) -> io::Result<()> {
        let folder = pointer.parent().unwrap_or(pointer);
        fs::create_dir_all(folder)?;
        // A folder that is itself a link could lead anywhere.
        if !folder.canonicalize()?.starts_with(self.root.canonicalize()?) {
            return Err(io::Error::other("its folder is a link that leads out of the cache"));
        }
        match std::os::unix::fs::symlink(target, pointer) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && pointer.is_symlink() => {
                let new = pointer.with_extension(format!("{}{UNFINISHED}", std::process::id()));
                std::os::unix::fs::symlink(target, &new)?;
                fs::rename(&new, pointer)
            }
            other => other,
        }
    }

    fn record_path(&self, revision: &str) -> PathBuf {
        self.folder().join("refs").join(revision)
    }

    /// The commit that a revision had when it was last downloaded.
    pub(super) fn recorded(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        if !stays_below(revision) {
            return None;
        }
        let record = reading::text(&self.record_path(revision), MAX_RECORD).ok()?;
        Some(record.trim().to_owned()).filter(|sha| is_commit(sha))
    }

    /// Records which commit the revision is, for starts without the Hub.
    pub(super) fn record(&self, revision: &str, sha: &str) -> Result<(), FilesError> {
        if self.recorded(revision).is_some_and(|recorded| recorded == sha) {
            return Ok(());
        }
        let path = self.record_path(revision);
        let mut new = path.clone().into_os_string();
        new.push(format!(".{}{UNFINISHED}", std::process::id()));
        fs::create_dir_all(path.parent().unwrap_or(&path))
            .and_then(|()| fs::write(&new, sha))
            .and_then(|()| fs::rename(&new, &path))
            .map_err(|error| FilesError::io(path.clone(), error))
    }

    /// Removes the files of interrupted downloads, when the model is complete.
    pub(super) fn clean(&self) {
        for entry in fs::read_dir(self.blobs()).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(blob) = name.strip_suffix(UNFINISHED) else { continue };
            if let Ok(Some(_lock)) = self.try_lock(blob) {
                // A file that cannot be removed only costs space on the disk.
                drop(fs::remove_file(entry.path()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    const SHA: &str = "0123456789abcdef0123456789abcdef01234567";

    fn cache() -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().join("hub"), "owner/name");
        cache.prepare().unwrap();
        (folder, cache)
    }

    #[test]
    fn links_are_replaced_and_files_are_not() {
        let (_folder, cache) = cache();
        for content in ["a", "b"] {
            fs::write(cache.blob(content), content).unwrap();
            let pointer = cache.link(SHA, "2_Dense/x/config.json", content).unwrap();
            assert_eq!(fs::read_to_string(&pointer).unwrap(), content);
            assert_eq!(fs::read_dir(pointer.parent().unwrap()).unwrap().count(), 1);
        }
        let own = cache.snapshot(SHA).join("config.json");
        fs::write(&own, "mine").unwrap();
        let message = cache.link(SHA, "config.json", "a").unwrap_err().to_string();
        assert!(message.contains("exists") && message.contains("config.json"), "{message}");
        assert_eq!(fs::read_to_string(own).unwrap(), "mine");
    }

    #[test]
    fn a_folder_that_leads_out_of_the_cache_is_refused() {
        let (folder, cache) = cache();
        let outside = folder.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::create_dir_all(cache.snapshot(SHA)).unwrap();
        std::os::unix::fs::symlink(&outside, cache.snapshot(SHA).join("1_Pooling")).unwrap();
        let message = cache.link(SHA, "1_Pooling/config.json", "a").unwrap_err().to_string();
        assert!(message.contains("leads out of the cache"), "{message}");
        assert_eq!(fs::read_dir(outside).unwrap().count(), 0);
    }

    #[test]
    fn a_record_is_a_commit_or_nothing() {
        let (_folder, cache) = cache();
        for revision in ["main", "refs/pr/3"] {
            assert_eq!(cache.recorded(revision), None);
            cache.record(revision, SHA).unwrap();
            assert_eq!(cache.recorded(revision).as_deref(), Some(SHA));
        }
        for record in ["../../..", "", &"0".repeat(2000)] {
            fs::write(cache.record_path("main"), record).unwrap();
            assert_eq!(cache.recorded("main"), None, "{record}");
        }
        assert_eq!(cache.recorded("../refs/main"), None);
    }

    #[test]
    fn a_lock_belongs_to_one_and_protects_an_unfinished_download() {
        let (_folder, cache) = cache();
        fs::write(cache.unfinished("a"), "half").unwrap();
        let lock = cache.try_lock("a").unwrap().unwrap();
        assert!(cache.try_lock("a").unwrap().is_none() && cache.try_lock("b").unwrap().is_some());
        cache.clean();
        assert!(cache.unfinished("a").exists());
        drop(lock);
        cache.clean();
        assert!(!cache.unfinished("a").exists());
    }
}
