//! The log: of a server on standard output, as text or as JSON; of a command on standard error. Filtered by
//! `LOG_LEVEL`.
//!
//! Input: `--json-output`, `--disable-spans` and the variable `LOG_LEVEL` (default `info`, for a command
//! `warn`). Output: the process's subscriber. What must hold: a filter that cannot be parsed is an error,
//! never another level; an event is one line, whatever text of a client is in it.

use anyhow::Context;
use std::{
    env,
    fmt::{self as text, Write},
    io::{self, IsTerminal},
};
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    field::MakeExt,
    filter::{LevelFilter, filter_fn},
    fmt::{self, FormatFields},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

use super::writer::{LogEnd, LogWriter, is_control};

const VARIABLE: &str = "LOG_LEVEL";

/// Starts the log of a server. Its last lines are written when the result is dropped. Fails if `LOG_LEVEL` is
/// not a filter, or a log was started before.
pub(crate) fn start(json_output: bool, disable_spans: bool) -> anyhow::Result<LogEnd> {
    let filter = parse_filter(env::var(VARIABLE).ok().as_deref(), "info")?;
    let (writer, end) = LogWriter::start(io::stdout()).context("the log cannot start its thread")?;
    let layer: Box<dyn Layer<Registry> + Send + Sync> = if json_output {
        fmt::layer().json().flatten_event(true).with_span_list(false).with_writer(writer).boxed()
    } else {
        fmt::layer().fmt_fields(fields()).with_ansi(io::stdout().is_terminal()).with_writer(writer).boxed()
    };
    // Without the hint, each record of a library would be created at any level and only then dropped: the
    // tokenizer logs each word.
    let level = filter.max_level_hint().unwrap_or(LevelFilter::TRACE);
    let spans = filter_fn(move |meta| !(disable_spans && meta.is_span())).with_max_level_hint(level);
    let layer = layer.with_filter(filter).with_filter(spans);
    tracing_subscriber::registry().with(layer).try_init().context("the log cannot start")?;
    Ok(end)
}

/// Starts the log of a command, whose results are on standard output.
pub(crate) fn start_on_stderr(default: &str) -> anyhow::Result<()> {
    // The command's own error says what this library logs about a certificate.
    let default = format!("{default},rustls_platform_verifier=off");
    let filter = parse_filter(env::var(VARIABLE).ok().as_deref(), &default)?;
    let layer = fmt::layer().fmt_fields(fields()).with_ansi(io::stderr().is_terminal());
    let layer = layer.with_writer(io::stderr).without_time();
    let layer = layer.with_target(false).with_filter(filter);
    tracing_subscriber::registry().with(layer).try_init().context("the log cannot start")
}

/// Writes fields as text with escaped control characters, so that no client can forge a line of the log or
/// control the terminal that shows it.
fn fields() -> impl for<'writer> FormatFields<'writer> + 'static {
    let write =
        |writer: &mut fmt::format::Writer<'_>, field: &tracing::field::Field, value: &dyn text::Debug| {
            let value = format!("{value:?}");
            match field.name() {
                "message" => write!(writer, "{}", Escaped(&value)),
                name => write!(writer, "{name}={}", Escaped(&value)),
            }
        };
    fmt::format::debug_fn(write).delimited(" ")
}

/// Text whose control characters are written as `\n` or `\u{1b}`.
pub(crate) struct Escaped<'a>(pub(crate) &'a str);

impl text::Display for Escaped<'_> {
    fn fmt(&self, formatter: &mut text::Formatter<'_>) -> text::Result {
        self.0.chars().try_for_each(|character| {
            if is_control(character) {
                write!(formatter, "{}", character.escape_default())
            } else {
                formatter.write_char(character)
            }
        })
    }
}

fn parse_filter(level: Option<&str>, default: &str) -> anyhow::Result<EnvFilter> {
    let level = level.filter(|level| !level.is_empty()).unwrap_or(default);
    let advice = || {
        format!(
            "the variable {VARIABLE}=`{level}` is not a log filter: give error, warn, info, debug or trace"
        )
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
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn no_text_of_a_client_starts_a_line_or_reaches_the_terminal() {
        let written = Written::default();
        let writer = written.clone();
        let layer = fmt::layer().fmt_fields(fields()).with_ansi(false).without_time();
        let layer = layer.with_writer(move || writer.clone());
        let hostile = "a\n INFO forged\r\u{1b}[2J\u{85}\u{2028}\u{202e}감";
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let _span = tracing::info_span!("request", shown = %hostile, debugged = ?hostile).entered();
            tracing::warn!(status = 422, field = %hostile, "no route `{hostile}`");
        });
        let log = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let escaped = r"a\n INFO forged\r\u{1b}[2J\u{85}\u{2028}\u{202e}감";
        assert_eq!(log.lines().count(), 1, "{log}");
        assert_eq!(log.matches(escaped).count(), 4, "{log}");
        assert!(!log.trim_end().contains(char::is_control), "{log:?}");
        assert!(log.contains(" status=422 ") && log.contains("no route `"), "{log}");
    }

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
