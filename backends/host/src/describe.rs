//! Reads `config.json` for backends without code of their own for each architecture.
//!
//! Input: the content of `config.json`. Output: a [`Description`]. What must hold: the model has positions
//! for the longest input, whatever its architecture; a missing field without a substitute is an error that
//! names the field.

use serde_json::Value;
use text_embeddings_backend_core::{BackendError, Description};

/// Names of the field with the number of positions.
const POSITIONS: [&str; 4] = ["n_positions", "max_position_embeddings", "max_seq_len", "n_ctx"];
/// Names of the field with the size of a hidden state.
const HIDDEN: [&str; 4] = ["hidden_size", "d_model", "dim", "n_embd"];
/// The values of `model_type` whose positions begin after the padding token's index, as in `transformers`:
/// RoBERTa and its descendants. If the configuration names no padding token, its index is 1.
const AFTER_PADDING: [&str; 14] = [
    "camembert",
    "data2vec-text",
    "esm",
    "ibert",
    "longformer",
    "luke",
    "markuplm",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
    "jina_embeddings_v3",
];
const PADDING: u64 = 1;

/// The description of a model of any architecture, from its `config.json`.
///
/// # Errors
///
/// [`BackendError::Load`] if neither the configuration nor its `text_config` gives the sizes of the
/// vocabulary and of a hidden state.
pub fn describe_any(config: &Value) -> Result<Description, BackendError> {
    let architectures = || config["architectures"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let is_after_padding = match config["model_type"].as_str() {
        Some(name) => AFTER_PADDING.contains(&name),
        // jina-reranker-v2 names its architecture only.
        None => architectures().any(|name| name.contains("Roberta")),
    };
    let offset =
        if is_after_padding { clamped(config["pad_token_id"].as_u64().unwrap_or(PADDING)) + 1 } else { 0 };
    Ok(Description {
        max_length: first_number(config, &POSITIONS).map(|positions| positions.saturating_sub(offset)),
        has_token_types: first_number(config, &["type_vocab_size"]).is_some_and(|types| types > 1),
        is_causal: architectures().any(|name| name.ends_with("ForCausalLM")),
        hidden: first_number(config, &HIDDEN).ok_or_else(|| missing_field(HIDDEN[0]))?,
        vocabulary: first_number(config, &["vocab_size"]).ok_or_else(|| missing_field("vocab_size"))?,
        cutoff_layers: None,
        token_work: None,
    })
}

/// The first of these fields that the configuration or its `text_config` has.
pub fn first_number(config: &Value, names: &[&str]) -> Option<usize> {
    let places = names.iter().flat_map(|name| [&config[*name], &config["text_config"][*name]]);
    places.filter_map(Value::as_u64).map(clamped).next()
}

fn missing_field(field: &str) -> BackendError {
    BackendError::Load(format!("config.json: `{field}` is missing: download the model again, or add it"))
}

/// A number from a file as a size. No real size exceeds `u32`.
fn clamped(number: u64) -> usize {
    number.min(u32::MAX.into()) as usize
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use serde_json::json;

    #[test]
    fn the_longest_input_is_what_positions_are_left_for() {
        let table = [
            (json!({ "model_type": "bert", "max_position_embeddings": 512 }), Some(512)),
            (
                json!({ "model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1 }),
                Some(512),
            ),
            (json!({ "model_type": "xlm-roberta", "max_position_embeddings": 8194 }), Some(8192)),
            (json!({ "model_type": "mpnet", "max_position_embeddings": 514, "pad_token_id": 1 }), Some(512)),
            (json!({ "model_type": "roberta", "max_position_embeddings": 1, "pad_token_id": 7 }), Some(0)),
            (json!({ "model_type": "gpt2", "n_positions": 1024 }), Some(1024)),
            (
                json!({ "model_type": "x", "text_config": { "max_position_embeddings": 99 }, "pad_token_id": 5 }),
                Some(99),
            ),
            (json!({ "model_type": "x" }), None),
            (json!({ "architectures": ["XLMRobertaModel"], "max_position_embeddings": 20 }), Some(18)),
            (json!({ "model_type": "x", "n_ctx": u64::MAX }), Some(u32::MAX as usize)),
        ];
        for (mut config, expected) in table {
            (config["hidden_size"], config["vocab_size"]) = (8.into(), 10.into());
            assert_eq!(describe_any(&config).unwrap().max_length, expected, "{config}");
        }
    }

    #[test]
    fn sizes_go_by_several_names_and_a_missing_one_is_named() {
        for hidden in HIDDEN {
            let config = json!({ hidden: 24, "vocab_size": 100, "type_vocab_size": 2,
                                 "architectures": ["XForCausalLM"] });
            let expected = Description {
                max_length: None,
                has_token_types: true,
                is_causal: true,
                hidden: 24,
                vocabulary: 100,
                cutoff_layers: None,
                token_work: None,
            };
            assert_eq!(describe_any(&config).unwrap(), expected, "{hidden}");
        }
        for (config, field) in [
            (json!({ "vocab_size": 1 }), "hidden_size"),
            (json!({ "dim": 1 }), "vocab_size"),
            (json!({ "dim": 1, "vocab_size": "many" }), "vocab_size"),
            (json!([]), "hidden_size"),
            (json!(null), "hidden_size"),
        ] {
            let message = describe_any(&config).unwrap_err().to_string();
            assert!(message.contains(&format!("`{field}` is missing")), "{message}");
        }
    }
}
