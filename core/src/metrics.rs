//! All `te_…` metrics: name, kind, unit and meaning, in one place.
//!
//! Output: names, [`describe`] for the start, and [`ModelMetrics`], which moves them. The sentences of
//! [`ALL`] tell what each is. What must hold: each metric of [`ALL`] is moved somewhere; durations are in
//! seconds; text-embeddings-inference has the same names and labels, so that its dashboards keep working.

use metrics::{Counter, Histogram, Label, SharedString, Unit};
use std::{sync::Arc, time::Duration};

/// The label with a model's name, if there are several.
const MODEL_LABEL: &str = "model";

/// Requests to the model, by `method`: `single` or `batch`.
pub const REQUESTS: RequestMetrics =
    RequestMetrics { count: "te_request_count", success: "te_request_success" };
/// Requests to the tokenizer alone, by `method`.
pub const TOKENIZER_REQUESTS: RequestMetrics =
    RequestMetrics { count: "te_tokenize_count", success: "te_tokenize_success" };
/// Failures of both, by `err`: an error's label, or `dropped`.
pub const REQUEST_FAILURE: &str = "te_request_failure";
/// A request's time from arrival to answer.
pub const REQUEST_DURATION: &str = "te_request_duration";
pub(crate) const REQUEST_TOKENIZATION_DURATION: &str = "te_request_tokenization_duration";
pub(crate) const REQUEST_QUEUE_DURATION: &str = "te_request_queue_duration";
pub(crate) const REQUEST_INFERENCE_DURATION: &str = "te_request_inference_duration";
/// The number of tokens of an input.
pub const REQUEST_INPUT_LENGTH: &str = "te_request_input_length";
pub(crate) const PREDICT: TextMetrics = TextMetrics {
    count: "te_predict_count",
    success: "te_predict_success",
    duration: "te_predict_duration",
    tokenization_duration: "te_predict_tokenization_duration",
    queue_duration: "te_predict_queue_duration",
    inference_duration: "te_predict_inference_duration",
};
pub(crate) const EMBED: TextMetrics = TextMetrics {
    count: "te_embed_count",
    success: "te_embed_success",
    duration: "te_embed_duration",
    tokenization_duration: "te_embed_tokenization_duration",
    queue_duration: "te_embed_queue_duration",
    inference_duration: "te_embed_inference_duration",
};
/// Lines of the log that were dropped.
pub const LOG_LINES_DROPPED: &str = "te_log_lines_dropped";
pub(crate) const BATCH_NEXT_SIZE: &str = "te_batch_next_size";
/// Unique tokens in a batch.
pub const BATCH_NEXT_TOKENS: &str = "te_batch_next_tokens";
pub(crate) const QUEUE_SIZE: &str = "te_queue_size";
pub(crate) const QUEUE_TOKENS: &str = "te_queue_tokens";
pub(crate) const QUEUE_OLDEST_AGE: &str = "te_queue_oldest_age_seconds";
pub(crate) const DEVICE_BUSY: &str = "te_device_busy_seconds_total";
pub(crate) const PREFIX_SHARED_TOKENS: &str = "te_prefix_shared_tokens";
pub(crate) const BATCH_OUT_OF_MEMORY: &str = "te_batch_out_of_memory";
pub(crate) const BATCH_TOKENS_COMPUTED: &str = "te_batch_tokens_computed";
pub(crate) const PREFIX_CACHE_HITS: &str = "te_prefix_cache_hits";
pub(crate) const PREFIX_CACHE_TOKENS: &str = "te_prefix_cache_tokens";
pub(crate) const PREFIX_CACHE_BYTES: &str = "te_prefix_cache_bytes";
pub(crate) const SCORE_CACHE_HITS: &str = "te_score_cache_hits";
pub(crate) const SCORE_CACHE_TOKENS: &str = "te_score_cache_tokens";
pub(crate) const SCORE_CACHE_BYTES: &str = "te_score_cache_bytes";
/// Whether the model is in memory.
pub const MODEL_LOADED: &str = "te_model_loaded";
/// How often the model was loaded again.
pub const MODEL_LOADS: &str = "te_model_loads";
pub(crate) const TRUNCATED_INPUTS: &str = "te_truncated_inputs";
/// The build: its version and commit, in labels.
pub const BUILD_INFO: &str = "te_build_info";
pub(crate) const REQUESTS_IN_FLIGHT: &str = "te_requests_in_flight";
/// Connections of all ports.
pub const CONNECTIONS: &str = "te_connections";
/// Bytes of requests that no permit covers yet.
pub const UNREAD_BYTES: &str = "te_unread_bytes";
/// Bytes of answers that their clients have not read yet.
pub const UNSENT_BYTES: &str = "te_unsent_bytes";
/// The metrics that belong to no model.
pub const OF_PROCESS: [&str; 6] =
    [BUILD_INFO, LOG_LINES_DROPPED, CONNECTIONS, UNREAD_BYTES, UNSENT_BYTES, SCORE_CACHE_BYTES];
/// Scores of re-ranked texts.
pub const RERANK_SCORE: &str = "te_rerank_score";

/// The names of the counters of requests.
#[derive(Debug, Clone, Copy)]
pub struct RequestMetrics {
    /// Requests that arrived.
    pub count: &'static str,
    /// Requests that were answered.
    pub success: &'static str,
}

/// The names of the metrics of texts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TextMetrics {
    pub(crate) count: &'static str,
    pub(crate) success: &'static str,
    pub(crate) duration: &'static str,
    pub(crate) tokenization_duration: &'static str,
    pub(crate) queue_duration: &'static str,
    pub(crate) inference_duration: &'static str,
}

/// The way in which a metric moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// It only grows, by whole numbers.
    Counter,
    /// It only grows, by seconds and fractions. The recorder's counters are whole numbers, so the recorder
    /// uses a gauge.
    CounterOfSeconds,
    /// It grows and shrinks.
    Gauge,
    /// It records single observations of the given sort.
    Histogram(Observed),
}

/// The sort of a histogram's observations, which decides its buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observed {
    /// Seconds.
    Durations,
    /// Numbers of things. The buckets are powers of two, up to 2 to this power.
    Amounts(i32),
    /// Values in [0, 1].
    Probabilities,
}

/// The description of a metric.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// The name that clients query.
    pub name: &'static str,
    /// The way in which it moves.
    pub kind: MetricKind,
    /// The unit of its values.
    pub unit: Unit,
    /// Its meaning, in a sentence.
    pub description: &'static str,
}

const fn counter(name: &'static str, description: &'static str) -> Metric {
    Metric { name, kind: MetricKind::Counter, unit: Unit::Count, description }
}

const fn seconds(name: &'static str, description: &'static str) -> Metric {
    Metric { name, kind: MetricKind::Histogram(Observed::Durations), unit: Unit::Seconds, description }
}

const fn amounts(name: &'static str, power: i32, description: &'static str) -> Metric {
    Metric { name, kind: MetricKind::Histogram(Observed::Amounts(power)), unit: Unit::Count, description }
}

const fn gauge(name: &'static str, description: &'static str) -> Metric {
    Metric { name, kind: MetricKind::Gauge, unit: Unit::Count, description }
}

/// All metrics.
pub const ALL: &[Metric] = &[
    counter(REQUESTS.count, "Requests to the model that arrived, by method (single or batch)."),
    counter(REQUESTS.success, "Requests to the model that were answered, by method (single or batch)."),
    counter(
        REQUEST_FAILURE,
        "Failures, by err (their kind): one for each text that failed, or for the request as a whole.",
    ),
    counter(
        TOKENIZER_REQUESTS.count,
        "Requests to tokenize or decode, or for a prompt, that arrived, by method (single or batch).",
    ),
    counter(
        TOKENIZER_REQUESTS.success,
        "Requests to tokenize or decode, or for a prompt, that were answered, by method (single or batch).",
    ),
    counter(PREDICT.count, "Texts and pairs that were given to the model to score."),
    counter(PREDICT.success, "Texts and pairs that were scored."),
    counter(EMBED.count, "Texts that were given to the model to embed."),
    counter(EMBED.success, "Texts that were embedded."),
    seconds(REQUEST_DURATION, "Time from a request's arrival to its answer."),
    seconds(
        REQUEST_TOKENIZATION_DURATION,
        "Longest tokenization among a request's texts, its wait included.",
    ),
    seconds(REQUEST_QUEUE_DURATION, "Longest wait in the queue among a request's texts."),
    seconds(REQUEST_INFERENCE_DURATION, "Longest forward pass among a request's texts."),
    seconds(
        PREDICT.duration,
        "Tokenization, wait in the queue and forward pass of a text to score together.",
    ),
    seconds(
        PREDICT.tokenization_duration,
        "Tokenization of a text to score, its wait for a tokenizer included.",
    ),
    seconds(PREDICT.queue_duration, "Wait of a text to score in the queue."),
    seconds(PREDICT.inference_duration, "Forward pass that a text to score was part of."),
    seconds(EMBED.duration, "Tokenization, wait in the queue and forward pass of a text to embed together."),
    seconds(
        EMBED.tokenization_duration,
        "Tokenization of a text to embed, its wait for a tokenizer included.",
    ),
    seconds(EMBED.queue_duration, "Wait of a text to embed in the queue."),
    seconds(EMBED.inference_duration, "Forward pass that a text to embed was part of."),
    amounts(
        REQUEST_INPUT_LENGTH,
        19,
        "Tokens of an input, template, prompt and special tokens included, after truncation.",
    ),
    amounts(BATCH_NEXT_SIZE, 12, "Texts in a batch."),
    amounts(
        BATCH_NEXT_TOKENS,
        20,
        "Tokens of a batch: a prefix that several of its texts share counts once.",
    ),
    gauge(QUEUE_SIZE, "Texts that wait for a tokenizer, or in the queue for a batch."),
    gauge(QUEUE_TOKENS, "Tokens of the texts in the queue that are encoded, each text counted in full."),
    Metric {
        name: QUEUE_OLDEST_AGE,
        kind: MetricKind::Gauge,
        unit: Unit::Seconds,
        description: "Age of the oldest request with a text that waits for a tokenizer or a batch.",
    },
    Metric {
        name: DEVICE_BUSY,
        kind: MetricKind::CounterOfSeconds,
        unit: Unit::Seconds,
        description: "How long the device has computed. Its rate is the share of the time in which it was busy.",
    },
    counter(LOG_LINES_DROPPED, "Lines of the log that were dropped, because nobody read the log."),
    counter(
        BATCH_OUT_OF_MEMORY,
        "Batches that did not fit the device's memory. One of several texts is computed again in two halves.",
    ),
    counter(
        BATCH_TOKENS_COMPUTED,
        "Tokens that batches computed: a prefix that several texts share counts once, one in the prefix \
         cache not.",
    ),
    counter(
        PREFIX_SHARED_TOKENS,
        "Tokens of texts in batches that were not computed, because another text of the batch starts the \
         same.",
    ),
    counter(
        PREFIX_CACHE_HITS,
        "Texts whose first tokens were not computed, because the prefix cache had them.",
    ),
    counter(
        PREFIX_CACHE_TOKENS,
        "Tokens that were not computed, because the prefix cache had them: each once in a batch.",
    ),
    gauge(PREFIX_CACHE_BYTES, "Bytes that the prefix cache holds."),
    counter(
        SCORE_CACHE_HITS,
        "Texts that were not computed, because the score cache had their score or vector.",
    ),
    counter(SCORE_CACHE_TOKENS, "Tokens of the texts whose score or vector the score cache had."),
    gauge(SCORE_CACHE_BYTES, "Bytes that the score cache holds, for all models together."),
    gauge(REQUESTS_IN_FLIGHT, "Requests that have one of the permits of `--max-concurrent-requests`."),
    gauge(CONNECTIONS, "Connections to all ports, of at most `--max-connections`."),
    gauge(UNREAD_BYTES, "Bytes of requests that arrive or wait, of at most `--max-unread-bytes`."),
    gauge(UNSENT_BYTES, "Bytes of answers that wait for their clients, of at most `--max-unsent-bytes`."),
    gauge(MODEL_LOADED, "1 while the model is in memory, 0 while it waits for a request outside."),
    counter(MODEL_LOADS, "How often the model was loaded again after it had left memory."),
    counter(TRUNCATED_INPUTS, "Texts and pairs from which tokens were cut because they were too long."),
    gauge(
        BUILD_INFO,
        "Always 1: the version and, if it is known, the commit of this server are in its labels.",
    ),
    Metric {
        name: RERANK_SCORE,
        kind: MetricKind::Histogram(Observed::Probabilities),
        unit: Unit::Count,
        description: "Scores of re-ranked texts as probabilities, also where raw scores were asked for.",
    },
];

/// Registers the description of each metric of [`ALL`] with the installed recorder.
pub fn describe() {
    for Metric { name, kind, unit, description } in ALL.iter().copied() {
        match kind {
            MetricKind::Counter => metrics::describe_counter!(name, unit, description),
            MetricKind::Gauge | MetricKind::CounterOfSeconds => {
                metrics::describe_gauge!(name, unit, description);
            }
            MetricKind::Histogram(_) => metrics::describe_histogram!(name, unit, description),
        }
    }
}

/// Moves the metrics of a model. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct ModelMetrics {
    /// The model's name, which all values carry; absent if the process has one model.
    name: Option<Arc<str>>,
}

impl ModelMetrics {
    /// The metrics of one of several models.
    pub fn with_name(name: &str) -> Self {
        Self { name: Some(name.into()) }
    }

    /// The labels of a value: the model's name, and a further one.
    pub fn all_labels(&self, further: Option<Label>) -> Vec<Label> {
        let name = self.name.iter().map(|name| Label::new(MODEL_LABEL, SharedString::from(Arc::clone(name))));
        name.chain(further).collect()
    }

    /// A counter, for who moves it often: to look it up by its name takes longer.
    pub(crate) fn find_counter(&self, name: &'static str) -> Counter {
        metrics::counter!(name, self.all_labels(None))
    }

    /// A histogram, for who moves it often.
    pub(crate) fn find_histogram(&self, name: &'static str) -> Histogram {
        metrics::histogram!(name, self.all_labels(None))
    }

    /// Adds `amount` to a counter.
    pub fn count_many(&self, name: &'static str, amount: usize) {
        self.find_counter(name).increment(amount as u64);
    }

    /// Adds `amount` to a counter with a label of its own.
    pub(crate) fn count_by(
        &self,
        name: &'static str,
        label: &'static str,
        value: &'static str,
        amount: usize,
    ) {
        metrics::counter!(name, self.all_labels(Some(Label::new(label, value)))).increment(amount as u64);
    }

    /// Adds a duration, in seconds, to a histogram.
    pub(crate) fn observe_duration(&self, name: &'static str, duration: Duration) {
        self.find_histogram(name).record(duration.as_secs_f64());
    }

    /// Adds an amount to a histogram.
    pub(crate) fn observe_amount(&self, name: &'static str, amount: usize) {
        self.find_histogram(name).record(amount as f64);
    }

    /// Sets a gauge to an amount.
    pub fn set_amount(&self, name: &'static str, amount: usize) {
        metrics::gauge!(name, self.all_labels(None)).set(amount as f64);
    }

    /// Sets a gauge, or a counter of seconds, to a duration.
    pub(crate) fn set_seconds(&self, name: &'static str, duration: Duration) {
        metrics::gauge!(name, self.all_labels(None)).set(duration.as_secs_f64());
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! A recorder for tests. It reads the values of all metrics from a `DebuggingRecorder`.
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};
    use std::collections::BTreeMap;

    /// Runs `work` with a new recorder and returns the values of each metric, by `name` or
    /// `name{label="value"}`: the single value of a counter or gauge, or the observations of a histogram.
    /// Only metrics that this thread moves are recorded.
    pub(crate) fn recorded(work: impl FnOnce()) -> BTreeMap<String, Vec<f64>> {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        metrics::with_local_recorder(&recorder, work);
        let entry = |(key, _, _, value): (metrics_util::CompositeKey, _, _, DebugValue)| {
            let labels: Vec<_> =
                key.key().labels().map(|label| format!("{}=\"{}\"", label.key(), label.value())).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            let values = match value {
                DebugValue::Counter(count) => vec![count as f64],
                DebugValue::Gauge(gauge) => vec![gauge.0],
                DebugValue::Histogram(values) => values.into_iter().map(|value| value.0).collect(),
            };
            (format!("{}{labels}", key.key().name()), values)
        };
        snapshotter.snapshot().into_vec().into_iter().map(entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metrics_util::debugging::DebuggingRecorder;
    use std::collections::HashSet;

    #[test]
    fn every_metric_is_listed_once_with_its_unit_in_its_name() {
        let names: HashSet<_> = ALL.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), ALL.len());
        for metric in ALL {
            assert!(metric.name.starts_with("te_") && metric.description.ends_with('.'), "{metric:?}");
            let is_named = metric.name.ends_with("_duration") || metric.name.contains("_seconds");
            assert_eq!(is_named, metric.unit == Unit::Seconds, "{metric:?}");
        }
    }

    #[test]
    fn a_described_metric_carries_its_description() {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        metrics::with_local_recorder(&recorder, || {
            describe();
            let metrics = ModelMetrics::default();
            metrics.count_many(PREDICT.count, 1);
            metrics.observe_duration(REQUEST_DURATION, Duration::from_millis(1500));
            metrics.observe_amount(BATCH_NEXT_SIZE, 3);
        });
        let snapshot = snapshotter.snapshot().into_vec();
        assert_eq!(snapshot.len(), 3, "describing alone must not register: {snapshot:?}");
        for (key, unit, description, _) in snapshot {
            let metric = ALL.iter().find(|metric| metric.name == key.key().name());
            assert_eq!(description.as_deref(), metric.map(|metric| metric.description));
            assert_eq!(unit, metric.map(|metric| metric.unit));
        }
    }

    #[test]
    fn one_of_several_models_is_named() {
        let moved = testing::recorded(|| {
            ModelMetrics::with_name("m").count_many(PREDICT.count, 1);
            ModelMetrics::with_name("n").count_by(REQUESTS.count, "method", "single", 2);
            ModelMetrics::default().count_by(REQUESTS.count, "method", "single", 3);
        });
        let expected = [
            ("te_predict_count{model=\"m\"}", 1.0),
            ("te_request_count{method=\"single\"}", 3.0),
            ("te_request_count{model=\"n\",method=\"single\"}", 2.0),
        ];
        assert_eq!(moved, expected.map(|(name, value)| (name.to_owned(), vec![value])).into());
    }
}
