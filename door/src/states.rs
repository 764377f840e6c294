//! A client that stops in any state between connecting and its last byte, and its end.
//!
//! What must hold: each state has a deadline or keeps nothing, and once it is over no byte counts any more.

#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use std::time::{Duration, Instant};

use axum::{Extension, Router, body::Body, http::Request, routing::any};
use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    Account, ClientLimits, Protocol,
    testing::{LIMITS, Server},
};

/// The state in which a client stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoppedIn {
    /// It has connected.
    Connected,
    /// It has sent a part of a head.
    Head,
    /// It has sent a part of a second head, after a request that has the first bytes of HTTP/2 in it.
    SecondHead,
    /// It has sent a part of a body.
    Body,
    /// It has sent a part of a body that the server reads and throws away.
    DiscardedBody,
    /// It takes nothing of a large answer.
    LargeAnswer,
    /// It takes nothing of a small answer over HTTP/2.
    SmallAnswer,
    /// It has begun a call of gRPC and sent no message.
    Call,
    /// It has sent a part of a message.
    Message,
    /// It has sent a message and does not end the call.
    End,
    /// It takes nothing of the answer to a call.
    CallAnswer,
    /// It has its answer, and sends no other request.
    Idle,
}

const STATES: [StoppedIn; 12] = [
    StoppedIn::Connected,
    StoppedIn::Head,
    StoppedIn::SecondHead,
    StoppedIn::Body,
    StoppedIn::DiscardedBody,
    StoppedIn::LargeAnswer,
    StoppedIn::SmallAnswer,
    StoppedIn::Call,
    StoppedIn::Message,
    StoppedIn::End,
    StoppedIn::CallAnswer,
    StoppedIn::Idle,
];

const SHORT: Duration = Duration::from_millis(300);
/// More than the buffers of two sockets hold.
const LARGE: usize = 16 << 20;

/// Short times for everything. The time of the state ends it.
fn short_limits() -> ClientLimits {
    ClientLimits { header: SHORT, body: SHORT, write: SHORT, unsent_bytes: 2 * LARGE, ..LIMITS }
}

/// Keeps a body until it has arrived, then answers with as many bytes as its path says.
async fn keep_body(account: Extension<Account>, request: Request<Body>) -> Bytes {
    let kept = account.keep_body();
    let size = request.uri().path().trim_start_matches("/keep/").parse().unwrap();
    let _ = request.into_body().collect().await;
    drop(kept);
    Bytes::from(vec![b'a'; size])
}

fn test_app() -> Router {
    Router::new()
        .route("/keep/{size}", any(keep_body))
        .route("/discard", any(discard_body))
        .route("/pause", any(pause_call))
}

async fn discard_body(request: Request<Body>) {
    let _ = request.into_body().collect().await;
}

async fn pause_call(account: Extension<Account>, request: Request<Body>) {
    account.allow_pauses();
    let mut body = request.into_body();
    while let Some(Ok(frame)) = body.frame().await {
        if frame.is_data() {
            account.release_message();
        }
    }
}

/// A client over HTTP/2 that takes no byte of an answer.
async fn http2_client(stream: TcpStream) -> h2::client::SendRequest<Bytes> {
    let (client, connection) =
        h2::client::Builder::new().initial_window_size(0).handshake(stream).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    client.ready().await.unwrap()
}

/// A message of gRPC with `length` bytes.
fn grpc_message(length: u32) -> Bytes {
    let mut bytes = vec![0];
    bytes.extend(length.to_be_bytes());
    bytes.resize(5 + length as usize, b'm');
    bytes.into()
}

/// Brings a client into the state, and waits until the server ends it.
async fn stop_in(state: StoppedIn, server: &Server) {
    match state {
        StoppedIn::Connected => until_closed(server.send("").await).await,
        StoppedIn::Head => until_closed(server.send("POST /discard HTTP").await).await,
        StoppedIn::SecondHead => {
            let head = "POST /discard HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\nX: ";
            let mut stream = server.send(head).await;
            tokio::time::sleep(SHORT / 6).await;
            // The end of the head and the body are the bytes with which HTTP/2 begins.
            stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
            read_head(&mut stream).await;
            stream.write_all(b"GET / HT").await.unwrap();
            until_closed(stream).await;
        }
        StoppedIn::Body => until_closed(server.send(&half_post("/keep/1")).await).await,
        StoppedIn::DiscardedBody => until_closed(server.send(&half_post("/discard")).await).await,
        StoppedIn::LargeAnswer => {
            let stream = server.send(&format!("GET /keep/{LARGE} HTTP/1.1\r\nHost: a\r\n\r\n")).await;
            // It is read only when the server has closed the connection.
            server.until_empty().await;
            until_closed(stream).await;
        }
        StoppedIn::SmallAnswer => until_call_ends(server, "/keep/1000", None, true).await,
        StoppedIn::Call => until_call_ends(server, "/keep/1", None, false).await,
        StoppedIn::Message => {
            until_call_ends(server, "/keep/1", Some(grpc_message(1000).slice(..500)), false).await;
        }
        StoppedIn::End => until_call_ends(server, "/keep/1", Some(grpc_message(1000)), false).await,
        StoppedIn::CallAnswer => until_call_ends(server, "/keep/1000", Some(grpc_message(10)), true).await,
        StoppedIn::Idle => {
            let mut stream = server.send("GET /discard HTTP/1.1\r\nHost: a\r\n\r\n").await;
            read_head(&mut stream).await;
            until_closed(stream).await;
        }
    }
}

fn half_post(path: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{}", "b".repeat(500))
}

async fn read_head(stream: &mut TcpStream) {
    let mut start = [0; 12];
    stream.read_exact(&mut start).await.unwrap();
    assert_eq!(&start, b"HTTP/1.1 200");
}

async fn until_closed(mut stream: TcpStream) {
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

/// Begins a call, sends a part of its body, and waits until the server ends it.
async fn until_call_ends(server: &Server, path: &str, part: Option<Bytes>, is_ended: bool) {
    let mut client = http2_client(server.send("").await).await;
    let request = Request::post(format!("http://a{path}")).body(()).unwrap();
    let (answer, mut body) = client.send_request(request, is_ended && part.is_none()).unwrap();
    if let Some(part) = part {
        body.send_data(part, is_ended).unwrap();
    }
    if let Ok(answer) = answer.await {
        let mut body = answer.into_body();
        while let Some(Ok(_)) = body.data().await {}
    }
}

#[tokio::test]
async fn whatever_state_a_client_stops_in_it_is_ended_and_nothing_counts_any_more() {
    for state in STATES {
        let protocol = match state {
            StoppedIn::Call | StoppedIn::Message | StoppedIn::End | StoppedIn::CallAnswer => Protocol::Grpc,
            _ => Protocol::Http,
        };
        let idle = if state == StoppedIn::Idle { SHORT } else { LIMITS.idle };
        let server = Server::start(ClientLimits { idle, ..short_limits() }, protocol, test_app()).await;
        let start = Instant::now();
        let ended = tokio::time::timeout(10 * SHORT, stop_in(state, &server)).await;
        assert!(ended.is_ok(), "{state:?} does not end");
        assert!(start.elapsed() >= SHORT, "{state:?} ends at once");
        tokio::time::timeout(10 * SHORT, server.until_empty()).await.unwrap();
    }
}

#[tokio::test]
async fn what_a_state_keeps_counts() {
    for (state, unread, unsent) in [
        (StoppedIn::Body, 500, 0),
        (StoppedIn::DiscardedBody, 0, 0),
        (StoppedIn::LargeAnswer, 0, LARGE),
        (StoppedIn::SmallAnswer, 0, 1000),
        (StoppedIn::Message, 500, 0),
        (StoppedIn::End, 1005 + 1024, 0),
        (StoppedIn::CallAnswer, 0, 1000),
    ] {
        let protocol = match state {
            StoppedIn::Message | StoppedIn::End | StoppedIn::CallAnswer => Protocol::Grpc,
            _ => Protocol::Http,
        };
        let server =
            Server::start(ClientLimits { unsent_bytes: 2 * LARGE, ..LIMITS }, protocol, test_app()).await;
        let counted = async {
            while server.counted_bytes() != [unread, unsent] {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            () = stop_in(state, &server) => unreachable!("{state:?} ends"),
            counted = tokio::time::timeout(Duration::from_secs(5), counted) => {
                assert!(counted.is_ok(), "{state:?} counts as {:?}", server.counted_bytes());
            }
        }
    }
}

#[tokio::test]
async fn a_call_that_may_pause_lasts_and_keeps_nothing() {
    let server = Server::start(short_limits(), Protocol::Grpc, test_app()).await;
    let mut client = http2_client(server.send("").await).await;
    let request = Request::post("http://a/pause").body(()).unwrap();
    let (answer, mut body) = client.send_request(request, false).unwrap();
    for _ in 0..3 {
        body.send_data(grpc_message(1000), false).unwrap();
        tokio::time::sleep(2 * SHORT).await;
        assert_eq!(server.counted_bytes(), [0, 0]);
    }
    body.send_data(Bytes::new(), true).unwrap();
    assert_eq!(answer.await.unwrap().status(), 200);
}

#[tokio::test]
async fn where_there_is_no_room_the_oldest_call_goes() {
    let limits = ClientLimits { unread_bytes: 10_000, ..LIMITS };
    let server = Server::start(limits, Protocol::Grpc, test_app()).await;
    let mut ended = Vec::new();
    for _ in 0..6 {
        let server = &server;
        ended.push(Box::pin(async move {
            until_call_ends(server, "/keep/1", Some(grpc_message(1000)), false).await;
        }));
    }
    let all = futures_util::future::join_all(ended);
    // Four calls of 2029 bytes fit.
    assert!(tokio::time::timeout(SHORT, all).await.is_err());
    assert_eq!(server.counted_bytes()[0], 4 * 2029);
}
