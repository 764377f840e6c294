//! The body of an answer: how long it may wait for its client, and how much of all answers waits.
//!
//! Input: a handler's answer. Output: the same bytes, in pieces if there are many, which count as long as any of them is
//! not sent. What must hold: a small answer costs neither a copy nor a lock; the bytes of a large one count until the
//! socket took them, also after the last piece was handed over.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::body::Body as AnyBody;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::{Speech, budget::Lease, exchange::Exchange, watch::Answer};

/// Larger answers are handed over in pieces of this size, so that it shows whether they are taken. Two of them fill the
/// buffer of a connection.
const PIECE: usize = 64 << 10;

/// The body of an answer.
pub(super) struct Download {
    body: AnyBody,
    exchange: Arc<Exchange>,
    /// What is left of a large part of it.
    rest: Bytes,
    answer: Option<Arc<Answer>>,
}

/// Bytes that count until the last piece of them is sent.
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
    pub(super) fn new(body: AnyBody, exchange: Arc<Exchange>) -> Self {
        Self { body, exchange, rest: Bytes::new(), answer: None }
    }

    /// Counts a large part of the answer.
    fn count(&mut self, bytes: Bytes) -> Bytes {
        let budgets = &self.exchange.budgets;
        // A client may read the answers of a stream as slowly as it likes.
        let limit = matches!(self.exchange.speech, Speech::Http).then_some(budgets.limits.write);
        let answer = Arc::new(Answer::new(Arc::clone(&self.exchange.watch), limit));
        let lease = budgets.unsent.lease(answer.clone());
        lease.set(bytes.len());
        self.answer = Some(answer);
        Bytes::from_owner(Counted { bytes, _lease: lease, _exchange: Arc::clone(&self.exchange) })
    }

    /// The next piece of what is left.
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
