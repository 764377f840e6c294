//! The settings of BERT's tokenizers in `tokenizer_config.json`, which replace the ones in `tokenizer.json`.
//!
//! Input: both files. Output: the tokenizer as `transformers` has it. What must hold: without a difference,
//! the file stays as it is.

use serde_json::Value;
use text_embeddings_checkpoint::ModelFile;

use super::config::TokenizerConfig;
use super::error::FilesError;
use super::reading::{check_small_file, read_text};

/// Classes that take `tokenizer.json` as it is.
const PLAIN: [&str; 2] = ["PreTrainedTokenizerFast", "TokenizersBackend"];
/// The settings, and the names of the same in a normalizer of `tokenizer.json`.
const SETTINGS: [(&str, &str); 3] = [
    ("do_lower_case", "lowercase"),
    ("strip_accents", "strip_accents"),
    ("tokenize_chinese_chars", "handle_chinese_chars"),
];

/// The value of a field, unless it is null.
fn field<'c>(config: &'c TokenizerConfig, name: &str) -> Option<&'c Value> {
    config.others.get(name).filter(|value| !value.is_null())
}

/// The file with the settings of its class.
pub(super) fn apply(file: ModelFile, config: &TokenizerConfig) -> Result<ModelFile, FilesError> {
    check_small_file(&file)?;
    if field(config, "truncation_side").is_some_and(|side| side == "left") {
        tracing::warn!(
            "tokenizer_config.json has `truncation_side` left, which has no effect: a text that is too long loses its end, \
             unless the request's `truncation_direction` is left"
        );
    }
    let has_own_class =
        field(config, "tokenizer_class").is_some_and(|class| PLAIN.iter().all(|plain| class != plain));
    if !has_own_class || SETTINGS.iter().all(|(name, _)| field(config, name).is_none()) {
        return Ok(file);
    }
    let mut tokenizer: Value = read_text(&file)?.parse()?;
    let normalizer = &mut tokenizer["normalizer"];
    if normalizer["type"] != "BertNormalizer" {
        return Ok(file);
    }
    let mut replaced = Vec::new();
    for (name, own) in SETTINGS {
        if let Some(value) = field(config, name).filter(|value| normalizer[own] != **value) {
            normalizer[own] = value.clone();
            replaced.push(format!("`{name}` {value}"));
        }
    }
    if replaced.is_empty() {
        return Ok(file);
    }
    tracing::warn!(
        "tokenizer_config.json contradicts the normalizer of tokenizer.json: {} counts, as in transformers",
        replaced.join(" and ")
    );
    Ok(ModelFile::Memory { name: file.path().to_owned(), bytes: tokenizer.to_string().into() })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use serde_json::json;

    /// As transformers 5.23 does.
    #[test]
    fn settings_of_a_bert_class_go_before_those_of_the_tokenizer() {
        let bert = |lowercase: bool, accents: Value| json!({"type": "BertNormalizer", "lowercase": lowercase, "strip_accents": accents});
        for (class, settings, normalizer, expected) in [
            ("BertTokenizer", json!({"do_lower_case": true}), bert(true, json!(null)), None),
            (
                "BertTokenizer",
                json!({"do_lower_case": false}),
                bert(true, json!(null)),
                Some(bert(false, json!(null))),
            ),
            (
                "DistilBertTokenizerFast",
                json!({"strip_accents": false}),
                bert(true, json!(null)),
                Some(bert(true, json!(false))),
            ),
            ("BertTokenizer", json!({"strip_accents": null}), bert(true, json!(true)), None),
            ("PreTrainedTokenizerFast", json!({"do_lower_case": false}), bert(true, json!(null)), None),
            ("XLMRobertaTokenizer", json!({"do_lower_case": true}), json!({"type": "Precompiled"}), None),
            ("BertTokenizer", json!({"do_lower_case": true}), json!(null), None),
        ] {
            let mut config = settings.clone();
            config["tokenizer_class"] = class.into();
            let content = json!({ "normalizer": normalizer, "model": {} }).to_string();
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("tokenizer.json");
            std::fs::write(&path, content).unwrap();
            let found = apply(path.as_path().into(), &serde_json::from_value(config).unwrap()).unwrap();
            let found: Value = read_text(&found).unwrap().parse().unwrap();
            assert_eq!(found["normalizer"], expected.unwrap_or(normalizer), "{class} {settings}");
        }
    }
}
