//! EuroBERT (transformers, `modeling_eurobert.py`): Llama's layers, in which every token attends to the whole
//! text.

use super::{
    classification,
    decoder::{self, DecoderConfig, DecoderFamily},
    names, parse, unsupported_value,
};
use crate::{
    operations::Result,
    plan::{Plan, Reads, StepPlan},
};
use serde::Deserialize;
use serde_json::Value;
use text_embeddings_backend_core::Activation;

/// The fields of `config.json` that other architectures do not have.
#[derive(Debug, Deserialize)]
struct Settings {
    hidden_act: String,
    classifier_pooling: Option<String>,
    /// The name of the classifier's pooling in the repositories' own code.
    clf_pooling: Option<String>,
}

pub(super) fn plan(value: &Value) -> Result<Plan> {
    let (config, settings): (DecoderConfig, Settings) = (DecoderConfig::read(value)?, parse(value)?);
    let family = DecoderFamily { bidirectional: true, ..DecoderFamily::llama(&config, &settings.hidden_act) };
    let pooling = settings.classifier_pooling.or(settings.clf_pooling);
    let reads = match pooling.as_deref().unwrap_or("late") {
        "late" => Reads::EachToken,
        "mean" => Reads::Mean,
        "bos" => Reads::First,
        other => {
            return Err(unsupported_value(value, "classifier_pooling", other, &["late", "mean", "bos"]));
        }
    };
    let hidden = config.hidden_size;
    let steps = vec![StepPlan::dense("dense", [hidden, hidden], Activation::Gelu)];
    Ok(Plan {
        ignored: names(&["lm_head.", "dense.", "classifier."]),
        classification: Some(classification(reads, steps, "classifier", hidden)),
        ..decoder::plan(value, &config, &family)?
    })
}
