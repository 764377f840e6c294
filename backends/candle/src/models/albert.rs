//! ALBERT (transformers, `modeling_albert.py`): BERT with narrower embeddings, whose layers run several
//! times. The checkpoint has each group of layers once, and so does memory.

use super::{
    names, parse,
    parts::first_token_classification,
    post_norm::{EncoderConfig, LayerNames, encoder, narrow_embeddings},
    refuse,
};
use crate::{operations::Result, plan::Plan};
use serde::Deserialize;
use serde_json::Value;
use text_embeddings_backend_core::BackendError;

/// Settings that only ALBERT has.
#[derive(Debug, Deserialize)]
struct Settings {
    embedding_size: usize,
    num_hidden_groups: Option<usize>,
    inner_group_num: Option<usize>,
}

const NAMES: LayerNames = LayerNames {
    layers: "encoder.albert_layer_groups",
    query: "albert_layers.0.attention.query",
    key: "albert_layers.0.attention.key",
    value: "albert_layers.0.attention.value",
    output: "albert_layers.0.attention.dense",
    attention_norm: "albert_layers.0.attention.LayerNorm",
    up: "albert_layers.0.ffn",
    down: "albert_layers.0.ffn_output",
    mlp_norm: "albert_layers.0.full_layer_layer_norm",
};

pub(super) fn repeated_plan(value: &Value) -> Result<Plan> {
    let (mut config, settings): (EncoderConfig, Settings) = (parse(value)?, parse(value)?);
    let inner = settings.inner_group_num.unwrap_or(1);
    refuse(value, inner != 1, &format!("inner_group_num {inner}"))?;
    let (layers, groups) = (config.num_hidden_layers, settings.num_hidden_groups.unwrap_or(1));
    if groups == 0 || groups > layers {
        return Err(BackendError::Load(format!(
            "config.json: num_hidden_groups {groups} must be between 1 and num_hidden_layers, {layers}"
        )));
    }
    config.num_hidden_layers = groups;
    let mut plan = Plan {
        prefixes: &["albert."],
        ignored: names(&[
            "embeddings.position_ids",
            "pooler.",
            "predictions.",
            "classifier.",
            "sop_classifier.",
        ]),
        classification: Some(first_token_classification("pooler", "classifier", config.hidden_size)),
        // In floating point, as transformers divides.
        repeated: Some(
            (0..layers).map(|layer| (layer as f64 / (layers as f64 / groups as f64)) as usize).collect(),
        ),
        ..encoder(value, &config, 0, &NAMES)?
    };
    narrow_embeddings(&mut plan, settings.embedding_size, "encoder.embedding_hidden_mapping_in");
    Ok(plan)
}
