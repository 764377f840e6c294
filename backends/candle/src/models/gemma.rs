//! Gemma, Gemma 2 and Gemma 3 (transformers, `modeling_gemma*.py`), such as bge-reranker-v2-gemma and
//! EmbeddingGemma.

use super::decoder::{self, DecoderConfig, DecoderFamily, Mould, OptionalBiases, with_defaults};
use super::{parse, refuse};
use crate::{attention::Mask, operations::Result, plan::Plan};
use serde::Deserialize;
use serde_json::{Value, json};

/// Settings that only Gemma has.
#[derive(Debug, Deserialize)]
struct Settings {
    hidden_act: Option<String>,
    hidden_activation: Option<String>,
    query_pre_attn_scalar: Option<f32>,
    attn_logit_softcapping: Option<f32>,
    final_logit_softcapping: Option<f32>,
    sliding_window_pattern: Option<usize>,
    rope_local_base_freq: Option<f64>,
}

/// In Gemma 3, every sixth layer attends to the whole text.
const PATTERN: usize = 6;
const TANH: &str = "gelu_pytorch_tanh";

/// Refuses the field in Gemma and Gemma 2. In transformers, the order of tokens then depends on the
/// implementation of attention, and on whether the batch has padding.
fn refuse_bidirectional(value: &Value, config: &DecoderConfig) -> Result<()> {
    refuse(value, config.use_bidirectional_attention == Some(true), "use_bidirectional_attention true")
}

fn family(config: &DecoderConfig, settings: &Settings) -> DecoderFamily {
    let base = DecoderFamily::llama(config, settings.hidden_activation.as_deref().unwrap_or(TANH));
    DecoderFamily {
        mould: Mould::Gemma,
        divisor: settings.query_pre_attn_scalar,
        soft_cap: settings.attn_logit_softcapping,
        logit_bound: settings.final_logit_softcapping,
        theta: [Some(10_000.0), None],
        biases: OptionalBiases::Attention,
        ..base
    }
}

pub(super) fn plan(value: &Value) -> Result<Plan> {
    let (config, settings): (DecoderConfig, Settings) = (DecoderConfig::read(value)?, parse(value)?);
    refuse_bidirectional(value, &config)?;
    // The first models say "gelu" and mean its tanh approximation.
    let activation = settings.hidden_act.as_deref().filter(|name| *name != "gelu").unwrap_or(TANH);
    let family = DecoderFamily {
        activation: activation.to_owned(),
        divisor: None,
        soft_cap: None,
        logit_bound: None,
        ..family(&config, &settings)
    };
    decoder::plan(value, &config, &family)
}

/// Gemma 2: every other layer, beginning with the first, attends to a window.
pub(super) fn gemma2_plan(value: &Value) -> Result<Plan> {
    let defaults = json!({
        "sliding_window": 4096, "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0
    });
    let value = &with_defaults(value, defaults);
    let config = DecoderConfig::read(value)?;
    refuse_bidirectional(value, &config)?;
    let (sliding, window) = (config.sliding(|layer| layer % 2 == 0), config.causal_window());
    decoder::plan(
        value,
        &config,
        &DecoderFamily { mould: Mould::Gemma2, sliding, window, ..family(&config, &parse(value)?) },
    )
}

/// Gemma 3, text only. Layers with a window have a rotary base of their own.
pub(super) fn gemma3_plan(value: &Value) -> Result<Plan> {
    let value = &with_defaults(value, json!({"sliding_window": 4096, "query_pre_attn_scalar": 256}));
    let (config, settings): (DecoderConfig, Settings) = (DecoderConfig::read(value)?, parse(value)?);
    let pattern = settings.sliding_window_pattern.unwrap_or(PATTERN).max(1);
    let sliding = config.sliding(|layer| (layer + 1) % pattern != 0);
    let family = family(&config, &settings);
    // A bidirectional window has half of its size on each side.
    let half = config.sliding_window.unwrap_or(0) / 2;
    let bidirectional = config.use_bidirectional_attention == Some(true);
    let window = if bidirectional { Mask { before: half, after: half } } else { config.causal_window() };
    let theta = [Some(1_000_000.0), Some(settings.rope_local_base_freq.unwrap_or(10_000.0))];
    // transformers reads `attn_logit_softcapping`, but does not use it.
    let family = DecoderFamily {
        head_norms: true,
        bidirectional: bidirectional || family.bidirectional,
        mould: Mould::Gemma2,
        sliding,
        window,
        theta,
        soft_cap: None,
        ..family
    };
    decoder::plan(value, &config, &family)
}
