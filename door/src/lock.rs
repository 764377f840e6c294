//! The state behind a lock, also after a panic: no code that runs under the door's locks can leave it
//! inconsistent.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) fn lock_state<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
