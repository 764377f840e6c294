//! The commands in addition to serving: each is a subcommand with a file or a folder of its own.
//!
//! Input: the process's arguments and environment. Output: results on standard output, logs and progress on
//! standard error. What must hold: without a subcommand, or with `serve`, the command line is the server's; a
//! command fails with one line and exit code 1, and with 2 if its arguments are wrong; scores are the
//! server's, because they come from its engine.

#[cfg(feature = "tls")]
mod bench;
mod chunks;
#[cfg(feature = "tls")]
pub(crate) mod curl;
#[cfg(feature = "plain-http")]
mod decide;
mod doctor;
mod download;
mod embed;
mod generated;
#[cfg(feature = "tls")]
mod health;
mod input;
mod partial;
mod progress;
mod rerank;
mod screen;
mod tips;
mod verify;

use std::{ffi::OsString, io, path::Path};

use clap::{Arg, Command, CommandFactory, FromArgMatches, Subcommand};
use text_embeddings_core::files::DEMO_MODEL_ID;

use crate::{
    args::{
        Args, Given, ModelArgs,
        models::{ModelList, ModelsFile, model_list},
        set_aside_service_links,
    },
    config::ServerConfig,
    machine::Machine,
    models::Served,
    signals, startup,
    telemetry::logging,
};

/// The word that may stand for no command, as other servers have it.
const SERVE: &str = "serve";

/// The word that may stand for `--version`.
const VERSION: &str = "version";

/// The flags that `-h` shows: those that a first start may need.
const SHORT_HELP: [&str; 9] = [
    "model_id",
    "dtype",
    "pooling",
    "max_input_length",
    "threads",
    "hostname",
    "port",
    "grpc_port",
    "api_key",
];

/// The widest help in columns. Longer lines are hard to read, whatever the terminal shows.
const MAX_HELP: usize = 110;

/// The name under which the image has the program a second time, for health checks.
#[cfg(feature = "tls")]
const CURL: &str = "curl";

/// Variables without a flag, with their meaning.
pub(crate) const VARIABLES: [(&str, &str); 15] = [
    (
        "LOG_LEVEL",
        "How much is logged: `error`, `warn`, `info` (default), `debug`, `trace` or `off`, or a list such as \
         `warn,text_embeddings_core=debug`",
    ),
    (
        "HF_HOME",
        "The folder of the Hub's files and token \
         [default: `huggingface` in XDG_CACHE_HOME, else in ~/.cache]",
    ),
    (
        "HF_HUB_CACHE",
        "The folder for downloaded models without `--huggingface-hub-cache` [default: `hub` in HF_HOME]",
    ),
    ("HF_TOKEN_PATH", "The file with the Hub's token [default: `token` in HF_HOME]"),
    ("HF_ENDPOINT", "The Hub's address [default: https://huggingface.co]"),
    ("HF_HUB_OFFLINE", "`1`: use only models that were downloaded before"),
    ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "`1`: send the token to the Hub only if `--hf-token` gives it"),
    ("HF_HUB_USER_AGENT_ORIGIN", "A text that is added to the user agent in requests to the Hub"),
    ("HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY", "The proxy for downloads"),
    (
        "OTEL_…",
        "OpenTelemetry's own, such as OTEL_TRACES_SAMPLER, with `--otlp-endpoint`; `docs/telemetry.md` says which",
    ),
    (
        "ORT_DYLIB_PATH",
        "The library of ONNX Runtime for `--backend ort` [default: one that an installed package brings]",
    ),
    (
        "VIRTUAL_ENV",
        "The virtual environment where `--backend python` and `ort` look for interpreter and library",
    ),
    (
        "USE_FLASH_ATTENTION",
        "Anything but `True`: no flash attention on CUDA, as in text-embeddings-inference",
    ),
    ("TMPDIR", "The folder of temporary files, such as those of `rerank --documents -` [default: /tmp]"),
    ("NO_COLOR", "Any value: tables without colours"),
];

pub(crate) struct ServeArgs {
    /// The server's own.
    pub(crate) server: Args,
    /// The models that it serves.
    pub(crate) list: ModelList,
    /// The file that they come from; absent if flags name them.
    pub(crate) file: Option<ModelsFile>,
}

/// The purpose of the process.
pub(crate) enum Invocation {
    /// To serve.
    Serve(Box<ServeArgs>, Given),
    /// To answer a health check that calls curl with these arguments.
    #[cfg(feature = "tls")]
    Curl(Vec<String>),
    /// Something else.
    Run(Box<CommandArgs>, Given),
}

/// A subcommand with its arguments.
#[derive(Debug, Subcommand)]
#[command(subcommand_help_heading = "Commands")]
pub(crate) enum CommandArgs {
    /// Score documents for a query and put the best first, without a server.
    Rerank(Box<rerank::RerankArgs>),
    /// Make vectors of texts, without a server.
    Embed(Box<embed::EmbedArgs>),
    /// Answer questions about a text with probabilities, without a server.
    #[cfg(feature = "plain-http")]
    Decide(Box<decide::DecideArgs>),
    /// Fetch a model for use without the network, and print where it is.
    Download(download::DownloadArgs),
    /// Put a running server under load and print how fast it answers.
    #[cfg(feature = "tls")]
    Bench(Box<bench::BenchArgs>),
    /// Compare a model's files, prompt and scores with published ones.
    Verify(Box<verify::VerifyArgs>),
    /// Tell how fast this machine is, and which models fit it.
    Doctor(Box<doctor::DoctorArgs>),
    /// Tell by the exit code whether a running server is ready: for containers without curl.
    #[cfg(feature = "tls")]
    Health(health::HealthArgs),
    /// Print the script with which a shell completes commands and flags.
    Completions(generated::CompletionsArgs),
    /// Print the manual page of the server or of a command, in roff.
    Man(generated::ManArgs),
}

impl CommandArgs {
    /// Runs the command. The error is whatever keeps it from succeeding; [`Usage`] if its arguments do.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Rerank(args) => rerank::run(*args),
            Self::Embed(args) => embed::run(*args),
            #[cfg(feature = "plain-http")]
            Self::Decide(args) => decide::run(*args),
            Self::Download(args) => download::run(&args),
            #[cfg(feature = "tls")]
            Self::Bench(args) => bench::run(&args),
            Self::Verify(args) => verify::run(*args),
            Self::Doctor(args) => doctor::run(&args),
            #[cfg(feature = "tls")]
            Self::Health(args) => health::run(&args),
            Self::Completions(args) => generated::completions(&args),
            Self::Man(args) => generated::man(&args),
        }
    }
}

/// Arguments that contradict each other or the files they name, which clap cannot see.
#[derive(Debug, thiserror::Error)]
#[error("{0}; `text-embeddings-router {1} --help` lists the arguments")]
pub(crate) struct Usage(String, &'static str);

impl Invocation {
    /// Reads the process's own arguments and environment. For `--help`, `--version` and wrong arguments it
    /// prints clap's message and ends the process.
    pub(crate) fn from_process() -> Self {
        Self::try_from(&std::env::args_os().collect::<Vec<_>>()).unwrap_or_else(|error| error.exit())
    }

    /// Reads `arguments`, the program's name first, and the environment.
    fn try_from(arguments: &[OsString]) -> Result<Self, clap::Error> {
        let mut arguments = arguments.to_vec();
        #[cfg(feature = "tls")]
        if arguments.first().is_some_and(|program| Path::new(program).file_name() == Some(CURL.as_ref())) {
            return Ok(Self::Curl(
                arguments[1..].iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            ));
        }
        let says_serve = arguments.get(1).is_some_and(|word| word == SERVE);
        if says_serve {
            arguments.remove(1);
        }
        if arguments.get(1).is_some_and(|word| names_model(word, says_serve)) {
            arguments.insert(1, "--model-id".into());
        }
        if arguments.get(1).is_some_and(|word| word == VERSION) {
            arguments[1] = "--version".into();
        }
        let (mut command, ignored_variables) = set_aside_service_links(command_line());
        if arguments.get(1).is_some_and(|word| word == "-h") {
            command = on_one_screen(command);
        }
        let is_task =
            arguments.get(1).is_some_and(|name| command.get_subcommands().any(|c| *name == *c.get_name()));
        let complete = command.clone();
        if is_task {
            // A variable that is meant for the server must not keep a command from running.
            command = command.mut_args(|argument| argument.env(None::<&'static str>));
        }
        let matches = command.clone().try_get_matches_from(&arguments);
        let matches = matches.map_err(|error| tips::with_tips(error, &complete, &arguments))?;
        let Some((name, of_task)) = matches.subcommand() else {
            let given = Given::new(&complete, &matches);
            let server = Args { ignored_variables, ..Args::from_matches(&matches)? };
            let file = ModelsFile::from_args(&command, &arguments, &server);
            let list = model_list(&command, &matches, file.as_ref(), &server)?;
            return Ok(Self::Serve(Box::new(ServeArgs { server, list, file }), given));
        };
        let given = complete.find_subcommand(name).map(|task| Given::new(task, of_task)).unwrap_or_default();
        Ok(Self::Run(Box::new(CommandArgs::from_arg_matches(&matches)?), given))
    }
}

/// Whether the first word is the model to serve, as users of other servers write it. Behind `serve` every
/// word is; without it only a word that cannot be a misspelt command, such as the name of a folder here.
fn names_model(word: &OsString, says_serve: bool) -> bool {
    let Some(word) = word.to_str() else { return false };
    let is_command = word == "help" || CommandArgs::has_subcommand(word);
    let is_clear = word == DEMO_MODEL_ID || word.contains('/') || !is_command && Path::new(word).exists();
    !word.starts_with('-') && (says_serve || is_clear)
}

/// The whole command line: the server's flags, or a subcommand with its own.
pub(crate) fn command_line() -> Command {
    let server = Args::command();
    let about = server.get_about().cloned().unwrap_or_default();
    CommandArgs::augment_subcommands(server)
        .about(about)
        .subcommand_required(false)
        .arg_required_else_help(false)
        .args_conflicts_with_subcommands(true)
        .subcommand_negates_reqs(true)
        .max_term_width(MAX_HELP)
        .override_usage(
            "text-embeddings-router [serve] [MODEL] [OPTIONS]\n\
             \x20      text-embeddings-router <COMMAND>",
        )
        .after_help("`--help` lists all flags and variables; docs/cli.md has the same as a page.")
        .after_long_help(variables())
        .mut_args(in_help)
        .mut_subcommands(|task| {
            task.max_term_width(MAX_HELP).mut_args(|argument| match argument.get_help_heading() {
                Some(_) => in_help(argument),
                None => argument,
            })
        })
}

/// Leaves all but the first flags out of `-h`. A negative number is taken for a value, so that clap's error
/// is about that.
fn in_help(argument: Arg) -> Arg {
    let is_first = SHORT_HELP.contains(&argument.get_id().as_str());
    let takes_values = argument.get_action().takes_values();
    argument.hide_short_help(!is_first).allow_negative_numbers(takes_values)
}

/// The server's flags in one list, with the commands for users only, so that `-h` fits a screen of 80
/// columns.
fn on_one_screen(command: Command) -> Command {
    let command = command.disable_help_subcommand(true).mut_subcommand("man", |man| man.hide(true));
    // A value's name in full would push each text to a line of its own.
    command.mut_args(|argument| {
        let help = argument.get_help().map(|help| shorten_help(&help.to_string())).unwrap_or_default();
        let argument = argument.hide_env(true).help_heading(None::<&str>).help(help);
        if argument.get_action().takes_values() { argument.value_name("…") } else { argument }
    })
}

/// A flag's text without a default that is a sentence.
fn shorten_help(help: &str) -> String {
    match help.split_once(" [default: ") {
        Some((text, default)) if default.contains(' ') => text.to_owned(),
        _ => help.to_owned(),
    }
}

/// The end of `--help`.
fn variables() -> String {
    let lines = VARIABLES.map(|(name, meaning)| format!("  {name}\n          {meaning}"));
    format!("Variables without a flag:\n{}", lines.join("\n\n"))
}

/// Whether the error is that the reader of standard output went away.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Loads and checks a model as the server does.
async fn start_engine(model_id: &str, model: ModelArgs) -> anyhow::Result<Served> {
    let args = Args::offline(model_id, model)?;
    // Refuses the settings that no model can be started with.
    ServerConfig::resolve(&args)?;
    startup::start(&args, &Machine::from_args(&args)?).await
}

/// Starts a command's log and the threads for its asynchronous work, and runs it.
fn block_on<T>(level: &str, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    logging::start_on_stderr(level)?;
    let runtime = signals::start_runtime()?;
    let ended = runtime.block_on(work);
    // A batch whose result is no longer needed must not hold the process back.
    runtime.shutdown_background();
    ended
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use clap::error::ErrorKind;

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
            // A command that is wrapped cannot be copied: a terminal of 80 columns has to hold it.
            let examples = help.lines().skip(1).take_while(|line| line.starts_with("  "));
            for example in examples {
                assert!(example.chars().count() <= 80, "{name}: {example}");
            }
        }
    }

    #[test]
    fn the_short_help_has_the_first_flags_and_the_long_one_all_and_the_variables() {
        let shown = |flag| parse(&format!("router {flag}")).err().unwrap().to_string();
        let (short, long) = (shown("-h"), shown("--help"));
        assert!(short.lines().count() <= 40 && long.lines().count() > 300, "{short}");
        for line in short.lines().chain(long.lines()) {
            // A default may be one word that no line holds.
            assert!(line.chars().count() <= MAX_HELP || !line.trim().contains(' '), "{line}");
        }
        for id in SHORT_HELP {
            let flag = format!("--{}", id.replace('_', "-"));
            assert!(short.contains(&flag) && long.contains(&flag), "{flag}");
        }
        assert!(!short.contains("--otlp-endpoint") && long.contains("--otlp-endpoint"));
        assert!(VARIABLES.iter().all(|(name, _)| long.contains(&format!("\n  {name}\n"))), "{long}");
        let rerank = shown("rerank -h");
        assert!(rerank.contains("--top-n") && !rerank.contains("--rerank-activation"), "{rerank}");
    }

    #[test]
    fn without_a_command_it_is_the_server() {
        for start in ["router", "router serve"] {
            let Ok(Invocation::Serve(args, given)) = parse(&format!("{start} --model-id m --port 80")) else {
                unreachable!()
            };
            assert_eq!((args.list.models[0].model_id.as_str(), args.server.port), ("m", 80));
            assert_eq!(given.to_string(), "--model-id m --port 80");
        }
        let Invocation::Serve(args, _) = parse("router").unwrap() else { unreachable!() };
        assert_eq!(args.list.models[0].model_id, "BAAI/bge-large-en-v1.5");
        // The tests' folder has a folder `src`.
        for start in
            ["router a/m", "router serve m", "router ./m", "router demo", "router serve rerank", "router src"]
        {
            let Ok(Invocation::Serve(args, _)) = parse(&format!("{start} --port 80")) else { unreachable!() };
            assert_eq!(start.split(' ').next_back(), Some(args.list.models[0].model_id.as_str()));
        }
        for arguments in ["router version", "router --version"] {
            assert_eq!(parse(arguments).err().unwrap().kind(), ErrorKind::DisplayVersion);
        }
        let Invocation::Run(task, _) = parse("router rerank --model-id m -q x a b --dtype int8").unwrap()
        else {
            unreachable!()
        };
        assert!(matches!(*task, CommandArgs::Rerank(_)));
        for (arguments, expected) in [
            ("router rerank --query x a", "--model-id demo"),
            ("router --port 80 rerank", "rerank"),
            ("router --model-id m stray", "stray"),
            ("router stray --model-id m", "`serve stray` serves a model of this name"),
            ("router --model-id m --pin-threads false", "write `--pin-threads=false`"),
            ("router --pin-threads true --port 1", "write `--pin-threads=true`"),
            ("router rerank --model-id m --query x", "`--documents FILE`"),
            ("router --max-model-len 512", "here, this is `--max-input-length`"),
            ("router --gpu-memory-utilization=0.9", "leave it out: docs/migrating.md says why"),
            ("router --max-batch-token 9", "'--max-batch-tokens'"),
            ("router --payload-limit -1", "a whole number from 1"),
            ("router --max-batch-tokens 0", "must be at least 1"),
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
