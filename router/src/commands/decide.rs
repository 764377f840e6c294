//! `decide`: answers questions about a text, without a server.
//!
//! Input: a file with the text, and one with the questions. Output: the answer of `POST /v1/systemone`, or of
//! `POST /v1/decisions` if the questions are a list. What must hold: the answer is the server's, because the
//! files become the body of a request.

use std::{
    fs::File,
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow};
use clap::Args;
use serde::de::IgnoredAny;

use super::{
    Usage, block_on,
    input::{is_stdin, name_in_messages},
    start_engine,
};
use crate::{args::ModelArgs, http::answer_decisions};

/// The most bytes of a file. A file without end would fill the memory.
const MAX_FILE: u64 = 16 << 20;

/// The arguments of `decide`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  text-embeddings-router decide --model-id Qwen/Qwen3-4B-Instruct-2507 \\
      --model-type decider --state ticket.txt --questions questions.json
  text-embeddings-router decide --model-id demo --dtype float32 \\
      --state - --questions questions.json

The questions are an object by id, as of POST /v1/systemone, or a list, as of POST /v1/decisions:
  {\"refund\": {\"type\": \"noul\", \"instructions\": \"The customer asks for a refund.\"}}

Exit codes: 0 done, 1 failed, 2 wrong arguments. Set LOG_LEVEL=info to see what is loaded.")]
pub(crate) struct DecideArgs {
    /// The model: a Hub id, the path of a local directory, or `demo`.
    #[arg(long, env, help_heading = "Model")]
    model_id: String,

    /// How the model is fetched, prompted and computed.
    #[command(flatten)]
    model: ModelArgs,

    /// The file with the text; `-` for standard input. A file whose name ends in `.json` is a JSON value.
    #[arg(long, value_name = "FILE")]
    state: PathBuf,

    /// The file with the questions, in JSON.
    #[arg(long, value_name = "FILE")]
    questions: PathBuf,
}

pub(super) fn run(args: DecideArgs) -> anyhow::Result<()> {
    if is_stdin(&args.state) && is_stdin(&args.questions) {
        let message = "`--state` and `--questions` cannot both be standard input: name a file for one";
        return Err(Usage(message.to_owned(), "decide").into());
    }
    let is_json = args.state.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    let state = if is_json {
        read_json(&args.state)?
    } else {
        serde_json::Value::from(read_text(&args.state)?).to_string()
    };
    let questions = read_json(&args.questions)?;
    let field = if questions.trim_start().starts_with('[') { "input" } else { "state" };
    let body = format!(r#"{{"{field}":{state},"questions":{questions}}}"#);
    block_on("warn", async move {
        let served = start_engine(&args.model_id, args.model.clone()).await?;
        let answer = answer_decisions(&served, body.into_bytes()).await?;
        writeln!(io::stdout(), "{answer}")?;
        Ok(())
    })
}

/// The content of a file that is one JSON value. It becomes a part of the request's body.
fn read_json(path: &Path) -> anyhow::Result<String> {
    let text = read_text(path)?;
    serde_json::from_str::<IgnoredAny>(&text)
        .map_err(|error| anyhow!("{} is not JSON: {error}", name_in_messages(path)))?;
    Ok(text)
}

/// The content of a file. A byte order mark at its start and a line break at its end are not part of it.
fn read_text(path: &Path) -> anyhow::Result<String> {
    let input: Box<dyn Read> = if is_stdin(path) {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(path).with_context(|| path.display().to_string())?)
    };
    let mut text = String::new();
    input.take(MAX_FILE + 1).read_to_string(&mut text).with_context(|| path.display().to_string())?;
    if text.len() as u64 > MAX_FILE {
        return Err(anyhow!("{} is longer than 16 MiB: give a shorter one", name_in_messages(path)));
    }
    if text.ends_with('\n') {
        text.pop();
    }
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}
