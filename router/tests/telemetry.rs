//! The binary's log and traces: lines without secrets, JSON lines, and a collector that is down.
#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
    trace_service_server::{TraceService, TraceServiceServer},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tonic::{
    Request, Response, Status,
    body::Body,
    codegen::Service,
    transport::{Endpoint, Server as Grpc, server::TcpIncoming},
};

const MODEL: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../integration_tests/reference/fixtures/models/tied-bf16");
/// Everything but a tokenizer's steps, which take a line for each character.
const LEVEL: &str = "trace,tokenizers=debug";
const PATIENCE: Duration = Duration::from_mins(1);
const BODY: &str = r#"{"query":"q","texts":["a","b"]}"#;

/// The binary, and every line it prints.
struct Server {
    child: Child,
    lines: mpsc::Receiver<String>,
    seen: Vec<String>,
    address: SocketAddr,
}

impl Server {
    /// Starts the binary and waits until it serves.
    fn start(flags: &str, variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_text-embeddings-router"))
            .args(["--model-id", MODEL, "--hostname", "127.0.0.1", "--port", "0", "--prometheus-port", "0"])
            .args(flags.split_whitespace())
            .env_clear()
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A thread of its own reads: a server whose log nobody reads stands still.
        let (sender, lines) = mpsc::channel();
        let log = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || log.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let address = "127.0.0.1:0".parse().unwrap();
        let mut server = Self { child, lines, seen: Vec::new(), address };
        let ready = server.wait_for("Ready: ");
        let start = ready.find("127.0.0.1:").unwrap();
        let end = ready[start..]
            .find(|c: char| !c.is_ascii_digit() && !".:".contains(c))
            .map_or(ready.len(), |at| start + at);
        server.address = ready[start..end].parse().unwrap();
        server
    }

    /// Reads the log up to a line that holds `text`.
    fn wait_for(&mut self, text: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).unwrap();
            self.seen.push(line.clone());
            if line.contains(text) {
                return line;
            }
        }
    }

    /// The status of `POST /rerank`.
    fn rerank(&self, key: &str) -> u16 {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let length = BODY.len();
        let head = format!(
            "POST /rerank HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n\
             Content-Length: {length}\r\n\r\n{BODY}"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// Asks the server to stop, and gives all that it printed.
    fn stop(mut self) -> Vec<String> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.seen.extend(&self.lines);
        let mut errors = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        self.seen.extend(errors.lines().map(str::to_owned));
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        std::mem::take(&mut self.seen)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that ended already cannot be ended again.
        let _ = self.child.kill();
    }
}

/// A collector that keeps the credentials of each call.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<String>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let credentials = request.metadata().get("authorization").unwrap().to_str().unwrap();
        self.0.lock().unwrap().push(credentials.to_owned());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// `GET /info` over HTTP/2.
async fn info(address: SocketAddr, key: &str) -> u16 {
    let mut channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    std::future::poll_fn(|cx| channel.poll_ready(cx)).await.unwrap();
    let request = tonic::codegen::http::Request::get(format!("http://{address}/info"))
        .header("authorization", format!("Bearer {key}"))
        .body(Body::empty())
        .unwrap();
    channel.call(request).await.unwrap().status().as_u16()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_in_any_line_of_the_log() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let collector = Collector::default();
    let service = TraceServiceServer::new(collector.clone());
    tokio::spawn(Grpc::builder().add_service(service).serve_with_incoming(TcpIncoming::from(listener)));
    // "collect:c0llect0r-s3cret" in base64.
    let credentials = "Y29sbGVjdDpjMGxsZWN0MHItczNjcmV0";
    let secrets = ["th3-k3y-s3cret", "hub-t0ken-s3cret", "c0llect0r-s3cret", "wr0ng-k3y-s3cret", credentials];
    let endpoint = format!("http://collect:{}@127.0.0.1:{port}", secrets[2]);
    for (flags, variables) in [
        (
            format!("--api-key {} --hf-token {} --otlp-endpoint {endpoint}", secrets[0], secrets[1]),
            vec![("LOG_LEVEL", LEVEL)],
        ),
        (
            "--json-output".to_owned(),
            vec![
                ("LOG_LEVEL", LEVEL),
                ("API_KEY", secrets[0]),
                ("HF_TOKEN", secrets[1]),
                ("OTLP_ENDPOINT", &endpoint),
            ],
        ),
    ] {
        collector.0.lock().unwrap().clear();
        let server = tokio::task::block_in_place(|| Server::start(&flags, &variables));
        assert_eq!(server.rerank(secrets[0]), 200);
        assert_eq!(server.rerank(secrets[3]), 401);
        assert_eq!(info(server.address, secrets[0]).await, 200);
        assert_eq!(info(server.address, secrets[3]).await, 401);
        let lines = tokio::task::block_in_place(|| server.stop());
        assert_eq!(collector.0.lock().unwrap().first().unwrap(), &format!("Basic {credentials}"));
        for text in ["h2::", "--api-key"] {
            assert!(lines.iter().any(|line| line.contains(text)), "the log says too little: no {text}");
        }
        for line in &lines {
            assert!(!secrets.iter().any(|secret| line.contains(secret)), "{line}");
        }
    }
}

#[test]
fn the_hubs_token_is_in_no_line_of_the_log() {
    let hub = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", hub.local_addr().unwrap());
    let cache = tempfile::tempdir().unwrap();
    let requests = thread::spawn(move || {
        let (mut stream, _) = hub.accept().unwrap();
        let mut head = [0; 4096];
        let length = stream.read(&mut head).unwrap();
        stream
            .write_all(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            .unwrap();
        String::from_utf8(head[..length].to_vec()).unwrap()
    });
    let output = Command::new(env!("CARGO_BIN_EXE_text-embeddings-router"))
        .args(
            "--model-id a/b --hostname 127.0.0.1 --port 0 --prometheus-port 0 --hf-token hub-t0ken-s3cret"
                .split(' '),
        )
        .env_clear()
        .envs([
            ("HF_ENDPOINT", endpoint.as_str()),
            ("HF_HOME", cache.path().to_str().unwrap()),
            ("LOG_LEVEL", LEVEL),
        ])
        .output()
        .unwrap();
    assert!(requests.join().unwrap().contains("hub-t0ken-s3cret"), "the token was not sent");
    let all = [output.stdout, output.stderr].concat();
    let all = String::from_utf8(all).unwrap();
    assert!(all.contains("TRACE") && !all.contains("hub-t0ken-s3cret"), "{all}");
}

#[test]
fn a_collector_that_is_down_costs_one_line_and_no_request() {
    // A port that nobody listens on: the system just gave it out.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let flags = format!("--json-output --otlp-endpoint http://127.0.0.1:{port}");
    let mut server = Server::start(&flags, &[("OTEL_BSP_SCHEDULE_DELAY", "20")]);
    assert_eq!(server.rerank(""), 200);
    server.wait_for("traces do not reach");
    assert_eq!(server.rerank(""), 200);
    let lines = server.stop();
    let warnings = lines.iter().filter(|line| line.contains("traces do not reach")).count();
    assert_eq!(warnings, 1, "{lines:#?}");

    let lines: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    for line in &lines {
        for field in ["timestamp", "level", "target", "message"] {
            assert!(line[field].is_string(), "{field} is missing: {line}");
        }
    }
    let successes: Vec<_> = lines.iter().filter(|line| line["message"] == "Success").collect();
    assert_eq!(successes.len(), 2);
    for line in successes {
        assert_eq!((&line["level"], &line["span"]["route"]), (&"INFO".into(), &"/rerank".into()));
        for milliseconds in ["total_ms", "tokenization_ms", "queue_ms", "inference_ms"] {
            assert!(line[milliseconds].as_f64().is_some_and(|time| time >= 0.0), "{line}");
        }
    }
}

#[test]
fn without_spans_the_log_has_none() {
    let server = Server::start("--json-output --disable-spans", &[]);
    assert_eq!(server.rerank(""), 200);
    let lines = server.stop();
    let successes: Vec<_> = lines.iter().filter(|line| line.contains("Success")).collect();
    assert!(successes.len() == 1 && !successes[0].contains("span"), "{lines:#?}");
}
