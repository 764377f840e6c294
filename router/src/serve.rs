//! Serves every transport on its port until a signal or a lost device ends the server, and ends it in order.
//!
//! Input: the models, open ports and a door. Output: the reason for the end, once everything is
//! answered or the time for it is over. What must hold: after the signal or the loss, no connection is
//! accepted, connections without a request are closed, and requests in flight finish within the time limit.

use std::{convert::Infallible, process::ExitCode, time::Duration};

use axum::Router;
use futures_util::future::join_all;
use text_embeddings_door::{Door, Listener, Protocol, Stop};

use crate::current::CurrentModels;

/// Why a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It was asked to stop.
    Asked,
    /// The device is lost. Whatever runs the process should start it again.
    DeviceLost,
}

impl From<Ended> for ExitCode {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Asked => Self::SUCCESS,
            Ended::DeviceLost => Self::FAILURE,
        }
    }
}

/// An open port and the application that answers there.
pub(crate) struct OpenPort {
    pub(crate) listener: Listener,
    pub(crate) protocol: Protocol,
    pub(crate) app: Router,
}

/// Serves until `stop` is due or the device is lost, and then until the requests in flight are
/// answered, but no longer than `drain`.
pub(crate) async fn serve(
    models: &CurrentModels,
    stop: &Stop,
    ports: Vec<OpenPort>,
    door: &Door,
    drain: Duration,
) -> Ended {
    let lost = async {
        models.device_lost().await;
        // Nobody needs time to send requests elsewhere: none is answered here any more.
        stop.close_now();
        std::future::pending::<Infallible>().await
    };
    let overdue = async {
        stop.clone().due().await;
        tokio::time::sleep(drain).await;
    };
    let served = async {
        let open = ports
            .into_iter()
            .map(|OpenPort { listener, protocol, app }| door.open(listener, protocol, app, stop.clone()));
        join_all(open).await;
        door.close().await;
    };
    tokio::select! {
        never = door.sweep() => match never {},
        never = lost => match never {},
        () = served => {}
        () = overdue => {
            tracing::warn!("some requests are not answered after {drain:?}: they are dropped");
        }
    }
    if models.read_models().is_device_lost() { Ended::DeviceLost } else { Ended::Asked }
}

#[cfg(all(test, feature = "plain-http", feature = "grpc"))]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::{grpc, http::testing::Server};
    use serde_json::json;
    use text_embeddings_proto::v1::{self, info_client::InfoClient, rerank_client::RerankClient};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
    };
    use tonic::{Code, transport::Channel};
    use tonic_health::pb::{
        HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
    };

    async fn both(flags: &str) -> (Server, Channel) {
        let second = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let channel = grpc::testing::connect(second.local_addr().unwrap());
        (Server::start_beside(flags, Some(second), Duration::from_secs(30)).await, channel)
    }

    /// A connection on which these bytes were sent.
    async fn sent(server: &Server, bytes: &str) -> TcpStream {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(bytes.as_bytes()).await.unwrap();
        stream
    }

    /// Sends the rest of a request, and gives the answer.
    async fn finished(mut stream: TcpStream, rest: &str) -> String {
        stream.write_all(rest.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn when_the_device_is_lost_everything_is_answered_503_and_the_server_ends() {
        let (mut server, channel) = both("").await;
        let mut health = HealthClient::new(channel.clone());
        let request = HealthCheckRequest::default();
        let mut watch = health.watch(request).await.unwrap().into_inner();
        assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
        server.control.hold(true);
        let body = json!({ "query": "q", "texts": ["a"] }).to_string();
        let (half, rest) = body.split_at(8);
        let head = format!("POST /rerank HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
        let computed = sent(&server, &format!("{head}{body}")).await;
        server.control.clone().batches(1).await;
        let mut client = RerankClient::new(channel);
        let message = v1::RerankRequest {
            query: "q".to_owned(),
            texts: vec!["a".to_owned()],
            ..v1::RerankRequest::default()
        };
        let over_grpc = tokio::spawn(async move { client.rerank(message).await.unwrap_err() });
        let waiting = sent(&server, &format!("{head}{body}")).await;
        let unfinished = sent(&server, &format!("{head}{half}")).await;
        let mut probes = Vec::new();
        for path in ["/health", "/health/ready"] {
            probes.push(sent(&server, &format!("GET {path} HTTP/1.1\r\nHost: a\r\n")).await);
        }
        // One that came after them and was answered: the server has taken them all.
        assert_eq!(server.get("/health/ready").await.status, 200);
        server.control.lose_device();
        server.control.hold(false);

        let expected = r#"{"error":"the device that computes is lost and this server ends: send the request again","error_type":"Unhealthy"}"#;
        for stream in [computed, waiting] {
            let answer = finished(stream, "").await;
            assert!(answer.starts_with("HTTP/1.1 503") && answer.ends_with(expected), "{answer}");
        }
        let status = over_grpc.await.unwrap();
        let message = "the device that computes is lost and this server ends: send the request again";
        assert_eq!((status.code(), status.message()), (Code::Unavailable, message));
        assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
        assert_eq!(watch.message().await.unwrap(), None);
        // The unfinished body keeps the server: it is not ready and refuses new connections.
        while TcpStream::connect(server.address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for probe in probes {
            let answer = finished(probe, "\r\n").await;
            assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        }
        let answer = finished(unfinished, rest).await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.ends_with(expected), "{answer}");
        let ended = server.ended().await;
        assert_eq!(ended, Ended::DeviceLost);
        assert_eq!([ended, Ended::Asked].map(ExitCode::from), [ExitCode::FAILURE, ExitCode::SUCCESS]);
        assert_eq!(server.control.seen(), 1, "nothing was given to a device that is lost");
    }

    const RERANK: &str = r#"{"query":"q","texts":["ZZ"]}"#;
    const EMBED: &str = r#"{"inputs":"ab"}"#;

    /// A server with an embedding model, and a re-ranker that is not in memory and whose loads are held.
    async fn with_held_load(flags: &str, drain: Duration) -> Server {
        let models =
            "--model-type embedding --served-model-name e --and --served-model-name r --idle-unload 0.01s";
        let server = Server::start_draining(&format!("{flags} {models} {flags}"), drain).await;
        server.control.hold_loads(true);
        while !server.get("/v1/models").await.body.contains(r#""loaded":false"#) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server
    }

    #[tokio::test]
    async fn a_load_that_hangs_fails_its_own_models_requests_and_no_others() {
        let server = with_held_load("--device-timeout 1", Duration::from_secs(30)).await;
        let hung = async {
            let answer = server.post("/rerank", RERANK, &[]).await;
            assert!(
                answer.status == 424 && answer.body.contains("longer than `--device-timeout`"),
                "{answer:?}"
            );
            assert_eq!(server.post("/rerank", RERANK, &[]).await.status, 503, "it still hangs");
            for (model, status) in [("r", 503), ("e", 200)] {
                assert_eq!(server.get(&format!("/health?model={model}")).await.status, status);
            }
        };
        let others = async {
            for _ in 0..20 {
                assert_eq!(server.post("/embed", EMBED, &[]).await.status, 200);
            }
        };
        tokio::join!(hung, others);
        server.control.hold_loads(false);
        while server.get("/health?model=r").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Its model leaves memory again and again meanwhile.
        for _ in 0..50 {
            assert_eq!(server.post("/rerank", RERANK, &[]).await.status, 200);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn a_server_that_is_asked_to_stop_ends_in_time_although_a_model_loads() {
        let mut server = with_held_load("", Duration::from_millis(200)).await;
        let head = format!("POST /rerank HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", RERANK.len());
        let _waiting = sent(&server, &format!("{head}{RERANK}")).await;
        // A later connection was answered, so the server has accepted both.
        assert_eq!(server.post("/embed", EMBED, &[]).await.status, 200);
        server.stop();
        assert_eq!(server.ended().await, Ended::Asked);
    }

    #[tokio::test]
    async fn a_model_that_loses_its_device_ends_the_server_after_the_requests_to_others() {
        let mut server =
            Server::start_with("--model-type embedding --served-model-name e --and --served-model-name r")
                .await;
        let head = format!("POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", EMBED.len());
        let (half, rest) = EMBED.split_at(8);
        let in_flight = sent(&server, &format!("{head}{half}")).await;
        assert_eq!(server.post("/embed", EMBED, &[]).await.status, 200);
        server.control.lose_device();
        let answer = server.post("/rerank", RERANK, &[]).await;
        assert!(
            answer.status == 503 && answer.body.contains("the device that computes is lost"),
            "{answer:?}"
        );
        let answer = finished(in_flight, rest).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("[["), "{answer}");
        assert_eq!(server.ended().await, Ended::DeviceLost);
    }

    #[tokio::test]
    async fn a_batch_that_does_not_fit_the_devices_memory_is_computed_in_halves_or_names_the_flag() {
        let server = Server::start().await;
        let texts = ["Z".repeat(100), "a".repeat(100), "ZaZa".repeat(30), "b".repeat(90)];
        let body = json!({ "query": "q", "texts": texts }).to_string();
        let expected = server.post("/rerank", &body, &[]).await;
        assert_eq!(expected.status, 200);
        let (mut halved, mut failed) = (0, 0);
        // From where all fit together to where none fits: in between halves do.
        for room in (50..1500).rev().step_by(50) {
            server.control.leave_room_for(room);
            let before = server.control.seen();
            let answer = server.post("/rerank", &body, &[]).await;
            if answer.status == 200 {
                assert_eq!(answer.body, expected.body, "{room}");
                halved += usize::from(server.control.seen() - before > 1);
            } else {
                let error = "Backend error: out of memory on the device: lower `--max-batch-tokens`";
                assert_eq!(answer.status, 424);
                assert!(answer.body.contains(error), "{}", answer.body);
                failed += 1;
            }
            // A probe of one token always fits.
            assert_eq!(server.get("/health").await.status, 200);
        }
        assert!(halved > 0 && failed > 0, "{halved} {failed}");
    }

    #[tokio::test]
    async fn one_signal_ends_both() {
        let (mut server, channel) = both("").await;
        assert!(InfoClient::new(channel.clone()).info(v1::InfoRequest {}).await.is_ok());
        server.stop();
        assert_eq!(server.ended().await, Ended::Asked);
        let gone = InfoClient::new(channel).info(v1::InfoRequest {}).await.unwrap_err();
        assert_eq!(gone.code(), Code::Unavailable);
    }
}
