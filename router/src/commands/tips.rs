//! Tips for command lines that are not understood.

use std::ffi::OsString;

use clap::{
    Command,
    error::{ContextKind, ContextValue, ErrorKind},
};
use text_embeddings_core::files::DEMO_MODEL_ID;

use super::SERVE;
use crate::args::variables_of;

/// Flags of vLLM, Infinity and llama.cpp, and the flag that does the same here, or nothing if none is needed.
const FOREIGN_FLAGS: [(&str, &str); 18] = [
    ("--allowed-origins", "--cors-allow-origin"),
    ("--batch-size", ""),
    ("--ctx-size", "--max-input-length"),
    ("--device", ""),
    ("--engine", ""),
    ("--gpu-memory-utilization", ""),
    ("--host", "--hostname"),
    ("--max-model-len", "--max-input-length"),
    ("--max-num-batched-tokens", "--max-batch-tokens"),
    ("--max-num-seqs", "--max-batch-requests"),
    ("--model", "--model-id"),
    ("--otlp-traces-endpoint", "--otlp-endpoint"),
    ("--pooling-method", "--pooling"),
    ("--quantization", ""),
    ("--runner", ""),
    ("--ssl-certfile", "--tls-cert"),
    ("--ssl-keyfile", "--tls-key"),
    ("--tensor-parallel-size", ""),
];

/// clap's error with a tip.
pub(super) fn with_tips(mut error: clap::Error, command: &Command, arguments: &[OsString]) -> clap::Error {
    let tip = detached_value(command, arguments)
        .or_else(|| unknown_command(&error, arguments))
        .or_else(|| missing(&error))
        .or_else(|| foreign_flag(&error))
        .or_else(|| variables_of(&error, command, arguments));
    // clap takes nearly every short word for a misspelt command.
    error.remove(ContextKind::SuggestedSubcommand);
    if let Some(tip) = tip {
        error.remove(ContextKind::SuggestedArg);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// The tip for a `true` or `false` that follows its flag without the equals sign that this flag needs. clap
/// takes such a word for a command.
fn detached_value(command: &Command, arguments: &[OsString]) -> Option<String> {
    arguments.windows(2).find_map(|pair| {
        let (flag, value) = (pair[0].to_str()?.strip_prefix("--")?, pair[1].to_str()?);
        let mut signed = command.get_arguments().filter(|known| known.is_require_equals_set());
        let is_detached =
            ["true", "false"].contains(&value) && signed.any(|known| known.get_long() == Some(flag));
        is_detached.then(|| format!("write `--{flag}={value}`"))
    })
}

/// The tip for a word that is no command.
fn unknown_command(error: &clap::Error, arguments: &[OsString]) -> Option<String> {
    let name = arguments.get(1).map(|word| word.to_string_lossy()).unwrap_or_default();
    let is_unknown = error.kind() == ErrorKind::InvalidSubcommand;
    is_unknown.then(|| format!("`{SERVE} {name}` serves a model of this name; `--help` lists the commands"))
}

/// The tip for a missing argument.
fn missing(error: &clap::Error) -> Option<String> {
    let names = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(names)) if error.kind() == ErrorKind::MissingRequiredArgument => names,
        _ => return None,
    };
    let is_missing = |start: &str| names.iter().any(|name| name.starts_with(start));
    if is_missing("--model-id") {
        // Someone who names no model may just want to see it work.
        return Some(format!("to try it without a download, give `--model-id {DEMO_MODEL_ID}`"));
    }
    is_missing("<DOCUMENT>").then(|| {
        "give documents as arguments, or a file of them with `--documents FILE` (`-` for standard input)"
            .to_owned()
    })
}

/// The tip for a flag of another server.
fn foreign_flag(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg) else { return None };
    let (_, here) =
        FOREIGN_FLAGS.iter().find(|(flag, _)| error.kind() == ErrorKind::UnknownArgument && flag == given)?;
    Some(match *here {
        "" => "leave it out: docs/migrating.md says why".to_owned(),
        here => format!("here, this is `{here}`"),
    })
}
