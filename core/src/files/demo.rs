//! `--model-id demo`: the tiny re-ranker in the binary, for a demonstration without a download.
//!
//! Input: `models/tiny-reranker/` at build time. Output: its files in a temporary folder, which lives as long
//! as the [`ModelFolder`](super::ModelFolder) made from it. What must hold: the folder has the layout of any
//! other model, so that code which reads models needs no special case.

#[cfg(feature = "demo")]
use std::{fs, io};

use tempfile::TempDir;

use super::error::FilesError;

/// The `--model-id` of the demonstration.
pub const DEMO_MODEL_ID: &str = "demo";

/// The files of the model by their paths in the folder.
#[cfg(feature = "demo")]
macro_rules! files {
    ($($path:literal),+ $(,)?) => {
        [$(($path, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tiny-reranker/", $path)))),+]
    };
}

#[cfg(feature = "demo")]
const FILES: [(&str, &[u8]); 9] = files![
    "1_LogitScore/config.json",
    "chat_template.jinja",
    "config.json",
    "config_sentence_transformers.json",
    "model.safetensors",
    "modules.json",
    "sentence_bert_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
];

/// Writes the files of the demonstration to a new temporary folder.
///
/// # Errors
///
/// [`FilesError::Demo`] if the files cannot be written to the system's temporary folder.
#[cfg(feature = "demo")]
pub(super) fn unpack() -> Result<TempDir, FilesError> {
    write_files().map_err(|error| FilesError::Demo {
        reason: format!(
            "cannot be written to {} ({error}): make room there, or name another folder in TMPDIR",
            std::env::temp_dir().display()
        ),
    })
}

#[cfg(feature = "demo")]
fn write_files() -> io::Result<TempDir> {
    let folder = tempfile::Builder::new().prefix("text-embeddings-router-demo-").tempdir()?;
    for (path, contents) in FILES {
        let path = folder.path().join(path);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, contents)?;
    }
    Ok(folder)
}

/// Refuses: this build does not contain the demonstration.
///
/// # Errors
///
/// Always [`FilesError::Demo`].
#[cfg(not(feature = "demo"))]
pub(super) fn unpack() -> Result<TempDir, FilesError> {
    let reason = "is not in this binary, which was built without the feature `demo`".to_owned();
    Err(FilesError::Demo { reason })
}

#[cfg(all(test, feature = "demo"))]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::super::{HubOptions, ModelSource, Reader, fake_hub::describe, load};
    use super::*;

    #[tokio::test]
    async fn the_demonstration_is_unpacked_and_goes_away_with_its_folder() {
        let source = ModelSource {
            model_id: DEMO_MODEL_ID.to_owned(),
            revision: "main".to_owned(),
            token: None,
            cache_dir: None,
            dense_path: None,
            reader: Reader::default(),
        };
        let options = HubOptions { endpoint: Some("http://127.0.0.1:1".to_owned()), ..HubOptions::default() };
        let folder = load(&source, &options, &describe).await.unwrap();
        assert_eq!((folder.model_id.as_str(), folder.weights.len()), (DEMO_MODEL_ID, 1));
        let checked_in = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tiny-reranker");
        for (path, _) in FILES {
            let given = fs::read(folder.root.join(path)).unwrap();
            assert_eq!(given, fs::read(format!("{checked_in}/{path}")).unwrap(), "{path}");
        }
        let root = folder.root.clone();
        drop(folder.clone());
        assert!(root.exists());
        drop(folder);
        assert!(!root.exists());
    }
}
