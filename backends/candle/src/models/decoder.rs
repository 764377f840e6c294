//! Decoders similar to Llama (transformers): pre-norm layers with rotary positions and a gated MLP. A
//! [`DecoderFamily`] describes the differences between architectures as data.

use super::{
    activation, names, parse,
    parts::{LayerTensors, kind_indices},
    rotary::{rope_of, rope_settings},
    score_on_last_token,
};
use crate::{
    attention::{Heads, Mask},
    load::LM_HEAD,
    operations::Result,
    plan::{
        AttentionPlan, Embeddings, HeadNormsPlan, LayerPlan, MlpPlan, NormPlan, NormsPlan, Plan, Position,
        View,
    },
};
use serde::Deserialize;
use serde_json::Value;
use text_embeddings_backend_core::{Activation, BackendError};
use text_embeddings_checkpoint::gguf::CONVERTED;

/// The fields of `config.json`.
#[derive(Debug, Deserialize)]
pub(super) struct DecoderConfig {
    pub(super) vocab_size: usize,
    pub(super) hidden_size: usize,
    intermediate_size: usize,
    pub(super) num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    pub(super) rms_norm_eps: f32,
    max_position_embeddings: Option<usize>,
    pub(super) sliding_window: Option<usize>,
    pub(super) layer_types: Option<Vec<String>>,
    pub(super) use_bidirectional_attention: Option<bool>,
    pub(super) is_causal: Option<bool>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    tie_word_embeddings: Option<bool>,
    pad_token_id: Option<i64>,
}

/// The architecture whose norms a decoder has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mould {
    /// Norms before attention and before the MLP.
    Llama,
    /// Like Llama, with one added to the norms' weights unless the file holds the sums.
    PlusOne,
    /// Like that, and embeddings are multiplied by the square root of their length.
    Gemma,
    /// Like Gemma, with further norms after attention and after the MLP.
    Gemma2,
}

/// The properties in which a family of decoders differs from Llama.
pub(super) struct DecoderFamily {
    /// The activation's name in `config.json`.
    pub(super) activation: String,
    /// Whether queries, keys and values have biases even if `attention_bias` is false.
    pub(super) query_bias: bool,
    /// Whether each head of queries and keys is normalised.
    pub(super) head_norms: bool,
    pub(super) mould: Mould,
    /// Whether tokens also attend to later tokens.
    pub(super) bidirectional: bool,
    /// For each layer, whether it attends to a window only.
    pub(super) sliding: Vec<bool>,
    pub(super) window: Mask,
    /// The rotary base if `config.json` names none: for all layers, then for layers with a window.
    pub(super) theta: [Option<f64>; 2],
    /// The square of the number by which attention scores are divided. The default is the head size.
    pub(super) divisor: Option<f32>,
    pub(super) soft_cap: Option<f32>,
    /// The matrices that have biases if the configuration says so. transformers reads its fields in some
    /// families only.
    pub(super) biases: OptionalBiases,
    /// The bound of a token's logit.
    pub(super) logit_bound: Option<f32>,
}

/// The matrices whose biases are a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OptionalBiases {
    Nowhere,
    /// Attention's, by `attention_bias`.
    Attention,
    /// Attention's, and the MLP's by `mlp_bias`.
    Everywhere,
}

impl DecoderFamily {
    fn is_gemma(&self) -> bool {
        matches!(self.mould, Mould::Gemma | Mould::Gemma2)
    }

    pub(super) fn llama(config: &DecoderConfig, activation: &str) -> Self {
        Self {
            activation: activation.to_owned(),
            query_bias: false,
            head_norms: false,
            mould: Mould::Llama,
            bidirectional: config.is_causal == Some(false),
            sliding: vec![false; config.num_hidden_layers],
            window: Mask::CAUSAL,
            theta: [None; 2],
            divisor: None,
            soft_cap: None,
            biases: OptionalBiases::Everywhere,
            logit_bound: None,
        }
    }
}

impl DecoderConfig {
    /// Reads the fields and checks the sizes.
    pub(super) fn read(value: &Value) -> Result<Self> {
        let config: Self = parse(value)?;
        let heads = config.heads();
        let sizes = [config.hidden_size, heads.queries, heads.keys, heads.size, config.num_hidden_layers];
        if sizes.contains(&0) || !heads.queries.is_multiple_of(heads.keys) || !heads.size.is_multiple_of(2) {
            return Err(BackendError::Load(
                "config.json: sizes must be positive, head_dim even, and num_attention_heads a multiple of \
                 num_key_value_heads"
                    .to_owned(),
            ));
        }
        let known = ["full_attention", "sliding_attention"];
        if let Some(kinds) = &config.layer_types {
            kind_indices(value, kinds, &known, config.num_hidden_layers)?;
        }
        Ok(config)
    }

    fn heads(&self) -> Heads {
        let queries = self.num_attention_heads;
        let size = self.head_dim.unwrap_or_else(|| self.hidden_size.checked_div(queries).unwrap_or(0));
        Heads { queries, keys: self.num_key_value_heads.unwrap_or(queries), size }
    }

    /// For each layer, whether it attends to a window: by `layer_types`, or else by `rule`. Always false
    /// without a window.
    pub(super) fn sliding(&self, rule: impl Fn(usize) -> bool) -> Vec<bool> {
        let layers = 0..self.num_hidden_layers;
        layers
            .map(|layer| match &self.layer_types {
                _ if self.sliding_window.is_none() => false,
                Some(kinds) => kinds.get(layer).is_some_and(|kind| kind == "sliding_attention"),
                None => rule(layer),
            })
            .collect()
    }

    /// The window of causal models: the token itself and the tokens before it. If `is_causal` is false, as
    /// many tokens before and after it.
    pub(super) fn causal_window(&self) -> Mask {
        let size = self.sliding_window.unwrap_or(usize::MAX);
        if self.is_causal == Some(false) {
            return Mask { before: size, after: size };
        }
        Mask { before: size.saturating_sub(1), after: 0 }
    }
}

/// The configuration with these values for the fields that it does not mention: when transformers saves a
/// model, it leaves out what equals the default of the class. A converted file is complete.
pub(super) fn with_defaults(value: &Value, defaults: Value) -> Value {
    let (Value::Object(given), Value::Object(mut all)) = (value, defaults) else { return value.clone() };
    if given.contains_key(CONVERTED) {
        return value.clone();
    }
    all.extend(given.clone());
    Value::Object(all)
}

const WORDS: &str = "embed_tokens.weight";

pub(super) fn plan(value: &Value, config: &DecoderConfig, family: &DecoderFamily) -> Result<Plan> {
    let heads = config.heads();
    let hidden = config.hidden_size;
    let activation = activation(value, "hidden_act", &family.activation)?;
    let norm = |name: String, size| NormPlan {
        add_one: family.mould != Mould::Llama && value[CONVERTED].is_null(),
        ..NormPlan::rms(name, size, config.rms_norm_eps)
    };
    let view = |mask: Mask, parameters: &[&Value], theta| -> Result<View> {
        Ok(View {
            heads,
            mask,
            position: Position::Rotary(rope_of(value, parameters, heads.size, theta)?),
            divisor: family.divisor.unwrap_or(heads.size as f32).sqrt(),
            soft_cap: family.soft_cap,
        })
    };
    let (settings, kinds) = (rope_settings(value), &value["rope_parameters"]);
    let full = if family.bidirectional { Mask::FULL } else { Mask::CAUSAL };
    let theta = value["rope_theta"].as_f64().or(family.theta[0]);
    // If the family has a separate base for windows, that base applies only to them, without scaling, and
    // settings that name no kind of layer do not count.
    let [full_settings, window_settings] = match family.theta[1] {
        Some(_) => ["full_attention", "sliding_attention"].map(|kind| &kinds[kind]),
        None => [settings; 2],
    };
    let mut views = vec![view(full, &[&value["rope_scaling"], full_settings], theta)?];
    if family.sliding.contains(&true) {
        views.push(view(family.window, &[window_settings], family.theta[1].or(theta))?);
    }
    let layers = 0..config.num_hidden_layers;
    let base = Plan::base(WORDS, [config.vocab_size, hidden])
        .with_limits(config.max_position_embeddings, config.pad_token_id);
    // Older files have the frequencies of rotations.
    let buffers = layers.clone().map(|index| format!("layers.{index}.self_attn.rotary_emb."));
    let tied = config.tie_word_embeddings.unwrap_or(family.is_gemma());
    Ok(Plan {
        prefixes: &["model."],
        ignored: names(&["lm_head.", "score."]).into_iter().chain(buffers).collect(),
        embeddings: Embeddings {
            scale: if family.is_gemma() { (hidden as f32).sqrt() } else { 1.0 },
            ..base.embeddings
        },
        views,
        layers: layers.map(|index| layer(config, family, index, activation, &norm)).collect(),
        final_norm: Some(norm("norm".to_owned(), hidden)),
        output_embedding: if tied { WORDS } else { LM_HEAD },
        logit_bound: family.logit_bound,
        classification: Some(score_on_last_token(hidden)),
        exceeds_float16: family.is_gemma(),
        ..base
    })
}

fn layer(
    config: &DecoderConfig,
    family: &DecoderFamily,
    index: usize,
    activation: Activation,
    norm: &impl Fn(String, usize) -> NormPlan,
) -> LayerPlan {
    let Heads { queries, keys, size } = config.heads();
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let output_bias = config.attention_bias == Some(true) && family.biases != OptionalBiases::Nowhere;
    let query_bias = family.query_bias || output_bias;
    let mlp_bias = config.mlp_bias == Some(true) && family.biases == OptionalBiases::Everywhere;
    let tensors = LayerTensors { prefix: format!("layers.{index}"), epsilon: config.rms_norm_eps };
    let norm = |name: &str, size| norm(tensors.tensor_name(name), size);
    let names = if family.mould == Mould::Gemma2 {
        [
            ("input_layernorm", Some("post_attention_layernorm")),
            ("pre_feedforward_layernorm", Some("post_feedforward_layernorm")),
        ]
    } else {
        [("input_layernorm", None), ("post_attention_layernorm", None)]
    };
    let [attention_norms, mlp_norms] = names.map(|(input, output)| NormsPlan {
        output: output.map(|output| norm(output, hidden)),
        ..NormsPlan::before(norm(input, hidden))
    });
    let [query, key, value] =
        [("q_proj", queries), ("k_proj", keys), ("v_proj", keys)].map(|(name, heads)| {
            tensors.biased_part(&format!("self_attn.{name}"), [heads * size, hidden]).biased(query_bias)
        });
    let output = tensors.biased_part("self_attn.o_proj", [hidden, queries * size]).biased(output_bias);
    let [gate, up] = ["mlp.gate_proj", "mlp.up_proj"]
        .map(|name| tensors.biased_part(name, [inner, hidden]).biased(mlp_bias));
    let down = tensors.biased_part("mlp.down_proj", [hidden, inner]).biased(mlp_bias).into();
    LayerPlan {
        mixer: AttentionPlan {
            view: usize::from(family.sliding[index]),
            norms: if family.head_norms {
                HeadNormsPlan::EachHead {
                    query: norm("self_attn.q_norm", size),
                    key: norm("self_attn.k_norm", size),
                    value_epsilon: None,
                }
            } else {
                HeadNormsPlan::None
            },
            ..AttentionPlan::from_matrices(query, [key, value], output)
        }
        .into(),
        attention_norms,
        mlp: MlpPlan::Gated { gate, up, down, activation },
        mlp_norms,
    }
}
