//! Reads the small files that only some models have.
//!
//! Input: the repository. Output: their settings. What must hold: a file that exists but cannot be understood
//! is an error.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use text_embeddings_checkpoint::CheckpointFile;

use super::config::{
    LogitScore, ModelConfig, Module, PoolingConfig, PromptsConfig, SentenceBert, SpladeFile, TokenizerConfig,
};
use super::error::FilesError;
use super::names::{Bound, LOGIT_SCORE, POOLING, PROMPTS, SENTENCE_BERT, SPECIAL_TOKENS, TOKENIZER_CONFIG};
use super::reading::FileText;
use super::repository::Repository;
use super::{modules, onnx};

/// The architecture of both jina-reranker-v1 and Jina's embedding models, and the tensor that only the
/// re-ranker has.
const JINA_BERT: &str = "JinaBertModel";
const CLASSIFIER: &str = "classifier.weight";
/// The output of an ONNX file with that head.
const LOGITS: &str = "logits";

/// Settings of `config_sentence_transformers.json` that shorten vectors, with the supported values.
const SHORTENED: [(&str, &str); 2] = [
    ("max_active_dims", "null (all weights) is"),
    ("truncate_dim", "null is; requests shorten their vectors by `dimensions`"),
];

/// `tokenizer_config.json`. As in `transformers`, `special_tokens_map.json` takes precedence if the first
/// file does not list the added tokens.
pub(super) async fn read_tokenizer_config(files: &Repository<'_>) -> Result<TokenizerConfig, FilesError> {
    let mut config: TokenizerConfig = files.read_json(TOKENIZER_CONFIG).await?.unwrap_or_default();
    if !config.others.contains_key("added_tokens_decoder") {
        let tokens: BTreeMap<String, Value> = files.read_json(SPECIAL_TOKENS).await?.unwrap_or_default();
        config.others.extend(tokens);
    }
    Ok(config)
}

pub(super) async fn read_logit_score(
    files: &Repository<'_>,
    modules: &[Module],
) -> Result<Option<LogitScore>, FilesError> {
    let named = modules::config_of(modules, "LogitScore")?;
    // Some repositories name a folder that they do not have.
    let path = named.as_deref().filter(|path| files.has(path)).unwrap_or(LOGIT_SCORE);
    if named.is_some() {
        let remedy = "modules.json names it; download the model again with this folder";
        files.require(path, Bound::Small, remedy).await?;
    }
    files.read_json(path).await
}

pub(super) fn has_unnamed_score(
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

pub(super) async fn read_pooling(
    files: &Repository<'_>,
    modules: &[Module],
) -> Result<Option<PoolingConfig>, FilesError> {
    let named = modules::config_of(modules, "Pooling")?;
    let path = named.as_deref().unwrap_or(POOLING);
    if let Some(text) = files.read_text(path).await? {
        return PoolingConfig::from_text(&text).map(Some);
    }
    let has_bare_folder = path.rsplit_once('/').is_some_and(|(folder, _)| files.has(folder));
    Ok((named.is_some() || has_bare_folder).then(PoolingConfig::default))
}

pub(super) async fn read_splade(
    files: &Repository<'_>,
    modules: &[Module],
) -> Result<Option<SpladeFile>, FilesError> {
    let Some(path) = modules::config_of(modules, "SpladePooling")? else { return Ok(None) };
    let Some(text) = files.read_text(&path).await? else { return Ok(None) };
    let config = text.parse()?;
    Ok(Some(SpladeFile { path: text.path, config }))
}

/// Refuses lengths to which sentence-transformers shortens every vector. Warns if it compares an embedding
/// model's vectors otherwise than this server does.
pub(super) fn check_vector_settings(
    files: &Repository<'_>,
    config: &PromptsConfig,
    modules: &[Module],
) -> Result<(), FilesError> {
    for (field, known) in SHORTENED {
        if let Some(value) = config.others.get(field).filter(|value| !value.is_null()) {
            let (path, value) = (files.root().join(PROMPTS), value.to_string());
            return Err(FilesError::UnsupportedField { path, field, value, known });
        }
    }
    let similarity = config.others.get("similarity_fn_name").and_then(Value::as_str).unwrap_or("cosine");
    let classes: Vec<_> = modules.iter().map(Module::class_name).collect();
    // Between vectors of length one, all functions give the same order.
    if similarity != "cosine" && classes.contains(&"Pooling") && !classes.contains(&"Normalize") {
        tracing::warn!(
            "{PROMPTS} has `similarity_fn_name` {similarity}, but this server compares vectors by their cosine \
             (`/rerank`, `/similarity`): to compare them otherwise, ask `/embed` for them with `\"normalize\": false`"
        );
    }
    Ok(())
}

/// `sentence_bert_config.json`, or the first of its older names that exists.
pub(super) async fn read_sentence_bert(
    files: &Repository<'_>,
    modules: &[Module],
) -> Result<Option<SentenceBert>, FilesError> {
    for name in SENTENCE_BERT {
        let Some(text) = files.read_text(name).await? else { continue };
        let found: SentenceBert = text.parse()?;
        if found.do_lower_case {
            let FileText { path, .. } = text;
            let (field, value, known) = ("do_lower_case", "true".to_owned(), "false");
            return Err(FilesError::UnsupportedField { path, field, value, known });
        }
        refuse_others(&text, modules)?;
        return Ok(Some(found));
    }
    Ok(None)
}

/// Settings of `sentence_bert_config.json` that change tokens or states, by their path in the file, with the
/// values that change nothing.
const OTHERS: [(&str, &[&str], &str); 3] = [
    (
        "/modality_config/text/method_output_name",
        &["\"last_hidden_state\"", "\"logits\""],
        "`last_hidden_state` and `logits` are",
    ),
    ("/processing_kwargs/text/max_length", &[], "null is"),
    ("/processing_kwargs/text/add_special_tokens", &["true"], "true is"),
];

/// The same for lengths of queries and documents, which late-interaction models have.
const BY_SIDE: [(&str, &[&str], &str); 3] = [
    ("/query_length", &[], "null is, except in late-interaction models"),
    ("/document_length", &[], "null is, except in late-interaction models"),
    ("/query_expansion", &[], "null is, except in late-interaction models"),
];

/// Objects whose fields replace fields of other files, and the fields among them that change no value.
const REPLACING: [(&str, &str); 4] = [
    ("config_args", "the fields of config.json are"),
    ("config_kwargs", "the fields of config.json are"),
    ("tokenizer_args", "the fields of tokenizer_config.json are"),
    ("processor_kwargs", "the fields of tokenizer_config.json are"),
];
const HARMLESS: [&str; 10] = [
    "trust_remote_code",
    "revision",
    "code_revision",
    "use_cache",
    "attn_implementation",
    "use_memory_efficient_attention",
    "unpad_inputs",
    "padding_side",
    "use_fast",
    "clean_up_tokenization_spaces",
];

fn refuse_others(text: &FileText, modules: &[Module]) -> Result<(), FilesError> {
    let fields: Value = text.parse()?;
    for (field, known) in REPLACING {
        let given = fields[field].as_object().into_iter().flatten();
        if let Some((name, value)) = given.into_iter().find(|(name, _)| !HARMLESS.contains(&name.as_str())) {
            let (path, value) = (text.path.clone(), format!("{name} {value}"));
            return Err(FilesError::UnsupportedField { path, field, value, known });
        }
    }
    let is_late = modules.iter().any(|module| module.class_name() == "MultiVectorMask");
    let by_side = if is_late { [].as_slice() } else { &BY_SIDE };
    for (field, harmless, known) in OTHERS.iter().chain(by_side) {
        let Some(value) = fields.pointer(field).filter(|value| !value.is_null()) else { continue };
        let value = value.to_string();
        if !harmless.contains(&value.as_str()) {
            return Err(FilesError::UnsupportedField { path: text.path.clone(), field, value, known });
        }
    }
    Ok(())
}
