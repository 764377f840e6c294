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
    let number = |name, value: usize| (HeaderName::from_static(name), HeaderValue::from(value));
    let time = |name, value: Duration| number(name, value.as_millis() as usize);
    let mut headers = vec![
        (HeaderName::from_static("x-compute-type"), HeaderValue::from_static(compute_type)),
        time("x-compute-time", cost.total),
        number("x-compute-characters", cost.characters),
        number("x-compute-tokens", cost.tokens),
        number("x-truncated-texts", cost.truncated),
        time("x-total-time", cost.total),
        time("x-tokenization-time", cost.tokenization),
        time("x-queue-time", cost.queue),
        time("x-inference-time", cost.inference),
    ];
    if cost.lists > 0 {
        headers.push(number("x-listwise-prompts", cost.lists));
    }
    if let Some(dropped) = cost.dropped {
        headers.push(number("x-dropped-texts", dropped));
    }
    if let Some(dimensions) = cost.untrained_dimensions {
        headers.push(number("x-untrained-dimensions", dimensions));
    }
    if let Some(cached) = cost.cached {
        headers.push(number("x-score-cache", cached));
    }
    headers
}

/// Logs a success of `route`.
pub(crate) fn log(route: &'static str, cost: &Cost) {
    let milliseconds = |time: Duration| time.as_micros() as f64 / 1e3;
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
