//! The bytes of a request that have arrived and that no permit covers yet.
//!
//! Input: bytes as they arrive, are covered by a permit, or are freed. Output: a lease of the budget for
//! unread bytes, held while there are any. What must hold: the lease's age is the time since the request last
//! made progress; a request that is evicted learns of it wherever it waits.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use futures_util::task::AtomicWaker;

use crate::{
    budget::{Budget, Holder, Lease},
    lock::lock_state,
};

/// The memory for a message in addition to its bytes: the call's buffers, its decoded form and its task.
const MESSAGE: usize = 1 << 10;

/// The bytes of one request.
pub(crate) struct Arrivals {
    held: Mutex<Held>,
    eviction: Arc<Eviction>,
}

struct Held {
    /// The sizes of complete messages of gRPC that wait for a permit.
    messages: VecDeque<usize>,
    /// Their sum.
    complete: usize,
    /// The bytes of the body, or of the message that is arriving.
    arriving: usize,
    /// Whether `arriving` counts: a body that is discarded as it arrives takes no room.
    is_kept: bool,
    lease: Option<Lease>,
}

/// Whether the request must end. An eviction wakes the task that waits.
#[derive(Default)]
struct Eviction {
    is_due: AtomicBool,
    waker: AtomicWaker,
}

impl Holder for Eviction {
    fn evict(&self) {
        self.is_due.store(true, Relaxed);
        self.waker.wake();
    }

    fn is_overdue(&self, _: u64) -> bool {
        false
    }
}

impl Arrivals {
    pub(crate) fn new(is_kept: bool) -> Self {
        let held = Held { messages: VecDeque::new(), complete: 0, arriving: 0, is_kept, lease: None };
        Self { held: Mutex::new(held), eviction: Arc::default() }
    }

    /// `ended` messages are complete, and `arriving` bytes of a body or of the next message have arrived.
    pub(crate) fn receive_bytes(&self, budget: &Budget, ended: &[usize], arriving: usize) {
        let mut held = lock_state(&self.held);
        held.arriving = arriving;
        held.messages.extend(ended.iter().map(|length| length + MESSAGE));
        held.complete += ended.iter().map(|length| length + MESSAGE).sum::<usize>();
        self.update_lease(&mut held, budget, !ended.is_empty());
    }

    /// The handler keeps the bytes of the body.
    pub(crate) fn keep_bytes(&self, budget: &Budget) {
        let mut held = lock_state(&self.held);
        held.is_kept = true;
        self.update_lease(&mut held, budget, false);
    }

    /// A permit covers the oldest message.
    pub(crate) fn release_first(&self, budget: &Budget) {
        let mut held = lock_state(&self.held);
        held.complete -= held.messages.pop_front().unwrap_or_default();
        self.update_lease(&mut held, budget, true);
    }

    /// Nothing of the request is held any more, and later bytes of it are not kept.
    pub(crate) fn discard_bytes(&self, budget: &Budget) {
        let mut held = lock_state(&self.held);
        held.messages = VecDeque::new();
        (held.complete, held.arriving, held.is_kept) = (0, 0, false);
        self.update_lease(&mut held, budget, false);
    }

    /// Whether the body's bytes count.
    pub(crate) fn are_kept(&self) -> bool {
        lock_state(&self.held).is_kept
    }

    /// Ready when the request must end.
    pub(crate) fn poll_evicted(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.eviction.waker.register(cx.waker());
        if self.eviction.is_due.load(Relaxed) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Completes when the request must end.
    pub(crate) async fn until_evicted(&self) {
        poll_fn(|cx| self.poll_evicted(cx)).await;
    }

    fn update_lease(&self, held: &mut Held, budget: &Budget, has_progressed: bool) {
        let arriving = if held.is_kept { held.arriving } else { 0 };
        let bytes = arriving + held.complete;
        if bytes == 0 || has_progressed {
            held.lease = None;
        }
        if bytes > 0 {
            held.lease.get_or_insert_with(|| budget.new_lease(self.eviction.clone())).set_bytes(bytes);
        }
    }
}
