//! The body of an answer: it counts against the limits of time and bytes for unread answers.
//!
//! Input: a handler's answer. Output: the same bytes. Large answers come in pieces, and count until the last
//! piece is sent. What must hold: a small answer takes neither a copy nor a lock; the bytes of a large one
//! count until the socket has taken them, also after the last piece was handed over.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::body::Body as AnyBody;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::{budget::Lease, exchange::Exchange, protocol::Protocol, watch::WatchedAnswer};

/// Larger answers are handed over in pieces of this many bytes, which shows whether the client takes them.
/// Two pieces fill the buffer of a connection.
const PIECE: usize = 64 << 10;

/// The body of an answer.
pub(crate) struct Download {
    body: AnyBody,
    exchange: Arc<Exchange>,
    /// The rest of a large part.
    rest: Bytes,
    answer: Option<Arc<WatchedAnswer>>,
}

/// Bytes that count until their last piece is sent.
struct Counted {
    bytes: Bytes,
    _lease: Lease,
    _exchange: Arc<Exchange>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Download {
    pub(crate) fn new(body: AnyBody, exchange: Arc<Exchange>) -> Self {
        Self { body, exchange, rest: Bytes::new(), answer: None }
    }

    /// Counts a large part of the answer.
    fn count(&mut self, bytes: Bytes) -> Bytes {
        let budgets = &self.exchange.budgets;
        // A client may read the answers of a stream as slowly as it likes.
        let limit = matches!(self.exchange.protocol, Protocol::Http).then_some(budgets.limits.write);
        let answer = Arc::new(WatchedAnswer::new(Arc::clone(&self.exchange.watch), limit));
        let lease = budgets.unsent.lease(answer.clone());
        lease.set(bytes.len());
        self.answer = Some(answer);
        Bytes::from_owner(Counted { bytes, _lease: lease, _exchange: Arc::clone(&self.exchange) })
    }

    /// The next piece of the rest.
    fn piece(&mut self) -> Frame<Bytes> {
        if let Some(answer) = &self.answer {
            answer.taken();
        }
        let size = self.rest.len().min(PIECE);
        Frame::data(self.rest.split_to(size))
    }
}

impl Body for Download {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(self.piece())));
        }
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)) else { return Poll::Ready(None) };
        let frame = frame?;
        match frame.into_data() {
            Ok(bytes) => {
                self.exchange.answer();
                if bytes.len() <= PIECE {
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                self.rest = self.count(bytes);
                Poll::Ready(Some(Ok(self.piece())))
            }
            Err(frame) => Poll::Ready(Some(Ok(frame))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut whole = SizeHint::new();
        whole.set_lower(hint.lower() + rest);
        if let Some(upper) = hint.upper() {
            whole.set_upper(upper + rest);
        }
        whole
    }
}
