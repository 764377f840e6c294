//! `--model-id demo`: the tiny re-ranker in the binary, for a demonstration without a download.
//!
//! Input: `models/tiny-reranker/` at build time. Output: its files, which stay in the binary. What must
//! hold: they have the layout of any other model, so that code which reads models needs no special case.

use text_embeddings_backend_core::BackendKind;

use super::error::FilesError;
use super::reading::MemoryFiles;

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

#[cfg(feature = "demo")]
pub(super) fn files(backend: BackendKind) -> Result<MemoryFiles, FilesError> {
    if backend == BackendKind::Python {
        let message = "the demonstration (`--model-id demo`) is in the binary, and `--backend python` reads folders \
                       only: leave it out";
        return Err(FilesError::Refused(message.to_owned()));
    }
    Ok(MemoryFiles::from_files(DEMO_MODEL_ID.into(), FILES))
}

/// Refuses: this build does not contain the demonstration.
#[cfg(not(feature = "demo"))]
pub(super) fn files(_backend: BackendKind) -> Result<MemoryFiles, FilesError> {
    let message = "the demonstration (`--model-id demo`) is not in this binary, which was built without the feature \
                   `demo`";
    Err(FilesError::Refused(message.to_owned()))
}

#[cfg(all(test, feature = "demo"))]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::super::{HubOptions, ModelFolder, ModelSource, Reader, fake_hub::describe, load};
    use super::*;

    #[tokio::test]
    async fn the_demonstration_is_read_from_the_binary() {
        let checked_in =
            std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tiny-reranker"));
        for (path, content) in FILES {
            assert_eq!(content, std::fs::read(checked_in.join(path)).unwrap(), "{path}");
        }
        let source = |backend| ModelSource {
            model_id: DEMO_MODEL_ID.to_owned(),
            revision: "main".to_owned(),
            token: None,
            cache_dir: None,
            reader: Reader { backend, ..Reader::default() },
        };
        let options = HubOptions { endpoint: Some("http://127.0.0.1:1".to_owned()), ..HubOptions::default() };
        let folder = load(&source(BackendKind::Candle), &options, &describe).await.unwrap();
        assert_eq!((folder.model_id.as_str(), folder.name().as_str()), (DEMO_MODEL_ID, DEMO_MODEL_ID));
        let unpacked = ModelFolder::open(checked_in, &Reader::default(), &describe).unwrap();
        assert_eq!((&folder.prompts, &folder.chat_template), (&unpacked.prompts, &unpacked.chat_template));
        assert_eq!((&folder.stored, &folder.logit_score), (&unpacked.stored, &unpacked.logit_score));
        assert!(folder.weights[0].length().unwrap() > 1 << 20 && !folder.weights[0].path().exists());
        let refused = load(&source(BackendKind::Python), &options, &describe).await.unwrap_err().to_string();
        assert!(refused.contains("--backend python"), "{refused}");
    }
}
