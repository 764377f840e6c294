//! What the binary does beside serving: a subcommand each, with a file or a folder of its own.
//!
//! Input: the process's arguments and environment. Output: results on standard output, logs and progress on standard
//! error. What must hold: without a subcommand the command line is the server's; a command fails with one line and exit
//! code 1, and with 2 where its arguments are wrong; scores are those of the server, because they come from its engine.

mod bench;
mod download;
mod generated;
mod health;
mod rerank;
mod screen;
mod verify;

use std::{ffi::OsString, io};

use anyhow::Context;
use clap::{
    Command, CommandFactory, FromArgMatches, Subcommand,
    error::{ContextKind, ContextValue, ErrorKind},
};
use text_embeddings_core::files::DEMO_MODEL_ID;

use crate::{
    args::{Args, ModelArgs, set_aside_service_links},
    config::ServerConfig,
    startup::{self, Started},
    telemetry::logging,
};

/// What the process was started for.
pub(crate) enum Invocation {
    /// To serve.
    Serve(Box<Args>),
    /// Something else.
    Run(Box<Task>),
}

/// A subcommand with its arguments.
#[derive(Debug, Subcommand)]
#[command(subcommand_help_heading = "Commands")]
pub(crate) enum Task {
    /// Score documents against a query and put the best first, without a server.
    Rerank(Box<rerank::RerankArgs>),
    /// Fetch a model for use without the network, and print where it is.
    Download(download::DownloadArgs),
    /// Put a running server under load and print how fast it answers.
    Bench(Box<bench::BenchArgs>),
    /// Check a model: its files, kind, prompt and tokens, and its scores against published ones.
    Verify(Box<verify::VerifyArgs>),
    /// Say whether a running server is ready, by the exit code: for containers without curl.
    Health(health::HealthArgs),
    /// Print a script for a shell, with which it completes commands and flags.
    Completions(generated::CompletionsArgs),
    /// Print the manual page, or that of a command, in roff.
    Man(generated::ManArgs),
}

impl Task {
    /// Does what was asked for.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from being done; [`Usage`] where the arguments do.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Rerank(args) => rerank::run(*args),
            Self::Download(args) => download::run(&args),
            Self::Bench(args) => bench::run(&args),
            Self::Verify(args) => verify::run(*args),
            Self::Health(args) => health::run(&args),
            Self::Completions(args) => generated::completions(&args),
            Self::Man(args) => generated::man(&args),
        }
    }
}

/// Arguments that contradict each other or the files they name, which clap cannot know.
#[derive(Debug, thiserror::Error)]
#[error("{0}; `text-embeddings-router {1} --help` lists what there is")]
pub(crate) struct Usage(String, &'static str);

impl Invocation {
    /// Reads the process's own arguments and environment. For `--help`, `--version` and wrong arguments it prints what
    /// clap has to say and ends the process.
    pub(crate) fn from_process() -> Self {
        Self::try_from(&std::env::args_os().collect::<Vec<_>>()).unwrap_or_else(|error| error.exit())
    }

    /// Reads `arguments`, the program's name first, and the environment.
    ///
    /// # Errors
    ///
    /// clap's, for what is unknown, missing or malformed.
    fn try_from(arguments: &[OsString]) -> Result<Self, clap::Error> {
        let (mut command, ignored_variables) = set_aside_service_links(command_line());
        let is_command = |name: &OsString| command.get_subcommands().any(|c| *name == *c.get_name());
        if arguments.get(1).is_some_and(is_command) {
            // A variable that is meant for the server must not keep a command from running.
            command = command.mut_args(|argument| argument.env(None::<&'static str>));
        }
        let matches = command.try_get_matches_from(arguments).map_err(point_at_demonstration)?;
        if matches.subcommand_name().is_none() {
            let args = Args { ignored_variables, ..Args::from_matches(&matches)? };
            return Ok(Self::Serve(Box::new(args)));
        }
        Ok(Self::Run(Box::new(Task::from_arg_matches(&matches)?)))
    }
}

/// The whole command line: the server's flags, or a subcommand with its own.
pub(crate) fn command_line() -> Command {
    let server = Args::command();
    let about = server.get_about().cloned().unwrap_or_default();
    Task::augment_subcommands(server)
        .about(about)
        .subcommand_required(false)
        .arg_required_else_help(false)
        .args_conflicts_with_subcommands(true)
        .subcommand_negates_reqs(true)
        .override_usage(
            "text-embeddings-router [--model-id <MODEL_ID>] [OPTIONS]\n       text-embeddings-router <COMMAND>",
        )
}

/// Someone who names no model may just want to see it work.
fn point_at_demonstration(mut error: clap::Error) -> clap::Error {
    let missing = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(names)) if error.kind() == ErrorKind::MissingRequiredArgument => names,
        _ => return error,
    };
    if missing.iter().any(|name| name.starts_with("--model-id")) {
        let advice = format!("to try it without a download, give `--model-id {DEMO_MODEL_ID}`");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![advice.into()]));
    }
    error
}

/// Whether the error is that nobody reads standard output any more.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Loads and checks a model as the server does.
async fn start_engine(model_id: &str, model: ModelArgs) -> anyhow::Result<Started> {
    let args = Args::offline(model_id, model)?;
    // Refuses the settings that no model can be started with.
    ServerConfig::resolve(&args)?;
    startup::start(&args).await
}

/// Starts a command's log and the threads for its asynchronous work, and does that.
fn block_on<T>(level: &str, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    logging::start_on_stderr(level)?;
    let runtime = tokio::runtime::Runtime::new().context("the runtime cannot start its threads")?;
    let ended = runtime.block_on(work);
    // A batch that nobody waits for any more must not hold the process back.
    runtime.shutdown_background();
    ended
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    fn parse(arguments: &str) -> Result<Invocation, clap::Error> {
        let arguments: Vec<OsString> = arguments.split_whitespace().map(Into::into).collect();
        Invocation::try_from(&arguments)
    }

    #[test]
    fn the_commands_are_well_formed_and_each_has_an_example() {
        let command = command_line();
        command.clone().debug_assert();
        assert_eq!(command.get_about(), Args::command().get_about());
        for subcommand in command.get_subcommands() {
            let help = subcommand.get_after_help().unwrap().to_string();
            let name = subcommand.get_name();
            assert!(help.contains("Example") && help.contains(&format!(" {name} ")), "{name}: {help}");
            assert!(subcommand.get_arguments().all(|argument| argument.get_help().is_some()), "{name}");
        }
    }

    #[test]
    fn without_a_command_it_is_the_server() {
        let Invocation::Serve(args) = parse("router --model-id m --port 80").unwrap() else { unreachable!() };
        assert_eq!((args.model_id.as_str(), args.port), ("m", 80));
        let Invocation::Serve(args) = parse("router").unwrap() else { unreachable!() };
        assert_eq!(args.model_id, "BAAI/bge-large-en-v1.5");
        let Invocation::Run(task) = parse("router rerank --model-id m -q x a b --dtype int8").unwrap() else {
            unreachable!()
        };
        assert!(matches!(*task, Task::Rerank(_)));
        for (arguments, expected) in [
            ("router rerank --query x a", "--model-id demo"),
            ("router --port 80 rerank", "rerank"),
            ("router --model-id m stray", "stray"),
            ("router rerank --model-id m --query x", "DOCUMENT"),
            ("router rerank --model-id m --query x --documents f a", "--documents"),
            ("router rerank --model-id m --query x a --port 80", "--port"),
            ("router rerank --model-id m --query x a --unsorted --top-n 2", "--top-n"),
            ("router rerank --model-id m --query x a --top-n 0", "--top-n"),
        ] {
            let message = parse(arguments).err().unwrap().to_string();
            assert!(message.contains(expected), "{arguments}: {message}");
        }
    }
}
