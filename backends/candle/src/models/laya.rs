//! Laya (`laya/common.py` of its authors' package): a decider. `ModernBERT` reads a question, its options,
//! each behind a marker, and the text; the type of the question is added to all states; two plain transformer
//! layers follow; and a small network scores the state of each marker.
//!
//! `config.json` is the encoder's, with the authors' `rl_agent_config.json` in the field `laya`.

use super::{
    modernbert, parse,
    parts::{LayerTensors, fused_attention},
    refuse,
};
use crate::{
    attention::Mask,
    operations::Result,
    plan::{
        AttentionPlan, KindsPlan, LayerPlan, MatrixPart, MlpPlan, NormPlan, NormsPlan, Plan, Position,
        RowIndex, StepPlan, TablePlan, View,
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

pub(super) fn laya_plan(value: &Value) -> Result<Plan> {
    let config: LayaConfig = parse(&value["laya"])?;
    let mut plan = modernbert::plan(value)?;
    let hidden = plan.hidden;
    let is_parallel = config.option_layout.is_some_and(|layout| layout != "sequential");
    let heads = plan.views[0].heads;
    let has_other_heads = heads.size != HEAD_SIZE || heads.queries * HEAD_SIZE != hidden;
    refuse(value, is_parallel, "an option_layout other than sequential")?;
    refuse(value, has_other_heads, "a hidden_size other than 64 times num_attention_heads")?;
    refuse(value, config.head_layers == 0, "a head without layers (head_layers)")?;
    refuse(value, plan.layers.is_empty(), "an encoder without layers")?;
    let view = plan.views.len();
    plan.views.push(View::new(heads, Mask::FULL, Position::None));
    let (tensor, shape) = ("type_emb.weight".to_owned(), [TYPES, hidden]);
    let table = TablePlan { tensor, shape, index: RowIndex::First };
    plan.kinds = Some(KindsPlan { table, layer: plan.layers.len() });
    // The encoder's last norm is in the middle of the model.
    if let Some(last) = plan.layers.last_mut() {
        last.mlp_norms.sum = plan.final_norm.take();
    }
    plan.layers.extend((0..config.head_layers).map(|index| plain_layer(index, hidden, view)));
    plan.projector = vec![
        StepPlan::Norm(NormPlan::layer("scorer.0", hidden, EPSILON)),
        StepPlan::dense("scorer.1", [hidden, hidden], Activation::Gelu),
        StepPlan::dense("scorer.3", [1, hidden], Activation::Identity),
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
    let tensors = LayerTensors { prefix: format!("head.layers.{index}"), epsilon: EPSILON };
    let attention = tensors.tensor_name("self_attn.in_proj");
    let query_key_value = MatrixPart {
        weight: format!("{attention}_weight"),
        bias: Some(format!("{attention}_bias")),
        ..MatrixPart::new(&attention, [3 * hidden, hidden])
    };
    let output = tensors.biased_part("self_attn.out_proj", [hidden, hidden]);
    LayerPlan {
        mixer: AttentionPlan { view, ..fused_attention(query_key_value, output) }.into(),
        attention_norms: NormsPlan::before(tensors.layer_norm("norm1", hidden)),
        mlp: MlpPlan::Plain {
            up: tensors.biased_part("linear1", [4 * hidden, hidden]).into(),
            down: tensors.biased_part("linear2", [hidden, 4 * hidden]).into(),
            activation: Activation::Relu,
        },
        mlp_norms: NormsPlan::before(tensors.layer_norm("norm2", hidden)),
    }
}
