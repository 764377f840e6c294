//! BERT (transformers, `modeling_bert.py`). Also RoBERTa, XLM-RoBERTa and CamemBERT, which differ in the
//! first position and in their heads, and ELECTRA (`modeling_electra.py`).

use super::{
    activation, classification, names, parse,
    parts::first_token_classification,
    post_norm::{BERT, EncoderConfig, WORDS, encoder, narrow_embeddings},
};
use crate::{
    operations::Result,
    plan::{MaskedLm, NormPlan, Plan, Reads, StepPlan},
};
use serde_json::Value;
use text_embeddings_backend_core::{Activation, BackendError};

pub(super) fn plan(value: &Value) -> Result<Plan> {
    let config: EncoderConfig = parse(value)?;
    let hidden = config.hidden_size;
    let square = [hidden, hidden];
    let act = activation(value, "hidden_act", &config.hidden_act)?;
    let transform = "cls.predictions.transform";
    Ok(Plan {
        prefixes: &["bert."],
        ignored: names(&["embeddings.position_ids", "pooler.", "cls.", "classifier."]),
        classification: Some(first_token_classification("pooler.dense", "classifier", hidden)),
        masked_lm: Some(MaskedLm {
            steps: vec![
                StepPlan::dense(&format!("{transform}.dense"), square, act),
                StepPlan::Norm(NormPlan::layer(
                    format!("{transform}.LayerNorm"),
                    hidden,
                    config.layer_norm_eps,
                )),
            ],
            decoder: vec!["cls.predictions.decoder.weight".to_owned(), WORDS.to_owned()],
            bias: vec!["cls.predictions.decoder.bias".to_owned(), "cls.predictions.bias".to_owned()],
            width: hidden,
        }),
        ..encoder(value, &config, 0, &BERT)?
    })
}

/// RoBERTa, XLM-RoBERTa, CamemBERT.
pub(super) fn roberta_plan(value: &Value) -> Result<Plan> {
    let config: EncoderConfig = parse(value)?;
    let hidden = config.hidden_size;
    let square = [hidden, hidden];
    let offset = config.first_position();
    Ok(Plan {
        prefixes: &["roberta.", "xlm-roberta.", "camembert."],
        ignored: names(&["embeddings.position_ids", "pooler.", "lm_head.", "classifier."]),
        classification: Some(first_token_classification("classifier.dense", "classifier.out_proj", hidden)),
        masked_lm: Some(MaskedLm {
            steps: vec![
                StepPlan::dense("lm_head.dense", square, Activation::Gelu),
                StepPlan::Norm(NormPlan::layer("lm_head.layer_norm", hidden, config.layer_norm_eps)),
            ],
            decoder: vec!["lm_head.decoder.weight".to_owned(), WORDS.to_owned()],
            bias: vec!["lm_head.decoder.bias".to_owned(), "lm_head.bias".to_owned()],
            width: hidden,
        }),
        ..encoder(value, &config, offset, &BERT)?
    })
}

/// ELECTRA: embeddings may be narrower than the layers.
pub(super) fn electra_plan(value: &Value) -> Result<Plan> {
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
