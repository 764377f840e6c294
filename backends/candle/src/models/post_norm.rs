//! The body of BERT and of encoders that differ from it in a few places: the sum of word, position and type
//! embeddings, its norm, then layers with norms after their blocks.
//!
//! Input: a configuration with BERT's names, and the names of a layer's tensors. Output: a plan without
//! heads, which each architecture completes.

use super::{activation, head_size, parts::LayerTensors, refuse, require};
use crate::{
    attention::{Heads, Mask},
    operations::Result,
    plan::{
        AttentionPlan, Embeddings, LayerPlan, MatrixPart, MlpPlan, NormPlan, Plan, Position, RowIndex,
        TablePlan, View,
    },
};
use serde::Deserialize;
use serde_json::Value;
use text_embeddings_backend_core::Activation;

/// The fields of `config.json`.
#[derive(Debug, Deserialize)]
pub(super) struct EncoderConfig {
    pub(super) vocab_size: usize,
    pub(super) hidden_size: usize,
    pub(super) intermediate_size: usize,
    pub(super) num_hidden_layers: usize,
    pub(super) num_attention_heads: usize,
    pub(super) max_position_embeddings: usize,
    /// The number of token types; 0 without a table of token types.
    #[serde(default)]
    pub(super) type_vocab_size: usize,
    pub(super) layer_norm_eps: f32,
    pub(super) hidden_act: String,
    pub(super) position_embedding_type: Option<String>,
    #[serde(default)]
    pub(super) is_decoder: bool,
    pub(super) pad_token_id: Option<i64>,
}

impl EncoderConfig {
    /// RoBERTa's row for a text's first token: positions up to the padding token's id are never used.
    pub(super) fn first_position(&self) -> usize {
        usize::try_from(self.pad_token_id.unwrap_or(1).saturating_add(1)).unwrap_or(0)
    }
}

/// The names of a layer's tensors, relative to the layer's name.
pub(super) struct LayerNames {
    /// The name of a layer is `LAYERS.INDEX`.
    pub(super) layers: &'static str,
    pub(super) query: &'static str,
    pub(super) key: &'static str,
    pub(super) value: &'static str,
    pub(super) output: &'static str,
    pub(super) attention_norm: &'static str,
    pub(super) up: &'static str,
    pub(super) down: &'static str,
    pub(super) mlp_norm: &'static str,
}

/// BERT's names.
pub(super) const BERT: LayerNames = LayerNames {
    layers: "encoder.layer",
    query: "attention.self.query",
    key: "attention.self.key",
    value: "attention.self.value",
    output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    up: "intermediate.dense",
    down: "output.dense",
    mlp_norm: "output.LayerNorm",
};

/// The name of the table of word embeddings.
pub(super) const WORDS: &str = "embeddings.word_embeddings.weight";

/// The plan without heads. `offset` is the position of the first token.
pub(super) fn encoder(
    value: &Value,
    config: &EncoderConfig,
    offset: usize,
    names: &LayerNames,
) -> Result<Plan> {
    let position_type = config.position_embedding_type.as_deref().unwrap_or("absolute");
    require(value, "position_embedding_type", position_type, &["absolute"])?;
    refuse(value, config.is_decoder, "is_decoder true")?;
    let (hidden, heads) = (config.hidden_size, config.num_attention_heads);
    let heads = Heads { queries: heads, keys: heads, size: head_size(hidden, heads)? };
    let activation = activation(value, "hidden_act", &config.hidden_act)?;
    let positions = config.max_position_embeddings.saturating_sub(offset);
    let mut base =
        Plan::base(WORDS, [config.vocab_size, hidden]).with_limits(Some(positions), config.pad_token_id);
    let types = if config.type_vocab_size > 1 { RowIndex::Type } else { RowIndex::First };
    for (name, rows, index) in [
        ("position_embeddings", config.max_position_embeddings, RowIndex::Position { offset }),
        ("token_type_embeddings", config.type_vocab_size, types),
    ] {
        if rows > 0 {
            let tensor = format!("embeddings.{name}.weight");
            base.embeddings.tables.push(TablePlan { tensor, shape: [rows, hidden], index });
        }
    }
    Ok(Plan {
        embeddings: Embeddings {
            norm: Some(NormPlan::layer("embeddings.LayerNorm", hidden, config.layer_norm_eps)),
            ..base.embeddings
        },
        views: vec![View::new(heads, Mask::FULL, Position::None)],
        layers: (0..config.num_hidden_layers).map(|index| layer(config, names, index, activation)).collect(),
        ..base
    })
}

/// Makes the embeddings narrower than the layers. The matrix `projection` widens them.
pub(super) fn narrow_embeddings(plan: &mut Plan, width: usize, projection: &str) {
    plan.embeddings.tables.iter_mut().for_each(|table| table.shape[1] = width);
    plan.embeddings.norm.iter_mut().for_each(|norm| norm.size = width);
    plan.embeddings.projection = Some(MatrixPart::new(projection, [plan.hidden, width]).into());
}

fn layer(config: &EncoderConfig, names: &LayerNames, index: usize, activation: Activation) -> LayerPlan {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let prefix = format!("{}.{index}", names.layers);
    let tensors = LayerTensors { prefix, epsilon: config.layer_norm_eps };
    let [query, key, value, output] = [names.query, names.key, names.value, names.output]
        .map(|name| tensors.biased_part(name, [hidden, hidden]));
    LayerPlan {
        mixer: AttentionPlan::from_matrices(query, [key, value], output).into(),
        attention_norms: tensors.layer_norm_after(names.attention_norm, hidden),
        mlp: MlpPlan::Plain {
            up: tensors.biased_part(names.up, [inner, hidden]).into(),
            down: tensors.biased_part(names.down, [hidden, inner]).into(),
            activation,
        },
        mlp_norms: tensors.layer_norm_after(names.mlp_norm, hidden),
    }
}
