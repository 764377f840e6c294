//! gRPC: the services of `tei.proto`, health and reflection, on one port.
//!
//! Input: an [`AppState`]. Output: answers as `docs/wire-compatibility.md` lists them. What must hold: every
//! method calls the same `Service` method as its HTTP counterpart; no message is larger than the limit; if
//! the server has a key, only health and reflection answer without it.

mod deadline;
mod decide;
mod dispatch;
mod embed;
mod error;
mod health;
mod info;
mod predict;
mod rerank;
mod stream;
#[cfg(test)]
pub(crate) mod testing;
mod tokenize;
mod trace;
mod wire;

use std::io;

use axum::{Router, middleware};
use text_embeddings_proto::{
    FILE_DESCRIPTOR_SET,
    v1::{
        decide_server::DecideServer, embed_server::EmbedServer, info_server::InfoServer,
        predict_server::PredictServer, rerank_server::RerankServer, tokenize_server::TokenizeServer,
    },
};
use tonic::{
    Request, Status,
    service::{Interceptor, Routes, interceptor::InterceptedService},
};
use tonic_health::pb::health_server::HealthServer;

use crate::{auth::ApiKeys, state::AppState};
use dispatch::CallDispatcher;

/// The largest message in bytes to health and reflection, which take a name.
const SMALL_MESSAGE_LIMIT: usize = 4 << 10;
/// The message for a client without the key, which is text-embeddings-inference's.
const UNAUTHENTICATED: &str = "No valid auth token";

/// All services of `tei.proto`. Each has a file with its methods.
#[derive(Clone)]
struct Grpc(AppState);

/// The services that answer calls. Several models have services each, among which `dispatch` chooses. Fails
/// if the description of the services, which is part of the binary, cannot be read.
pub(crate) fn all_services(state: &AppState) -> io::Result<Router> {
    let shared = model_app(state.clone())?;
    if state.models.is_single() {
        return Ok(shared);
    }
    let states = state.models.each_alone().map(|models| AppState { models, ..state.clone() });
    let alone = states.map(model_app).collect::<io::Result<_>>()?;
    Ok(CallDispatcher { state: state.clone(), shared, alone }.into())
}

/// The services, for a model.
fn model_app(state: AppState) -> io::Result<Router> {
    let traced = middleware::from_fn_with_state(state.clone(), trace::trace);
    let routes = grpc_routes(state)?;
    Ok(routes.into_axum_router().layer(traced).layer(middleware::from_fn(deadline::hold)))
}

fn grpc_routes(state: AppState) -> io::Result<Routes> {
    let limit = state.server.message_limit;
    let key = Key(state.keys.clone());
    let (current, stop) = (state.current.clone(), state.stop.clone());
    let health = HealthServer::new(health::HealthService { current, stop })
        .max_decoding_message_size(SMALL_MESSAGE_LIMIT);
    // Without `--api-key-everywhere`, reflection needs no key.
    let open = Key(if state.server.key_everywhere { state.keys.clone() } else { ApiKeys::default() });
    let grpc = Grpc(state);
    // Older clients ask for reflection with `v1alpha`.
    let reflection = reflection_service().build_v1().map_err(io::Error::other)?;
    let old_reflection = reflection_service().build_v1alpha().map_err(io::Error::other)?;
    let mut routes = Routes::builder();
    routes
        .add_service(key.guard_service(InfoServer::new(grpc.clone()).max_decoding_message_size(limit)))
        .add_service(key.guard_service(EmbedServer::new(grpc.clone()).max_decoding_message_size(limit)))
        .add_service(key.guard_service(PredictServer::new(grpc.clone()).max_decoding_message_size(limit)))
        .add_service(key.guard_service(RerankServer::new(grpc.clone()).max_decoding_message_size(limit)))
        .add_service(key.guard_service(DecideServer::new(grpc.clone()).max_decoding_message_size(limit)))
        .add_service(key.guard_service(TokenizeServer::new(grpc).max_decoding_message_size(limit)))
        .add_service(health)
        .add_service(open.guard_service(reflection.max_decoding_message_size(SMALL_MESSAGE_LIMIT)))
        .add_service(open.guard_service(old_reflection.max_decoding_message_size(SMALL_MESSAGE_LIMIT)));
    Ok(routes.routes())
}

/// The reflection service's description of the services.
fn reflection_service() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

/// Passes calls on that carry the key. Without a key on the server, all calls pass.
#[derive(Clone)]
struct Key(ApiKeys);

impl Key {
    fn guard_service<S>(&self, service: S) -> InterceptedService<S, Self> {
        InterceptedService::new(service, self.clone())
    }
}

impl Interceptor for Key {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        if self.0.may_pass(request.metadata().as_ref()) {
            return Ok(request);
        }
        Err(error::refuse(Status::unauthenticated(UNAUTHENTICATED)))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::testing::{Server, connect, messages, read, refusal};
    use futures_util::{StreamExt, stream::unfold};
    use std::{collections::BTreeSet, time::Duration};
    use text_embeddings_proto::v1::{
        self, info_client::InfoClient, predict_client::PredictClient, rerank_client::RerankClient,
        tokenize_client::TokenizeClient,
    };
    use tokio::{net::TcpStream, sync::mpsc};
    use tonic::{Code, transport::Endpoint};
    use tonic_reflection::pb;

    fn request() -> v1::RerankRequest {
        let (query, texts) = ("q".to_owned(), vec!["ZZ".to_owned()]);
        v1::RerankRequest { query, texts, ..v1::RerankRequest::default() }
    }

    fn pair(count: usize) -> v1::PredictPairRequest {
        let inputs = vec!["q".to_owned(), "Z".repeat(count)];
        v1::PredictPairRequest { inputs, raw_scores: true, ..v1::PredictPairRequest::default() }
    }

    #[tokio::test]
    async fn reflection_lists_the_services_without_a_key() {
        use pb::v1::{
            ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
            server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
        };
        let server = Server::start_with("--api-key k").await;
        let question = ServerReflectionRequest {
            message_request: Some(MessageRequest::ListServices(String::new())),
            ..ServerReflectionRequest::default()
        };
        let mut client = ServerReflectionClient::new(server.channel.clone());
        let (mut answers, _) = read(client.server_reflection_info(messages(vec![question])).await).await;
        let found = match answers.remove(0).message_response {
            Some(MessageResponse::ListServicesResponse(found)) => found.service,
            _ => Vec::new(),
        };
        let found: BTreeSet<&str> = found.iter().map(|service| service.name.as_str()).collect();
        let expected = BTreeSet::from([
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "tei.v1.Decide",
            "tei.v1.Embed",
            "tei.v1.Info",
            "tei.v1.Predict",
            "tei.v1.Rerank",
            "tei.v1.Tokenize",
        ]);
        assert_eq!(found, expected);
    }

    #[tokio::test]
    async fn a_client_that_takes_no_answers_keeps_no_permit_and_is_disconnected() {
        let server = Server::start_with("--max-concurrent-requests 1 --write-timeout 1").await;
        let address = format!("http://{}", server.address);
        let endpoint = Endpoint::from_shared(address).unwrap().initial_stream_window_size(0);
        let mut client = PredictClient::new(endpoint.connect_lazy());
        let answers = client.predict_pair_stream(messages(vec![pair(1); 8])).await.unwrap();
        let mut rerank = RerankClient::new(server.channel.clone());
        // Its messages are computed one after the other, and then there are permits again.
        tokio::time::timeout(Duration::from_secs(10), async {
            while server.control.seen() < 4 || rerank.rerank(request()).await.is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .unwrap();
        let mut answers = answers.into_inner();
        let ended = tokio::time::timeout(Duration::from_secs(10), answers.message()).await.unwrap();
        assert!(ended.is_err(), "{ended:?}");
        rerank.rerank(request()).await.unwrap();
    }

    #[tokio::test]
    async fn a_call_that_is_dropped_frees_its_permit_and_an_idle_stream_holds_none() {
        let server = Server::start_with("--max-concurrent-requests 1").await;
        let mut client = PredictClient::new(server.channel.clone());
        let (sender, receiver) = mpsc::unbounded_channel();
        sender.send(pair(3)).unwrap();
        let requests = unfold(receiver, |mut receiver| async { Some((receiver.recv().await?, receiver)) });
        let mut answers = client.predict_pair_stream(requests).await.unwrap().into_inner();
        let score = |answer: Option<v1::PredictResponse>| answer.unwrap().predictions[0].score;
        assert!((score(answers.message().await.unwrap()) - 2.0).abs() < 1e-6);
        // The stream is open and waits for its client: the only permit is free.
        let mut rerank = RerankClient::new(server.channel.clone());
        rerank.rerank(request()).await.unwrap();

        server.control.hold(true);
        let batches = server.control.seen();
        sender.send(pair(1)).unwrap();
        server.control.batches(batches + 1).await;
        assert_eq!(refusal(rerank.rerank(request()).await).0, Code::ResourceExhausted);
        // For its client a call ends when both of its streams have ended.
        drop((answers, sender));
        // The batch is still held, but its client is gone, so the permit is free again. Tokenizing needs no
        // batch.
        let mut tokenize = TokenizeClient::new(server.channel.clone());
        let text = || v1::EncodeRequest { inputs: "a".to_owned(), ..v1::EncodeRequest::default() };
        while let Err(status) = tokenize.tokenize(text()).await {
            assert_eq!(status.code(), Code::ResourceExhausted);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server.control.hold(false);
        rerank.rerank(request()).await.unwrap();
    }

    #[tokio::test]
    async fn calls_in_flight_are_answered_before_the_server_ends() {
        let mut server = Server::start().await;
        server.control.hold(true);
        let mut client = PredictClient::new(server.channel.clone());
        let (sender, receiver) = mpsc::unbounded_channel();
        sender.send(pair(3)).unwrap();
        let requests = unfold(receiver, |mut receiver| async { Some((receiver.recv().await?, receiver)) });
        let mut answers = client.predict_pair_stream(requests).await.unwrap().into_inner();
        server.control.batches(1).await;
        server.running.stop();
        while TcpStream::connect(server.address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(
            refusal(InfoClient::new(connect(server.address)).info(v1::InfoRequest {}).await).0,
            Code::Unavailable
        );
        server.control.hold(false);
        sender.send(pair(1)).unwrap();
        drop(sender);
        let mut scores = Vec::new();
        while let Some(answer) = answers.next().await {
            scores.push(answer.unwrap().predictions[0].score);
        }
        assert_eq!(scores, [2.0, 0.0]);
        drop((answers, client));
        server.running.ended().await;
    }

    #[tokio::test]
    async fn the_drain_has_an_end() {
        let mut server = Server::start_draining("", Duration::from_millis(50)).await;
        let mut client = PredictClient::new(server.channel.clone());
        let endless = futures_util::stream::pending();
        let _answers = client.predict_pair_stream(endless).await.unwrap();
        server.running.stop();
        server.running.ended().await;
    }
}
