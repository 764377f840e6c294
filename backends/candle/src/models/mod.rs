//! The supported architectures. Each has a function from `config.json` to a [`Plan`].
//!
//! What must hold: a setting that a plan does not implement is refused by name; an unknown architecture is
//! refused with a list of the supported ones before anything else is checked.

mod albert;
mod bert;
mod choices;
mod deberta;
mod decoder;
mod distilbert;
mod embedding_gemma2;
mod eurobert;
mod gemma;
mod gte;
mod jina_bert;
mod jina_flash;
mod jina_v5;
mod laya;
mod lfm2;
mod llama;
mod minicpm;
mod model2vec;
mod modernbert;
mod mpnet;
mod nomic;
mod parts;
mod pointer;
mod post_norm;
mod qwen3;
mod qwen3_5;
mod qwen_vl;
mod rotary;
mod t5;

use crate::{
    load::Scheme,
    operations::Result,
    plan::{Classification, Plan, Reads, StepPlan},
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use text_embeddings_backend_core::{Activation, BackendError, WeightChoices};

/// An architecture, or several that differ only in names.
struct Architecture {
    /// Values of `model_type` in `config.json`, or a name that [`name_of`] assigns.
    model_types: &'static [&'static str],
    plan: fn(&Value) -> Result<Plan>,
}

const ARCHITECTURES: &[Architecture] = &[
    Architecture { model_types: &["bert"], plan: bert::plan },
    Architecture { model_types: &["roberta", "xlm-roberta", "camembert"], plan: bert::roberta_plan },
    Architecture { model_types: &["qwen2"], plan: qwen3::qwen2_plan },
    Architecture { model_types: &["distilbert"], plan: distilbert::plan },
    Architecture { model_types: &["mpnet"], plan: mpnet::plan },
    Architecture { model_types: &["electra"], plan: bert::electra_plan },
    Architecture { model_types: &["albert"], plan: albert::repeated_plan },
    Architecture { model_types: &["t5"], plan: t5::encoder_plan },
    Architecture { model_types: &["deberta-v2"], plan: deberta::plan },
    Architecture { model_types: &["modernbert"], plan: modernbert::plan },
    Architecture { model_types: &[LAYA], plan: laya::laya_plan },
    Architecture { model_types: &["eurobert"], plan: eurobert::plan },
    Architecture { model_types: &["qwen3"], plan: qwen3::plan },
    Architecture { model_types: &[POINTER], plan: pointer::pointer_plan },
    Architecture { model_types: &["bidirectional_pplx_qwen3"], plan: qwen3::pplx_plan },
    Architecture { model_types: &["qwen3_5", "qwen3_5_text"], plan: qwen3_5::text_plan },
    Architecture { model_types: &["qwen2_vl"], plan: qwen_vl::qwen2_plan },
    Architecture { model_types: &["qwen3_vl"], plan: qwen_vl::qwen3_plan },
    Architecture { model_types: &["llama"], plan: llama::plan },
    Architecture { model_types: &["llama_bidirec"], plan: llama::bidirectional_plan },
    Architecture { model_types: &["mistral"], plan: llama::mistral_plan },
    Architecture { model_types: &["minicpm"], plan: minicpm::plan },
    Architecture { model_types: &["model2vec"], plan: model2vec::plan },
    Architecture { model_types: &["gemma"], plan: gemma::plan },
    Architecture { model_types: &["gemma2"], plan: gemma::gemma2_plan },
    Architecture { model_types: &["gemma3_text"], plan: gemma::gemma3_plan },
    Architecture {
        model_types: &["embedding_gemma2", "embedding_gemma2_text"],
        plan: embedding_gemma2::text_plan,
    },
    Architecture { model_types: &["lfm2", "lfm2_bidirectional"], plan: lfm2::hybrid_plan },
    Architecture { model_types: &["gte", "new"], plan: gte::plan },
    Architecture { model_types: &["nomic_bert"], plan: nomic::plan },
    Architecture { model_types: &[JINA_BERT], plan: jina_bert::plan },
    Architecture { model_types: &["jina_embeddings_v3", XLM_ROBERTA_FLASH], plan: jina_flash::plan },
    Architecture { model_types: &["jina_embeddings_v5"], plan: jina_v5::adapted_plan },
];

/// Re-rankers with architectures that are not supported, and the reason for each.
const NOT_COMPUTED: [(&str, &str); 1] = [(
    "cost_wise_gemma",
    "bge-reranker-v2.5-gemma2-lightweight merges neighbouring tokens between its layers; choose \
     bge-reranker-v2-gemma or bge-reranker-v2-m3",
)];

/// The name for Jina's BERT with `ALiBi`, whose `model_type` is `bert`.
const JINA_BERT: &str = "jina-bert";

/// The name for Jina's XLM-RoBERTa with tensor names of its own, whose `model_type` is `xlm-roberta` or
/// missing.
const XLM_ROBERTA_FLASH: &str = "xlm-roberta-flash";

/// The name for Laya, whose encoder is `ModernBERT`.
const LAYA: &str = "laya";

/// The name for any2jev, whose body is Qwen3.
const POINTER: &str = "any2jev";

/// The architecture of Stanford's `ColBERT`, whose checkpoint also has the matrix of the head.
const STANFORD_COLBERT: &str = "HF_ColBERT";

/// The name by which [`ARCHITECTURES`] is searched.
fn name_of(config: &Value) -> Option<&str> {
    let code = config["auto_map"]["AutoConfig"].as_str();
    match config["model_type"].as_str() {
        Some("modernbert") if config["laya"].is_object() => Some(LAYA),
        Some("qwen3") if config["any2jev"].is_object() => Some(POINTER),
        Some("bert") if config["position_embedding_type"] == "alibi" => Some(JINA_BERT),
        None | Some("xlm-roberta") if code.is_some_and(|code| code.ends_with("XLMRobertaFlashConfig")) => {
            Some(XLM_ROBERTA_FLASH)
        }
        name => name,
    }
}

/// Whether the configuration names this class.
fn has_architecture(config: &Value, class: &str) -> bool {
    config["architectures"].as_array().is_some_and(|names| names.iter().any(|name| name == class))
}

/// The plan of the model that `config` (the content of `config.json`) describes, with the user's choices
/// among its weights.
pub(crate) fn plan(config: &Value, choices: &WeightChoices) -> Result<Plan> {
    let name = name_of(config);
    let found = ARCHITECTURES
        .iter()
        .find(|architecture| name.is_some_and(|name| architecture.model_types.contains(&name)));
    if let Some((name, reason)) = NOT_COMPUTED.iter().find(|(known, _)| Some(*known) == name) {
        return Err(BackendError::Architecture(format!(
            "config.json: model_type {name:?} is not supported: {reason}"
        )));
    }
    let Some(architecture) = found else {
        let known = ARCHITECTURES.iter().flat_map(|architecture| architecture.model_types).copied();
        let known: Vec<_> =
            known.filter(|name| ![JINA_BERT, XLM_ROBERTA_FLASH, LAYA, POINTER].contains(name)).collect();
        return Err(BackendError::Architecture(format!(
            "config.json: model_type {} is not supported; supported: {}",
            name.map_or_else(|| "(missing)".to_owned(), |name| format!("{name:?}")),
            known.join(", ")
        )));
    };
    Scheme::from_config(config)?;
    for value in [config, &config["text_config"]] {
        refuse_countless(value)?;
    }
    let mut plan = (architecture.plan)(config)?;
    if has_architecture(config, STANFORD_COLBERT) {
        plan.ignored.push("linear.".to_owned());
    }
    choices::choose_weights(plan, choices)
}

/// Settings that determine the lengths of lists in a plan, or the number of heads.
const COUNTS: &[&str] = &[
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "num_hidden_groups",
    "num_heads",
    "num_experts",
    "num_attention_heads",
    "num_key_value_heads",
    "n_head",
    "n_heads",
    "linear_num_key_heads",
    "linear_num_value_heads",
];
/// Settings that determine the sizes of tensors.
const SIZES: &[&str] = &[
    "hidden_size",
    "dim",
    "d_model",
    "d_kv",
    "d_ff",
    "n_embd",
    "embedding_size",
    "pooler_hidden_size",
    "intermediate_size",
    "hidden_dim",
    "hidden_size_per_layer_input",
    "embedding_dim",
    "block_ff_dim",
    "block_multiple_of",
    "n_inner",
    "head_dim",
    "attention_head_size",
    "vocab_size",
    "table_rows",
    "pad_vocab_size_multiple",
    "type_vocab_size",
    "num_labels",
    "max_position_embeddings",
    "n_positions",
    "position_buckets",
    "relative_attention_num_buckets",
    "relative_attention_max_distance",
    "max_relative_positions",
    "conv_kernel_size",
    "conv_groups",
    "max_trained_positions",
    "linear_key_head_dim",
    "linear_value_head_dim",
];
/// The largest values of these settings: more than any model has. The bytes of the largest tensor, heads
/// times head size times width, can still be counted in 64 bits.
const LIMITS: [(&[&str], u64); 2] = [(COUNTS, 10_000), (SIZES, 1 << 24)];

/// Refuses a plan that would be larger than any checkpoint, before it takes memory.
fn refuse_countless(config: &Value) -> Result<()> {
    for (names, limit) in LIMITS {
        let too_large = names.iter().find(|name| config[**name].as_u64().is_some_and(|value| value > limit));
        if let Some(name) = too_large {
            return Err(BackendError::Load(format!(
                "config.json: {name} {} cannot be: at most {limit} are supported",
                config[*name]
            )));
        }
    }
    Ok(())
}

/// The error for a setting that is not supported.
fn unsupported(config: &Value, setting: &str) -> BackendError {
    let name = config["model_type"].as_str().unwrap_or("this architecture");
    BackendError::Load(format!("config.json: {setting} is not supported for {name}"))
}

/// The error for a field with a value that is not supported.
fn unsupported_value(config: &Value, field: &str, value: &str, supported: &[&str]) -> BackendError {
    let name = config["model_type"].as_str().unwrap_or("this architecture");
    let supported = supported.join(", ");
    BackendError::Load(format!(
        "config.json: {field} {value:?} is not supported for {name}; supported: {supported}"
    ))
}

/// Refuses a field whose value is not among the supported ones.
fn require(config: &Value, field: &str, value: &str, supported: &[&str]) -> Result<()> {
    if supported.contains(&value) { Ok(()) } else { Err(unsupported_value(config, field, value, supported)) }
}

/// Refuses a setting that has an unsupported value, if it has.
fn refuse(config: &Value, is_set: bool, setting: &str) -> Result<()> {
    if is_set { Err(unsupported(config, setting)) } else { Ok(()) }
}

/// Prefixes of tensor names, for [`Plan::ignored`].
fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// Reads the fields of a configuration.
fn parse<T: DeserializeOwned>(config: &Value) -> Result<T> {
    serde_path_to_error::deserialize(config)
        .map_err(|error| BackendError::Load(format!("config.json: {error}")))
}

/// The activation function with the name `name`, which `field` contains.
fn activation(config: &Value, field: &str, name: &str) -> Result<Activation> {
    Activation::from_config(name)
        .ok_or_else(|| unsupported_value(config, field, name, &Activation::config_names()))
}

/// The size of a head, for `heads` heads of equal size.
fn head_size(hidden: usize, heads: usize) -> Result<usize> {
    if heads > 0 && hidden > 0 && hidden.is_multiple_of(heads) {
        return Ok(hidden / heads);
    }
    let message = "config.json: hidden_size must be a positive multiple of num_attention_heads";
    Err(BackendError::Load(message.to_owned()))
}

/// A classification head that ends in `LOGITS.weight` and `LOGITS.bias`, where `LOGITS` is the argument.
fn classification(reads: Reads, steps: Vec<StepPlan>, logits: &str, width: usize) -> Classification {
    Classification { reads, steps, logits: logits.to_owned(), logits_bias: true, width, divisor: 1.0 }
}

/// The classification head of decoders: `score.weight` on a text's last token.
fn score_on_last_token(hidden: usize) -> Classification {
    Classification { logits_bias: false, ..classification(Reads::LastUnpadded, Vec::new(), "score", hidden) }
}
