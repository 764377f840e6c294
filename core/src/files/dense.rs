//! Reads the dense modules of a head, from folders such as `2_Dense`. Each is a linear layer and an
//! activation.
//!
//! Input: the files of the folder. Output: a [`DenseModule`]. What must hold: an unknown setting is an error
//! that names the file and the field.

use std::path::Path;

use serde::Deserialize;
use text_embeddings_backend_core::{Activation, DenseModule};

use super::config::{Module, read_json, read_optional_json};
use super::error::FilesError;
use super::folder::required_for;
use super::modules::{module_config, module_files};
use super::weights::check_weights;

const REMEDY: &str = "a dense module needs its config.json and its weights as model.safetensors or \
                      pytorch_model.bin; download the model again, or correct modules.json or `--dense-path`";
/// The name of the pooled vector among the features of sentence-transformers.
const POOLED: &str = "sentence_embedding";
/// The name of a cross-encoder's raw scores among these features.
const SCORES: &str = "scores";

/// The role of a dense module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DenseRole {
    /// It computes another vector.
    Vector,
    /// It is the last module of a modular cross-encoder and computes the raw score.
    Scores,
}

/// The fields of `2_Dense/config.json`.
#[derive(Debug, Deserialize)]
struct DenseConfig {
    in_features: usize,
    out_features: usize,
    #[serde(default = "yes")]
    bias: bool,
    /// A Python class, such as `torch.nn.modules.activation.Tanh`, which is also the default of
    /// sentence-transformers.
    #[serde(default = "tanh")]
    activation_function: String,
    /// The feature of sentence-transformers that the module reads. The default is the pooled vector.
    module_input_name: Option<String>,
    /// The feature that it writes. The default is the feature that it reads.
    module_output_name: Option<String>,
    #[serde(default)]
    use_residual: bool,
}

fn yes() -> bool {
    true
}

fn tanh() -> String {
    "torch.nn.modules.activation.Tanh".to_owned()
}

/// Whether the last module is a dense one that computes a single raw score, as in a modular cross-encoder.
pub(super) fn ends_in_scores(root: &Path, modules: &[Module]) -> Result<bool, FilesError> {
    let Some(module) = modules.last().filter(|module| module.class_name() == "Dense") else {
        return Ok(false);
    };
    let config = module_config(&module.path);
    let config: Option<DenseConfig> = read_optional_json(&root.join(config))?;
    Ok(config.is_some_and(|config| {
        config.out_features == 1 && config.module_output_name.as_deref() == Some(SCORES)
    }))
}

/// The error for a missing file of a dense module.
pub(super) fn missing(place: String, file: String) -> FilesError {
    FilesError::Missing { place, file, remedy: REMEDY }
}

/// Reads the dense module in the folder `path` below `root`.
pub(super) fn load(root: &Path, path: &str, place: DenseRole) -> Result<DenseModule, FilesError> {
    let [config_file, weights] =
        module_files(path, |file| root.join(file).exists()).map(|file| required_for(root, &file, REMEDY));
    let (config_file, weights) = (config_file?, weights?);
    let config: DenseConfig = read_json(&config_file)?;
    check_weights(&weights)?;
    let unsupported = |field, value: String, known| FilesError::UnsupportedField {
        path: config_file.clone(),
        field,
        value,
        known,
    };
    let Some(activation) = Activation::from_torch(&config.activation_function) else {
        let known = "torch's Identity, Tanh, GELU, SiLU, ReLU and Sigmoid are";
        return Err(unsupported("activation_function", config.activation_function, known));
    };
    let (output, known) = match place {
        DenseRole::Vector => (POOLED, "`sentence_embedding` is"),
        DenseRole::Scores => (SCORES, "`scores` is"),
    };
    let names = [
        ("module_input_name", config.module_input_name, POOLED, "`sentence_embedding` is"),
        ("module_output_name", config.module_output_name, output, known),
    ];
    for (field, name, supported, known) in names {
        if let Some(name) = name.filter(|name| name != supported) {
            return Err(unsupported(field, name, known));
        }
    }
    if config.use_residual {
        return Err(unsupported("use_residual", "true".to_owned(), "`false` is"));
    }
    let DenseConfig { in_features, out_features, bias, .. } = config;
    Ok(DenseModule { weights, in_features, out_features, bias, activation })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::super::fake_hub::{safetensors, write_files};
    use super::*;

    #[test]
    fn a_modular_cross_encoder_ends_in_scores() {
        let config = |out_features: usize, name: &str| {
            format!(r#"{{"in_features":4,"out_features":{out_features},"module_output_name":"{name}"}}"#)
        };
        for (text, class, expected) in [
            (config(1, "scores"), "x.Dense", true),
            (config(2, "scores"), "x.Dense", false),
            (config(1, "sentence_embedding"), "x.Dense", false),
            (config(1, "scores"), "x.Normalize", false),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let files =
                [("4_Dense/config.json", text.into_bytes()), ("4_Dense/model.safetensors", safetensors(16))];
            write_files(folder.path(), &files.map(|(name, content)| (name.to_owned(), content)).into());
            let module = Module { class: class.to_owned(), path: "4_Dense".to_owned() };
            assert_eq!(ends_in_scores(folder.path(), &[module]).unwrap(), expected);
            assert_eq!(
                load(folder.path(), "4_Dense", DenseRole::Scores).is_ok(),
                !text_is_vector(folder.path())
            );
        }
        assert!(!ends_in_scores(Path::new("."), &[]).unwrap());
    }

    /// Whether the module's output is declared as a vector.
    fn text_is_vector(root: &Path) -> bool {
        std::fs::read_to_string(root.join("4_Dense/config.json")).unwrap().contains("sentence_embedding")
    }

    #[test]
    fn a_module_is_read_or_its_defect_named() {
        let whole = r#"{"in_features":4,"out_features":2,"bias":false,"activation_function":"torch.nn.modules.linear.Identity"}"#;
        let read = |config: Option<&str>, weights: Option<Vec<u8>>| {
            let folder = tempfile::tempdir().unwrap();
            let config = config.map(|text| ("2_Dense/config.json".to_owned(), text.as_bytes().to_vec()));
            let weights = weights.map(|bytes| ("2_Dense/model.safetensors".to_owned(), bytes));
            write_files(folder.path(), &config.into_iter().chain(weights).collect());
            load(folder.path(), "2_Dense", DenseRole::Vector).map(|module| {
                assert_eq!(module.weights, folder.path().join("2_Dense/model.safetensors"));
                (module.in_features, module.out_features, module.bias, module.activation)
            })
        };
        assert_eq!(read(Some(whole), Some(safetensors(16))).unwrap(), (4, 2, false, Activation::Identity));
        let short = read(Some(r#"{"in_features":4,"out_features":2}"#), Some(safetensors(16))).unwrap();
        assert_eq!(
            short,
            (4, 2, true, Activation::Tanh),
            "what sentence-transformers takes where nothing is said"
        );
        let mish = whole.replace("linear.Identity", "activation.Mish");
        let gelu = whole.replace("linear.Identity", "activation.GELU");
        let gelu = read(Some(&gelu), Some(safetensors(16))).unwrap();
        assert_eq!(gelu.3, Activation::Gelu);
        let with = |field: &str| whole.replace('}', &format!(",{field}}}"));
        for field in [
            r#""module_input_name":"sentence_embedding","module_output_name":"sentence_embedding""#,
            r#""module_output_name":null,"use_residual":false"#,
        ] {
            assert!(read(Some(&with(field)), Some(safetensors(16))).is_ok(), "{field}");
        }
        let [tokens, output, residual] = [
            r#""module_input_name":"token_embeddings""#,
            r#""module_output_name":"other""#,
            r#""use_residual":true"#,
        ]
        .map(with);
        let table: [(_, _, &[&str]); 8] = [
            (None, Some(safetensors(16)), &["`2_Dense/config.json` is missing", "--dense-path"]),
            (Some(whole), None, &["`2_Dense/model.safetensors` is missing", "pytorch_model.bin"]),
            (Some("{}"), Some(safetensors(16)), &["2_Dense/config.json", "in_features"]),
            (
                Some(mish.as_str()),
                Some(safetensors(16)),
                &["`activation_function`", "activation.Mish", "Tanh"],
            ),
            (Some(&tokens), Some(safetensors(16)), &["`module_input_name`", "`token_embeddings`"]),
            (Some(&output), Some(safetensors(16)), &["`module_output_name`", "`other`"]),
            (Some(&residual), Some(safetensors(16)), &["`use_residual`", "only `false` is"]),
            (Some(whole), Some(vec![0; 20]), &["2_Dense/model.safetensors"]),
        ];
        for (config, weights, parts) in table {
            let message = read(config, weights).unwrap_err().to_string();
            assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        }
    }
}
