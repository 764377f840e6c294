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
use tokio::{task::JoinSet, time::sleep_until};

use super::workload::Workload;
use crate::secret::Secret;

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
    /// Of the requests that succeeded.
    pub(super) latencies: Vec<Duration>,
    /// Pairs that were scored.
    pub(super) pairs: u64,
    /// Tokens of these; absent if the server does not report them.
    pub(super) tokens: Option<u64>,
    /// The number of failures by status, or by a word for others.
    pub(super) errors: BTreeMap<String, u64>,
    /// Requests that were sent late, because no client was free.
    pub(super) late: u64,
}

/// A request that is this late had no free client.
const LATE: Duration = Duration::from_millis(20);

/// State that the clients share.
struct ClientState {
    load: LoadTest,
    client: Client,
    next: AtomicU64,
    stop: AtomicBool,
    start: Instant,
}

/// An answer.
struct BenchAnswer {
    pairs: u64,
    tokens: Option<u64>,
}

/// A failure: its class, and the message of the first of its class.
struct RequestFailure {
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

    /// Sends, and waits for the last answer.
    ///
    /// # Errors
    ///
    /// If not one request of the warm-up succeeds, or there can be no client.
    pub(super) async fn run(self) -> anyhow::Result<LoadResult> {
        let client = Client::builder()
            .no_proxy()
            .timeout(self.timeout)
            .pool_max_idle_per_host(self.concurrency)
            .build()
            .context("the HTTP client cannot start")?;
        let (what, unit) = (self.workload.describe(), self.workload.unit());
        let (concurrency, rate) = (self.concurrency, self.rate);
        let warm_up = self.warm_up as u64;
        let mut shared =
            ClientState { load: self, client, next: 0.into(), stop: false.into(), start: Instant::now() };
        shared = warm(shared, warm_up).await?;
        shared.next = warm_up.into();
        shared.start = Instant::now();
        let shared = Arc::new(shared);
        let interrupted = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                // On ctrl-c, the measurements so far are reported.
                if tokio::signal::ctrl_c().await.is_ok() {
                    shared.stop.store(true, Ordering::Relaxed);
                }
            }
        });
        let mut clients = JoinSet::new();
        for _ in 0..concurrency {
            clients.spawn(client_of(Arc::clone(&shared), warm_up));
        }
        let mut measured = LoadResult { what, unit, concurrency, rate, ..LoadResult::default() };
        while let Some(ended) = clients.join_next().await {
            measured.add(ended?);
        }
        interrupted.abort();
        measured.elapsed = shared.start.elapsed();
        Ok(measured)
    }
}

/// Sends the warm-up's requests, as many at a time as later.
async fn warm(shared: ClientState, requests: u64) -> anyhow::Result<ClientState> {
    if requests == 0 {
        return Ok(shared);
    }
    let shared = Arc::new(shared);
    let mut clients = JoinSet::new();
    for _ in 0..shared.load.concurrency {
        let shared = Arc::clone(&shared);
        clients.spawn(async move {
            let mut failure = None;
            let mut succeeded = 0;
            loop {
                let number = shared.next.fetch_add(1, Ordering::Relaxed);
                if number >= requests {
                    return (succeeded, failure);
                }
                match shared.send(number).await {
                    Ok(_) => succeeded += 1,
                    Err(error) => failure = Some(error),
                }
            }
        });
    }
    let (mut succeeded, mut failure) = (0, None);
    while let Some(ended) = clients.join_next().await {
        let (more, failed) = ended?;
        succeeded += more;
        failure = failed.or(failure);
    }
    if succeeded == 0
        && let Some(RequestFailure { class, detail }) = failure
    {
        bail!("{} does not answer ({class}): {detail}", shared.load.url);
    }
    Arc::try_unwrap(shared).map_err(|_| anyhow::anyhow!("a client of the warm-up did not end"))
}

/// A client: request after request until the limit.
async fn client_of(shared: Arc<ClientState>, first: u64) -> LoadResult {
    let mut measured = LoadResult::default();
    while !shared.stop.load(Ordering::Relaxed) {
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        let due = shared
            .load
            .rate
            .map(|rate| shared.start + Duration::from_secs_f64((number - first) as f64 / rate));
        let begin = due.unwrap_or_else(Instant::now);
        let is_over = match shared.load.limit {
            RunLimit::Requests(requests) => number - first >= requests,
            RunLimit::Duration(duration) => begin >= shared.start + duration,
        };
        if is_over {
            break;
        }
        if let Some(due) = due {
            sleep_until(due.into()).await;
            measured.late += u64::from(due.elapsed() > LATE);
        }
        match shared.send(number).await {
            Ok(BenchAnswer { pairs, tokens }) => {
                measured.latencies.push(begin.elapsed());
                measured.pairs += pairs;
                measured.tokens = sum(measured.tokens, tokens);
            }
            Err(RequestFailure { class, .. }) => *measured.errors.entry(class).or_default() += 1,
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
        for (class, times) in other.errors {
            *self.errors.entry(class).or_default() += times;
        }
    }
}

impl ClientState {
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
