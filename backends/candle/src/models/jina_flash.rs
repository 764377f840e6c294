//! XLM-RoBERTa under the tensor names of Jina's flash implementation: jina-reranker-v2-base-multilingual, and
//! jina-embeddings-v3 with rotary positions and adapters (transformers has it without adapters in
//! `modeling_jina_embeddings_v3.py`).

use super::{
    activation, head_size, parse,
    parts::{LayerTensors, encoder, first_token_classification, fused_attention},
    post_norm::EncoderConfig,
    rotary::rope,
    unsupported_value,
};
use crate::{
    operations::Result,
    plan::{AdapterLayout, Adapters, LayerPlan, MlpPlan, Plan, Position, RowIndex, TablePlan},
};
use serde::Deserialize;
use serde_json::Value;
use std::num::NonZeroUsize;
use text_embeddings_backend_core::Activation;

/// The adapters of jina-embeddings-v3.
#[derive(Debug, Deserialize)]
struct Lora {
    #[serde(rename = "lora_adaptations")]
    tasks: Vec<String>,
    #[serde(rename = "lora_rank")]
    rank: NonZeroUsize,
    #[serde(rename = "lora_alpha")]
    alpha: f32,
}

pub(super) fn plan(value: &Value) -> Result<Plan> {
    let config: EncoderConfig = parse(value)?;
    let hidden = config.hidden_size;
    let activation = activation(value, "hidden_act", &config.hidden_act)?;
    // The class in transformers has other defaults than the code in repositories.
    let is_v3 = value["model_type"] == "jina_embeddings_v3";
    let (default, default_base) = if is_v3 { ("rotary", 20_000.0) } else { ("absolute", 10_000.0) };
    let is_rotary = match config.position_embedding_type.as_deref().unwrap_or(default) {
        "rotary" => true,
        "absolute" => false,
        other => {
            return Err(unsupported_value(value, "position_embedding_type", other, &["rotary", "absolute"]));
        }
    };
    let position = if is_rotary {
        let base = value["rotary_emb_base"].as_f64().unwrap_or(default_base);
        Position::Rotary(rope(value, head_size(hidden, config.num_attention_heads)?, Some(base))?)
    } else {
        Position::None
    };
    let layers = (0..config.num_hidden_layers).map(|index| layer(&config, index, activation)).collect();
    let mut plan = encoder(value, &config, "emb_ln", position, layers)?;
    let offset = config.first_position();
    if !is_rotary {
        plan.embeddings.tables.push(TablePlan {
            tensor: "embeddings.position_embeddings.weight".to_owned(),
            shape: [config.max_position_embeddings, hidden],
            index: RowIndex::Position { offset },
        });
    }
    Ok(Plan {
        prefixes: &["roberta."],
        max_length: Some(config.max_position_embeddings.saturating_sub(offset)),
        classification: Some(first_token_classification("classifier.dense", "classifier.out_proj", hidden)),
        adapters: adapters(value)?,
        ..plan
    })
}

fn layer(config: &EncoderConfig, index: usize, activation: Activation) -> LayerPlan {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let tensors = LayerTensors { prefix: format!("encoder.layers.{index}"), epsilon: config.layer_norm_eps };
    LayerPlan {
        mixer: fused_attention(
            tensors.biased_part("mixer.Wqkv", [3 * hidden, hidden]),
            tensors.biased_part("mixer.out_proj", [hidden, hidden]),
        )
        .into(),
        attention_norms: tensors.layer_norm_after("norm1", hidden),
        mlp: MlpPlan::Plain {
            up: tensors.biased_part("mlp.fc1", [inner, hidden]).into(),
            down: tensors.biased_part("mlp.fc2", [hidden, inner]).into(),
            activation,
        },
        mlp_norms: tensors.layer_norm_after("norm2", hidden),
    }
}

/// The adapters, if the checkpoint has some.
fn adapters(value: &Value) -> Result<Option<Adapters>> {
    if value["lora_adaptations"].is_null() || value["load_trained_adapters"] == false {
        return Ok(None);
    }
    let Lora { tasks, rank, alpha } = parse(value)?;
    Ok(Some(Adapters {
        tasks,
        task: None,
        layout: AdapterLayout::Stacked { rank: rank.get() },
        scale: alpha / rank.get() as f32,
        token_rows: Vec::new(),
    }))
}
