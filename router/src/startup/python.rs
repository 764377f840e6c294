//! The options of the Python backend's worker.
//!
//! Input: flags, files, and the encoder that will serve. Output: [`PythonOptions`]. What must hold: a flag
//! that the worker would not obey is an error; the worker compares the ids of this server with the ids of the
//! model's own tokenizer.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use text_embeddings_backend::{BackendKind, Probe, PythonOptions};
use text_embeddings_core::files::ModelFolder;
use text_embeddings_core::model::Model;
use text_embeddings_core::tokenization::{
    Encoder, Input, PairText, TokenLimits, Truncation, TruncationDirection,
};

use crate::args::Args;

/// The interpreter if neither `--python` nor a virtual environment names one.
const INTERPRETER: &str = "python3";
/// Texts of several scripts, with spaces and punctuation that tokenizers treat in different ways.
const TEXTS: [&str; 3] = [
    "What is the capital of China?",
    "Der Ärger mit dem Straßenverkehr: 12,5 km — don't!",
    " Gravity  pulls\ttwo bodies together. 정원에 꽃이 핀다. 北京是中国的首都。",
];

/// The options of the worker; absent for another backend. The error is a sentence, if `--pooling` is given
/// although the model's files decide.
pub(super) fn options(
    args: &Args,
    model: &Model,
    folder: &ModelFolder,
    encoder: &Encoder,
) -> anyhow::Result<Option<PythonOptions>> {
    if args.model.hub.backend != BackendKind::Python {
        return Ok(None);
    }
    let has_modules = !folder.modules.is_empty();
    ensure!(
        args.pooling.is_none() || !has_modules,
        "`--pooling` would have no effect: modules.json says how sentence-transformers pools, and \
         `--backend python` obeys it; leave the flag out"
    );
    let interpreter =
        interpreter(args.model.python.as_deref(), env::var_os("VIRTUAL_ENV").map(PathBuf::from));
    let trust_remote_code = args.model.hub.trust_remote_code;
    if trust_remote_code {
        tracing::warn!(
            "Python files of the model may run, with all that this user may do (`--trust-remote-code`)"
        );
    }
    Ok(Some(PythonOptions {
        interpreter,
        trust_remote_code,
        pooling: if has_modules { None } else { model.embedder().map(|model| model.pool) },
        probes: probes(encoder),
    }))
}

/// The interpreter of `--python`, else of the virtual environment, else the first on the path.
fn interpreter(given: Option<&Path>, environment: Option<PathBuf>) -> PathBuf {
    let of_environment = environment.map(|folder| folder.join("bin/python"));
    given.map(Path::to_owned).or(of_environment).unwrap_or_else(|| INTERPRETER.into())
}

/// Texts and pairs with their ids; empty if there is a template around them, which tokenizers do not know.
fn probes(encoder: &Encoder) -> Vec<Probe> {
    if !matches!(encoder, Encoder::Text(_)) {
        return Vec::new();
    }
    let truncation =
        Truncation { truncate: false, direction: TruncationDirection::Right, limits: TokenLimits::NONE };
    let pair = PairText { instruction: None, query: TEXTS[0], document: TEXTS[2] };
    let texts = TEXTS.map(|text| (vec![text.to_owned()], Input::Text { prompt: "", text }));
    let pair = (vec![TEXTS[0].to_owned(), TEXTS[2].to_owned()], Input::Pair(pair));
    let mut probes = Vec::new();
    for (texts, input) in texts.into_iter().chain([pair]) {
        // A probe that is longer than the longest input cannot be compared.
        if let Ok(encoded) = encoder.encode(&input, truncation, None) {
            probes.push(Probe { texts, ids: encoded.ids, second: encoded.second });
        }
    }
    probes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interpreter_is_the_named_one_or_that_of_the_environment() {
        let environment = || Some(PathBuf::from("/e"));
        assert_eq!(interpreter(Some(Path::new("p")), environment()), Path::new("p"));
        assert_eq!(interpreter(None, environment()), Path::new("/e/bin/python"));
        assert_eq!(interpreter(None, None), Path::new("python3"));
    }
}
