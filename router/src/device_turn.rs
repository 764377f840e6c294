//! Turns on a device that several models share.
//!
//! Each model has an engine with a thread of its own, and the device computes one batch at a time. What must
//! hold: of the engines that wait, the one whose model has had the least of the device comes next. A model
//! that was idle starts with as much as the one that computes now, so that it need not wait for a flood of
//! another, and cannot save up time. This is start-time fair queueing
//! (Goyal, Vin and Cheng, 1996), with the time of each batch, divided by the model's weight, as its cost.

use std::{
    num::NonZeroU32,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use text_embeddings_backend_core::{Backend, BackendError, Batch, Packing, Predictions, Text};

/// How long a device stays free for a model that just computed, has had less of it than those that wait, and
/// did not say that it rests. Without it, two models would always take turns one by one, however long their
/// batches are. An engine forms its next batch in a fraction of a millisecond, but on a busy machine its
/// thread may have to wait for a processor.
const PATIENCE: Duration = Duration::from_millis(100);

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
    /// The model of the last turn, until it asks for another one or rests.
    last: Option<EndedTurn>,
}

/// A turn that has ended.
#[derive(Debug, Clone, Copy)]
struct EndedTurn {
    /// The device time that its model has had, divided by its weight.
    had: Duration,
    ended: Instant,
}

impl TurnState {
    /// The time until a claim's turn if no other claim comes. Absent if another one has its turn or is next.
    fn wait_of(&self, ticket: Ticket) -> Option<Duration> {
        if self.is_taken || self.waiting.iter().min() != Some(&ticket) {
            return None;
        }
        let last = self.last.filter(|last| last.had < ticket.start);
        Some(last.map_or(Duration::ZERO, |last| PATIENCE.saturating_sub(last.ended.elapsed())))
    }

    /// Forgets the last turn if it was the turn of a model that has had this much of the device.
    fn forget_turn(&mut self, had: Duration) {
        if self.last.is_some_and(|last| last.had == had) {
            self.last = None;
        }
    }
}

/// A claim to a turn. The smallest one comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Ticket {
    /// The device time that its model has had, divided by its weight, or would have had if it had not been
    /// idle.
    start: Duration,
    number: u64,
}

impl DeviceTurns {
    /// A backend that computes in its turn. While several wait, each gets time in proportion to its weight.
    pub(crate) fn share_device(&self, backend: Box<dyn Backend>, weight: NonZeroU32) -> Box<dyn Backend> {
        Box::new(TurnTaking { backend, turns: self.clone(), weight, had: Duration::ZERO })
    }

    /// Waits for a turn of a model that has had this much of the device.
    fn take_turn(&self, had: Duration) -> DeviceTurn<'_> {
        let mut state = self.0.lock_state();
        state.forget_turn(had);
        let ticket = Ticket { start: had.max(state.clock), number: state.tickets };
        state.tickets += 1;
        state.waiting.push(ticket);
        // A model that was waited for is here.
        self.0.changed.notify_all();
        loop {
            state = match state.wait_of(ticket) {
                Some(Duration::ZERO) => break,
                None => self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(wait) => {
                    self.0.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        state.waiting.retain(|other| *other != ticket);
        state.is_taken = true;
        state.clock = ticket.start;
        DeviceTurn { queue: &self.0, start: ticket.start, had: ticket.start }
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
    /// The device time that its model has had with it, divided by the weight.
    had: Duration,
}

impl Drop for DeviceTurn<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.lock_state();
        state.is_taken = false;
        state.last = Some(EndedTurn { had: self.had, ended: Instant::now() });
        drop(state);
        self.queue.changed.notify_all();
    }
}

struct TurnTaking {
    backend: Box<dyn Backend>,
    turns: DeviceTurns,
    weight: NonZeroU32,
    /// The device time that the model has had, divided by its weight.
    had: Duration,
}

impl Backend for TurnTaking {
    fn predict(&mut self, batch: &Batch) -> Result<Predictions, BackendError> {
        let came = Instant::now();
        let mut turn = self.turns.take_turn(self.had);
        let began = Instant::now();
        let predictions = self.backend.predict(batch);
        turn.had = turn.start + began.elapsed() / self.weight.get();
        self.had = turn.had;
        let mut predictions = predictions?;
        predictions.waited += began - came;
        Ok(predictions)
    }

    fn begin_rest(&mut self) {
        self.turns.0.lock_state().forget_turn(self.had);
        // Those that wait need not wait for this model.
        self.turns.0.changed.notify_all();
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
    use text_embeddings_backend_core::BatchBuilder;

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

    /// A model whose batches take a millisecond.
    struct Slow;

    impl Backend for Slow {
        fn predict(&mut self, _: &Batch) -> Result<Predictions, BackendError> {
            thread::sleep(Duration::from_millis(1));
            Ok(Predictions::default())
        }

        fn packing(&self) -> Packing {
            Packing::SHARED
        }

        fn batch_bytes(&self, tokens: usize) -> usize {
            tokens
        }
    }

    #[test]
    fn a_batch_costs_its_time_divided_by_the_weight() {
        let (turns, batch) = (DeviceTurns::default(), BatchBuilder::new(Packing::SHARED).build());
        for (weight, claims) in [(1, 3), (4, 5)] {
            let weight = NonZeroU32::MIN.saturating_add(weight - 1);
            let mut model = TurnTaking {
                backend: Box::new(Slow),
                turns: turns.clone(),
                weight,
                had: Duration::from_secs(weight.get().into()),
            };
            let before = (model.had, Instant::now());
            for _ in 0..claims {
                assert!(model.predict(&batch).is_ok());
            }
            let cost = model.had.saturating_sub(before.0) * weight.get();
            assert!(cost >= Duration::from_millis(claims) && cost <= before.1.elapsed(), "{cost:?}");
        }
    }

    #[test]
    fn a_model_that_has_had_less_is_waited_for_a_moment() {
        let ticket = |start, number| Ticket { start: Duration::from_millis(start), number };
        let state = |had, ended, waiting: &[Ticket]| TurnState {
            waiting: waiting.to_vec(),
            last: Some(EndedTurn { had: Duration::from_millis(had), ended }),
            ..TurnState::default()
        };
        let (now, both) = (Instant::now(), [ticket(100, 0), ticket(120, 1)]);
        let soon = state(90, now + PATIENCE, &both);
        assert_eq!(soon.wait_of(both[0]), Some(PATIENCE));
        assert_eq!(soon.wait_of(both[1]), None, "another one comes before");
        assert_eq!(TurnState { is_taken: true, ..state(90, now, &both) }.wait_of(both[0]), None);
        let long_ago = now.checked_sub(PATIENCE).unwrap_or(now);
        for (had, ended) in [(100, now + PATIENCE), (130, now + PATIENCE), (90, long_ago)] {
            assert_eq!(state(had, ended, &both).wait_of(both[0]), Some(Duration::ZERO), "{had}");
        }
        let mut resting = soon;
        for (had, wait) in [(91, PATIENCE), (90, Duration::ZERO)] {
            resting.forget_turn(Duration::from_millis(had));
            assert_eq!(resting.wait_of(both[0]), Some(wait), "{had}");
        }
    }

    #[test]
    fn a_model_that_rests_is_not_waited_for_and_its_wait_for_a_turn_is_told() {
        let (turns, batch) = (DeviceTurns::default(), BatchBuilder::new(Packing::SHARED).build());
        let mut model = turns.share_device(Box::new(Slow), NonZeroU32::MIN);
        let other = turns.take_turn(Duration::ZERO);
        let predictions = thread::scope(|scope| {
            let waiting = scope.spawn(|| model.predict(&batch));
            while turns.0.lock_state().waiting.is_empty() {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(2));
            drop(other);
            waiting.join()
        });
        let waited = predictions.ok().and_then(Result::ok).map(|predictions| predictions.waited);
        assert!(waited.is_some_and(|waited| waited >= Duration::from_millis(2)), "{waited:?}");
        assert!(turns.0.lock_state().last.is_some());
        model.begin_rest();
        assert!(turns.0.lock_state().last.is_none());
    }
}
