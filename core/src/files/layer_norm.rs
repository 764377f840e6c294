//! Reads the layer norms of a head, from folders such as `3_LayerNorm`.
//!
//! Input: the files of the folder. Output: a [`LayerNormModule`]. What must hold: an unknown setting is an
//! error that names the file and the field.

use std::path::Path;

use serde::Deserialize;
use text_embeddings_backend_core::LayerNormModule;

use super::config::read_json;
use super::error::FilesError;
use super::folder::required_for;
use super::modules::module_files;
use super::weights::check_weights;

const REMEDY: &str = "a layer norm needs its config.json and its weights as model.safetensors; download the model again, \
                      or correct modules.json";
/// The name of the pooled vector among the features of sentence-transformers.
const POOLED: &str = "sentence_embedding";

/// The fields of `3_LayerNorm/config.json`.
#[derive(Debug, Deserialize)]
struct LayerNormConfig {
    dimension: usize,
    module_input_name: Option<String>,
    module_output_name: Option<String>,
}

/// Reads the layer norm in the folder `path` below `root`.
pub(super) fn load(root: &Path, path: &str) -> Result<LayerNormModule, FilesError> {
    let [config_file, weights] =
        module_files(path, |file| root.join(file).exists()).map(|file| required_for(root, &file, REMEDY));
    let (config_file, weights) = (config_file?, weights?);
    let LayerNormConfig { dimension, module_input_name, module_output_name } = read_json(&config_file)?;
    check_weights(&weights)?;
    for (field, name) in
        [("module_input_name", module_input_name), ("module_output_name", module_output_name)]
    {
        if let Some(value) = name.filter(|name| name != POOLED) {
            let known = "`sentence_embedding` is";
            return Err(FilesError::UnsupportedField { path: config_file, field, value, known });
        }
    }
    Ok(LayerNormModule { weights, size: dimension })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::super::fake_hub::{safetensors, write_files};
    use super::*;

    #[test]
    fn a_layer_norm_is_read_or_its_defect_named() {
        let read = |config: Option<&str>, weights: Option<Vec<u8>>| {
            let folder = tempfile::tempdir().unwrap();
            let config = config.map(|text| ("3_LayerNorm/config.json".to_owned(), text.as_bytes().to_vec()));
            let weights = weights.map(|bytes| ("3_LayerNorm/model.safetensors".to_owned(), bytes));
            write_files(folder.path(), &config.into_iter().chain(weights).collect());
            load(folder.path(), "3_LayerNorm")
        };
        assert_eq!(read(Some(r#"{"dimension":24}"#), Some(safetensors(16))).unwrap().size, 24);
        let table: [(_, _, &[&str]); 4] = [
            (None, Some(safetensors(16)), &["`3_LayerNorm/config.json` is missing"]),
            (Some(r#"{"dimension":24}"#), None, &["`3_LayerNorm/model.safetensors` is missing"]),
            (Some("{}"), Some(safetensors(16)), &["3_LayerNorm/config.json", "dimension"]),
            (
                Some(r#"{"dimension":24,"module_input_name":"token_embeddings"}"#),
                Some(safetensors(16)),
                &["`module_input_name`", "`token_embeddings`"],
            ),
        ];
        for (config, weights, parts) in table {
            let message = read(config, weights).unwrap_err().to_string();
            assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        }
    }
}
