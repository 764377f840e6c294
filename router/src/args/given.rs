//! The flags that the user gave, by the command line or by a variable: for the log's first line, and for
//! errors.
//!
//! Input: what clap matched. Output: [`Given`]. What must hold: no secret is shown; an error about a flag
//! that came from a variable names the variable, because the user does not see the flag anywhere.

use std::{env, ffi::OsString, fmt};

use clap::{
    Arg, ArgMatches, Command,
    builder::OsStr,
    error::{ContextKind, ContextValue, ErrorKind},
    parser::ValueSource,
};

/// The flags that were given a value other than their default, in the order of the help.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Given(Vec<Flag>);

/// A flag with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Flag {
    /// Its name, with the hyphens.
    name: String,
    /// The name with the value as it was given; without it for a switch, and for a secret.
    shown: String,
    /// The variable that set it; absent if the command line did.
    variable: Option<String>,
}

impl Given {
    /// The flags of `command` that `matches` found.
    pub(crate) fn new(command: &Command, matches: &ArgMatches) -> Self {
        Self(command.get_arguments().filter_map(|argument| Flag::new(argument, matches)).collect())
    }

    /// The message of an error, with the variables that set the flags which it names.
    pub(crate) fn explained(&self, message: &str) -> String {
        let mut explained = message.to_owned();
        for Flag { name, variable, .. } in &self.0 {
            if let Some(variable) = variable
                && names(message, name)
            {
                explained = format!("{explained}; `{name}` comes from the variable {variable}");
            }
        }
        explained
    }
}

impl Flag {
    fn new(argument: &Arg, matches: &ArgMatches) -> Option<Self> {
        let id = argument.get_id().as_str();
        let source = matches.value_source(id)?;
        if source == ValueSource::DefaultValue {
            return None;
        }
        let name = format!("--{}", argument.get_long()?);
        let variable = match argument.get_env() {
            Some(variable) if source == ValueSource::EnvVariable => {
                Some(variable.to_string_lossy().into_owned())
            }
            _ => None,
        };
        let values: Vec<_> = matches.get_raw(id).into_iter().flatten().collect();
        let defaults: Vec<_> = argument.get_default_values().iter().map(OsStr::as_os_str).collect();
        if values == defaults {
            return None;
        }
        if !argument.get_action().takes_values() {
            return matches.get_flag(id).then(|| Self { shown: name.clone(), name, variable });
        }
        if argument.is_hide_env_values_set() {
            return Some(Self { shown: name.clone(), name, variable });
        }
        let separator = if argument.is_require_equals_set() { '=' } else { ' ' };
        let value = values.iter().map(|value| value.to_string_lossy()).collect::<Vec<_>>().join(",");
        let is_plain = !value.is_empty() && !value.contains(|c: char| c.is_whitespace() || c == '"');
        let value = if is_plain { value } else { format!("{value:?}") };
        Some(Self { shown: format!("{name}{separator}{value}"), name, variable })
    }
}

impl fmt::Display for Given {
    /// `--model-id demo --port 80 --api-key … (API_KEY)`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, Flag { shown, variable, .. }) in self.0.iter().enumerate() {
            write!(formatter, "{}{shown}", if place > 0 { " " } else { "" })?;
            if let Some(variable) = variable {
                write!(formatter, " ({variable})")?;
            }
        }
        Ok(())
    }
}

/// Whether a message names a flag, and not only a longer one that begins alike.
fn names(message: &str, flag: &str) -> bool {
    message.match_indices(flag).any(|(at, _)| {
        !message[at + flag.len()..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-')
    })
}

/// Flags that another flag needs, each with the flag that needs it.
const NEEDED: [(&str, &str); 3] = [
    ("--rerank-true-token", "--rerank-false-token"),
    ("--tls-key", "--tls-cert"),
    ("--tls-cert", "--tls-key"),
];

/// A tip that names the variables of the flags in clap's error about `arguments`; absent if the command line
/// gave all of them.
pub(crate) fn variables_of(error: &clap::Error, command: &Command, arguments: &[OsString]) -> Option<String> {
    let variable = |flag: &str| variable_of(flag, command, arguments);
    if error.kind() == ErrorKind::MissingRequiredArgument {
        return tip(flags_in(error, ContextKind::InvalidArg)
            .filter_map(|flag| NEEDED.iter().find(|(needed, _)| *needed == flag).map(|(_, by)| *by))
            .filter_map(variable));
    }
    if error.kind() == ErrorKind::ArgumentConflict {
        let both = flags_in(error, ContextKind::InvalidArg).chain(flags_in(error, ContextKind::PriorArg));
        return tip(both.filter_map(variable));
    }
    let refused = texts_in(error, ContextKind::InvalidValue).first().copied().unwrap_or_default();
    let (_, variable) = flags_in(error, ContextKind::InvalidArg).next().and_then(variable)?;
    env::var(&variable)
        .is_ok_and(|held| held == refused)
        .then(|| format!("the value comes from the variable {variable}"))
}

fn texts_in(error: &clap::Error, kind: ContextKind) -> Vec<&str> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.as_str()],
        Some(ContextValue::Strings(texts)) => texts.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    }
}

/// Flags in an error, which shows each with the name of its value: `--port <PORT>`.
fn flags_in(error: &clap::Error, kind: ContextKind) -> impl Iterator<Item = &str> {
    texts_in(error, kind).into_iter().filter_map(|text| text.split_whitespace().next())
}

/// The tip about flags and their variables; absent without any.
fn tip(found: impl Iterator<Item = (String, String)>) -> Option<String> {
    let tips: Vec<String> =
        found.map(|(flag, variable)| format!("`{flag}` comes from the variable {variable}")).collect();
    (!tips.is_empty()).then(|| tips.join("; "))
}

/// The flag and its variable, if that is set and `arguments` do not have the flag.
fn variable_of(flag: &str, command: &Command, arguments: &[OsString]) -> Option<(String, String)> {
    let of = |command: &Command| {
        let mut arguments = command.get_arguments();
        let argument = arguments.find(|argument| argument.get_long() == flag.strip_prefix("--"))?;
        Some((argument.get_env()?.to_str()?.to_owned(), argument.get_short()))
    };
    let (variable, short) = of(command).or_else(|| command.get_subcommands().find_map(of))?;
    let is_given = arguments.iter().any(|given| {
        let given = given.to_string_lossy();
        given.split('=').next() == Some(flag)
            || short.is_some_and(|short| given.starts_with(&format!("-{short}")))
    });
    (!is_given && env::var_os(&variable).is_some()).then(|| (flag.to_owned(), variable))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::commands::command_line;

    fn given(flags: &str) -> Given {
        let command = command_line();
        let arguments = ["router"].into_iter().chain(flags.split_whitespace());
        let matches = command.clone().try_get_matches_from(arguments).unwrap();
        Given::new(&command, &matches)
    }

    #[test]
    fn only_flags_that_differ_from_their_defaults_are_shown_and_no_secret() {
        assert_eq!(given("").to_string(), "");
        let flags = "--model-id demo --dtype int8 --json-output --port 3000 --payload-limit 7 --cors-allow-origin a \
                     --cors-allow-origin b --api-key s3cret --default-prompt=";
        assert_eq!(
            given(flags).to_string(),
            "--model-id demo --dtype int8 --default-prompt \"\" --payload-limit 7 --api-key --cors-allow-origin a,b \
             --json-output"
        );
        assert_eq!(given("--pin-threads --port 7").to_string(), "--pin-threads=true --port 7");
    }

    #[test]
    fn an_error_about_a_flag_names_the_variable_that_set_it() {
        let flag = |name: &str, variable: Option<&str>| Flag {
            name: name.to_owned(),
            shown: name.to_owned(),
            variable: variable.map(str::to_owned),
        };
        let given = Given(vec![
            flag("--dtype", Some("DTYPE")),
            flag("--port", None),
            flag("--default-prompt", Some("DEFAULT_PROMPT")),
        ]);
        for (message, expected) in [
            ("`--dtype int2` is odd", "`--dtype int2` is odd; `--dtype` comes from the variable DTYPE"),
            ("`--port 80` is taken", "`--port 80` is taken"),
            ("`--default-prompt-name` is odd", "`--default-prompt-name` is odd"),
        ] {
            assert_eq!(given.explained(message), expected);
        }
    }
}
