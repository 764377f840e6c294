//! The Prometheus side of the metrics: buckets, the recorder and the second port that serves them.
//!
//! Input: the metrics that `text_embeddings_core::metrics` names, and the process's own. Output: their text
//! form, on `GET /metrics` of the first port and on every path of the second. What must hold: buckets are
//! TEI's, edge for edge and digit for digit, because rules name them and fleets add them up: durations 10 µs
//! times 1.5, times 1.5, …, 35 times; lengths and sizes powers of two, lengths up to the longest input. The
//! queue's gauges are current whenever they are read. Every counter is there from the start, because a rate
//! cannot see a counter's first step.

use std::{
    iter::successors,
    net::SocketAddr,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use anyhow::Context;
use axum::{
    Router,
    http::{
        HeaderMap, StatusCode,
        header::{CONTENT_TYPE, WWW_AUTHENTICATE},
    },
    response::IntoResponse,
};
use metrics::Label;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use text_embeddings_core::{
    infer::EngineGauges,
    metrics::{
        ALL, BUILD_INFO, CONNECTIONS, Metric, MetricKind, ModelMetrics, OF_PROCESS, Observed,
        REQUEST_FAILURE, REQUEST_INPUT_LENGTH, REQUESTS, TOKENIZER_REQUESTS, UNREAD_BYTES, UNSENT_BYTES,
    },
};
use text_embeddings_door::{Door, HeldNow, Listener, Protocol, Reserved, Stop, reserve_port};

use crate::{auth::ApiKeys, config::PrometheusPort, info, models::Models};

/// The answer for a scraper without the key.
const UNAUTHORIZED: &str = "the metrics of this server want its key as `Authorization: Bearer KEY`\n";
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
/// How often observations are added to their buckets if nobody scrapes.
const UPKEEP: Duration = Duration::from_secs(5);
/// The number of buckets of a duration.
const DURATIONS: usize = 35;

/// The buckets of probabilities. Most scores of a re-ranker are near 0 and 1, so the steps are small there.
const PROBABILITIES: [f64; 15] =
    [0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1.0];

/// Reads the metrics of the process. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Metrics {
    recorded: PrometheusHandle,
    /// Processor time, memory, threads and descriptors of the process.
    process: metrics_process::Collector,
    /// Empty while the models load.
    served: Arc<RwLock<Option<WatchedModels>>>,
    /// The door of all ports.
    door: Door,
}

/// The part that is known when the models are loaded.
#[derive(Clone)]
struct WatchedModels {
    engines: Vec<EngineGauges>,
    /// The tokens of the longest input of any model.
    max_length: usize,
}

impl Metrics {
    /// The metrics of a recorder, with the gauges of this door.
    pub(crate) fn new(recorded: PrometheusHandle, door: Door) -> Self {
        let process = metrics_process::Collector::default();
        Self { recorded, process, served: Arc::default(), door }
    }

    /// Has the gauges of these models' engines, which are loaded, and buckets up to their longest input.
    pub(crate) fn watch(&self, models: &Models) {
        let all = models.all_models();
        let engines = all.iter().map(|served| served.service.engine().gauges()).collect();
        let inputs = all.iter().map(|served| served.info.config.model.limits.max_input_length);
        let watched = WatchedModels { engines, max_length: inputs.max().unwrap_or_default() };
        *self.served.write().unwrap_or_else(PoisonError::into_inner) = Some(watched);
    }

    /// The metrics in Prometheus' text form.
    pub(crate) fn text(&self) -> String {
        self.process.collect();
        let HeldNow { connections, unread_bytes, unsent_bytes } = self.door.held_now();
        let all_models = ModelMetrics::default();
        all_models.set_amount(CONNECTIONS, connections);
        all_models.set_amount(UNREAD_BYTES, unread_bytes);
        all_models.set_amount(UNSENT_BYTES, unsent_bytes);
        let watched = self.served.read().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(WatchedModels { engines, max_length }) = watched else {
            return self.recorded.render();
        };
        engines.iter().for_each(EngineGauges::publish_gauges);
        let text = self.recorded.render();
        let text: String = text.split_inclusive('\n').filter(|line| !is_beyond(line, max_length)).collect();
        ALL.iter()
            .filter(|metric| metric.kind == MetricKind::CounterOfSeconds)
            .fold(text, |text, metric| as_counter(&text, metric))
    }

    /// The metrics as an answer.
    pub(crate) fn answer(&self) -> impl IntoResponse + use<> {
        ([(CONTENT_TYPE, TEXT_FORMAT)], self.text())
    }
}

/// Gives this metric, which the recorder takes for a gauge, the type of a counter.
fn as_counter(text: &str, Metric { name, .. }: &Metric) -> String {
    text.replace(&format!("# TYPE {name} gauge"), &format!("# TYPE {name} counter"))
}

/// Whether a line is a bucket for inputs that are longer than the longest. The buckets are cumulative, so
/// that leaving it out loses nothing; the recorder has it because it starts before the longest input is
/// known.
fn is_beyond(line: &str, max_length: usize) -> bool {
    let labels = line.strip_prefix(REQUEST_INPUT_LENGTH).and_then(|rest| rest.strip_prefix("_bucket{"));
    // The edge is the last label.
    let edge = labels.and_then(|labels| labels.rsplit("le=\"").next()?.split('"').next());
    edge.and_then(|edge| edge.parse::<usize>().ok()).is_some_and(|edge| edge > max_length)
}

/// A recorder with its buckets, which is not installed. Fails only if a metric had no buckets.
pub(crate) fn builder() -> Result<PrometheusBuilder, BuildError> {
    // Each edge is the one before times 1.5: powers of 1.5 would differ in the last digits, and so in their
    // names.
    let durations: Vec<f64> = successors(Some(1e-5 * 1.5), |edge| Some(edge * 1.5)).take(DURATIONS).collect();
    ALL.iter().try_fold(PrometheusBuilder::new(), |builder, metric| {
        let buckets = match metric.kind {
            MetricKind::Counter | MetricKind::CounterOfSeconds | MetricKind::Gauge => return Ok(builder),
            MetricKind::Histogram(Observed::Durations) => durations.clone(),
            MetricKind::Histogram(Observed::Amounts(power)) => (0..=power).map(|k| 2.0_f64.powi(k)).collect(),
            MetricKind::Histogram(Observed::Probabilities) => PROBABILITIES.to_vec(),
        };
        builder.set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), &buckets)
    })
}

/// Installs the recorder, describes every metric, sets the counters of these models to zero, and keeps the
/// recorder in order. Needs a tokio runtime. Fails if the process has a recorder already.
pub(crate) fn start(models: &[ModelMetrics], door: Door) -> anyhow::Result<Metrics> {
    let handle = builder()?.install_recorder().context("the metrics cannot start")?;
    text_embeddings_core::metrics::describe();
    set_to_zero(models);
    let metrics = Metrics::new(handle.clone(), door);
    metrics.process.describe();
    let upkeep = handle;
    tokio::spawn(async move {
        let mut interval = tokio::time::interval(UPKEEP);
        loop {
            interval.tick().await;
            upkeep.run_upkeep();
        }
    });
    Ok(metrics)
}

/// The values of the label `method`.
const METHODS: [&str; 2] = ["single", "batch"];
/// The values of the label `err`.
const FAILURES: [&str; 10] = [
    "overloaded",
    "validation",
    "batch_size",
    "tokenization",
    "inference",
    "model_type",
    "missing_values",
    "queue_timeout",
    "unhealthy",
    "dropped",
];

/// Registers every counter and gauge of these models with all values of its labels, and the build. A counter
/// that has moved stays; gauges of a model that is gone become zero.
pub(crate) fn set_to_zero(models: &[ModelMetrics]) {
    let by_method = [REQUESTS.count, REQUESTS.success, TOKENIZER_REQUESTS.count, TOKENIZER_REQUESTS.success];
    for metric in ALL {
        let (name, labels): (_, (_, &[&'static str])) = match metric.name {
            BUILD_INFO => continue,
            REQUEST_FAILURE => (metric.name, ("err", &FAILURES)),
            name if by_method.contains(&name) => (name, ("method", &METHODS)),
            name => (name, ("", &[])),
        };
        let (label, values) = labels;
        let models = if OF_PROCESS.contains(&name) { &[ModelMetrics::default()] } else { models };
        for model in models {
            match metric.kind {
                MetricKind::Counter if values.is_empty() => {
                    metrics::counter!(name, model.all_labels(None)).absolute(0);
                }
                MetricKind::Counter => {
                    for value in values {
                        metrics::counter!(name, model.all_labels(Some(Label::new(label, *value))))
                            .absolute(0);
                    }
                }
                MetricKind::CounterOfSeconds | MetricKind::Gauge => model.set_amount(name, 0),
                MetricKind::Histogram(_) => {}
            }
        }
    }
    let commit = info::COMMIT.unwrap_or_default();
    metrics::gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION"), "commit" => commit).set(1.0);
}

/// Opens the second port and serves the metrics there until the process ends. A port in use is an error if
/// the user gave it; the default port in use is only logged, because several servers may share a machine.
/// Without `keys`, the metrics require none. Fails if the port that the user gave cannot be opened.
pub(crate) fn listen(
    port: PrometheusPort,
    address: std::net::IpAddr,
    metrics: Metrics,
    keys: ApiKeys,
) -> anyhow::Result<()> {
    let addresses = [SocketAddr::new(address, port.port)];
    let listener = match reserve_port(&addresses, "--prometheus-port").and_then(Reserved::listen) {
        Ok(listener) => listener,
        Err(error) if port.explicit => return Err(error),
        Err(error) => {
            let elsewhere = if cfg!(feature = "plain-http") { "at /metrics only" } else { "nowhere" };
            tracing::warn!("{error}; until then the metrics are {elsewhere}");
            return Ok(());
        }
    };
    tracing::info!("metrics are served on port {}", listener.local_addr()?.port());
    let door = metrics.door.clone();
    let app = Router::new().fallback(move |headers: HeaderMap| async move {
        if keys.may_pass(&headers) {
            metrics.answer().into_response()
        } else {
            (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")], UNAUTHORIZED).into_response()
        }
    });
    tokio::spawn(async move { door.open(Listener::Tcp(listener), Protocol::Http, app, Stop::never()).await });
    Ok(())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::{args::Args, config::client_limits};
    use std::net::{IpAddr, Ipv4Addr};
    use text_embeddings_core::metrics::{BATCH_NEXT_TOKENS, REQUEST_DURATION, RERANK_SCORE, describe};
    use tokio::net::TcpListener;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn durations_and_amounts_have_their_buckets() {
        let recorder = builder().unwrap().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            metrics::histogram!(REQUEST_DURATION).record(0.5);
            metrics::histogram!(BATCH_NEXT_TOKENS).record(1000.0);
            metrics::histogram!(RERANK_SCORE).record(0.997);
        });
        let text = recorder.handle().render();
        let buckets = |name: &str| -> Vec<f64> {
            let prefix = format!("{name}_bucket{{le=\"");
            let edges = text.lines().filter_map(|line| line.strip_prefix(&prefix));
            edges
                .filter_map(|line| line.split('"').next().unwrap().parse().ok())
                .filter(|e: &f64| e.is_finite())
                .collect()
        };
        let durations = buckets(REQUEST_DURATION);
        assert_eq!(durations.len(), 35, "{text}");
        let mut edge = 1e-5;
        for duration in durations {
            edge *= 1.5;
            assert!((duration - edge).abs() < 1e-9 * edge, "{duration} is not {edge}");
        }
        // As the text has it, not only as a number.
        for edge in ["0.000015000000000000002", "0.000022500000000000005", "14.561096060497142"] {
            assert!(
                text.contains(&format!("te_request_duration_bucket{{le=\"{edge}\"}} ")),
                "{edge}: {text}"
            );
        }
        let amounts = buckets(BATCH_NEXT_TOKENS);
        assert_eq!((amounts[0], amounts[1], amounts[20]), (1.0, 2.0, 1_048_576.0));
        assert!(text.contains("te_batch_next_tokens_bucket{le=\"512\"} 0"), "{text}");
        assert!(text.contains("te_batch_next_tokens_bucket{le=\"1024\"} 1"), "{text}");
        assert!(text.contains("te_rerank_score_bucket{le=\"0.99\"} 0"), "{text}");
        assert!(text.contains("te_rerank_score_bucket{le=\"0.999\"} 1"), "{text}");
        assert_eq!(buckets(RERANK_SCORE), PROBABILITIES);
    }

    #[test]
    fn buckets_for_longer_inputs_than_there_are_are_left_out() {
        let line =
            |labels: &str, edge: &str| format!("te_request_input_length_bucket{{{labels}le=\"{edge}\"}} 3\n");
        for (edge, max_length, expected) in [
            ("512", 512, false),
            ("512", 513, false),
            ("1024", 513, true),
            ("1", 0, true),
            ("+Inf", 513, false),
        ] {
            for labels in ["", "model=\"m\",", "model=\"le=\\\"1\","] {
                let line = line(labels, edge);
                assert_eq!(is_beyond(&line, max_length), expected, "{line} {max_length}");
            }
        }
        for other in ["te_request_input_length_sum 9999", "te_batch_next_tokens_bucket{le=\"1024\"} 1", ""] {
            assert!(!is_beyond(other, 1), "{other}");
        }
    }

    #[test]
    fn every_metric_has_its_type_and_its_description() {
        let recorder = builder().unwrap().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            describe();
            for metric in ALL {
                match metric.kind {
                    MetricKind::Counter => metrics::counter!(metric.name).increment(1),
                    MetricKind::CounterOfSeconds | MetricKind::Gauge => metrics::gauge!(metric.name).set(1.0),
                    MetricKind::Histogram(_) => metrics::histogram!(metric.name).record(1.0),
                }
            }
        });
        let text = recorder.handle().render();
        let text = ALL
            .iter()
            .filter(|metric| metric.kind == MetricKind::CounterOfSeconds)
            .fold(text, |text, metric| as_counter(&text, metric));
        for metric in ALL {
            let kind = match metric.kind {
                MetricKind::Counter | MetricKind::CounterOfSeconds => "counter",
                MetricKind::Gauge => "gauge",
                MetricKind::Histogram(_) => "histogram",
            };
            let (name, description) = (metric.name, metric.description);
            for line in [format!("# TYPE {name} {kind}"), format!("# HELP {name} {description}")] {
                assert_eq!(text.lines().filter(|found| **found == line).count(), 1, "{line}\n{text}");
            }
        }
    }

    #[test]
    fn the_documentation_lists_every_metric() {
        let page = include_str!("../../../docs/telemetry.md");
        for Metric { name, kind, description, .. } in ALL {
            let kind = match kind {
                MetricKind::Counter | MetricKind::CounterOfSeconds => "counter",
                MetricKind::Gauge => "gauge",
                MetricKind::Histogram(_) => "histogram",
            };
            let row = format!("| {kind} | {} |", description.trim_end_matches('.'));
            let rows =
                page.lines().filter(|line| line.starts_with(&format!("| `{name}")) && line.ends_with(&row));
            assert_eq!(rows.count(), 1, "docs/telemetry.md needs the row | `{name}` {row}");
        }
    }

    #[tokio::test]
    async fn a_port_in_use_is_an_error_only_if_it_was_asked_for() {
        let taken = TcpListener::bind((HERE, 0)).await.unwrap();
        let port = taken.local_addr().unwrap().port();
        let args = Args::try_from(["text-embeddings-router"]).unwrap();
        let door = Door::new(client_limits(&args.door, 1, None).unwrap());
        let metrics = Metrics::new(builder().unwrap().build_recorder().handle(), door);
        let asked = PrometheusPort { port, explicit: true };
        let message = listen(asked, HERE, metrics.clone(), ApiKeys::default()).unwrap_err().to_string();
        assert!(message.starts_with(&format!("cannot listen on {HERE}:{port} (")), "{message}");
        assert!(message.contains("give a free `--prometheus-port`"), "{message}");
        listen(PrometheusPort { explicit: false, ..asked }, HERE, metrics, ApiKeys::default()).unwrap();
    }
}
