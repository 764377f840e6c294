//! A backend for tests of the engine: it scores a text by a hash of its ids and fails on request.
//!
//! Input: batches; tokens [`FAIL`], [`PANIC`], [`NAN`] and [`BREAK`] misbehave. Output: [`values`] of each text, or of
//! the text up to each of its tokens where these are wanted, so that an answer can be checked without knowing which batch
//! it came from. What must hold: as for every backend, a text's values depend on its own tokens only.

#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use std::sync::{Arc, Condvar, Mutex};
use text_embeddings_backend_core::{Backend, BackendError, Batch, Predictions, Text, Wanted};

/// A batch that holds this token fails.
pub(crate) const FAIL: u32 = 1;
/// A batch that holds this token panics.
pub(crate) const PANIC: u32 = 2;
/// A text that holds this token has no score.
pub(crate) const NAN: u32 = 3;
/// A batch that holds this token gets no rows at all.
pub(crate) const BREAK: u32 = 4;

/// What a text begins with of this token is known.
pub(crate) const KNOWN: u32 = 5;

/// The raw score of a text, between -4 and 4: FNV-1a of its ids.
pub(crate) fn score(ids: &[u32]) -> f32 {
    if ids.contains(&NAN) {
        return f32::NAN;
    }
    let hash = ids.iter().fold(0x811c_9dc5_u32, |hash, id| (hash ^ id).wrapping_mul(0x0100_0193));
    (hash >> 8) as f32 / (1 << 24) as f32 * 8.0 - 4.0
}

/// What the backend says of a text: so many values, the first of them its [`score`].
pub(crate) fn values(ids: &[u32], width: usize) -> Vec<f32> {
    let further = |place: usize| score(&[ids, &vec![u32::MAX; place][..]].concat());
    (0..width).map(further).collect()
}

/// What a test does to its backend while the engine owns it.
#[derive(Clone, Default)]
pub(crate) struct Control(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    held: bool,
    failing: bool,
    batch_sizes: Vec<usize>,
}

impl Control {
    /// The backend under this control.
    pub(crate) fn backend(&self) -> Box<dyn Backend> {
        self.backend_of_width(1)
    }

    /// A backend that gives rows of so many values.
    pub(crate) fn backend_of_width(&self, width: usize) -> Box<dyn Backend> {
        Box::new(HashBackend { control: self.clone(), width })
    }

    /// Holds every batch until `release`.
    pub(crate) fn hold(&self) {
        self.change(|state| state.held = true);
    }

    /// Lets batches through.
    pub(crate) fn release(&self) {
        self.change(|state| state.held = false);
    }

    /// Whether every batch fails.
    pub(crate) fn fail_all(&self, failing: bool) {
        self.change(|state| state.failing = failing);
    }

    /// The sizes of the batches that the backend got so far, held ones included.
    pub(crate) fn batch_sizes(&self) -> Vec<usize> {
        self.0.0.lock().unwrap().batch_sizes.clone()
    }

    /// Blocks until the backend got so many batches.
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

impl Backend for HashBackend {
    fn predict(&mut self, batch: &Batch) -> Result<Predictions, BackendError> {
        self.control.change(|state| state.batch_sizes.push(batch.leaves().len()));
        let (lock, changed) = &*self.control.0;
        let failing = changed.wait_while(lock.lock().unwrap(), |state| state.held).unwrap().failing;
        let holds = |token| batch.token_ids().contains(&token);
        assert!(!holds(PANIC), "token {PANIC}");
        if failing || holds(FAIL) {
            return Err(BackendError::Inference(format!("token {FAIL}")));
        }
        if holds(BREAK) {
            return Ok(Predictions::new(Vec::new(), 1));
        }
        let mut predictions = Predictions::default();
        for (text, wanted) in batch.wanted().iter().enumerate() {
            let ids: Vec<u32> = batch.rows_of(text).map(|row| batch.token_ids()[row]).collect();
            let shortest = if *wanted == Wanted::Tokens { 1 } else { ids.len() };
            let rows = (shortest..=ids.len()).flat_map(|end| values(&ids[..end], self.width));
            predictions.push(&rows.collect::<Vec<f32>>(), self.width);
        }
        Ok(predictions)
    }

    fn known_tokens(&self, text: &Text) -> usize {
        text.ids.iter().take_while(|&&id| id == KNOWN).count()
    }
}
