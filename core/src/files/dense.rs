//! The dense modules of an embedding model: folders such as `2_Dense`, each a linear layer and an activation.
//!
//! Input: `modules.json`, `--dense-path`, and the folders' own files. Output: [`DenseModule`]s in the order in which a
//! vector goes through them. What must hold: every path stays inside the model's folder; a setting that is not known is
//! an error that names file and field.

use std::path::{Component, Path};

use serde::Deserialize;
use text_embeddings_backend_core::{Activation, DenseModule};

use super::config::{Module, read_json};
use super::error::FilesError;
use super::folder::required_for;
use super::weights::{SINGLE_FILE, check_weights};

const MODULE_CONFIG: &str = "config.json";
const REMEDY: &str = "a dense module needs its config.json and its weights as model.safetensors (of a \
                      pytorch_model.bin, loading and saving the model with sentence-transformers makes one); download \
                      the model again, or correct modules.json or `--dense-path`";
/// The name of the pooled vector among sentence-transformers' features.
const POOLED: &str = "sentence_embedding";

/// `2_Dense/config.json`.
#[derive(Debug, Deserialize)]
struct DenseConfig {
    in_features: usize,
    out_features: usize,
    #[serde(default = "yes")]
    bias: bool,
    /// A Python class, such as `torch.nn.modules.activation.Tanh`, which is also what sentence-transformers takes where
    /// there is none.
    #[serde(default = "tanh")]
    activation_function: String,
    /// What the module takes, of sentence-transformers' features; the pooled vector where there is none.
    module_input_name: Option<String>,
    /// What it gives; the same where there is none.
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

/// The folders of the dense modules: those of `modules.json`, or `dense_path` in the place of the one.
pub(super) fn dense_paths(modules: &[Module], dense_path: Option<&str>) -> Result<Vec<String>, FilesError> {
    let named = modules.iter().filter(|module| module.class_name() == "Dense");
    let named: Vec<String> = named.map(|module| module.path.clone()).collect();
    let paths = match dense_path {
        None => named,
        Some(path) if named.len() < 2 => vec![path.to_owned()],
        Some(path) => {
            return Err(FilesError::SeveralDense { path: path.to_owned(), named: named.join(", ") });
        }
    };
    match paths.iter().find(|path| !is_inside(path)) {
        Some(path) => Err(FilesError::DensePath { path: path.clone() }),
        None => Ok(paths),
    }
}

/// Whether a path names a folder below the model's.
fn is_inside(path: &str) -> bool {
    let mut components = Path::new(path).components();
    components.clone().next().is_some() && components.all(|part| matches!(part, Component::Normal(_)))
}

/// The files of a dense module in its folder `path`.
pub(super) fn dense_files(path: &str) -> [String; 2] {
    let path = path.trim_end_matches('/');
    [format!("{path}/{MODULE_CONFIG}"), format!("{path}/{SINGLE_FILE}")]
}

/// What to do about a missing file of a dense module.
pub(super) fn missing(place: String, file: String) -> FilesError {
    FilesError::Missing { place, file, remedy: REMEDY }
}

/// Reads the dense module in the folder `path` below `root`.
pub(super) fn load(root: &Path, path: &str) -> Result<DenseModule, FilesError> {
    let [config_file, weights] = dense_files(path).map(|file| required_for(root, &file, REMEDY));
    let (config_file, weights) = (config_file?, weights?);
    let config: DenseConfig = read_json(&config_file)?;
    check_weights(&weights)?;
    let unsupported = |field, value: String, known| FilesError::UnsupportedField {
        path: config_file.clone(),
        field,
        value,
        known,
    };
    let activation = match config.activation_function.rsplit('.').next() {
        Some("Identity") => Activation::Identity,
        Some("Tanh") => Activation::Tanh,
        _ => {
            let known = "torch's Identity and Tanh are";
            return Err(unsupported("activation_function", config.activation_function, known));
        }
    };
    let names =
        [("module_input_name", config.module_input_name), ("module_output_name", config.module_output_name)];
    for (field, name) in names {
        if let Some(name) = name.filter(|name| name != POOLED) {
            return Err(unsupported(field, name, "`sentence_embedding` is"));
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

    fn modules(paths: &[&str]) -> Vec<Module> {
        let module = |path: &&str| Module {
            class: "sentence_transformers.models.Dense".to_owned(),
            path: (*path).to_owned(),
        };
        let transformer = Module { class: "x.Transformer".to_owned(), path: String::new() };
        [transformer].into_iter().chain(paths.iter().map(module)).collect()
    }

    #[test]
    fn the_flag_stands_in_for_the_one_module() {
        let table: [(&[&str], Option<&str>, &[&str]); 5] = [
            (&[], None, &[]),
            (&["2_Dense"], None, &["2_Dense"]),
            (&["2_Dense", "3_Dense"], None, &["2_Dense", "3_Dense"]),
            (&["2_Dense"], Some("2_Dense_1024"), &["2_Dense_1024"]),
            (&[], Some("extra/2_Dense/"), &["extra/2_Dense/"]),
        ];
        for (named, flag, expected) in table {
            assert_eq!(dense_paths(&modules(named), flag).unwrap(), expected, "{named:?} {flag:?}");
        }
        let message = dense_paths(&modules(&["2_Dense", "3_Dense"]), Some("x")).unwrap_err().to_string();
        assert!(message.contains("`--dense-path x`") && message.contains("2_Dense, 3_Dense"), "{message}");
        assert_eq!(dense_files("2_Dense/"), ["2_Dense/config.json", "2_Dense/model.safetensors"]);
    }

    #[test]
    fn never_a_path_out_of_the_models_folder() {
        for path in ["", ".", "..", "../2_Dense", "2_Dense/../..", "/etc", "./2_Dense"] {
            let by_flag = dense_paths(&[], Some(path)).unwrap_err().to_string();
            let by_file = dense_paths(&modules(&[path]), None).unwrap_err().to_string();
            assert!(by_flag.contains(&format!("`{path}`")) && by_flag == by_file, "{by_flag}");
        }
    }

    #[test]
    fn a_module_is_read_or_its_defect_named() {
        let whole = r#"{"in_features":4,"out_features":2,"bias":false,"activation_function":"torch.nn.modules.linear.Identity"}"#;
        let read = |config: Option<&str>, weights: Option<Vec<u8>>| {
            let folder = tempfile::tempdir().unwrap();
            let config = config.map(|text| ("2_Dense/config.json".to_owned(), text.as_bytes().to_vec()));
            let weights = weights.map(|bytes| ("2_Dense/model.safetensors".to_owned(), bytes));
            write_files(folder.path(), &config.into_iter().chain(weights).collect());
            load(folder.path(), "2_Dense").map(|module| {
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
        let relu = whole.replace("linear.Identity", "activation.ReLU");
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
                Some(relu.as_str()),
                Some(safetensors(16)),
                &["`activation_function`", "activation.ReLU", "Tanh"],
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
