//! The limits for clients: connections, time and memory.

use std::time::Duration;

/// The limits for clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientLimits {
    /// The most connections of all ports.
    pub connections: usize,
    /// The time for the head of a request, from its first byte or from connecting.
    pub header: Duration,
    /// The time for a body, in addition to the time that its size gives it.
    pub body: Duration,
    /// The time that an answer waits for a client that does not read.
    pub write: Duration,
    /// The time that a connection without a request stays open.
    pub idle: Duration,
    /// The most bytes of unfinished bodies.
    pub unread_bytes: usize,
    /// The most bytes of answers that are not read yet.
    pub unsent_bytes: usize,
}
