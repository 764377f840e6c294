//! What the Python backend is told of a model, and which flags it does not know.
//!
//! Input: flags, files, and the encoder that will serve. Output: [`PythonOptions`]. What must hold: without `--backend python`
//! no flag of it is taken silently, and with it no flag that the worker would not obey; the ids of this server are compared
//! with those of the model's own tokenizer.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use text_embeddings_backend::{BackendKind, Probe, PythonOptions};
use text_embeddings_core::files::ModelFolder;
use text_embeddings_core::tokenization::{
    Encoder, Input, PairText, TokenLimits, Truncation, TruncationDirection,
};

use crate::{args::Args, config::Config};

/// The interpreter where neither `--python` nor a virtual environment names one.
const INTERPRETER: &str = "python3";
/// Texts of several scripts, with spaces and punctuation that tokenizers treat in different ways.
const TEXTS: [&str; 3] = [
    "What is the capital of China?",
    "Der Ärger mit dem Straßenverkehr: 12,5 km — don't!",
    " Gravity  pulls\ttwo bodies together. 정원에 꽃이 핀다. 北京是中国的首都。",
];

/// Refuses flags that the chosen backend does not know.
///
/// # Errors
///
/// A sentence that names the flag.
pub(super) fn check(args: &Args) -> anyhow::Result<()> {
    if args.model.hub.backend == BackendKind::Python {
        let is_given = args.dense_path.as_ref().is_some_and(|path| !path.is_empty());
        ensure!(
            !is_given,
            "`--dense-path` is for `--backend candle`, but `--backend python` is chosen: leave it out"
        );
        return Ok(());
    }
    let given = [
        ("--python", args.model.python.is_some()),
        ("--trust-remote-code", args.model.hub.trust_remote_code),
    ];
    for (flag, is_given) in given {
        ensure!(
            !is_given,
            "`{flag}` is for `--backend python`, but `--backend {}` is chosen: leave it out",
            args.model.hub.backend
        );
    }
    Ok(())
}

/// What the worker is told; none for another backend.
///
/// # Errors
///
/// A sentence, if `--pooling` is given where the model's files decide.
pub(super) fn options(
    args: &Args,
    config: &Config,
    folder: &ModelFolder,
    encoder: &Encoder,
) -> anyhow::Result<Option<PythonOptions>> {
    if args.model.hub.backend != BackendKind::Python {
        return Ok(None);
    }
    let has_modules = !folder.modules.is_empty();
    ensure!(
        args.pooling.is_none() || !has_modules,
        "`--pooling` would have no effect: modules.json says how sentence-transformers pools, and `--backend python` obeys \
         it; leave the flag out"
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
        pooling: match config.model_type {
            text_embeddings_backend::ModelType::Embedding(pool) if !has_modules => Some(pool),
            _ => None,
        },
        probes: probes(encoder),
        device_timeout: config.device_timeout,
    }))
}

/// `--python`, else that of the virtual environment, else the first on the path.
fn interpreter(given: Option<&Path>, environment: Option<PathBuf>) -> PathBuf {
    let of_environment = environment.map(|folder| folder.join("bin/python"));
    given.map(Path::to_owned).or(of_environment).unwrap_or_else(|| INTERPRETER.into())
}

/// Texts and pairs with their ids; none where a template comes around them, which no tokenizer knows.
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
        // Where the longest input is shorter than a probe, there is nothing to compare.
        if let Ok(encoded) = encoder.encode(&input, truncation, None) {
            probes.push(Probe { texts, ids: encoded.ids, second: encoded.second });
        }
    }
    probes
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    #[test]
    fn a_flag_of_another_backend_is_refused() {
        for (backend, flags, expected) in [
            (BackendKind::Candle, "", ""),
            (BackendKind::Candle, "--dense-path 2_Dense", ""),
            (BackendKind::Candle, "--python python3", "`--python` is for `--backend python`"),
            (BackendKind::Ort, "--trust-remote-code", "`--trust-remote-code` is for `--backend python`"),
            (BackendKind::Python, "--trust-remote-code --python x/bin/python", ""),
            (BackendKind::Python, "--dense-path 2_Dense", "`--dense-path` is for `--backend candle`"),
        ] {
            let start = ["text-embeddings-router", "--model-id", "m"];
            let mut args = Args::try_from(start.into_iter().chain(flags.split_whitespace())).unwrap();
            args.model.hub.backend = backend;
            let message = check(&args).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(message.starts_with(expected) && message.is_empty() == expected.is_empty(), "{message}");
        }
    }

    #[test]
    fn the_interpreter_is_the_one_that_is_named_or_that_of_the_environment() {
        let environment = || Some(PathBuf::from("/e"));
        assert_eq!(interpreter(Some(Path::new("p")), environment()), Path::new("p"));
        assert_eq!(interpreter(None, environment()), Path::new("/e/bin/python"));
        assert_eq!(interpreter(None, None), Path::new("python3"));
    }
}
