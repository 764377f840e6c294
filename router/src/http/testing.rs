//! A server for tests of HTTP, and a client that sends any bytes.
//!
//! Input: flags. Output: a [`Server`] to send requests to, which answers as `crate::testing` says.

#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use std::{net::SocketAddr, time::Duration};

use serde_json::json;
use text_embeddings_door::Listener;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::{
    serve::Ended,
    telemetry::traces::Traces,
    testing::{Control, Running},
    transports::Listeners,
};

/// The body of an error on `OpenAI`'s routes.
pub(crate) fn openai_error(message: &str, code: u16, kind: &str) -> String {
    let error = format!(r#"{{"message":"{message}","type":"{kind}","param":null,"code":{code}}}"#);
    format!(r#"{{"message":"{message}","code":{code},"type":"{kind}","error":{error},"detail":"{message}"}}"#)
}

/// A server on a port of its own.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) control: Control,
    running: Running,
}

/// An answer as it came over the wire.
#[derive(Debug)]
pub(crate) struct WireAnswer {
    pub(crate) status: u16,
    pub(crate) head: String,
    /// The body as text, if it is text.
    pub(crate) body: String,
    /// The body as it came.
    pub(crate) bytes: Vec<u8>,
}

impl WireAnswer {
    fn parse(answer: &[u8]) -> Self {
        const END: &[u8] = b"\r\n\r\n";
        let end = answer.windows(END.len()).position(|window| window == END);
        let (head, bytes) = end.map_or((answer, &[][..]), |end| (&answer[..end], &answer[end + END.len()..]));
        let head = String::from_utf8(head.to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap_or_default().parse().unwrap_or_default();
        let body = String::from_utf8_lossy(bytes).into_owned();
        Self { status, head: head.to_lowercase(), body, bytes: bytes.to_vec() }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| *key == name).map(|(_, value)| value)
    }
}

impl Server {
    /// The exporter of the server's spans.
    pub(crate) fn traces(&self) -> Traces {
        self.running.traces.clone()
    }

    pub(crate) async fn start() -> Self {
        Self::start_with("").await
    }

    /// Starts a server with further flags.
    pub(crate) async fn start_with(flags: &str) -> Self {
        Self::start_draining(flags, Duration::from_secs(30)).await
    }

    /// Starts a server that waits no longer than `drain` for requests in flight.
    pub(crate) async fn start_draining(flags: &str, drain: Duration) -> Self {
        Self::start_beside(flags, None, drain).await
    }

    /// Starts a server that also serves gRPC, on `second`.
    pub(crate) async fn start_beside(flags: &str, second: Option<TcpListener>, drain: Duration) -> Self {
        let first = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = first.local_addr().unwrap();
        let running = Running::start(
            flags,
            Listeners { first: Listener::Tcp(first), second: second.map(Listener::Tcp), socket: None },
            drain,
        );
        Self { address, control: running.control.clone(), running }
    }

    async fn exchange(&self, request: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        answer
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        body: &[u8],
        headers: &[(&str, &str)],
    ) -> WireAnswer {
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n");
        for (name, value) in headers {
            request.extend([name, ": ", value, "\r\n"]);
        }
        request.extend(["Content-Length: ", &body.len().to_string(), "\r\n\r\n"]);
        WireAnswer::parse(&self.exchange(&[request.as_bytes(), body].concat()).await)
    }

    pub(crate) async fn get(&self, path: &str) -> WireAnswer {
        self.send("GET", path, b"", &[]).await
    }

    pub(crate) async fn post(&self, path: &str, body: &str, headers: &[(&str, &str)]) -> WireAnswer {
        self.send("POST", path, body.as_bytes(), &[&[("Content-Type", "application/json")], headers].concat())
            .await
    }

    pub(crate) async fn rerank(&self, query: &str, texts: &[&str]) -> WireAnswer {
        self.post("/rerank", &json!({ "query": query, "texts": texts }).to_string(), &[]).await
    }

    /// Asks the server to stop.
    pub(crate) fn stop(&mut self) {
        self.running.stop();
    }

    /// Waits until the server has stopped, and says why it did.
    pub(crate) async fn ended(&mut self) -> Ended {
        self.running.ended().await
    }
}
