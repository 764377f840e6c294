//! any2jev (`any2jev/model.py` of its authors' package): a decider, an adapter of Qwen3. Two matrices make
//! vectors of the states of marked tokens: of each option, and of the end, which are compared by the caller.
//!
//! `config.json` is the base's, with the authors' `any2jev.json` in the field `any2jev`.

use super::{parse, qwen3, refuse};
use crate::{
    operations::Result,
    plan::{AdapterLayout, Adapters, MatrixPart, Plan, StepPlan},
};
use serde::Deserialize;
use serde_json::Value;
use text_embeddings_backend_core::Activation;

/// The longest vector of a state: as many values as the widest model's states.
const MAX_SIZE: usize = 1 << 14;

/// The fields of `any2jev.json` that the model depends on.
#[derive(Debug, Deserialize)]
struct PointerConfig {
    head_dim: usize,
    hidden_size: usize,
    /// The factor of the adapter's product, from the adapter's file.
    lora_scale: f32,
    /// The tokens whose vectors are stored with the adapter.
    token_rows: Vec<u32>,
}

pub(super) fn pointer_plan(value: &Value) -> Result<Plan> {
    let PointerConfig { head_dim, hidden_size, lora_scale, token_rows } = parse(&value["any2jev"])?;
    let plan = qwen3::plan(value)?;
    refuse(
        value,
        hidden_size != plan.hidden,
        "a head for states of another size (any2jev.json: hidden_size)",
    )?;
    refuse(value, !(1..=MAX_SIZE).contains(&head_dim), "a head_dim of 0 or more than 16384")?;
    let is_beyond = token_rows.iter().any(|token| *token as usize >= plan.vocabulary);
    refuse(value, is_beyond, "an adapter with tokens beyond the vocabulary (added delimiters)")?;
    let parts = ["k", "q"].map(|name| MatrixPart::new(name, [head_dim, plan.hidden]));
    Ok(Plan {
        prefixes: &["base_model.model.", "model."],
        adapters: Some(Adapters {
            tasks: Vec::new(),
            task: None,
            layout: AdapterLayout::OwnFile,
            scale: lora_scale,
            token_rows,
        }),
        projector: vec![StepPlan::Dense(parts.into(), Activation::Identity)],
        classification: None,
        masked_lm: None,
        ..plan
    })
}
