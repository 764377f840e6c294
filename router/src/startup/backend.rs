//! The choice of the backend: by the flags, and the advice to choose another for a model that this one does
//! not serve.
//!
//! Input: the flags. Output: the [`Reader`] of the model's files, and sentences. What must hold: the backend
//! is the one that `--backend` names.

use anyhow::anyhow;
use text_embeddings_backend::{BackendKind, is_built_in};
use text_embeddings_backend_core::ModelFile;
use text_embeddings_core::files::{FilesError, ModelFolder, Reader};

use crate::args::{HubArgs, nonempty};

/// The backend that will read a model's files.
pub(crate) fn reader(hub: &HubArgs) -> Reader {
    let gguf_file = nonempty(hub.gguf_file.as_ref()).cloned();
    let onnx_file = nonempty(hub.onnx_file.as_ref()).cloned();
    Reader {
        backend: hub.backend,
        onnx_file: if hub.backend == BackendKind::Ort { onnx_file } else { None },
        gguf_file,
        dense_path: None,
        lora_task: None,
        python_code: hub.trust_remote_code && hub.backend == BackendKind::Python,
    }
}

/// The error about a model's files, with the other backends that would serve the model.
pub(super) fn with_advice(error: FilesError) -> anyhow::Error {
    let FilesError::Architecture { reason, has_onnx } = error else { return error.into() };
    match advice(has_onnx, is_built_in) {
        Some(advice) => anyhow!("{reason}; {advice}"),
        None => anyhow!(reason),
    }
}

fn advice(has_onnx: bool, is_built_in: impl Fn(BackendKind) -> bool) -> Option<String> {
    let python = is_built_in(BackendKind::Python).then(|| "`--backend python` may serve it".to_owned());
    let feature = if is_built_in(BackendKind::Ort) { "" } else { ", in a build with the feature `ort`," };
    let ort = has_onnx.then(|| format!("`--backend ort`{feature} reads its ONNX file"));
    let advice: Vec<String> = python.into_iter().chain(ort).collect();
    (!advice.is_empty()).then(|| advice.join("; "))
}

/// The weight files and the types that they store, in a few words.
pub(super) fn weight_files(folder: &ModelFolder) -> String {
    let stored = folder.stored.as_ref().map_or_else(String::new, |stored| format!(" ({stored})"));
    let name = |file: &ModelFile| {
        let path = file.path();
        path.strip_prefix(&folder.root).unwrap_or(path).display().to_string()
    };
    match folder.weights.as_slice() {
        [] => stored,
        [file] => name(file) + &stored,
        [first, others @ ..] => format!("{} and {} more{stored}", name(first), others.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_architecture_that_is_not_known_comes_with_the_backends_that_would_serve_it() {
        for (built_in, has_onnx, expected) in [
            (&[][..], false, None),
            (&[], true, Some("`--backend ort`, in a build with the feature `ort`, reads its ONNX file")),
            (&[BackendKind::Ort], true, Some("`--backend ort` reads its ONNX file")),
            (&[BackendKind::Ort], false, None),
            (&[BackendKind::Python], false, Some("`--backend python` may serve it")),
            (
                &BackendKind::ALL,
                true,
                Some("`--backend python` may serve it; `--backend ort` reads its ONNX file"),
            ),
        ] {
            assert_eq!(advice(has_onnx, |kind| built_in.contains(&kind)).as_deref(), expected);
        }
        let error = with_advice(FilesError::Architecture { reason: "no mamba".to_owned(), has_onnx: true });
        assert!(error.to_string().starts_with("no mamba; "), "{error}");
    }
}
