//! Memory for activations, reused between operations and between forward passes.

use super::CpuOperations;
use crate::kernels::{lines::CacheLines, operand::Operand, pack::Words};
use std::sync::{Arc, Mutex, PoisonError};

/// The free buffers.
#[derive(Default)]
pub(super) struct Stores {
    pub(super) values: Mutex<Vec<CacheLines<f32>>>,
    pub(super) words: Mutex<Vec<Words>>,
    /// The operations of parts of batches, with buffers of their own.
    pub(super) branches: Mutex<Vec<CpuOperations>>,
}

/// Takes the smallest free buffer that is large enough. If there is none, takes the largest, which the caller
/// will grow.
pub(super) fn take<T: Copy + Default>(store: &Mutex<Vec<CacheLines<T>>>, needed: usize) -> CacheLines<T> {
    let mut store = store.lock().unwrap_or_else(PoisonError::into_inner);
    let best = (0..store.len()).min_by_key(|&i| match store[i].capacity() {
        enough if enough >= needed => (0, enough),
        less => (1, usize::MAX - less),
    });
    best.map(|i| store.swap_remove(i)).unwrap_or_default()
}

pub(super) fn give_back<T>(store: &Mutex<Vec<T>>, buffer: T) {
    store.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
}

/// Frees the memory of all that is in a store.
pub(super) fn free_buffers<T>(store: &Mutex<Vec<T>>) {
    store.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// Activations `[rows, columns]`, row after row.
pub(crate) struct Activations {
    pub(super) values: CacheLines<f32>,
    pub(super) columns: usize,
    pub(super) stores: Arc<Stores>,
}

impl Activations {
    pub(super) fn rows(&self) -> usize {
        self.values().len() / self.columns
    }

    pub(super) fn row(&self, row: usize) -> &[f32] {
        &self.values()[row * self.columns..][..self.columns]
    }

    pub(super) fn values(&self) -> &[f32] {
        self.values.as_slice()
    }

    pub(super) fn values_mut(&mut self) -> &mut [f32] {
        self.values.as_mut_slice()
    }
}

impl Drop for Activations {
    fn drop(&mut self) {
        give_back(&self.stores.values, std::mem::take(&mut self.values));
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
