//! Gets a model to local disk.
//!
//! Input: [`ModelSource`], what the user asked for, and [`HubOptions`], how to reach the Hub. Output: [`LocalModel`],
//! a folder with all files that this server reads of the model, and no others. What must hold:
//! - a directory is used as it is; of the Hub's cache only a complete snapshot is used;
//! - no file is used before all of it has arrived. `hf-hub` writes to `….incomplete` and renames, but checks neither
//!   the status of the transfer nor, where the connection just closes, its length; so the length that the Hub announced
//!   is checked here, and a wrong file is removed at once. `ModelFolder::open` would refuse what a crash leaves between;
//! - weights come last and the cache's record of the revision (`refs/…`) after them, so an interrupted download never
//!   looks complete.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;

use hf_hub::{HFClient, HFError, HFRepository, RepoTypeModel, split_id};

use super::config::{ModelConfig, Module, read_optional_json};
use super::dense;
use super::error::FilesError;
use super::folder::{CONFIG, Describe, MODULES, TOKENIZER, optional_files, remedy, required};
use super::modules::{config_of, module_files, steps};
use super::progress::TransferProgress;
use super::source::{HubOptions, ModelSource, local_directory};
use super::templates;
use super::weights::{INDEX_FILE, SINGLE_FILE, missing_shard, no_weights, shard_names, weight_files};

/// A model on local disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalModel {
    /// Its folder.
    pub root: PathBuf,
    /// The commit of the Hub's repository; none for a local directory.
    pub revision_sha: Option<String>,
}

/// Gets the model that `source` names: a local directory as it is, else from the Hub into its cache. If the Hub cannot
/// be reached, a complete copy in the cache is used instead, with a warning.
///
/// # Errors
///
/// Any variant of [`FilesError`] about the Hub, the cache or a missing file.
pub async fn fetch(
    source: &ModelSource,
    options: &HubOptions,
    describe: &Describe,
) -> Result<LocalModel, FilesError> {
    if let Some(root) = local_directory(&source.model_id)? {
        return Ok(LocalModel { root, revision_sha: None });
    }
    let hub = Hub::new(source, options)?;
    let cache = hub.client.cache_dir().to_owned();
    let (model_id, revision) = (source.model_id.clone(), source.revision.clone());
    if options.offline {
        return hub.cached().map_err(|reason| FilesError::NotCached { model_id, revision, cache, reason });
    }
    match hub.listing().await {
        Ok(listing) => hub.download(&listing, describe).await,
        Err(ListingError::Refused(error)) => Err(error),
        Err(ListingError::Unreachable(reason)) => {
            let endpoint = hub.client.endpoint().to_owned();
            let Ok(local) = hub.cached() else {
                return Err(FilesError::Unreachable { endpoint, reason, cache });
            };
            tracing::warn!(
                "cannot reach the Hub at {endpoint} ({reason}); using the copy of {model_id} in {}",
                local.root.display()
            );
            Ok(local)
        }
    }
}

/// What a revision of a repository holds.
struct Listing {
    sha: String,
    files: BTreeSet<String>,
}

/// Why there is no listing: only the first kind is a reason to fall back to the cache.
enum ListingError {
    Unreachable(String),
    Refused(FilesError),
}

struct Hub<'a> {
    source: &'a ModelSource,
    options: &'a HubOptions,
    client: HFClient,
    repository: HFRepository<RepoTypeModel>,
}

impl<'a> Hub<'a> {
    fn new(source: &'a ModelSource, options: &'a HubOptions) -> Result<Self, FilesError> {
        let mut builder =
            HFClient::builder().retry_max_attempts(options.attempts).retry_base_delay(options.pause);
        builder = builder.endpoint(options.endpoint.as_deref().unwrap_or("https://huggingface.co"));
        if let Some(token) = source.token.as_deref().filter(|token| !token.is_empty()) {
            builder = builder.token(token);
        }
        if let Some(cache) = &source.cache_dir {
            builder = builder.cache_dir(cache);
        }
        let client = builder.build().map_err(|error| FilesError::Client { reason: describe(&error) })?;
        let (owner, name) = split_id(&source.model_id);
        let repository = client.model(owner, name);
        Ok(Self { source, options, client, repository })
    }

    /// Asks the Hub which commit the revision is and which files it has.
    async fn listing(&self) -> Result<Listing, ListingError> {
        let expand = vec!["sha".to_owned(), "siblings".to_owned()];
        let request = self.repository.info().revision(&self.source.revision).expand(expand).send();
        let answer = tokio::time::timeout(self.options.patience, request).await;
        let Ok(answer) = answer else {
            return Err(ListingError::Unreachable(format!("no answer in {:?}", self.options.patience)));
        };
        let info = answer.map_err(|error| match &error {
            HFError::Request { source, .. } if !source.is_decode() => {
                ListingError::Unreachable(describe(&error))
            }
            HFError::Http { context } if context.status.is_server_error() => {
                ListingError::Unreachable(format!("it answers {}", context.status))
            }
            _ => ListingError::Refused(self.refusal(None, error)),
        })?;
        let (Some(sha), Some(siblings)) = (info.sha, info.siblings) else {
            let reason = "its answer has no commit or no list of files".to_owned();
            return Err(ListingError::Refused(FilesError::Hub { what: self.what(None), reason }));
        };
        Ok(Listing { sha, files: siblings.into_iter().map(|sibling| sibling.rfilename).collect() })
    }

    /// Downloads what is wanted of the listing and not yet in the cache: small files first, weights last.
    async fn download(&self, listing: &Listing, describe: &Describe) -> Result<LocalModel, FilesError> {
        let place = format!("the repository {} at {}", self.source.model_id, listing.sha);
        let has = |file: &str| listing.files.contains(file);
        let missing = |file: &str| FilesError::Missing {
            place: place.clone(),
            file: file.to_owned(),
            remedy: remedy(file),
        };
        if !has(CONFIG) {
            return Err(missing(CONFIG));
        }
        tracing::info!("fetching {place} into {}", self.client.cache_dir().display());
        let config = ModelConfig::load(&self.download_file(&listing.sha, CONFIG).await?)?;
        describe(&config.raw).map_err(FilesError::Unsupported)?;
        if !has(TOKENIZER) {
            return Err(missing(TOKENIZER));
        }
        if !has(SINGLE_FILE) && !has(INDEX_FILE) {
            return Err(no_weights(place, listing.files.iter().cloned()));
        }
        for file in [TOKENIZER].into_iter().chain(optional_files().filter(|file| has(file))) {
            self.download_file(&listing.sha, file).await?;
        }
        for file in templates::additional(listing.files.iter()) {
            self.download_file(&listing.sha, file).await?;
        }
        self.download_modules(listing, &place).await?;
        if has(SINGLE_FILE) {
            self.download_file(&listing.sha, SINGLE_FILE).await?;
        } else {
            let shards = shard_names(&self.download_file(&listing.sha, INDEX_FILE).await?)?;
            if let Some(missing) = shards.iter().find(|shard| !has(shard)) {
                return Err(missing_shard(place, missing.clone()));
            }
            for shard in &shards {
                self.download_file(&listing.sha, shard).await?;
            }
        }
        self.record_revision(&listing.sha)?;
        let root = self.snapshot(&listing.sha);
        tracing::info!("all files are in {}", root.display());
        Ok(LocalModel { root, revision_sha: Some(listing.sha.clone()) })
    }

    /// Downloads the files of the modules that modules.json or the user names.
    async fn download_modules(&self, listing: &Listing, place: &str) -> Result<(), FilesError> {
        let modules: Vec<Module> =
            read_optional_json(&self.snapshot(&listing.sha).join(MODULES))?.unwrap_or_default();
        for class in ["Pooling", "SpladePooling", "LogitScore"] {
            if let Some(file) = config_of(&modules, class).filter(|file| listing.files.contains(file)) {
                self.download_file(&listing.sha, &file).await?;
            }
        }
        for step in steps(&modules, self.source.dense_path.as_deref())? {
            for file in module_files(&step.path) {
                if !listing.files.contains(&file) {
                    return Err(dense::missing(place.to_owned(), file));
                }
                self.download_file(&listing.sha, &file).await?;
            }
        }
        Ok(())
    }

    /// Downloads one file, again and again if the transfer breaks off.
    async fn download_file(&self, sha: &str, file: &str) -> Result<PathBuf, FilesError> {
        let mut attempt = 1;
        loop {
            match self.try_download(sha, file).await {
                Err(Transfer::Locked) => {
                    tracing::info!("another process is downloading {file}; waiting for it");
                }
                Err(Transfer::Broken(reason)) if attempt < self.options.attempts => {
                    tracing::warn!("the download of {file} broke off ({reason}); trying again");
                    tokio::time::sleep(self.options.pause * attempt as u32).await;
                    attempt += 1;
                }
                Err(Transfer::Broken(reason)) => {
                    return Err(FilesError::Dropped { file: file.to_owned(), reason });
                }
                Err(Transfer::Refused(error)) => return Err(error),
                Ok(path) => return Ok(path),
            }
        }
    }

    async fn try_download(&self, sha: &str, file: &str) -> Result<PathBuf, Transfer> {
        let progress = Arc::new(TransferProgress::new(file));
        let request =
            self.repository.download_file().filename(file).revision(sha).progress(Arc::clone(&progress));
        let mut request = pin!(request.send());
        let answer = loop {
            let before = progress.bytes();
            match tokio::time::timeout(self.options.patience, &mut request).await {
                Ok(answer) => break answer,
                Err(_) if progress.bytes() > before => {}
                Err(_) => {
                    return Err(Transfer::Broken(format!("no byte came in {:?}", self.options.patience)));
                }
            }
        };
        let path = answer.map_err(|error| match error {
            HFError::CacheLockTimeout { .. } => Transfer::Locked,
            HFError::Request { .. } | HFError::Xet { .. } => Transfer::Broken(describe(&error)),
            HFError::Io(source) => {
                Transfer::Refused(FilesError::Io { path: self.client.cache_dir().into(), source })
            }
            error => Transfer::Refused(self.refusal(Some(file), error)),
        })?;
        discard_if_cut(&path, progress.expected()).map_err(Transfer::Broken)?;
        progress.finish();
        Ok(path)
    }

    /// A refusal of the Hub as an error with a remedy.
    fn refusal(&self, file: Option<&str>, error: HFError) -> FilesError {
        let what = self.what(file);
        let model_id = self.source.model_id.clone();
        let endpoint = self.client.endpoint().to_owned();
        let page = format!("{endpoint}/{model_id}");
        match error {
            HFError::AuthRequired { context } if context.error_code.as_deref() == Some("GatedRepo") => {
                FilesError::AccessDenied { what, page }
            }
            HFError::AuthRequired { .. } => FilesError::LoginRequired { what },
            HFError::Forbidden { .. } => FilesError::AccessDenied { what, page },
            HFError::RevisionNotFound { context, revision, .. } => {
                let code = context.and_then(|context| context.error_code);
                let is_revision = code.map_or(revision != "main", |code| code == "RevisionNotFound");
                if is_revision {
                    FilesError::UnknownRevision { model_id, revision }
                } else {
                    FilesError::UnknownRepository { model_id, endpoint }
                }
            }
            HFError::EntryNotFound { path, .. } => {
                FilesError::Missing { place: model_id, remedy: remedy(&path), file: path }
            }
            error => FilesError::Hub { what, reason: describe(&error) },
        }
    }

    /// The words for the model or a file of it in messages.
    fn what(&self, file: Option<&str>) -> String {
        let model_id = &self.source.model_id;
        file.map_or_else(
            || format!("the model `{model_id}`"),
            |file| format!("`{file}` of the model `{model_id}`"),
        )
    }

    /// The model's folder in the cache, laid out as Python's `huggingface_hub` does.
    fn folder(&self) -> PathBuf {
        self.client.cache_dir().join(format!("models--{}", self.source.model_id.replace('/', "--")))
    }

    fn snapshot(&self, sha: &str) -> PathBuf {
        self.folder().join("snapshots").join(sha)
    }

    fn reference(&self) -> PathBuf {
        self.folder().join("refs").join(&self.source.revision)
    }

    /// Records which commit the revision is, for starts without the Hub.
    fn record_revision(&self, sha: &str) -> Result<(), FilesError> {
        if is_commit(&self.source.revision) {
            return Ok(());
        }
        let path = self.reference();
        let mut unfinished = path.clone().into_os_string();
        unfinished.push(format!(".{}.incomplete", std::process::id()));
        let write = || {
            std::fs::create_dir_all(path.parent().unwrap_or(&path))?;
            std::fs::write(&unfinished, sha)?;
            std::fs::rename(&unfinished, &path)
        };
        write().map_err(|source| FilesError::Io { path: path.clone(), source })
    }

    /// The complete copy in the cache, or what is missing of it.
    fn cached(&self) -> Result<LocalModel, String> {
        let revision = &self.source.revision;
        let sha = if is_commit(revision) {
            revision.clone()
        } else {
            let recorded = std::fs::read_to_string(self.reference());
            recorded.map_err(|_| format!("it does not know the revision `{revision}`"))?.trim().to_owned()
        };
        let root = self.snapshot(&sha);
        let complete = required(&root, CONFIG)
            .and_then(|_| required(&root, TOKENIZER))
            .and_then(|_| weight_files(&root));
        complete.map_err(|error| error.to_string())?;
        Ok(LocalModel { root, revision_sha: Some(sha) })
    }
}

/// Why a file did not arrive.
enum Transfer {
    /// Another process holds the file's lock.
    Locked,
    /// The connection broke off; worth another attempt.
    Broken(String),
    /// The Hub or the disk refuses; another attempt would fare no better.
    Refused(FilesError),
}

/// Removes a file of the cache that is not as long as the Hub announced (0: it announced nothing).
fn discard_if_cut(path: &Path, expected: u64) -> Result<(), String> {
    let actual = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if expected == 0 || actual == expected {
        return Ok(());
    }
    let removed =
        path.canonicalize().and_then(std::fs::remove_file).and_then(|()| std::fs::remove_file(path));
    let left = removed.err().map(|error| format!("; and {} cannot be removed: {error}", path.display()));
    Err(format!("{actual} of {expected} bytes arrived{}", left.unwrap_or_default()))
}

fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.chars().all(|c| c.is_ascii_hexdigit())
}

/// An error with its causes, which `reqwest` keeps apart from its own words.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let words = inner.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use std::time::{Duration, Instant};

    use super::super::fake_hub::{
        FakeHub, Fault, Repository, describe, reranker_files, safetensors, write_files,
    };
    use super::*;

    const SHA: &str = "0123456789abcdef0123456789abcdef01234567";
    const ID: &str = "Qwen/Qwen3-Reranker-0.6B";

    /// A Hub with one repository, and a cache for it.
    struct Setup {
        hub: FakeHub,
        cache: tempfile::TempDir,
        source: ModelSource,
        options: HubOptions,
    }

    impl Setup {
        fn new() -> Self {
            let hub = FakeHub::start(Repository {
                id: ID.to_owned(),
                revisions: ["main", "v1", "refs/pr/3"].map(|name| (name.to_owned(), SHA.to_owned())).into(),
                files: reranker_files(),
                token: None,
                refuse_files: None,
                faults: [].into(),
            });
            let cache = tempfile::tempdir().unwrap();
            let source = ModelSource {
                model_id: ID.to_owned(),
                revision: "main".to_owned(),
                token: Some("hf_good".to_owned()),
                cache_dir: Some(cache.path().to_owned()),
                dense_path: None,
            };
            let options = HubOptions {
                endpoint: Some(hub.endpoint()),
                pause: Duration::from_millis(1),
                patience: Duration::from_secs(20),
                ..HubOptions::default()
            };
            Self { hub, cache, source, options }
        }

        /// Shards instead of the one weight file.
        fn sharded() -> Self {
            let setup = Self::new();
            setup.change(|repository| {
                repository.files.remove(SINGLE_FILE);
                let map = r#"{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#;
                repository.files.insert(INDEX_FILE.to_owned(), map.into());
                for shard in ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"] {
                    repository.files.insert(shard.to_owned(), safetensors(32));
                }
            });
            setup
        }

        fn change(&self, change: impl FnOnce(&mut Repository)) {
            change(&mut self.hub.repository.lock().unwrap());
        }

        fn fault(&self, file: &str, fault: Fault, times: usize) {
            self.change(|repository| repository.faults.extend([(file.to_owned(), (fault, times))]));
        }

        async fn fetch(&self) -> Result<LocalModel, FilesError> {
            fetch(&self.source, &self.options, &describe).await
        }

        async fn message(&self) -> String {
            self.fetch().await.unwrap_err().to_string()
        }

        /// The files of the snapshot, by name.
        fn snapshot(&self) -> BTreeSet<String> {
            let root = self.cache.path().join("models--Qwen--Qwen3-Reranker-0.6B/snapshots").join(SHA);
            let mut names = BTreeSet::new();
            let mut folders = vec![root.clone()];
            while let Some(folder) = folders.pop() {
                for entry in std::fs::read_dir(folder).into_iter().flatten() {
                    let path = entry.unwrap().path();
                    if path.is_dir() {
                        folders.push(path);
                    } else {
                        names.insert(path.strip_prefix(&root).unwrap().display().to_string());
                    }
                }
            }
            names
        }

        /// The lengths of all blobs that have their final name.
        fn blobs(&self) -> Vec<u64> {
            let blobs = self.cache.path().join("models--Qwen--Qwen3-Reranker-0.6B/blobs");
            let entries = std::fs::read_dir(blobs).into_iter().flatten().map(Result::unwrap);
            let whole = entries.filter(|entry| !entry.file_name().to_string_lossy().ends_with(".incomplete"));
            whole.map(|entry| entry.metadata().unwrap().len()).collect()
        }
    }

    fn names(files: &super::super::fake_hub::ModelFiles) -> BTreeSet<String> {
        files.keys().cloned().collect()
    }

    #[tokio::test]
    async fn only_the_files_that_are_needed_are_downloaded() {
        let setup = Setup::new();
        setup.change(|repository| {
            for name in [
                "pytorch_model.bin",
                "README.md",
                "onnx/model.onnx",
                "vocab.json",
                "model-00001-of-00001.gguf",
            ] {
                repository.files.insert(name.to_owned(), vec![0; 10]);
            }
            repository.files.insert("sentence_xlnet_config.json".to_owned(), b"{}".to_vec());
        });
        let folder = super::super::load(&setup.source, &setup.options, &describe).await.unwrap();
        assert_eq!((folder.model_id.as_str(), folder.revision_sha.as_deref()), (ID, Some(SHA)));
        assert_eq!(folder.name(), "Qwen3-Reranker-0.6B");
        let mut expected = names(&reranker_files());
        expected.insert("sentence_xlnet_config.json".to_owned());
        assert_eq!(setup.snapshot(), expected);
        assert_eq!(std::fs::read(&folder.weights[0]).unwrap(), safetensors(64));
        let requests = setup.hub.requests.lock().unwrap().clone();
        assert_eq!(requests[0], format!("GET /api/models/{ID}/revision/main"));
        assert_eq!(requests.iter().filter(|request| request.contains("/api/")).count(), 1, "{requests:?}");
        assert_eq!(requests.last().unwrap(), "GET /cdn/model.safetensors", "weights come last");
    }

    #[tokio::test]
    async fn the_files_of_dense_modules_come_before_the_weights() {
        let modules = r#"[{"type":"x.Transformer","path":""},{"type":"x.Dense","path":"2_Dense"}]"#;
        let files = |folder: &str| [format!("{folder}/config.json"), format!("{folder}/model.safetensors")];
        for (flag, wanted) in [(None, "2_Dense"), (Some("2_Dense_64/"), "2_Dense_64")] {
            let mut setup = Setup::new();
            setup.source.dense_path = flag.map(str::to_owned);
            setup.change(|repository| {
                repository.files.insert("modules.json".to_owned(), modules.into());
                for file in ["2_Dense", "2_Dense_64"].into_iter().flat_map(files) {
                    repository.files.insert(file, safetensors(16));
                }
            });
            setup.fetch().await.unwrap();
            let mut expected = names(&reranker_files());
            expected.extend(files(wanted));
            assert_eq!(setup.snapshot(), expected);
            let requests = setup.hub.requests.lock().unwrap().clone();
            assert_eq!(requests.last().unwrap(), "GET /cdn/model.safetensors");
        }
        for (flag, part) in
            [(None, "`2_Dense/config.json` is missing"), (Some("../x"), "not a folder below the model's")]
        {
            let mut setup = Setup::new();
            setup.source.dense_path = flag.map(str::to_owned);
            setup.change(|repository| {
                repository.files.insert("modules.json".to_owned(), modules.into());
            });
            let message = setup.message().await;
            assert!(message.contains(part) && !setup.snapshot().contains(SINGLE_FILE), "{message}");
        }
    }

    #[tokio::test]
    async fn what_cannot_be_served_is_refused_before_its_weights_are_fetched() {
        let mamba = r#"{"architectures":["MambaForCausalLM"],"model_type":"mamba"}"#;
        let without_weights = ["pytorch_model.bin", "onnx/model.onnx"];
        let table: [(&str, &[&str], &str); 3] = [
            (mamba, &[], "mamba is not supported"),
            (mamba, &without_weights, "mamba is not supported"),
            (
                "{}",
                &without_weights,
                "are in the format of `onnx/model.onnx`, but this server reads safetensors only",
            ),
        ];
        for (config, others, part) in table {
            let setup = Setup::new();
            setup.change(|repository| {
                repository.files.insert(CONFIG.to_owned(), config.into());
                if !others.is_empty() {
                    repository.files.retain(|name, _| name != SINGLE_FILE && name != TOKENIZER);
                    repository.files.extend(others.iter().map(|&name| (name.to_owned(), vec![0; 10])));
                }
                if config == "{}" {
                    repository.files.insert(TOKENIZER.to_owned(), b"{}".to_vec());
                }
            });
            let message = setup.message().await;
            assert!(message.contains(part), "{message}");
            assert_eq!(setup.snapshot(), BTreeSet::from([CONFIG.to_owned()]), "{part}");
        }
    }

    #[tokio::test]
    async fn a_second_start_downloads_nothing_again() {
        let setup = Setup::new();
        setup.fetch().await.unwrap();
        setup.hub.requests.lock().unwrap().clear();
        setup.fetch().await.unwrap();
        assert_eq!(*setup.hub.requests.lock().unwrap(), [format!("GET /api/models/{ID}/revision/main")]);
    }

    #[tokio::test]
    async fn shards_are_those_that_the_index_names() {
        let setup = Setup::sharded();
        let local = setup.fetch().await.unwrap();
        assert_eq!(weight_files(&local.root).unwrap().len(), 2);
        setup.change(|repository| drop(repository.files.remove("model-00002-of-00002.safetensors")));
        let setup = Setup { cache: tempfile::tempdir().unwrap(), ..setup };
        let source = ModelSource { cache_dir: Some(setup.cache.path().to_owned()), ..setup.source.clone() };
        let message = fetch(&source, &setup.options, &describe).await.unwrap_err().to_string();
        assert!(message.contains("`model-00002-of-00002.safetensors` is missing"), "{message}");
    }

    #[tokio::test]
    async fn every_kind_of_revision_works_online_and_then_offline() {
        for revision in ["main", "v1", "refs/pr/3", SHA] {
            let mut setup = Setup::new();
            setup.source.revision = revision.to_owned();
            let online = setup.fetch().await.unwrap();
            assert_eq!(online.revision_sha.as_deref(), Some(SHA));
            setup.hub.requests.lock().unwrap().clear();
            setup.options.offline = true;
            assert_eq!(setup.fetch().await.unwrap(), online, "{revision}");
            assert!(setup.hub.requests.lock().unwrap().is_empty(), "offline means no request");
        }
    }

    #[tokio::test]
    async fn without_the_hub_a_complete_copy_is_used_and_no_other() {
        let setup = Setup::sharded();
        let online = setup.fetch().await.unwrap();
        let Setup { hub, cache, source, mut options } = setup;
        drop(hub);
        assert_eq!(fetch(&source, &options, &describe).await.unwrap(), online);
        let other = ModelSource { revision: "v1".to_owned(), ..source.clone() };
        let message = fetch(&other, &options, &describe).await.unwrap_err().to_string();
        for part in ["cannot reach the Hub at http://127.0.0.1", "refused", "HF_ENDPOINT", "local directory"]
        {
            assert!(message.contains(part), "{part}: {message}");
        }
        std::fs::remove_file(online.root.join("model-00002-of-00002.safetensors")).unwrap();
        assert!(matches!(fetch(&source, &options, &describe).await, Err(FilesError::Unreachable { .. })));
        options.offline = true;
        let message = fetch(&source, &options, &describe).await.unwrap_err().to_string();
        for part in
            ["HF_HUB_OFFLINE", "model-00002-of-00002.safetensors", &cache.path().display().to_string()]
        {
            assert!(message.contains(part), "{part}: {message}");
        }
    }

    #[tokio::test]
    async fn a_transfer_that_breaks_off_leaves_nothing_and_the_next_start_succeeds() {
        for (fault, reason) in
            [(Fault::Drop, ""), (Fault::Short, "bytes arrived"), (Fault::Status(403), "bytes arrived")]
        {
            for file in ["model.safetensors", "tokenizer_config.json"] {
                let mut setup = Setup::new();
                setup.options.attempts = 1;
                setup.fault(file, fault, 1);
                let message = setup.message().await;
                assert!(message.contains(&format!("download of `{file}` broke off")), "{fault:?}: {message}");
                assert!(message.contains(reason), "{fault:?}: {message}");
                assert!(!setup.snapshot().contains(file), "{fault:?} left {file}");
                let lengths: Vec<u64> =
                    reranker_files().values().map(|content| content.len() as u64).collect();
                assert!(setup.blobs().iter().all(|length| lengths.contains(length)), "{fault:?}");
                setup.options.offline = true;
                assert!(
                    matches!(setup.fetch().await, Err(FilesError::NotCached { .. })),
                    "not complete, not used"
                );
                setup.options.offline = false;
                let local = setup.fetch().await.unwrap();
                assert_eq!(std::fs::read(local.root.join(file)).unwrap(), reranker_files()[file]);
            }
        }
    }

    #[tokio::test]
    async fn a_broken_transfer_is_tried_again_as_often_as_allowed() {
        let setup = Setup::new();
        setup.fault("model.safetensors", Fault::Drop, 2);
        setup.fault("config.json", Fault::Short, 2);
        setup.fetch().await.unwrap();
        let setup = Setup::new();
        setup.fault("model.safetensors", Fault::Drop, 3);
        assert!(matches!(setup.fetch().await, Err(FilesError::Dropped { .. })));
    }

    #[tokio::test]
    async fn a_transfer_that_stands_still_is_given_up() {
        let mut setup = Setup::new();
        setup.options.attempts = 2;
        setup.options.patience = Duration::from_millis(500);
        setup.fault("model.safetensors", Fault::Stall, 1);
        let start = Instant::now();
        setup.fetch().await.unwrap();
        assert!(start.elapsed() < Duration::from_secs(4), "it did not wait for the stalled connection");
    }

    #[tokio::test]
    async fn each_refusal_says_what_to_do() {
        type Change = fn(&mut Setup);
        let table: [(&str, Change, &[&str]); 10] = [
            (
                "no login",
                |s| s.change(|r| r.token = Some("other".to_owned())),
                &["401", "--hf-token", "HF_TOKEN", ID],
            ),
            (
                "gated, no access",
                |s| s.change(|r| r.refuse_files = Some((403, "GatedRepo"))),
                &["`config.json`", "accept its conditions", "/Qwen/Qwen3-Reranker-0.6B"],
            ),
            (
                "gated, no token",
                |s| s.change(|r| r.refuse_files = Some((401, "GatedRepo"))),
                &["`config.json`", "accept its conditions", "--hf-token"],
            ),
            (
                "file wants a login",
                |s| s.change(|r| r.refuse_files = Some((401, "Unauthorized"))),
                &["`config.json`", "401", "--hf-token"],
            ),
            (
                "unknown model",
                |s| s.source.model_id = "Qwen/Typo".to_owned(),
                &["no model `Qwen/Typo`", "private"],
            ),
            (
                "unknown revision",
                |s| s.source.revision = "v9".to_owned(),
                &["no revision `v9`", "--revision"],
            ),
            (
                "no config",
                |s| s.change(|r| drop(r.files.remove("config.json"))),
                &["`config.json` is missing", SHA],
            ),
            (
                "no tokenizer",
                |s| s.change(|r| drop(r.files.remove("tokenizer.json"))),
                &["`tokenizer.json` is missing", "save_pretrained"],
            ),
            (
                "no weights",
                |s| s.change(|r| drop(r.files.remove("model.safetensors"))),
                &["`model.safetensors` is missing", "only safetensors"],
            ),
            ("no URL", |s| s.options.endpoint = Some("nonsense".to_owned()), &["HF_ENDPOINT"]),
        ];
        for (row, change, parts) in table {
            let mut setup = Setup::new();
            change(&mut setup);
            let message = setup.message().await;
            for part in parts {
                assert!(message.contains(part), "{row}: {part}: {message}");
            }
            assert!(!setup.snapshot().contains("model.safetensors"), "{row}");
        }
    }

    #[tokio::test]
    async fn the_token_is_sent_and_never_shown() {
        let setup = Setup::new();
        setup.change(|repository| repository.token = Some("hf_good".to_owned()));
        setup.fetch().await.unwrap();
        assert!(!format!("{:?}", setup.source).contains("hf_good"));
    }

    #[tokio::test]
    async fn a_directory_is_used_as_it_is_and_other_paths_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        write_files(folder.path(), &reranker_files());
        let file = folder.path().join("config.json").display().to_string();
        let source = |model_id: &str| ModelSource {
            model_id: model_id.to_owned(),
            revision: "main".to_owned(),
            token: None,
            cache_dir: Some(folder.path().join("cache")),
            dense_path: None,
        };
        let options = HubOptions { offline: true, ..HubOptions::default() };
        let here = source(&folder.path().display().to_string());
        let expected = LocalModel { root: folder.path().to_owned(), revision_sha: None };
        assert_eq!(fetch(&here, &options, &describe).await.unwrap(), expected);
        let table = [
            ("/no/such/folder", "no such directory"),
            ("./model", "no such directory"),
            ("../model", "no such directory"),
            ("~/model", "no such directory"),
            ("a/b/c", "no such directory"),
            (&file, "is a file"),
            ("a b", "nor a Hub id"),
            ("a/", "nor a Hub id"),
            ("", "nor a Hub id"),
            ("owner/name", "HF_HUB_OFFLINE"),
        ];
        for (model_id, expected) in table {
            let message = fetch(&source(model_id), &options, &describe).await.unwrap_err().to_string();
            assert!(message.contains(expected), "{model_id}: {message}");
        }
    }
}
