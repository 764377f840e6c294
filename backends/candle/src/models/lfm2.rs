//! LFM2 (transformers, `modeling_lfm2.py`): most layers have a gated convolution over three tokens, the
//! others attention. In the bidirectional form (LFM2.5-Embedding), tokens attend to the whole text, and the
//! convolution has the token in its middle.

use super::{
    head_size, names, parse,
    parts::{LayerTensors, kind_indices},
    refuse,
    rotary::rope,
};
use crate::{
    attention::{Heads, Mask},
    load::LM_HEAD,
    operations::Result,
    plan::{
        AttentionPlan, HeadNormsPlan, LayerPlan, MixerPlan, MlpPlan, NormPlan, Plan, Position,
        ShortConvolutionPlan, View,
    },
};
use serde::Deserialize;
use serde_json::Value;
use text_embeddings_backend_core::{Activation, BackendError};
use text_embeddings_checkpoint::gguf::CONVERTED;

/// The fields of `config.json`.
#[derive(Debug, Deserialize)]
struct Lfm2Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: Option<usize>,
    /// The older name, which takes precedence.
    block_ff_dim: Option<usize>,
    block_auto_adjust_ff_dim: Option<bool>,
    block_ffn_dim_multiplier: Option<f64>,
    block_multiple_of: Option<usize>,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    norm_eps: f32,
    #[serde(rename = "conv_L_cache")]
    taps: Option<usize>,
    conv_bias: Option<bool>,
    layer_types: Option<Vec<String>>,
    full_attn_idxs: Option<Vec<usize>>,
    max_position_embeddings: Option<usize>,
    tie_embedding: Option<bool>,
    tie_word_embeddings: Option<bool>,
    pad_token_id: Option<i64>,
}

const WORDS: &str = "embed_tokens.weight";
/// The kinds of layers, as `layer_types` names them.
const LAYER_TYPES: [&str; 2] = ["conv", "full_attention"];
/// The longest convolution.
const MAX_TAPS: usize = 64;

pub(super) fn hybrid_plan(value: &Value) -> Result<Plan> {
    let config: Lfm2Config = parse(value)?;
    let is_bidirectional = is_bidirectional(value);
    let taps = config.taps.unwrap_or(3);
    refuse(value, config.conv_bias == Some(true), "conv_bias true")?;
    refuse(value, !is_bidirectional && value["is_causal"] == false, "is_causal false")?;
    refuse(value, taps == 0 || taps > MAX_TAPS, &format!("conv_L_cache {taps}"))?;
    let has_middle = !taps.is_multiple_of(2);
    refuse(value, is_bidirectional && !has_middle, &format!("conv_L_cache {taps} without a middle"))?;
    let (hidden, queries) = (config.hidden_size, config.num_attention_heads);
    let keys = config.num_key_value_heads.unwrap_or(queries);
    let heads = Heads { queries, keys, size: head_size(hidden, queries)? };
    if keys == 0 || !queries.is_multiple_of(keys) || !heads.size.is_multiple_of(2) {
        return Err(BackendError::Load(
            "config.json: heads must have an even size, and num_attention_heads must be a multiple of \
             num_key_value_heads"
                .to_owned(),
        ));
    }
    let theta = value["rope_theta"].as_f64().or(Some(1_000_000.0));
    let rope = rope(value, heads.size, theta)?;
    let mask = if is_bidirectional { Mask::FULL } else { Mask::CAUSAL };
    let layers = layer_kinds(value, &config)?.into_iter().enumerate();
    let layer = Layers { config: &config, heads, taps, is_bidirectional, value };
    let tied = config.tie_embedding.or(config.tie_word_embeddings).unwrap_or(true);
    Ok(Plan {
        prefixes: &["model."],
        ignored: names(&["lm_head."]),
        views: vec![View::new(heads, mask, Position::Rotary(rope))],
        layers: layers.map(|(index, attends)| layer.plan_layer(index, attends)).collect(),
        final_norm: Some(NormPlan::rms("embedding_norm", hidden, config.norm_eps)),
        output_embedding: if tied { WORDS } else { LM_HEAD },
        ..Plan::base(WORDS, [config.vocab_size, hidden])
            .with_limits(config.max_position_embeddings, config.pad_token_id)
    })
}

/// Whether the class is the bidirectional one, whose code may be in the repository.
fn is_bidirectional(value: &Value) -> bool {
    let architectures = value["architectures"].as_array().into_iter().flatten();
    let code = value["auto_map"].as_object().into_iter().flat_map(|map| map.values());
    let mut names = architectures.chain(code).chain([&value["model_type"]]).filter_map(Value::as_str);
    names.any(|name| name.to_lowercase().contains("bidirectional"))
}

/// For each layer, whether it has attention.
fn layer_kinds(value: &Value, config: &Lfm2Config) -> Result<Vec<bool>> {
    let layers = config.num_hidden_layers;
    let Some(kinds) = &config.layer_types else {
        let attending = config.full_attn_idxs.as_ref();
        return Ok((0..layers)
            .map(|layer| attending.is_none_or(|indices| indices.contains(&layer)))
            .collect());
    };
    let indices = kind_indices(value, kinds, &LAYER_TYPES, layers)?;
    Ok(indices.into_iter().map(|index| index == 1).collect())
}

impl Lfm2Config {
    /// The width of the MLPs.
    fn inner_size(&self) -> usize {
        let given = self.block_ff_dim.or(self.intermediate_size).unwrap_or(0);
        if self.block_auto_adjust_ff_dim == Some(false) {
            return given;
        }
        let multiple = self.block_multiple_of.unwrap_or(256).max(1);
        let scaled = self.block_ffn_dim_multiplier.unwrap_or(1.0) * (2 * given / 3) as f64;
        (scaled as usize).next_multiple_of(multiple)
    }
}

/// The settings that all layers share.
struct Layers<'a> {
    value: &'a Value,
    config: &'a Lfm2Config,
    heads: Heads,
    taps: usize,
    is_bidirectional: bool,
}

impl Layers<'_> {
    fn plan_layer(&self, index: usize, attends: bool) -> LayerPlan {
        let (hidden, inner) = (self.config.hidden_size, self.config.inner_size());
        let tensors = LayerTensors { prefix: format!("layers.{index}"), epsilon: self.config.norm_eps };
        LayerPlan {
            mixer: if attends {
                MixerPlan::Attention(self.plan_attention(&tensors))
            } else {
                MixerPlan::Convolution(self.plan_convolution(&tensors))
            },
            attention_norms: tensors.norm_before("operator_norm", hidden),
            mlp: MlpPlan::Gated {
                gate: tensors.matrix_part("feed_forward.w1", [inner, hidden]),
                up: tensors.matrix_part("feed_forward.w3", [inner, hidden]),
                down: tensors.matrix_part("feed_forward.w2", [hidden, inner]).into(),
                activation: Activation::Silu,
            },
            mlp_norms: tensors.norm_before("ffn_norm", hidden),
        }
    }

    fn plan_attention(&self, tensors: &LayerTensors) -> AttentionPlan {
        let (hidden, Heads { queries, keys, size }) = (self.config.hidden_size, self.heads);
        let [key, value] = ["k_proj", "v_proj"]
            .map(|name| tensors.matrix_part(&format!("self_attn.{name}"), [keys * size, hidden]));
        let query = tensors.matrix_part("self_attn.q_proj", [queries * size, hidden]);
        let output = tensors.matrix_part("self_attn.out_proj", [hidden, queries * size]);
        AttentionPlan {
            norms: HeadNormsPlan::EachHead {
                query: tensors.rms_norm("self_attn.q_layernorm", size),
                key: tensors.rms_norm("self_attn.k_layernorm", size),
                value_epsilon: None,
            },
            ..AttentionPlan::from_matrices(query, [key, value], output)
        }
    }

    fn plan_convolution(&self, tensors: &LayerTensors) -> ShortConvolutionPlan {
        let hidden = self.config.hidden_size;
        let [before, after, input] = [0, 1, 2].map(|part| {
            let whole = tensors.matrix_part("conv.in_proj", [3 * hidden, hidden]);
            whole.rows(part * hidden..(part + 1) * hidden)
        });
        ShortConvolutionPlan {
            input: [before, input].into(),
            gate: after.into(),
            output: tensors.matrix_part("conv.out_proj", [hidden, hidden]).into(),
            taps_tensor: tensors.tensor_name("conv.conv.weight"),
            taps: self.taps,
            width: hidden,
            is_centred: self.is_bidirectional,
            is_converted: !self.value[CONVERTED].is_null(),
        }
    }
}
