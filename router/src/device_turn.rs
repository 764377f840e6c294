//! Turns on a device that several models share.
//!
//! Each model has an engine with a thread of its own, and the device computes one batch at a time. What must
//! hold: of the engines that wait, the one whose model has had the least of the device comes next. A model
//! that was idle starts with as much as the one that computes now, so that it need not wait for a flood of
//! another, and cannot save up time. This is start-time fair queueing
//! (Goyal, Vin and Cheng, 1996), with the time of each batch as its cost.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use text_embeddings_backend_core::{Backend, BackendError, Batch, Packing, Predictions, Text};

/// The turns of a device. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeviceTurns(Arc<TurnQueue>);

#[derive(Debug, Default)]
struct TurnQueue {
    state: Mutex<TurnState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct TurnState {
    is_taken: bool,
    waiting: Vec<Ticket>,
    /// The tickets that were ever given out.
    tickets: u64,
    /// The start of the last turn, in device time of one model.
    clock: Duration,
}

/// A claim to a turn. The smallest one comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Ticket {
    /// The device time that its model has had, or would have had if it had not been idle.
    start: Duration,
    number: u64,
}

impl DeviceTurns {
    /// A backend that computes in its turn.
    pub(crate) fn share_device(&self, backend: Box<dyn Backend>) -> Box<dyn Backend> {
        Box::new(TurnTaking { backend, turns: self.clone(), had: Duration::ZERO })
    }

    /// Waits for a turn of a model that has had this much of the device.
    fn take_turn(&self, had: Duration) -> DeviceTurn<'_> {
        let mut state = self.0.lock_state();
        let ticket = Ticket { start: had.max(state.clock), number: state.tickets };
        state.tickets += 1;
        state.waiting.push(ticket);
        let mut state = (self.0.changed)
            .wait_while(state, |state| state.is_taken || state.waiting.iter().min() != Some(&ticket))
            .unwrap_or_else(PoisonError::into_inner);
        state.waiting.retain(|other| *other != ticket);
        state.is_taken = true;
        state.clock = ticket.start;
        DeviceTurn { queue: &self.0, start: ticket.start }
    }
}

impl TurnQueue {
    fn lock_state(&self) -> MutexGuard<'_, TurnState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A turn. The next one begins when it is dropped.
struct DeviceTurn<'a> {
    queue: &'a TurnQueue,
    start: Duration,
}

impl Drop for DeviceTurn<'_> {
    fn drop(&mut self) {
        self.queue.lock_state().is_taken = false;
        self.queue.changed.notify_all();
    }
}

struct TurnTaking {
    backend: Box<dyn Backend>,
    turns: DeviceTurns,
    /// The device time that the model has had.
    had: Duration,
}

impl Backend for TurnTaking {
    fn predict(&mut self, batch: &Batch) -> Result<Predictions, BackendError> {
        let turn = self.turns.take_turn(self.had);
        let began = Instant::now();
        let predictions = self.backend.predict(batch);
        self.had = turn.start + began.elapsed();
        predictions
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
    };

    /// Lets models that have had these milliseconds of the device ask one after the other while another one
    /// computes, which began at `clock`. Returns their order.
    fn order_of_turns(clock: u64, had: &[u64]) -> Vec<usize> {
        let (turns, running) = (DeviceTurns::default(), AtomicUsize::new(0));
        let order = Mutex::new(Vec::new());
        let first = turns.take_turn(Duration::from_millis(clock));
        thread::scope(|scope| {
            for (model, had) in had.iter().enumerate() {
                let (turns, running, order) = (&turns, &running, &order);
                scope.spawn(move || {
                    let _turn = turns.take_turn(Duration::from_millis(*had));
                    assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "another one computes");
                    order.lock().unwrap_or_else(PoisonError::into_inner).push(model);
                    thread::sleep(Duration::from_millis(1));
                    running.fetch_sub(1, Ordering::SeqCst);
                    // A panic of a backend is caught by its engine; the turn ends all the same.
                    let caught = std::panic::catch_unwind(|| assert_ne!(model, 1, "as planned"));
                    assert_eq!(caught.is_err(), model == 1);
                });
                // Each asks before the next one starts.
                while turns.0.lock_state().waiting.len() <= model {
                    thread::yield_now();
                }
            }
            drop(first);
        });
        order.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn who_had_the_least_of_the_device_comes_next_and_idling_saves_nothing() {
        assert_eq!(order_of_turns(0, &[7, 5, 9, 5]), [1, 3, 0, 2], "the first of two equal ones");
        // Models 1 and 3 were idle: they are even, and come before those that had more.
        assert_eq!(order_of_turns(50, &[60, 0, 51, 20]), [1, 3, 2, 0]);
        assert_eq!(order_of_turns(0, &[0; 6]), [0, 1, 2, 3, 4, 5]);
    }
}
