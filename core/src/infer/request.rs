//! A request in flight: its permit, and its place in the queue.
//!
//! Input: a [`Permit`]. Output: its texts, announced and then submitted. What must hold: once a request has
//! ended, however it ended, none of its texts waits in the queue; its permit covers its texts until the last
//! one has left a tokenizer's line or the queue, so that given-up requests take no more memory than permits
//! allow.

use super::{Announced, Engine, Permit, state::Shared};
use crate::queue::Turn;
use std::sync::Arc;

/// A request in flight. Dropping it takes its waiting texts out of the queue.
#[derive(Debug)]
pub struct RequestInFlight {
    shared: Arc<Shared>,
    turn: Arc<Turn>,
    permit: Arc<Permit>,
}

impl Engine {
    /// A request that arrives now, with the permit for it.
    pub fn begin_request(&self, permit: Permit) -> RequestInFlight {
        RequestInFlight { shared: Arc::clone(&self.shared), turn: self.turn(), permit: Arc::new(permit) }
    }
}

impl RequestInFlight {
    /// Its place in the queue's order.
    pub(crate) fn turn(&self) -> &Turn {
        &self.turn
    }

    /// Its permit.
    pub(crate) fn permit(&self) -> &Arc<Permit> {
        &self.permit
    }

    /// Announces `count` texts, before their tokens are known.
    pub fn announce(&self, count: usize) -> Announced {
        Announced::new(&self.shared, &self.turn, Some(Arc::clone(&self.permit)), count)
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        let withdrawn = self.shared.lock().queue.withdraw(&self.turn);
        // Freeing many texts takes time, and nothing slow runs under the lock.
        drop(withdrawn);
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::{
        error::Error,
        infer::{EngineLimits, Outcome, testing::Control},
        metrics::ModelMetrics,
    };
    use text_embeddings_backend_core::{Text, Wanted};
    use tokio::sync::oneshot;

    /// An engine whose device is held while it computes a text, and has permits for one request.
    fn busy(control: &Control) -> (Engine, oneshot::Receiver<Result<Outcome, Error>>) {
        let limits = EngineLimits {
            max_batch_tokens: 1,
            max_input_length: 1,
            max_batch_requests: None,
            max_concurrent_requests: 1,
            max_queue_tokens: 10_000,
            device_timeout: None,
        };
        let engine = Engine::start(control.backend(), limits, ModelMetrics::default()).unwrap();
        control.hold();
        let (reply, answer) = oneshot::channel();
        engine.announce(&engine.turn()).submit(Text::new([9], Wanted::WHOLE), reply);
        control.wait_for_batches(1);
        (engine, answer)
    }

    #[test]
    fn a_request_that_was_given_up_leaves_nothing_in_the_queue() {
        let control = Control::default();
        let (engine, _answer) = busy(&control);
        for _ in 0..100 {
            let request = engine.begin_request(engine.try_acquire(1000).unwrap());
            let texts: Vec<_> = (0..10).map(|_| request.announce(1)).collect();
            let late = request.announce(1);
            let answers: Vec<_> = texts
                .into_iter()
                .map(|text| {
                    let (reply, answer) = oneshot::channel();
                    text.submit(Text::new([7; 100], Wanted::WHOLE), reply);
                    answer
                })
                .collect();
            assert_eq!(engine.shared.lock().queue.tokens(), 1000);
            drop((request, answers));
            assert_eq!(engine.shared.lock().queue.tokens(), 0);
            // A tokenizer ends its text after the request has ended.
            let (reply, _answer) = oneshot::channel();
            late.submit(Text::new([7; 100], Wanted::WHOLE), reply);
            assert_eq!(engine.shared.lock().queue.tokens(), 0);
        }
        control.release();
    }

    #[test]
    fn a_permit_is_free_when_no_tokenizer_holds_a_text_of_its_request() {
        let control = Control::default();
        let (engine, _answer) = busy(&control);
        let request = engine.begin_request(engine.try_acquire(1).unwrap());
        let announced = request.announce(1);
        drop(request);
        assert!(engine.try_acquire(1).is_err());
        drop(announced);
        assert!(engine.try_acquire(1).is_ok());
        control.release();
    }
}
