//! One request and its answer, and the bytes of both that the server holds.
//!
//! Input: the head of a request. Output: an [`Exchange`] that both bodies share. What must hold: however a
//! request ends, its connection counts it once as begun and once as ended; every byte of it counts against a
//! budget from its arrival until it is covered by a permit or freed, and every byte of its answer from its
//! making until the socket has taken it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

use crate::{
    answer::UnsentAnswer, arrivals::Arrivals, budget::Budgets, protocol::Protocol, upload_error::UploadError,
    watch::Watch,
};

/// A request and its answer, from the request's head to the last byte that the client takes.
pub(crate) struct Exchange {
    pub(crate) watch: Arc<Watch>,
    pub(crate) budgets: Arc<Budgets>,
    pub(crate) protocol: Protocol,
    /// Whether other requests of the same connection may be answered before this one.
    pub(crate) is_multiplexed: bool,
    /// The bytes that count until the end, whatever the request's state is.
    bytes_while_open: usize,
    /// The bytes of the request.
    pub(crate) arrivals: Arrivals,
    /// The bytes of the answer.
    pub(crate) answer: UnsentAnswer,
    /// Messages that are not answered yet.
    owed: AtomicUsize,
    /// Whether the client may pause between two messages.
    pub(crate) may_pause: AtomicBool,
}

impl Exchange {
    pub(crate) fn begin_exchange(
        watch: &Arc<Watch>,
        budgets: &Arc<Budgets>,
        protocol: Protocol,
        is_multiplexed: bool,
        bytes_while_open: usize,
    ) -> Arc<Self> {
        watch.begin_request();
        watch.open_bytes.fetch_add(bytes_while_open, Relaxed);
        budgets.open_bytes.fetch_add(bytes_while_open, Relaxed);
        Arc::new(Self {
            watch: Arc::clone(watch),
            budgets: Arc::clone(budgets),
            protocol,
            is_multiplexed,
            bytes_while_open,
            arrivals: Arrivals::new(matches!(protocol, Protocol::Grpc)),
            answer: UnsentAnswer::new(watch, budgets.limits.write),
            owed: AtomicUsize::new(0),
            may_pause: AtomicBool::new(false),
        })
    }

    /// `messages` messages are complete.
    pub(crate) fn owe_answers(&self, messages: usize) {
        self.owed.fetch_add(messages, Relaxed);
        (0..messages).for_each(|_| self.watch.owe_answer());
    }

    /// `messages` answers begin.
    pub(crate) fn settle_messages(&self, messages: usize) {
        let before = self.owed.fetch_update(Relaxed, Relaxed, |owed| Some(owed.saturating_sub(messages)));
        self.watch.settle_answers(before.unwrap_or_default().min(messages));
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.watch.open_bytes.fetch_sub(self.bytes_while_open, Relaxed);
        self.budgets.open_bytes.fetch_sub(self.bytes_while_open, Relaxed);
        self.watch.settle_answers(self.owed.load(Relaxed));
        self.watch.end_request();
    }
}

/// An extension of the request. With it a handler tells the ledger about the request's bytes.
#[derive(Clone)]
pub struct Account(Arc<Exchange>);

impl Account {
    pub(crate) fn new(exchange: &Arc<Exchange>) -> Self {
        Self(Arc::clone(exchange))
    }

    /// From now on the handler keeps the bytes of the body. They count until the guard is dropped.
    pub fn keep_body(&self) -> KeptBody {
        self.0.arrivals.keep_bytes(&self.0.budgets.unread);
        KeptBody(Arc::clone(&self.0))
    }

    /// The call is a stream whose messages are answered one by one. Its client may pause between two of them.
    pub fn allow_pauses(&self) {
        self.0.may_pause.store(true, Relaxed);
    }

    /// The oldest message is covered by a permit from now on, and counts no more.
    pub fn release_message(&self) {
        self.0.arrivals.release_first(&self.0.budgets.unread);
    }

    /// Completes when the server has no more room for the bytes of this request.
    pub async fn until_evicted(&self) -> UploadError {
        self.0.arrivals.until_evicted().await;
        UploadError::NoRoom
    }

    /// Counts `bytes` of an answer that waits for the client.
    pub fn hold_answer(&self, bytes: usize) -> HeldAnswer {
        HeldAnswer::new(&self.0, bytes)
    }
}

/// The bytes of a body that its handler keeps.
pub struct KeptBody(Arc<Exchange>);

impl KeptBody {
    /// Completes when the server has no more room for the bytes.
    pub async fn until_evicted(&self) -> UploadError {
        self.0.arrivals.until_evicted().await;
        UploadError::NoRoom
    }
}

impl Drop for KeptBody {
    fn drop(&mut self) {
        self.0.arrivals.discard_bytes(&self.0.budgets.unread);
    }
}

/// Bytes of an answer that the client has not taken yet.
pub struct HeldAnswer {
    exchange: Arc<Exchange>,
    bytes: usize,
}

impl HeldAnswer {
    pub(crate) fn new(exchange: &Arc<Exchange>, bytes: usize) -> Self {
        exchange.answer.hold_part(&exchange.budgets.unsent, bytes);
        Self { exchange: Arc::clone(exchange), bytes }
    }
}

impl Drop for HeldAnswer {
    fn drop(&mut self) {
        self.exchange.answer.release_part(self.bytes);
    }
}
