//! jina-embeddings-v5-text: Qwen3, or EuroBERT in the nano model. The adapter of a task is in a file of its
//! own (PEFT), and is added to the matrices when they are loaded.

use super::{eurobert, parse, qwen3};
use crate::{
    operations::Result,
    plan::{AdapterLayout, Adapters, Plan},
};
use serde::Deserialize;
use serde_json::Value;

/// Settings that only this architecture has.
#[derive(Debug, Deserialize)]
struct Settings {
    task_names: Vec<String>,
    /// The factor of the adapter's product. `core/src/files/adapter.rs` takes it from the adapter's file.
    lora_scale: Option<f32>,
}

/// Settings that EuroBERT has and Qwen3 has not.
const EUROBERT: [&str; 3] = ["clf_pooling", "classifier_pooling", "mask_token_id"];

pub(super) fn adapted_plan(value: &Value) -> Result<Plan> {
    let Settings { task_names, lora_scale } = parse(value)?;
    let is_eurobert = EUROBERT.iter().any(|name| !value[*name].is_null());
    let body = if is_eurobert { eurobert::plan(value)? } else { qwen3::plan(value)? };
    Ok(Plan {
        prefixes: &["base_model.model.model.", "base_model.model.", "model."],
        adapters: Some(Adapters {
            tasks: task_names,
            task: None,
            layout: AdapterLayout::OwnFile,
            scale: lora_scale.unwrap_or(1.0),
            token_rows: Vec::new(),
        }),
        ..body
    })
}
