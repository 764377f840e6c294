//! The load itself: requests, one after the other from each client, or due at fixed times.
//!
//! Input: a [`LoadTest`]. Output: a [`LoadResult`]. What must hold: with a rate, a latency counts from when
//! its request was due, and every request that was due is sent, however late, so that a server that stalls
//! cannot hide it; no more requests are in flight than clients.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use reqwest::{Client, header};
use serde_json::Value;
use text_embeddings_backend_core::amount;
use text_embeddings_core::secret::Secret;
use tokio::{task::JoinSet, time::sleep_until};

use super::workload::Workload;

/// When to stop.
#[derive(Debug, Clone, Copy)]
pub(super) enum RunLimit {
    /// After this number of requests.
    Requests(u64),
    /// When no more requests begin, or are due.
    Duration(Duration),
}

/// The route of the main task of the server's model, by `/info`; `/rerank` of a server that does not tell.
pub(super) async fn main_route(server: &str, api_key: Option<&Secret>) -> String {
    let kind = model_kind(server, api_key).await;
    let route = match kind.as_deref() {
        Some("embedding") => "/embed",
        Some("classifier") => "/predict",
        _ => "/rerank",
    };
    route.to_owned()
}

/// The one key of `model_type`.
async fn model_kind(server: &str, api_key: Option<&Secret>) -> Option<String> {
    let client = Client::builder().no_proxy().timeout(INFO_TIMEOUT).build().ok()?;
    let mut request = client.get(format!("{server}/info"));
    if let Some(key) = api_key {
        request = request.bearer_auth(key.expose());
    }
    let info: Value = serde_json::from_slice(&request.send().await.ok()?.bytes().await.ok()?).ok()?;
    info["model_type"].as_object()?.keys().next().cloned()
}

/// The time for `/info`. Later, the requests of the load say what is wrong with the server.
const INFO_TIMEOUT: Duration = Duration::from_secs(5);

/// What to send, and how.
pub(super) struct LoadTest {
    pub(super) url: String,
    pub(super) api_key: Option<Secret>,
    pub(super) workload: Workload,
    pub(super) concurrency: usize,
    pub(super) warm_up: usize,
    pub(super) limit: RunLimit,
    pub(super) rate: Option<f64>,
    pub(super) timeout: Duration,
}

/// The measurements.
#[derive(Debug, Default)]
pub(super) struct LoadResult {
    /// The workload in words.
    pub(super) what: String,
    /// The plural of the things in a request: `pairs`, or `texts` where there is no query.
    pub(super) unit: &'static str,
    /// The clients.
    pub(super) concurrency: usize,
    /// Requests per second that were due; absent in a closed loop.
    pub(super) rate: Option<f64>,
    /// From the first request to the last answer.
    pub(super) elapsed: Duration,
    /// Of the requests that succeeded, sorted in the end.
    pub(super) latencies: Vec<Duration>,
    /// Pairs that were scored.
    pub(super) pairs: u64,
    /// Tokens of these; absent if the server does not report them.
    pub(super) tokens: Option<u64>,
    /// The number of failures by status, or by a word for others.
    pub(super) errors: BTreeMap<String, u64>,
    /// One of the failures.
    pub(super) last_failure: Option<RequestFailure>,
    /// Requests that were sent late, because no client was free.
    pub(super) late: u64,
}

/// A request that is this late had no free client.
const LATE: Duration = Duration::from_millis(20);

/// A part of the load, which the clients share: the warm-up, or the measurement.
struct LoadPhase {
    load: Arc<LoadTest>,
    client: Client,
    /// The number of its first request.
    first: u64,
    limit: RunLimit,
    rate: Option<f64>,
    next: AtomicU64,
    stop: AtomicBool,
    start: Instant,
}

struct BenchAnswer {
    pairs: u64,
    tokens: Option<u64>,
}

/// A failure: its class, and the message.
#[derive(Debug)]
pub(super) struct RequestFailure {
    class: String,
    detail: String,
}

impl LoadTest {
    /// The plan in a sentence.
    pub(super) fn describe(&self) -> String {
        let until = match self.limit {
            RunLimit::Requests(requests) => amount(requests, "request"),
            RunLimit::Duration(duration) => format!("{} s", duration.as_secs_f64()),
        };
        format!("sending to {}: {} to warm up, then {until}", self.url, self.warm_up)
    }

    /// Sends, and waits for the last answer. Fails if not one request of the warm-up succeeds, or there can
    /// be no client.
    pub(super) async fn run(self) -> anyhow::Result<LoadResult> {
        let client = Client::builder()
            .no_proxy()
            .timeout(self.timeout)
            .pool_max_idle_per_host(self.concurrency)
            .build()
            .context("the HTTP client cannot start")?;
        let load = Arc::new(self);
        let warm_up = load.warm_up as u64;
        let phase = |first, limit, rate| {
            let (load, client, next) = (Arc::clone(&load), client.clone(), AtomicU64::new(first));
            let (stop, start) = (false.into(), Instant::now());
            Arc::new(LoadPhase { load, client, first, limit, rate, next, stop, start })
        };
        let warm = run_clients(&phase(0, RunLimit::Requests(warm_up), None)).await?;
        if warm.latencies.is_empty()
            && let Some(RequestFailure { class, detail }) = warm.last_failure
        {
            bail!("{} does not answer ({class}): {detail}", load.url);
        }
        let phase = phase(warm_up, load.limit, load.rate);
        let interrupted = tokio::spawn({
            let phase = Arc::clone(&phase);
            async move {
                // On ctrl-c, the measurements so far are reported.
                if tokio::signal::ctrl_c().await.is_ok() {
                    phase.stop.store(true, Ordering::Relaxed);
                }
            }
        });
        let mut measured = run_clients(&phase).await?;
        interrupted.abort();
        measured.elapsed = phase.start.elapsed();
        measured.latencies.sort_unstable();
        Ok(measured)
    }
}

/// Sends the requests of a phase, from as many clients as the load has.
async fn run_clients(phase: &Arc<LoadPhase>) -> anyhow::Result<LoadResult> {
    let LoadTest { workload, concurrency, .. } = phase.load.as_ref();
    let mut clients = JoinSet::new();
    for _ in 0..*concurrency {
        clients.spawn(send_in_turn(Arc::clone(phase)));
    }
    let (what, unit, concurrency) = (workload.describe(), workload.unit(), *concurrency);
    let mut measured = LoadResult { what, unit, concurrency, rate: phase.rate, ..LoadResult::default() };
    while let Some(ended) = clients.join_next().await {
        measured.add(ended?);
    }
    Ok(measured)
}

/// A client: request after request until the limit.
async fn send_in_turn(phase: Arc<LoadPhase>) -> LoadResult {
    let mut measured = LoadResult::default();
    while !phase.stop.load(Ordering::Relaxed) {
        let number = phase.next.fetch_add(1, Ordering::Relaxed);
        let place = number - phase.first;
        let due = phase.rate.map(|rate| phase.start + Duration::from_secs_f64(place as f64 / rate));
        let begin = due.unwrap_or_else(Instant::now);
        let is_over = match phase.limit {
            RunLimit::Requests(requests) => place >= requests,
            RunLimit::Duration(duration) => begin >= phase.start + duration,
        };
        if is_over {
            break;
        }
        if let Some(due) = due {
            sleep_until(due.into()).await;
            measured.late += u64::from(due.elapsed() > LATE);
        }
        match phase.send(number).await {
            Ok(BenchAnswer { pairs, tokens }) => {
                measured.latencies.push(begin.elapsed());
                measured.pairs += pairs;
                measured.tokens = sum(measured.tokens, tokens);
            }
            Err(failure) => {
                *measured.errors.entry(failure.class.clone()).or_default() += 1;
                measured.last_failure = Some(failure);
            }
        }
    }
    measured
}

fn sum(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.map_or(b, |a| Some(a + b.unwrap_or_default()))
}

impl LoadResult {
    fn add(&mut self, other: Self) {
        self.latencies.extend(other.latencies);
        self.pairs += other.pairs;
        self.tokens = sum(self.tokens, other.tokens);
        self.late += other.late;
        self.last_failure = other.last_failure.or(self.last_failure.take());
        for (class, times) in other.errors {
            *self.errors.entry(class).or_default() += times;
        }
    }
}

impl LoadPhase {
    async fn send(&self, number: u64) -> Result<BenchAnswer, RequestFailure> {
        let (body, pairs) = self.load.workload.body(number);
        let mut request =
            self.client.post(&self.load.url).header(header::CONTENT_TYPE, "application/json").body(body);
        if let Some(key) = &self.load.api_key {
            request = request.bearer_auth(key.expose());
        }
        let answer = request.send().await.map_err(failure)?;
        let status = answer.status();
        let tokens =
            answer.headers().get("x-compute-tokens").and_then(|value| value.to_str().ok()?.parse().ok());
        // An answer has come when all of it has.
        let content = answer.bytes().await.map_err(failure)?;
        if status.is_success() {
            return Ok(BenchAnswer { pairs, tokens });
        }
        let detail = String::from_utf8_lossy(&content[..content.len().min(300)]).into_owned();
        Err(RequestFailure { class: status.as_u16().to_string(), detail })
    }
}

/// A request without an answer.
fn failure(error: reqwest::Error) -> RequestFailure {
    let class = match () {
        () if error.is_timeout() => "timeout",
        () if error.is_connect() => "no connection",
        () => "broken off",
    };
    let detail = format!("{:#}", anyhow::Error::new(error.without_url()));
    RequestFailure { class: class.to_owned(), detail }
}
