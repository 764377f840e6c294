//! A server for tests of gRPC.
//!
//! Input: flags. Output: a [`Server`] with a channel to it, which answers as `crate::testing` says.

#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use std::{fmt::Debug, net::SocketAddr, time::Duration};

use futures_util::{Stream, StreamExt, stream};
use text_embeddings_door::Listener;
use tokio::net::TcpListener;
use tonic::{
    Code, Response, Status, Streaming,
    transport::{Channel, Endpoint},
};

use crate::{
    testing::{Control, Running},
    transports::Listeners,
};

/// A server on ports of its own.
pub(crate) struct Server {
    /// The address of gRPC.
    pub(crate) address: SocketAddr,
    /// A connection to gRPC.
    pub(crate) channel: Channel,
    pub(crate) control: Control,
    pub(crate) running: Running,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::start_with("").await
    }

    /// Starts a server with further flags.
    pub(crate) async fn start_with(flags: &str) -> Self {
        Self::start_draining(flags, Duration::from_secs(30)).await
    }

    /// Starts a server that waits no longer than `drain` for calls in flight.
    pub(crate) async fn start_draining(flags: &str, drain: Duration) -> Self {
        let first = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let second = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = second.local_addr().unwrap();
        let running = Running::start(
            flags,
            Listeners { first: Listener::Tcp(first), second: Some(Listener::Tcp(second)), socket: None },
            drain,
        );
        let control = running.control.clone();
        Self { address, channel: connect(address), control, running }
    }
}

/// A new connection.
pub(crate) fn connect(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy()
}

/// The code and the message of a call that failed.
pub(crate) fn refusal<T: Debug>(result: Result<Response<T>, Status>) -> (Code, String) {
    let status = result.unwrap_err();
    (status.code(), status.message().to_owned())
}

/// A client's messages.
pub(crate) fn messages<Q: Send + 'static>(messages: Vec<Q>) -> impl Stream<Item = Q> + Send + 'static {
    stream::iter(messages)
}

/// All answers of a stream, and the status it ended with if that was an error.
pub(crate) async fn read<A>(
    answers: Result<Response<Streaming<A>>, Status>,
) -> (Vec<A>, Option<(Code, String)>) {
    let mut answers = answers.unwrap().into_inner();
    let mut read = Vec::new();
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(answer) => read.push(answer),
            Err(status) => return (read, Some((status.code(), status.message().to_owned()))),
        }
    }
    (read, None)
}
