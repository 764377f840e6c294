//! `health`: asks a running server whether it is ready for requests, for containers that have no curl.
//!
//! Input: the server's address. Output: nothing, and exit code 0; else one line with the reason, and exit
//! code 1. What must hold: it ends within [`LIMIT`], so that a server that hangs is found too.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, bail};
use clap::Args;
use reqwest::Client;

use super::{Usage, block_on};
use crate::args::port;

/// The time that the server has to answer.
const LIMIT: Duration = Duration::from_secs(5);

/// The arguments of `health`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  text-embeddings-router health
  text-embeddings-router health --url http://localhost:8080

Asks `/health/ready`, and prints nothing if the server is ready. Exit codes: 0 ready, 1 not ready or no answer within
5 seconds, 2 wrong arguments.")]
pub(crate) struct HealthArgs {
    /// The port of a server on this machine.
    #[arg(long, env, default_value = "3000", value_parser = port)]
    port: u16,

    /// The server's address, such as `http://localhost:3000` [default: `--port` of this machine].
    // No conflict with `--port`: a container's `PORT` would be one.
    #[arg(long)]
    url: Option<String>,

    /// The server's certificate file: with it, `--port` is asked over TLS, and no certificate is checked.
    #[arg(long, env, value_name = "PATH")]
    tls_cert: Option<PathBuf>,
}

pub(super) fn run(args: &HealthArgs) -> anyhow::Result<()> {
    let scheme = if args.tls_cert.is_some() { "https" } else { "http" };
    let server = args.url.clone().unwrap_or_else(|| format!("{scheme}://127.0.0.1:{}", args.port));
    if !server.starts_with("http://") && !server.starts_with("https://") {
        return Err(Usage(format!("`--url {server}` has no scheme: write http://{server}"), "health").into());
    }
    ask_route(&format!("{}/health/ready", server.trim_end_matches('/')), args.tls_cert.is_some())
}

/// Asks a health route. With `any_certificate`, the one of TLS is not checked.
pub(super) fn ask_route(address: &str, any_certificate: bool) -> anyhow::Result<()> {
    block_on("warn", async {
        // A proxy for other machines cannot reach a server on this one.
        let client = Client::builder().timeout(LIMIT).no_proxy();
        // The certificate is for this machine's public name, and the request holds no secret.
        let client = client.danger_accept_invalid_certs(any_certificate);
        let client = client.build().context("cannot make a request")?;
        let answer = client.get(address).send().await.map_err(reqwest::Error::without_url);
        let answer = answer.with_context(|| format!("no answer from {address}"))?;
        if !answer.status().is_success() {
            bail!("{address} says {}: the server is not ready", answer.status());
        }
        Ok(())
    })
}
