//! GTE (transformers, `modeling_gte.py`) and the remote code behind it (Alibaba-NLP/new-impl): gte-*-en-v1.5,
//! gte-multilingual-base and its re-ranker, `stella_en_400M_v5`, Snowflake's arctic-embed-m-v2.0.

use super::{
    activation, head_size, parse,
    parts::{LayerTensors, encoder, first_token_classification, fused_attention, refuse_set},
    post_norm::EncoderConfig,
    refuse, require,
    rotary::rope,
};
use crate::{
    operations::Result,
    plan::{LayerPlan, MlpPlan, Plan, Position},
    rope::{Rope, Scaling},
};
use serde_json::Value;
use text_embeddings_backend_core::{Activation, BackendError};

/// Configurations of the remote code also choose between implementations of attention, sometimes by strings.
/// The choice does not affect results, so these settings are not read.
pub(super) fn plan(value: &Value) -> Result<Plan> {
    let config: EncoderConfig = parse(value)?;
    let norm_type = value["layer_norm_type"].as_str().unwrap_or("layer_norm");
    let position_type = config.position_embedding_type.as_deref().unwrap_or("rope");
    refuse_set(value, &["logn_attention_scale"])?;
    require(value, "layer_norm_type", norm_type, &["layer_norm"])?;
    require(value, "position_embedding_type", position_type, &["rope"])?;
    refuse(value, value["pack_qkv"] == false, "pack_qkv false")?;
    let activation = activation(value, "hidden_act", &config.hidden_act)?;
    let rotation = rotation(value, head_size(config.hidden_size, config.num_attention_heads)?)?;
    let layers = (0..config.num_hidden_layers).map(|index| layer(&config, index, activation)).collect();
    Ok(Plan {
        prefixes: &["new.", "gte."],
        classification: Some(first_token_classification("pooler.dense", "classifier", config.hidden_size)),
        ..encoder(value, &config, "embeddings.LayerNorm", Position::Rotary(rotation), layers)?
    })
}

fn layer(config: &EncoderConfig, index: usize, activation: Activation) -> LayerPlan {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let tensors = LayerTensors { prefix: format!("encoder.layer.{index}"), epsilon: config.layer_norm_eps };
    let up_gate = tensors.matrix_part("mlp.up_gate_proj", [2 * inner, hidden]);
    LayerPlan {
        mixer: fused_attention(
            tensors.biased_part("attention.qkv_proj", [3 * hidden, hidden]),
            tensors.biased_part("attention.o_proj", [hidden, hidden]),
        )
        .into(),
        attention_norms: tensors.layer_norm_after("attn_ln", hidden),
        mlp: MlpPlan::Gated {
            gate: up_gate.clone().rows(inner..2 * inner),
            up: up_gate.rows(0..inner),
            down: tensors.biased_part("mlp.down_proj", [hidden, inner]).into(),
            activation,
        },
        mlp_norms: tensors.layer_norm_after("mlp_ln", hidden),
    }
}

/// The remote code's `ntk` multiplies the base by the factor and divides the frequencies by a power of the
/// factor, for texts of any length.
fn rotation(value: &Value, size: usize) -> Result<Rope> {
    let scaling = &value["rope_scaling"];
    if scaling["type"] != "ntk" {
        // The class in transformers has another default than the code in repositories.
        let base = if value["model_type"] == "gte" { 160_000.0 } else { 10_000.0 };
        return rope(value, size, Some(base));
    }
    refuse(value, !scaling["mixed_b"].is_null(), "mixed_b in rope_scaling")?;
    let (Some(factor), Some(theta)) = (scaling["factor"].as_f64(), value["rope_theta"].as_f64()) else {
        let message = "config.json: rope_scaling of type ntk needs `factor` and `rope_theta`";
        return Err(BackendError::Load(message.to_owned()));
    };
    let plain = rope(&Value::Null, size, Some(theta * factor))?;
    Ok(Rope { scaling: Scaling::Linear { factor: factor.powf(2.0 / size as f64) }, ..plain })
}
