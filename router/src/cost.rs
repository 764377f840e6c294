//! The cost of a request, for its client and the log.
//!
//! Input: a [`Cost`]. Output: TEI's `x-…` keys, which are headers over HTTP and metadata over gRPC, and a
//! line of the log. What must hold: both transports give the same values.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use text_embeddings_core::service::Cost;

/// TEI's headers, with times in whole milliseconds, and the number of texts that were cut. A listwise
/// re-ranker also has the number of its prompts, which tells clients that the scores depend on each other. A
/// re-ranking with a least score also has the number of texts that it left out. With a score cache, there is
/// the number of texts that it had.
pub(crate) fn headers(cost: &Cost, compute_type: &'static str) -> Vec<(HeaderName, HeaderValue)> {
    let mut headers = vec![
        (HeaderName::from_static("x-compute-type"), HeaderValue::from_static(compute_type)),
        time_header("x-compute-time", cost.total),
        number_header("x-compute-characters", cost.characters),
        number_header("x-compute-tokens", cost.tokens),
        number_header("x-truncated-texts", cost.truncated),
        time_header("x-total-time", cost.total),
        time_header("x-tokenization-time", cost.tokenization),
        time_header("x-queue-time", cost.queue),
        time_header("x-inference-time", cost.inference),
    ];
    let optional = [
        ("x-listwise-prompts", Some(cost.lists).filter(|&lists| lists > 0)),
        ("x-dropped-texts", cost.dropped),
        ("x-untrained-dimensions", cost.untrained_dimensions),
        ("x-score-cache", cost.cached),
    ];
    headers.extend(optional.into_iter().filter_map(|(name, value)| Some(number_header(name, value?))));
    headers
}

fn number_header(name: &'static str, value: usize) -> (HeaderName, HeaderValue) {
    (HeaderName::from_static(name), HeaderValue::from(value))
}

fn time_header(name: &'static str, value: Duration) -> (HeaderName, HeaderValue) {
    number_header(name, value.as_millis() as usize)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}

/// Logs a success of `route`.
pub(crate) fn log(route: &'static str, cost: &Cost) {
    // The span of the request has its path, which for `/` or `/vertex` does not tell the task.
    tracing::info!(
        task = route,
        status = 200,
        texts = cost.texts,
        tokens = cost.tokens,
        truncated = cost.truncated,
        dropped = cost.dropped,
        cached = cost.cached,
        total_ms = milliseconds(cost.total),
        tokenization_ms = milliseconds(cost.tokenization),
        queue_ms = milliseconds(cost.queue),
        inference_ms = milliseconds(cost.inference),
        "Success"
    );
}
