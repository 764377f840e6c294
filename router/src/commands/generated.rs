//! `completions` and `man`: the command line as clap describes it, for a shell and for `man`.
//!
//! Input: the shell, or a command's name. Output: a script, or a page in roff, on standard output. What must
//! hold: they describe this binary's own flags, because they are made from them.

use std::io::{self, Write};

use clap::{Arg, Args, builder::PossibleValuesParser};
use clap_complete::Shell;
use clap_mangen::Man;
use text_embeddings_backend::{BackendKind, InstructionSet};
use text_embeddings_core::{
    families::{ALL, BUILTIN},
    model::RequestedType,
};

use super::{Usage, command_line};

const NAME: &str = "text-embeddings-router";

/// The arguments of `completions`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  text-embeddings-router completions bash > \\
      ~/.local/share/bash-completion/completions/text-embeddings-router")]
pub(crate) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// The arguments of `man`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  text-embeddings-router man rerank | man -l -")]
pub(crate) struct ManArgs {
    /// The command to print the page of [default: the server].
    command: Option<String>,
}

/// Prints the script.
pub(super) fn completions(args: &CompletionsArgs) -> anyhow::Result<()> {
    // Made in memory, because the crate panics where standard output is closed.
    let mut script = Vec::new();
    let command = command_line();
    let mut command = command.mut_args(with_values).mut_subcommands(|task| task.mut_args(with_values));
    clap_complete::generate(args.shell, &mut command, NAME, &mut script);
    let script = String::from_utf8(script)?;
    // For bash, clap_complete 4.6 writes a hyphen in the program's name as a subcommand in one of two places
    // that must agree, so that nothing would be completed after a command.
    let (wrong, right) = (NAME.replace('-', "__subcmd__"), NAME.replace('-', "__"));
    print(with_files(&script.replace(&wrong, &right), args.shell).as_bytes())
}

/// The words that a template may be, instead of a file.
fn template_words() -> Vec<&'static str> {
    [BUILTIN].into_iter().chain(ALL.iter().map(|family| family.name)).collect()
}

/// A script that offers files as well as words for a template. clap can say one of the two only.
fn with_files(script: &str, shell: Shell) -> String {
    let words = template_words().join(" ");
    let (only_words, and_files) = match shell {
        Shell::Bash => (format!("compgen -W \"{words}\""), format!("compgen -f -W \"{words}\"")),
        Shell::Zsh => (format!(":({words})"), format!(":{{compadd {words}; _files}}")),
        Shell::Fish => {
            let words = template_words().join("\\t''\n");
            (format!(" -f -a \"{words}"), format!(" -a \"{words}"))
        }
        _ => return script.to_owned(),
    };
    script.replace(&only_words, &and_files)
}

/// A flag that takes one of a few words, with these words, so that a shell completes them.
fn with_values(argument: Arg) -> Arg {
    let words: &[&'static str] = match argument.get_id().as_str() {
        "dtype" => &["float32", "float16", "bfloat16", "int8", "int4"],
        "instruction_set" => {
            &InstructionSet::available().into_iter().map(InstructionSet::as_str).collect::<Vec<_>>()
        }
        "pooling" => &["cls", "mean", "splade", "last-token"],
        "model_type" => &RequestedType::ALL.map(RequestedType::as_str),
        "backend" => &BackendKind::ALL.map(BackendKind::as_str),
        "chat_template" => &template_words(),
        "rerank_activation" => &["sigmoid", "identity"],
        _ => return argument,
    };
    argument.value_parser(PossibleValuesParser::new(words))
}

/// Prints the page.
pub(super) fn man(args: &ManArgs) -> anyhow::Result<()> {
    let mut command = command_line();
    command.build();
    let page = match &args.command {
        None => command,
        Some(name) => {
            let found = command.get_subcommands().find(|found| found.get_name() == name).cloned();
            let names: Vec<_> = command.get_subcommands().map(clap::Command::get_name).collect();
            found.ok_or_else(|| {
                Usage(format!("there is no command `{name}`: choose one of {}", names.join(", ")), "man")
            })?
        }
    };
    let mut roff = Vec::new();
    Man::new(page).render(&mut roff)?;
    print(&roff)
}

fn print(text: &[u8]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text)?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    #[test]
    fn the_words_that_a_shell_completes_are_the_words_that_the_flags_take() {
        let command = command_line();
        for (name, count) in [
            ("dtype", 5),
            ("instruction_set", InstructionSet::available().len()),
            ("pooling", 4),
            ("model_type", 5),
            ("backend", 3),
            ("chat_template", ALL.len() + 1),
            ("rerank_activation", 2),
        ] {
            let argument = command.get_arguments().find(|argument| argument.get_id() == name).unwrap();
            let words = with_values(argument.clone()).get_possible_values();
            assert_eq!(words.len(), count, "{name}");
            for word in words {
                let flag = format!("--{}={}", argument.get_long().unwrap(), word.get_name());
                let parsed = command.clone().try_get_matches_from([NAME, &flag]);
                // A backend may be left out of this build.
                assert!(parsed.is_ok() || name == "backend", "{flag}: {parsed:?}");
            }
        }
    }
}
