//! The settings of late-interaction models (`ColBERT`), which compare queries and documents token by token.
//!
//! Input: the files of a folder in `PyLate`'s layout or in Stanford's. Output: [`LateInteraction`], and the
//! matrix of Stanford's layout as a dense module. What must hold: a missing setting has the default of the
//! library that wrote the file; a similarity or a layout that is not computed is refused.

use serde::Deserialize;
use serde_json::Value;
use text_embeddings_backend_core::{Activation, DenseModule, HeadModule};
use text_embeddings_checkpoint::{CheckpointError, CheckpointFile, ModelFile};

use super::config::{ModelConfig, Module, PromptsConfig};
use super::error::FilesError;
use super::gguf;
use super::names::{CONFIG, MODULES, PROMPTS};
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

/// How a model reads queries and documents apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LateInteraction {
    /// The markers of queries and of documents; empty for none.
    pub(crate) markers: [String; 2],
    /// The most tokens of queries, and of documents; `None` if the positions decide.
    pub(crate) lengths: [Option<usize>; 2],
    /// Whether queries are filled with mask tokens, and whether these are attended to.
    pub(crate) expansion: Option<bool>,
    /// The token that fills them, if the tokenizer's configuration names one.
    pub(crate) expansion_token: Option<String>,
    /// The tokens of documents whose vectors do not count.
    pub(crate) skipped: Vec<String>,
}

/// The settings of `PyLate` in `config_sentence_transformers.json`, with its defaults.
#[derive(Debug, Clone, Default, Deserialize)]
struct PyLateConfig {
    #[serde(default)]
    query_prefix: Option<String>,
    #[serde(default)]
    document_prefix: Option<String>,
    #[serde(default)]
    query_length: Option<usize>,
    #[serde(default)]
    document_length: Option<usize>,
    #[serde(default)]
    do_query_expansion: Option<bool>,
    #[serde(default)]
    attend_to_expansion_tokens: Option<bool>,
    #[serde(default)]
    skiplist_words: Option<Vec<String>>,
}

/// The fields of Stanford's `artifact.metadata`.
#[derive(Debug, Default, Deserialize)]
struct Artifact {
    #[serde(default)]
    query_token_id: Option<String>,
    #[serde(default)]
    doc_token_id: Option<String>,
    #[serde(default)]
    query_maxlen: Option<usize>,
    #[serde(default)]
    doc_maxlen: Option<usize>,
    #[serde(default)]
    attend_to_mask_tokens: Option<bool>,
    #[serde(default)]
    mask_punctuation: Option<bool>,
    #[serde(default)]
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
    if let Some(class) = late_interaction_class(modules) {
        return Some((MODULES, format!("the module `{class}`")));
    }
    is_stanford(config).then(|| (CONFIG, format!("the architecture `{STANFORD}`")))
}

/// The class of a module that only late-interaction models have.
fn late_interaction_class(modules: &[Module]) -> Option<&str> {
    let is_late =
        |module: &&Module| module.class.starts_with("pylate.") || module.class_name() == "MultiVectorMask";
    modules.iter().find(is_late).map(|module| module.class.as_str())
}

/// Whether the folder has the layout of Stanford's `ColBERT`.
pub(super) fn is_stanford(config: &ModelConfig) -> bool {
    config.architectures.iter().any(|name| name == STANFORD)
}

/// Whether the modules are a transformer and dense modules of `PyLate`, which have no pooling.
pub(super) fn is_pylate(modules: &[Module], prompts: &PromptsConfig) -> bool {
    let [transformer, dense @ ..] = modules else { return false };
    // The newer layout of sentence-transformers has the settings elsewhere.
    prompts.model_type.as_deref() != Some("MultiVectorEncoder")
        && transformer.class_name() == "Transformer"
        && !dense.is_empty()
        && dense.iter().all(|module| module.class_name() == "Dense")
}

impl LateInteraction {
    /// The settings of `PyLate`.
    pub(super) fn from_pylate(prompts: &PromptsConfig) -> Result<Self, FilesError> {
        let fields = prompts.others.clone().into_iter().collect();
        let settings: PyLateConfig = serde_json::from_value(Value::Object(fields))
            .map_err(|error| FilesError::Json { path: PROMPTS.into(), reason: error.to_string() })?;
        let markers = [
            settings.query_prefix.unwrap_or("[Q] ".into()),
            settings.document_prefix.unwrap_or("[D] ".into()),
        ];
        for (name, marker) in ["query", "document"].into_iter().zip(&markers) {
            let prompt = prompts.prompts.get(name).cloned().flatten().unwrap_or_default();
            if !prompt.strip_prefix(marker.as_str()).unwrap_or(&prompt).is_empty() {
                return Err(FilesError::UnsupportedField {
                    path: PROMPTS.into(),
                    field: "prompts",
                    value: prompt,
                    known: "the marker itself or nothing is, for a late-interaction model",
                });
            }
        }
        let expands = settings.do_query_expansion.unwrap_or(true);
        Ok(Self {
            markers,
            lengths: [
                Some(settings.query_length.unwrap_or(QUERY_LENGTH)),
                Some(settings.document_length.unwrap_or(DOCUMENT_LENGTH)),
            ],
            expansion: expands.then(|| settings.attend_to_expansion_tokens.unwrap_or(false)),
            expansion_token: None,
            skipped: settings.skiplist_words.unwrap_or_else(all_punctuation),
        })
    }

    /// The settings of Stanford's `ColBERT`; its defaults if there is no such file.
    pub(super) fn from_artifact(text: Option<&FileText>) -> Result<Self, FilesError> {
        let artifact: Artifact = text.map(FileText::parse).transpose()?.unwrap_or_default();
        if let Some(value) = artifact.similarity.filter(|similarity| similarity != "cosine") {
            let (path, known) = (ARTIFACT.into(), "`cosine` is");
            return Err(FilesError::UnsupportedField { path, field: "similarity", value, known });
        }
        let skips = artifact.mask_punctuation.unwrap_or(true);
        Ok(Self {
            markers: [
                artifact.query_token_id.unwrap_or("[unused0]".into()),
                artifact.doc_token_id.unwrap_or("[unused1]".into()),
            ],
            lengths: [Some(artifact.query_maxlen.unwrap_or(QUERY_LENGTH)), artifact.doc_maxlen],
            expansion: Some(artifact.attend_to_mask_tokens.unwrap_or(false)),
            expansion_token: None,
            skipped: if skips { all_punctuation() } else { Vec::new() },
        })
    }

    /// The settings with the token that fills queries. Stanford's matrix comes behind `modules`.
    pub(super) fn complete_with(
        self,
        expansion_token: Option<String>,
        config: &ModelConfig,
        checkpoints: &[CheckpointFile],
        modules: &mut Vec<HeadModule>,
    ) -> Result<Self, FilesError> {
        if is_stanford(config) {
            modules.push(HeadModule::Dense(stanford_module(checkpoints)?));
        }
        Ok(Self { expansion_token, ..self })
    }
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
    let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
    let bytes = gguf::safetensors(&values, [outputs, inputs]).into();
    Ok(DenseModule {
        weights: ModelFile::Memory { name: tensor.path().join(PROJECTION), bytes },
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
        assert_eq!((found.expansion, found.skipped.len()), (Some(false), 32));
        let found = pylate(
            r#"{"query_prefix":"","document_prefix":"[D]","query_length":7,"document_length":9,
                "do_query_expansion":false,"attend_to_expansion_tokens":true,"skiplist_words":["a"],
                "prompts":{"document":"[D]"}}"#,
        );
        assert_eq!((found.markers, found.lengths), ([String::new(), "[D]".into()], [Some(7), Some(9)]));
        assert_eq!((found.expansion, found.skipped), (None, vec!["a".to_owned()]));
        assert_eq!(pylate(r#"{"attend_to_expansion_tokens":true}"#).expansion, Some(true));

        let found = LateInteraction::from_artifact(None).unwrap();
        assert_eq!(
            (found.markers, found.lengths),
            (["[unused0]".into(), "[unused1]".into()], [Some(32), None])
        );
        assert_eq!((found.expansion, found.skipped.len()), (Some(false), 32));
        let artifact = text(
            r#"{"query_token_id":"[a]","doc_token_id":"[b]","query_maxlen":5,"doc_maxlen":6,"nbits":2,
                "attend_to_mask_tokens":true,"mask_punctuation":false,"similarity":"cosine"}"#,
        );
        let found = LateInteraction::from_artifact(Some(&artifact)).unwrap();
        assert_eq!((found.markers, found.lengths), (["[a]".into(), "[b]".into()], [Some(5), Some(6)]));
        assert_eq!((found.expansion, found.skipped.len()), (Some(true), 0));
        let message = LateInteraction::from_artifact(Some(&text(r#"{"similarity":"l2"}"#))).unwrap_err();
        assert!(message.to_string().contains("`similarity` of artifact.metadata is `l2`"), "{message}");
    }
}
