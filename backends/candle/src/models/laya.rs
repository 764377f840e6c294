//! Laya (`laya/common.py` of its authors' package): a decider. `ModernBERT` reads a question, its options, each
//! behind a marker, and the text; the type of the question is added to all states; two plain transformer
//! layers follow; and a small network scores the state of each marker.
//!
//! `config.json` is the encoder's, with the authors' `rl_agent_config.json` in the field `laya`.

use super::{modernbert, parse, refuse};
use crate::{
    attention::Mask,
    operations::Result,
    plan::{
        AttentionPlan, HeadNormsPlan, KindsPlan, LayerPlan, MatrixPart, MlpPlan, NormPlan, NormsPlan, Plan,
        Position, StepPlan, View,
    },
};
use serde::Deserialize;
use serde_json::Value;
use text_embeddings_backend_core::Activation;

/// The size of a head of the plain layers.
const HEAD_SIZE: usize = 64;
/// The types of questions.
const TYPES: usize = 3;
/// The divisor's addend in the norms of `torch.nn`.
const EPSILON: f32 = 1e-5;

/// The fields of `rl_agent_config.json` that the model depends on.
#[derive(Debug, Deserialize)]
struct LayaConfig {
    head_layers: usize,
    option_layout: Option<String>,
}

pub(super) fn plan(value: &Value) -> Result<Plan> {
    let config: LayaConfig = parse(&value["laya"])?;
    let mut plan = modernbert::plan(value)?;
    let hidden = plan.hidden;
    let is_parallel = config.option_layout.is_some_and(|layout| layout != "sequential");
    let has_other_heads = plan.heads.size != HEAD_SIZE || plan.heads.queries * HEAD_SIZE != hidden;
    refuse(
        value,
        &[
            (is_parallel, "an option_layout other than sequential"),
            (has_other_heads, "a hidden_size other than 64 times num_attention_heads"),
            (config.head_layers == 0, "a head without layers (head_layers)"),
            (plan.layers.is_empty(), "an encoder without layers"),
        ],
    )?;
    let view = plan.views.len();
    let divisor = (HEAD_SIZE as f32).sqrt();
    plan.views.push(View { mask: Mask::FULL, position: Position::None, divisor, soft_cap: None });
    plan.kinds = Some(KindsPlan {
        tensor: "type_emb.weight".to_owned(),
        shape: [TYPES, hidden],
        layer: plan.layers.len(),
    });
    // The encoder's last norm is in the middle of the model.
    if let Some(last) = plan.layers.last_mut() {
        last.mlp_norms.sum = plan.final_norm.take();
    }
    plan.layers.extend((0..config.head_layers).map(|index| plain_layer(index, hidden, view)));
    let dense = |name: &str, outputs| MatrixPart::new(name, [outputs, hidden]).into();
    plan.projector = vec![
        StepPlan::Norm(NormPlan::layer("scorer.0", hidden, EPSILON)),
        StepPlan::Dense(dense("scorer.1", hidden), Activation::Gelu),
        StepPlan::Dense(dense("scorer.3", 1), Activation::Identity),
    ];
    Ok(Plan {
        prefixes: &["encoder."],
        // The answer to another question, "act or ask", which only the authors' own server gives.
        ignored: vec!["act_head.".to_owned(), "temperature".to_owned()],
        classification: None,
        masked_lm: None,
        ..plan
    })
}

/// A layer of `torch.nn.TransformerEncoder`, normalised before each block.
fn plain_layer(index: usize, hidden: usize, view: usize) -> LayerPlan {
    let name = |name: &str| format!("head.layers.{index}.{name}");
    let norm = |part: &str| NormsPlan::before(NormPlan::layer(name(part), hidden, EPSILON));
    let part = |part: &str, shape| MatrixPart::new(&name(part), shape);
    let qkv = || MatrixPart {
        weight: name("self_attn.in_proj_weight"),
        bias: Some(name("self_attn.in_proj_bias")),
        ..part("self_attn", [3 * hidden, hidden])
    };
    LayerPlan {
        mixer: AttentionPlan {
            view,
            query: qkv().rows(0..hidden).into(),
            key_value: qkv().rows(hidden..3 * hidden).into(),
            output: part("self_attn.out_proj", [hidden, hidden]).into(),
            norms: HeadNormsPlan::None,
            gate: None,
            disentangled: None,
        }
        .into(),
        attention_norms: norm("norm1"),
        mlp: MlpPlan::Plain {
            up: part("linear1", [4 * hidden, hidden]).into(),
            down: part("linear2", [hidden, 4 * hidden]).into(),
            activation: Activation::Relu,
        },
        mlp_norms: norm("norm2"),
    }
}
