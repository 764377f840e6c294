//! Turns on a device that several models share.
//!
//! Each model has an engine with a thread of its own, and the device computes one batch at a time. What must
//! hold: engines that wait get their turns in the order in which they asked, so that a flood of requests to
//! one model delays a request to another by one batch of each model at most.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use text_embeddings_backend_core::{Backend, BackendError, Batch, Packing, Predictions, Text};

/// The turns of a device. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeviceTurns(Arc<TurnQueue>);

#[derive(Debug, Default)]
struct TurnQueue {
    tickets: Mutex<Tickets>,
    changed: Condvar,
}

/// Numbers are given out in order, and called in the same order.
#[derive(Debug, Default)]
struct Tickets {
    next: u64,
    called: u64,
}

impl DeviceTurns {
    /// A backend that computes in its turn.
    pub(crate) fn share_device(&self, backend: Box<dyn Backend>) -> Box<dyn Backend> {
        Box::new(TurnTaking { backend, turns: self.clone() })
    }

    /// Waits for a turn.
    fn take_turn(&self) -> DeviceTurn<'_> {
        let TurnQueue { tickets, changed } = &*self.0;
        let mut now = tickets.lock().unwrap_or_else(PoisonError::into_inner);
        let ticket = now.next;
        now.next += 1;
        drop(changed.wait_while(now, |now| now.called != ticket).unwrap_or_else(PoisonError::into_inner));
        DeviceTurn(&self.0)
    }
}

/// A turn. The next one begins when it is dropped.
struct DeviceTurn<'a>(&'a TurnQueue);

impl Drop for DeviceTurn<'_> {
    fn drop(&mut self) {
        self.0.tickets.lock().unwrap_or_else(PoisonError::into_inner).called += 1;
        self.0.changed.notify_all();
    }
}

struct TurnTaking {
    backend: Box<dyn Backend>,
    turns: DeviceTurns,
}

impl Backend for TurnTaking {
    fn predict(&mut self, batch: &Batch) -> Result<Predictions, BackendError> {
        let _turn = self.turns.take_turn();
        self.backend.predict(batch)
    }

    fn packing(&self) -> Packing {
        self.backend.packing()
    }

    fn batch_bytes(&self, tokens: usize) -> usize {
        self.backend.batch_bytes(tokens)
    }

    fn known_tokens(&self, text: &Text) -> usize {
        self.backend.known_tokens(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        thread,
        time::Duration,
    };

    #[test]
    fn one_at_a_time_in_the_order_of_asking_also_after_a_panic() {
        let (turns, running) = (DeviceTurns::default(), AtomicUsize::new(0));
        let order = Mutex::new(Vec::new());
        let first = turns.take_turn();
        thread::scope(|scope| {
            for number in 0..8 {
                let (turns, running, order) = (&turns, &running, &order);
                let waiting = scope.spawn(move || {
                    let _turn = turns.take_turn();
                    assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "another one computes");
                    order.lock().unwrap_or_else(PoisonError::into_inner).push(number);
                    thread::sleep(Duration::from_millis(1));
                    running.fetch_sub(1, Ordering::SeqCst);
                    // A panic of a backend is caught by its engine; the turn ends all the same.
                    let caught = std::panic::catch_unwind(|| assert_ne!(number, 3, "as planned"));
                    assert_eq!(caught.is_err(), number == 3);
                });
                // Each asks before the next one starts.
                while turns.0.tickets.lock().unwrap_or_else(PoisonError::into_inner).next < number + 2 {
                    thread::yield_now();
                }
                drop(waiting);
            }
            drop(first);
        });
        assert_eq!(*order.lock().unwrap_or_else(PoisonError::into_inner), (0..8).collect::<Vec<u64>>());
    }
}
