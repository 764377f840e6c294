//! Tries the files of a model in a child process, before the running server reads them.
//!
//! Input: a model's name. Output: nothing, or why its files cannot be used. What must hold: files that make
//! the work on them take all time or memory (`text_embeddings_core::guard`) end the child, and the server
//! goes on. At the start, the process itself ends.

use std::{
    io::ErrorKind,
    os::unix::process::ExitStatusExt,
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context, bail};

use crate::{
    args::{Args, models::ModelList},
    startup::find_files,
};

/// The environment variable of the child, with the name of the model whose files it is to try.
pub(crate) const VARIABLE: &str = "TEXT_EMBEDDINGS_ROUTER_TRIAL";

/// Tries the files of the model with this name. This is all that the child does.
pub(crate) fn run_trial(list: &ModelList, name: &str) -> anyhow::Result<ExitCode> {
    // If memory runs out, the system ends this process and not the server.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let args = list.models.iter().find(|args| args.model_name() == name);
    let args = args.context("it is not in the models file")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(find_files(args))?.read_texts()?;
    Ok(ExitCode::SUCCESS)
}

/// Has a child process try the files of the model that these arguments name, with the arguments and the
/// environment of this one. The files must be on this machine. Blocks. The error is the child's error, or the
/// way in which it ended.
pub(crate) fn try_files(args: &Args) -> anyhow::Result<()> {
    // The binary may have been replaced since the start.
    let program = if cfg!(target_os = "linux") { "/proc/self/exe".into() } else { std::env::current_exe()? };
    let child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .envs([(VARIABLE, args.model_name()), ("HF_HUB_OFFLINE", "1")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let ended = match child {
        Ok(child) => child.wait_with_output()?,
        // There are systems that let a server start no process.
        Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::NotFound) => {
            tracing::warn!("the files are not tried first: no child process can be started ({error})");
            return Ok(());
        }
        Err(error) => return Err(error).context("no child process can be started to try the files"),
    };
    let said = String::from_utf8_lossy(&ended.stderr);
    let last = said.lines().last().unwrap_or_default();
    match ended.status.signal() {
        _ if ended.status.success() => Ok(()),
        Some(signal) => bail!("the process that tried its files was ended by signal {signal}: {last}"),
        None => bail!("{}", last.strip_prefix("Error: ").unwrap_or(last)),
    }
}
