//! The places for connections: how many there are, who has one, and who loses it.
//!
//! Input: connections that come and go. Output: a [`Place`] for each, as long as there are any. What must hold: never more
//! places are given than there are, except for those whose owners are on their way out; a connection has its place until
//! its task ends.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use tokio::sync::Notify;

use super::{
    limits::ClientLimits,
    watch::{Clock, Watch},
};

/// How long an idle connection of HTTP/2 has to take note that the server ends, in milliseconds.
const GOODBYE: u64 = 1000;
/// How many connections may be on their way out while others have their places: fewer than there are spare descriptors.
const LEAVING: usize = 32;

/// All places. Shared by every port.
pub(crate) struct Places {
    clock: Clock,
    limits: ClientLimits,
    taken: Mutex<Taken>,
    /// Since when the server ends; 0 while it does not.
    closing_since: AtomicU64,
    freed: Notify,
}

#[derive(Default)]
struct Taken {
    next: u64,
    watches: HashMap<u64, Arc<Watch>>,
}

/// The place of one connection.
pub(crate) struct Place {
    places: Arc<Places>,
    id: u64,
    /// What is known of the connection.
    pub(crate) watch: Arc<Watch>,
}

impl Places {
    pub(crate) fn new(clock: Clock, limits: ClientLimits) -> Self {
        Self {
            clock,
            limits,
            taken: Mutex::default(),
            closing_since: AtomicU64::new(0),
            freed: Notify::new(),
        }
    }

    /// A place for a new connection. If all are taken, the connection that has waited for its client the longest is
    /// closed; none if no connection waits for its client.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Place> {
        let mut taken = self.lock();
        if taken.watches.len() >= self.limits.connections {
            if taken.watches.len() >= self.limits.connections.saturating_add(LEAVING) {
                return None;
            }
            let leaving = taken.watches.values().filter_map(|watch| Some((watch.rank()?, watch)));
            let (_, watch) = leaving.min_by_key(|(rank, _)| *rank)?;
            watch.evict();
        }
        let watch = Arc::new(Watch::new(self.clock));
        let id = taken.next;
        taken.next += 1;
        taken.watches.insert(id, Arc::clone(&watch));
        Some(Place { places: Arc::clone(self), id, watch })
    }

    /// Closes connections that have had their time, and at the end those without a request.
    pub(crate) fn sweep(&self, now: u64) {
        let closing = Some(self.closing_since.load(Relaxed)).filter(|&since| since > 0);
        for watch in self.lock().watches.values() {
            let has_left = closing
                .zip(watch.idle_since())
                .is_some_and(|(closing, idle)| now > closing.max(idle) + GOODBYE);
            if watch.is_overdue(now, &self.limits) || has_left {
                watch.evict();
            }
        }
    }

    /// From here on, connections without a request are closed.
    pub(crate) fn close(&self) {
        self.closing_since.store(self.clock.now(), Relaxed);
    }

    /// Completes when no place is taken.
    pub(crate) async fn emptied(&self) {
        loop {
            let freed = self.freed.notified();
            if self.lock().watches.is_empty() {
                return;
            }
            freed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // Nothing that runs under the lock can leave it half changed.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().watches.remove(&self.id);
        self.places.freed.notify_waiters();
    }
}
