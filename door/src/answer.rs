//! The bytes of an answer that its client has not taken yet.
//!
//! Input: parts of the answer as they are made and as they are taken. Output: a lease of the budget for
//! unsent bytes, held while there are any. What must hold: if nothing of an answer is taken for the time
//! limit, it ends its connection, over HTTP and gRPC alike.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::{
    budget::{Budget, Holder, Lease},
    lock::lock_state,
    watch::Watch,
};

/// The bytes of one answer.
pub(crate) struct UnsentAnswer {
    held: Mutex<HeldBytes>,
    reader: Arc<AnswerReader>,
}

#[derive(Default)]
struct HeldBytes {
    bytes: usize,
    lease: Option<Lease>,
}

/// The client that should take the answer.
struct AnswerReader {
    watch: Arc<Watch>,
    /// The time when it last took a part, or when the first part was made.
    taken_at: AtomicU64,
    /// The time for each part, in milliseconds.
    limit: u64,
}

impl AnswerReader {
    fn take_part(&self) {
        self.taken_at.store(self.watch.now(), Relaxed);
    }
}

impl Holder for AnswerReader {
    fn evict(&self) {
        self.watch.evict();
    }

    fn is_overdue(&self, now: u64) -> bool {
        now.saturating_sub(self.taken_at.load(Relaxed)) > self.limit
    }
}

impl UnsentAnswer {
    pub(crate) fn new(watch: &Arc<Watch>, limit: Duration) -> Self {
        let (watch, taken_at) = (Arc::clone(watch), AtomicU64::new(0));
        let reader = Arc::new(AnswerReader { watch, taken_at, limit: limit.as_millis() as u64 });
        Self { held: Mutex::default(), reader }
    }

    /// A part of `bytes` bytes is made.
    pub(crate) fn hold_part(&self, budget: &Budget, bytes: usize) {
        let mut held = lock_state(&self.held);
        if held.lease.is_none() {
            self.reader.take_part();
        }
        held.bytes += bytes;
        let bytes = held.bytes;
        held.lease.get_or_insert_with(|| budget.new_lease(self.reader.clone())).set_bytes(bytes);
    }

    /// A part of `bytes` bytes is taken, or thrown away.
    pub(crate) fn release_part(&self, bytes: usize) {
        self.take_part();
        let mut held = lock_state(&self.held);
        held.bytes -= bytes;
        let bytes = held.bytes;
        match &held.lease {
            Some(lease) if bytes > 0 => lease.set_bytes(bytes),
            _ => held.lease = None,
        }
    }

    /// The client takes something of a part.
    pub(crate) fn take_part(&self) {
        self.reader.take_part();
    }
}
