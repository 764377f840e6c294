//! Describes a model's head by its files: the modules of an embedding model or a modular cross-encoder, or
//! the labels of a classification head.
//!
//! Input: a [`ModelFolder`] of known kind. Output: a [`Head`], or labels in the order of their classes. What
//! must hold: a module that would change the vectors is used, or refused by name, but never left out.

use text_embeddings_backend_core::{
    Activation, DenseModule, Head, HeadModule, Pool, Pooling, SparseHead, TokenHead, WholeHead,
};
use text_embeddings_checkpoint::ModelFile;

use super::config::{BgeM3Files, ModelConfig, Module, PoolingConfig, SpladeFile};
use super::error::FilesError;
use super::folder::ModelFolder;
use super::modules;
use super::weights::check_weights;

/// The names of the label that means "relevant", in lower case.
const POSITIVE: [&str; 7] = ["yes", "true", "relevant", "positive", "entailment", "1", "label_1"];
/// pplx-embed's module for rounding, which its architecture does itself here, and that architecture.
const QUANTIZER: &str = "FlexibleQuantizer";
const QUANTISED_MODEL: &str = "bidirectional_pplx_qwen3";

/// The head of an embedding model with the pooling `pool`.
///
/// # Errors
///
/// [`FilesError`] for an unsupported module or setting, or a module with missing files.
pub fn embedding_head(folder: &ModelFolder, pool: Pool) -> Result<Head, FilesError> {
    let Some(pooling) = Pooling::from_flag(pool) else { return splade_head(folder) };
    if folder.ends_in_scores {
        return Err(FilesError::RerankerModule);
    }
    modules::check_order(&folder.modules, true)?;
    let quantises = folder.modules.iter().any(|module| module.class_name() == QUANTIZER);
    if quantises && folder.config.model_type.as_deref() != Some(QUANTISED_MODEL) {
        return Err(FilesError::UnsupportedModule { class: QUANTIZER.to_owned(), after: String::new() });
    }
    let BgeM3Files { lexical, token_vectors } = &folder.bge_m3;
    let hidden = folder.description.hidden;
    let token_module = dense_output(folder, token_vectors.as_ref(), hidden, Activation::Identity)?;
    let modules = folder.head_modules.clone();
    Ok(Head {
        whole: Some(WholeHead::Vector { pooling, modules }),
        tokens: Some(TokenHead::Modules(token_module.map(HeadModule::Dense).into_iter().collect())),
        sparse: dense_output(folder, lexical.as_ref(), 1, Activation::Relu)?.map(SparseHead::Lexical),
    })
}

/// The head of a modular cross-encoder: its pooling, then modules. The last module computes the score.
///
/// # Errors
///
/// As for [`embedding_head`].
pub fn scores_head(folder: &ModelFolder) -> Result<Head, FilesError> {
    modules::check_order(&folder.modules, false)?;
    let pool = folder.pooling.as_ref().and_then(PoolingConfig::pool);
    let Some(pooling) = pool.and_then(Pooling::from_flag) else {
        let message = "modules.json ends in `scores`, but the configuration of its Pooling does not say exactly one \
                       of cls, mean and lasttoken: download the model again with this folder";
        return Err(FilesError::Refused(message.to_owned()));
    };
    Ok(Head::scores(pooling, folder.head_modules.clone()))
}

/// One of bge-m3's additional outputs, if there are weights for it.
fn dense_output(
    folder: &ModelFolder,
    weights: Option<&ModelFile>,
    out_features: usize,
    activation: Activation,
) -> Result<Option<DenseModule>, FilesError> {
    let Some(weights) = weights.cloned() else { return Ok(None) };
    check_weights(&weights)?;
    let in_features = folder.description.hidden;
    Ok(Some(DenseModule { weights, in_features, out_features, bias: true, activation }))
}

fn splade_head(folder: &ModelFolder) -> Result<Head, FilesError> {
    let known = ["Transformer", "MLMTransformer", "SpladePooling"];
    let mut classes = folder.modules.iter().map(Module::class_name);
    if let Some(class) = classes.find(|class| !known.contains(class)) {
        return Err(FilesError::Refused(format!(
            "modules.json names the module `{class}`, which is not supported in a SPLADE model: it may have \
             Transformer (or MLMTransformer) and SpladePooling; leave `--pooling splade` out if it is not one"
        )));
    }
    if let Some(SpladeFile { path, config }) = &folder.splade {
        let fields = [
            ("pooling_strategy", &config.pooling_strategy, "max", "`max` is"),
            ("activation_function", &config.activation_function, "relu", "`relu` is"),
        ];
        for (field, value, supported, known) in fields {
            if value != supported {
                let (path, value) = (path.clone(), value.clone());
                return Err(FilesError::UnsupportedField { path, field, value, known });
            }
        }
    }
    Ok(Head::SPLADE)
}

/// The labels of a classification head in the order of their classes. Without names in the file they are
/// `LABEL_0` and so on, as in `transformers`.
pub(crate) fn class_labels(config: &ModelConfig) -> Result<Vec<String>, FilesError> {
    if !config.architectures.iter().any(|name| name.ends_with("ForSequenceClassification")) {
        return Err(FilesError::Refused(format!(
            "`architectures` of config.json names {}, whose head is not supported: only heads that label whole texts \
             (…ForSequenceClassification) are",
            config.architectures.join(", ")
        )));
    }
    let unclear = |field: &str| {
        FilesError::Refused(format!(
            "`{field}` of config.json must name each class once, from 0 on: correct it, or leave it out"
        ))
    };
    let classes = 0..config.label_count();
    if !config.id2label.is_empty() {
        let labels =
            classes.map(|class| config.id2label.get(&class.to_string()).cloned()).collect::<Option<_>>();
        return labels.ok_or_else(|| unclear("id2label"));
    }
    if !config.label2id.is_empty() {
        return classes
            .map(|class| config.label2id.iter().find(|(_, id)| **id == class).map(|(label, _)| label.clone()))
            .collect::<Option<_>>()
            .ok_or_else(|| unclear("label2id"));
    }
    Ok(classes.map(|class| format!("LABEL_{class}")).collect())
}

/// The class of a two-label re-ranker that means "relevant".
pub(crate) fn positive_label(name: &str, labels: &[String]) -> Result<usize, FilesError> {
    let mut found = labels
        .iter()
        .enumerate()
        .filter(|(_, label)| POSITIVE.contains(&label.trim().to_lowercase().as_str()));
    match (found.next(), found.next()) {
        (Some((class, _)), None) => Ok(class),
        _ => Err(FilesError::Refused(format!(
            "`--model-type reranker` needs to know which of the two labels of `{name}` ({}) means relevant: name \
             exactly one of them yes, true, relevant, positive, entailment or 1 in `id2label` of config.json, or \
             give `--model-type classifier`",
            labels.join(", ")
        ))),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::super::fake_hub::{describe, reranker_files, safetensors, write_files};
    use super::super::source::Reader;
    use super::*;

    fn dense_of(module: HeadModule) -> DenseModule {
        match module {
            HeadModule::Dense(dense) => dense,
            HeadModule::LayerNorm(_) => unreachable!("a dense module"),
        }
    }

    fn config(text: &str) -> ModelConfig {
        let config: ModelConfig = serde_json::from_str(text).unwrap();
        ModelConfig { architectures: vec!["Qwen3ForSequenceClassification".to_owned()], ..config }
    }

    /// The head of a model with these modules. Modules with files have a folder `N_Name`.
    fn head(classes: &[&str], pool: Pool, dense_path: Option<&str>) -> Result<Head, FilesError> {
        let folder = tempfile::tempdir().unwrap();
        let mut files = reranker_files();
        let modules: Vec<_> = classes
            .iter()
            .enumerate()
            .map(|(index, class)| serde_json::json!({ "idx": index, "path": format!("{index}_{class}"), "type": format!("x.{class}") }))
            .collect();
        files.insert("modules.json".to_owned(), serde_json::to_vec(&modules).unwrap());
        for (width, name) in [(8, "2_Dense"), (4, "3_Dense"), (2, "other")] {
            let text = format!(
                r#"{{"in_features":{width},"out_features":{},"bias":true,"activation_function":"torch.nn.modules.linear.Identity"}}"#,
                width / 2
            );
            files.insert(format!("{name}/config.json"), text.into());
            files.insert(format!("{name}/model.safetensors"), safetensors(16));
        }
        files.insert("1_Pooling/config.json".to_owned(), r#"{"pooling_mode_mean_tokens":true}"#.into());
        write_files(folder.path(), &files);
        let reader = Reader { dense_path: dense_path.map(str::to_owned), ..Reader::default() };
        embedding_head(&ModelFolder::open(folder.path(), &reader, &describe)?, pool)
    }

    #[test]
    fn the_modules_are_those_of_an_embedding_model_in_their_order() {
        let table: [(&[&str], Option<&str>, &[usize]); 6] = [
            (&[], None, &[]),
            (&["Transformer", "Pooling"], None, &[]),
            (&["Transformer", "Pooling", "Normalize"], None, &[]),
            (&["Transformer", "Dropout", "Pooling", "Dropout"], None, &[]),
            (&["Transformer", "Pooling", "Dense", "Dense", "Normalize"], None, &[8, 4]),
            (&["Transformer", "Pooling", "Dense"], Some("other"), &[2]),
        ];
        for (classes, dense_path, widths) in table {
            let head = head(classes, Pool::LastToken, dense_path).unwrap();
            assert_eq!((head.tokens, head.sparse), (Some(TokenHead::Modules(Vec::new())), None));
            let Some(WholeHead::Vector { pooling: Pooling::Last, modules }) = head.whole else {
                unreachable!("an embedding model's head");
            };
            let dense: Vec<DenseModule> = modules.into_iter().map(dense_of).collect();
            assert_eq!(
                dense.iter().map(|module| module.in_features).collect::<Vec<_>>(),
                widths,
                "{classes:?}"
            );
            assert!(dense.iter().all(|module| module.bias && module.activation == Activation::Identity));
        }
        // `modules::check_order` has a test of its own.
        let message = head(&["Transformer", "LogitScore"], Pool::Mean, None).unwrap_err().to_string();
        assert!(message.contains("so this is a re-ranker") && message.contains("--pooling"), "{message}");
    }

    #[test]
    fn labels_stand_in_the_order_of_their_classes() {
        let table: [(&str, Result<&[&str], &str>); 9] = [
            (r#"{"id2label":{"1":"b","0":"a"}}"#, Ok(&["a", "b"])),
            (r#"{"id2label":{"0":"a"},"label2id":{"x":0,"y":1}}"#, Ok(&["a"])),
            (r#"{"label2id":{"x":1,"y":0}}"#, Ok(&["y", "x"])),
            (r#"{"num_labels":3}"#, Ok(&["LABEL_0", "LABEL_1", "LABEL_2"])),
            (r#"{"num_labels":1}"#, Ok(&["LABEL_0"])),
            ("{}", Ok(&["LABEL_0", "LABEL_1"])),
            (r#"{"id2label":{"1":"a","2":"b"}}"#, Err("id2label")),
            (r#"{"id2label":{"zero":"a"}}"#, Err("id2label")),
            (r#"{"label2id":{"x":0,"y":0}}"#, Err("label2id")),
        ];
        for (text, expected) in table {
            match (class_labels(&config(text)), expected) {
                (Ok(labels), Ok(expected)) => assert_eq!(labels, expected, "{text}"),
                (Err(error), Err(field)) => assert!(error.to_string().contains(field), "{error}"),
                (result, _) => unreachable!("{text}: {result:?}"),
            }
        }
        let tokens = vec!["Qwen3ForTokenClassification".to_owned()];
        let error =
            class_labels(&ModelConfig { architectures: tokens, ..ModelConfig::default() }).unwrap_err();
        assert!(error.to_string().contains("Qwen3ForTokenClassification"), "{error}");
        let twelve = (0..12).map(|class| format!(r#""{class}":"l{class}""#)).collect::<Vec<_>>().join(",");
        let labels = class_labels(&config(&format!(r#"{{"id2label":{{{twelve}}}}}"#))).unwrap();
        assert_eq!(labels[9..], ["l9", "l10", "l11"], "by number, not by spelling");
    }

    #[test]
    fn the_positive_label_is_found_in_any_case_or_refused() {
        let table = [
            (["no", "yes"], Some(1)),
            (["YES", "NO"], Some(0)),
            (["False", "True"], Some(1)),
            (["Relevant", "Irrelevant"], Some(0)),
            (["negative", "Positive"], Some(1)),
            (["entailment", "not_entailment"], Some(0)),
            (["0", "1"], Some(1)),
            (["LABEL_0", "LABEL_1"], Some(1)),
            (["label_1", "label_0"], Some(0)),
            (["good", "bad"], None),
            (["yes", "relevant"], None),
            (["not relevant", "unrelated"], None),
        ];
        for (labels, expected) in table {
            let found = positive_label("head", &labels.map(str::to_owned));
            if let Some(class) = expected {
                assert_eq!(found.unwrap(), class, "{labels:?}");
                continue;
            }
            let message = found.unwrap_err().to_string();
            let parts = [labels[0], labels[1], "`head`", "id2label", "--model-type classifier"];
            assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        }
    }
}
