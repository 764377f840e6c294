//! The JSON files of a model folder as types.
//!
//! Input: the text of `config.json`, `modules.json`, `1_Pooling/config.json` and similar files. Output: the
//! fields that this server uses, under the checkpoint's names. What must hold: an existing file is either
//! understood, or an error names it with line and column. It is never treated as absent.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use text_embeddings_backend_core::Pool;
use text_embeddings_checkpoint::ModelFile;

use super::error::FilesError;
use super::reading::FileText;
use crate::templates::MessageStyle;

/// The fields of `config.json`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct ModelConfig {
    /// The classes of `transformers` for the checkpoint; empty if the file names none.
    #[serde(default, deserialize_with = "null_is_default")]
    pub architectures: Vec<String>,
    /// The family of models, such as `qwen3`.
    pub model_type: Option<String>,
    /// The longest input, in tokens, that has positions.
    pub max_position_embeddings: Option<usize>,
    /// The number of rows of the token embedding.
    pub vocab_size: Option<usize>,
    /// The padding token; `None` if the file has null or a negative number.
    #[serde(default, deserialize_with = "token_id")]
    pub pad_token_id: Option<u32>,
    /// The type of the stored weights, such as `bfloat16`.
    #[serde(default, alias = "torch_dtype")]
    pub dtype: Option<String>,
    /// Label of each class, by the class's number as text.
    #[serde(default, deserialize_with = "null_is_default")]
    pub id2label: BTreeMap<String, String>,
    /// Number of each class, by its label.
    #[serde(default, deserialize_with = "null_is_default")]
    pub label2id: BTreeMap<String, usize>,
    /// The number of classes, if the labels have no names.
    pub num_labels: Option<usize>,
    /// Whether the file says that this causal language model is a re-ranker.
    #[serde(default, deserialize_with = "null_is_default")]
    pub is_reranker: bool,
    /// The whole file, for code that needs other fields.
    #[serde(skip)]
    pub raw: Value,
}

impl ModelConfig {
    /// Reads `config.json`.
    pub(super) fn from_text(text: &FileText) -> Result<Self, FilesError> {
        // serde would read a list as the fields' values in order.
        let raw: serde_json::Map<String, Value> = text.parse()?;
        Ok(Self { raw: raw.into(), ..text.parse()? })
    }

    /// Whether the file names the labels in both directions.
    pub(crate) fn names_labels(&self) -> bool {
        !self.id2label.is_empty() && !self.label2id.is_empty()
    }

    /// The function that sentence-transformers applies to a cross-encoder's raw score, if the file names it
    /// in one of two ways.
    pub(super) fn score_activation(&self) -> Option<&str> {
        let newer = &self.raw["sentence_transformers"]["activation_fn"];
        newer.as_str().or_else(|| self.raw["sbert_ce_default_activation_function"].as_str())
    }

    /// The number of labels of a classification head. The default is two, as in `transformers`.
    pub fn label_count(&self) -> usize {
        match (self.id2label.len(), self.label2id.len()) {
            (0, 0) => self.num_labels.unwrap_or(2),
            (0, named) | (named, _) => named,
        }
    }
}

/// An entry of `modules.json`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Module {
    /// The Python class, such as `sentence_transformers.models.Pooling`.
    #[serde(rename = "type")]
    pub class: String,
    /// The folder of the module's files; empty for the model's folder.
    #[serde(default)]
    pub path: String,
}

impl Module {
    /// The class name without its Python modules, such as `Pooling`.
    pub fn class_name(&self) -> &str {
        self.class.rsplit('.').next().unwrap_or_default()
    }
}

/// `1_LogitScore/config.json`: the tokens between which a generative re-ranker chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct LogitScore {
    /// The token for "relevant".
    pub true_token_id: u32,
    /// The token for "not relevant". Without it, the score is the logit of the true token alone.
    pub false_token_id: Option<u32>,
}

/// The fields of `1_Pooling/config.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolingConfig {
    /// The modes that are switched on, such as `cls_token`, `mean_tokens`, `lasttoken`.
    pub modes: Vec<String>,
    /// Whether pooling leaves out the tokens of a prompt (`include_prompt` is false).
    pub excludes_prompt: bool,
}

impl PoolingConfig {
    /// Reads the file. It has one switch per mode or, in later versions, `pooling_mode` with the name. As in
    /// sentence-transformers, the name takes precedence over switches, and without either it is the mean.
    pub(super) fn from_text(text: &FileText) -> Result<Self, FilesError> {
        let fields: BTreeMap<String, Value> = text.parse()?;
        let mut modes: Vec<String> = match fields.get("pooling_mode") {
            Some(Value::String(mode)) => vec![mode.clone()],
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => fields
                .iter()
                .filter(|(_, value)| **value == Value::Bool(true))
                .filter_map(|(name, _)| name.strip_prefix("pooling_mode_"))
                .map(str::to_owned)
                .collect(),
        };
        if modes.is_empty() {
            modes.push("mean".to_owned());
        }
        let excludes_prompt = fields.get("include_prompt") == Some(&Value::Bool(false));
        Ok(Self { modes, excludes_prompt })
    }

    /// The pooling, if exactly one mode is on and this server supports it.
    pub fn pool(&self) -> Option<Pool> {
        match self.modes.as_slice() {
            [mode] => match mode.as_str() {
                "cls_token" | "cls" => Some(Pool::Cls),
                "mean_tokens" | "mean" => Some(Pool::Mean),
                "lasttoken" | "last_token" => Some(Pool::LastToken),
                _ => None,
            },
            _ => None,
        }
    }
}

/// The weights of bge-m3's additional outputs, if the files contain them.
#[derive(Debug, Clone, Default)]
pub(crate) struct BgeM3Files {
    pub(super) lexical: Option<ModelFile>,
    pub(crate) token_vectors: Option<ModelFile>,
}

/// `1_SpladePooling/config.json`.
#[derive(Debug, Clone)]
pub(crate) struct SpladeFile {
    pub(super) path: PathBuf,
    pub(super) config: SpladeConfig,
}

/// The fields of `1_SpladePooling/config.json`, with the defaults of sentence-transformers.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub(super) struct SpladeConfig {
    pub(super) pooling_strategy: String,
    pub(super) activation_function: String,
}

impl Default for SpladeConfig {
    fn default() -> Self {
        Self { pooling_strategy: "max".to_owned(), activation_function: "relu".to_owned() }
    }
}

/// The fields of `config_sentence_transformers.json`, such as the prompts that a model was trained with.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct PromptsConfig {
    #[serde(default, deserialize_with = "null_is_default")]
    pub(super) prompts: BTreeMap<String, Option<String>>,
    pub(super) default_prompt_name: Option<String>,
    /// The function that sentence-transformers applies to a cross-encoder's raw score, such as
    /// `torch.nn.modules.linear.Identity`.
    pub(super) activation_fn: Option<String>,
    /// The class of sentence-transformers or `PyLate` that saved the model.
    pub(super) model_type: Option<String>,
    #[serde(flatten)]
    pub(super) others: BTreeMap<String, Value>,
}

/// The prompts that have a text.
pub(super) fn named_prompts(prompts: BTreeMap<String, Option<String>>) -> BTreeMap<String, String> {
    prompts.into_iter().filter_map(|(name, prompt)| Some((name, prompt?))).collect()
}

/// The classes that save late-interaction models.
const LATE_INTERACTION_TYPES: [&str; 2] = ["MultiVectorEncoder", "ColBERT"];
/// Settings of late-interaction models. Older versions of `PyLate` save no class.
const LATE_INTERACTION_FIELDS: [&str; 7] = [
    "query_prefix",
    "document_prefix",
    "query_length",
    "document_length",
    "do_query_expansion",
    "attend_to_expansion_tokens",
    "skiplist_words",
];

impl PromptsConfig {
    /// The part of the file that says that the model compares queries and documents token by token.
    pub(super) fn late_interaction_mark(&self) -> Option<String> {
        let model_type = self.model_type.as_deref().unwrap_or_default();
        if LATE_INTERACTION_TYPES.contains(&model_type) {
            return Some(format!("the model type `{model_type}`"));
        }
        let field = LATE_INTERACTION_FIELDS.into_iter().find(|field| self.others.contains_key(*field));
        field.map(|field| format!("`{field}`"))
    }
}

/// The fields of `sentence_bert_config.json`, which has older names, too.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct SentenceBert {
    pub(super) max_seq_length: Option<usize>,
    /// Whether texts are lower-cased before tokenization.
    #[serde(default, deserialize_with = "null_is_default")]
    pub(super) do_lower_case: bool,
    processing_kwargs: Option<ProcessingKwargs>,
    /// The form in which the model gets each kind of input. `message` has the `format` of a chat template's
    /// messages.
    modality_config: Option<BTreeMap<String, Value>>,
    #[serde(flatten)]
    pub(super) others: BTreeMap<String, Value>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct ProcessingKwargs {
    /// The arguments of `apply_chat_template`, with `chat_template` (a name) and `add_generation_prompt`
    /// among them.
    chat_template: Option<BTreeMap<String, Value>>,
}

/// Arguments that control sentence-transformers itself and are not variables of a chat template.
const NOT_VARIABLES: [&str; 8] = [
    "chat_template",
    "add_generation_prompt",
    "restore_suffix",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "tokenize",
];

impl SentenceBert {
    /// Whether the longest input is the tokenizer's `model_max_length`. Since version 6,
    /// sentence-transformers saves it nowhere else.
    pub(super) fn leaves_length_to_tokenizer(&self) -> bool {
        self.max_seq_length.is_none() && self.others.contains_key("transformer_task")
    }

    /// The name of the chat template to use, or its text.
    pub(super) fn chat_template(&self) -> Option<&str> {
        self.chat_kwargs()?.get("chat_template")?.as_str()
    }

    /// Whether sentence-transformers makes a message of every text, and a prompt of that by the template.
    pub(super) fn reads_messages(&self) -> bool {
        self.modality_config.as_ref().is_some_and(|kinds| kinds.contains_key("message"))
    }

    /// Whether sentence-transformers lets the tokenizer join the texts of a pair, whatever the chat template
    /// is. Without modules, the file does not describe how a re-ranker reads.
    pub(super) fn joins_pairs(&self, modules: &[Module]) -> bool {
        !modules.is_empty() && self.modality_config.is_some() && !self.reads_messages()
    }

    /// The form in which the template gets its messages. By default without the beginning of an answer.
    pub(super) fn message_style(&self) -> MessageStyle {
        let format = self.modality_config.as_ref().and_then(|kinds| kinds.get("message"));
        let structured = match format.and_then(|message| message["format"].as_str()) {
            Some("structured") => Some(true),
            Some("flat") => Some(false),
            _ => None,
        };
        let given = self.chat_kwargs().cloned().unwrap_or_default();
        let add_generation_prompt = given.get("add_generation_prompt") == Some(&Value::Bool(true));
        let variables =
            given.into_iter().filter(|(name, _)| !NOT_VARIABLES.contains(&name.as_str())).collect();
        MessageStyle { structured, add_generation_prompt, variables }
    }

    fn chat_kwargs(&self) -> Option<&BTreeMap<String, Value>> {
        self.processing_kwargs.as_ref()?.chat_template.as_ref()
    }
}

/// The fields of `tokenizer_config.json`.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct TokenizerConfig {
    pub(super) chat_template: Option<ChatTemplateField>,
    /// The tensors that the model reads, such as `token_type_ids`.
    model_input_names: Option<Vec<String>>,
    model_max_length: Option<Value>,
    /// The other fields, special tokens among them.
    #[serde(flatten)]
    pub(super) others: BTreeMap<String, Value>,
}

impl TokenizerConfig {
    /// The longest input in tokens. `transformers` writes 10³⁰ where there is no limit, as a real number.
    pub(super) fn max_length(&self) -> Option<usize> {
        let length = self.model_max_length.as_ref()?.as_f64().filter(|length| *length >= 1.0)?;
        Some(length as usize)
    }

    /// Whether the model reads token types, as far as the file says. The class that transformers 5 writes for
    /// a tokenizer without a class of its own gives none by default; the one of version 4 gives them. The
    /// same is true of ALBERT's class. Only version 5 writes `backend`.
    pub(super) fn reads_token_types(&self) -> bool {
        if let Some(names) = &self.model_input_names {
            return names.iter().any(|name| name == "token_type_ids");
        }
        let class = self.others.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
        match class.trim_end_matches("Fast") {
            "TokenizersBackend" | "DistilBertTokenizer" | "MPNetTokenizer" => false,
            "AlbertTokenizer" => !self.others.contains_key("backend"),
            _ => true,
        }
    }

    /// The texts of special tokens, which have one of two spellings, by their names.
    pub(super) fn special_tokens(&self) -> BTreeMap<String, String> {
        let tokens = self.others.iter().filter(|(name, _)| name.ends_with("_token"));
        let texts =
            tokens.filter_map(|(name, token)| Some((name, token.as_str().or(token["content"].as_str())?)));
        texts.map(|(name, text)| (name.clone(), text.to_owned())).collect()
    }
}

/// One template, or several with names.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum ChatTemplateField {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct NamedTemplate {
    name: String,
    template: String,
}

impl ChatTemplateField {
    /// The templates by name. A single template has the name `default`.
    pub(super) fn named(self) -> BTreeMap<String, String> {
        match self {
            Self::One(template) => BTreeMap::from([("default".to_owned(), template)]),
            Self::Named(named) => named.into_iter().map(|it| (it.name, it.template)).collect(),
        }
    }
}

fn null_is_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(from).map(Option::unwrap_or_default)
}

fn token_id<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    Ok(Option::<i64>::deserialize(from)?.and_then(|id| u32::try_from(id).ok()))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    fn file(text: &str) -> FileText {
        FileText { path: "config.json".into(), text: text.to_owned() }
    }

    #[test]
    fn a_config_is_read_in_its_old_and_new_spellings() {
        let text = file(
            r#"{"architectures":["Qwen3ForCausalLM"],"model_type":"qwen3","max_position_embeddings":40960,
                "vocab_size":151669,"pad_token_id":-1,"torch_dtype":"bfloat16","id2label":null,"hidden_size":8}"#,
        );
        let config = ModelConfig::from_text(&text).unwrap();
        assert_eq!(config.architectures, ["Qwen3ForCausalLM"]);
        assert_eq!((config.vocab_size, config.max_position_embeddings), (Some(151_669), Some(40_960)));
        assert_eq!((config.dtype.as_deref(), config.pad_token_id), (Some("bfloat16"), None));
        assert_eq!(config.raw["hidden_size"], 8);
        let text = file(r#"{"architectures":null,"dtype":"float32","pad_token_id":3,"is_reranker":true}"#);
        let config = ModelConfig::from_text(&text).unwrap();
        assert!(config.architectures.is_empty() && config.is_reranker);
        assert_eq!((config.dtype.as_deref(), config.pad_token_id), (Some("float32"), Some(3)));
    }

    #[test]
    fn labels_are_counted_as_transformers_counts_them() {
        let table = [
            (r#"{"id2label":{"0":"yes"}}"#, 1),
            (r#"{"id2label":{"0":"no","1":"yes"},"label2id":{"no":0,"yes":1}}"#, 2),
            (r#"{"label2id":{"a":0,"b":1,"c":2}}"#, 3),
            (r#"{"num_labels":1}"#, 1),
            ("{}", 2),
        ];
        for (text, expected) in table {
            let text = file(text);
            assert_eq!(ModelConfig::from_text(&text).unwrap().label_count(), expected, "{text:?}");
        }
    }

    #[test]
    fn a_model_reads_token_types_if_its_tokenizer_makes_them() {
        for (text, expected) in [
            ("{}", true),
            (r#"{"model_input_names":null}"#, true),
            (r#"{"model_input_names":["input_ids","token_type_ids","attention_mask"]}"#, true),
            (r#"{"model_input_names":["input_ids","attention_mask"]}"#, false),
            (r#"{"model_input_names":[]}"#, false),
            (r#"{"tokenizer_class":"PreTrainedTokenizerFast"}"#, true),
            (r#"{"tokenizer_class":"TokenizersBackend"}"#, false),
            (r#"{"tokenizer_class":"TokenizersBackend","model_input_names":["token_type_ids"]}"#, true),
            (r#"{"tokenizer_class":"DistilBertTokenizerFast"}"#, false),
            (r#"{"tokenizer_class":"MPNetTokenizer"}"#, false),
            (r#"{"tokenizer_class":"AlbertTokenizerFast"}"#, true),
            (r#"{"tokenizer_class":"AlbertTokenizer","backend":"tokenizers"}"#, false),
        ] {
            let config: TokenizerConfig = file(text).parse().unwrap();
            assert_eq!(config.reads_token_types(), expected, "{text}");
        }
    }

    #[test]
    fn a_malformed_file_is_named_with_line_and_column() {
        for (text, position) in
            [("{\n \"vocab_size\": ", "line 2 column"), (r#"{"vocab_size":"many"}"#, "line 1 column")]
        {
            let text = file(text);
            let message = ModelConfig::from_text(&text).unwrap_err().to_string();
            assert!(message.contains("config.json") && message.contains(position), "{message}");
        }
    }

    #[test]
    fn pooling_is_one_known_mode_or_none() {
        let table = [
            (r#"{"pooling_mode_cls_token":true,"pooling_mode_mean_tokens":false}"#, Some(Pool::Cls)),
            (r#"{"word_embedding_dimension":8,"pooling_mode_mean_tokens":true}"#, Some(Pool::Mean)),
            (r#"{"pooling_mode_lasttoken":true,"include_prompt":true}"#, Some(Pool::LastToken)),
            (r#"{"pooling_mode":"mean"}"#, Some(Pool::Mean)),
            (r#"{"pooling_mode_max_tokens":true}"#, None),
            (r#"{"pooling_mode_cls_token":true,"pooling_mode_mean_tokens":true}"#, None),
            (r#"{"pooling_mode":"cls","pooling_mode_mean_tokens":true}"#, Some(Pool::Cls)),
            (r#"{"pooling_mode_cls_token":false,"pooling_mode_mean_tokens":false}"#, Some(Pool::Mean)),
            ("{}", Some(Pool::Mean)),
        ];
        for (text, expected) in table {
            let text = file(text);
            assert_eq!(PoolingConfig::from_text(&text).unwrap().pool(), expected, "{text:?}");
        }
    }

    #[test]
    fn a_logit_score_may_lack_its_false_token() {
        let text = file(r#"{"true_token_id":1,"false_token_id":null,"module_input_name":"causal_logits"}"#);
        let expected = LogitScore { true_token_id: 1, false_token_id: None };
        assert_eq!(text.parse::<LogitScore>().unwrap(), expected);
        let text = file(r#"{"false_token_id":2}"#);
        assert!(text.parse::<LogitScore>().unwrap_err().to_string().contains("true_token_id"));
    }
}
