//! One request and its answer, as the connection counts them.
//!
//! Input: the head of a request. Output: an [`Exchange`] that both bodies share. What must hold: however a
//! request ends, its connection counts it once as begun and once as ended.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

use crate::{budget::Budgets, protocol::Protocol, watch::Watch};

/// A request and its answer, from the request's head to the last byte that the client takes.
pub(crate) struct Exchange {
    pub(crate) watch: Arc<Watch>,
    pub(crate) budgets: Arc<Budgets>,
    pub(crate) protocol: Protocol,
    /// Messages that are not answered yet.
    owed: AtomicUsize,
    /// Whether the handler keeps the bytes of the request's body.
    kept: AtomicBool,
}

impl Exchange {
    pub(crate) fn begin(watch: &Arc<Watch>, budgets: &Arc<Budgets>, protocol: Protocol) -> Arc<Self> {
        watch.begin();
        Arc::new(Self {
            watch: Arc::clone(watch),
            budgets: Arc::clone(budgets),
            protocol,
            owed: AtomicUsize::new(0),
            // Over gRPC, reading a body means keeping it.
            kept: AtomicBool::new(matches!(protocol, Protocol::Grpc)),
        })
    }

    /// A message is complete.
    pub(crate) fn owe(&self) {
        self.owed.fetch_add(1, Relaxed);
        self.watch.owe();
    }

    /// An answer begins. Over HTTP there is only one.
    pub(crate) fn answer(&self) {
        let settled = self.owed.fetch_update(Relaxed, Relaxed, |owed| owed.checked_sub(1)).is_ok();
        self.watch.settle(usize::from(settled));
    }

    /// Whether the bytes of the body count.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept.load(Relaxed)
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.watch.settle(self.owed.load(Relaxed));
        self.watch.end();
    }
}

/// An extension of the request. With it a handler says that it keeps the body.
#[derive(Clone)]
pub struct BodyKeeping(Arc<Exchange>);

impl BodyKeeping {
    pub(crate) fn new(exchange: &Arc<Exchange>) -> Self {
        Self(Arc::clone(exchange))
    }

    /// From now on the handler keeps the bytes of the body, and they count against the room for all bodies.
    pub fn keep(&self) {
        self.0.kept.store(true, Relaxed);
    }
}
