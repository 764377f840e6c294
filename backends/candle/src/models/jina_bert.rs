//! Jina's BERT with `ALiBi` instead of position embeddings, in two kinds. The first (remote code
//! jina-bert-implementation) has gated MLPs: jina-embeddings-v2-* and jina-reranker-v1-*. The second
//! (jina-bert-v2-qk-post-norm) also normalises queries and keys: jina-embeddings-v2-base-code.

use super::{
    parse,
    parts::{LayerTensors, encoder, first_token_classification},
    post_norm::EncoderConfig,
    unsupported_value,
};
use crate::{
    operations::Result,
    plan::{AttentionPlan, HeadNormsPlan, LayerPlan, MlpPlan, NormPlan, NormsPlan, Plan, Position},
};
use serde_json::Value;
use text_embeddings_backend_core::Activation;
use text_embeddings_checkpoint::gguf::CONVERTED;

pub(super) fn plan(value: &Value) -> Result<Plan> {
    let config: EncoderConfig = parse(value)?;
    // `hidden_act` has no effect.
    let activation = match value["feed_forward_type"].as_str().unwrap_or("original") {
        "geglu" => Activation::Gelu,
        "reglu" => Activation::Relu,
        other => return Err(unsupported_value(value, "feed_forward_type", other, &["geglu", "reglu"])),
    };
    let has_head_norms = has_head_norms(value);
    let is_separate = value[CONVERTED] == "separate";
    let layers = (0..config.num_hidden_layers).map(|index| {
        let prefix = format!("encoder.layer.{index}");
        let tensors = LayerTensors { prefix, epsilon: config.layer_norm_eps };
        let place = LayerPlace { config: &config, tensors, activation, is_separate };
        if has_head_norms { place.normed_layer() } else { place.layer() }
    });
    let layers = layers.collect();
    Ok(Plan {
        prefixes: &["bert."],
        classification: Some(first_token_classification("pooler.dense", "classifier", config.hidden_size)),
        ..encoder(value, &config, "embeddings.LayerNorm", Position::Alibi, layers)?
    })
}

/// Whether the model is of the second kind. The configurations differ only in the repository of the code.
fn has_head_norms(value: &Value) -> bool {
    let places = [&value["_name_or_path"], &value["auto_map"]["AutoConfig"]];
    places.iter().any(|place| place.as_str().is_some_and(|place| place.contains("qk-post-norm")))
}

/// Everything that the parts of a layer share.
struct LayerPlace<'a> {
    config: &'a EncoderConfig,
    tensors: LayerTensors,
    activation: Activation,
    /// Whether gate and up of its MLP are two matrices: [`CONVERTED`].
    is_separate: bool,
}

impl LayerPlace<'_> {
    fn norm(&self, norm: &str) -> NormPlan {
        self.tensors.layer_norm(norm, self.config.hidden_size)
    }

    fn attention(&self, norms: HeadNormsPlan) -> AttentionPlan {
        let [query, key, value, output] = ["self.query", "self.key", "self.value", "output.dense"]
            .map(|name| self.tensors.biased_part(&format!("attention.{name}"), [self.config.hidden_size; 2]));
        AttentionPlan { norms, ..AttentionPlan::from_matrices(query, [key, value], output) }
    }

    /// A gated MLP. The gate is half `gate_half` of its first matrix.
    fn mlp(&self, [first, last]: [&str; 2], gate_half: usize) -> MlpPlan {
        let (hidden, inner) = (self.config.hidden_size, self.config.intermediate_size);
        let [gate, up] = if self.is_separate {
            ["mlp.gate_layer", first].map(|name| self.tensors.matrix_part(name, [inner, hidden]))
        } else {
            let both = self.tensors.matrix_part(first, [2 * inner, hidden]);
            [gate_half, 1 - gate_half].map(|half| both.clone().rows(half * inner..(half + 1) * inner))
        };
        MlpPlan::Gated {
            gate,
            up,
            down: self.tensors.biased_part(last, [hidden, inner]).into(),
            activation: self.activation,
        }
    }

    /// A layer of jina-bert-implementation.
    fn layer(&self) -> LayerPlan {
        LayerPlan {
            mixer: self.attention(HeadNormsPlan::None).into(),
            attention_norms: NormsPlan::after(self.norm("attention.output.LayerNorm")),
            mlp: self.mlp(["mlp.gated_layers", "mlp.wo"], 0),
            mlp_norms: NormsPlan::after(self.norm("mlp.layernorm")),
        }
    }

    /// A layer of jina-bert-v2-qk-post-norm.
    fn normed_layer(&self) -> LayerPlan {
        let [query, key] =
            ["attention.self.layer_norm_q", "attention.self.layer_norm_k"].map(|name| self.norm(name));
        LayerPlan {
            mixer: self.attention(HeadNormsPlan::AllHeads(query, key)).into(),
            attention_norms: NormsPlan {
                sum: Some(self.norm("attention.output.LayerNorm")),
                second_sum: Some(self.norm("layer_norm_1")),
                ..NormsPlan::default()
            },
            mlp: self.mlp(["mlp.up_gated_layer", "mlp.down_layer"], 1),
            mlp_norms: NormsPlan::after(self.norm("layer_norm_2")),
        }
    }
}
