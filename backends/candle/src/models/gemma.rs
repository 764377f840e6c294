//! Gemma, Gemma 2 and Gemma 3 (transformers, `modeling_gemma*.py`), such as bge-reranker-v2-gemma and
//! EmbeddingGemma.

use super::decoder::{self, DecoderConfig, DecoderFamily, Mould};
use super::parse;
use crate::{attention::Mask, operations::Result, plan::Plan};
use serde::Deserialize;
use serde_json::Value;

/// Settings that only Gemma has.
#[derive(Debug, Deserialize)]
struct Settings {
    hidden_activation: Option<String>,
    query_pre_attn_scalar: Option<f32>,
    attn_logit_softcapping: Option<f32>,
    sliding_window_pattern: Option<usize>,
    rope_local_base_freq: Option<f64>,
}

/// In Gemma 3, every sixth layer attends to the whole text.
const PATTERN: usize = 6;

fn family(config: &DecoderConfig, settings: &Settings) -> DecoderFamily {
    // The first models say "gelu" in `hidden_act` and mean its tanh approximation.
    let activation = settings.hidden_activation.as_deref().unwrap_or("gelu_pytorch_tanh");
    let bidirectional = config.use_bidirectional_attention == Some(true);
    DecoderFamily {
        mould: Mould::Gemma,
        bidirectional,
        divisor: settings.query_pre_attn_scalar,
        soft_cap: settings.attn_logit_softcapping,
        theta: [Some(10_000.0), None],
        ..DecoderFamily::llama(config, activation)
    }
}

pub(super) fn plan(value: &Value) -> Result<Plan> {
    let config = DecoderConfig::read(value)?;
    let family = DecoderFamily { divisor: None, soft_cap: None, ..family(&config, &parse(value)?) };
    decoder::plan(value, &config, &family)
}

/// Gemma 2: every other layer, beginning with the first, attends to a window.
pub(super) fn gemma2_plan(value: &Value) -> Result<Plan> {
    let config = DecoderConfig::read(value)?;
    let (sliding, window) = (config.sliding(|layer| layer % 2 == 0), config.causal_window());
    decoder::plan(
        value,
        &config,
        &DecoderFamily { mould: Mould::Gemma2, sliding, window, ..family(&config, &parse(value)?) },
    )
}

/// Gemma 3, text only. Layers with a window have a rotary base of their own.
pub(super) fn gemma3_plan(value: &Value) -> Result<Plan> {
    let (config, settings): (DecoderConfig, Settings) = (DecoderConfig::read(value)?, parse(value)?);
    let pattern = settings.sliding_window_pattern.unwrap_or(PATTERN).max(1);
    let sliding = config.sliding(|layer| (layer + 1) % pattern != 0);
    let family = family(&config, &settings);
    // A bidirectional window has half of its size on each side.
    let half = config.sliding_window.unwrap_or(0) / 2;
    let window =
        if family.bidirectional { Mask { before: half, after: half } } else { config.causal_window() };
    let theta = [Some(1_000_000.0), Some(settings.rope_local_base_freq.unwrap_or(10_000.0))];
    let family = DecoderFamily { head_norms: true, mould: Mould::Gemma2, sliding, window, theta, ..family };
    decoder::plan(value, &config, &family)
}
