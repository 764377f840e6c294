//! Downloads from a small server on loopback, which is as broken or hostile as a test wants.
#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use std::time::Duration;

use super::super::fake_hub::{
    FakeHub, FakeRepository, Fault, describe, graph, reranker_files, safetensors, sha256_of, write_files,
};
use super::super::names::{CONFIG, MODULES, PROMPTS, TOKENIZER, is_gguf, is_weights};
use super::super::source::Reader;
use super::super::{ModelFolder, load};
use super::*;
use crate::stopped_clock::StoppedClock;
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;
use text_embeddings_backend_core::BackendKind;

const SHA: &str = "0123456789abcdef0123456789abcdef01234567";
const ID: &str = "Qwen/Qwen3-Reranker-0.6B";

/// The facts about a model that the tests compare.
#[derive(Debug, PartialEq)]
struct Fetched {
    root: PathBuf,
    sha: Option<String>,
    /// The weight files by name.
    weights: Vec<String>,
}

impl From<ModelFolder> for Fetched {
    fn from(model: ModelFolder) -> Self {
        let name = |path: &Path| path.strip_prefix(&model.root).unwrap().display().to_string();
        let weights = model.weights.iter().map(|file| name(file.path())).collect();
        Self { weights, root: model.root, sha: model.revision_sha }
    }
}

async fn fetch(source: &ModelSource, options: &HubOptions) -> Result<Fetched, FilesError> {
    load(source, options, &describe).await.map(Fetched::from)
}

/// A Hub with one repository, and a cache for it.
struct Setup {
    hub: FakeHub,
    cache: tempfile::TempDir,
    source: ModelSource,
    options: HubOptions,
}

impl Setup {
    fn new() -> Self {
        let hub = FakeHub::start(FakeRepository {
            id: ID.to_owned(),
            revisions: ["main", "v1", "refs/pr/3"].map(|name| (name.to_owned(), SHA.to_owned())).into(),
            files: reranker_files(),
            token: None,
            refuse_files: None,
            faults: [].into(),
            etags: [].into(),
            lengths: [].into(),
            commit: None,
        });
        let cache = tempfile::tempdir().unwrap();
        let source = ModelSource {
            model_id: ID.to_owned(),
            revision: "main".to_owned(),
            token: Some(Secret::new("hf_good".to_owned())),
            cache_dir: Some(cache.path().to_owned()),
            reader: Reader::default(),
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
            repository.files.remove("model.safetensors");
            let map = r#"{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#;
            repository.files.insert("model.safetensors.index.json".to_owned(), map.into());
            for shard in ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"] {
                repository.files.insert(shard.to_owned(), safetensors(32));
            }
        });
        setup
    }

    /// Two graphs, one of them with values in a file of their own, in addition to the safetensors.
    fn with_onnx() -> Self {
        let setup = Self::new();
        let files = [
            ("onnx/model.onnx", graph(&["model.onnx_data"])),
            ("onnx/model.onnx_data", vec![7; 9]),
            ("onnx/model_int8.onnx", graph(&[])),
        ];
        for (name, content) in files {
            setup.change(|repository| drop(repository.files.insert(name.to_owned(), content)));
        }
        setup
    }

    fn change(&self, change: impl FnOnce(&mut FakeRepository)) {
        change(&mut self.hub.repository.lock().unwrap());
    }

    fn fault(&self, file: &str, fault: Fault, times: usize) {
        self.change(|repository| repository.faults.extend([(file.to_owned(), (fault, times))]));
    }

    async fn fetch(&self) -> Result<Fetched, FilesError> {
        fetch(&self.source, &self.options).await
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

    /// The bytes of an unfinished download of weights, which a SHA-256 names; 0 without one.
    fn unfinished(&self) -> u64 {
        let blobs = self.cache.path().join("models--Qwen--Qwen3-Reranker-0.6B/blobs");
        let entries = std::fs::read_dir(blobs).into_iter().flatten().map(Result::unwrap);
        let is_unfinished = |name: &str| name.find('.') == Some(64) && name.ends_with(".incomplete");
        let mut unfinished = entries.filter(|entry| is_unfinished(&entry.file_name().to_string_lossy()));
        unfinished.next().and_then(|entry| entry.metadata().ok()).map_or(0, |metadata| metadata.len())
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
        for name in
            ["pytorch_model.bin", "README.md", "onnx/model.onnx", "vocab.json", "model-00001-of-00001.gguf"]
        {
            repository.files.insert(name.to_owned(), vec![0; 10]);
        }
        repository.files.insert("sentence_xlnet_config.json".to_owned(), b"{}".to_vec());
    });
    let folder = load(&setup.source, &setup.options, &describe).await.unwrap();
    assert_eq!((folder.model_id.as_str(), folder.revision_sha.as_deref()), (ID, Some(SHA)));
    assert_eq!(folder.name(), "Qwen3-Reranker-0.6B");
    let mut expected = names(&reranker_files());
    expected.insert("sentence_xlnet_config.json".to_owned());
    assert_eq!(setup.snapshot(), expected);
    assert_eq!(std::fs::read(folder.weights[0].path()).unwrap(), safetensors(64));
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
        setup.source.reader.dense_path = flag.map(str::to_owned);
        setup.change(|repository| {
            repository.files.insert("modules.json".to_owned(), modules.into());
            for [config, weights] in ["2_Dense", "2_Dense_64"].map(files) {
                repository.files.insert(config, br#"{"in_features":2,"out_features":2}"#.to_vec());
                repository.files.insert(weights, safetensors(16));
            }
        });
        setup.fetch().await.unwrap();
        let mut expected = names(&reranker_files());
        // Whether the last module gives scores is a fact about the model, whatever the flag replaces.
        expected.insert("2_Dense/config.json".to_owned());
        expected.extend(files(wanted));
        assert_eq!(setup.snapshot(), expected);
        let requests = setup.hub.requests.lock().unwrap().clone();
        assert_eq!(requests.last().unwrap(), "GET /cdn/model.safetensors");
    }
    for (flag, part) in
        [(None, "`2_Dense/config.json` is missing"), (Some("../x"), "not a folder below the model's")]
    {
        let mut setup = Setup::new();
        setup.source.reader.dense_path = flag.map(str::to_owned);
        setup.change(|repository| {
            repository.files.insert("modules.json".to_owned(), modules.into());
        });
        let message = setup.message().await;
        assert!(message.contains(part) && !setup.snapshot().contains("model.safetensors"), "{message}");
    }
}

#[tokio::test]
async fn what_cannot_be_served_is_refused_before_its_weights_are_fetched() {
    let mamba = r#"{"architectures":["MambaForCausalLM"],"model_type":"mamba"}"#;
    let without_weights = ["tf_model.h5", "onnx/model.onnx"];
    let table: [(&str, &[&str], &str); 3] = [
        (mamba, &[], "mamba is not supported"),
        (mamba, &without_weights, "mamba is not supported"),
        (
            "{}",
            &without_weights,
            "are in ONNX (onnx/model.onnx), which `--backend candle` does not read: give `--backend ort`",
        ),
    ];
    for (config, others, part) in table {
        let setup = Setup::new();
        setup.change(|repository| {
            repository.files.insert(CONFIG.to_owned(), config.into());
            if !others.is_empty() {
                repository.files.retain(|name, _| name != "model.safetensors" && name != TOKENIZER);
                repository.files.extend(others.iter().map(|&name| (name.to_owned(), vec![0; 10])));
            }
            if config == "{}" {
                repository.files.insert(TOKENIZER.to_owned(), b"{}".to_vec());
            }
        });
        let message = setup.message().await;
        assert!(message.contains(part), "{message}");
        let fetched = if config == "{}" { &[CONFIG, MODULES, PROMPTS][..] } else { &[CONFIG] };
        assert_eq!(setup.snapshot(), fetched.iter().map(|&name| name.to_owned()).collect(), "{part}");
    }
}

#[tokio::test]
async fn an_unsupported_module_is_refused_before_the_weights_are_fetched() {
    let modules = |class: &str| {
        let module = |path: &str, class: &str| json!({ "path": path, "type": format!("sentence_transformers.models.{class}") });
        let all = [module("", "Transformer"), module("1_X", class), module("2_Pooling", "Pooling")];
        serde_json::to_vec(&all).unwrap()
    };
    let fetched = async |class: &str, backend| {
        let mut setup = Setup::new();
        setup.source.reader.backend = backend;
        setup.change(|repository| _ = repository.files.insert(MODULES.to_owned(), modules(class)));
        let result = setup.fetch().await.map(|_| ()).map_err(|error| error.to_string());
        (result, setup.snapshot().contains("model.safetensors"))
    };
    let (refused, has_weights) = fetched("WeightedLayerPooling", BackendKind::Candle).await;
    assert!(refused.unwrap_err().contains("names the module `WeightedLayerPooling`, which is not supported"));
    assert!(!has_weights);
    assert!(!fetched("LSTM", BackendKind::Candle).await.1);
    // sentence-transformers has more modules.
    assert_eq!(fetched("WeightedLayerPooling", BackendKind::Python).await, (Ok(()), true));
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
async fn the_backend_decides_what_the_weights_are() {
    let setup = Setup::with_onnx();
    let weights = |setup: &Setup| {
        let names = setup.snapshot().into_iter();
        names.filter(|name| name.contains("onnx") || name.contains("safetensors")).collect::<Vec<_>>()
    };
    setup.fetch().await.unwrap();
    assert_eq!(weights(&setup), ["model.safetensors"]);
    for (onnx_file, expected) in [
        (None, &["onnx/model.onnx", "onnx/model.onnx_data"][..]),
        (Some("model_int8.onnx"), &["onnx/model_int8.onnx"]),
    ] {
        let mut setup = Setup::with_onnx();
        setup.source.reader = Reader {
            backend: BackendKind::Ort,
            onnx_file: onnx_file.map(str::to_owned),
            ..Reader::default()
        };
        let local = setup.fetch().await.unwrap();
        assert_eq!(weights(&setup), expected);
        assert_eq!(local.weights, expected);
    }
    for (name, part) in [("../../x", "cannot be a file of values"), ("absent", "`onnx/absent` is missing")] {
        let mut hostile = Setup::with_onnx();
        hostile.source.reader.backend = BackendKind::Ort;
        hostile.change(|repository| {
            repository.files.insert("onnx/model.onnx".to_owned(), graph(&[name]));
        });
        let message = hostile.message().await;
        assert!(message.contains(part), "{message}");
    }
    setup.change(|repository| drop(repository.files.remove("model.safetensors")));
    let cache = tempfile::tempdir().unwrap();
    let source = ModelSource { cache_dir: Some(cache.path().to_owned()), ..setup.source.clone() };
    let message = fetch(&source, &setup.options).await.unwrap_err().to_string();
    assert!(
        message.contains("in ONNX (onnx/model.onnx)") && message.contains("`--backend ort`"),
        "{message}"
    );
}

#[tokio::test]
async fn shards_are_those_that_the_index_names() {
    let setup = Setup::sharded();
    assert_eq!(setup.fetch().await.unwrap().weights.len(), 2);
    setup.change(|repository| drop(repository.files.remove("model-00002-of-00002.safetensors")));
    let setup = Setup { cache: tempfile::tempdir().unwrap(), ..setup };
    let source = ModelSource { cache_dir: Some(setup.cache.path().to_owned()), ..setup.source.clone() };
    let message = fetch(&source, &setup.options).await.unwrap_err().to_string();
    assert!(message.contains("`model-00002-of-00002.safetensors` is missing"), "{message}");
}

#[tokio::test]
async fn every_kind_of_revision_works_online_and_then_offline() {
    for revision in ["main", "v1", "refs/pr/3", SHA] {
        let mut setup = Setup::new();
        setup.source.revision = revision.to_owned();
        let online = setup.fetch().await.unwrap();
        assert_eq!(online.sha.as_deref(), Some(SHA));
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
    assert_eq!(fetch(&source, &options).await.unwrap(), online);
    let other = ModelSource { revision: "v1".to_owned(), ..source.clone() };
    let message = fetch(&other, &options).await.unwrap_err().to_string();
    for part in [
        "cannot reach the Hub at http://127.0.0.1",
        "refused",
        "HTTPS_PROXY",
        "HF_ENDPOINT",
        "local directory",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    std::fs::remove_file(online.root.join("model-00002-of-00002.safetensors")).unwrap();
    assert!(matches!(fetch(&source, &options).await, Err(FilesError::Unreachable { .. })));
    options.offline = true;
    let message = fetch(&source, &options).await.unwrap_err().to_string();
    for part in ["HF_HUB_OFFLINE", "model-00002-of-00002.safetensors", &cache.path().display().to_string()] {
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[tokio::test]
async fn a_transfer_that_breaks_off_leaves_nothing_and_the_next_start_succeeds() {
    for (fault, reason) in
        [(Fault::Drop, ""), (Fault::Short, "bytes arrived"), (Fault::Status(403), "answers 403")]
    {
        for file in ["model.safetensors", "tokenizer_config.json"] {
            let mut setup = Setup::new();
            setup.options.attempts = 1;
            setup.fault(file, fault, 1);
            let message = setup.message().await;
            assert!(message.contains(&format!("download of `{file}` broke off")), "{fault:?}: {message}");
            assert!(message.contains(reason), "{fault:?}: {message}");
            assert!(!setup.snapshot().contains(file), "{fault:?} left {file}");
            let lengths: Vec<u64> = reranker_files().values().map(|content| content.len() as u64).collect();
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
    let error = setup.fetch().await.unwrap_err().to_string();
    assert!(error.contains("broke off"), "{error}");
}

#[tokio::test]
async fn a_transfer_that_stands_still_is_given_up() {
    let mut setup = Setup::new();
    setup.options.attempts = 2;
    setup.fault("model.safetensors", Fault::Stall, 1);
    let clock = StoppedClock::new();
    let half = safetensors(64).len() as u64 / 2;
    let patience = async {
        clock.until(|| setup.unfinished() == half).await;
        tokio::time::advance(setup.options.patience * 2).await;
        tokio::time::resume();
    };
    // The second attempt succeeds. The hub never ends the first.
    clock.run(setup.fetch(), patience).await.unwrap();
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
        ("unknown revision", |s| s.source.revision = "v9".to_owned(), &["no revision `v9`", "--revision"]),
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
            &["`model.safetensors` is missing", "reads weights as model.safetensors"],
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
        reader: Reader::default(),
    };
    let options = HubOptions { offline: true, ..HubOptions::default() };
    let here = source(&folder.path().display().to_string());
    let weights = vec!["model.safetensors".to_owned()];
    let expected = Fetched { root: folder.path().to_owned(), sha: None, weights };
    assert_eq!(fetch(&here, &options).await.unwrap(), expected);
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
        let message = fetch(&source(model_id), &options).await.unwrap_err().to_string();
        assert!(message.contains(expected), "{model_id}: {message}");
    }
}

/// The files of a folder and below, by path, without the cache that is in it.
fn everything(root: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            found.insert(path.strip_prefix(root).unwrap().display().to_string());
            if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            }
        }
    }
    found
}

#[tokio::test]
async fn no_name_of_a_hostile_hub_leads_out_of_the_cache() {
    type Change = fn(&mut FakeRepository);
    let table: [(&str, Change, &str); 9] = [
        (
            "sha up",
            |r| drop(r.revisions.insert("main".to_owned(), "../../../../escaped".to_owned())),
            "40 hexadecimal digits",
        ),
        (
            "sha absolute",
            |r| drop(r.revisions.insert("main".to_owned(), "/tmp/escaped".to_owned())),
            "40 hexadecimal digits",
        ),
        (
            "etag of a small file",
            |r| drop(r.etags.insert(CONFIG.to_owned(), "\"../../../escaped\"".to_owned())),
            "`config.json` of the model",
        ),
        (
            "etag of weights",
            |r| drop(r.etags.insert("model.safetensors".to_owned(), "\"../../../escaped\"".to_owned())),
            "`model.safetensors` of the model",
        ),
        ("no etag", |r| drop(r.etags.insert(CONFIG.to_owned(), String::new())), "its ETag is \"\""),
        (
            "module",
            |r| {
                let modules = r#"[{"type":"x.Dense","path":"../../../../escaped"}]"#;
                r.files.insert(MODULES.to_owned(), modules.into());
                r.files.insert("../../../../escaped/config.json".to_owned(), b"{}".to_vec());
            },
            "not a folder below the model's",
        ),
        (
            "template",
            |r| {
                let kwargs = r#"{"processing_kwargs":{"chat_template":{"chat_template":"..\\..\\escaped"}}}"#;
                r.files.insert("sentence_bert_config.json".to_owned(), kwargs.into());
                let name = "additional_chat_templates/..\\..\\escaped.jinja";
                r.files.insert(name.to_owned(), b"x".to_vec());
            },
            "the Hub names the file",
        ),
        (
            "shard",
            |r| {
                r.files.remove("model.safetensors");
                let index = r#"{"weight_map":{"w":"../../../../escaped.safetensors"}}"#;
                r.files.insert("model.safetensors.index.json".to_owned(), index.into());
            },
            "which is not a weight file of this model",
        ),
        // Nobody reads it.
        ("commit", |r| r.commit = Some("../../../../escaped".to_owned()), ""),
    ];
    for (row, change, part) in table {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("a/b");
        std::fs::create_dir_all(&cache).unwrap();
        let setup = Setup::new();
        setup.change(change);
        let source = ModelSource { cache_dir: Some(cache), ..setup.source.clone() };
        let message = fetch(&source, &setup.options).await.err().map(|error| error.to_string());
        let message = message.unwrap_or_default();
        assert!(message.contains(part) && message.is_empty() == part.is_empty(), "{row}: {message}");
        let found = everything(folder.path());
        assert!(found.iter().all(|path| path == "a" || path.starts_with("a/b")), "{row}: {found:?}");
        assert!(!found.iter().any(|path| path.contains("escaped")), "{row}: {found:?}");
    }
}

#[tokio::test]
async fn a_revision_that_is_no_path_is_refused() {
    for revision in ["../main", "/etc", "a//b", "", "a\nb"] {
        let mut setup = Setup::new();
        setup.source.revision = revision.to_owned();
        let error = setup.fetch().await.unwrap_err().to_string();
        assert!(error.ends_with("a full commit id or refs/pr/N"), "{revision}: {error}");
    }
}

#[tokio::test]
async fn no_more_is_kept_than_was_announced_or_may_be() {
    type Change = fn(&mut Setup);
    let table: [(&str, &str, Change, &str); 6] = [
        ("announced", CONFIG, |s| s.fault(CONFIG, Fault::Endless, 9), "more than 79 bytes"),
        (
            "not announced",
            CONFIG,
            |s| {
                s.change(|r| _ = r.lengths.insert(CONFIG.to_owned(), None));
                s.fault(CONFIG, Fault::Endless, 9);
            },
            "more than 16777216 bytes",
        ),
        (
            "announced too long",
            CONFIG,
            |s| s.change(|r| _ = r.lengths.insert(CONFIG.to_owned(), Some(1 << 40))),
            "longer than 16777216 bytes",
        ),
        (
            "weights",
            "model.safetensors",
            |s| s.fault("model.safetensors", Fault::Endless, 9),
            "more than 159 bytes",
        ),
        (
            "weights not announced",
            "model.safetensors",
            |s| s.change(|r| _ = r.lengths.insert("model.safetensors".to_owned(), None)),
            "does not say how many",
        ),
        (
            "more than the index says",
            "model-00001-of-00002.safetensors",
            |s| {
                s.change(|r| {
                    r.files.remove("model.safetensors");
                    let shard = "model-00001-of-00002.safetensors";
                    let index =
                        format!(r#"{{"metadata":{{"total_size":1e3}},"weight_map":{{"a":"{shard}"}}}}"#);
                    r.files.insert("model.safetensors.index.json".to_owned(), index.into());
                    r.files.insert(shard.to_owned(), safetensors(32));
                    r.lengths.insert(shard.to_owned(), Some(17 << 20));
                });
            },
            "where the list of shards leaves 16781216",
        ),
    ];
    for (row, file, change, part) in table {
        let mut setup = Setup::new();
        change(&mut setup);
        let message = setup.message().await;
        assert!(message.contains(part) && message.contains(file), "{row}: {message}");
        assert!(!setup.snapshot().contains(file), "{row}");
        let blobs = setup.cache.path().join("models--Qwen--Qwen3-Reranker-0.6B/blobs");
        let kept = everything(&blobs);
        assert!(!kept.iter().any(|name| name.ends_with("incomplete")), "{row}: {kept:?}");
    }
}

#[tokio::test]
async fn a_download_that_broke_off_goes_on_where_it_was() {
    let setup = Setup::new();
    setup.fault("model.safetensors", Fault::Drop, 2);
    let local = setup.fetch().await.unwrap();
    assert_eq!(std::fs::read(local.root.join("model.safetensors")).unwrap(), safetensors(64));
    let requests = setup.hub.requests.lock().unwrap().clone();
    let of_weights: Vec<&str> =
        requests.iter().filter_map(|request| request.strip_prefix("GET /cdn/model.safetensors")).collect();
    assert_eq!(of_weights, ["", " from 79", " from 119"], "{requests:?}");
    let blobs = setup.cache.path().join("models--Qwen--Qwen3-Reranker-0.6B/blobs");
    assert!(!everything(&blobs).iter().any(|name| name.ends_with("incomplete")));
}

#[tokio::test]
async fn a_large_file_of_another_sha_256_is_not_kept() {
    let content = safetensors(64);
    let sum = sha256_of(&content);
    let mut other = content.clone();
    other[100] ^= 1;
    // The beginning that an earlier start left, and the content that the Hub has.
    let table = [(vec![], &other), (other[..110].to_vec(), &content), (other.clone(), &content)];
    for (beginning, sent) in table {
        let setup = Setup::new();
        setup.change(|repository| {
            repository.files.insert("model.safetensors".to_owned(), sent.clone());
            repository.etags.insert("model.safetensors".to_owned(), format!("\"{sum}\""));
        });
        let blobs = setup.cache.path().join("models--Qwen--Qwen3-Reranker-0.6B/blobs");
        std::fs::create_dir_all(&blobs).unwrap();
        std::fs::write(blobs.join(format!("{sum}.router.incomplete")), beginning).unwrap();
        let message = setup.message().await;
        assert!(message.contains("`model.safetensors`") && message.contains(&sum), "{message}");
        assert!(!everything(&blobs).iter().any(|name| name.contains(&sum)));
        setup.change(|repository| {
            repository.files.insert("model.safetensors".to_owned(), content.clone());
        });
        setup.fetch().await.unwrap();
    }
}

#[tokio::test]
async fn a_transfer_that_only_drips_is_given_up() {
    let mut setup = Setup::new();
    setup.options.attempts = 1;
    setup.change(|repository| {
        // At a byte every 20 ms, this lasts for hours.
        repository.files.insert("model.safetensors".to_owned(), safetensors(1 << 20));
    });
    setup.fault("model.safetensors", Fault::Drip, 1);
    let clock = StoppedClock::new();
    let patience = async {
        // Each wait for a byte is shorter than the patience, and the two together are longer. A byte that
        // arrives after time has passed ends the wait that was affected.
        for _ in 0..2 {
            let length = setup.unfinished();
            clock.until(|| setup.unfinished() > length).await;
            tokio::time::advance(setup.options.patience * 2 / 3).await;
        }
    };
    let message = clock.run(setup.message(), patience).await;
    assert!(message.contains("bytes came in 20s") && message.contains("only"), "{message}");
}

#[tokio::test]
async fn what_was_in_the_cache_before_is_not_overwritten() {
    let setup = Setup::new();
    setup.fetch().await.unwrap();
    let folder = setup.cache.path().join("models--Qwen--Qwen3-Reranker-0.6B");
    std::fs::remove_dir_all(folder.join("snapshots")).unwrap();
    let blob = folder.join("blobs/tokenizer-json-2");
    // Of the announced length: it is taken for the content. Of another: it is not.
    std::fs::write(&blob, "[]").unwrap();
    let local = setup.fetch().await.unwrap();
    assert_eq!(std::fs::read_to_string(local.root.join(TOKENIZER)).unwrap(), "[]");
    std::fs::remove_dir_all(folder.join("snapshots")).unwrap();
    std::fs::write(&blob, "mine").unwrap();
    let message = setup.message().await;
    assert!(message.contains("it has 4 bytes, and the Hub's file has 2"), "{message}");
    assert_eq!(std::fs::read_to_string(&blob).unwrap(), "mine");
}

/// The weights that are read of a repository with these files instead of model.safetensors, or the error, and
/// the files that were fetched.
async fn fetched(
    without: &[&str],
    with: &[&str],
    change: impl FnOnce(&mut ModelSource),
) -> (Result<Vec<String>, String>, BTreeSet<String>) {
    let mut setup = Setup::new();
    setup.change(|repository| {
        repository.files.retain(|name, _| name != "model.safetensors" && !without.contains(&name.as_str()));
        for name in with {
            let content = match *name {
                "2_Dense/config.json" => br#"{"in_features":2,"out_features":2}"#.to_vec(),
                name if name.ends_with("index.json") => {
                    br#"{"weight_map":{"a":"pytorch_model-1.bin","b":"pytorch_model-2.bin"}}"#.to_vec()
                }
                name if is_gguf(name) => vec![0; 10],
                _ => safetensors(16),
            };
            repository.files.insert((*name).to_owned(), content);
        }
    });
    change(&mut setup.source);
    let found = setup.fetch().await.map(|model| model.weights).map_err(|error| error.to_string());
    if let Ok(weights) = &found {
        // The copy in the cache is complete by itself.
        setup.options.offline = true;
        assert_eq!(setup.fetch().await.unwrap().weights, *weights);
    }
    (found, setup.snapshot())
}

#[tokio::test]
async fn of_weights_in_other_formats_only_those_that_are_used_are_fetched() {
    let weights = |snapshot: &BTreeSet<String>| {
        snapshot.iter().filter(|name| is_weights(name)).cloned().collect::<Vec<_>>()
    };
    let none: &[&str] = &[];
    let (found, snapshot) =
        fetched(none, &["pytorch_model.bin", "a.gguf", "flax_model.msgpack"], |_| {}).await;
    assert_eq!(found.unwrap(), ["pytorch_model.bin"]);
    assert_eq!(weights(&snapshot), ["pytorch_model.bin"]);
    let shards = ["pytorch_model.bin.index.json", "pytorch_model-1.bin", "pytorch_model-2.bin"];
    let (found, snapshot) = fetched(none, &shards, |_| {}).await;
    assert_eq!(found.unwrap(), shards[1..]);
    assert_eq!(weights(&snapshot), shards[1..]);
}

#[tokio::test]
async fn of_a_gguf_file_s_repository_no_other_file_is_fetched() {
    let others = &[CONFIG, TOKENIZER];
    // These ten bytes are fetched and read, and no GGUF file.
    let is_read = |found: Result<Vec<String>, String>, name: &str| {
        let message = found.unwrap_err();
        assert!(message.contains(name) && message.contains("does not begin as a GGUF file"), "{message}");
    };
    let (found, snapshot) = fetched(others, &["a.gguf", "mmproj-a.gguf"], |_| {}).await;
    is_read(found, "a.gguf");
    assert_eq!(snapshot, BTreeSet::from(["a.gguf".to_owned()]));
    let dense = ["a.gguf", "2_Dense/config.json", "2_Dense/model.safetensors"];
    let choose = |source: &mut ModelSource| source.reader.dense_path = Some("2_Dense".to_owned());
    let (found, snapshot) = fetched(others, &dense, choose).await;
    is_read(found, "a.gguf");
    assert_eq!(snapshot, BTreeSet::from(dense.map(str::to_owned)));
    let (found, snapshot) = fetched(others, &["a.gguf", "b.gguf"], |_| {}).await;
    assert!(found.unwrap_err().ends_with("choose one with `--gguf-file`: a.gguf, b.gguf"));
    assert!(snapshot.is_empty());
    for by_flag in [true, false] {
        let choose = |source: &mut ModelSource| {
            if by_flag {
                source.reader.gguf_file = Some("b.gguf".to_owned());
            } else {
                source.model_id.push_str(":b.gguf");
            }
        };
        let (found, snapshot) = fetched(&[], &["a.gguf", "b.gguf", "pytorch_model.bin"], choose).await;
        is_read(found, "b.gguf");
        assert_eq!(snapshot, BTreeSet::from(["b.gguf".to_owned()]));
    }
}
