//! The log: a server's on standard output, as text or as JSON; a command's on standard error. Filtered by `LOG_LEVEL`.
//!
//! Input: `--json-output`, `--disable-spans` and the variable `LOG_LEVEL` (default `info`, for a command `warn`).
//! Output: the process's subscriber. What must hold: a filter that cannot be parsed is an error, never another level.

use anyhow::Context;
use std::{
    env,
    io::{self, IsTerminal},
};
use tracing_subscriber::{
    EnvFilter, Layer, Registry, filter::{LevelFilter, filter_fn}, fmt, layer::SubscriberExt, util::SubscriberInitExt,
};

const VARIABLE: &str = "LOG_LEVEL";

/// Starts the log of a server.
///
/// # Errors
///
/// If `LOG_LEVEL` is no filter, or a log was started before.
pub(crate) fn start(json_output: bool, disable_spans: bool) -> anyhow::Result<()> {
    let filter = parse_filter(env::var(VARIABLE).ok().as_deref(), "info")?;
    let layer: Box<dyn Layer<Registry> + Send + Sync> = if json_output {
        fmt::layer().json().flatten_event(true).with_span_list(false).with_writer(io::stdout).boxed()
    } else {
        fmt::layer().with_ansi(io::stdout().is_terminal()).with_writer(io::stdout).boxed()
    };
    // Without the hint, every record that a library logs at any level is made and only then dropped: the tokenizer
    // logs each word.
    let level = filter.max_level_hint().unwrap_or(LevelFilter::TRACE);
    let spans = filter_fn(move |meta| !(disable_spans && meta.is_span())).with_max_level_hint(level);
    let layer = layer.with_filter(filter).with_filter(spans);
    tracing_subscriber::registry().with(layer).try_init().context("the log cannot start")
}

/// Starts the log of a command, whose results are on standard output.
///
/// # Errors
///
/// As for a server.
pub(crate) fn start_on_stderr(default: &str) -> anyhow::Result<()> {
    let filter = parse_filter(env::var(VARIABLE).ok().as_deref(), default)?;
    let layer = fmt::layer().with_ansi(io::stderr().is_terminal()).with_writer(io::stderr).without_time();
    let layer = layer.with_target(false).with_filter(filter);
    tracing_subscriber::registry().with(layer).try_init().context("the log cannot start")
}

fn parse_filter(level: Option<&str>, default: &str) -> anyhow::Result<EnvFilter> {
    let level = level.filter(|level| !level.is_empty()).unwrap_or(default);
    let advice = || {
        format!("the variable {VARIABLE}=`{level}` is no log filter: give error, warn, info, debug or trace")
    };
    // On its own, any word would be taken for the name of a module.
    if !level.contains(['=', ',']) {
        level.parse::<LevelFilter>().with_context(advice)?;
    }
    EnvFilter::try_new(level).with_context(advice)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    #[test]
    fn a_filter_is_a_level_or_a_list_of_directives() {
        for (level, expected) in [
            (None, "info"),
            (Some(""), "info"),
            (Some("DEBUG"), "debug"),
            (Some("off"), "off"),
            (Some("text_embeddings_core=trace,warn"), "text_embeddings_core=trace,warn"),
        ] {
            assert_eq!(parse_filter(level, "info").unwrap().to_string(), expected, "{level:?}");
        }
        assert_eq!(parse_filter(None, "warn").unwrap().to_string(), "warn");
        for level in ["loud", "a=loud"] {
            let message = format!("{:#}", parse_filter(Some(level), "info").unwrap_err());
            assert!(message.contains("LOG_LEVEL") && message.contains(level), "{message}");
        }
    }
}
