//! The body of an answer: it counts against the limits of time and bytes for unread answers.
//!
//! Input: a handler's answer. Output: the same bytes. Large answers come in pieces, and count until the last
//! piece is sent. What must hold: the bytes count until the socket has taken them, also after the last piece
//! was handed over. Only a small answer over HTTP/1.1 takes neither a copy nor a lock: the socket takes it at
//! once, or shows that its client does not read.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::body::Body as AnyBody;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::{
    exchange::{Exchange, HeldAnswer},
    messages::PartialMessage,
    protocol::Protocol,
};

/// Larger answers are handed over in pieces of this many bytes, which shows whether the client takes them.
/// Two pieces fill the buffer of a connection.
const PIECE: usize = 64 << 10;

/// The body of an answer.
pub(crate) struct Download {
    body: AnyBody,
    exchange: Arc<Exchange>,
    /// The rest of a part that is counted.
    rest: Bytes,
    /// A frame that was polled early and is not counted, or the body's end.
    early: Poll<Option<Result<Frame<Bytes>, axum::Error>>>,
    /// Over gRPC: the message that the next bytes belong to.
    message: PartialMessage,
}

/// Bytes that count until their last piece is sent.
struct Counted {
    bytes: Bytes,
    _held: HeldAnswer,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Download {
    pub(crate) fn new(body: AnyBody, exchange: Arc<Exchange>) -> Self {
        Self { body, exchange, rest: Bytes::new(), early: Poll::Pending, message: PartialMessage::default() }
    }

    /// Takes the first part of the answer if it is there already. Over HTTP/2, the connection asks for it
    /// only when the client takes something, and until then it would not count.
    pub(crate) async fn count_first(&mut self) {
        poll_fn(|cx| {
            if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
                match frame.map(|frame| frame.map(Frame::into_data)) {
                    Some(Ok(Ok(bytes))) if !bytes.is_empty() => self.take_part(bytes),
                    Some(Ok(Ok(bytes))) => self.early = Poll::Ready(Some(Ok(Frame::data(bytes)))),
                    Some(Ok(Err(frame))) => self.early = Poll::Ready(Some(Ok(frame))),
                    Some(Err(error)) => self.early = Poll::Ready(Some(Err(error))),
                    None => self.early = Poll::Ready(None),
                }
            }
            Poll::Ready(())
        })
        .await;
    }

    /// Keeps a part of the answer, which counts until it is sent.
    fn take_part(&mut self, bytes: Bytes) {
        self.settle_answered(&bytes);
        let held = HeldAnswer::new(&self.exchange, bytes.len());
        self.rest = Bytes::from_owner(Counted { bytes, _held: held });
    }

    /// Notes which messages are answered. Over HTTP an answer is one message.
    fn settle_answered(&mut self, bytes: &Bytes) {
        let answered = match self.exchange.protocol {
            Protocol::Http => 1,
            Protocol::Grpc => self.message.follow(bytes).len(),
        };
        self.exchange.settle_messages(answered);
    }

    /// The next piece of the rest.
    fn next_piece(&mut self) -> Frame<Bytes> {
        self.exchange.answer.take_part();
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
            return Poll::Ready(Some(Ok(self.next_piece())));
        }
        if self.early.is_ready() {
            return std::mem::replace(&mut self.early, Poll::Pending);
        }
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)) else { return Poll::Ready(None) };
        match frame?.into_data() {
            Ok(bytes) if bytes.len() > PIECE || (self.exchange.is_multiplexed && !bytes.is_empty()) => {
                self.take_part(bytes);
                Poll::Ready(Some(Ok(self.next_piece())))
            }
            Ok(bytes) => {
                self.settle_answered(&bytes);
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Err(frame) => Poll::Ready(Some(Ok(frame))),
        }
    }

    fn is_end_stream(&self) -> bool {
        let is_ended = match &self.early {
            Poll::Ready(frame) => frame.is_none(),
            Poll::Pending => self.body.is_end_stream(),
        };
        self.rest.is_empty() && is_ended
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
