//! Finds the files of a repository that sentence-transformers needs.
//!
//! Input: the names of a repository's files. Output: the files to download. What must hold: every resulting
//! name is one of the input names; Python files are only included if they may run; there are at most
//! [`MAX_FILES`] files.

use std::collections::BTreeSet;

use super::error::FilesError;
use super::names::{self, Bound};
use super::repository::Repository;

/// The most files of a model. Models with many shards have about two hundred.
const MAX_FILES: usize = 2000;
/// The endings of configurations, vocabularies and templates.
const SMALL: [&str; 6] = [".json", ".txt", ".model", ".spm", ".bpe", ".jinja"];
const CODE: &str = ".py";
/// Folders with the same model for other libraries, or with states of its training.
const OTHERS: [&str; 4] = ["onnx", "openvino", "coreml", "runs"];
const CHECKPOINT: &str = "checkpoint-";
/// Prefixes of weight files, by their ending. Other pickles next to them (`training_args.bin`) do not contain
/// weights.
const WEIGHTS: [(&str, &[&str]); 2] =
    [(".safetensors", &["model", "adapter_model"]), (".bin", &["pytorch_model", "adapter_model"])];
/// The weights of an adapter, for models that have no other weights of their own.
const ADAPTER: &str = "adapter_model.safetensors";

/// The files to download. Each list has the order of names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct WantedFiles {
    /// Files whose length is bounded by their kind.
    small: Vec<String>,
    /// Files of any length.
    weights: Vec<String>,
}

/// Fetches the files that sentence-transformers reads, which reads the folder itself.
pub(super) async fn fetch_files(repository: &Repository<'_>, code: bool) -> Result<(), FilesError> {
    let Repository::Hub(hub) = repository else { return Ok(()) };
    let WantedFiles { small, weights } = wanted(hub.names(), code)?;
    for name in &small {
        repository.open(name, Bound::Small).await?;
    }
    for name in &weights {
        repository.open(name, Bound::ANY).await?;
    }
    Ok(())
}

/// The files that sentence-transformers reads. Python files are included if `code` is true.
fn wanted(files: &BTreeSet<String>, code: bool) -> Result<WantedFiles, FilesError> {
    let mut wanted = WantedFiles::default();
    for file in files.iter().filter(|file| !is_other(file)) {
        let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
        let is_weights = WEIGHTS.iter().any(|(ending, starts)| {
            name.ends_with(ending) && starts.iter().any(|start| name.starts_with(start))
        });
        // The same weights may exist in both formats.
        let is_twice = name.ends_with(WEIGHTS[1].0) && has_safetensors(files, folder);
        if is_weights && !is_twice {
            wanted.weights.push(file.clone());
        } else if SMALL.iter().any(|ending| name.ends_with(ending)) || code && name.ends_with(CODE) {
            wanted.small.push(file.clone());
        }
    }
    let count = wanted.small.len() + wanted.weights.len();
    if count <= MAX_FILES {
        return Ok(wanted);
    }
    Err(FilesError::Refused(format!(
        "the repository has {count} files that sentence-transformers might read, more than the limit of \
         {MAX_FILES}: it is not a model"
    )))
}

fn is_other(file: &str) -> bool {
    let mut folders = file.split('/').rev().skip(1);
    file.starts_with('.')
        || folders.any(|folder| {
            OTHERS.contains(&folder) || folder.starts_with(CHECKPOINT) || folder.starts_with('.')
        })
}

fn has_safetensors(files: &BTreeSet<String>, folder: &str) -> bool {
    let within = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    let has = |name: &str| files.contains(&format!("{within}{name}"));
    names::has_safetensors(has) || has(ADAPTER)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    fn files(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn configurations_weights_and_modules_are_wanted_and_nothing_else() {
        let all = files(&[
            ".gitattributes",
            ".cache/x.json",
            "1_Pooling/config.json",
            "2_Dense/config.json",
            "2_Dense/model.safetensors",
            "2_Dense/pytorch_model.bin",
            "3_LSTM/lstm_config.json",
            "3_LSTM/pytorch_model.bin",
            "README.md",
            "checkpoint-500/model.safetensors",
            "code/modeling.py",
            "config.json",
            "custom_st.py",
            "flax_model.msgpack",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "onnx/config.json",
            "onnx/model.onnx",
            "openvino/openvino_model.bin",
            "optimizer.bin",
            "pytorch_model-00001-of-00002.bin",
            "sentencepiece.bpe.model",
            "tf_model.h5",
            "training_args.bin",
            "vocab.txt",
        ]);
        let small = [
            "1_Pooling/config.json",
            "2_Dense/config.json",
            "3_LSTM/lstm_config.json",
            "config.json",
            "model.safetensors.index.json",
            "sentencepiece.bpe.model",
            "vocab.txt",
        ];
        let weights = [
            "2_Dense/model.safetensors",
            "3_LSTM/pytorch_model.bin",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ];
        let found = wanted(&all, false).unwrap();
        assert_eq!(
            (found.small, found.weights),
            (small.map(str::to_owned).to_vec(), weights.map(str::to_owned).to_vec())
        );
        let with_code = wanted(&all, true).unwrap().small;
        let code: Vec<&String> = with_code.iter().filter(|file| file.ends_with(CODE)).collect();
        assert_eq!(code, ["code/modeling.py", "custom_st.py"]);
        assert_eq!(with_code.len(), small.len() + code.len());
    }

    #[test]
    fn more_files_than_a_model_has_are_refused() {
        let names = |count: usize| (0..count).map(|number| format!("{number}.json")).collect();
        assert!(wanted(&names(MAX_FILES), false).is_ok());
        let message = wanted(&names(MAX_FILES + 1), false).unwrap_err().to_string();
        assert!(message.contains("2001 files"), "{message}");
    }
}
