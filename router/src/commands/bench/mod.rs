//! `bench`: puts a running server under load and reports how fast it answers.
//!
//! Input: the server's address, the workload and its rate. Output: rates, percentiles of the latency and
//! errors, as text or JSON, and a histogram as SVG. What must hold: every request that was sent is counted
//! once; a failed request counts in no rate and no latency; requests of the warm-up are not counted.

mod histogram;
mod load;
mod report;
mod workload;

use std::{
    fs,
    io::{self, IsTerminal, Write},
    num::NonZeroUsize,
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context, ensure};
use clap::Args;
use text_embeddings_core::secret::Secret;

use super::{Usage, block_on};
use crate::args::{at_least_one, seconds, whole};
use load::{LoadTest, RunLimit};
use workload::Workload;

/// The arguments of `bench`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  text-embeddings-router bench --url http://localhost:3000
  text-embeddings-router bench --url http://localhost:3000 --concurrency 16
  text-embeddings-router bench --url http://localhost:3000/embed --texts 100
  text-embeddings-router bench --url http://localhost:3000 --rate 20

What is measured:
  Without --rate (closed loop), each client sends its next request when it has the answer to the last one. That
  shows how much the server can do, with latencies at that load.
  With --rate (open loop), requests are due at fixed times, whether or not earlier ones are answered, and a latency
  counts from the time when its request was due. That shows the latency of users at that rate, waiting included.
A pair is a query with a text. Tokens are counted by the server's header x-compute-tokens. Every generated request has
a query of its own, so that requests share little.")]
pub(crate) struct BenchArgs {
    /// The server's address, such as `http://localhost:3000`, also with the route behind it.
    #[arg(long)]
    url: String,

    /// The route to send to [default: the one in `--url`, else the main task of the server's model].
    #[arg(long)]
    route: Option<String>,

    /// The server's key.
    #[arg(long, env, hide_env_values = true)]
    api_key: Option<Secret>,

    /// The most requests in flight.
    #[arg(
        long, short, default_value = "8", value_parser = at_least_one::<NonZeroUsize>, help_heading = "Load"
    )]
    concurrency: NonZeroUsize,

    /// The seconds during which requests are sent [default: 10, unless `--requests` is given].
    #[arg(long, value_parser = seconds, conflicts_with = "requests", help_heading = "Load")]
    duration: Option<Duration>,

    /// The number of requests, without the warm-up.
    #[arg(long, value_parser = at_least_one::<NonZeroUsize>, help_heading = "Load")]
    requests: Option<NonZeroUsize>,

    /// The requests per second that are due [default: a request is due when an earlier one is answered].
    #[arg(long, value_parser = rate, help_heading = "Load")]
    rate: Option<f64>,

    /// The number of requests that are sent first and not counted [default: as `--concurrency`].
    #[arg(long, value_parser = whole::<usize>, help_heading = "Load")]
    warm_up: Option<usize>,

    /// The seconds after which a request counts as failed.
    #[arg(long, default_value = "60", value_parser = seconds, help_heading = "Load")]
    timeout: Duration,

    /// The number of texts of a generated request.
    #[arg(long, default_value = "10", value_parser = at_least_one::<NonZeroUsize>, help_heading = "Requests")]
    texts: NonZeroUsize,

    /// The number of words of a text.
    #[arg(long, default_value = "100", value_parser = whole::<usize>, help_heading = "Requests")]
    words: usize,

    /// The number of words of a query.
    #[arg(long, default_value = "10", value_parser = at_least_one::<NonZeroUsize>, help_heading = "Requests")]
    query_words: NonZeroUsize,

    /// The seed of the random words [default: another one each time, so that no score is in the server's
    /// cache].
    #[arg(long, value_parser = whole::<u64>, help_heading = "Requests")]
    seed: Option<u64>,

    /// A file with bodies to send in turn: a JSON object, an array of them, or one on each line.
    #[arg(
        long, value_name = "FILE", conflicts_with_all = ["texts", "words", "query_words", "seed"],
        help_heading = "Requests"
    )]
    workload: Option<PathBuf>,

    /// The format of the results.
    #[arg(long, short, default_value = "text", help_heading = "Results")]
    output: ReportFormat,

    /// A file for the histogram of the latencies, as SVG.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    histogram: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ReportFormat {
    /// For people.
    Text,
    /// An object.
    Json,
}

const DEFAULT_DURATION: Duration = Duration::from_secs(10);

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| "expected requests per second, such as 20 or 0.5".to_owned())
}

/// Puts the server under load.
pub(super) fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let target = BenchTarget::new(&args.url, args.route.as_deref())?;
    let limit = match (args.requests, args.duration) {
        (Some(requests), _) => RunLimit::Requests(requests.get() as u64),
        (None, duration) => RunLimit::Duration(duration.unwrap_or(DEFAULT_DURATION)),
    };
    let report = block_on("warn", async {
        let route = match &target.route {
            Some(route) => route.clone(),
            None => load::main_route(&target.server, args.api_key.as_ref()).await,
        };
        let load = LoadTest {
            url: format!("{}{route}", target.server),
            api_key: args.api_key.clone(),
            workload: args.workload(&route)?,
            concurrency: args.concurrency.get(),
            warm_up: args.warm_up.unwrap_or(args.concurrency.get()),
            limit,
            rate: args.rate,
            timeout: args.timeout,
        };
        if io::stderr().is_terminal() {
            writeln!(io::stderr(), "{}", load.describe())?;
        }
        load.run().await
    })?;
    let mut out = io::stdout().lock();
    match args.output {
        ReportFormat::Text => write!(out, "{}", report.text())?,
        ReportFormat::Json => writeln!(out, "{}", report.json())?,
    }
    out.flush()?;
    ensure!(!report.latencies.is_empty(), "no request was answered: {}", report.error_words());
    if let Some(path) = &args.histogram {
        fs::write(path, report.histogram()).with_context(|| {
            format!("`--histogram {}` cannot be written: check its folder", path.display())
        })?;
    }
    Ok(())
}

impl BenchArgs {
    /// The bodies to send to this route.
    fn workload(&self, route: &str) -> anyhow::Result<Workload> {
        if let Some(path) = &self.workload {
            return Workload::read(path);
        }
        if !workload::ROUTES.contains(&route) {
            let known = workload::ROUTES.join(", ");
            let text = format!("bodies for `{route}` are not known, only for {known}: give `--workload`");
            return Err(Usage(text, "bench").into());
        }
        Ok(Workload::Generated {
            route: route.to_owned(),
            texts: self.texts.get(),
            words: self.words,
            query_words: self.query_words.get(),
            seed: self.seed.unwrap_or_else(rand::random),
        })
    }
}

/// Where requests are sent.
struct BenchTarget {
    /// Scheme, host and port, without a slash at the end.
    server: String,
    /// Absent if neither flag names one.
    route: Option<String>,
}

impl BenchTarget {
    fn new(url: &str, route: Option<&str>) -> Result<Self, Usage> {
        let is_address = url.starts_with("http://") || url.starts_with("https://");
        if !is_address || reqwest::Url::parse(url).is_err() {
            let text = format!("`--url {url}` is not an address such as http://localhost:3000");
            return Err(Usage(text, "bench"));
        }
        if let Some(route) = route {
            if !route.starts_with('/') {
                return Err(Usage(format!("`--route {route}` is not a route such as /rerank"), "bench"));
            }
            // A server may be behind a path, so that with `--route` nothing of the address is a route.
            return Ok(Self { server: url.trim_end_matches('/').to_owned(), route: Some(route.to_owned()) });
        }
        let url = url.trim_end_matches('/');
        let known = workload::ROUTES.iter().filter(|route| url.ends_with(**route));
        // `/v1/rerank` ends in `/rerank`, too.
        let route = known.max_by_key(|route| route.len()).map(|route| (*route).to_owned());
        let server = url[..url.len() - route.as_ref().map_or(0, String::len)].to_owned();
        Ok(Self { server, route })
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    #[test]
    fn the_route_is_the_flags_or_the_addresss() {
        for (url, route, server, expected) in [
            ("http://a:1", None, "http://a:1", None),
            ("http://a:1/", None, "http://a:1", None),
            ("http://a:1/rerank", None, "http://a:1", Some("/rerank")),
            ("http://a:1/v1/rerank/", None, "http://a:1", Some("/v1/rerank")),
            ("https://a/tei/embed", None, "https://a/tei", Some("/embed")),
            ("https://a/tei", None, "https://a/tei", None),
            ("https://a/tei/", Some("/embed"), "https://a/tei", Some("/embed")),
        ] {
            let target = BenchTarget::new(url, route).unwrap();
            assert_eq!((target.server.as_str(), target.route.as_deref()), (server, expected), "{url}");
        }
        for (url, route) in [("a:1", None), ("ftp://a", None), ("http://a", Some("embed"))] {
            assert!(BenchTarget::new(url, route).is_err(), "{url}");
        }
    }

    #[test]
    fn bodies_for_an_unknown_route_are_refused() {
        let command = BenchArgs::augment_args(clap::Command::new("bench"));
        let matches = command.get_matches_from(["bench", "--url", "http://a"]);
        let args = <BenchArgs as clap::FromArgMatches>::from_arg_matches(&matches).unwrap();
        assert!(args.workload("/rerank").is_ok());
        let message = args.workload("/health").err().unwrap().to_string();
        assert!(message.contains("`/health`") && message.contains("`--workload`"), "{message}");
    }
}
