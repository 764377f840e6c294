//! A model folder as a typed value.
//!
//! Input: a directory with the layout of a Hub repository, or another repository (`read.rs`). Output:
//! [`ModelFolder`], which has everything that the rest of the server needs from the files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use text_embeddings_backend_core::{BackendError, Description, HeadModule};
use text_embeddings_checkpoint::ModelFile;

use super::config::{BgeM3Files, LogitScore, ModelConfig, Module, PoolingConfig, SpladeFile};
use super::late_interaction::LateInteraction;
use super::static_embedding::StaticTokens;
use super::templates::ChosenTemplate;
use super::weights::StoredWeights;

/// Reads `config.json` for a backend. Gives a description, or one sentence that names an unsupported setting.
pub type Describe = dyn Fn(&Value) -> Result<Description, BackendError> + Sync;

/// A complete model folder.
#[derive(Debug, Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about the files")]
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
    pub tokenizer: ModelFile,
    /// The weight files in the order of their names, or the ONNX file; never empty.
    pub weights: Vec<ModelFile>,
    /// The description of the weight files; `None` for an ONNX file.
    pub stored: Option<StoredWeights>,
    /// The chat template to use.
    pub chat_template: Option<ChosenTemplate>,
    /// The entries of `modules.json`; empty if there is no such file.
    pub modules: Vec<Module>,
    /// `1_LogitScore/config.json`; present if `modules` names a `LogitScore`.
    pub logit_score: Option<LogitScore>,
    /// Whether the files say that the tokenizer joins the texts of a pair, and that no template does.
    pub joins_pairs: bool,
    /// Whether `modules` end in a raw score, as in a modular cross-encoder.
    pub ends_in_scores: bool,
    /// Whether the weights contain a classification head with one label that `config.json` does not mention.
    /// This is so for jina-reranker-v1, whose architecture has the name of the bare encoder.
    pub has_unnamed_score: bool,
    /// `1_Pooling/config.json`. It has no modes if there is only the module or the bare folder.
    pub pooling: Option<PoolingConfig>,
    /// `1_SpladePooling/config.json`, if `modules` name it.
    pub(crate) splade: Option<SpladeFile>,
    /// The modules after the pooling, with the one of `--dense-path`.
    pub(crate) head_modules: Vec<HeadModule>,
    /// The weights of bge-m3's additional outputs.
    pub(crate) bge_m3: BgeM3Files,
    /// Prompts by name, from `config_sentence_transformers.json`.
    pub prompts: BTreeMap<String, String>,
    /// The name of the prompt for requests that do not name one.
    pub default_prompt_name: Option<String>,
    /// The longest input in tokens, from `sentence_bert_config.json`.
    pub max_seq_length: Option<usize>,
    /// The longest input in tokens, from `tokenizer_config.json`. Often it is more than the model's positions
    /// allow.
    pub model_max_length: Option<usize>,
    /// Whether `model_max_length` is the longest input with every backend, because version 6 of
    /// sentence-transformers saved the model and writes no `max_seq_length`.
    pub tokenizer_cuts: bool,
    /// Whether the second text of a pair has another token type than the first.
    pub has_token_types: bool,
    /// The texts of special tokens by their names in chat templates, such as `bos_token`, as far as
    /// `tokenizer_config.json` and `special_tokens_map.json` name them.
    pub special_tokens: BTreeMap<String, String>,
    /// The function that sentence-transformers applies to a cross-encoder's raw score, by its name in the
    /// files.
    pub score_activation: Option<String>,
    /// How queries and documents are read, if the model reads them apart.
    pub(crate) late_interaction: Option<LateInteraction>,
    /// How texts become tokens, if the model is a table of vectors without layers.
    pub(crate) static_tokens: Option<StaticTokens>,
    /// The family, if it is a trained decider whose head is not computed.
    pub(crate) trained_decider: Option<&'static str>,
    /// The model's name if its folder has another name.
    pub(crate) given_name: Option<String>,
}

impl ModelFolder {
    /// The model's names in lower case: [`ModelFolder::name`], then the last part of `_name_or_path` in
    /// config.json.
    pub fn names(&self) -> Vec<String> {
        let saved = self.config.raw["_name_or_path"].as_str().unwrap_or_default();
        let saved = saved.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        [&self.name(), saved].into_iter().filter(|name| !name.is_empty()).map(str::to_lowercase).collect()
    }

    /// The model's own name: the last part of its Hub id (also if `root` is a snapshot in the Hub's cache),
    /// otherwise the folder's name. Owner and parent folders are not part of it.
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

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::super::error::FilesError;
    use super::super::fake_hub::{self, ModelFiles, reranker_files, safetensors, write_files};
    use super::super::names::SENTENCE_BERT;
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
    fn special_tokens_are_in_the_files_where_transformers_looks_for_them() {
        let config = r#""bos_token":"<s>","eos_token":{"content":"</s>"},"sep_token":null"#;
        let older = format!("{{{config}}}");
        let newer = format!(r#"{{{config},"added_tokens_decoder":{{}}}}"#);
        let map = r#"{"bos_token":{"content":"<b>"},"mask_token":"<m>","additional_special_tokens":["<x>"]}"#;
        for (content, map, expected) in [
            (&older, None, "bos_token <s>, eos_token </s>"),
            (&older, Some(map), "bos_token <b>, eos_token </s>, mask_token <m>"),
            (&newer, Some(map), "bos_token <s>, eos_token </s>"),
        ] {
            let mut files = with("tokenizer_config.json", content.as_str());
            files.extend(map.map(|map| ("special_tokens_map.json".to_owned(), map.into())));
            let found = open(&files).unwrap().special_tokens;
            let found: Vec<_> = found.iter().map(|(name, text)| format!("{name} {text}")).collect();
            assert_eq!(found.join(", "), expected, "{content}");
        }
    }

    #[test]
    fn an_official_reranker_is_read_whole() {
        let folder = open(&reranker_files()).unwrap();
        assert_eq!(folder.config.architectures, ["Qwen3ForCausalLM"]);
        assert_eq!(folder.weights, [folder.root.join("model.safetensors").into()]);
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
        assert_eq!(folder.weights, shards.map(|shard| folder.root.join(shard).into()));
    }

    #[test]
    fn each_defect_names_its_file_and_the_remedy() {
        let mut only_bin = without("model.safetensors");
        only_bin.insert("pytorch_model.bin".to_owned(), vec![0; 8]);
        let mut two_gguf = without("model.safetensors");
        two_gguf.extend(["a.gguf", "b.gguf"].map(|name| (name.to_owned(), vec![0; 8])));
        let mut only_onnx = without("model.safetensors");
        only_onnx.insert("onnx/model.onnx".to_owned(), vec![0; 8]);
        let mut only_adapter = without("config.json");
        only_adapter.insert("adapter_config.json".to_owned(), b"{}".to_vec());
        let first_module = |class: &str, path: &str| {
            let mut files = without("config.json");
            let modules = format!(r#"[{{"path":"{path}","type":"x.{class}"}}]"#);
            files.insert("modules.json".to_owned(), modules.into());
            files.insert(format!("{path}/config.json"), b"{}".to_vec());
            files
        };
        let lfs: &[u8] = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
        let table = [
            (without("config.json"), ["`config.json` is missing", "--model-id"]),
            (first_module("Router", "0_Router"), ["names the module `Router` first", "Transformer, Pooling"]),
            (first_module("BoW", "0_BoW"), ["names the module `BoW` first", "Transformer, Pooling"]),
            (
                first_module("Transformer", "0_Transformer"),
                ["`Transformer` into the folder `0_Transformer`", "save it again"],
            ),
            (with("adapter_config.json", "{}"), ["adapter (PEFT, adapter_config.json)", "--backend python"]),
            (only_adapter, ["adapter (PEFT, adapter_config.json)", "merge"]),
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
        let named = |path: &str| {
            format!(r#"[{{"path":"{path}","type":"x.Transformer"}},{{"path":"{path}","type":"x.Pooling"}}]"#)
        };
        let folder = open(&with("modules.json", named("1_Pooling"))).unwrap();
        assert_eq!(folder.pooling, Some(PoolingConfig::default()));
        let message = open(&with("modules.json", named(""))).unwrap_err().to_string();
        assert!(message.contains("names `` as the folder of the module `Pooling`"), "{message}");
        for name in SENTENCE_BERT {
            assert_eq!(
                open(&with(name, r#"{"max_seq_length":77}"#)).unwrap().max_seq_length,
                Some(77),
                "{name}"
            );
        }
        assert_eq!(open(&with(SENTENCE_BERT[0], r#"{"do_lower_case":false}"#)).unwrap().max_seq_length, None);
        for (content, expected) in [
            (r#"{"transformer_task":"feature-extraction"}"#, true),
            (r#"{"transformer_task":"feature-extraction","max_seq_length":null}"#, true),
            (r#"{"transformer_task":"feature-extraction","max_seq_length":77}"#, false),
            (r#"{"do_lower_case":false}"#, false),
            (r#"{"do_lower_case":null}"#, false),
        ] {
            let folder = open(&with(SENTENCE_BERT[0], content)).unwrap();
            assert_eq!(folder.tokenizer_cuts, expected, "{content}");
        }
        let message = open(&with(SENTENCE_BERT[0], r#"{"do_lower_case":true}"#)).unwrap_err().to_string();
        assert!(message.contains("`do_lower_case` of") && message.contains("only false"), "{message}");
    }

    #[test]
    fn a_late_interaction_model_in_another_layout_is_refused_by_name() {
        let module = |class: &str| {
            format!(r#"[{{"path":"","type":"x.Transformer"}},{{"path":"1_Dense","type":"{class}"}}]"#)
        };
        let table = [
            ("modules.json", module("pylate.models.Other"), "the module `pylate.models.Other`"),
            ("modules.json", module("sentence_transformers.x.MultiVectorMask"), "MultiVectorMask`"),
            ("config_sentence_transformers.json", r#"{"model_type":"ColBERT"}"#.to_owned(), "type `ColBERT`"),
            ("config_sentence_transformers.json", r#"{"query_length":32}"#.to_owned(), "has `query_length`"),
            (
                "config.json",
                r#"{"architectures":["HF_ColBERT"],"model_type":"bert"}"#.to_owned(),
                "the architecture `HF_ColBERT`",
            ),
        ];
        for (file, content, part) in table {
            let message = open(&with(file, content)).unwrap_err().to_string();
            assert!(message.starts_with(file) && message.contains(part), "{message}");
            assert!(message.contains("late-interaction"), "{message}");
        }
        let plain = r#"{"model_type":"SentenceTransformer","similarity_fn_name":"cosine"}"#;
        assert!(open(&with("config_sentence_transformers.json", plain)).is_ok());
    }

    #[test]
    fn vectors_of_texts_in_a_chat_template_are_refused() {
        let message = r#"{"modality_config":{"text":{},"message":{"format":"flat"}}}"#;
        let text = r#"{"modality_config":{"text":{}}}"#;
        let template = Some("chat_template.jinja");
        for (class, settings, template, is_refused) in [
            ("Pooling", message, template, true),
            ("SpladePooling", message, template, true),
            ("Pooling", message, None, false),
            ("Pooling", text, template, false),
            ("Other", message, template, false),
        ] {
            let modules =
                format!(r#"[{{"path":"","type":"x.Transformer"}},{{"path":"1","type":"x.{class}"}}]"#);
            let mut files = with("modules.json", modules);
            files.insert(SENTENCE_BERT[0].to_owned(), settings.into());
            if template.is_none() {
                files.remove("chat_template.jinja");
                files.insert("tokenizer_config.json".to_owned(), b"{}".to_vec());
            }
            let message = open(&files).err().map(|error| error.to_string()).unwrap_or_default();
            assert_eq!(message.contains("`message` in `modality_config`"), is_refused, "{class}: {message}");
        }
    }

    #[test]
    fn settings_that_change_tokens_or_states_are_refused() {
        for (content, field) in [
            (r#"{"modality_config":{"text":{"method_output_name":"logits"}}}"#, None),
            (r#"{"processing_kwargs":{"text":{"max_length":null,"add_special_tokens":true}}}"#, None),
            (r#"{"tokenizer_args":{"trust_remote_code":true}}"#, None),
            (
                r#"{"modality_config":{"text":{"method_output_name":"pooler_output"}}}"#,
                Some("/modality_config/text/method_output_name"),
            ),
            (
                r#"{"processing_kwargs":{"text":{"max_length":9}}}"#,
                Some("/processing_kwargs/text/max_length"),
            ),
            (
                r#"{"processing_kwargs":{"text":{"add_special_tokens":false}}}"#,
                Some("/processing_kwargs/text/add_special_tokens"),
            ),
            (r#"{"processor_kwargs":{"padding_side":"left"}}"#, None),
            (r#"{"processor_kwargs":{"do_lower_case":true}}"#, Some("processor_kwargs")),
            (r#"{"tokenizer_args":{"model_max_length":9}}"#, Some("tokenizer_args")),
            (r#"{"query_length":null,"config_args":{"trust_remote_code":true}}"#, None),
            (r#"{"query_length":9}"#, Some("/query_length")),
            (r#"{"document_length":9}"#, Some("/document_length")),
            (r#"{"query_expansion":{"length":9}}"#, Some("/query_expansion")),
            (r#"{"config_args":{"is_causal":false}}"#, Some("config_args")),
            (r#"{"config_kwargs":{"num_hidden_layers":2}}"#, Some("config_kwargs")),
        ] {
            let message = open(&with(SENTENCE_BERT[0], content)).err().map(|error| error.to_string());
            assert_eq!(message.is_some(), field.is_some(), "{content}: {message:?}");
            let message = message.unwrap_or_default();
            assert!(field.is_none_or(|field| message.starts_with(&format!("`{field}` of"))), "{message}");
        }
    }

    #[test]
    fn vectors_that_sentence_transformers_shortens_are_refused() {
        let modules = r#"[{"path":"","type":"x.Transformer"},{"path":"1_S","type":"x.SpladePooling"}]"#;
        for (content, expected) in [
            ("{}", None),
            (r#"{"max_active_dims":null}"#, None),
            (r#"{"max_active_dims":64}"#, Some("`max_active_dims` of")),
            (r#"{"truncate_dim":8}"#, Some("`truncate_dim` of")),
        ] {
            let mut files = with("modules.json", modules);
            files.insert("1_S/config.json".to_owned(), b"{}".to_vec());
            files.insert("config_sentence_transformers.json".to_owned(), content.into());
            let message = open(&files).err().map(|error| error.to_string());
            assert_eq!(message.is_some(), expected.is_some(), "{message:?}");
            assert!(message.unwrap_or_default().contains(expected.unwrap_or_default()));
        }
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
