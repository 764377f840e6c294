//! The encoder of T5 (transformers, `modeling_t5.py`): sentence-t5, gtr-t5. Root-mean-square norms before the
//! blocks, no biases, scores that are not divided, and a bias of scores by distance that all layers share.

use super::{activation, names, parse, parts::LayerTensors, refuse};
use crate::{
    attention::{Heads, Mask},
    bias::DistanceBuckets,
    operations::Result,
    plan::{AttentionPlan, LayerPlan, MlpPlan, NormPlan, Plan, Position, View},
};
use serde::Deserialize;
use serde_json::Value;
use text_embeddings_backend_core::{Activation, BackendError};

/// The fields of `config.json`.
#[derive(Debug, Deserialize)]
struct T5Config {
    vocab_size: usize,
    d_model: usize,
    d_kv: usize,
    d_ff: usize,
    num_layers: usize,
    num_heads: usize,
    relative_attention_num_buckets: Option<usize>,
    relative_attention_max_distance: Option<usize>,
    layer_norm_epsilon: Option<f32>,
    feed_forward_proj: Option<String>,
    /// These two go before `feed_forward_proj`.
    dense_act_fn: Option<String>,
    is_gated_act: Option<bool>,
    /// The length in training. Distances do not bound the length of a text.
    n_positions: Option<usize>,
    pad_token_id: Option<i64>,
}

const WORDS: &str = "shared.weight";
/// The table of biases, which only the first layer has.
const BIASES: &str = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight";
/// The length in training, if the configuration does not have it.
const POSITIONS: usize = 512;

pub(super) fn encoder_plan(value: &Value) -> Result<Plan> {
    let config: T5Config = parse(value)?;
    // The head of a classifier reads the decoder.
    let mut classes = value["architectures"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let classifier = classes.find(|name| name.ends_with("ForSequenceClassification")).unwrap_or_default();
    refuse(value, !classifier.is_empty(), &format!("the architecture {classifier}"))?;
    let projection = config.feed_forward_proj.as_deref().unwrap_or("relu");
    let gated = projection.strip_prefix("gated-");
    // The first gated models say "gelu" and mean its tanh approximation.
    let implied = if gated == Some("gelu") { "gelu_new" } else { gated.unwrap_or(projection) };
    let (field, name) = match &config.dense_act_fn {
        Some(name) => ("dense_act_fn", name.as_str()),
        None => ("feed_forward_proj", implied),
    };
    let is_gated = config.is_gated_act.unwrap_or(gated.is_some());
    let mlp = T5Mlp { activation: activation(value, field, name)?, is_gated };
    let heads = Heads { queries: config.num_heads, keys: config.num_heads, size: config.d_kv };
    let position = Position::Buckets { table: BIASES.to_owned(), buckets: distance_buckets(&config)? };
    if config.num_heads == 0 || config.d_kv == 0 || config.num_layers == 0 {
        let message = "config.json: num_heads, d_kv and num_layers must be positive";
        return Err(BackendError::Load(message.to_owned()));
    }
    Ok(Plan {
        ignored: names(&["encoder.embed_tokens.", "decoder.", "lm_head."]),
        views: vec![View { divisor: 1.0, ..View::new(heads, Mask::FULL, position) }],
        layers: (0..config.num_layers).map(|index| plan_layer(&config, index, mlp)).collect(),
        final_norm: Some(NormPlan::rms("encoder.final_layer_norm", config.d_model, config.norm_epsilon())),
        exceeds_float16: true,
        ..Plan::base(WORDS, [config.vocab_size, config.d_model])
            .with_limits(Some(config.n_positions.unwrap_or(POSITIONS)), config.pad_token_id)
    })
}

/// The kind of all MLPs.
#[derive(Clone, Copy)]
struct T5Mlp {
    activation: Activation,
    is_gated: bool,
}

impl T5Config {
    fn norm_epsilon(&self) -> f32 {
        self.layer_norm_epsilon.unwrap_or(1e-6)
    }
}

fn distance_buckets(config: &T5Config) -> Result<DistanceBuckets> {
    let count = config.relative_attention_num_buckets.unwrap_or(32);
    let max_distance = config.relative_attention_max_distance.unwrap_or(128);
    if count == 0 || !count.is_multiple_of(4) || max_distance <= count / 4 {
        return Err(BackendError::Load(format!(
            "config.json: relative_attention_num_buckets {count} must be a multiple of 4, and \
             relative_attention_max_distance {max_distance} larger than a quarter of it"
        )));
    }
    Ok(DistanceBuckets { count, max_distance })
}

fn plan_layer(config: &T5Config, index: usize, T5Mlp { activation, is_gated }: T5Mlp) -> LayerPlan {
    let (hidden, inner, width) = (config.d_model, config.d_ff, config.num_heads * config.d_kv);
    let [first, second] = [0, 1].map(|block| LayerTensors {
        prefix: format!("encoder.block.{index}.layer.{block}"),
        epsilon: config.norm_epsilon(),
    });
    let [query, key, value] =
        ["q", "k", "v"].map(|name| first.matrix_part(&format!("SelfAttention.{name}"), [width, hidden]));
    let output = first.matrix_part("SelfAttention.o", [hidden, width]);
    let [plain, gate, up] = ["wi", "wi_0", "wi_1"]
        .map(|name| second.matrix_part(&format!("DenseReluDense.{name}"), [inner, hidden]));
    let down = second.matrix_part("DenseReluDense.wo", [hidden, inner]).into();
    LayerPlan {
        mixer: AttentionPlan::from_matrices(query, [key, value], output).into(),
        attention_norms: first.norm_before("layer_norm", hidden),
        mlp: if is_gated {
            MlpPlan::Gated { gate, up, down, activation }
        } else {
            MlpPlan::Plain { up: plain.into(), down, activation }
        },
        mlp_norms: second.norm_before("layer_norm", hidden),
    }
}
