//! A server for tests of connections: the real door before an application of the test.

#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinHandle,
};

use crate::{ClientLimits, Door, Listener, Protocol, Stop};

/// Limits that no test reaches unless it changes one.
pub(crate) const LIMITS: ClientLimits = ClientLimits {
    connections: 100,
    header: Duration::from_secs(30),
    body: Duration::from_secs(30),
    write: Duration::from_secs(30),
    idle: Duration::from_mins(1),
    unread_bytes: 10 << 20,
    unsent_bytes: 10 << 20,
};
/// A request without a body.
pub(crate) const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// A server on a port of its own.
pub(crate) struct Server {
    address: SocketAddr,
    stop: Stop,
    door: Door,
    served: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start(limits: ClientLimits, protocol: Protocol, app: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (door, stop) = (Door::new(limits), Stop::never());
        let (due, opened) = (stop.clone(), door.clone());
        let served = tokio::spawn(async move {
            let serve = async {
                opened.open(Listener::Tcp(listener), protocol, app, due).await;
                opened.close().await;
            };
            tokio::select! {
                () = serve => {}
                never = opened.sweep() => match never {},
            }
        });
        Self { address, stop, door, served }
    }

    /// A connection on which these bytes were sent.
    pub(crate) async fn send(&self, bytes: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(bytes.as_bytes()).await.unwrap();
        stream
    }

    /// The bytes of requests and of answers that count.
    pub(crate) fn counted_bytes(&self) -> [usize; 2] {
        [self.door.budgets.unread.used_bytes(), self.door.budgets.unsent.used_bytes()]
    }

    /// Waits until nothing counts any more.
    pub(crate) async fn until_empty(&self) {
        // The bytes that are to count have not arrived at first.
        tokio::time::sleep(Duration::from_millis(100)).await;
        while self.counted_bytes() != [0, 0] {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Stops the server, and waits until all connections have ended.
    pub(crate) async fn end(self) {
        self.stop.close_now();
        self.served.await.unwrap();
    }
}

/// Holds requests until it is opened.
pub(crate) struct Gate {
    begun: Arc<Semaphore>,
    open: Arc<Semaphore>,
}

impl Gate {
    /// Waits until a request is held.
    pub(crate) async fn begun(&self) {
        self.begun.acquire().await.unwrap().forget();
    }

    pub(crate) fn open(&self) {
        self.open.close();
    }
}

/// An application that answers when its gate is open.
pub(crate) fn held() -> (Router, Gate) {
    let (begun, open) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let gate = Gate { begun: Arc::clone(&begun), open: Arc::clone(&open) };
    let app = Router::new().fallback(move || {
        let (begun, open) = (Arc::clone(&begun), Arc::clone(&open));
        async move {
            begun.add_permits(1);
            // It ends with an error when the gate is opened.
            drop(open.acquire().await);
            "answered"
        }
    });
    (app, gate)
}
