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
    time::Duration,
};

use tokio::sync::Notify;

use super::{
    limits::ClientLimits,
    watch::{Clock, Watch},
};

/// How long an idle connection of HTTP/2 has to take note that the server ends, in milliseconds.
const GOODBYE: u64 = 1000;
/// How long a connection may wait for its client before it makes way, in milliseconds: a new client has sent its request
/// by then. Until then newcomers wait in the system's queue.
const GRACE: u64 = 100;
/// How long to wait for those that are on their way out, in milliseconds.
const MOMENT: u64 = 5;
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

/// Whether a new connection may come in.
pub(crate) enum Room {
    /// It has its place.
    Taken(Place),
    /// There will be a place after so long.
    Soon(Duration),
    /// Every connection has a client that waits for the server.
    None,
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
    /// closed.
    pub(crate) fn take(self: &Arc<Self>) -> Room {
        let mut taken = self.lock();
        if taken.watches.len() >= self.limits.connections {
            let now = self.clock.now();
            let Some(watch) = taken.first_to_go(now) else {
                let waiting = taken.watches.values().filter_map(|watch| watch.rank()).map(|(_, since)| since);
                let first = waiting.min().map(|since| (since + GRACE).saturating_sub(now).max(1));
                return first.map_or(Room::None, |wait| Room::Soon(Duration::from_millis(wait)));
            };
            if taken.watches.len() >= self.limits.connections.saturating_add(LEAVING) {
                return Room::Soon(Duration::from_millis(MOMENT));
            }
            watch.evict();
        }
        let watch = Arc::new(Watch::new(self.clock));
        let id = taken.next;
        taken.next += 1;
        taken.watches.insert(id, Arc::clone(&watch));
        Room::Taken(Place { places: Arc::clone(self), id, watch })
    }

    /// Closes the connection that has waited for its client the longest, if there is one.
    pub(crate) fn make_way(&self) {
        if let Some(watch) = self.lock().first_to_go(self.clock.now()) {
            watch.evict();
        }
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

impl Taken {
    /// The connection that is closed next for another one: of those that have had their grace.
    fn first_to_go(&self, now: u64) -> Option<&Arc<Watch>> {
        let waiting = self.watches.values().filter_map(|watch| Some((watch.rank()?, watch)));
        let waiting = waiting.filter(|((_, since), _)| since + GRACE <= now);
        waiting.min_by_key(|(rank, _)| *rank).map(|(_, watch)| watch)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().watches.remove(&self.id);
        self.places.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::args::Args;

    impl Room {
        fn unwrap(self) -> Place {
            match self {
                Self::Taken(place) => place,
                Self::Soon(_) | Self::None => unreachable!("there is no place"),
            }
        }
    }

    /// Waits until all connections have had their grace.
    async fn wait() {
        tokio::time::sleep(Duration::from_millis(GRACE + 20)).await;
    }

    fn places(connections: &str) -> Arc<Places> {
        let args = Args::try_from(["text-embeddings-router", "--max-connections", connections]).unwrap();
        let limits = ClientLimits::resolve(&args.door, 1, None).unwrap();
        Arc::new(Places::new(Clock::new(), limits))
    }

    async fn is_evicted(place: &Place) -> bool {
        tokio::time::timeout(Duration::from_millis(20), place.watch.evicted()).await.is_ok()
    }

    #[tokio::test]
    async fn the_one_that_waits_longest_makes_way() {
        let places = places("3");
        let first = places.take().unwrap();
        let working = places.take().unwrap();
        working.watch.begin();
        working.watch.owe();
        tokio::time::sleep(Duration::from_millis(5)).await;
        let second = places.take().unwrap();
        assert!(matches!(places.take(), Room::Soon(_)));
        wait().await;
        let third = places.take().unwrap();
        assert!(is_evicted(&first).await && !is_evicted(&second).await && !is_evicted(&working).await);
        third.watch.begin();
        third.watch.owe();
        drop(first);
        wait().await;
        let _fourth = places.take().unwrap();
        assert!(is_evicted(&second).await, "the only one that waits");
    }

    #[tokio::test]
    async fn where_all_work_nobody_comes_in() {
        let places = places("2");
        let taken: Vec<Place> = (0..2).map(|_| places.take().unwrap()).collect();
        for place in &taken {
            place.watch.begin();
            place.watch.owe();
        }
        assert!(matches!(places.take(), Room::None));
        taken[0].watch.settle(1);
        wait().await;
        assert!(matches!(places.take(), Room::Taken(_)));
    }

    #[tokio::test]
    async fn those_who_leave_are_not_more_than_there_are_spare_descriptors() {
        let places = places("100");
        let mut taken: Vec<Place> = (0..100).map(|_| places.take().unwrap()).collect();
        wait().await;
        taken.extend((0..LEAVING).map(|_| places.take().unwrap()));
        assert!(matches!(places.take(), Room::Soon(_)));
    }

    #[tokio::test]
    async fn at_the_end_idle_connections_go_first() {
        let places = places("3");
        let (idle, busy) = (places.take().unwrap(), places.take().unwrap());
        busy.watch.begin();
        let now = places.clock.now();
        places.sweep(now + 2 * GOODBYE);
        assert!(!is_evicted(&idle).await);
        places.close();
        places.sweep(now);
        assert!(!is_evicted(&idle).await, "it is said goodbye to");
        places.sweep(now + 2 * GOODBYE);
        assert!(is_evicted(&idle).await && !is_evicted(&busy).await);
        let emptied = tokio::spawn({
            let places = Arc::clone(&places);
            async move { places.emptied().await }
        });
        drop(idle);
        tokio::task::yield_now().await;
        assert!(!emptied.is_finished());
        drop(busy);
        emptied.await.unwrap();
    }
}
