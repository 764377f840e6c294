//! An adapter, which is stored in files of its own (PEFT): of a task, as in jina-embeddings-v5-text, or the
//! only one, as in any2jev.
//!
//! Input: its folder; or the model's configuration and the chosen task. Output: the file of its matrices, and
//! its scale. What must hold: an adapter of another kind than low-rank matrices (`LoRA`) is
//! refused by name, so that a model is never served without its adapter.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use text_embeddings_checkpoint::{ModelFile, is_switched_off};

use super::config::ModelConfig;
use super::error::FilesError;
use super::names::{Bound, is_inside};
use super::reading::read_text;
use super::repository::Repository;
use super::source::Reader;

/// The `model_type` of models with such adapters.
const MODEL_TYPE: &str = "jina_embeddings_v5";
/// The task that the authors' code chooses.
const DEFAULT_TASK: &str = "retrieval";
const REMEDY: &str = "the adapter of each task is in the folder `adapters`: download the model again with it";
/// Settings of other kinds of adapters.
const UNUSED: [&str; 17] = [
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "layer_replication",
    "lora_bias",
    "monteclora_config",
    "target_parameters",
    "use_bdlora",
    "use_qalora",
    "velora_config",
    "use_dora",
    "use_rslora",
    "fan_in_fan_out",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "layers_to_transform",
];
/// The name of the table of tokens, whose rows an adapter may replace.
const TOKEN_TABLE: &str = "embed_tokens";

pub(super) struct Adapter {
    /// The file of its matrices.
    pub(super) weights: ModelFile,
    /// The factor of its products.
    pub(super) scale: f64,
    /// The tokens whose vectors it replaces.
    pub(super) token_rows: Vec<u32>,
}

/// The fields of `adapter_config.json`.
#[derive(Debug, Deserialize)]
struct AdapterConfig {
    peft_type: String,
    r: u64,
    lora_alpha: f64,
    bias: Option<String>,
    trainable_token_indices: Option<ReplacedRows>,
    #[serde(flatten)]
    others: serde_json::Map<String, Value>,
}

/// The tokens whose vectors are replaced.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum ReplacedRows {
    /// Of the table of tokens.
    Ids(Vec<u32>),
    /// Of a table by its name.
    Tables(BTreeMap<String, Vec<u32>>),
}

/// Opens the adapter of the chosen task, if the model has adapters, and writes its scale into `config`.
pub(super) async fn open_adapter(
    files: &Repository<'_>,
    config: &mut ModelConfig,
    reader: &Reader,
) -> Result<Option<ModelFile>, FilesError> {
    if config.model_type.as_deref() != Some(MODEL_TYPE) {
        return Ok(None);
    }
    let task = reader.lora_task.as_deref().unwrap_or(DEFAULT_TASK);
    let folder = format!("adapters/{task}");
    if !is_inside(&folder) {
        return Err(files.missing(&folder, REMEDY));
    }
    let adapter = read_adapter(files, &folder, REMEDY).await?;
    config.raw["lora_scale"] = adapter.scale.into();
    Ok(Some(adapter.weights))
}

/// Reads the adapter in a folder.
pub(super) async fn read_adapter(
    files: &Repository<'_>,
    folder: &str,
    remedy: &'static str,
) -> Result<Adapter, FilesError> {
    let path = format!("{folder}/adapter_config.json");
    let text = read_text(&files.require(&path, Bound::Small, remedy).await?)?;
    let adapter: AdapterConfig = text.parse()?;
    let used =
        UNUSED.iter().find(|name| adapter.others.get(**name).is_some_and(|value| !is_switched_off(value)));
    let token_rows = match adapter.trainable_token_indices {
        None => Some(Vec::new()),
        Some(ReplacedRows::Ids(ids)) => Some(ids),
        Some(ReplacedRows::Tables(mut tables)) if tables.len() == 1 => tables.remove(TOKEN_TABLE),
        Some(ReplacedRows::Tables(_)) => None,
    };
    let refused = match used {
        _ if adapter.peft_type != "LORA" => Some(("peft_type", adapter.peft_type, "`LORA` is")),
        _ if adapter.bias.as_deref().is_some_and(|bias| bias != "none") => {
            Some(("bias", adapter.bias.unwrap_or_default(), "`none` is"))
        }
        _ if adapter.r == 0 => Some(("r", "0".to_owned(), "a positive rank is")),
        Some(name) => Some((*name, adapter.others[*name].to_string(), "nothing but its default is")),
        None if token_rows.is_none() => {
            Some(("trainable_token_indices", "tokens of other tables".to_owned(), "`embed_tokens` is"))
        }
        None => None,
    };
    if let Some((field, value, known)) = refused {
        return Err(FilesError::UnsupportedField { path: text.path, field, value, known });
    }
    let weights = files.require(&format!("{folder}/adapter_model.safetensors"), Bound::ANY, remedy).await?;
    let scale = adapter.lora_alpha / adapter.r as f64;
    Ok(Adapter { weights, scale, token_rows: token_rows.unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    const USUAL: &str =
        r#""peft_type":"LORA","r":4,"lora_alpha":6,"bias":"none","use_dora":false,"rank_pattern":{}"#;

    async fn open(model_type: &str, task: Option<&str>, settings: &str) -> Result<(bool, Value), FilesError> {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("adapters/retrieval");
        std::fs::create_dir_all(&inside).unwrap();
        std::fs::write(inside.join("adapter_config.json"), format!("{{{settings}}}")).unwrap();
        std::fs::write(inside.join("adapter_model.safetensors"), "").unwrap();
        let repository = Repository::Folder(folder.path().to_owned());
        let raw = serde_json::json!({"model_type": model_type});
        let mut config =
            ModelConfig { model_type: Some(model_type.to_owned()), raw, ..ModelConfig::default() };
        let reader = Reader { lora_task: task.map(str::to_owned), ..Reader::default() };
        let found = open_adapter(&repository, &mut config, &reader).await?;
        Ok((found.is_some(), config.raw["lora_scale"].clone()))
    }

    #[tokio::test]
    async fn an_adapter_is_found_with_its_scale_or_refused_by_name() {
        assert_eq!(open("qwen3", None, "").await.unwrap(), (false, Value::Null));
        for task in [None, Some("retrieval")] {
            assert_eq!(open(MODEL_TYPE, task, USUAL).await.unwrap(), (true, 1.5.into()));
        }
        let changed = |from: &str, to: &str| USUAL.replace(from, to);
        for (task, settings, part) in [
            (Some("clustering"), USUAL.to_owned(), "adapters/clustering/adapter_config.json"),
            (Some("../.."), USUAL.to_owned(), "adapters/../.."),
            (None, changed("LORA", "LOHA"), "`peft_type`"),
            (None, changed("none", "all"), "`bias`"),
            (None, changed("\"use_dora\":false", "\"use_dora\":true"), "`use_dora`"),
            (None, changed("{}", r#"{"q_proj":8}"#), "`rank_pattern`"),
            (None, changed("use_dora\":false", "alora_invocation_tokens\":[5]"), "`alora_invocation_tokens`"),
            (None, changed("use_dora\":false", "layer_replication\":[[0,2]]"), "`layer_replication`"),
            (
                None,
                USUAL.to_owned() + r#","trainable_token_indices":{"lm_head":[1]}"#,
                "`trainable_token_indices`",
            ),
            (None, changed("\"r\":4", "\"r\":0"), "`r`"),
            (None, changed("\"r\":4", "\"r\":-1"), "invalid value"),
        ] {
            let message = open(MODEL_TYPE, task, &settings).await.unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
