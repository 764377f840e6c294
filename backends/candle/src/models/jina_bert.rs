//! Jina's BERT with `ALiBi` instead of position embeddings, in two kinds. The first (remote code
//! jina-bert-implementation) has gated MLPs: jina-embeddings-v2-* and jina-reranker-v1-*. The second
//! (jina-bert-v2-qk-post-norm) also normalises queries and keys: jina-embeddings-v2-base-code.

use super::{
    parse,
    parts::{classification, encoder},
    post_norm::EncoderConfig,
    unsupported_value,
};
use crate::{
    operations::Result,
    plan::{Attention, HeadNorms, Layer, MatrixPart, Mlp, Norm, Norms, Plan, Position},
};
use serde_json::Value;
use text_embeddings_backend_core::Activation;

pub(super) fn plan(value: &Value) -> Result<Plan> {
    let config: EncoderConfig = parse(value)?;
    // `hidden_act` has no effect.
    let activation = match value["feed_forward_type"].as_str().unwrap_or("original") {
        "geglu" => Activation::Gelu,
        "reglu" => Activation::Relu,
        other => return Err(unsupported_value(value, "feed_forward_type", other, &["geglu", "reglu"])),
    };
    let has_head_norms = has_head_norms(value);
    let layer = |index| {
        let place = Place { config: &config, index, activation };
        if has_head_norms { place.normed_layer() } else { place.layer() }
    };
    let layers = (0..config.num_hidden_layers).map(layer).collect();
    Ok(Plan {
        prefixes: &["bert."],
        classification: Some(classification("pooler.dense", "classifier", config.hidden_size)),
        ..encoder(value, &config, "embeddings.LayerNorm", Position::Alibi, layers)?
    })
}

/// Whether the model is of the second kind. The configurations differ only in the repository of the code.
fn has_head_norms(value: &Value) -> bool {
    let places = [&value["_name_or_path"], &value["auto_map"]["AutoConfig"]];
    places.iter().any(|place| place.as_str().is_some_and(|place| place.contains("qk-post-norm")))
}

/// The index of a layer, and everything that its parts share.
struct Place<'a> {
    config: &'a EncoderConfig,
    index: usize,
    activation: Activation,
}

impl Place<'_> {
    fn part(&self, part: &str, shape: [usize; 2]) -> MatrixPart {
        MatrixPart::new(&format!("encoder.layer.{}.{part}", self.index), shape)
    }

    fn norm(&self, norm: &str) -> Norm {
        let name = format!("encoder.layer.{}.{norm}", self.index);
        Norm::layer(name, self.config.hidden_size, self.config.layer_norm_eps)
    }

    fn attention(&self, norms: HeadNorms) -> Attention {
        let part = |part: &str| self.part(part, [self.config.hidden_size; 2]);
        Attention {
            query: part("attention.self.query").into(),
            key_value: [part("attention.self.key"), part("attention.self.value")].into(),
            output: part("attention.output.dense").into(),
            norms,
            disentangled: None,
        }
    }

    /// A gated MLP. The gate is half `gate_half` of its first matrix.
    fn mlp(&self, [first, last]: [&str; 2], gate_half: usize) -> Mlp {
        let (hidden, inner) = (self.config.hidden_size, self.config.intermediate_size);
        let both = self.part(first, [2 * inner, hidden]).biased(false);
        let half = |half: usize| both.clone().rows(half * inner..(half + 1) * inner);
        Mlp::Gated {
            gate: half(gate_half),
            up: half(1 - gate_half),
            down: self.part(last, [hidden, inner]).into(),
            activation: self.activation,
        }
    }

    /// A layer of jina-bert-implementation.
    fn layer(&self) -> Layer {
        Layer {
            view: 0,
            attention: self.attention(HeadNorms::None),
            attention_norms: Norms::after(self.norm("attention.output.LayerNorm")),
            mlp: self.mlp(["mlp.gated_layers", "mlp.wo"], 0),
            mlp_norms: Norms::after(self.norm("mlp.layernorm")),
        }
    }

    /// A layer of jina-bert-v2-qk-post-norm.
    fn normed_layer(&self) -> Layer {
        let norm = |name: &str| self.norm(name);
        let head_norms =
            HeadNorms::AllHeads(norm("attention.self.layer_norm_q"), norm("attention.self.layer_norm_k"));
        Layer {
            view: 0,
            attention: self.attention(head_norms),
            attention_norms: Norms {
                sum: Some(norm("attention.output.LayerNorm")),
                second_sum: Some(norm("layer_norm_1")),
                ..Norms::default()
            },
            mlp: self.mlp(["mlp.up_gated_layer", "mlp.down_layer"], 1),
            mlp_norms: Norms::after(norm("layer_norm_2")),
        }
    }
}
