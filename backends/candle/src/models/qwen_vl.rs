//! The language models of Qwen2-VL and Qwen3-VL (transformers, `modeling_qwen2_vl.py`,
//! `modeling_qwen3_vl.py`), for texts only: Qwen3-VL-Reranker, jina-reranker-m0. There are no images. So the
//! three positions of a token (time, height, width) are equal and rotate heads like a single position, and
//! the tensors of the vision tower are left out.

use super::{classification, has_architecture, qwen3};
use crate::{
    operations::Result,
    plan::{Plan, Reads, StepPlan},
};
use serde_json::Value;
use text_embeddings_backend_core::Activation;

/// Prefixes of the language model's tensor names, first those of newer checkpoints.
const PREFIXES: &[&str] = &["model.language_model.", "language_model.model.", "model."];
/// The prefix of the vision tower's tensors.
const VISION: &str = "visual.";
/// Settings next to `text_config` that also apply to the language model, and whether they take precedence:
/// the output embedding belongs to the whole model.
const SHARED: [(&str, bool); 2] = [("tie_word_embeddings", true), ("pad_token_id", false)];
/// The architecture of jina-reranker-m0, whose `model_type` is Qwen2-VL's.
const JINA_RANKING: &str = "JinaVLForRanking";

/// Qwen3-VL.
pub(super) fn qwen3_plan(value: &Value) -> Result<Plan> {
    let text = text_config(value);
    Ok(without_vision(qwen3::plan(&text)?))
}

/// Qwen2-VL, and the head of jina-reranker-m0.
pub(super) fn qwen2_plan(value: &Value) -> Result<Plan> {
    let text = text_config(value);
    let plan = without_vision(qwen3::qwen2_plan(&text)?);
    if !has_architecture(value, JINA_RANKING) {
        return Ok(plan);
    }
    let hidden = plan.hidden;
    let steps = vec![StepPlan::dense("score.0", [hidden, hidden], Activation::Relu)];
    Ok(Plan { classification: Some(classification(Reads::Last, steps, "score.2", hidden)), ..plan })
}

/// The settings of the language model. Older files have them at the top level, newer ones in `text_config`.
pub(super) fn text_config(value: &Value) -> Value {
    let mut text =
        if value["text_config"].is_object() { value["text_config"].clone() } else { value.clone() };
    for (name, takes_precedence) in SHARED {
        if (text[name].is_null() || takes_precedence) && !value[name].is_null() {
            text[name] = value[name].clone();
        }
    }
    for name in ["rope_scaling", "rope_parameters"] {
        // Three equal positions act as one.
        for kind in ["type", "rope_type"] {
            if text[name][kind] == "mrope" {
                text[name][kind] = "default".into();
            }
        }
        if let Some(fields) = text[name].as_object_mut() {
            fields.remove("mrope_section");
            fields.remove("mrope_interleaved");
        }
    }
    text
}

pub(super) fn without_vision(plan: Plan) -> Plan {
    let mut plan = Plan { prefixes: PREFIXES, ..plan };
    plan.ignored.push(VISION.to_owned());
    plan
}
