//! A model folder as a typed value.
//!
//! Input: a directory with the layout of a Hub repository. Output: [`ModelFolder`], which has everything that
//! the rest of the server needs from the files. What must hold: config, tokenizer and all weight files exist
//! and are complete; a file that exists but cannot be understood is an error and is never skipped.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use tempfile::TempDir;
use text_embeddings_backend_core::{BackendError, BackendKind, Description};
use text_embeddings_checkpoint::CheckpointFile;

use super::config::{
    LogitScore, ModelConfig, Module, PoolingConfig, PromptsConfig, SentenceBert, TokenizerConfig,
    read_optional_json,
};
use super::dense::ends_in_scores;
use super::error::FilesError;
use super::gguf;
use super::head::BGE_M3_FILES;
use super::modules;
use super::onnx;
use super::source::Reader;
use super::templates::{self, CHAT_TEMPLATE};
use super::weights::{
    Selection, StoredWeights, check_small_file, check_weights, select_local, stored, weight_files,
};
use crate::templates::MessageStyle;

pub(super) const CONFIG: &str = "config.json";
pub(super) const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
pub(super) const MODULES: &str = "modules.json";
const LOGIT_SCORE: &str = "1_LogitScore/config.json";
pub(super) const POOLING: &str = "1_Pooling/config.json";
const PROMPTS: &str = "config_sentence_transformers.json";
/// The architecture of both jina-reranker-v1 and Jina's embedding models, and the tensor that only the
/// re-ranker has.
const JINA_BERT: &str = "JinaBertModel";
const CLASSIFIER: &str = "classifier.weight";
/// The output of an ONNX file with that head.
const LOGITS: &str = "logits";
/// The file with `max_seq_length`, and its names in older versions of sentence-transformers.
const SENTENCE_BERT: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

/// Reads `config.json` for a backend. Gives a description, or one sentence that names an unsupported setting.
pub type Describe = dyn Fn(&Value) -> Result<Description, BackendError> + Sync;

/// The optional files, other than weights, that this server reads.
pub(super) fn optional_files() -> impl Iterator<Item = &'static str> {
    let files = [TOKENIZER_CONFIG, CHAT_TEMPLATE, MODULES, LOGIT_SCORE, POOLING, PROMPTS];
    files.into_iter().chain(SENTENCE_BERT).chain(BGE_M3_FILES)
}

/// The remedy for a missing `config.json` or `tokenizer.json`.
pub(super) fn remedy(file: &str) -> &'static str {
    if file == TOKENIZER {
        "this server needs the tokenizer as tokenizer.json (a fast tokenizer; `AutoTokenizer.from_pretrained(…)\
         .save_pretrained(…)` writes it)"
    } else {
        "check that `--model-id` names a model in the layout of `transformers`"
    }
}

/// A chat template from a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChosenTemplate {
    /// Its text.
    pub source: String,
    /// The place of the template, for messages.
    pub place: String,
    /// The form in which it gets its messages.
    pub style: MessageStyle,
}

/// A complete model folder.
#[derive(Debug, Clone)]
pub struct ModelFolder {
    /// The path of the folder.
    pub root: PathBuf,
    /// The Hub id or path that the user gave.
    pub model_id: String,
    /// The commit of the Hub's repository; `None` for a local folder.
    pub revision_sha: Option<String>,
    /// `config.json`.
    pub config: ModelConfig,
    /// The backend's description of `config.json`.
    pub description: Description,
    /// `tokenizer.json`.
    pub tokenizer: PathBuf,
    /// The weight files in the order of their names, or the ONNX file; never empty.
    pub weights: Vec<PathBuf>,
    /// The description of the weight files; `None` for an ONNX file.
    pub stored: Option<StoredWeights>,
    /// The chat template to use.
    pub chat_template: Option<ChosenTemplate>,
    /// The entries of `modules.json`; empty if there is no such file.
    pub modules: Vec<Module>,
    /// `1_LogitScore/config.json`; present if `modules` names a `LogitScore`.
    pub logit_score: Option<LogitScore>,
    /// Whether `modules` end in a raw score, as in a modular cross-encoder.
    pub ends_in_scores: bool,
    /// Whether the weights contain a classification head with one label that `config.json` does not mention.
    /// This is so for jina-reranker-v1, whose architecture has the name of the bare encoder.
    pub has_unnamed_score: bool,
    /// `1_Pooling/config.json`. It has no modes if there is only the module or the bare folder.
    pub pooling: Option<PoolingConfig>,
    /// Prompts by name, from `config_sentence_transformers.json`.
    pub prompts: BTreeMap<String, String>,
    /// The name of the prompt for requests that do not name one.
    pub default_prompt_name: Option<String>,
    /// The longest input in tokens, from `sentence_bert_config.json`.
    pub max_seq_length: Option<usize>,
    /// The longest input in tokens, from `tokenizer_config.json`. Often it is more than the model's positions
    /// allow.
    pub model_max_length: Option<usize>,
    /// Whether the second text of a pair has another token type than the first.
    pub has_token_types: bool,
    /// The tokens that do not stand for a part of a text (such as `[CLS]`), as far as `tokenizer_config.json`
    /// names them.
    pub empty_tokens: Vec<String>,
    /// The function that sentence-transformers applies to a cross-encoder's raw score, by its name in the
    /// files.
    pub score_activation: Option<String>,
    /// The model's name if its folder has another name.
    pub(super) given_name: Option<String>,
    /// Removes a temporary folder with its files when it is dropped: `root`, or the folder with the unpacked
    /// files of a GGUF file.
    pub(super) unpacked: Option<Arc<TempDir>>,
}

impl ModelFolder {
    /// Reads and checks the folder `root` for a backend. An unsupported architecture is reported before all
    /// other errors.
    ///
    /// # Errors
    ///
    /// Any variant of [`FilesError`] about files. It names the missing, truncated or malformed file.
    pub fn open(root: &Path, reader: &Reader, describe: &Describe) -> Result<Self, FilesError> {
        match select_local(root, reader) {
            Ok(selection) => Self::open_selected(root, &selection, reader.backend, describe),
            Err(error) if error.is_about_gguf() => Err(error),
            // All other defects of the folder are reported before this one, beginning with an unsupported
            // architecture.
            Err(error) => Self::read(root, |_| Err(error), reader.backend, describe),
        }
    }

    /// Like [`ModelFolder::open`], with the weights of a selection.
    pub(super) fn open_selected(
        root: &Path,
        selection: &Selection,
        backend: BackendKind,
        describe: &Describe,
    ) -> Result<Self, FilesError> {
        if let Selection::Gguf(name) = selection {
            return Self::open_gguf(root, name, describe);
        }
        Self::read(root, |root| weight_files(root, selection), backend, describe)
    }

    /// Reads the GGUF file `name` in the folder `root`.
    fn open_gguf(root: &Path, name: &str, describe: &Describe) -> Result<Self, FilesError> {
        let weights = weight_files(root, &Selection::Gguf(name.to_owned()))?;
        let stem = Path::new(name).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let unpacked = gguf::unpack(&weights[0])?;
        let folder = Self::read(unpacked.path(), |_| Ok(weights), BackendKind::Candle, describe)?;
        let (root, model_id) = (root.to_owned(), root.display().to_string());
        Ok(Self { root, model_id, given_name: Some(stem), unpacked: Some(Arc::new(unpacked)), ..folder })
    }

    fn read(
        root: &Path,
        weights: impl FnOnce(&Path) -> Result<Vec<PathBuf>, FilesError>,
        backend: BackendKind,
        describe: &Describe,
    ) -> Result<Self, FilesError> {
        let config = ModelConfig::load(&required(root, CONFIG)?)?;
        let has_onnx = || onnx::names(root).iter().any(|name| onnx::is_graph(name));
        let description = describe(&config.raw).map_err(|error| FilesError::refused(error, has_onnx()))?;
        let modules: Vec<Module> = read_optional_json(&root.join(MODULES))?.unwrap_or_default();
        if backend != BackendKind::Python {
            modules::refuse_unknown(&modules)?;
        }
        let tokenizer = required(root, TOKENIZER)?;
        check_small_file(&tokenizer)?;
        let weights = weights(root)?;
        // ONNX Runtime checks the form of a graph and of its values.
        let graph = weights.first().filter(|path| path.extension().is_some_and(|ending| ending == "onnx"));
        let checkpoints: &[PathBuf] = if graph.is_some() { &[] } else { &weights };
        let checkpoints: Vec<CheckpointFile> =
            checkpoints.iter().map(|path| check_weights(path)).collect::<Result<_, _>>()?;
        let PromptsConfig { prompts, default_prompt_name, activation_fn } =
            read_optional_json(&root.join(PROMPTS))?.unwrap_or_default();
        let tokenizer_config: TokenizerConfig =
            read_optional_json(&root.join(TOKENIZER_CONFIG))?.unwrap_or_default();
        let sentence_bert = sentence_bert(root)?;
        let reads = |name: &str| {
            let names = tokenizer_config.model_input_names.as_ref();
            names.is_none_or(|names| names.iter().any(|known| known == name))
        };
        Ok(Self {
            root: root.to_owned(),
            model_id: root.display().to_string(),
            revision_sha: None,
            has_unnamed_score: has_unnamed_score(&config, &checkpoints, graph.map(PathBuf::as_path))?,
            stored: stored(&checkpoints),
            score_activation: activation_fn.or_else(|| config.score_activation().map(str::to_owned)),
            config,
            description,
            tokenizer,
            weights,
            has_token_types: description.has_token_types && reads("token_type_ids"),
            empty_tokens: tokenizer_config.empty_tokens(),
            model_max_length: tokenizer_config.longest_input(),
            chat_template: templates::choose(root, tokenizer_config, sentence_bert.as_ref(), &modules)?,
            ends_in_scores: ends_in_scores(root, &modules)?,
            logit_score: logit_score(root, &modules)?,
            pooling: pooling(root, &modules)?,
            modules,
            prompts: prompts.into_iter().filter_map(|(name, prompt)| Some((name, prompt?))).collect(),
            default_prompt_name,
            max_seq_length: sentence_bert.and_then(|config| config.max_seq_length),
            given_name: None,
            unpacked: None,
        })
    }

    /// The model's names in lower case: [`ModelFolder::name`], then the last part of `_name_or_path` in
    /// config.json.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let saved = self.config.raw["_name_or_path"].as_str().unwrap_or_default();
        let saved = saved.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        [&self.name(), saved].into_iter().filter(|name| !name.is_empty()).map(str::to_lowercase).collect()
    }

    /// The folder with the files that describe the model: `root`, or the unpacked files of a GGUF file.
    #[must_use]
    pub(super) fn files(&self) -> &Path {
        self.unpacked.as_ref().map_or(&self.root, |folder| folder.path())
    }

    /// Whether the folder is deleted with the last clone of this value.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        self.unpacked.as_ref().is_some_and(|folder| folder.path() == self.root)
    }

    /// The model's own name: the last part of its Hub id (also if `root` is a snapshot in the Hub's cache),
    /// otherwise the folder's name. Owner and parent folders are not part of it.
    #[must_use]
    pub fn name(&self) -> String {
        if let Some(name) = &self.given_name {
            return name.clone();
        }
        let root = self.root.canonicalize();
        let root =
            if self.root.file_name().is_some() { &self.root } else { root.as_ref().unwrap_or(&self.root) };
        let snapshots = root.parent().filter(|parent| parent.ends_with("snapshots"));
        if let Some(cached) = snapshots.and_then(Path::parent).and_then(Path::file_name)
            && let Some(id) = cached.to_string_lossy().strip_prefix("models--")
        {
            return id.split_once("--").map_or(id, |(_owner, name)| name).to_owned();
        }
        root.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// The path of a file that every model has.
pub(super) fn required(root: &Path, file: &str) -> Result<PathBuf, FilesError> {
    required_for(root, file, remedy(file))
}

/// The path of a file that must exist. Otherwise the error contains `remedy`.
pub(super) fn required_for(root: &Path, file: &str, remedy: &'static str) -> Result<PathBuf, FilesError> {
    let path = root.join(file);
    if path.try_exists().map_err(|error| FilesError::io(&path, error))? {
        return Ok(path);
    }
    Err(FilesError::Missing { place: root.display().to_string(), file: file.to_owned(), remedy })
}

fn logit_score(root: &Path, modules: &[Module]) -> Result<Option<LogitScore>, FilesError> {
    // Some repositories name a folder that they do not have.
    let named = modules::config_of(modules, "LogitScore").filter(|path| root.join(path).exists());
    let path = named.as_deref().unwrap_or(LOGIT_SCORE);
    if modules.iter().any(|module| module.class_name() == "LogitScore") {
        let remedy = "modules.json names it; download the model again with this folder";
        required_for(root, path, remedy)?;
    }
    read_optional_json(&root.join(path))
}

fn has_unnamed_score(
    config: &ModelConfig,
    checkpoints: &[CheckpointFile],
    graph: Option<&Path>,
) -> Result<bool, FilesError> {
    if config.architectures != [JINA_BERT] {
        return Ok(false);
    }
    if let Some(graph) = graph {
        return Ok(onnx::read(graph)?.outputs.iter().any(|name| name == LOGITS));
    }
    let mut found = checkpoints.iter().filter_map(|checkpoint| checkpoint.tensors.get(CLASSIFIER));
    Ok(found.next().is_some_and(|tensor| tensor.shape().first() == Some(&1)))
}

fn pooling(root: &Path, modules: &[Module]) -> Result<Option<PoolingConfig>, FilesError> {
    let path = root.join(modules::config_of(modules, "Pooling").as_deref().unwrap_or(POOLING));
    if path.exists() {
        return PoolingConfig::load(&path).map(Some);
    }
    let named = modules.iter().any(|module| module.class_name() == "Pooling");
    let bare_folder = path.parent().is_some_and(Path::exists);
    Ok((named || bare_folder).then(PoolingConfig::default))
}

/// `sentence_bert_config.json`, or the first of its older names that exists.
fn sentence_bert(root: &Path) -> Result<Option<SentenceBert>, FilesError> {
    for name in SENTENCE_BERT {
        let path = root.join(name);
        match read_optional_json::<SentenceBert>(&path)? {
            None => {}
            Some(SentenceBert { do_lower_case: true, .. }) => {
                let (field, value, known) = ("do_lower_case", "true".to_owned(), "false");
                return Err(FilesError::UnsupportedField { path, field, value, known });
            }
            found => return Ok(found),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::super::fake_hub::{self, ModelFiles, reranker_files, safetensors, write_files};
    use super::*;

    fn open(files: &ModelFiles) -> Result<ModelFolder, FilesError> {
        let folder = tempfile::tempdir().unwrap();
        write_files(folder.path(), files);
        fake_hub::open(folder.path())
    }

    fn with(name: &str, content: impl Into<Vec<u8>>) -> ModelFiles {
        let mut files = reranker_files();
        files.insert(name.to_owned(), content.into());
        files
    }

    fn without(name: &str) -> ModelFiles {
        let mut files = reranker_files();
        files.remove(name).unwrap();
        files
    }

    /// A file with one tensor of float32 zeros.
    fn one_tensor(name: &str, shape: [usize; 2]) -> Vec<u8> {
        let bytes = 4 * shape[0] * shape[1];
        let header =
            serde_json::json!({ name: { "dtype": "F32", "shape": shape, "data_offsets": [0, bytes] } });
        let header = header.to_string().into_bytes();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header);
        file.resize(file.len() + bytes, 0);
        file
    }

    #[test]
    fn a_head_that_only_the_weights_have_is_found_in_jinas_bert() {
        let table = [
            ("JinaBertModel", "classifier.weight", [1, 4], true),
            ("JinaBertModel", "classifier.weight", [3, 4], false),
            ("JinaBertModel", "embeddings.weight", [1, 4], false),
            ("BertModel", "classifier.weight", [1, 4], false),
            ("JinaBertForMaskedLM", "classifier.weight", [1, 4], false),
        ];
        for (architecture, tensor, shape, expected) in table {
            let config = format!(r#"{{"architectures":["{architecture}"],"model_type":"bert"}}"#);
            let mut files = with("config.json", config);
            files.insert("model.safetensors".to_owned(), one_tensor(tensor, shape));
            assert_eq!(
                open(&files).unwrap().has_unnamed_score,
                expected,
                "{architecture} {tensor} {shape:?}"
            );
        }
    }

    fn sharded(shards: &[&str]) -> ModelFiles {
        let mut files = without("model.safetensors");
        let map = r#"{"weight_map":{"a":"model-00002-of-00002.safetensors","b":"model-00001-of-00002.safetensors",
                      "c":"model-00002-of-00002.safetensors"}}"#;
        files.insert("model.safetensors.index.json".to_owned(), map.into());
        files.extend(shards.iter().map(|&shard| (shard.to_owned(), safetensors(16))));
        files
    }

    #[test]
    fn the_longest_input_of_a_tokenizer_is_read_in_every_spelling() {
        for (content, expected) in [
            (r#"{"model_max_length":512}"#, Some(512)),
            (r#"{"model_max_length":1000000000000000019884624838656}"#, Some(usize::MAX)),
            (r#"{"model_max_length":512.0}"#, Some(512)),
            (r#"{"model_max_length":null}"#, None),
            (r#"{"model_max_length":-1}"#, None),
            (r#"{"model_max_length":"many"}"#, None),
            ("{}", None),
        ] {
            let found = open(&with("tokenizer_config.json", content)).unwrap().model_max_length;
            assert_eq!(found, expected, "{content}");
        }
    }

    #[test]
    fn an_official_reranker_is_read_whole() {
        let folder = open(&reranker_files()).unwrap();
        assert_eq!(folder.config.architectures, ["Qwen3ForCausalLM"]);
        assert_eq!(folder.weights, [folder.root.join("model.safetensors")]);
        assert_eq!(folder.logit_score, Some(LogitScore { true_token_id: 9693, false_token_id: Some(2152) }));
        assert_eq!(
            folder.modules.iter().map(Module::class_name).collect::<Vec<_>>(),
            ["Transformer", "LogitScore"]
        );
        assert_eq!(folder.prompts["query"], "Find it");
        assert_eq!(folder.default_prompt_name.as_deref(), Some("query"));
        assert_eq!((folder.pooling, folder.max_seq_length, folder.revision_sha), (None, None, None));
        assert!(folder.chat_template.unwrap().source.contains("document"));
    }

    #[test]
    fn the_template_file_goes_before_the_tokenizer_s() {
        let general = br#"{"chat_template":"general"}"#;
        let both = open(&with("tokenizer_config.json", general)).unwrap();
        assert!(both.chat_template.unwrap().source.contains("document"));
        let mut files = with("tokenizer_config.json", general);
        files.remove("chat_template.jinja");
        assert_eq!(open(&files).unwrap().chat_template.unwrap().source, "general");
        files.remove("tokenizer_config.json");
        assert_eq!(open(&files).unwrap().chat_template, None);
    }

    #[test]
    fn shards_come_in_name_order_and_once() {
        let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        let folder = open(&sharded(&shards)).unwrap();
        assert_eq!(folder.weights, shards.map(|shard| folder.root.join(shard)));
    }

    #[test]
    fn each_defect_names_its_file_and_the_remedy() {
        let mut only_bin = without("model.safetensors");
        only_bin.insert("pytorch_model.bin".to_owned(), vec![0; 8]);
        let mut two_gguf = without("model.safetensors");
        two_gguf.extend(["a.gguf", "b.gguf"].map(|name| (name.to_owned(), vec![0; 8])));
        let mut only_onnx = without("model.safetensors");
        only_onnx.insert("onnx/model.onnx".to_owned(), vec![0; 8]);
        let lfs: &[u8] = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
        let table = [
            (without("config.json"), ["`config.json` is missing", "--model-id"]),
            (without("tokenizer.json"), ["`tokenizer.json` is missing", "save_pretrained"]),
            (
                without("model.safetensors"),
                ["`model.safetensors` is missing", "this server reads weights as"],
            ),
            (only_bin, ["pytorch_model.bin is damaged", "download it again"]),
            (two_gguf, ["several GGUF files", "a.gguf, b.gguf"]),
            (only_onnx, ["in ONNX (onnx/model.onnx)", "`--backend ort`"]),
            (
                without("1_LogitScore/config.json"),
                ["1_LogitScore/config.json` is missing", "download the model again"],
            ),
            (sharded(&["model-00001-of-00002.safetensors"]), ["model-00002-of-00002", "all shards"]),
            (
                with("model.safetensors", &safetensors(64)[..80]),
                ["model.safetensors has 80 bytes", "download it again"],
            ),
            (with("model.safetensors", lfs), ["model.safetensors", "git lfs pull"]),
            (with("tokenizer.json", lfs), ["tokenizer.json", "git lfs pull"]),
            (with("config.json", lfs), ["config.json", "git lfs pull"]),
            (with("config.json", "{\"a\":\n tru"), ["config.json", "line 2"]),
            (with("modules.json", "[{}]"), ["modules.json", "type"]),
            (with("tokenizer_config.json", "{"), ["tokenizer_config.json", "line 1"]),
        ];
        for (files, [file, remedy]) in table {
            let message = open(&files).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(message.contains(file) && message.contains(remedy), "{file}: {message}");
            assert_eq!(message.is_empty(), file.is_empty(), "{message}");
        }
    }

    #[test]
    fn pooling_and_longest_input_are_found_under_every_name() {
        let folder = open(&with("1_Pooling/config.json", r#"{"pooling_mode_lasttoken":true}"#)).unwrap();
        assert_eq!(folder.pooling.unwrap().modes, ["lasttoken"]);
        let modules = r#"[{"idx":0,"name":"0","path":"","type":"sentence_transformers.models.Pooling"}]"#;
        assert_eq!(open(&with("modules.json", modules)).unwrap().pooling, Some(PoolingConfig::default()));
        for name in SENTENCE_BERT {
            assert_eq!(
                open(&with(name, r#"{"max_seq_length":77}"#)).unwrap().max_seq_length,
                Some(77),
                "{name}"
            );
        }
        assert_eq!(open(&with(SENTENCE_BERT[0], r#"{"do_lower_case":false}"#)).unwrap().max_seq_length, None);
        let message = open(&with(SENTENCE_BERT[0], r#"{"do_lower_case":true}"#)).unwrap_err().to_string();
        assert!(message.contains("`do_lower_case` of") && message.contains("only false"), "{message}");
    }

    #[test]
    fn the_name_is_the_model_s_own() {
        let base = tempfile::tempdir().unwrap();
        let table = [
            ("rerankers/My-Model", "My-Model"),
            ("models--Qwen--Qwen3-Reranker-0.6B/snapshots/0123", "Qwen3-Reranker-0.6B"),
            ("models--gpt2/snapshots/0123", "gpt2"),
            ("plain/snapshots/0123", "0123"),
        ];
        for (path, expected) in table {
            let root = base.path().join(path);
            write_files(&root, &reranker_files());
            assert_eq!(fake_hub::open(&root).unwrap().name(), expected);
            assert_eq!(fake_hub::open(&root.join(".")).unwrap().name(), expected);
        }
    }
}
