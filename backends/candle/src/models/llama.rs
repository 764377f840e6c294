//! Llama and Mistral (transformers, `modeling_llama.py`, `modeling_mistral.py`): e5-mistral, SFR-Embedding.
//! Also NVIDIA's bidirectional Llama (`llama_bidirec`): llama-nemotron-embed, llama-nemotron-rerank.

use super::{
    decoder::{self, DecoderConfig, DecoderFamily, OptionalBiases, with_defaults},
    parse, score_on_last_token, unsupported_value,
};
use crate::{
    operations::Result,
    plan::{Classification, Plan, Reads},
};
use serde::Deserialize;
use serde_json::{Value, json};

/// The activation, which all of them name, and the settings of the bidirectional model's head.
#[derive(Debug, Deserialize)]
struct Settings {
    hidden_act: String,
    pooling: Option<String>,
    temperature: Option<f32>,
}

/// Llama.
pub(super) fn plan(value: &Value) -> Result<Plan> {
    let (config, settings): (DecoderConfig, Settings) = (DecoderConfig::read(value)?, parse(value)?);
    decoder::plan(value, &config, &DecoderFamily::llama(&config, &settings.hidden_act))
}

/// Mistral. If there is a window, it applies to all layers.
pub(super) fn mistral_plan(value: &Value) -> Result<Plan> {
    let value = &with_defaults(value, json!({"sliding_window": 4096}));
    let (config, settings): (DecoderConfig, Settings) = (DecoderConfig::read(value)?, parse(value)?);
    let (sliding, window) = (config.sliding(|_| true), config.causal_window());
    let base = DecoderFamily::llama(&config, &settings.hidden_act);
    let family = DecoderFamily { sliding, window, biases: OptionalBiases::Nowhere, ..base };
    decoder::plan(value, &config, &family)
}

/// Llama without a causal mask.
pub(super) fn bidirectional_plan(value: &Value) -> Result<Plan> {
    let (config, settings): (DecoderConfig, Settings) = (DecoderConfig::read(value)?, parse(value)?);
    let family = DecoderFamily { bidirectional: true, ..DecoderFamily::llama(&config, &settings.hidden_act) };
    let reads = match settings.pooling.as_deref() {
        None | Some("avg" | "mean") => Reads::Mean,
        Some("cls") => Reads::First,
        Some("last") => Reads::Last,
        Some(other) => {
            return Err(unsupported_value(value, "pooling", other, &["avg", "mean", "cls", "last"]));
        }
    };
    let divisor = settings.temperature.unwrap_or(1.0);
    let head = Classification { reads, divisor, ..score_on_last_token(config.hidden_size) };
    Ok(Plan { classification: Some(head), ..decoder::plan(value, &config, &family)? })
}
