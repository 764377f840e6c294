//! `docs/cli.md`, made from the flags.

#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use std::fmt::Write;

use clap::{Arg, Command, CommandFactory};

use crate::{args::Args, testing::check_document};

const HEAD: &str = "# Command line

Made from the flags by `make docs`; a test fails when it is stale.

```
text-embeddings-router --model-id <MODEL_ID> [OPTIONS]
```

A flag given on the command line wins over its variable. A switch without a value takes `true` or `false` in its variable.
";

const VARIABLES: &str = "
## Variables without a flag

| variable | meaning |
|---|---|
| `LOG_LEVEL` | How much is logged: `error`, `warn`, `info` (default), `debug`, `trace` or `off`, or a list such as `warn,text_embeddings_core=debug` |
| `HF_HOME`, `HF_ENDPOINT`, `HF_HUB_OFFLINE` | The Hub client's own: its folder, its server, and whether it must do without one |
| `OTEL_…` | OpenTelemetry's own, such as `OTEL_TRACES_SAMPLER`, `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_EXPORTER_OTLP_HEADERS`; they take effect where `--otlp-endpoint` is given |
";

/// The page: a table for each group of flags, in the order of the help.
fn page(command: &Command) -> String {
    let shown = || command.get_arguments().filter(|argument| argument.get_help_heading().is_some());
    let mut headings: Vec<&str> = shown().filter_map(Arg::get_help_heading).collect();
    headings.dedup();
    let mut page = HEAD.to_owned();
    for heading in headings {
        write!(page, "\n## {heading}\n\n| flag | variable | default | meaning |\n|---|---|---|---|\n")
            .unwrap();
        for argument in shown().filter(|argument| argument.get_help_heading() == Some(heading)) {
            page.push_str(&row(argument));
        }
    }
    page + VARIABLES
}

fn row(argument: &Arg) -> String {
    let long = argument.get_long().unwrap();
    let short = argument.get_short().map_or_else(String::new, |short| format!(", `-{short}`"));
    let variable = argument.get_env().unwrap().to_str().unwrap();
    let help = argument.get_help().unwrap().to_string();
    // A default that depends on something stands in the help itself.
    let (meaning, depends) = match help.split_once(" [default: ") {
        Some((meaning, rest)) => {
            let (default, rest) = rest.split_once(']').unwrap();
            (format!("{meaning}{rest}"), Some(default.to_owned()))
        }
        None => (help, None),
    };
    let fixed = argument.get_default_values().first().map(|value| format!("`{}`", value.to_str().unwrap()));
    let switch = (!argument.get_action().takes_values()).then(|| "`false`".to_owned());
    let default = depends.or(fixed).or(switch).unwrap_or_default();
    let meaning = meaning.trim_end_matches('.').replace('|', "\\|");
    format!("| `--{long}`{short} | `{variable}` | {default} | {meaning} |\n")
}

#[test]
fn the_page_that_is_checked_in_is_that_of_the_flags() {
    check_document("docs/cli.md", &page(&Args::command()));
}

#[test]
fn every_flag_that_is_not_hidden_has_its_row() {
    let command = Args::command();
    let page = page(&command);
    for argument in command.get_arguments() {
        let id = argument.get_id().as_str();
        let row = format!("| `--{}", id.replace('_', "-"));
        let expected = usize::from(!argument.is_hide_set() && !["help", "version"].contains(&id));
        assert_eq!(
            page.matches(&format!("{row}` |")).count() + page.matches(&format!("{row}`,")).count(),
            expected,
            "{id}"
        );
    }
}
