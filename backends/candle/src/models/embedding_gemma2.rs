//! EmbeddingGemma 2 (transformers, `modeling_embedding_gemma2.py`), for texts only: layers that attend to the
//! whole text have other heads than those with a window, values are normalised, and each layer has a third
//! block, in which the token's embedding gates the residual stream.
//!
//! Unlike in Gemma 1 to 3, norms multiply by the stored weights, scores are not divided, and the window is a
//! radius.

use super::{
    activation, names, parse,
    parts::{LayerTensors, kind_indices},
    qwen_vl, refuse,
    rotary::rope_of,
};
use crate::{
    attention::{Heads, Mask},
    operations::Result,
    plan::{
        AttentionPlan, Embeddings, HeadNormsPlan, InputGatePlan, LayerPlan, MatrixPart, MlpPlan, NormPlan,
        NormsPlan, Plan, Position, StepPlan, View,
    },
};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use text_embeddings_backend_core::{Activation, BackendError};

/// The fields of the text model's settings.
#[derive(Debug, Deserialize)]
struct TextConfig {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: usize,
    rms_norm_eps: f32,
    max_position_embeddings: Option<usize>,
    hidden_activation: Option<String>,
    attention_bias: Option<bool>,
    sliding_window: usize,
    layer_types: Vec<String>,
    /// The heads of the layers that differ from the others, by the layer's index.
    #[serde(default)]
    per_layer_config: BTreeMap<String, LayerHeadsConfig>,
    hidden_size_per_layer_input: usize,
    embedding_dim: usize,
    pad_token_id: Option<i64>,
}

/// The heads of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct LayerHeadsConfig {
    head_dim: Option<usize>,
    num_key_value_heads: Option<usize>,
}

const WORDS: &str = "embed_tokens.weight";
/// Prefixes of the text model's tensor names.
const PREFIXES: &[&str] = &["model.language_model.", "language_model.", "model."];
/// Prefixes of the tensors of images, videos and sounds.
const OTHER_INPUTS: [&str; 4] = ["vision_tower.", "audio_tower.", "embed_vision.", "embed_audio."];
/// The kinds of layers, as `layer_types` names them, and the bases of their rotary positions.
const KINDS: [(&str, f64); 2] = [("full_attention", 1_000_000.0), ("sliding_attention", 10_000.0)];
/// The longest input that the authors recommend, although there are more positions.
const MAX_TOKENS: usize = 8192;

pub(super) fn text_plan(value: &Value) -> Result<Plan> {
    let text = qwen_vl::text_config(value);
    let config: TextConfig = parse(&text)?;
    refuse(value, config.attention_bias == Some(true), "attention_bias true")?;
    let name = config.hidden_activation.as_deref().unwrap_or("gelu_pytorch_tanh");
    let activation = activation(value, "hidden_activation", name)?;
    let kinds = layer_kinds(value, &config)?;
    let (hidden, epsilon) = (config.hidden_size, config.rms_norm_eps);
    let views = plan_views(&text, &config, &kinds)?;
    let layers: Vec<GemmaLayer<'_>> = kinds
        .iter()
        .enumerate()
        .map(|(index, &kind)| GemmaLayer { config: &config, index, kind, activation })
        .collect();
    let positions = config.max_position_embeddings.unwrap_or(MAX_TOKENS).min(MAX_TOKENS);
    let base =
        Plan::base(WORDS, [config.vocab_size, hidden]).with_limits(Some(positions), config.pad_token_id);
    let projection = MatrixPart::new("embedding_projection", [config.embedding_dim, hidden]).biased(false);
    Ok(Plan {
        prefixes: PREFIXES,
        ignored: OTHER_INPUTS
            .iter()
            .flat_map(|name| [(*name).to_owned(), format!("model.{name}")])
            .chain(names(&["lm_head."]))
            .collect(),
        embeddings: Embeddings { scale: (hidden as f32).sqrt(), ..base.embeddings },
        layers: layers.iter().map(|layer| layer.plan_blocks(views[layer.kind].heads)).collect(),
        input_gates: layers.iter().map(GemmaLayer::plan_gate).collect(),
        views,
        final_norm: Some(NormPlan::rms("norm", hidden, epsilon)),
        vector_steps: vec![StepPlan::Dense(projection.into(), Activation::Identity)],
        exceeds_float16: true,
        ..base
    })
}

/// For each layer, the index of its kind.
fn layer_kinds(value: &Value, config: &TextConfig) -> Result<Vec<usize>> {
    kind_indices(value, &config.layer_types, &KINDS.map(|(name, _)| name), config.num_hidden_layers)
}

/// The two kinds of attention. All layers of a kind must have the same heads.
fn plan_views(text: &Value, config: &TextConfig, kinds: &[usize]) -> Result<Vec<View>> {
    let window = Mask { before: config.sliding_window, after: config.sliding_window };
    let mut views = Vec::with_capacity(KINDS.len());
    for (kind, ((name, theta), mask)) in KINDS.into_iter().zip([Mask::FULL, window]).enumerate() {
        let mut of_kind =
            (0..kinds.len()).filter(|&layer| kinds[layer] == kind).map(|layer| config.layer_heads(layer));
        let heads = of_kind.next().unwrap_or_else(|| config.layer_heads(0));
        let Heads { queries, keys, size } = heads;
        let is_whole = keys > 0 && queries > 0 && queries.is_multiple_of(keys) && size.is_multiple_of(2);
        if !is_whole || size == 0 || of_kind.any(|other| other != heads) {
            return Err(BackendError::Load(format!(
                "config.json: all layers of the kind {name} must have the same heads, of an even size, and \
                 num_attention_heads must be a multiple of num_key_value_heads"
            )));
        }
        let rope = rope_of(text, &[&text["rope_parameters"][name]], size, Some(theta))?;
        views.push(View { divisor: 1.0, ..View::new(heads, mask, Position::Rotary(rope)) });
    }
    Ok(views)
}

impl TextConfig {
    /// The heads of a layer.
    fn layer_heads(&self, layer: usize) -> Heads {
        let own = self.per_layer_config.get(&layer.to_string());
        Heads {
            queries: self.num_attention_heads,
            keys: own.and_then(|own| own.num_key_value_heads).unwrap_or(self.num_key_value_heads),
            size: own.and_then(|own| own.head_dim).unwrap_or(self.head_dim),
        }
    }
}

/// A layer, for its plan.
struct GemmaLayer<'a> {
    config: &'a TextConfig,
    index: usize,
    /// The index of its kind of attention.
    kind: usize,
    activation: Activation,
}

impl GemmaLayer<'_> {
    fn layer_tensors(&self) -> LayerTensors {
        LayerTensors { prefix: format!("layers.{}", self.index), epsilon: self.config.rms_norm_eps }
    }

    /// The norms before and after a block.
    fn norms_around(&self, before: &str, after: &str) -> NormsPlan {
        let (tensors, hidden) = (self.layer_tensors(), self.config.hidden_size);
        NormsPlan { output: Some(tensors.rms_norm(after, hidden)), ..tensors.norm_before(before, hidden) }
    }

    /// Attention and the MLP.
    fn plan_blocks(&self, Heads { queries, keys, size }: Heads) -> LayerPlan {
        let (tensors, config) = (self.layer_tensors(), self.config);
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let query = tensors.matrix_part("self_attn.q_proj", [queries * size, hidden]);
        let output = tensors.matrix_part("self_attn.o_proj", [hidden, queries * size]);
        let [key, value] = ["k_proj", "v_proj"]
            .map(|name| tensors.matrix_part(&format!("self_attn.{name}"), [keys * size, hidden]));
        LayerPlan {
            mixer: AttentionPlan {
                view: self.kind,
                norms: HeadNormsPlan::EachHead {
                    query: tensors.rms_norm("self_attn.q_norm", size),
                    key: tensors.rms_norm("self_attn.k_norm", size),
                    value_epsilon: Some(config.rms_norm_eps),
                },
                ..AttentionPlan::from_matrices(query, [key, value], output)
            }
            .into(),
            attention_norms: self.norms_around("input_layernorm", "post_attention_layernorm"),
            mlp: MlpPlan::Gated {
                gate: tensors.matrix_part("mlp.gate_proj", [inner, hidden]),
                up: tensors.matrix_part("mlp.up_proj", [inner, hidden]),
                down: tensors.matrix_part("mlp.down_proj", [hidden, inner]).into(),
                activation: self.activation,
            },
            mlp_norms: self.norms_around("pre_feedforward_layernorm", "post_feedforward_layernorm"),
        }
    }

    /// The third block. The products of all layers with the embedding are one stored matrix, and they share
    /// their norm. The factor hidden^−½ of the product is left out: only the norm's epsilon depends on it.
    fn plan_gate(&self) -> InputGatePlan {
        let (tensors, config) = (self.layer_tensors(), self.config);
        let (hidden, inner) = (config.hidden_size, config.hidden_size_per_layer_input);
        let all = LayerTensors { prefix: "ple".to_owned(), epsilon: config.rms_norm_eps * hidden as f32 };
        let rows = self.index * inner..(self.index + 1) * inner;
        let projection =
            all.matrix_part("per_layer_model_projection", [config.num_hidden_layers * inner, hidden]);
        InputGatePlan {
            projection: projection.rows(rows).into(),
            projection_norm: all.rms_norm("per_layer_projection_norm", inner),
            gate: tensors.matrix_part("ple_block.per_layer_input_gate", [inner, hidden]).into(),
            output: tensors.matrix_part("ple_block.per_layer_projection", [hidden, inner]).into(),
            norm: tensors.rms_norm("ple_block.post_per_layer_input_norm", hidden),
            activation: self.activation,
            scalar: tensors.tensor_name("layer_scalar"),
        }
    }
}
