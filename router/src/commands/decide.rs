//! `decide`: answers questions about a text, without a server.
//!
//! Input: a file with the text, and one with the questions. Output: the answer of `POST /v1/systemone`, or of
//! `POST /v1/decisions` if the questions are a list. What must hold: the answer is the server's, because the
//! files become the body of a request.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::anyhow;
use clap::Args;
use serde::de::IgnoredAny;

use super::{
    Usage, block_on,
    input::{is_stdin, name_in_messages, read_text},
    start_engine,
};
use crate::{args::ModelArgs, http::answer_decisions};

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
