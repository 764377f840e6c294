//! The limits for clients: connections, time and memory.

use std::time::Duration;

/// The most bytes of a head over HTTP/1, and of a body that are read ahead.
pub(crate) const BUFFER: usize = 64 << 10;
/// The most bytes of a head over HTTP/2.
pub(crate) const HEADER_LIST: u32 = 16 << 10;
/// The most calls of a connection at a time over gRPC: a client has one connection, and a stream may last as
/// long as it likes.
pub(crate) const GRPC_STREAMS: u32 = 512;
/// The memory of an open request over HTTP/2, without its headers and bodies: its stream, tasks and states.
pub(crate) const OPEN_REQUEST: usize = 8 << 10;

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

impl ClientLimits {
    /// The most bytes of open requests over HTTP/2, without their bodies: as many as the heads of all
    /// connections over HTTP/1 may take. One connection alone may always have all its streams.
    pub(crate) fn open_bytes(&self) -> usize {
        let one = GRPC_STREAMS as usize * (OPEN_REQUEST + HEADER_LIST as usize);
        self.connections.saturating_mul(BUFFER).max(one)
    }
}
