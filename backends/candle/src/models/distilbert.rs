//! DistilBERT (transformers, `modeling_distilbert.py`): BERT with other names and without token types.

use super::{
    activation, classification, names, parse,
    post_norm::{self, LayerNames, WORDS, encoder},
};
use crate::{
    operations::Result,
    plan::{MaskedLm, NormPlan, Plan, Reads, StepPlan},
};
use serde::Deserialize;
use serde_json::Value;
use text_embeddings_backend_core::Activation;

/// The fields of `config.json`.
#[derive(Debug, Deserialize)]
struct DistilBertConfig {
    vocab_size: usize,
    dim: usize,
    hidden_dim: usize,
    n_layers: usize,
    n_heads: usize,
    max_position_embeddings: usize,
    activation: String,
    pad_token_id: Option<i64>,
}

const NAMES: LayerNames = LayerNames {
    layers: "transformer.layer",
    query: "attention.q_lin",
    key: "attention.k_lin",
    value: "attention.v_lin",
    output: "attention.out_lin",
    attention_norm: "sa_layer_norm",
    up: "ffn.lin1",
    down: "ffn.lin2",
    mlp_norm: "output_layer_norm",
};

/// The epsilon of layer norms, which the configuration does not have.
const EPSILON: f32 = 1e-12;

pub(super) fn plan(value: &Value) -> Result<Plan> {
    let config: DistilBertConfig = parse(value)?;
    let hidden = config.dim;
    let act = activation(value, "activation", &config.activation)?;
    let steps = vec![StepPlan::dense("pre_classifier", [hidden, hidden], Activation::Relu)];
    let config = post_norm::EncoderConfig {
        vocab_size: config.vocab_size,
        hidden_size: hidden,
        intermediate_size: config.hidden_dim,
        num_hidden_layers: config.n_layers,
        num_attention_heads: config.n_heads,
        max_position_embeddings: config.max_position_embeddings,
        type_vocab_size: 0,
        layer_norm_eps: EPSILON,
        hidden_act: config.activation,
        position_embedding_type: None,
        is_decoder: false,
        pad_token_id: config.pad_token_id,
    };
    Ok(Plan {
        prefixes: &["distilbert."],
        ignored: names(&["embeddings.position_ids", "vocab_", "pre_classifier.", "classifier."]),
        classification: Some(classification(Reads::First, steps, "classifier", hidden)),
        masked_lm: Some(MaskedLm {
            steps: vec![
                StepPlan::dense("vocab_transform", [hidden, hidden], act),
                StepPlan::Norm(NormPlan::layer("vocab_layer_norm", hidden, EPSILON)),
            ],
            decoder: vec!["vocab_projector.weight".to_owned(), WORDS.to_owned()],
            bias: vec!["vocab_projector.bias".to_owned()],
            width: hidden,
        }),
        ..encoder(value, &config, 0, &NAMES)?
    })
}
