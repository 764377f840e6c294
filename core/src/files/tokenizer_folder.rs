//! The tokenizer of a trained decider, which is in a folder of its own.
//!
//! Input: a repository. Output: the tokenizer's files, then the small files of a model of `transformers` that
//! has them.

use serde_json::{Map, Value, json};

use super::error::FilesError;
use super::names::{Bound, CONFIG, SENTENCE_BERT, TOKENIZER, TOKENIZER_CONFIG};
use super::reading::{MemoryFiles, read_text, remedy};
use super::repository::Repository;

const FOLDER: &str = "tokenizer/";

pub(super) struct TokenizerFolder {
    tokenizer: String,
    /// `tokenizer_config.json`; empty if it is missing.
    pub(super) config: Map<String, Value>,
}

impl TokenizerFolder {
    pub(super) async fn read_folder(repository: &Repository<'_>) -> Result<Self, FilesError> {
        let path = format!("{FOLDER}{TOKENIZER}");
        let tokenizer = read_text(&repository.require(&path, Bound::Small, remedy(TOKENIZER)).await?)?;
        let config = repository.read_json(&format!("{FOLDER}{TOKENIZER_CONFIG}")).await?.unwrap_or_default();
        Ok(Self { tokenizer: tokenizer.text, config })
    }

    /// The small files of a model with this `config.json`, whose inputs have at most `max_length` tokens.
    pub(super) fn into_model(
        self,
        repository: &Repository<'_>,
        config: Map<String, Value>,
        max_length: u64,
    ) -> MemoryFiles {
        let files = [
            (CONFIG, Value::Object(config).to_string()),
            (TOKENIZER, self.tokenizer),
            (TOKENIZER_CONFIG, Value::Object(self.config).to_string()),
            (SENTENCE_BERT[0], json!({ "max_seq_length": max_length }).to_string()),
        ];
        MemoryFiles::from_files(repository.root(), files)
    }
}
