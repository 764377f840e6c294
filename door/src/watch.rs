//! The state of one connection: whether it waits for its client or for the server, and since when.
//!
//! Input: reports of its socket, its requests and its answers. Output: whether its time is up, how soon it
//! may be closed for another connection, and a signal to close it. What must hold: a report takes a few
//! atomic operations, because every request makes some; there are no timers here (`places.rs` checks all
//! connections in turn).

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};

use tokio::{sync::Notify, time::Instant};

use crate::limits::ClientLimits;

/// The first bytes of a connection that speaks HTTP/2.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Instead of a number of bytes: the connection began with other bytes.
const HTTP_1: u8 = u8::MAX;
/// No point in time.
const NEVER: u64 = 0;

/// Milliseconds since the door was made, counted from 1: 0 is [`NEVER`]. Cheap to copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }

    /// The time.
    pub(crate) fn now(self) -> u64 {
        self.0.elapsed().as_millis() as u64 + 1
    }
}

/// The state of a connection.
pub(crate) struct Watch {
    clock: Clock,
    /// The number of bytes of [`PREFACE`] that came, or [`HTTP_1`].
    preface: AtomicU8,
    /// The number of requests that have begun and are not answered in full.
    open: AtomicUsize,
    /// The bytes of the open requests over HTTP/2, without their bodies.
    pub(crate) open_bytes: AtomicUsize,
    /// The number of complete messages that are not answered yet. While there is one, the client waits for
    /// the server.
    owed: AtomicUsize,
    /// The time when the connection last owed its client an answer, or was made.
    waiting_since: AtomicU64,
    /// The time when the last request ended, or the connection was made.
    idle_since: AtomicU64,
    /// The time when the head that is being read began, or when the connection was made if no head has come.
    head_since: AtomicU64,
    /// The time since which the socket takes no more bytes.
    blocked_since: AtomicU64,
    evicted: AtomicBool,
    evict: Notify,
}

impl Watch {
    /// A connection that was just accepted.
    pub(crate) fn new(clock: Clock) -> Self {
        let now = clock.now();
        Self {
            clock,
            preface: AtomicU8::new(0),
            open: AtomicUsize::new(0),
            open_bytes: AtomicUsize::new(0),
            owed: AtomicUsize::new(0),
            waiting_since: AtomicU64::new(now),
            idle_since: AtomicU64::new(now),
            head_since: AtomicU64::new(now),
            blocked_since: AtomicU64::new(NEVER),
            evicted: AtomicBool::new(false),
            evict: Notify::new(),
        }
    }

    /// The door's time.
    pub(crate) fn now(&self) -> u64 {
        self.clock.now()
    }

    /// Bytes came. Bytes between two requests begin the next request's head; over HTTP/2 they may also be a
    /// ping.
    pub(crate) fn note_received(&self, bytes: &[u8]) {
        if self.open.load(Relaxed) > 0 || self.is_http2() {
            return;
        }
        let seen = usize::from(self.preface.load(Relaxed));
        // Only the first bytes of a connection choose its protocol.
        if let Some(expected) = PREFACE.get(seen..) {
            let common = expected.len().min(bytes.len());
            let is_preface = bytes[..common] == expected[..common];
            self.preface.store(if is_preface { (seen + common) as u8 } else { HTTP_1 }, Relaxed);
        }
        let _ = self.head_since.compare_exchange(NEVER, self.now(), Relaxed, Relaxed);
    }

    fn is_http2(&self) -> bool {
        usize::from(self.preface.load(Relaxed)) == PREFACE.len()
    }

    /// The socket took bytes, or takes no bytes at present.
    pub(crate) fn note_written(&self, went_through: bool) {
        if !went_through {
            let _ = self.blocked_since.compare_exchange(NEVER, self.now(), Relaxed, Relaxed);
        } else if self.blocked_since.load(Relaxed) != NEVER {
            self.blocked_since.store(NEVER, Relaxed);
        }
    }

    /// A request's head is complete.
    pub(crate) fn begin_request(&self) {
        self.open.fetch_add(1, Relaxed);
        self.head_since.store(NEVER, Relaxed);
    }

    /// A request is answered in full, or its client has disconnected.
    pub(crate) fn end_request(&self) {
        if self.open.fetch_sub(1, Relaxed) == 1 {
            self.idle_since.store(self.now(), Relaxed);
        }
    }

    /// A client's message is complete: it waits for the server.
    pub(crate) fn owe_answer(&self) {
        self.owed.fetch_add(1, Relaxed);
    }

    /// `messages` messages are answered, or their answers are no longer needed.
    pub(crate) fn settle_answers(&self, messages: usize) {
        if messages > 0 && self.owed.fetch_sub(messages, Relaxed) == messages {
            self.waiting_since.store(self.now(), Relaxed);
        }
    }

    /// The time since which there is no request. `None` while there is one.
    pub(crate) fn idle_since(&self) -> Option<u64> {
        (self.open.load(Relaxed) == 0).then(|| self.idle_since.load(Relaxed))
    }

    /// The rank for being closed for another connection; the smallest is closed first. Connections without a
    /// request come before connections that wait for the rest of a request or for a client to read. Among
    /// equals, the one that has waited longest comes first. `None` while the client waits for the server.
    pub(crate) fn closing_rank(&self) -> Option<(bool, u64)> {
        let waits = self.owed.load(Relaxed) == 0 && !self.evicted.load(Relaxed);
        waits.then(|| match self.idle_since() {
            Some(since) => (false, since),
            None => (true, self.waiting_since.load(Relaxed)),
        })
    }

    /// The bytes of its open requests. None count of a connection that is being closed.
    pub(crate) fn count_open(&self) -> usize {
        if self.evicted.load(Relaxed) { 0 } else { self.open_bytes.load(Relaxed) }
    }

    /// Whether its time is up at `now`.
    pub(crate) fn is_overdue(&self, now: u64, limits: &ClientLimits) -> bool {
        let is_past = |since: u64, limit: std::time::Duration| {
            since != NEVER && now.saturating_sub(since) > limit.as_millis() as u64
        };
        if is_past(self.blocked_since.load(Relaxed), limits.write) {
            return true;
        }
        let Some(idle_since) = self.idle_since() else { return false };
        let head_since = self.head_since.load(Relaxed);
        is_past(idle_since, limits.idle) || (!self.is_http2() && is_past(head_since, limits.header))
    }

    /// Signals that the connection must be closed.
    pub(crate) fn evict(&self) {
        self.evicted.store(true, Relaxed);
        self.evict.notify_one();
    }

    /// Completes when the connection must be closed. Only the connection's own task calls it.
    pub(crate) async fn until_evicted(&self) {
        self.evict.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const LIMITS: ClientLimits = ClientLimits {
        connections: 1,
        header: Duration::from_millis(100),
        body: Duration::from_millis(100),
        write: Duration::from_millis(200),
        idle: Duration::from_secs(1),
        unread_bytes: 1,
        unsent_bytes: 1,
    };

    fn watch() -> Watch {
        Watch::new(Clock::new())
    }

    fn watch_of_an_answered_request() -> Watch {
        let watch = watch();
        watch.note_received(b"GET / HTTP/1.1");
        watch.begin_request();
        watch.end_request();
        watch
    }

    fn is_overdue(watch: &Watch, after: u64) -> bool {
        watch.is_overdue(watch.now() + after, &LIMITS)
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_has_its_time_and_an_idle_connection_a_longer_one() {
        let watch = watch();
        assert!(!is_overdue(&watch, 50) && is_overdue(&watch, 150), "a client that says nothing");
        watch.note_received(b"POST");
        assert!(!is_overdue(&watch, 50) && is_overdue(&watch, 150), "half a head");
        watch.begin_request();
        assert!(!is_overdue(&watch, 1_000_000), "a request");
        watch.note_received(b"its body");
        watch.end_request();
        assert!(!is_overdue(&watch, 900) && is_overdue(&watch, 1100), "between two requests");
        watch.note_received(b"P");
        assert!(!is_overdue(&watch, 50) && is_overdue(&watch, 150), "half of the next head");
    }

    #[tokio::test(start_paused = true)]
    async fn http_2_may_ping_between_requests() {
        for parts in [vec![PREFACE], vec![&PREFACE[..3], &PREFACE[3..]], vec![&PREFACE[..23], b"\nrest"]] {
            let watch = watch();
            for part in &parts {
                watch.note_received(part);
            }
            watch.note_received(b"ping");
            assert!(!is_overdue(&watch, 900) && is_overdue(&watch, 1100), "{parts:?}");
        }
        let watch = watch();
        for part in [&PREFACE[..5], b"x", &PREFACE[5..]] {
            watch.note_received(part);
        }
        assert!(is_overdue(&watch, 150), "no preface");
        let watch = watch_of_an_answered_request();
        watch.note_received(PREFACE);
        assert!(is_overdue(&watch, 150), "the preface is the next head of HTTP/1");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_has_its_time() {
        let watch = watch();
        watch.begin_request();
        watch.note_written(false);
        assert!(!is_overdue(&watch, 150) && is_overdue(&watch, 250));
        watch.note_written(true);
        assert!(!is_overdue(&watch, 250));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_the_server_is_not_closed_for_others() {
        let watch = watch();
        assert!(watch.closing_rank().is_some_and(|(busy, _)| !busy));
        watch.begin_request();
        assert!(watch.closing_rank().is_some_and(|(busy, _)| busy), "half a body");
        watch.owe_answer();
        assert_eq!(watch.closing_rank(), None);
        watch.settle_answers(1);
        assert!(watch.closing_rank().is_some(), "an answer that nobody reads");
        watch.end_request();
        assert!(watch.closing_rank().is_some_and(|(busy, _)| !busy) && watch.idle_since().is_some());
        watch.evict();
        assert_eq!(watch.closing_rank(), None, "it goes already");
    }
}
