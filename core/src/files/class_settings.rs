//! The settings of BERT's and RoBERTa's tokenizers in `tokenizer_config.json`, which replace the ones in
//! `tokenizer.json`.
//!
//! Input: both files. Output: the tokenizer as `transformers` has it. What must hold: without a difference,
//! the file stays as it is.

use serde_json::Value;
use text_embeddings_checkpoint::ModelFile;

use super::config::{ModelConfig, TokenizerConfig};
use super::error::FilesError;
use super::reading::{check_small_file, read_text};

/// Classes that take `tokenizer.json` as it is.
const PLAIN: [&str; 2] = ["PreTrainedTokenizerFast", "TokenizersBackend"];
/// Classes that set the space before a text. They may end in `Fast`.
const ROBERTA: [&str; 4] = ["RobertaTokenizer", "GPT2Tokenizer", "BartTokenizer", "LongformerTokenizer"];
/// Model types with a class of their own if `tokenizer_class` is absent.
const MODEL_TYPES: [(&str, &str); 6] = [
    ("bert", "BertTokenizer"),
    ("distilbert", "BertTokenizer"),
    ("electra", "BertTokenizer"),
    ("nomic_bert", "BertTokenizer"),
    ("mpnet", "MPNetTokenizer"),
    ("roberta", ROBERTA[0]),
];

/// A setting that replaces one of `tokenizer.json`.
struct Setting {
    /// Its name in `tokenizer_config.json`.
    name: &'static str,
    /// Its name in `tokenizer.json`.
    own: &'static str,
    /// The value of a class that gets none.
    default: Value,
}

static OF_BERT: [Setting; 3] = [
    Setting { name: "do_lower_case", own: "lowercase", default: Value::Bool(true) },
    Setting { name: "strip_accents", own: "strip_accents", default: Value::Null },
    Setting { name: "tokenize_chinese_chars", own: "handle_chinese_chars", default: Value::Bool(true) },
];
static OF_ROBERTA: [Setting; 1] =
    [Setting { name: "add_prefix_space", own: "add_prefix_space", default: Value::Bool(false) }];

/// The value of a field, unless it is null.
fn field<'c>(config: &'c TokenizerConfig, name: &str) -> Option<&'c Value> {
    config.others.get(name).filter(|value| !value.is_null())
}

/// The tokenizer's class. By the model's type alone, a tokenizer that was made of a GGUF file has none.
fn class_name<'c>(file: &ModelFile, config: &'c TokenizerConfig, model: &ModelConfig) -> Option<&'c str> {
    if let Some(class) = field(config, "tokenizer_class").and_then(Value::as_str) {
        return PLAIN.iter().all(|plain| *plain != class).then_some(class);
    }
    if matches!(file, ModelFile::Memory { .. }) {
        return None;
    }
    let model_type = model.model_type.as_deref().unwrap_or_default();
    MODEL_TYPES.iter().find(|(name, _)| *name == model_type).map(|(_, class)| *class)
}

/// The part of `tokenizer.json` whose settings the class replaces, and these.
fn replaced_part(tokenizer: &Value, class: &str) -> Option<(&'static str, &'static [Setting])> {
    if tokenizer["normalizer"]["type"] == "BertNormalizer" {
        return Some(("normalizer", &OF_BERT));
    }
    let is_bytes = tokenizer["pre_tokenizer"]["type"] == "ByteLevel";
    let is_roberta = ROBERTA.contains(&class.trim_end_matches("Fast"));
    (is_bytes && is_roberta).then_some(("pre_tokenizer", &OF_ROBERTA))
}

/// The file with the settings of its class.
pub(super) fn apply(
    file: ModelFile,
    config: &TokenizerConfig,
    model: &ModelConfig,
) -> Result<ModelFile, FilesError> {
    check_small_file(&file)?;
    if field(config, "truncation_side").is_some_and(|side| side == "left") {
        tracing::warn!(
            "tokenizer_config.json has `truncation_side` left, which has no effect: a text that is too long loses its end, \
             unless the request's `truncation_direction` is left"
        );
    }
    let Some(class) = class_name(&file, config, model) else { return Ok(file) };
    let mut tokenizer: Value = read_text(&file)?.parse()?;
    let Some((part, settings)) = replaced_part(&tokenizer, class) else { return Ok(file) };
    let mut replaced = Vec::new();
    for Setting { name, own, default } in settings {
        let value = field(config, name).unwrap_or(default);
        if tokenizer[part][own] != *value {
            tokenizer[part][own] = value.clone();
            replaced.push(format!("`{name}` {value}"));
        }
    }
    if replaced.is_empty() {
        return Ok(file);
    }
    tracing::warn!(
        "tokenizer.json contradicts {class}, which reads {} from tokenizer_config.json or has it by default: that counts, \
         as in transformers",
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
    fn settings_of_a_class_go_before_those_of_the_tokenizer() {
        let bert = |lowercase: bool, accents: Value| json!({"normalizer": {"type": "BertNormalizer", "lowercase": lowercase, "strip_accents": accents, "handle_chinese_chars": true}});
        let [lower, cased] = [true, false].map(|lowercase| bert(lowercase, json!(null)));
        let bytes = |add: bool| json!({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": add}});
        let meta = json!({"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "always"}});
        let none = Value::Null;
        let bert_class = json!("BertTokenizer");
        for (model_type, class, settings, tokenizer, expected) in [
            ("new", &bert_class, json!({"do_lower_case": true}), &lower, &lower),
            ("new", &bert_class, json!({"do_lower_case": false}), &lower, &cased),
            ("new", &bert_class, json!({}), &cased, &lower),
            (
                "new",
                &json!("DistilBertTokenizerFast"),
                json!({"strip_accents": false}),
                &lower,
                &bert(true, json!(false)),
            ),
            ("new", &bert_class, json!({"strip_accents": null}), &bert(true, json!(true)), &lower),
            ("new", &json!("PreTrainedTokenizerFast"), json!({"do_lower_case": false}), &lower, &lower),
            ("bert", &json!("TokenizersBackend"), json!({"do_lower_case": false}), &lower, &lower),
            ("bert", &none, json!({"do_lower_case": false}), &lower, &cased),
            ("bert", &none, json!({}), &cased, &lower),
            ("new", &none, json!({"do_lower_case": false}), &lower, &lower),
            ("bert", &bert_class, json!({"do_lower_case": true}), &meta, &meta),
            ("roberta", &none, json!({"add_prefix_space": true}), &bytes(false), &bytes(true)),
            ("roberta", &none, json!({}), &bytes(true), &bytes(false)),
            (
                "new",
                &json!("GPT2TokenizerFast"),
                json!({"add_prefix_space": false}),
                &bytes(true),
                &bytes(false),
            ),
            (
                "new",
                &json!("RobertaTokenizer"),
                json!({"add_prefix_space": true}),
                &bytes(true),
                &bytes(true),
            ),
            ("modernbert", &none, json!({"add_prefix_space": false}), &bytes(true), &bytes(true)),
            (
                "roberta",
                &json!("LlamaTokenizer"),
                json!({"add_prefix_space": false}),
                &bytes(true),
                &bytes(true),
            ),
            ("roberta", &none, json!({"add_prefix_space": false}), &meta, &meta),
        ] {
            let mut config = settings.clone();
            config["tokenizer_class"] = class.clone();
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("tokenizer.json");
            std::fs::write(&path, tokenizer.to_string()).unwrap();
            let config = serde_json::from_value(config).unwrap();
            let model = ModelConfig { model_type: Some(model_type.to_owned()), ..ModelConfig::default() };
            let found = apply(path.as_path().into(), &config, &model).unwrap();
            let found: Value = read_text(&found).unwrap().parse().unwrap();
            assert_eq!(found, *expected, "{model_type} {class} {settings} {tokenizer}");
        }
        let made = ModelFile::Memory { name: "tokenizer.json".into(), bytes: cased.to_string().into() };
        let model = ModelConfig { model_type: Some("bert".to_owned()), ..ModelConfig::default() };
        let found = apply(made, &TokenizerConfig::default(), &model).unwrap();
        assert_eq!(read_text(&found).unwrap().parse::<Value>().unwrap(), cased);
    }
}
