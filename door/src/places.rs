//! The places for connections: their number, their owners, and who loses a place.
//!
//! Input: connections that come and go. Output: a [`ConnectionPlace`] for each, as long as there are any.
//! What must hold: no more places are given than exist, except that closing connections may hold some in
//! addition; a connection has its place until its task ends.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::sync::Notify;

use crate::{
    limits::ClientLimits,
    lock::lock_state,
    watch::{Clock, Watch},
};

/// The time for an idle connection of HTTP/2 to learn that the server ends, in milliseconds.
const GOODBYE: u64 = 1000;
/// The time in milliseconds that a connection may wait for its client before it can be closed for another. It
/// is long enough for a new client to send its request. New connections wait in the system's queue meanwhile.
const GRACE: u64 = 100;
/// The time to wait for connections that are closing, in milliseconds.
const MOMENT: u64 = 5;
/// The most connections that may be closing while others have their places already. Fewer than the spare
/// descriptors.
const LEAVING: usize = 32;

/// All places. The ports share them.
pub(crate) struct ConnectionPlaces {
    clock: Clock,
    limits: ClientLimits,
    taken: Mutex<Taken>,
    /// The time when the server began to end; 0 before.
    closing_since: AtomicU64,
    freed: Notify,
}

#[derive(Default)]
struct Taken {
    next: u64,
    watches: HashMap<u64, Arc<Watch>>,
}

/// The outcome for a new connection.
pub(crate) enum ConnectionAdmission {
    /// It has its place.
    Taken(ConnectionPlace),
    /// There will be a place after this time.
    Soon(Duration),
    /// Every connection has a client that waits for the server.
    None,
}

/// The place of one connection.
pub(crate) struct ConnectionPlace {
    pub(crate) places: Arc<ConnectionPlaces>,
    id: u64,
    /// The state of the connection.
    pub(crate) watch: Arc<Watch>,
}

impl ConnectionPlaces {
    pub(crate) fn new(clock: Clock, limits: ClientLimits) -> Self {
        Self {
            clock,
            limits,
            taken: Mutex::default(),
            closing_since: AtomicU64::new(0),
            freed: Notify::new(),
        }
    }

    /// A place for a new connection. If all are taken, the connection that has waited longest for its client
    /// is closed.
    pub(crate) fn take_place(self: &Arc<Self>) -> ConnectionAdmission {
        let mut taken = lock_state(&self.taken);
        if taken.watches.len() >= self.limits.connections {
            let now = self.clock.now();
            let Some(watch) = taken.first_to_go(now) else {
                let waiting =
                    taken.watches.values().filter_map(|watch| watch.closing_rank()).map(|(_, since)| since);
                let first = waiting.min().map(|since| (since + GRACE).saturating_sub(now).max(1));
                return first.map_or(ConnectionAdmission::None, |wait| {
                    ConnectionAdmission::Soon(Duration::from_millis(wait))
                });
            };
            if taken.watches.len() >= self.limits.connections.saturating_add(LEAVING) {
                return ConnectionAdmission::Soon(Duration::from_millis(MOMENT));
            }
            watch.evict();
        }
        let watch = Arc::new(Watch::new(self.clock));
        let id = taken.next;
        taken.next += 1;
        taken.watches.insert(id, Arc::clone(&watch));
        ConnectionAdmission::Taken(ConnectionPlace { places: Arc::clone(self), id, watch })
    }

    /// Closes the connection that has waited longest for its client, if there is one.
    pub(crate) fn make_way(&self) {
        if let Some(watch) = lock_state(&self.taken).first_to_go(self.clock.now()) {
            watch.evict();
        }
    }

    /// Closes the connections whose open requests take the most bytes, until the others are within the limit.
    /// `open` is the sum of all.
    pub(crate) fn close_largest(&self, open: usize) {
        let limit = self.limits.open_bytes();
        if open <= limit {
            return;
        }
        let taken = lock_state(&self.taken);
        let mut open: usize = taken.watches.values().map(|watch| watch.count_open()).sum();
        while open > limit
            && let Some(largest) = taken.watches.values().max_by_key(|watch| watch.count_open())
        {
            open -= largest.count_open().min(open);
            largest.evict();
        }
    }

    /// Closes connections whose time is up. While the server ends, also those without a request.
    pub(crate) fn evict_overdue(&self, now: u64) {
        let closing = Some(self.closing_since.load(Relaxed)).filter(|&since| since > 0);
        for watch in lock_state(&self.taken).watches.values() {
            let has_left = closing
                .zip(watch.idle_since())
                .is_some_and(|(closing, idle)| now > closing.max(idle) + GOODBYE);
            if watch.is_overdue(now, &self.limits) || has_left {
                watch.evict();
            }
        }
    }

    /// From now on, connections without a request are closed.
    pub(crate) fn close_idle(&self) {
        self.closing_since.store(self.clock.now(), Relaxed);
    }

    /// The number of places that are taken.
    pub(crate) fn count_taken(&self) -> usize {
        lock_state(&self.taken).watches.len()
    }

    /// Completes when no place is taken.
    pub(crate) async fn until_empty(&self) {
        loop {
            let freed = self.freed.notified();
            if lock_state(&self.taken).watches.is_empty() {
                return;
            }
            freed.await;
        }
    }
}

impl Taken {
    /// The connection to close next for another one, among those whose grace is over.
    fn first_to_go(&self, now: u64) -> Option<&Arc<Watch>> {
        let waiting = self.watches.values().filter_map(|watch| Some((watch.closing_rank()?, watch)));
        let waiting = waiting.filter(|((_, since), _)| since + GRACE <= now);
        waiting.min_by_key(|(rank, _)| *rank).map(|(_, watch)| watch)
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        lock_state(&self.places.taken).watches.remove(&self.id);
        self.places.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    impl ConnectionAdmission {
        fn unwrap(self) -> ConnectionPlace {
            match self {
                Self::Taken(place) => place,
                Self::Soon(_) | Self::None => unreachable!("there is no place"),
            }
        }
    }

    /// Waits until the grace of all connections is over.
    async fn wait() {
        tokio::time::sleep(Duration::from_millis(GRACE + 20)).await;
    }

    fn places(connections: usize) -> Arc<ConnectionPlaces> {
        let limits = ClientLimits { connections, ..crate::testing::LIMITS };
        Arc::new(ConnectionPlaces::new(Clock::new(), limits))
    }

    async fn is_evicted(place: &ConnectionPlace) -> bool {
        tokio::time::timeout(Duration::from_millis(20), place.watch.until_evicted()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_one_that_waits_longest_makes_way() {
        let places = places(3);
        let first = places.take_place().unwrap();
        let working = places.take_place().unwrap();
        working.watch.begin_request();
        working.watch.owe_answer();
        tokio::time::sleep(Duration::from_millis(5)).await;
        let second = places.take_place().unwrap();
        assert!(matches!(places.take_place(), ConnectionAdmission::Soon(_)));
        wait().await;
        let third = places.take_place().unwrap();
        assert!(is_evicted(&first).await && !is_evicted(&second).await && !is_evicted(&working).await);
        third.watch.begin_request();
        third.watch.owe_answer();
        drop(first);
        wait().await;
        let _fourth = places.take_place().unwrap();
        assert!(is_evicted(&second).await, "the only one that waits");
    }

    #[tokio::test(start_paused = true)]
    async fn where_all_work_nobody_comes_in() {
        let places = places(2);
        let taken: Vec<ConnectionPlace> = (0..2).map(|_| places.take_place().unwrap()).collect();
        for place in &taken {
            place.watch.begin_request();
            place.watch.owe_answer();
        }
        assert!(matches!(places.take_place(), ConnectionAdmission::None));
        taken[0].watch.settle_answers(1);
        wait().await;
        assert!(matches!(places.take_place(), ConnectionAdmission::Taken(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_leave_are_not_more_than_there_are_spare_descriptors() {
        let places = places(100);
        let mut taken: Vec<ConnectionPlace> = (0..100).map(|_| places.take_place().unwrap()).collect();
        wait().await;
        taken.extend((0..LEAVING).map(|_| places.take_place().unwrap()));
        assert!(matches!(places.take_place(), ConnectionAdmission::Soon(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_connection_with_the_most_open_requests_goes_when_all_take_too_much() {
        let places = places(1000);
        let limit = places.limits.open_bytes();
        let taken: Vec<ConnectionPlace> = (0..4).map(|_| places.take_place().unwrap()).collect();
        for (place, share) in taken.iter().zip([4, 2, 5, 4]) {
            place.watch.open_bytes.store(limit / share, Relaxed);
        }
        places.close_largest(limit);
        assert!(!is_evicted(&taken[1]).await, "the sum is within the limit");
        places.close_largest(limit + 1);
        let mut evicted = Vec::new();
        for place in &taken {
            evicted.push(is_evicted(place).await);
        }
        assert_eq!(evicted, [false, true, false, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_end_idle_connections_go_first() {
        let places = places(3);
        let (idle, busy) = (places.take_place().unwrap(), places.take_place().unwrap());
        busy.watch.begin_request();
        let now = places.clock.now();
        places.evict_overdue(now + 2 * GOODBYE);
        assert!(!is_evicted(&idle).await);
        places.close_idle();
        places.evict_overdue(now);
        assert!(!is_evicted(&idle).await, "it is said goodbye to");
        places.evict_overdue(now + 2 * GOODBYE);
        assert!(is_evicted(&idle).await && !is_evicted(&busy).await);
        let emptied = tokio::spawn({
            let places = Arc::clone(&places);
            async move { places.until_empty().await }
        });
        drop(idle);
        tokio::task::yield_now().await;
        assert!(!emptied.is_finished());
        drop(busy);
        emptied.await.unwrap();
    }
}
