//! `docs/cli.md`, made from the flags.

#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use std::fmt::Write;

use clap::{Arg, Command};

use crate::{commands::command_line, testing::check_document};

const HEAD: &str = "# Command line

Made from the flags by `make docs`; a test fails when it is stale. What the commands are for, and how to use them:
[command-line.md](command-line.md).

```
text-embeddings-router --model-id <MODEL_ID> [OPTIONS]
text-embeddings-router <COMMAND>
```

Without a command it serves, with the flags that follow; [the commands](#commands) have their own. A flag given on the command line wins over
its variable. A switch without a value takes `true` or `false` in its variable.
";

const VARIABLES: &str = "
## Variables without a flag

| variable | meaning |
|---|---|
| `LOG_LEVEL` | How much is logged: `error`, `warn`, `info` (default), `debug`, `trace` or `off`, or a list such as `warn,text_embeddings_core=debug` |
| `HF_HOME`, `HF_ENDPOINT`, `HF_HUB_OFFLINE` | The Hub client's own: its folder, its server, and whether it must do without one |
| `OTEL_…` | OpenTelemetry's own, such as `OTEL_TRACES_SAMPLER`, `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_EXPORTER_OTLP_HEADERS`; they take effect where `--otlp-endpoint` is given |
";

/// The page: a table for each group of the server's flags, in the order of the help, and one for each command.
fn page(command: &Command) -> String {
    let shown = || command.get_arguments().filter(|argument| argument.get_help_heading().is_some());
    let mut headings: Vec<&str> = Vec::new();
    for heading in shown().filter_map(Arg::get_help_heading) {
        if !headings.contains(&heading) {
            headings.push(heading);
        }
    }
    let mut page = HEAD.to_owned();
    for heading in headings {
        write!(page, "\n## {heading}\n\n{TABLE}").unwrap();
        for argument in shown().filter(|argument| argument.get_help_heading() == Some(heading)) {
            page.push_str(&row(argument));
        }
    }
    page.push_str(VARIABLES);
    page.push_str("\n## Commands\n");
    for subcommand in command.get_subcommands() {
        page.push_str(&section(subcommand, command));
    }
    page
}

const TABLE: &str = "| flag | variable | default | meaning |\n|---|---|---|---|\n";

/// A command's part of the page.
fn section(subcommand: &Command, server: &Command) -> String {
    let name = subcommand.get_name();
    let about = subcommand.get_about().unwrap();
    let mut section = format!("\n### {name}\n\n{about}.\n\n{TABLE}");
    let is_shared = |argument: &&Arg| {
        let same =
            |other: &Arg| other.get_long() == argument.get_long() && other.get_help() == argument.get_help();
        argument.get_long().is_some() && server.get_arguments().any(same)
    };
    let (shared, own): (Vec<_>, Vec<_>) =
        subcommand.get_arguments().filter(|argument| !argument.is_hide_set()).partition(is_shared);
    for argument in own {
        section.push_str(&row(argument));
    }
    if !shared.is_empty() {
        let flags: Vec<_> = shared.iter().map(|flag| format!("`--{}`", flag.get_long().unwrap())).collect();
        write!(section, "\nAs for serving: {}.\n", flags.join(", ")).unwrap();
    }
    if let Some(help) = subcommand.get_after_help() {
        write!(section, "\n```\n{}\n```\n", help.to_string().trim_end()).unwrap();
    }
    section
}

fn row(argument: &Arg) -> String {
    let names = match argument.get_long() {
        Some(long) => {
            let short = argument.get_short().map_or_else(String::new, |short| format!(", `-{short}`"));
            format!("`--{long}`{short}")
        }
        None => format!("`{}`", argument.get_value_names().unwrap()[0]),
    };
    let variable =
        argument.get_env().map_or_else(String::new, |name| format!("`{}`", name.to_str().unwrap()));
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
    format!("| {names} | {variable} | {default} | {meaning} |\n")
}

#[test]
fn the_page_that_is_checked_in_is_that_of_the_flags() {
    check_document("docs/cli.md", &page(&command_line()));
}

#[test]
fn every_flag_that_is_not_hidden_has_its_row() {
    let command = command_line();
    let page = page(&command);
    let page = page.split_once("## Commands").unwrap().0;
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
