//! Downloads one file into the cache.
//!
//! Input: a commit and a file name. Output: its path in the snapshot. What must hold: the content gets its
//! name among the blobs only when it is completely on the disk and has the announced SHA-256; at most the
//! announced bytes are kept, and at most the limit for such a file; a download that breaks off is continued,
//! and one that is refused leaves no file.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use text_embeddings_backend_core::amount;

use super::super::error::FilesError;
use super::super::names::{Bound, max_bytes, stays_below};
use super::super::progress::TransferProgress;
use super::super::reading;
use super::cache::Lock;
use super::client::ResponseBody;
use super::{Failure, Hub, answers::FileMetadata};

/// The time between attempts to get a lock that another process holds.
const LOCK_PAUSE: Duration = Duration::from_millis(200);
/// The time between messages that this process waits.
const LOCK_MESSAGE: Duration = Duration::from_secs(30);
/// The bytes of a beginning that are read at once.
const CHUNK: usize = 1 << 20;

/// The reason why a file did not arrive.
enum Transfer {
    /// The connection broke off; another attempt may succeed.
    Broken(String),
    /// The Hub or the disk refuses; another attempt would fail, too.
    Refused(FilesError),
}

impl From<FilesError> for Transfer {
    fn from(error: FilesError) -> Self {
        Self::Refused(error)
    }
}

/// A content that is being downloaded.
struct Unfinished {
    file: File,
    path: PathBuf,
    /// Bytes written so far.
    length: u64,
    /// Their sum, if the Hub announces the sum of the content.
    sum: Option<Sha256>,
}

impl Hub<'_> {
    /// Downloads a file that is not yet in the cache, with several attempts if the transfer breaks off.
    /// Returns its path.
    pub(super) async fn fetch_file(
        &self,
        sha: &str,
        file: &str,
        bound: Bound,
    ) -> Result<PathBuf, FilesError> {
        if !stays_below(file) {
            return Err(FilesError::Refused(format!(
                "the Hub names the file {file:?}, which cannot be a file of a model: check HF_ENDPOINT and \
                 `--model-id`"
            )));
        }
        let path = self.cache.snapshot(sha).join(file);
        if path.exists() {
            return Ok(path);
        }
        let mut attempt = 1;
        loop {
            match self.attempt(sha, file, bound).await {
                Err(Transfer::Broken(reason)) if attempt < self.options.attempts => {
                    tracing::warn!("the download of {file} broke off ({reason}); trying again");
                    tokio::time::sleep(self.options.pause * attempt as u32).await;
                    attempt += 1;
                }
                Err(Transfer::Broken(reason)) => {
                    let message =
                        format!("the download of `{file}` broke off ({reason}): start again to continue it");
                    return Err(FilesError::Refused(message));
                }
                Err(Transfer::Refused(error)) => return Err(error),
                Ok(path) => return Ok(path),
            }
        }
    }

    async fn attempt(&self, sha: &str, file: &str, bound: Bound) -> Result<PathBuf, Transfer> {
        let metadata =
            self.client.fetch_metadata(sha, file).await.map_err(|failure| self.transfer(file, failure))?;
        let max_bytes = limit_bytes(file, bound, metadata.length)?;
        let _lock = self.lock(file, &metadata.blob).await?;
        let blob = self.cache.blob(&metadata.blob);
        if !is_there(&blob, metadata.length)? {
            self.cache.prepare()?;
            let mut unfinished = Unfinished::open(self.cache.unfinished(&metadata.blob), &metadata)?;
            let ended = self.receive(sha, file, &metadata, max_bytes, &mut unfinished).await;
            let ended = ended.and_then(|()| unfinished.check_content(file, &metadata));
            unfinished.end(ended, &blob)?;
        }
        Ok(self.cache.link(sha, file, &metadata.blob)?)
    }

    /// Waits until no other process downloads the same content.
    async fn lock(&self, file: &str, blob: &str) -> Result<Lock, FilesError> {
        let mut said: Option<Instant> = None;
        loop {
            if let Some(lock) = self.cache.try_lock(blob)? {
                return Ok(lock);
            }
            if said.is_none_or(|said| said.elapsed() >= LOCK_MESSAGE) {
                tracing::info!("another process is downloading {file}; waiting for it");
                said = Some(Instant::now());
            }
            tokio::time::sleep(LOCK_PAUSE).await;
        }
    }

    /// Writes the content that the Hub sends, at most `max_bytes` bytes.
    async fn receive(
        &self,
        sha: &str,
        file: &str,
        metadata: &FileMetadata,
        max_bytes: u64,
        unfinished: &mut Unfinished,
    ) -> Result<(), Transfer> {
        let FileMetadata { length, .. } = *metadata;
        if length.is_some_and(|length| unfinished.length == length) {
            return Ok(());
        }
        let content = self.client.fetch_content(sha, file, unfinished.length).await;
        let (mut body, start) = content.map_err(|failure| self.transfer_of_content(file, failure))?;
        check_announced(&body, start, length)?;
        unfinished.start_at(start)?;
        let mut progress = TransferProgress::new(file, length.unwrap_or_default());
        let copied = copy(&mut body, max_bytes, unfinished, &mut progress).await;
        if length.is_some_and(|length| unfinished.length != length) && body.announced_length().is_none() {
            // An answer without a length may be another server's page: it is not continued.
            let arrived = unfinished.length;
            unfinished.start_at(0)?;
            copied?;
            return Err(Transfer::Broken(format!("{} arrived", amount(arrived, "byte"))));
        }
        copied?;
        progress.finish();
        Ok(())
    }

    fn transfer(&self, file: &str, failure: Failure) -> Transfer {
        match failure {
            Failure::Unreachable(reason) => Transfer::Broken(reason),
            failure => Transfer::Refused(self.refusal(Some(file), failure)),
        }
    }

    /// As [`Self::transfer`]. The content may come from another server, whose refusals are not about the
    /// model: its address may have expired.
    fn transfer_of_content(&self, file: &str, failure: Failure) -> Transfer {
        match failure {
            Failure::Refused(status, _) => Transfer::Broken(format!("the Hub answers {status}")),
            failure => self.transfer(file, failure),
        }
    }
}

/// Writes a body, at most `max_bytes` bytes.
async fn copy(
    body: &mut ResponseBody,
    max_bytes: u64,
    unfinished: &mut Unfinished,
    progress: &mut TransferProgress,
) -> Result<(), Transfer> {
    while let Some(chunk) = body.next_chunk().await.map_err(Transfer::Broken)? {
        let chunk = chunk.as_ref();
        if unfinished.length + chunk.len() as u64 > max_bytes {
            let reason = format!("more than {}", amount(max_bytes, "byte"));
            return Err(Transfer::Refused(too_many_bytes(progress.file(), &reason)));
        }
        unfinished.write(chunk)?;
        progress.advance(unfinished.length);
    }
    Ok(())
}

/// More bytes than the Hub or the model's own files announce.
fn too_many_bytes(file: &str, reason: &str) -> FilesError {
    FilesError::Refused(format!(
        "the Hub sends more of `{file}` than it may ({reason}): nothing of it is kept; check HF_ENDPOINT"
    ))
}

/// The most bytes of a file with this announced length, or the reason why it is refused.
fn limit_bytes(file: &str, bound: Bound, announced: Option<u64>) -> Result<u64, FilesError> {
    match (bound, announced) {
        (Bound::Small, announced) => {
            let max_length = max_bytes(file);
            if announced.is_some_and(|length| length > max_length) {
                return Err(FilesError::TooLong { file: file.to_owned(), max_length });
            }
            Ok(announced.unwrap_or(max_length))
        }
        (Bound::Weights(_), None) => Err(too_many_bytes(file, "it does not say how many bytes there are")),
        (Bound::Weights(max_bytes), Some(length)) if length > max_bytes => {
            let length = amount(length, "byte");
            let reason = format!("it announces {length}, where the list of shards leaves {max_bytes}");
            Err(too_many_bytes(file, &reason))
        }
        (Bound::Weights(_), Some(length)) => Ok(length),
    }
}

/// Whether the content is in the cache; an error if it has another length.
fn is_there(blob: &Path, announced: Option<u64>) -> Result<bool, FilesError> {
    if !blob.exists() {
        return Ok(false);
    }
    let (_, actual) = reading::open(blob)?;
    match announced {
        Some(expected) if actual != expected => {
            let reason = format!("it has {}, and the Hub's file has {expected}", amount(actual, "byte"));
            Err(FilesError::Damaged { path: blob.into(), reason })
        }
        _ => Ok(true),
    }
}

/// Refuses an answer whose length is not the file's, such as a login page.
fn check_announced(body: &ResponseBody, start: u64, length: Option<u64>) -> Result<(), Transfer> {
    match (body.announced_length(), length) {
        (Some(rest), Some(length)) if start + rest != length => Err(Transfer::Broken(format!(
            "the answer has {} and the file has {length}",
            amount(rest, "byte")
        ))),
        _ => Ok(()),
    }
}

impl Unfinished {
    /// Opens a new content, or the beginning that a broken transfer left.
    fn open(path: PathBuf, metadata: &FileMetadata) -> Result<Self, FilesError> {
        let failed = |error| FilesError::io(path.clone(), error);
        let mut options = File::options();
        options.append(true).read(true);
        let file = match path.symlink_metadata() {
            Ok(metadata) if metadata.is_file() => options.open(&path),
            Ok(_) => return Err(FilesError::NotAFile { path, kind: "no file of this server" }),
            Err(_) => options.create_new(true).open(&path),
        };
        let file = file.map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        let sum = metadata.sha256.map(|_| Sha256::new());
        let mut unfinished = Self { file, path: path.clone(), length, sum };
        // Without a length, the missing part is not known.
        if metadata.length.is_none_or(|announced| length > announced) {
            unfinished.start_at(0)?;
        }
        unfinished.add_beginning().map_err(failed)?;
        Ok(unfinished)
    }

    /// Adds the beginning that an earlier transfer left to the sum.
    fn add_beginning(&mut self) -> io::Result<()> {
        let Some(sum) = &mut self.sum else { return Ok(()) };
        let mut chunk = vec![0; CHUNK];
        let mut beginning = (&self.file).take(self.length);
        loop {
            match beginning.read(&mut chunk)? {
                0 => return Ok(()),
                read => sum.update(&chunk[..read]),
            }
        }
    }

    /// Drops all bytes from `start` on, which is the end of the content or its start.
    fn start_at(&mut self, start: u64) -> Result<(), FilesError> {
        if start != self.length {
            self.file.set_len(start).map_err(|error| FilesError::io(self.path.clone(), error))?;
            self.length = start;
            self.sum = self.sum.take().map(|_| Sha256::new());
        }
        Ok(())
    }

    fn write(&mut self, chunk: &[u8]) -> Result<(), FilesError> {
        self.file.write_all(chunk).map_err(|error| FilesError::io(self.path.clone(), error))?;
        self.length += chunk.len() as u64;
        if let Some(sum) = &mut self.sum {
            sum.update(chunk);
        }
        Ok(())
    }

    /// Whether a content that ended is the announced one.
    fn check_content(&self, file: &str, metadata: &FileMetadata) -> Result<(), Transfer> {
        let (length, announced) = (self.length, metadata.length.unwrap_or(self.length));
        if length != announced {
            return Err(Transfer::Broken(format!("{length} of {announced} bytes arrived")));
        }
        let sum = self.sum.as_ref().map(|sum| sum.clone().finalize().into());
        if sum == metadata.sha256 {
            return Ok(());
        }
        Err(Transfer::Refused(FilesError::Refused(format!(
            "the content of `{file}` does not have the SHA-256 that the Hub announces ({}): nothing of it is kept; \
             start again to download it again, and check HF_ENDPOINT if that does not help",
            metadata.blob
        ))))
    }

    /// Names a complete content, keeps the beginning of one that broke off, and removes one that is refused.
    fn end(self, received: Result<(), Transfer>, blob: &Path) -> Result<(), Transfer> {
        let Self { file, path, .. } = self;
        match received {
            Ok(()) => {
                let named = file.sync_all().and_then(|()| fs::rename(&path, blob));
                named.map_err(|error| FilesError::io(path, error).into())
            }
            Err(Transfer::Refused(error)) => {
                // A file that cannot be removed only costs space; the error says what to do.
                drop(fs::remove_file(&path));
                Err(Transfer::Refused(error))
            }
            Err(broken) => Err(broken),
        }
    }
}
