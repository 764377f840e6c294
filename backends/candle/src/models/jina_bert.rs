//! Jina's BERT with `ALiBi` instead of position embeddings, in two kinds. The first (remote code
//! jina-bert-implementation) has gated MLPs: jina-embeddings-v2-* and jina-reranker-v1-*. The second
//! (jina-bert-v2-qk-post-norm) also normalises queries and keys: jina-embeddings-v2-base-code.

use super::{
    parse,
    parts::{encoder, first_token_classification},
    post_norm::EncoderConfig,
    unsupported_value,
};
use crate::{
    operations::Result,
    plan::{
        AttentionPlan, HeadNormsPlan, LayerPlan, MatrixPart, MlpPlan, NormPlan, NormsPlan, Plan, Position,
    },
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
    let layer = |index| {
        let place = LayerPlace { config: &config, index, activation, is_separate };
        if has_head_norms { place.normed_layer() } else { place.layer() }
    };
    let layers = (0..config.num_hidden_layers).map(layer).collect();
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

/// The index of a layer, and everything that its parts share.
struct LayerPlace<'a> {
    config: &'a EncoderConfig,
    index: usize,
    activation: Activation,
    /// Whether gate and up of its MLP are two matrices: [`CONVERTED`].
    is_separate: bool,
}

impl LayerPlace<'_> {
    fn part(&self, part: &str, shape: [usize; 2]) -> MatrixPart {
        MatrixPart::new(&format!("encoder.layer.{}.{part}", self.index), shape)
    }

    fn norm(&self, norm: &str) -> NormPlan {
        let name = format!("encoder.layer.{}.{norm}", self.index);
        NormPlan::layer(name, self.config.hidden_size, self.config.layer_norm_eps)
    }

    fn attention(&self, norms: HeadNormsPlan) -> AttentionPlan {
        let part = |part: &str| self.part(part, [self.config.hidden_size; 2]);
        AttentionPlan {
            view: 0,
            query: part("attention.self.query").into(),
            key_value: [part("attention.self.key"), part("attention.self.value")].into(),
            output: part("attention.output.dense").into(),
            norms,
            gate: None,
            disentangled: None,
        }
    }

    /// A gated MLP. The gate is half `gate_half` of its first matrix.
    fn mlp(&self, [first, last]: [&str; 2], gate_half: usize) -> MlpPlan {
        let (hidden, inner) = (self.config.hidden_size, self.config.intermediate_size);
        let part = |name: &str, rows| self.part(name, [rows, hidden]).biased(false);
        let half = |half: usize| part(first, 2 * inner).rows(half * inner..(half + 1) * inner);
        let [gate, up] = if self.is_separate {
            [part("mlp.gate_layer", inner), part(first, inner)]
        } else {
            [half(gate_half), half(1 - gate_half)]
        };
        MlpPlan::Gated {
            gate,
            up,
            down: self.part(last, [hidden, inner]).into(),
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
        let norm = |name: &str| self.norm(name);
        let head_norms =
            HeadNormsPlan::AllHeads(norm("attention.self.layer_norm_q"), norm("attention.self.layer_norm_k"));
        LayerPlan {
            mixer: self.attention(head_norms).into(),
            attention_norms: NormsPlan {
                sum: Some(norm("attention.output.LayerNorm")),
                second_sum: Some(norm("layer_norm_1")),
                ..NormsPlan::default()
            },
            mlp: self.mlp(["mlp.up_gated_layer", "mlp.down_layer"], 1),
            mlp_norms: NormsPlan::after(norm("layer_norm_2")),
        }
    }
}
