//! What every request goes through, whatever it asks for: it is counted, and its lists are held to the limits.
//!
//! Input: the future that does a request's work. Output: its result. What must hold: a request that was begun is
//! counted once as arrived and once as answered, failed or dropped, also if its client goes away midway.

use super::{Answer, Service};
use crate::{
    error::Error,
    infer::Permit,
    metrics::{
        REQUEST_COUNT, REQUEST_DURATION, REQUEST_FAILURE, REQUEST_INFERENCE_DURATION, REQUEST_QUEUE_DURATION,
        REQUEST_SUCCESS, REQUEST_TOKENIZATION_DURATION, count_by, observe_duration,
    },
};

/// The `method` label of a request of so many inputs.
pub(super) fn method(inputs: usize) -> &'static str {
    if inputs == 1 { "single" } else { "batch" }
}

/// Does a request's work and counts it. If the returned future is dropped, so is the work.
pub(super) async fn counted<T>(
    method: &'static str,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    count_by(REQUEST_COUNT, "method", method);
    let mut request = InFlight { method, failure: Some("dropped") };
    let result = work.await;
    request.failure = result.as_ref().err().map(Error::metric_label);
    result
}

/// As [`counted`], and observes how long the request and its steps took.
pub(super) async fn measured<T>(
    method: &'static str,
    work: impl Future<Output = Result<Answer<T>, Error>>,
) -> Result<Answer<T>, Error> {
    let answer = counted(method, work).await?;
    observe_duration(REQUEST_DURATION, answer.cost.total);
    observe_duration(REQUEST_TOKENIZATION_DURATION, answer.cost.tokenization);
    observe_duration(REQUEST_QUEUE_DURATION, answer.cost.queue);
    observe_duration(REQUEST_INFERENCE_DURATION, answer.cost.inference);
    Ok(answer)
}

/// Counts the end of a request, whichever it is.
struct InFlight {
    method: &'static str,
    /// The `err` label if the request ended now; none if it succeeded.
    failure: Option<&'static str>,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        match self.failure {
            Some(label) => count_by(REQUEST_FAILURE, "err", label),
            None => count_by(REQUEST_SUCCESS, "method", self.method),
        }
    }
}

/// Refuses a list that is empty or longer than `max`.
pub(super) fn check_length(field: &'static str, got: usize, max: usize) -> Result<(), Error> {
    match got {
        0 => Err(Error::Empty { field }),
        _ if got > max => Err(Error::BatchTooLarge { got, max }),
        _ => Ok(()),
    }
}

impl Service {
    /// The right of a request to be in flight.
    pub(super) async fn permit(&self) -> Result<Permit, Error> {
        if self.patient { self.engine.acquire().await } else { self.engine.try_acquire() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::testing::recorded;
    use std::{
        future::{pending, ready},
        pin::pin,
        task::{Context, Waker},
    };

    #[test]
    fn every_end_of_a_request_is_counted_once() {
        let poll = |work: &mut dyn FnMut(&mut Context<'_>)| {
            recorded(|| work(&mut Context::from_waker(Waker::noop())))
        };
        let answered = poll(&mut |cx| assert!(pin!(counted("single", ready(Ok(1)))).poll(cx).is_ready()));
        assert_eq!(answered.len(), 2, "{answered:?}");
        assert_eq!(answered["te_request_count{method=\"single\"}"], [1.0]);
        assert_eq!(answered["te_request_success{method=\"single\"}"], [1.0]);

        let failure = || ready(Err::<(), _>(Error::Overloaded));
        let failed = poll(&mut |cx| assert!(pin!(counted("batch", failure())).poll(cx).is_ready()));
        assert_eq!(failed.len(), 2, "{failed:?}");
        assert_eq!(failed["te_request_failure{err=\"overloaded\"}"], [1.0]);

        let dropped = poll(&mut |cx| {
            assert!(pin!(counted("batch", pending::<Result<(), Error>>())).poll(cx).is_pending());
        });
        assert_eq!(dropped.len(), 2, "{dropped:?}");
        assert_eq!(dropped["te_request_failure{err=\"dropped\"}"], [1.0]);

        assert!(recorded(|| drop(counted("batch", failure()))).is_empty(), "a request that was never begun");
    }

    #[test]
    fn lists_are_held_to_their_limit() {
        assert_eq!(check_length("texts", 0, 2), Err(Error::Empty { field: "texts" }));
        assert_eq!(check_length("texts", 2, 2), Ok(()));
        assert_eq!(check_length("texts", 3, 2), Err(Error::BatchTooLarge { got: 3, max: 2 }));
    }
}
