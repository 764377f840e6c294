//! The layer-wise `MiniCPM` of bge-reranker-v2-minicpm-layerwise (`FlagEmbedding`,
//! `modeling_minicpm_reranker.py`): Llama's layers, with a scoring head after each layer from `start_layer`
//! on.
//!
//! `MiniCPM` multiplies each block's result by `s = scale_depth / √layers` before it adds it to the residual
//! stream. Here the stream is divided by `s` instead, so that results are added unchanged: embeddings are
//! multiplied by `scale_emb / s`, and the epsilon of norms, which divide the stream by its size, is divided
//! by `s²`. The states after the final norm are the same.

use super::{
    decoder::{self, DecoderConfig, DecoderFamily},
    has_architecture, parse, refuse, score_on_last_token, unsupported,
};
use crate::{
    operations::Result,
    plan::{Classification, LayerHeads, Plan, Reads},
};
use serde::Deserialize;
use serde_json::Value;
use text_embeddings_backend_core::amount;

/// The architecture with heads after its layers. `MiniCPM` itself and its embedding models are not supported.
const LAYER_WISE: &str = "LayerWiseMiniCPMForCausalLM";
/// The layer after which the authors' model card scores. Without a setting, their code runs all layers.
const RECOMMENDED: usize = 28;

/// Settings that only `MiniCPM` has.
#[derive(Debug, Deserialize)]
struct Settings {
    hidden_act: String,
    scale_emb: f32,
    scale_depth: f32,
    start_layer: usize,
    head_multi: bool,
    head_type: String,
}

/// The plan of all layers and heads.
pub(super) fn plan(value: &Value) -> Result<Plan> {
    if !has_architecture(value, LAYER_WISE) {
        return Err(unsupported(value, &format!("an architecture other than {LAYER_WISE}")));
    }
    let (mut config, settings): (DecoderConfig, Settings) = (DecoderConfig::read(value)?, parse(value)?);
    refuse(value, settings.head_type != "simple", &format!("head_type {:?}", settings.head_type))?;
    refuse(value, !settings.head_multi, "head_multi false")?;
    let are_positive = settings.scale_depth > 0.0 && settings.scale_emb > 0.0;
    refuse(value, !are_positive, "a scale that is not above zero")?;
    let (first, layers) = (settings.start_layer, config.num_hidden_layers);
    if first == 0 || first > layers {
        return Err(unsupported(value, &format!("start_layer {first} of {}", amount(layers, "layer"))));
    }
    let scale = settings.scale_depth / (layers as f32).sqrt();
    config.rms_norm_eps /= scale * scale;
    let theta = [Some(10_000.0), None];
    let family = DecoderFamily { theta, ..DecoderFamily::llama(&config, &settings.hidden_act) };
    let mut plan = decoder::plan(value, &config, &family)?;
    plan.embeddings.scale = settings.scale_emb / scale;
    let heads = LayerHeads {
        first,
        recommended: if (first..=layers).contains(&RECOMMENDED) { RECOMMENDED } else { layers },
        logits: (first..=layers).map(|layer| format!("lm_head.{}.linear_head", layer - first)).collect(),
    };
    plan.classification = Some(Classification {
        reads: Reads::Last,
        logits: heads.logits[layers - first].clone(),
        ..score_on_last_token(config.hidden_size)
    });
    plan.layer_heads = Some(heads);
    Ok(plan)
}
