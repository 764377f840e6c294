//! The body of a request: it counts against the limits of time and bytes for unread bodies.
//!
//! Input: a body from the network. Output: the same body, or an error that ends it early. What must hold: a
//! body that is complete with its first bytes, as small ones over HTTP are, takes neither a timer nor a lock;
//! a client has a limited time for a body, over gRPC for each message and for the end of the call. Only where
//! the handler allows pauses may the client take its time between two messages.

use std::{
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll},
    time::Duration,
};

use axum::BoxError;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use crate::{exchange::Exchange, messages::PartialMessage, protocol::Protocol, upload_error::UploadError};

/// The number of arriving bytes that earn a body one more second.
const BYTES_PER_SECOND: usize = 16 << 10;

/// The body of a request.
pub(crate) struct Upload {
    body: Incoming,
    exchange: Arc<Exchange>,
    /// The number of bytes of the body that have arrived; over gRPC of the message.
    arrived: usize,
    /// Over gRPC: the message that is arriving.
    message: PartialMessage,
    /// The time when the body or message began, or the message before it ended.
    since: Instant,
    timer: Option<Pin<Box<Sleep>>>,
    is_over: bool,
}

impl Upload {
    pub(crate) fn new(body: Incoming, exchange: Arc<Exchange>) -> Self {
        let is_over = body.is_end_stream();
        if is_over {
            exchange.owe_answers(1);
        }
        let message = PartialMessage::default();
        Self { body, exchange, arrived: 0, message, since: Instant::now(), timer: None, is_over }
    }

    fn is_grpc(&self) -> bool {
        matches!(self.exchange.protocol, Protocol::Grpc)
    }

    /// Bytes have arrived.
    fn account_bytes(&mut self, bytes: &Bytes) {
        if self.is_grpc() {
            self.account_messages(bytes);
        } else {
            self.arrived += bytes.len();
            let arrivals = &self.exchange.arrivals;
            let is_whole_at_once = self.body.is_end_stream() && self.arrived == bytes.len();
            if arrivals.are_kept() && !is_whole_at_once {
                arrivals.receive_bytes(&self.exchange.budgets.unread, &[], self.arrived);
            }
        }
        if self.body.is_end_stream() {
            self.finish_body();
        }
    }

    fn account_messages(&mut self, bytes: &Bytes) {
        let is_new = self.message.arrived == 0;
        let ended = self.message.follow(bytes);
        self.arrived = self.message.arrived;
        self.exchange.owe_answers(ended.len());
        self.exchange.arrivals.receive_bytes(&self.exchange.budgets.unread, &ended, self.arrived);
        if is_new || !ended.is_empty() {
            (self.since, self.timer) = (Instant::now(), None);
        }
    }

    fn finish_body(&mut self) {
        if !std::mem::replace(&mut self.is_over, true) && !self.is_grpc() {
            self.exchange.owe_answers(1);
        }
        self.timer = None;
    }

    /// Whether the body must end here, although more of it is expected.
    fn poll_error(&mut self, cx: &mut Context<'_>) -> Poll<UploadError> {
        if self.is_over {
            return Poll::Pending;
        }
        if self.exchange.arrivals.poll_evicted(cx).is_ready() {
            return Poll::Ready(UploadError::NoRoom);
        }
        if self.arrived == 0 && self.exchange.may_pause.load(Relaxed) {
            self.timer = None;
            return Poll::Pending;
        }
        let earned = Duration::from_secs((self.arrived / BYTES_PER_SECOND) as u64);
        let deadline = self.since + self.exchange.budgets.limits.body + earned;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if timer.deadline() != deadline {
            timer.as_mut().reset(deadline);
        }
        timer.as_mut().poll(cx).map(|()| UploadError::TooSlow)
    }
}

impl Drop for Upload {
    /// Over gRPC, the handler has the whole request, or does not want it. Over HTTP it says so itself.
    fn drop(&mut self) {
        if self.is_grpc() {
            self.exchange.arrivals.discard_bytes(&self.exchange.budgets.unread);
        }
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
                    Some(bytes) => self.account_bytes(bytes),
                    None => self.finish_body(),
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error.into()))),
            Poll::Ready(None) => {
                self.finish_body();
                Poll::Ready(None)
            }
            Poll::Pending => self.poll_error(cx).map(|cut| {
                let error = cut.into_error(self.exchange.protocol);
                self.finish_body();
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
