//! Reads the settings of a head's modules: dense modules (a linear layer and an activation) from folders such
//! as `2_Dense`, and layer norms from folders such as `3_LayerNorm`.
//!
//! Input: the files of the folder. Output: a [`DenseModule`] or a [`LayerNormModule`]. What must hold: an
//! unknown setting is an error that names the file and the field.

use serde::Deserialize;
use text_embeddings_backend_core::{Activation, DenseModule, LayerNormModule};
use text_embeddings_checkpoint::{CheckpointError, CheckpointFile, ModelFile};

use super::config::Module;
use super::error::FilesError;
use super::gguf;
use super::names::{Bound, is_inside, module_config, module_files};
use super::reading::{FileText, read_text};
use super::repository::Repository;
use super::weights::check_weights;

const DENSE_REMEDY: &str = "a dense module needs its config.json and its weights as model.safetensors or \
                      pytorch_model.bin; download the model again, or correct modules.json or `--dense-path`";
const NORM_REMEDY: &str = "a layer norm needs its config.json and its weights as model.safetensors; download the model again, \
                      or correct modules.json";
/// The name of the pooled vector among the features of sentence-transformers.
const POOLED: (&str, &str) = ("sentence_embedding", "`sentence_embedding` is");
/// The name of a cross-encoder's raw scores among these features.
const SCORES: (&str, &str) = ("scores", "`scores` is");
/// The name of the vectors of tokens among these features.
const TOKENS: (&str, &str) = ("token_embeddings", "`token_embeddings` is");

/// The matrices of a dense module.
const LINEAR: &str = "linear.weight";
const RESIDUAL: &str = "residual.weight";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DenseRole {
    /// It computes another vector.
    Vector,
    /// It is the last module of a modular cross-encoder and computes the raw score.
    Scores,
    /// It computes another vector of each token, for late interaction.
    Tokens,
}

/// The fields of `2_Dense/config.json`.
#[derive(Debug, Deserialize)]
struct DenseConfig {
    in_features: usize,
    out_features: usize,
    #[serde(default = "default_yes")]
    bias: bool,
    /// A Python class, such as `torch.nn.modules.activation.Tanh`, which is also the default of
    /// sentence-transformers.
    #[serde(default = "default_tanh")]
    activation_function: String,
    /// The feature of sentence-transformers that the module reads. The default is the pooled vector.
    module_input_name: Option<String>,
    /// The feature that it writes. The default is the feature that it reads.
    module_output_name: Option<String>,
    #[serde(default)]
    use_residual: bool,
}

fn default_yes() -> bool {
    true
}

fn default_tanh() -> String {
    "torch.nn.modules.activation.Tanh".to_owned()
}

/// The fields of `3_LayerNorm/config.json`.
#[derive(Debug, Deserialize)]
struct LayerNormConfig {
    dimension: usize,
    module_input_name: Option<String>,
    module_output_name: Option<String>,
}

struct ModuleFiles {
    config: FileText,
    weights: ModelFile,
}

/// Opens the files of the module in the folder `path`.
async fn open_module(
    repository: &Repository<'_>,
    path: &str,
    remedy: &'static str,
) -> Result<ModuleFiles, FilesError> {
    let [config, weights] = module_files(path, |file| repository.has(file));
    let config = repository.require(&config, Bound::Small, remedy).await?;
    let weights = repository.require(&weights, Bound::ANY, remedy).await?;
    Ok(ModuleFiles { config: read_text(&config)?, weights })
}

/// Opens the files of a dense module, so that the Hub sends them before longer files.
pub(super) async fn fetch_dense(repository: &Repository<'_>, path: &str) -> Result<(), FilesError> {
    open_module(repository, path, DENSE_REMEDY).await.map(drop)
}

/// Whether the last module is a dense one that computes a single raw score, as in a modular cross-encoder.
pub(super) async fn ends_in_scores(
    repository: &Repository<'_>,
    modules: &[Module],
) -> Result<bool, FilesError> {
    let Some(module) = modules.last() else { return Ok(false) };
    if module.class_name() != "Dense" || !is_inside(&module.path) {
        return Ok(false);
    }
    let config: Option<DenseConfig> = repository.read_json(&module_config(&module.path)).await?;
    Ok(config.is_some_and(|config| {
        config.out_features == 1 && config.module_output_name.as_deref() == Some(SCORES.0)
    }))
}

/// Reads the dense module in the folder `path`.
pub(super) async fn load_dense(
    repository: &Repository<'_>,
    path: &str,
    role: DenseRole,
) -> Result<DenseModule, FilesError> {
    let ModuleFiles { config: text, weights } = open_module(repository, path, DENSE_REMEDY).await?;
    let config: DenseConfig = text.parse()?;
    let checkpoint = check_weights(&weights)?;
    let unsupported = |field, value: String, known| FilesError::UnsupportedField {
        path: text.path.clone(),
        field,
        value,
        known,
    };
    let Some(activation) = Activation::from_torch(&config.activation_function) else {
        let known = "torch's Identity, Tanh, GELU, SiLU, ReLU and Sigmoid are";
        return Err(unsupported("activation_function", config.activation_function, known));
    };
    let ((input, known_input), (output, known_output)) = match role {
        DenseRole::Vector => (POOLED, POOLED),
        DenseRole::Scores => (POOLED, SCORES),
        DenseRole::Tokens => (TOKENS, TOKENS),
    };
    let names = [
        ("module_input_name", config.module_input_name, input, known_input),
        ("module_output_name", config.module_output_name, output, known_output),
    ];
    for (field, name, supported, known) in names {
        if let Some(name) = name.filter(|name| name != supported) {
            return Err(unsupported(field, name, known));
        }
    }
    let DenseConfig { in_features, out_features, bias, use_residual, .. } = config;
    let is_linear = activation == Activation::Identity && !bias;
    let weights = match use_residual {
        false => weights,
        true if is_linear => add_residual(&checkpoint, [out_features, in_features])?,
        true => {
            let known = "`false` is, or `true` without bias and with the activation Identity";
            return Err(unsupported("use_residual", "true".to_owned(), known));
        }
    };
    Ok(DenseModule { weights, in_features, out_features, bias, activation })
}

/// The matrix of a linear module whose result is added to its input, or to another product with its input:
/// `W·x + R·x` is `(W + R)·x`. Without a matrix for the latter, `R` is the identity.
fn add_residual(checkpoint: &CheckpointFile, shape: [usize; 2]) -> Result<ModelFile, FilesError> {
    let [outputs, inputs] = shape;
    let mut sums = read_matrix(checkpoint, LINEAR, shape).map_err(FilesError::Weights)?;
    if outputs == inputs {
        sums.iter_mut().step_by(inputs + 1).for_each(|diagonal| *diagonal += 1.0);
    } else {
        let residual = read_matrix(checkpoint, RESIDUAL, shape).map_err(FilesError::Weights)?;
        sums.iter_mut().zip(residual).for_each(|(sum, value)| *sum += value);
    }
    Ok(gguf::matrix_file(RESIDUAL.into(), sums, shape))
}

fn read_matrix(
    checkpoint: &CheckpointFile,
    name: &str,
    shape: [usize; 2],
) -> Result<Vec<f64>, CheckpointError> {
    match checkpoint.tensors.get(name) {
        Some(tensor) if tensor.shape() == shape => tensor.read_numbers(name),
        _ => Err(CheckpointError::Missing { name: name.to_owned() }),
    }
}

/// Reads the layer norm in the folder `path`.
pub(super) async fn load_layer_norm(
    repository: &Repository<'_>,
    path: &str,
) -> Result<LayerNormModule, FilesError> {
    let ModuleFiles { config: text, weights } = open_module(repository, path, NORM_REMEDY).await?;
    let LayerNormConfig { dimension, module_input_name, module_output_name } = text.parse()?;
    check_weights(&weights)?;
    for (field, name) in
        [("module_input_name", module_input_name), ("module_output_name", module_output_name)]
    {
        let (supported, known) = POOLED;
        if let Some(value) = name.filter(|name| name != supported) {
            return Err(FilesError::UnsupportedField { path: text.path, field, value, known });
        }
    }
    Ok(LayerNormModule { weights, size: dimension })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::super::fake_hub::{safetensors, write_files};
    use super::super::reading::run_ready;
    use super::*;
    use std::path::Path;

    fn folder_at(root: &Path) -> Repository<'static> {
        Repository::Folder(root.to_owned())
    }

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
            assert_eq!(run_ready(ends_in_scores(&folder_at(folder.path()), &[module])).unwrap(), expected);
            assert_eq!(
                run_ready(load_dense(&folder_at(folder.path()), "4_Dense", DenseRole::Scores)).is_ok(),
                !text_is_vector(folder.path())
            );
        }
        assert!(!run_ready(ends_in_scores(&folder_at(Path::new(".")), &[])).unwrap());
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
            run_ready(load_dense(&folder_at(folder.path()), "2_Dense", DenseRole::Vector)).map(|module| {
                assert_eq!(module.weights.path(), folder.path().join("2_Dense/model.safetensors"));
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
        let residual = gelu.replace('}', r#","use_residual":true}"#);
        let gelu = read(Some(&gelu), Some(safetensors(16))).unwrap();
        assert_eq!(gelu.3, Activation::Gelu);
        let with = |field: &str| whole.replace('}', &format!(",{field}}}"));
        for field in [
            r#""module_input_name":"sentence_embedding","module_output_name":"sentence_embedding""#,
            r#""module_output_name":null,"use_residual":false"#,
        ] {
            assert!(read(Some(&with(field)), Some(safetensors(16))).is_ok(), "{field}");
        }
        let [tokens, output] =
            [r#""module_input_name":"token_embeddings""#, r#""module_output_name":"other""#].map(with);
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
            (Some(&residual), Some(safetensors(16)), &["`use_residual`", "without bias"]),
            (Some(whole), Some(vec![0; 20]), &["2_Dense/model.safetensors"]),
        ];
        for (config, weights, parts) in table {
            let message = read(config, weights).unwrap_err().to_string();
            assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        }
    }

    #[test]
    fn a_layer_norm_is_read_or_its_defect_named() {
        let read = |config: Option<&str>, weights: Option<Vec<u8>>| {
            let folder = tempfile::tempdir().unwrap();
            let config = config.map(|text| ("3_LayerNorm/config.json".to_owned(), text.as_bytes().to_vec()));
            let weights = weights.map(|bytes| ("3_LayerNorm/model.safetensors".to_owned(), bytes));
            write_files(folder.path(), &config.into_iter().chain(weights).collect());
            run_ready(load_layer_norm(&folder_at(folder.path()), "3_LayerNorm"))
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
