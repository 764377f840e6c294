//! Fields that the messages of several services share, and the answer of a method that computes.
//!
//! Input: values off the wire, and answers of the engine. Output: the engine's types, and messages. What must
//! hold: an answer's metadata has the keys of HTTP's headers, and the same values.

use std::time::Duration;

use text_embeddings_core::{
    error::Error,
    service::{Answer, Cost},
    tokenization::TruncationDirection,
};
use text_embeddings_proto::v1;
use tonic::{Response, Status, metadata::MetadataMap};

use super::{
    Grpc,
    error::{invalid, status},
};
use crate::cost;

/// The end of a text that is cut.
pub(super) fn direction(number: i32) -> Result<TruncationDirection, Status> {
    match v1::TruncationDirection::try_from(number) {
        Ok(v1::TruncationDirection::Right) => Ok(TruncationDirection::Right),
        Ok(v1::TruncationDirection::Left) => Ok(TruncationDirection::Left),
        Err(_) => {
            Err(invalid(format!("`truncation_direction` {number} is unknown: give 0 (right) or 1 (left)")))
        }
    }
}

/// A number as messages have it. One that is too large becomes the largest.
pub(super) fn number(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// The answer of a method that computed: `message` makes it from the value and the cost, which the log gets
/// too.
pub(super) fn answered<T, M>(
    method: &'static str,
    answer: Result<Answer<T>, Error>,
    message: impl FnOnce(T, Option<v1::Metadata>) -> M,
) -> Result<Answer<M>, Status> {
    let Answer { value, cost } = answer.map_err(status)?;
    cost::log(method, &cost);
    Ok(Answer { value: message(value, Some(metadata(&cost))), cost })
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn metadata(cost: &Cost) -> v1::Metadata {
    v1::Metadata {
        compute_chars: number(cost.characters),
        compute_tokens: number(cost.tokens),
        total_time_ns: nanoseconds(cost.total),
        tokenization_time_ns: nanoseconds(cost.tokenization),
        queue_time_ns: nanoseconds(cost.queue),
        inference_time_ns: nanoseconds(cost.inference),
        listwise_prompts: number(cost.lists),
        dropped_texts: cost.dropped.map(number),
        cached_texts: cost.cached.map(number),
    }
}

impl Grpc {
    /// The answer to a call with one message: the call's metadata have the cost too.
    pub(super) fn respond<M>(&self, answer: Answer<M>) -> Response<M> {
        let headers = cost::headers(&answer.cost, self.0.served().info.computation.device);
        let metadata = MetadataMap::from_headers(headers.into_iter().collect());
        // The extension is for the call's span.
        let mut extensions = tonic::Extensions::default();
        extensions.insert(answer.cost);
        Response::from_parts(metadata, answer.value, extensions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_keep_their_values_or_become_the_largest() {
        assert_eq!((number(0), number(7), number(usize::MAX)), (0, 7, u32::MAX));
        let cost = Cost {
            texts: 9,
            characters: 1,
            tokens: 2,
            truncated: 3,
            lists: 7,
            dropped: Some(8),
            cached: Some(9),
            untrained_dimensions: None,
            total: Duration::from_secs(4),
            tokenization: Duration::from_micros(5),
            queue: Duration::from_nanos(6),
            inference: Duration::MAX,
        };
        let expected = v1::Metadata {
            compute_chars: 1,
            compute_tokens: 2,
            total_time_ns: 4_000_000_000,
            tokenization_time_ns: 5000,
            queue_time_ns: 6,
            inference_time_ns: u64::MAX,
            listwise_prompts: 7,
            dropped_texts: Some(8),
            cached_texts: Some(9),
        };
        assert_eq!(metadata(&cost), expected);
    }
}
