//! Memory of activations, used again from one operation and one forward pass to the next.

use crate::kernels::{matmul::Operand, pack::Words};
use std::sync::{Arc, Mutex, PoisonError};

/// Buffers that are not in use.
#[derive(Default)]
pub(super) struct Stores {
    pub(super) values: Mutex<Vec<Vec<f32>>>,
    pub(super) words: Mutex<Vec<Words>>,
}

/// Takes the smallest free buffer that is large enough, else the largest, which will have to grow.
pub(super) fn take<T: Default>(store: &Mutex<Vec<T>>, capacity: impl Fn(&T) -> usize, needed: usize) -> T {
    let mut store = store.lock().unwrap_or_else(PoisonError::into_inner);
    let best = (0..store.len()).min_by_key(|&i| match capacity(&store[i]) {
        enough if enough >= needed => (0, enough),
        less => (1, usize::MAX - less),
    });
    best.map(|i| store.swap_remove(i)).unwrap_or_default()
}

fn give_back<T>(store: &Mutex<Vec<T>>, buffer: T) {
    store.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
}

/// Activations `[rows, columns]`, row after row.
pub(crate) struct Activations {
    /// As many values as were ever needed, of which the first `used` count.
    pub(super) buffer: Vec<f32>,
    pub(super) used: usize,
    pub(super) columns: usize,
    pub(super) stores: Arc<Stores>,
}

impl Activations {
    pub(super) fn rows(&self) -> usize {
        self.used / self.columns
    }

    pub(super) fn values(&self) -> &[f32] {
        &self.buffer[..self.used]
    }

    pub(super) fn values_mut(&mut self) -> &mut [f32] {
        &mut self.buffer[..self.used]
    }

    /// Changes the number of values; what was not there before is unspecified.
    pub(super) fn resize(&mut self, values: usize) {
        self.used = values;
        if self.buffer.len() < values {
            self.buffer.resize(values, 0.0);
        }
    }
}

impl Drop for Activations {
    fn drop(&mut self) {
        give_back(&self.stores.values, std::mem::take(&mut self.buffer));
    }
}

/// Activations packed for products.
pub(crate) struct PackedActivations {
    pub(super) operand: Operand,
    pub(super) stores: Arc<Stores>,
}

impl Drop for PackedActivations {
    fn drop(&mut self) {
        give_back(&self.stores.words, self.operand.take_words());
    }
}
