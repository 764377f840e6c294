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
    use base64::{Engine, prelude::BASE64_STANDARD};
    use serde_json::{Value, json};
    use text_embeddings_proto::v1::{
        self, embed_client::EmbedClient, info_client::InfoClient, predict_client::PredictClient,
        rerank_client::RerankClient, tokenize_client::TokenizeClient,
    };
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
    };
    use tonic::{Code, Response, Status, transport::Channel};
    use tonic_health::pb::{
        HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
    };

    async fn both(flags: &str) -> (Server, Channel) {
        let second = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let channel = grpc::testing::connect(second.local_addr().unwrap());
        (Server::start_beside(flags, Some(second), Duration::from_secs(30)).await, channel)
    }

    /// The answer of either transport: a body, or an error's message.
    async fn over_http(server: &Server, path: &str, body: &Value) -> Result<Value, String> {
        let answer = server.post(path, &body.to_string(), &[]).await;
        let value: Value = serde_json::from_str(&answer.body).unwrap();
        if answer.status == 200 { Ok(value) } else { Err(value["error"].as_str().unwrap().to_owned()) }
    }

    fn over_grpc<T>(
        answer: Result<Response<T>, Status>,
        body: impl FnOnce(T) -> Value,
    ) -> Result<Value, String> {
        answer.map(|answer| body(answer.into_inner())).map_err(|status| status.message().to_owned())
    }

    /// A number with the digits that it has in a body.
    fn digits(number: f32) -> Value {
        serde_json::from_str(&serde_json::to_string(&number).unwrap()).unwrap()
    }

    fn labels(answer: v1::PredictResponse) -> Value {
        let label = |found: v1::Prediction| json!({ "score": digits(found.score), "label": found.label });
        answer.predictions.into_iter().map(label).collect()
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
    async fn ranks_are_equal_over_both() {
        let (server, channel) = both("").await;
        let mut client = RerankClient::new(channel);
        let long = "Z".repeat(900);
        let ranks = |answer: v1::RerankResponse| {
            let rank = |rank: v1::Rank| match rank.text {
                Some(text) => json!({ "index": rank.index, "text": text, "score": digits(rank.score) }),
                None => json!({ "index": rank.index, "score": digits(rank.score) }),
            };
            answer.ranks.into_iter().map(rank).collect()
        };
        let message = |texts: &[&str]| v1::RerankRequest {
            query: "qZ".to_owned(),
            texts: texts.iter().map(ToString::to_string).collect(),
            truncate: true,
            ..v1::RerankRequest::default()
        };
        let instruction = Some("ZZZ".to_owned());
        let table = [
            message(&["", "ZZ", "aZ"]),
            v1::RerankRequest { raw_scores: true, top_n: Some(2), instruction, ..message(&["", "ZZ", "aZ"]) },
            v1::RerankRequest { return_text: true, ..message(&["Z", &long]) },
            v1::RerankRequest { truncation_direction: 1, ..message(&["Z", &long]) },
            v1::RerankRequest { truncate: false, ..message(&["Z", &long]) },
            v1::RerankRequest { query: " ".to_owned(), ..message(&["Z"]) },
            v1::RerankRequest { top_n: Some(0), ..message(&["Z"]) },
            message(&[]),
            message(&["a"; 9]),
            message(&["%"]),
            message(&["#"]),
        ];
        for message in table {
            let side = ["Right", "Left"][message.truncation_direction as usize];
            let body = json!({
                "query": message.query, "texts": message.texts, "truncate": message.truncate,
                "truncation_direction": side,
                "raw_scores": message.raw_scores, "return_text": message.return_text, "top_n": message.top_n,
                "instruction": message.instruction
            });
            let expected = over_http(&server, "/rerank", &body).await;
            assert_eq!(over_grpc(client.rerank(message).await, ranks), expected, "{body}");
        }
    }

    #[tokio::test]
    async fn labels_are_equal_over_both() {
        let (server, channel) = both("").await;
        let mut client = PredictClient::new(channel);
        for (first, second, raw_scores) in
            [("q", "ZZ", false), ("q", "ZZ", true), ("", "Z", true), ("q", "#", true)]
        {
            let body = json!({ "inputs": [first, second], "truncate": false, "raw_scores": raw_scores });
            let inputs = vec![first.to_owned(), second.to_owned()];
            let message = v1::PredictPairRequest { inputs, raw_scores, ..v1::PredictPairRequest::default() };
            let expected = over_http(&server, "/predict", &body).await;
            assert_eq!(over_grpc(client.predict_pair(message).await, labels), expected, "{body}");
        }
        let message = v1::PredictRequest { inputs: "a".to_owned(), ..v1::PredictRequest::default() };
        let expected = over_http(&server, "/predict", &json!({ "inputs": "a" })).await;
        assert_eq!(over_grpc(client.predict(message).await, labels), expected);
    }

    #[tokio::test]
    async fn tokens_are_equal_over_both() {
        let (server, channel) = both("").await;
        let mut client = TokenizeClient::new(channel);
        for (text, special) in [("é<|im_end|> a", true), ("", true), ("행성", false)] {
            let tokens = |answer: v1::EncodeResponse| {
                let token = |token: v1::SimpleToken| {
                    let v1::SimpleToken { id, text, special, start, stop } = token;
                    json!({ "id": id, "text": text, "special": special, "start": start, "stop": stop })
                };
                vec![answer.tokens.into_iter().map(token).collect::<Value>()].into()
            };
            let body = json!({ "inputs": text, "add_special_tokens": special });
            let (inputs, add_special_tokens) = (text.to_owned(), special);
            let message = v1::EncodeRequest { inputs, add_special_tokens, prompt_name: None };
            let expected = over_http(&server, "/tokenize", &body).await;
            assert_eq!(over_grpc(client.tokenize(message).await, tokens), expected, "{body}");
        }
        let ids: [(&[u32], bool); 4] =
            [(&[64, 257], true), (&[64, 257], false), (&[], false), (&[999], true)];
        for (ids, skip_special_tokens) in ids {
            let body = json!({ "ids": ids, "skip_special_tokens": skip_special_tokens });
            let message = v1::DecodeRequest { ids: ids.to_vec(), skip_special_tokens };
            let expected = over_http(&server, "/decode", &body).await;
            assert_eq!(
                over_grpc(client.decode(message).await, |answer| json!([answer.text])),
                expected,
                "{body}"
            );
        }
    }

    #[tokio::test]
    async fn vectors_are_equal_over_both() {
        let (server, channel) = both("--model-type embedding").await;
        let mut client = EmbedClient::new(channel);
        let text =
            |inputs: &str| v1::EmbedRequest { inputs: inputs.to_owned(), ..v1::EmbedRequest::default() };
        let long = "Za".repeat(400);
        let table = [
            text("Z행성a"),
            text(""),
            v1::EmbedRequest { normalize: Some(false), ..text("Z행성a") },
            v1::EmbedRequest { dimensions: Some(2), ..text("ZaZ") },
            v1::EmbedRequest { number_type: 1, ..text("ZaZ") },
            v1::EmbedRequest { number_type: 2, ..text("ZaZ") },
            v1::EmbedRequest { number_type: 3, ..text("ZaZ") },
            v1::EmbedRequest { number_type: 4, ..text("ZaZ") },
            v1::EmbedRequest { number_type: 5, normalize: Some(false), ..text("ZaZ") },
            v1::EmbedRequest { dimensions: Some(0), ..text("ZaZ") },
            v1::EmbedRequest { dimensions: Some(4), ..text("ZaZ") },
            v1::EmbedRequest { prompt_name: Some("q".to_owned()), ..text("ZaZ") },
            v1::EmbedRequest { truncate: true, truncation_direction: 1, ..text(&long) },
            text(&long),
            text("%"),
            text("#"),
        ];
        for message in table {
            let types = ["float", "float16", "int8", "uint8", "binary", "ubinary"];
            let output_dtype = types[message.number_type as usize];
            let side = ["Right", "Left"][message.truncation_direction as usize];
            let body = json!({
                "inputs": message.inputs, "truncate": message.truncate, "truncation_direction": side,
                "normalize": message.normalize.unwrap_or(true), "prompt_name": message.prompt_name,
                "dimensions": message.dimensions,
                "output_dtype": output_dtype,
                "encoding_format": if message.number_type == 0 { "float" } else { "base64" }
            });
            // Bytes of gRPC are base64 in JSON.
            let vector = |values: Vec<f32>, encoded: Vec<u8>| match message.number_type {
                0 => values.into_iter().map(digits).collect::<Value>(),
                _ => BASE64_STANDARD.encode(encoded).into(),
            };
            let expected = over_http(&server, "/embed", &body).await;
            let found = client.embed(message.clone()).await;
            let found = over_grpc(found, |answer| json!([vector(answer.embeddings, answer.encoded)]));
            assert_eq!(found, expected, "{body}");
            let v1::EmbedRequest {
                inputs,
                truncate,
                normalize,
                truncation_direction,
                prompt_name,
                dimensions,
                number_type,
            } = message;
            let message = v1::EmbedAllRequest {
                inputs,
                truncate,
                truncation_direction,
                prompt_name,
                normalize: normalize.unwrap_or(true),
                dimensions,
                number_type,
                ..v1::EmbedAllRequest::default()
            };
            let tokens = |answer: v1::EmbedAllResponse| {
                let tokens = answer.token_embeddings.into_iter();
                let tokens = tokens.map(|token| vector(token.embeddings, token.encoded));
                json!([tokens.collect::<Value>()])
            };
            let expected = over_http(&server, "/embed_all", &body).await;
            assert_eq!(over_grpc(client.embed_all(message).await, tokens), expected, "{body}");
        }
    }

    #[tokio::test]
    async fn classes_are_equal_over_both() {
        let (server, channel) = both("--model-type classifier").await;
        let mut client = PredictClient::new(channel);
        for (text, raw_scores) in [("ZaZ", false), ("ZaZ", true), ("", false), ("%", false)] {
            let body = json!({ "inputs": text, "truncate": false, "raw_scores": raw_scores });
            let inputs = text.to_owned();
            let message = v1::PredictRequest { inputs, raw_scores, ..v1::PredictRequest::default() };
            let expected = over_http(&server, "/predict", &body).await;
            assert_eq!(over_grpc(client.predict(message).await, labels), expected, "{body}");
        }
    }

    #[tokio::test]
    async fn the_wrong_kind_of_model_is_refused_alike() {
        let (server, channel) = both("").await;
        let mut client = EmbedClient::new(channel);
        let body = json!({ "inputs": "a" });
        let message = v1::EmbedRequest { inputs: "a".to_owned(), ..v1::EmbedRequest::default() };
        let expected = over_http(&server, "/embed", &body).await;
        assert_eq!(
            over_grpc(client.embed(message).await, |answer| json!([answer
                .embeddings
                .into_iter()
                .map(digits)
                .collect::<Value>()])),
            expected
        );
        let message = v1::EmbedSparseRequest { inputs: "a".to_owned(), ..v1::EmbedSparseRequest::default() };
        let expected = over_http(&server, "/embed_sparse", &body).await;
        assert_eq!(over_grpc(client.embed_sparse(message).await, |_| json!([])), expected);
    }

    #[tokio::test]
    async fn one_signal_ends_both_and_the_information_is_equal() {
        let (mut server, channel) = both("").await;
        let info: Value = serde_json::from_str(&server.get("/info").await.body).unwrap();
        let found = InfoClient::new(channel.clone()).info(v1::InfoRequest {}).await.unwrap().into_inner();
        assert_eq!(info["model_id"], json!(found.model_id));
        assert_eq!(info["max_input_length"], json!(found.max_input_length));
        assert_eq!(info["max_rerank_texts"], json!(found.max_rerank_texts));
        assert_eq!(info["default_instruction"], json!(found.default_instruction));
        assert_eq!(info["model_kind"], json!(found.model_kind));
        assert_eq!(info["instruction_set"], json!(found.instruction_set));
        assert_eq!(info["arithmetic"], json!(found.arithmetic));
        assert_eq!(info["threads"], json!(found.threads));
        assert_eq!((&info["backend"], &info["weights"]), (&json!(found.backend), &json!(found.weights)));
        server.stop();
        assert_eq!(server.ended().await, Ended::Asked);
        let gone = InfoClient::new(channel).info(v1::InfoRequest {}).await.unwrap_err();
        assert_eq!(gone.code(), Code::Unavailable);
    }
}
