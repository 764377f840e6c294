//! `docs/cli.md`, made from the flags.

#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use std::fmt::Write;

use clap::{Arg, Command};

use crate::{
    commands::{VARIABLES, command_line},
    testing::check_document,
};

const HEAD: &str = "# Command line

Made from the flags by `make docs`; a test fails when it is stale. How to use the commands:
[command-line.md](command-line.md).

```
text-embeddings-router [serve] --model-id <MODEL_ID> [OPTIONS]
text-embeddings-router <COMMAND>
```

Without a command, or with `serve`, it serves, with the flags that follow; [the commands](#commands) have their own. A
flag on the command line wins over [its variable](#variables). A switch without a value takes `true` or `false` in its
variable. `text-embeddings-router -h` shows the flags that a first start may need.
";

const VARIABLES_HEAD: &str = "
## Variables

All variables that the server and its commands read. The flag has the meaning of its variable.

| variable | flag, or meaning |
|---|---|
";

/// The page: a table for each group of the server's flags, in the order of the help, and one for each
/// command.
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
    page.push_str(&variables(command));
    page.push_str("\n## Commands\n");
    for subcommand in command.get_subcommands() {
        page.push_str(&section(subcommand, command));
    }
    page
}

const TABLE: &str = "| flag | variable | default | meaning |\n|---|---|---|---|\n";

/// The table of all variables: first the flags' variables in alphabetical order, then the others.
fn variables(command: &Command) -> String {
    let flags = command.get_arguments().filter(|argument| !argument.is_hide_set());
    let mut rows: Vec<String> = flags
        .filter_map(|argument| {
            let (variable, long) = (argument.get_env()?.to_str().unwrap(), argument.get_long()?);
            Some(format!("| `{variable}` | `--{long}` |\n"))
        })
        .collect();
    rows.sort();
    let others = VARIABLES.iter().map(|(name, meaning)| {
        let names: Vec<_> = name.split(", ").map(|name| format!("`{name}`")).collect();
        format!("| {} | {meaning} |\n", names.join(", "))
    });
    rows.extend(others);
    format!("{VARIABLES_HEAD}{}", rows.concat())
}

/// A command's part of the page.
fn section(subcommand: &Command, server: &Command) -> String {
    let name = subcommand.get_name();
    let about = subcommand.get_about().unwrap();
    let mut section = format!("\n### {name}\n\n{about}.\n\n{TABLE}");
    let (shared, own): (Vec<_>, Vec<_>) =
        subcommand.get_arguments().filter(|argument| !argument.is_hide_set()).partition(|argument| {
            argument.get_long().is_some()
                && server.get_arguments().any(|other| {
                    other.get_long() == argument.get_long() && other.get_help() == argument.get_help()
                })
        });
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
    let help = argument.get_long_help().or(argument.get_help()).unwrap().to_string();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    // A default that depends on something is in the help text.
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
    let page = page.split_once("## Variables").unwrap().0;
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
