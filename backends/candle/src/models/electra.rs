//! ELECTRA (transformers, `modeling_electra.py`): BERT with embeddings that may be narrower than its layers.

use super::{
    classification, names, parse,
    post_norm::{BERT, EncoderConfig, encoder, narrow_embeddings},
};
use crate::{
    operations::Result,
    plan::{Plan, Reads, StepPlan},
};
use serde_json::Value;
use text_embeddings_backend_core::{Activation, BackendError};

pub(super) fn plan(value: &Value) -> Result<Plan> {
    let config: EncoderConfig = parse(value)?;
    let hidden = config.hidden_size;
    let width = value["embedding_size"].as_u64().ok_or_else(|| {
        BackendError::Load("config.json: embedding_size must be a number of values".to_owned())
    })? as usize;
    let steps = vec![StepPlan::dense("classifier.dense", [hidden, hidden], Activation::Gelu)];
    let mut plan = Plan {
        prefixes: &["electra."],
        ignored: names(&["embeddings.position_ids", "classifier.", "discriminator_", "generator_"]),
        classification: Some(classification(Reads::First, steps, "classifier.out_proj", hidden)),
        ..encoder(value, &config, 0, &BERT)?
    };
    if width != hidden {
        narrow_embeddings(&mut plan, width, "embeddings_project");
    }
    Ok(plan)
}
