//! Listeners, and the bytes of a connection.
//!
//! Input: a port or a Unix socket. Output: [`Socket`]s, and [`Watched`] ones that report what they read and
//! write. What must hold: an accept that fails is tried again; small answers are sent at once.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
};

use crate::{
    ports::SocketFile,
    tls::{Certificate, TlsStream},
    watch::Watch,
};

/// The time to wait when the system has no descriptor left. Others may be closed by then.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// A source of connections.
pub enum Listener {
    /// A port.
    Tcp(TcpListener),
    /// A port whose connections are encrypted.
    Tls(TcpListener, Certificate),
    /// A Unix socket.
    Unix(UnixListener, SocketFile),
}

impl Listener {
    /// The next connection, not encrypted yet. `make_way` is called if the system has no descriptor for it.
    pub(crate) async fn accept(&self, make_way: impl Fn()) -> Socket {
        loop {
            let accepted = match self {
                Self::Tcp(listener) | Self::Tls(listener, _) => listener.accept().await.map(|(stream, _)| {
                    // Without this, small answers would wait for more bytes to send.
                    let _ = stream.set_nodelay(true);
                    Socket::Tcp(stream)
                }),
                Self::Unix(listener, _) => listener.accept().await.map(|(stream, _)| Socket::Unix(stream)),
            };
            match accepted {
                Ok(socket) => return socket,
                // The client has disconnected already.
                Err(error) if is_of_client(&error) => {}
                Err(error) => {
                    tracing::error!("a connection cannot be accepted ({error}): trying again");
                    make_way();
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }

    /// The certificate for its connections, if they are encrypted.
    pub(crate) fn certificate(&self) -> Option<&Certificate> {
        match self {
            Self::Tls(_, certificate) => Some(certificate),
            Self::Tcp(_) | Self::Unix(..) => None,
        }
    }
}

fn is_of_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// The bytes of a connection.
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream>),
}

impl Socket {
    /// Sends `words`, then reads for a moment, so that a client that is still sending can read them.
    pub(crate) async fn refuse_client(mut self, words: &[u8], patience: Duration) {
        let said = async {
            self.write_all(words).await?;
            self.shutdown().await?;
            let mut rest = [0; 1024];
            while tokio::io::AsyncReadExt::read(&mut self, &mut rest).await? > 0 {}
            io::Result::Ok(())
        };
        // It does not matter if the client is gone.
        let _ = tokio::time::timeout(patience, said).await;
    }
}

/// Calls a method of the socket inside.
macro_rules! each {
    ($socket:expr, $stream:ident => $call:expr) => {
        match $socket {
            Socket::Tcp($stream) => $call,
            Socket::Unix($stream) => $call,
            Socket::Tls($stream) => $call,
        }
    };
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_read(cx, buffer))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_write_vectored(cx, parts))
    }

    fn is_write_vectored(&self) -> bool {
        each!(self, stream => stream.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_shutdown(cx))
    }
}

/// A socket that reports what it reads and writes.
pub(crate) struct Watched {
    pub(crate) socket: Socket,
    pub(crate) watch: Arc<Watch>,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(cx, buffer))?;
        let received = &buffer.filled()[before..];
        if !received.is_empty() {
            self.watch.note_received(received);
        }
        Poll::Ready(Ok(()))
    }
}

impl Watched {
    fn report_write<T>(&self, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.watch.note_written(outcome.is_ready());
        outcome
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.report_write(outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.socket).poll_write_vectored(cx, parts);
        self.report_write(outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.socket).poll_flush(cx);
        // Without TLS no bytes are buffered here, and a flush does not show whether the client reads.
        if matches!(self.socket, Socket::Tls(_)) { self.report_write(outcome) } else { outcome }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.socket).poll_shutdown(cx);
        self.report_write(outcome)
    }
}
