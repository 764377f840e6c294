//! The steps that all requests share: they are counted, and the lengths of their lists are checked.
//!
//! Input: the future that does a request's work. Output: its result. What must hold: a request that has begun
//! is counted once as arrived, and at its end as answered, failed or dropped, even if its client disconnects.
//! As in text-embeddings-inference, a failure counts once for each failed text, and `te_request_count` does
//! not count requests that only need the tokenizer.

use super::{Answer, Service, ServiceAdmission};
use crate::{
    error::Error,
    infer::{Permit, RequestInFlight},
    metrics::{
        ModelMetrics, REQUEST_DURATION, REQUEST_FAILURE, REQUEST_INFERENCE_DURATION, REQUEST_QUEUE_DURATION,
        REQUEST_TOKENIZATION_DURATION, REQUESTS, RequestMetrics,
    },
    queue::Turn,
};
use std::{
    sync::{PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};
use text_embeddings_backend_core::amount;

/// The `method` label of a request. A list is a batch, even of a single input.
pub(super) fn method(is_batch: bool) -> &'static str {
    if is_batch { "batch" } else { "single" }
}

/// The reason of a request's failure, and the way in which it is counted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failed {
    /// The error that the client gets.
    pub(super) error: Error,
    /// The `err` label.
    label: &'static str,
    /// The number of the request's texts that failed.
    texts: usize,
}

impl Failed {
    pub(super) fn of_texts(error: Error, texts: usize) -> Self {
        Self { label: error.metric_label(), error, texts }
    }

    /// A failure of `texts` texts before or during tokenization. Its label does not depend on the error.
    pub(super) fn on_the_way_to_tokens(error: Error, texts: usize) -> Self {
        Self { error, label: "tokenization", texts }
    }

    /// Adds the failed texts to the ones of the earlier failure, if there is one.
    pub(super) fn add_to(self, failed: &mut Option<Self>) {
        match failed {
            Some(failed) => failed.texts += self.texts,
            None => *failed = Some(self),
        }
    }

    fn count(&self, metrics: &ModelMetrics) {
        metrics.count_by(REQUEST_FAILURE, "err", self.label, self.texts);
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::of_texts(error, 1)
    }
}

impl ModelMetrics {
    /// Counts the failure of a request that is refused before it counts as arrived.
    pub(super) fn refused(&self, result: Result<(), Error>) -> Result<(), Error> {
        result.inspect_err(|error| Failed::from(error.clone()).count(self))
    }

    /// Runs a request's work and counts it. Dropping the returned future drops the work.
    pub(super) async fn counted<T>(
        &self,
        names: RequestMetrics,
        method: &'static str,
        work: impl Future<Output = Result<T, Failed>>,
    ) -> Result<T, Error> {
        self.count_by(names.count, "method", method, 1);
        let mut request = InFlight { metrics: self, names, method, end: End::Dropped };
        match work.await {
            Ok(answer) => {
                request.end = End::Answered;
                Ok(answer)
            }
            Err(failed) => {
                let error = failed.error.clone();
                request.end = End::Failed(failed);
                Err(error)
            }
        }
    }

    /// Like [`Self::counted`] for a request to the model, and records the durations of the request and its
    /// steps. The cost gets the total time.
    pub(super) async fn measured<T>(
        &self,
        method: &'static str,
        work: impl Future<Output = Result<Answer<T>, Failed>>,
    ) -> Result<Answer<T>, Error> {
        let arrival = Instant::now();
        let mut answer = self.counted(REQUESTS, method, work).await?;
        answer.cost.total = arrival.elapsed();
        self.observe_duration(REQUEST_DURATION, answer.cost.total);
        self.observe_duration(REQUEST_TOKENIZATION_DURATION, answer.cost.tokenization);
        self.observe_duration(REQUEST_QUEUE_DURATION, answer.cost.queue);
        self.observe_duration(REQUEST_INFERENCE_DURATION, answer.cost.inference);
        Ok(answer)
    }
}

/// Counts the end of a request, of whatever kind.
struct InFlight<'a> {
    metrics: &'a ModelMetrics,
    names: RequestMetrics,
    method: &'static str,
    /// The end that is counted if the value is dropped now.
    end: End,
}

enum End {
    Dropped,
    Failed(Failed),
    Answered,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        match &self.end {
            End::Dropped => self.metrics.count_by(REQUEST_FAILURE, "err", "dropped", 1),
            End::Failed(failed) => failed.count(self.metrics),
            End::Answered => self.metrics.count_by(self.names.success, "method", self.method, 1),
        }
    }
}

pub(super) struct Admitted {
    pub(super) request: RequestInFlight,
    /// The tokens of its permit that the first computed inputs do not give back.
    pub(super) later_tokens: usize,
}

/// Ends when a request has waited for `patience` and none of its texts has been computed.
async fn waited_in_vain(turn: &Turn, patience: Duration) {
    tokio::time::sleep_until((turn.came + patience).into()).await;
    if turn.begun.load(Ordering::Relaxed) {
        std::future::pending::<()>().await;
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
    /// Refuses an answer that has more values than can be sent.
    ///
    /// # Errors
    ///
    /// [`Error::Validation`] with the limit.
    pub fn check_values(&self, values: usize) -> Result<(), Error> {
        let max = self.config.max_answer_values;
        if values <= max {
            return Ok(());
        }
        Err(Error::Validation(format!(
            "the answer would have more than {}, a twelfth of the bytes of `--max-unsent-bytes`: send fewer or \
             shorter texts, or raise the limit",
            amount(max, "value")
        )))
    }

    pub(super) fn model_metrics(&self) -> &ModelMetrics {
        self.engine.model_metrics()
    }

    /// A permit for a request of at most `tokens` tokens to be in flight.
    pub(super) async fn permit(&self, tokens: usize) -> Result<Permit, Error> {
        match &self.admission {
            ServiceAdmission::AtOnce => self.engine.try_acquire(tokens),
            ServiceAdmission::InTurn => self.engine.acquire(tokens).await,
            ServiceAdmission::Held(permit) => {
                let held = permit.lock().unwrap_or_else(PoisonError::into_inner).take();
                match held {
                    Some(permit) => self.engine.add_tokens(permit, tokens).await,
                    None => self.engine.acquire(tokens).await,
                }
            }
        }
    }

    /// A permit for a request whose inputs have at most `tokens` tokens, and at most `later_tokens` tokens in
    /// inputs that depend on the outputs of the others.
    pub(super) async fn admit_request(&self, tokens: usize, later_tokens: usize) -> Result<Admitted, Failed> {
        let permit = self.permit(tokens.saturating_add(later_tokens)).await?;
        Ok(Admitted { request: self.engine.begin_request(permit), later_tokens })
    }

    /// Does the work of a request, and gives it up if none of its texts is computed in time.
    pub(super) async fn in_time<T>(
        &self,
        admitted: &Admitted,
        work: impl Future<Output = Result<T, Failed>>,
    ) -> Result<T, Failed> {
        let Some(patience) = self.config.queue_timeout else { return work.await };
        let turn = admitted.request.turn();
        tokio::select! {
            computed = work => computed,
            // Dropping the work cancels it.
            () = waited_in_vain(turn, patience) => {
                let (waited, retry_after) = (turn.came.elapsed(), self.engine.retry_after());
                Err(Error::QueueTimeout { waited, retry_after }.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::TOKENIZER_REQUESTS;
    use crate::metrics::testing::recorded;
    use std::{
        future::{pending, ready},
        pin::pin,
        task::{Context, Waker},
    };

    #[test]
    fn every_end_of_a_request_is_counted_once() {
        let metrics = ModelMetrics::default();
        let poll = |work: &mut dyn FnMut(&mut Context<'_>)| {
            recorded(|| work(&mut Context::from_waker(Waker::noop())))
        };
        let answered = poll(&mut |cx| {
            assert!(pin!(metrics.counted(REQUESTS, "single", ready(Ok(1)))).poll(cx).is_ready());
        });
        assert_eq!(answered.len(), 2, "{answered:?}");
        assert_eq!(answered["te_request_count{method=\"single\"}"], [1.0]);
        assert_eq!(answered["te_request_success{method=\"single\"}"], [1.0]);

        let failure = || ready(Err::<(), _>(Failed::from(Error::Overloaded { retry_after: 1 })));
        let failed =
            poll(&mut |cx| assert!(pin!(metrics.counted(REQUESTS, "batch", failure())).poll(cx).is_ready()));
        assert_eq!(failed.len(), 2, "{failed:?}");
        assert_eq!(failed["te_request_failure{err=\"overloaded\"}"], [1.0]);

        let texts = || ready(Err::<(), _>(Failed::on_the_way_to_tokens(Error::Validation(String::new()), 3)));
        let failed =
            poll(&mut |cx| assert!(pin!(metrics.counted(REQUESTS, "batch", texts())).poll(cx).is_ready()));
        assert_eq!(failed["te_request_failure{err=\"tokenization\"}"], [3.0], "once for each text");

        let work = || ready(Ok(()));
        let tokenized = poll(&mut |cx| {
            assert!(pin!(metrics.counted(TOKENIZER_REQUESTS, "single", work())).poll(cx).is_ready());
        });
        let names: Vec<_> = tokenized.keys().map(String::as_str).collect();
        assert_eq!(names, ["te_tokenize_count{method=\"single\"}", "te_tokenize_success{method=\"single\"}"]);

        let rejected =
            recorded(|| assert!(metrics.refused(Err(Error::Overloaded { retry_after: 1 })).is_err()));
        assert_eq!(rejected.len(), 1, "a request that is refused before it arrived: {rejected:?}");

        let dropped = poll(&mut |cx| {
            assert!(
                pin!(metrics.counted(REQUESTS, "batch", pending::<Result<(), Failed>>()))
                    .poll(cx)
                    .is_pending()
            );
        });
        assert_eq!(dropped.len(), 2, "{dropped:?}");
        assert_eq!(dropped["te_request_failure{err=\"dropped\"}"], [1.0]);

        assert!(
            recorded(|| drop(metrics.counted(REQUESTS, "batch", failure()))).is_empty(),
            "a request that was never begun"
        );
    }

    #[test]
    fn lists_are_held_to_their_limit() {
        assert_eq!(check_length("texts", 0, 2), Err(Error::Empty { field: "texts" }));
        assert_eq!(check_length("texts", 2, 2), Ok(()));
        assert_eq!(check_length("texts", 3, 2), Err(Error::BatchTooLarge { got: 3, max: 2 }));
    }
}
