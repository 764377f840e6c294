//! A backend for tests of the engine: it scores a text by a hash of its ids and fails on request.
//!
//! Input: batches; tokens [`FAIL`], [`PANIC`], [`NAN`] and [`BREAK`] misbehave; [`Control`] can let the
//! device run out of memory or lose it. Output: [`values`] of each text, or of the text up to each of its
//! tokens if these outputs are wanted. They let a test check an answer without knowing which batch it came
//! from. What must hold: a text's values depend on its own tokens only, as for every backend.

#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};
use text_embeddings_backend_core::{
    Backend, BackendError, Batch, Output, Packing, Predictions, SparseValue, Text, TokenVectors, Wanted,
};

/// A batch that holds this token fails.
pub(crate) const FAIL: u32 = 1;
/// A batch that holds this token panics.
pub(crate) const PANIC: u32 = 2;
/// A text that holds this token has no score.
pub(crate) const NAN: u32 = 3;
/// A batch that holds this token gets no rows at all.
pub(crate) const BREAK: u32 = 4;

/// The backend knows the run of this token that a text begins with.
pub(crate) const KNOWN: u32 = 5;

/// The raw score of a text, between -4 and 4: FNV-1a of its ids.
pub(crate) fn score(ids: &[u32]) -> f32 {
    if ids.contains(&NAN) {
        return f32::NAN;
    }
    let hash = ids.iter().fold(0x811c_9dc5_u32, |hash, id| (hash ^ id).wrapping_mul(0x0100_0193));
    (hash >> 8) as f32 / (1 << 24) as f32 * 8.0 - 4.0
}

/// The backend's values for a text: `width` values, the first of them its [`score`].
pub(crate) fn values(ids: &[u32], width: usize) -> Vec<f32> {
    let further = |place: usize| score(&[ids, &vec![u32::MAX; place][..]].concat());
    (0..width).map(further).collect()
}

/// The sparse output of a text: each of its ids with the number of times that it occurs.
pub(crate) fn sparse(ids: &[u32]) -> Vec<SparseValue> {
    let mut counts = BTreeMap::new();
    for id in ids {
        *counts.entry(*id).or_insert(0) += 1;
    }
    counts.into_iter().map(|(index, count)| SparseValue { index, value: count as f32 }).collect()
}

/// A test's handle on its backend, which the engine owns.
#[derive(Clone, Default)]
pub(crate) struct Control(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    /// The number of batches that pass before all others are held; no batch is held if absent.
    held_after: Option<usize>,
    failing: bool,
    /// Whether every value is NaN, as with broken weights.
    nan: bool,
    /// The unique tokens of the largest batch that fits the device's memory; unlimited if absent.
    room: Option<usize>,
    /// Whether the device is lost.
    lost: bool,
    batch_sizes: Vec<usize>,
    /// The number of times that the engine said that nothing waits.
    rests: usize,
    /// The time in which each batch is said to have waited.
    waited: Duration,
}

impl Control {
    /// The backend that this handle controls.
    pub(crate) fn backend(&self) -> Box<dyn Backend> {
        self.backend_of_width(1)
    }

    /// A backend that gives rows of `width` values.
    pub(crate) fn backend_of_width(&self, width: usize) -> Box<dyn Backend> {
        Box::new(HashBackend { control: self.clone(), width })
    }

    /// Holds every batch until `release`.
    pub(crate) fn hold(&self) {
        self.hold_after(0);
    }

    /// Holds every batch after the first `batches` ones until `release`.
    pub(crate) fn hold_after(&self, batches: usize) {
        self.change(|state| state.held_after = Some(batches));
    }

    /// Lets all batches pass.
    pub(crate) fn release(&self) {
        self.change(|state| state.held_after = None);
    }

    /// Sets whether every batch fails.
    pub(crate) fn fail_all(&self, failing: bool) {
        self.change(|state| state.failing = failing);
    }

    /// Sets whether every value is NaN.
    pub(crate) fn answer_nan(&self, nan: bool) {
        self.change(|state| state.nan = nan);
    }

    /// From now on, a batch of more than `tokens` unique tokens does not fit the device's memory.
    pub(crate) fn leave_room_for(&self, tokens: usize) {
        self.change(|state| state.room = Some(tokens));
    }

    /// The device is lost from the next batch on.
    pub(crate) fn lose_device(&self) {
        self.change(|state| state.lost = true);
    }

    /// Every batch is said to have waited this long.
    pub(crate) fn claim_wait(&self, waited: Duration) {
        self.change(|state| state.waited = waited);
    }

    /// The number of times that the engine said that nothing waits.
    pub(crate) fn count_rests(&self) -> usize {
        self.0.0.lock().unwrap().rests
    }

    /// The sizes of the batches that the backend has received so far, including held ones.
    pub(crate) fn batch_sizes(&self) -> Vec<usize> {
        self.0.0.lock().unwrap().batch_sizes.clone()
    }

    /// Blocks until the backend has received `count` batches.
    pub(crate) fn wait_for_batches(&self, count: usize) {
        let state = self.0.0.lock().unwrap();
        drop(self.0.1.wait_while(state, |state| state.batch_sizes.len() < count).unwrap());
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
    }
}

struct HashBackend {
    control: Control,
    width: usize,
}

impl HashBackend {
    fn output(&self, ids: &[u32], wanted: Wanted) -> Output {
        let mut output = Output::default();
        if wanted.whole {
            let nan = self.control.0.0.lock().unwrap().nan;
            output.whole = if nan { vec![f32::NAN; self.width] } else { values(ids, self.width) };
        }
        if wanted.tokens {
            let rows = (1..=ids.len()).flat_map(|end| values(&ids[..end], self.width));
            output.tokens = TokenVectors { values: rows.collect(), width: self.width };
        }
        if wanted.sparse {
            output.sparse = sparse(ids);
        }
        output
    }
}

impl Backend for HashBackend {
    fn predict(&mut self, batch: &Batch) -> Result<Predictions, BackendError> {
        let mut number = 0;
        self.control.change(|state| {
            state.batch_sizes.push(batch.leaves().len());
            number = state.batch_sizes.len();
        });
        let (lock, changed) = &*self.control.0;
        let is_held = |state: &mut State| state.held_after.is_some_and(|batches| number > batches);
        let (failing, room, lost, waited) = {
            let state = changed.wait_while(lock.lock().unwrap(), is_held).unwrap();
            (state.failing, state.room, state.lost, state.waited)
        };
        if lost {
            return Err(BackendError::DeviceLost("it fell off the bus".to_owned()));
        }
        if room.is_some_and(|room| batch.token_ids().len() > room) {
            return Err(BackendError::OutOfMemory("2 bytes are missing".to_owned()));
        }
        let holds = |token| batch.token_ids().contains(&token);
        assert!(!holds(PANIC), "token {PANIC}");
        if failing || holds(FAIL) {
            return Err(BackendError::Inference(format!("token {FAIL}")));
        }
        if holds(BREAK) {
            return Ok(Predictions::default());
        }
        let output = |(text, wanted): (usize, &Wanted)| {
            let ids: Vec<u32> = batch.rows_of(text).map(|row| batch.token_ids()[row]).collect();
            self.output(&ids, *wanted)
        };
        let texts = batch.wanted().iter().enumerate().map(output).collect();
        Ok(Predictions { texts, waited, ..Predictions::default() })
    }

    fn begin_rest(&mut self) {
        self.control.change(|state| state.rests += 1);
    }

    fn batch_bytes(&self, _tokens: usize) -> usize {
        0
    }

    fn packing(&self) -> Packing {
        Packing::SHARED
    }

    fn known_tokens(&self, text: &Text) -> usize {
        text.ids.iter().take_while(|&&id| id == KNOWN).count()
    }
}
