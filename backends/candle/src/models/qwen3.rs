//! Qwen3 (transformers, `modeling_qwen3.py`): Qwen3-Reranker, Qwen3-Embedding, voyage-4-nano. pplx-embed is
//! Qwen3 without a causal mask and with vectors of whole numbers. jina-reranker-v3 (`modeling.py` of its
//! repository) adds a projector for the states of marked tokens. Also Qwen2 (`modeling_qwen2.py`):
//! jina-code-embeddings, mxbai-rerank-v2, and gte-Qwen2, which has no causal mask (`is_causal` false).

use super::{
    decoder::{self, DecoderConfig, DecoderFamily, OptionalBiases},
    has_architecture, parse, refuse,
};
use crate::{
    attention::Mask,
    operations::Result,
    plan::{MatrixPart, Plan, StepPlan},
};
use serde::Deserialize;
use serde_json::Value;
use text_embeddings_backend_core::Activation;

/// The architecture of jina-reranker-v3.
const JINA_RANKING: &str = "JinaForRanking";
/// The length of the projector's vectors. It does not depend on the size of a state.
const PROJECTED: usize = 512;

/// Settings that only Qwen has.
#[derive(Debug, Deserialize)]
struct Settings {
    hidden_act: String,
    #[serde(default)]
    use_sliding_window: bool,
    max_window_layers: Option<usize>,
    num_labels: Option<usize>,
}

pub(super) fn plan(value: &Value) -> Result<Plan> {
    let (config, settings): (DecoderConfig, Settings) = (DecoderConfig::read(value)?, parse(value)?);
    let family = DecoderFamily { head_norms: true, ..family(&config, &settings) };
    let mut plan = decoder::plan(value, &config, &family)?;
    if has_architecture(value, JINA_RANKING) {
        // jina-reranker-v3.5 has a sliding window. Its prompt differs, so it is refused.
        let has_windows = family.sliding.contains(&true);
        refuse(value, has_windows, "a sliding window of a listwise re-ranker (JinaForRanking)")?;
        let half = config.hidden_size / 2;
        let first = MatrixPart::new("projector.0", [half, config.hidden_size]).biased(false);
        let second = MatrixPart::new("projector.2", [PROJECTED, half]).biased(false);
        plan.projector = vec![
            StepPlan::Dense(first.into(), Activation::Relu),
            StepPlan::Dense(second.into(), Activation::Identity),
        ];
        plan.ignored.push("projector.".to_owned());
    }
    // voyage-4-nano projects its states to longer vectors.
    if let (true, Some(outputs)) = (config.use_bidirectional_attention == Some(true), settings.num_labels) {
        let projection = MatrixPart::new("linear", [outputs, config.hidden_size]).biased(false);
        plan.vector_steps = vec![StepPlan::Dense(projection.into(), Activation::Identity)];
    }
    Ok(plan)
}

/// pplx-embed.
pub(super) fn pplx_plan(value: &Value) -> Result<Plan> {
    let (config, settings): (DecoderConfig, Settings) = (DecoderConfig::read(value)?, parse(value)?);
    let family = DecoderFamily { head_norms: true, bidirectional: true, ..family(&config, &settings) };
    Ok(Plan { quantised_vectors: true, ..decoder::plan(value, &config, &family)? })
}

/// Qwen2.
pub(super) fn qwen2_plan(value: &Value) -> Result<Plan> {
    let config = DecoderConfig::read(value)?;
    let biases = OptionalBiases::Nowhere;
    let family = DecoderFamily { query_bias: true, biases, ..family(&config, &parse(value)?) };
    decoder::plan(value, &config, &family)
}

/// The properties that Qwen2 and Qwen3 share.
fn family(config: &DecoderConfig, settings: &Settings) -> DecoderFamily {
    let first = settings.max_window_layers.unwrap_or(usize::MAX);
    let bidirectional = config.is_causal == Some(false) || config.use_bidirectional_attention == Some(true);
    let mut sliding = config.sliding(|layer| layer >= first);
    if !settings.use_sliding_window {
        sliding.fill(false);
    }
    let causal = config.causal_window();
    let window = if bidirectional { Mask { after: causal.before, ..causal } } else { causal };
    let biases = OptionalBiases::Attention;
    DecoderFamily {
        bidirectional,
        sliding,
        window,
        biases,
        ..DecoderFamily::llama(config, &settings.hidden_act)
    }
}
