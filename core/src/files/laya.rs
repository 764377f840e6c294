//! Presents a folder of Laya's as a repository of `transformers`.
//!
//! Input: a repository with `rl_agent_config.json`, and encoder and tokenizer in folders of their own.
//! Output: its small files in memory, so that code which reads models needs no special case: the encoder's
//! `config.json` has the settings of the decider in the field `laya`. The weights stay in their file.

use serde_json::{Map, Value, json};

use super::error::FilesError;
use super::names::{Bound, CONFIG, LAYA};
use super::reading::{MemoryFiles, read_text, remedy};
use super::repository::Repository;
use super::tokenizer_folder::TokenizerFolder;

const ENCODER: &str = "encoder/config.json";
/// The encoder that is supported.
const MODERN_BERT: &str = "modernbert";
/// The fields of `tokenizer_config.json` with the tokens around a question's texts.
const TOKENS: [&str; 3] = ["cls_token", "sep_token", "mask_token"];
/// The authors' longest input in tokens if the settings do not say.
const MAX_LENGTH: u64 = 512;

pub(super) async fn unpack_files(repository: &Repository<'_>) -> Result<MemoryFiles, FilesError> {
    let settings = repository.require(LAYA, Bound::Small, remedy(CONFIG)).await?;
    let mut settings: Map<String, Value> = read_text(&settings)?.parse()?;
    let encoder = repository.require(ENCODER, Bound::Small, remedy(CONFIG)).await?;
    let mut config: Map<String, Value> = read_text(&encoder)?.parse()?;
    if config.get("model_type") != Some(&json!(MODERN_BERT)) {
        return Err(FilesError::UnsupportedField {
            path: ENCODER.into(),
            field: "model_type",
            value: config.get("model_type").unwrap_or(&Value::Null).to_string(),
            known: "`modernbert` is",
        });
    }
    let tokenizer = TokenizerFolder::read_folder(repository).await?;
    for name in TOKENS {
        let token = tokenizer.config.get(name).unwrap_or(&Value::Null);
        let text = token.get("content").unwrap_or(token);
        settings.insert(name.to_owned(), text.clone());
    }
    let max_length = settings.get("max_len").and_then(Value::as_u64).unwrap_or(MAX_LENGTH);
    config.insert("laya".to_owned(), Value::Object(settings));
    Ok(tokenizer.into_model(repository, config, max_length))
}
