//! `download`: fetches models for use without the network.
//!
//! Input: Hub ids, or a models file. Output: the path of each model's folder on standard output, alone on its
//! line, when its files are complete. What must hold: the server can start from that folder, because the same
//! code fetches it.

use std::{
    io::{self, IsTerminal, Write},
    path::PathBuf,
};

use anyhow::anyhow;
use clap::Args;
use text_embeddings_core::files::Format;

use super::block_on;
use crate::{
    args::{HubArgs, models::ModelsFile},
    startup,
};

/// The arguments of `download`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  text-embeddings-router download Qwen/Qwen3-Reranker-0.6B
  MODEL=$(text-embeddings-router download Qwen/Qwen3-Reranker-0.6B)
  HF_HUB_OFFLINE=1 text-embeddings-router --model-id Qwen/Qwen3-Reranker-0.6B

Prints the path of the model's folder, or of its GGUF file, which `--model-id` takes too; for `demo`, its name. \
Files that are there already are not fetched again.")]
pub(crate) struct DownloadArgs {
    /// The model: a Hub id such as `Qwen/Qwen3-Reranker-0.6B`; repeatable, in the variable with commas.
    #[arg(
        env = "MODEL_ID",
        value_name = "MODEL",
        value_delimiter = ',',
        required_unless_present = "models_file"
    )]
    models: Vec<String>,

    /// A models file, all of whose models are fetched as its flags and variables say.
    #[arg(long, env, value_name = "FILE", conflicts_with_all = ["models", "revision", "gguf_file", "onnx_file"])]
    models_file: Option<PathBuf>,

    /// How it is fetched.
    #[command(flatten)]
    hub: HubArgs,
}

pub(super) fn run(args: &DownloadArgs) -> anyhow::Result<()> {
    // A terminal shows bars; elsewhere the log shows the progress.
    let level = if io::stderr().is_terminal() { "warn" } else { "info" };
    let sources = match &args.models_file {
        Some(file) => {
            let list = ModelsFile::from_path(file).read_list().map_err(|problem| anyhow!(problem))?;
            list.models.iter().map(|model| startup::model_source(&model.model_id, &model.model.hub)).collect()
        }
        None => args.models.iter().map(|model| startup::model_source(model, &args.hub)).collect::<Vec<_>>(),
    };
    block_on(level, async {
        for source in sources {
            let folder = startup::load(&source, None).await?;
            // A folder may hold many GGUF files. The root of the demonstration is its name.
            let is_gguf = folder.stored.as_ref().is_some_and(|stored| stored.format == Format::Gguf);
            let path = if is_gguf { folder.weights[0].path() } else { &folder.root };
            let mut out = io::stdout().lock();
            writeln!(out, "{}", path.display())?;
            out.flush()?;
        }
        Ok(())
    })
}
