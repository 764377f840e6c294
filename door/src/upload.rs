//! The body of a request: it counts against the limits of time and bytes for unfinished bodies.
//!
//! Input: a body from the network. Output: the same body, or an error that ends it early. What must hold: a
//! body that is complete with its first bytes, as small ones are, takes neither a timer nor a lock; a call
//! over gRPC may pause between two messages as long as it likes, but not within a message.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::BoxError;
use bytes::{Buf, Bytes};
use futures_util::task::AtomicWaker;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use crate::{
    budget::{Holder, Lease},
    exchange::Exchange,
    protocol::Protocol,
};

/// The number of arriving bytes that earn a body one more second.
const BYTES_PER_SECOND: usize = 16 << 10;
/// The number of bytes before a message of gRPC, which say whether it is compressed, and its length.
const PREFIX: usize = 5;

/// The reason why the server stopped reading a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UploadError {
    /// It took too long.
    #[error(
        "the rest of the request did not arrive in time: send it without pauses, or raise `--body-timeout`"
    )]
    TooSlow,
    /// Other bodies needed the room.
    #[error(
        "too many requests are arriving at once, and this one took the longest: send it again, or raise \
         `--max-unread-bytes`"
    )]
    NoRoom,
}

impl UploadError {
    /// The reason why the server stopped reading a body, if `error` is that.
    pub fn find(error: &(dyn std::error::Error + 'static)) -> Option<Self> {
        let mut chain = std::iter::successors(Some(error), |error| error.source());
        chain.find_map(|error| error.downcast_ref()).copied()
    }

    fn into_error(self, protocol: Protocol) -> BoxError {
        match (protocol, self) {
            (Protocol::Http, cut) => cut.into(),
            (Protocol::Grpc, Self::TooSlow) => tonic::Status::deadline_exceeded(self.to_string()).into(),
            (Protocol::Grpc, Self::NoRoom) => tonic::Status::resource_exhausted(self.to_string()).into(),
        }
    }
}

/// The body of a request.
pub(crate) struct Upload {
    body: Incoming,
    exchange: Arc<Exchange>,
    part: PartialMessage,
    /// The time when the arriving body or message began.
    since: Instant,
    timer: Option<Pin<Box<Sleep>>>,
    lease: Option<(Lease, Arc<UnfinishedUpload>)>,
    is_over: bool,
}

/// The part of a body, or over gRPC of a message, that has arrived.
#[derive(Debug, Default, PartialEq, Eq)]
struct PartialMessage {
    /// The number of bytes that have arrived.
    arrived: usize,
    /// Over gRPC: the prefix, which has the message's length.
    prefix: [u8; PREFIX],
}

impl PartialMessage {
    /// Over gRPC, follows the messages in the next bytes. Returns the number of messages that ended in them.
    fn messages(&mut self, mut bytes: &[u8]) -> usize {
        let mut ended = 0;
        while !bytes.is_empty() {
            if self.arrived < PREFIX {
                self.prefix[self.arrived] = bytes.get_u8();
                self.arrived += 1;
            }
            if self.arrived >= PREFIX {
                let missing = (PREFIX + self.length()).saturating_sub(self.arrived);
                let taken = missing.min(bytes.len());
                bytes.advance(taken);
                self.arrived += taken;
                if taken == missing {
                    ended += 1;
                    *self = Self::default();
                }
            }
        }
        ended
    }

    fn length(&self) -> usize {
        let [_, length @ ..] = self.prefix;
        u32::from_be_bytes(length) as usize
    }
}

/// The holder of a lease of unfinished bytes. An eviction wakes the body's task.
#[derive(Default)]
struct UnfinishedUpload {
    evicted: AtomicBool,
    waker: AtomicWaker,
}

impl Holder for UnfinishedUpload {
    fn evict(&self) {
        self.evicted.store(true, Relaxed);
        self.waker.wake();
    }

    fn is_overdue(&self, _: u64) -> bool {
        false
    }
}

impl Upload {
    pub(crate) fn new(body: Incoming, exchange: Arc<Exchange>) -> Self {
        let is_over = body.is_end_stream();
        if is_over {
            exchange.owe();
        }
        let (part, since) = (PartialMessage::default(), Instant::now());
        Self { body, exchange, part, since, timer: None, lease: None, is_over }
    }

    fn is_grpc(&self) -> bool {
        matches!(self.exchange.protocol, Protocol::Grpc)
    }

    /// Bytes have arrived.
    fn account(&mut self, bytes: &Bytes) {
        if self.is_grpc() {
            let ended = self.part.messages(bytes);
            for _ in 0..ended {
                self.exchange.owe();
            }
            if ended > 0 || self.since_first(bytes.len()) {
                self.begin_part();
            }
        } else {
            self.part.arrived += bytes.len();
        }
        let is_whole = self.body.is_end_stream() || self.part.arrived == 0;
        match &self.lease {
            Some((lease, _)) => lease.set(if self.exchange.is_kept() { self.part.arrived } else { 0 }),
            None if is_whole || !self.exchange.is_kept() => {}
            None => {
                let unfinished = Arc::<UnfinishedUpload>::default();
                let lease = self.exchange.budgets.unread.lease(unfinished.clone());
                lease.set(self.part.arrived);
                self.lease = Some((lease, unfinished));
            }
        }
        if self.body.is_end_stream() {
            self.finish();
        }
    }

    /// Whether the bytes that just arrived are the first of a message.
    fn since_first(&self, count: usize) -> bool {
        self.part.arrived <= count
    }

    fn begin_part(&mut self) {
        self.since = Instant::now();
        (self.lease, self.timer) = (None, None);
    }

    fn finish(&mut self) {
        if !std::mem::replace(&mut self.is_over, true) && !self.is_grpc() {
            self.exchange.owe();
        }
        (self.lease, self.timer) = (None, None);
    }

    /// Whether the body must end here, although more of it is expected.
    fn poll_error(&mut self, cx: &mut Context<'_>) -> Poll<UploadError> {
        // A call may pause before its next message.
        if self.is_over || (self.is_grpc() && self.part.arrived == 0) {
            return Poll::Pending;
        }
        if let Some((_, unfinished)) = &self.lease {
            unfinished.waker.register(cx.waker());
            if unfinished.evicted.load(Relaxed) {
                return Poll::Ready(UploadError::NoRoom);
            }
        }
        let earned = Duration::from_secs((self.part.arrived / BYTES_PER_SECOND) as u64);
        let deadline = self.since + self.exchange.budgets.limits.body + earned;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if timer.deadline() != deadline {
            timer.as_mut().reset(deadline);
        }
        timer.as_mut().poll(cx).map(|()| UploadError::TooSlow)
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                match frame.data_ref() {
                    Some(bytes) => self.account(bytes),
                    None => self.finish(),
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error.into()))),
            Poll::Ready(None) => {
                self.finish();
                Poll::Ready(None)
            }
            Poll::Pending => self.poll_error(cx).map(|cut| {
                let error = cut.into_error(self.exchange.protocol);
                self.finish();
                Some(Err(error))
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    fn message(length: usize) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend(u32::try_from(length).unwrap().to_be_bytes());
        bytes.resize(PREFIX + length, 7);
        bytes
    }

    #[test]
    fn messages_are_followed_however_they_are_cut() {
        let mut rng = StdRng::seed_from_u64(rand::rng().random());
        for _ in 0..200 {
            let lengths: Vec<usize> = (0..rng.random_range(0..8)).map(|_| rng.random_range(0..40)).collect();
            let bytes: Vec<u8> = lengths.iter().flat_map(|length| message(*length)).collect();
            let ends: Vec<usize> = lengths
                .iter()
                .scan(0, |end, length| {
                    *end += PREFIX + length;
                    Some(*end)
                })
                .collect();
            let (mut part, mut at) = (PartialMessage::default(), 0);
            while at < bytes.len() {
                let next = rng.random_range(at + 1..=bytes.len());
                let ended = part.messages(&bytes[at..next]);
                assert_eq!(ended, ends.iter().filter(|&&end| at < end && end <= next).count(), "{lengths:?}");
                let begun = ends.iter().rev().find(|&&end| end <= next).copied().unwrap_or(0);
                assert_eq!(part.arrived, next - begun, "{lengths:?}");
                at = next;
            }
        }
    }

    #[test]
    fn a_cut_is_found_below_other_errors() {
        let error = axum::Error::new(UploadError::NoRoom);
        assert_eq!(UploadError::find(&error), Some(UploadError::NoRoom));
        assert_eq!(UploadError::find(&std::io::Error::other("gone")), None);
    }
}
