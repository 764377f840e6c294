//! The settings of late-interaction models (`ColBERT`), which compare queries and documents token by token.
//!
//! Input: the files of a folder in the layout of sentence-transformers, of `PyLate` or of Stanford. Output:
//! [`LateInteraction`], and the matrix of Stanford's layout as a dense module. What must hold: a missing
//! setting has the default of the library that wrote the file; a similarity or a layout that is not computed
//! is refused.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use text_embeddings_backend_core::{Activation, DenseModule, HeadModule};
use text_embeddings_checkpoint::{CheckpointError, CheckpointFile};

use super::config::{ModelConfig, Module, PromptsConfig, SentenceBert};
use super::error::FilesError;
use super::gguf;
use super::names::{CONFIG, MODULES, PROMPTS, SENTENCE_BERT};
use super::reading::FileText;

/// The architecture in the layout of Stanford's `ColBERT`, its settings, and the matrix of its head.
const STANFORD: &str = "HF_ColBERT";
pub(super) const ARTIFACT: &str = "artifact.metadata";
const PROJECTION: &str = "linear.weight";
/// The characters whose vectors do not count in documents, unless the files name others.
const PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
/// The longest query and document, in tokens, if `PyLate`'s files do not say.
const QUERY_LENGTH: usize = 32;
const DOCUMENT_LENGTH: usize = 180;

/// The classes of the modules of sentence-transformers' own layout, in their order. `Dense` may be absent or
/// repeated.
const OWN_MODULES: [&str; 4] = ["Transformer", "Dense", MASK, "Normalize"];
const MASK: &str = "MultiVectorMask";
/// The similarities of that layout, which both give the same order.
const SIMILARITIES: [&str; 2] = ["maxsim", "meanmaxsim"];
/// The names of the prompt of documents.
const DOCUMENT_PROMPTS: [&str; 3] = ["document", "passage", "corpus"];

/// How a model reads queries and documents apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LateInteraction {
    /// The texts that mark queries and documents; empty for none.
    pub(crate) markers: [String; 2],
    /// How a marker gets into an input.
    pub(crate) marking: Marking,
    /// The most tokens of queries, and of documents; `None` if the tokenizer's `model_max_length` or the
    /// positions decide.
    pub(crate) lengths: [Option<usize>; 2],
    /// How queries are filled.
    pub(crate) expansion: Option<Expansion>,
    /// The tokens of documents whose vectors do not count.
    pub(crate) skipped: Vec<String>,
}

/// How a marker gets into an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Marking {
    /// A token of the vocabulary, inserted behind the first token.
    Token,
    /// A text before the input.
    Prompt,
}

/// How queries are filled with tokens that are compared, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expansion {
    /// Whether tokens attend to them.
    pub(crate) is_attended: bool,
    /// The number of tokens up to which a query is filled.
    pub(crate) length: usize,
    /// The token; `None` if neither the model's settings nor its tokenizer's name one.
    pub(crate) token: Option<String>,
}

/// The settings of late interaction in `sentence_bert_config.json`.
#[derive(Debug, Clone, Deserialize)]
struct TransformerConfig {
    /// The most tokens of a query, and of a document.
    query_length: Option<usize>,
    document_length: Option<usize>,
    query_expansion: Option<QueryExpansion>,
}

/// How queries are filled with tokens that the model scores, too.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct QueryExpansion {
    strategy: ExpansionStrategy,
    /// Whether the model attends to these tokens.
    #[serde(default)]
    attend: bool,
    /// The token; absent: the mask, else the end of a text.
    token: Option<String>,
    /// The number of tokens up to which a query is filled.
    length: usize,
}

/// Whether a query may have more tokens than it is filled to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ExpansionStrategy {
    Fixed,
    Min,
}

/// The fields of `2_MultiVectorMask/config.json`.
#[derive(Debug, Default, Deserialize)]
struct MaskConfig {
    skiplist_words: Option<Vec<String>>,
    skiplist_tasks: Option<Vec<String>>,
    keep_only_token_ids: Option<Vec<u32>>,
}

/// The settings of `PyLate` in `config_sentence_transformers.json`, with its defaults.
#[derive(Debug, Clone, Default, Deserialize)]
struct PyLateConfig {
    query_prefix: Option<String>,
    document_prefix: Option<String>,
    query_length: Option<usize>,
    document_length: Option<usize>,
    do_query_expansion: Option<bool>,
    attend_to_expansion_tokens: Option<bool>,
    skiplist_words: Option<Vec<String>>,
}

/// The fields of Stanford's `artifact.metadata`.
#[derive(Debug, Default, Deserialize)]
struct Artifact {
    query_token_id: Option<String>,
    doc_token_id: Option<String>,
    query_maxlen: Option<usize>,
    doc_maxlen: Option<usize>,
    attend_to_mask_tokens: Option<bool>,
    mask_punctuation: Option<bool>,
    similarity: Option<String>,
}

/// The part of the files that says that a model is of this kind, and the file.
pub(super) fn find_mark(
    config: &ModelConfig,
    modules: &[Module],
    prompts: &PromptsConfig,
) -> Option<(&'static str, String)> {
    if let Some(mark) = prompts.late_interaction_mark() {
        return Some((PROMPTS, mark));
    }
    let mut classes = modules.iter().filter(|it| it.class.starts_with("pylate.") || it.class_name() == MASK);
    if let Some(Module { class, .. }) = classes.next() {
        return Some((MODULES, format!("the module `{class}`")));
    }
    is_stanford(config).then(|| (CONFIG, format!("the architecture `{STANFORD}`")))
}

/// Whether the folder has the layout of Stanford's `ColBERT`.
pub(super) fn is_stanford(config: &ModelConfig) -> bool {
    config.architectures.iter().any(|name| name == STANFORD)
}

/// Whether the modules are a transformer and dense modules of `PyLate`, which have no pooling.
pub(super) fn is_pylate(modules: &[Module], prompts: &PromptsConfig) -> bool {
    let [transformer, dense @ ..] = modules else { return false };
    !has_own_type(prompts)
        && transformer.class_name() == "Transformer"
        && !dense.is_empty()
        && dense.iter().all(|module| module.class_name() == "Dense")
}

/// Whether sentence-transformers saved the model as a late-interaction model of its own.
fn has_own_type(prompts: &PromptsConfig) -> bool {
    prompts.model_type.as_deref() == Some("MultiVectorEncoder")
}

/// The mask module, if the modules are a model in sentence-transformers' own layout.
pub(super) fn mask_module<'m>(modules: &'m [Module], prompts: &PromptsConfig) -> Option<&'m Module> {
    let places: Option<Vec<usize>> = modules
        .iter()
        .map(|module| OWN_MODULES.iter().position(|class| *class == module.class_name()))
        .collect();
    let places = places?;
    let is_ordered = places.is_sorted() && places.first() == Some(&0) && places.last() == Some(&3);
    let [mask] = modules.iter().filter(|module| module.class_name() == MASK).collect::<Vec<_>>()[..] else {
        return None;
    };
    (has_own_type(prompts) && is_ordered).then_some(mask)
}

impl LateInteraction {
    /// The most tokens of an input, where a side without a length of its own has the tokenizer's.
    pub(crate) fn max_length(&self, of_tokenizer: Option<usize>) -> Option<usize> {
        let [query, document] = self.lengths.map(|own| own.or(of_tokenizer));
        Some(query?.max(document?))
    }

    /// The settings of sentence-transformers' own layout. `mask` is the configuration of its mask module.
    pub(super) fn from_own_layout(
        prompts: &PromptsConfig,
        sentence_bert: &SentenceBert,
        mask: Option<&FileText>,
    ) -> Result<Self, FilesError> {
        let similarity = prompts.others.get("similarity_fn_name").and_then(Value::as_str);
        if let Some(value) = similarity
            && !SIMILARITIES.contains(&value)
        {
            let (field, value) = ("similarity_fn_name", value.to_owned());
            return Err(unsupported(PROMPTS, field, value, "`maxsim` and `meanmaxsim` are"));
        }
        let mask: MaskConfig = mask.map(FileText::parse).transpose()?.unwrap_or_default();
        if let Some(tasks) = mask.skiplist_tasks
            && tasks != ["document"]
        {
            return Err(unsupported(MASK, "skiplist_tasks", tasks.join(", "), "`document` alone is"));
        }
        if let Some(ids) = mask.keep_only_token_ids
            && !ids.is_empty()
        {
            return Err(unsupported(MASK, "keep_only_token_ids", format!("{ids:?}"), "`null` is, for texts"));
        }
        let prompt =
            |names: &[&str]| names.iter().find_map(|name| prompts.prompts.get(*name).cloned().flatten());
        let max_length = sentence_bert.max_seq_length;
        let TransformerConfig { query_length, document_length, query_expansion } =
            parse_others(&sentence_bert.others, SENTENCE_BERT[0])?;
        let (query_length, expansion) = match query_expansion {
            None => (query_length.or(max_length), None),
            Some(QueryExpansion { strategy, attend, token, length }) => {
                let max_length = query_length.or(max_length).map(|own| own.max(length));
                let max_length = if strategy == ExpansionStrategy::Fixed { Some(length) } else { max_length };
                (max_length, Some(Expansion { is_attended: attend, length, token }))
            }
        };
        Ok(Self {
            markers: [prompt(&["query"]).unwrap_or_default(), prompt(&DOCUMENT_PROMPTS).unwrap_or_default()],
            marking: Marking::Prompt,
            lengths: [query_length, document_length.or(max_length)],
            expansion,
            skipped: mask.skiplist_words.unwrap_or_default(),
        })
    }

    pub(super) fn from_pylate(prompts: &PromptsConfig) -> Result<Self, FilesError> {
        let settings: PyLateConfig = parse_others(&prompts.others, PROMPTS)?;
        let markers = [
            settings.query_prefix.unwrap_or("[Q] ".into()),
            settings.document_prefix.unwrap_or("[D] ".into()),
        ];
        for (name, marker) in ["query", "document"].into_iter().zip(&markers) {
            let prompt = prompts.prompts.get(name).cloned().flatten().unwrap_or_default();
            if !prompt.strip_prefix(marker.as_str()).unwrap_or(&prompt).is_empty() {
                let known = "the marker itself or nothing is, for a late-interaction model";
                return Err(unsupported(PROMPTS, "prompts", prompt, known));
            }
        }
        let length = settings.query_length.unwrap_or(QUERY_LENGTH);
        let is_attended = settings.attend_to_expansion_tokens.unwrap_or(false);
        let expands = settings.do_query_expansion.unwrap_or(true);
        Ok(Self {
            markers,
            marking: Marking::Token,
            lengths: [Some(length), Some(settings.document_length.unwrap_or(DOCUMENT_LENGTH))],
            expansion: expands.then_some(Expansion { is_attended, length, token: None }),
            skipped: settings.skiplist_words.unwrap_or_else(all_punctuation),
        })
    }

    /// The settings of Stanford's `ColBERT`; its defaults if there is no such file.
    pub(super) fn from_artifact(text: Option<&FileText>) -> Result<Self, FilesError> {
        let artifact: Artifact = text.map(FileText::parse).transpose()?.unwrap_or_default();
        if let Some(value) = artifact.similarity.filter(|similarity| similarity != "cosine") {
            return Err(unsupported(ARTIFACT, "similarity", value, "`cosine` is"));
        }
        let skips = artifact.mask_punctuation.unwrap_or(true);
        let length = artifact.query_maxlen.unwrap_or(QUERY_LENGTH);
        let is_attended = artifact.attend_to_mask_tokens.unwrap_or(false);
        Ok(Self {
            markers: [
                artifact.query_token_id.unwrap_or("[unused0]".into()),
                artifact.doc_token_id.unwrap_or("[unused1]".into()),
            ],
            marking: Marking::Token,
            lengths: [Some(length), artifact.doc_maxlen],
            expansion: Some(Expansion { is_attended, length, token: None }),
            skipped: if skips { all_punctuation() } else { Vec::new() },
        })
    }

    /// The settings with the token that fills queries, unless they name one: the tokenizer's mask, else its
    /// end of a text. Stanford's matrix comes behind `modules`.
    pub(super) fn complete_with(
        mut self,
        special_tokens: &BTreeMap<String, String>,
        config: &ModelConfig,
        checkpoints: &[CheckpointFile],
        modules: &mut Vec<HeadModule>,
    ) -> Result<Self, FilesError> {
        if is_stanford(config) {
            modules.push(HeadModule::Dense(stanford_module(checkpoints)?));
        }
        if let Some(expansion) = &mut self.expansion {
            let token = special_tokens.get("mask_token").or(special_tokens.get("eos_token"));
            expansion.token = expansion.token.take().or(token.cloned());
        }
        Ok(self)
    }
}

/// Parses the fields of a file that are not read elsewhere.
fn parse_others<T: DeserializeOwned>(others: &BTreeMap<String, Value>, file: &str) -> Result<T, FilesError> {
    serde_json::from_value(Value::Object(others.clone().into_iter().collect()))
        .map_err(|error| FilesError::Json { path: file.into(), reason: error.to_string() })
}

fn unsupported(file: &str, field: &'static str, value: String, known: &'static str) -> FilesError {
    FilesError::UnsupportedField { path: file.into(), field, value, known }
}

fn all_punctuation() -> Vec<String> {
    PUNCTUATION.chars().map(String::from).collect()
}

/// The matrix of Stanford's layout, which is among the checkpoint's tensors, as a dense module.
fn stanford_module(checkpoints: &[CheckpointFile]) -> Result<DenseModule, FilesError> {
    let found = checkpoints.iter().find_map(|checkpoint| checkpoint.tensors.get(PROJECTION));
    let Some((tensor, &[outputs, inputs])) = found.map(|tensor| (tensor, tensor.shape())) else {
        return Err(FilesError::Weights(CheckpointError::Missing { name: PROJECTION.to_owned() }));
    };
    let values = tensor.read_numbers(PROJECTION).map_err(FilesError::Weights)?;
    Ok(DenseModule {
        weights: gguf::matrix_file(tensor.path().join(PROJECTION), values, [outputs, inputs]),
        in_features: inputs,
        out_features: outputs,
        bias: false,
        activation: Activation::Identity,
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    fn text(content: &str) -> FileText {
        FileText { path: ARTIFACT.into(), text: content.to_owned() }
    }

    #[test]
    fn a_missing_setting_has_the_default_of_its_library() {
        let pylate = |content: &str| LateInteraction::from_pylate(&text(content).parse().unwrap()).unwrap();
        let found = pylate(r#"{"model_type":"ColBERT"}"#);
        assert_eq!((found.markers, found.lengths), (["[Q] ".into(), "[D] ".into()], [Some(32), Some(180)]));
        let expansion = |is_attended, length| Some(Expansion { is_attended, length, token: None });
        assert_eq!((found.expansion, found.skipped.len()), (expansion(false, 32), 32));
        let found = pylate(
            r#"{"query_prefix":"","document_prefix":"[D]","query_length":7,"document_length":9,
                "do_query_expansion":false,"attend_to_expansion_tokens":true,"skiplist_words":["a"],
                "prompts":{"document":"[D]"}}"#,
        );
        assert_eq!((found.markers, found.lengths), ([String::new(), "[D]".into()], [Some(7), Some(9)]));
        assert_eq!((found.expansion, found.skipped), (None, vec!["a".to_owned()]));
        let found = pylate(r#"{"attend_to_expansion_tokens":true,"query_length":9}"#);
        assert_eq!(found.expansion, expansion(true, 9));

        let found = LateInteraction::from_artifact(None).unwrap();
        assert_eq!(
            (found.markers, found.lengths),
            (["[unused0]".into(), "[unused1]".into()], [Some(32), None])
        );
        assert_eq!((found.expansion, found.skipped.len()), (expansion(false, 32), 32));
        let artifact = text(
            r#"{"query_token_id":"[a]","doc_token_id":"[b]","query_maxlen":5,"doc_maxlen":6,"nbits":2,
                "attend_to_mask_tokens":true,"mask_punctuation":false,"similarity":"cosine"}"#,
        );
        let found = LateInteraction::from_artifact(Some(&artifact)).unwrap();
        assert_eq!((found.markers, found.lengths), (["[a]".into(), "[b]".into()], [Some(5), Some(6)]));
        assert_eq!((found.expansion, found.skipped.len()), (expansion(true, 5), 0));
        let message = LateInteraction::from_artifact(Some(&text(r#"{"similarity":"l2"}"#))).unwrap_err();
        assert!(message.to_string().contains("`similarity` of artifact.metadata is `l2`"), "{message}");
    }

    /// The settings of sentence-transformers' own layout, from the contents of its three files.
    fn own(settings: &str, transformer: &str, mask: &str) -> Result<LateInteraction, FilesError> {
        let (settings, transformer) = (text(settings).parse().unwrap(), text(transformer).parse().unwrap());
        LateInteraction::from_own_layout(&settings, &transformer, Some(&text(mask)))
    }

    #[test]
    fn the_own_layout_of_sentence_transformers_has_its_settings_in_three_files() {
        let found = own("{}", "{}", "{}").unwrap();
        assert_eq!((found.markers, found.lengths), ([String::new(), String::new()], [None, None]));
        assert_eq!((found.marking, found.expansion, found.skipped.len()), (Marking::Prompt, None, 0));
        let settings = r#"{"prompts":{"query":"q: ","passage":"p: "},"similarity_fn_name":"meanmaxsim"}"#;
        let mask = r#"{"skiplist_words":["!"],"skiplist_tasks":["document"],"keep_only_token_ids":null}"#;
        let fill = |fields: &str| {
            let expansion =
                format!(r#"{{"max_seq_length":50,"document_length":40,"query_expansion":{{{fields}}}}}"#);
            own(settings, &expansion, mask).unwrap()
        };
        let found = fill(r#""strategy":"fixed","length":20,"attend":true,"token":"[X]""#);
        assert_eq!((found.markers, found.lengths), (["q: ".into(), "p: ".into()], [Some(20), Some(40)]));
        let token = Some("[X]".to_owned());
        let expansion = Some(Expansion { is_attended: true, length: 20, token });
        assert_eq!((found.expansion, found.skipped), (expansion, vec!["!".to_owned()]));
        let found = fill(r#""strategy":"min","length":20"#);
        assert_eq!(found.lengths, [Some(50), Some(40)]);
        assert_eq!(found.expansion, Some(Expansion { is_attended: false, length: 20, token: None }));
        for (transformer, expected) in [
            (r#"{"query_length":7,"max_seq_length":9}"#, ([Some(7), Some(9)], [Some(9), Some(9)])),
            (r#"{"document_length":25}"#, ([None, Some(25)], [None, Some(25)])),
            (r#"{"query_length":7}"#, ([Some(7), None], [None, Some(16)])),
            (
                r#"{"document_length":9,"query_expansion":{"strategy":"fixed","length":20}}"#,
                ([Some(20), Some(9)], [Some(20), Some(20)]),
            ),
        ] {
            let found = own("{}", transformer, "{}").unwrap();
            let max_lengths = [None, Some(16)].map(|of_tokenizer| found.max_length(of_tokenizer));
            assert_eq!((found.lengths, max_lengths), expected, "{transformer}");
        }
        for (settings, mask, part) in [
            (r#"{"similarity_fn_name":"cosine"}"#, "{}", "`similarity_fn_name`"),
            ("{}", r#"{"skiplist_tasks":["query"]}"#, "`skiplist_tasks` of MultiVectorMask is `query`"),
            ("{}", r#"{"keep_only_token_ids":[5]}"#, "`keep_only_token_ids` of MultiVectorMask is `[5]`"),
        ] {
            let message = own(settings, "{}", mask).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
