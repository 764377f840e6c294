//! The door: it accepts every connection of every port, and ends it.
//!
//! Input: listeners, and the service that answers requests. Output: none, until the server ends. What must
//! hold: whatever clients do, the process holds a bounded number of connections, of bytes of unfinished
//! requests and of bytes of unread answers; a client that stops in the middle of anything is disconnected
//! after a while; if there is no place for a new client, a client that only waits is disconnected.

mod answer;
mod arrivals;
mod budget;
mod download;
mod exchange;
mod files;
mod limits;
mod lock;
mod messages;
mod places;
mod ports;
mod protocol;
mod socket;
#[cfg(test)]
mod states;
mod stop;
#[cfg(test)]
mod testing;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;
mod upload;
mod upload_error;
mod watch;

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use axum::{Router, body::Body, extract::Request, http::Version, response::Response};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use tokio::sync::Semaphore;
use tower_service::Service;

use self::{
    budget::Budgets,
    download::Download,
    exchange::Exchange,
    limits::{BUFFER, GRPC_STREAMS, HEADER_LIST, OPEN_REQUEST},
    places::{ConnectionAdmission, ConnectionPlace, ConnectionPlaces},
    socket::{Socket, Watched},
    upload::Upload,
    watch::{Clock, Watch},
};

pub use self::{
    exchange::{Account, HeldAnswer, KeptBody},
    files::{read_small_file, read_small_text},
    limits::ClientLimits,
    ports::{Reserved, ReservedPath, SocketFile, reserve_path, reserve_port},
    protocol::Protocol,
    socket::Listener,
    stop::Stop,
    tls::Certificate,
    upload_error::UploadError,
};

/// The shortest and the longest time between two checks of all connections.
const TICKS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// The bytes of a stream that a client may send before they are read.
const STREAM_WINDOW: u32 = 64 << 10;
/// The same for all streams of a connection over HTTP.
const CONNECTION_WINDOW: u32 = 1 << 20;
/// The same over gRPC, where many calls of a connection wait at a time. The HTTP/2 library ends a connection
/// when the bookkeeping of unread small messages (256 bytes each) takes more than half of this. So fifteen
/// streams may fill their windows with messages of ten bytes.
const GRPC_CONNECTION_WINDOW: u32 = 32 << 20;
/// The most requests of a connection at a time. Clients hold further ones back.
const STREAMS: u32 = 100;
/// The memory of a header in addition to its name and value.
const HEADER: usize = 128;
/// The time between two pings of a quiet client over HTTP/2, and the time for its reply.
const PING: (Duration, Duration) = (Duration::from_mins(1), Duration::from_secs(20));
/// The most connections at a time that get the message that there is no place, and the time for it.
const REFUSALS: usize = 16;
const REFUSAL: Duration = Duration::from_millis(500);
/// The message for them.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
    retry-after: 1\r\ncontent-length: 127\r\nconnection: close\r\n\r\n\
    {\"error\":\"every connection of this server is in use: come back later, or raise `--max-connections`\",\
    \"error_type\":\"Overloaded\"}\n";

/// The state that all connections share. Cheap to clone.
#[derive(Clone)]
pub struct Door {
    clock: Clock,
    places: Arc<ConnectionPlaces>,
    budgets: Arc<Budgets>,
    refusals: Arc<Semaphore>,
}

/// The connections and bytes that the clients of a door hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldNow {
    /// Connections.
    pub connections: usize,
    /// Bytes of requests that no permit covers yet.
    pub unread_bytes: usize,
    /// Bytes of answers that are not read yet.
    pub unsent_bytes: usize,
}

impl Door {
    /// A door with these limits.
    pub fn new(limits: ClientLimits) -> Self {
        let clock = Clock::new();
        Self {
            clock,
            places: Arc::new(ConnectionPlaces::new(clock, limits.clone())),
            budgets: Arc::new(Budgets::new(limits)),
            refusals: Arc::new(Semaphore::new(REFUSALS)),
        }
    }

    /// The connections and bytes that its clients hold now.
    pub fn held_now(&self) -> HeldNow {
        HeldNow {
            connections: self.places.count_taken(),
            unread_bytes: self.budgets.unread.used_bytes(),
            unsent_bytes: self.budgets.unsent.used_bytes(),
        }
    }

    /// Checks all connections at intervals, for ever, and closes those whose time is up.
    pub async fn sweep(&self) -> Infallible {
        let limits = &self.budgets.limits;
        let shortest = limits.header.min(limits.write).min(limits.idle);
        let mut ticks = tokio::time::interval((shortest / 8).clamp(TICKS.0, TICKS.1));
        loop {
            ticks.tick().await;
            let now = self.clock.now();
            self.places.evict_overdue(now);
            self.budgets.unsent.evict_overdue(now);
        }
    }

    /// Accepts clients of `listener`, whom `app` answers, until `stop` is due.
    pub async fn open(&self, listener: Listener, protocol: Protocol, app: Router, stop: Stop) {
        let builder = Arc::new(http_builder(protocol));
        let mut due = std::pin::pin!(stop.clone().due());
        loop {
            let socket = tokio::select! {
                socket = listener.accept(|| self.places.make_way()) => socket,
                () = &mut due => return,
            };
            let Some(place) = self.find_place().await else {
                self.refuse_client(socket, &listener, protocol);
                continue;
            };
            let connection = Connection {
                place,
                budgets: Arc::clone(&self.budgets),
                app: app.clone(),
                protocol,
                builder: Arc::clone(&builder),
            };
            let certificate = listener.certificate().cloned();
            tokio::spawn(connection.serve_client(socket, certificate, stop.clone()));
        }
    }

    /// A place, as soon as there is one. `None` if all places have clients that wait for the server.
    async fn find_place(&self) -> Option<ConnectionPlace> {
        loop {
            match self.places.take_place() {
                ConnectionAdmission::Taken(place) => return Some(place),
                ConnectionAdmission::Soon(wait) => tokio::time::sleep(wait).await,
                ConnectionAdmission::None => return None,
            }
        }
    }

    /// Waits until all connections have ended. Those without a request are closed.
    pub async fn close(&self) {
        self.places.close_idle();
        self.places.until_empty().await;
    }

    /// Tells a client that there is no place, if its protocol allows that before it has sent anything.
    fn refuse_client(&self, socket: Socket, listener: &Listener, protocol: Protocol) {
        tracing::warn!("a connection is refused: all {} are in use", self.budgets.limits.connections);
        let can_be_told = protocol == Protocol::Http && listener.certificate().is_none();
        if let (true, Ok(refusal)) = (can_be_told, Arc::clone(&self.refusals).try_acquire_owned()) {
            tokio::spawn(async move {
                socket.refuse_client(FULL, REFUSAL).await;
                drop(refusal);
            });
        }
    }
}

fn http_builder(protocol: Protocol) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(BUFFER);
    let (streams, window) = match protocol {
        Protocol::Http => (STREAMS, CONNECTION_WINDOW),
        Protocol::Grpc => (GRPC_STREAMS, GRPC_CONNECTION_WINDOW),
    };
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(streams)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(window)
        .max_header_list_size(HEADER_LIST)
        .keep_alive_interval(PING.0)
        .keep_alive_timeout(PING.1);
    match protocol {
        Protocol::Http => builder,
        Protocol::Grpc => builder.http2_only(),
    }
}

/// A connection with its place.
struct Connection {
    place: ConnectionPlace,
    budgets: Arc<Budgets>,
    app: Router,
    protocol: Protocol,
    builder: Arc<Builder<TokioExecutor>>,
}

impl Connection {
    /// Serves the connection until it ends, or until it is evicted.
    async fn serve_client(self, socket: Socket, certificate: Option<Certificate>, stop: Stop) {
        let watch = Arc::clone(&self.place.watch);
        tokio::select! {
            () = self.answer_requests(socket, certificate, stop) => {}
            () = watch.until_evicted() => {}
        }
    }

    async fn answer_requests(&self, socket: Socket, certificate: Option<Certificate>, stop: Stop) {
        let socket = match (certificate, socket) {
            (Some(certificate), Socket::Tcp(stream)) => {
                match certificate.accept(stream, self.protocol).await {
                    Ok(stream) => Socket::Tls(Box::new(stream)),
                    Err(error) => return tracing::debug!("a client does not agree on TLS: {error}"),
                }
            }
            (_, socket) => socket,
        };
        let watched = Watched { socket, watch: Arc::clone(&self.place.watch) };
        let answers = ConnectionService {
            app: self.app.clone(),
            places: Arc::clone(&self.place.places),
            watch: Arc::clone(&self.place.watch),
            budgets: Arc::clone(&self.budgets),
            protocol: self.protocol,
        };
        let mut connection = std::pin::pin!(self.builder.serve_connection(TokioIo::new(watched), answers));
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = stop.due() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!("a connection ended early: {error}");
        }
    }
}

/// The service that answers the requests of a connection.
struct ConnectionService {
    app: Router,
    places: Arc<ConnectionPlaces>,
    watch: Arc<Watch>,
    budgets: Arc<Budgets>,
    protocol: Protocol,
}

impl hyper::service::Service<Request<Incoming>> for ConnectionService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let is_multiplexed = request.version() == Version::HTTP_2;
        let bytes = if is_multiplexed { bytes_while_open(&request) } else { 0 };
        let exchange =
            Exchange::begin_exchange(&self.watch, &self.budgets, self.protocol, is_multiplexed, bytes);
        if is_multiplexed {
            self.places.close_largest(self.budgets.open_bytes.load(Relaxed));
        }
        let account = Account::new(&exchange);
        let mut request = request.map(|body| Body::new(Upload::new(body, Arc::clone(&exchange))));
        request.extensions_mut().insert(account);
        let answer = self.app.clone().call(request);
        Box::pin(async move {
            let (head, body) = answer.await?.into_parts();
            let mut body = Download::new(body, exchange);
            if is_multiplexed {
                body.count_first().await;
            }
            Ok(Response::from_parts(head, Body::new(body)))
        })
    }
}

/// The memory of a request over HTTP/2 until its answer has ended, without both bodies.
fn bytes_while_open(request: &Request<Incoming>) -> usize {
    let headers = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + HEADER);
    OPEN_REQUEST + headers.sum::<usize>()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::testing::{GET, LIMITS, Server, held};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
    };

    async fn read(stream: &mut TcpStream) -> String {
        let mut answer = Vec::new();
        // A connection that is refused while its client is still sending may end with a reset.
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    }

    #[test]
    fn the_refusal_is_an_answer() {
        let (head, body) = std::str::from_utf8(FULL).unwrap().split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("\r\ncontent-length: {}\r\n", body.len())), "{}", body.len());
        assert!(serde_json::from_str::<serde_json::Value>(body).unwrap().is_object());
    }

    #[tokio::test]
    async fn who_finds_no_place_is_told_and_those_who_work_go_on() {
        let (app, gate) = held();
        let server = Server::start(ClientLimits { connections: 1, ..LIMITS }, Protocol::Http, app).await;
        let mut working = server.send(&GET.replace("Host: a", "Host: a\r\nConnection: close")).await;
        gate.begun().await;
        let refused = read(&mut server.send(GET).await).await;
        assert!(
            refused.starts_with("HTTP/1.1 503") && refused.contains("\r\nretry-after: 1\r\n"),
            "{refused}"
        );
        assert!(refused.contains("`--max-connections`"), "{refused}");
        gate.open();
        assert!(read(&mut working).await.starts_with("HTTP/1.1 200"));
        let mut next = server.send(GET).await;
        let mut start = [0; 12];
        next.read_exact(&mut start).await.unwrap();
        assert_eq!(&start, b"HTTP/1.1 200");
    }

    #[tokio::test]
    async fn half_a_head_does_not_hold_the_end_up() {
        let (app, gate) = held();
        gate.open();
        let server = Server::start(LIMITS, Protocol::Http, app).await;
        let mut half = server.send("POST / HTTP/1.1\r\n").await;
        let mut idle = server.send(GET).await;
        let mut start = [0; 12];
        idle.read_exact(&mut start).await.unwrap();
        assert_eq!(&start, b"HTTP/1.1 200");
        let start = std::time::Instant::now();
        server.end().await;
        assert!(start.elapsed() < Duration::from_secs(10), "not the head's time");
        half.write_all(b"").await.unwrap();
        read(&mut half).await;
        read(&mut idle).await;
    }
}
