//! The choice of the backend: what the flags ask for, and what another backend would serve.
//!
//! Input: the flags. Output: the [`Reader`] of the model's files, and sentences. What must hold: no other backend than the
//! one that is asked for, and no flag of another one, is taken silently.

use std::path::Path;

use anyhow::{anyhow, ensure};
use text_embeddings_backend::{BackendKind, is_built_in};
use text_embeddings_core::files::{FilesError, ModelFolder, Reader};

use crate::args::{HubArgs, ModelArgs};

/// Who will read the files of a model.
pub(crate) fn reader(hub: &HubArgs) -> Reader {
    Reader {
        backend: hub.backend,
        onnx_file: hub.onnx_file.clone().filter(|_| hub.backend == BackendKind::Ort),
        gguf_file: hub.gguf_file.clone(),
        python_code: hub.trust_remote_code && hub.backend == BackendKind::Python,
    }
}

/// Refuses flags that the chosen backend does not know.
///
/// # Errors
///
/// A sentence that names the flag and the backend that it is for.
pub(super) fn check(model: &ModelArgs) -> anyhow::Result<()> {
    let HubArgs { backend, onnx_file, .. } = &model.hub;
    let given = [
        ("--onnx-file", onnx_file.is_some(), BackendKind::Ort),
        ("--cutoff-layers", model.cutoff_layers.is_some(), BackendKind::Candle),
        ("--instruction-set", model.instruction_set.is_some(), BackendKind::Candle),
        ("--pin-threads", model.pin_threads, BackendKind::Candle),
    ];
    for (flag, is_given, of) in given {
        ensure!(
            !is_given || *backend == of,
            "`{flag}` is for `--backend {of}`, but `--backend {backend}` is chosen: leave it out"
        );
    }
    Ok(())
}

/// The error of a model's files, with the other backends that would serve the model.
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

/// The files that the weights come from, and what they store, in a few words.
pub(super) fn source(folder: &ModelFolder) -> String {
    let stored = folder.stored.as_ref().map_or_else(String::new, |stored| format!(" ({stored})"));
    let name = |path: &Path| path.strip_prefix(&folder.root).unwrap_or(path).display().to_string();
    match folder.weights.as_slice() {
        [] => stored,
        [file] => name(file) + &stored,
        [first, others @ ..] => format!("{} and {} more{stored}", name(first), others.len()),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::args::Args;

    fn model(flags: &str) -> ModelArgs {
        let start = ["text-embeddings-router", "--model-id", "m"];
        Args::try_from(start.into_iter().chain(flags.split_whitespace())).unwrap().model
    }

    #[test]
    fn a_flag_of_another_backend_is_refused() {
        for (flags, expected) in [
            ("", ""),
            ("--cutoff-layers 3 --instruction-set portable --pin-threads", ""),
            ("--backend candle", ""),
            (
                "--onnx-file model.onnx",
                "`--onnx-file` is for `--backend ort`, but `--backend candle` is chosen",
            ),
        ] {
            let message = check(&model(flags)).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(message.starts_with(expected) && message.is_empty() == expected.is_empty(), "{message}");
        }
        for (flags, flag) in [
            ("--cutoff-layers 3", "--cutoff-layers"),
            ("--instruction-set portable", "--instruction-set"),
            ("--pin-threads", "--pin-threads"),
        ] {
            for backend in [BackendKind::Ort, BackendKind::Python] {
                let mut model = model(flags);
                model.hub.backend = backend;
                let message = check(&model).unwrap_err().to_string();
                let expected =
                    format!("`{flag}` is for `--backend candle`, but `--backend {backend}` is chosen");
                assert!(message.starts_with(&expected), "{message}");
            }
        }
    }

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
