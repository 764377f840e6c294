//! `completions` and `man`: the command line as clap describes it, for a shell and for `man`.
//!
//! Input: the shell, or a command's name. Output: a script, or a page in roff, on standard output. What must
//! hold: they describe this binary's own flags, because they are made from them.

use std::io::{self, Write};

use clap::Args;
use clap_complete::Shell;
use clap_mangen::Man;

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
    clap_complete::generate(args.shell, &mut command_line(), NAME, &mut script);
    let script = String::from_utf8(script)?;
    // For bash, clap_complete 4.6 writes a hyphen in the program's name as a subcommand in one of two places
    // that must agree, so that nothing would be completed after a command.
    let (wrong, right) = (NAME.replace('-', "__subcmd__"), NAME.replace('-', "__"));
    print(script.replace(&wrong, &right).as_bytes())
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
