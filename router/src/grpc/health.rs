//! `grpc.health.v1`: whether a service can answer.
//!
//! Input: a service's name; the empty one stands for the server. Output: SERVING or not. What must hold:
//! `Info` and `Tokenize` serve as long as the server does; the other services serve if they fit the model and
//! it computes; once the server is asked to stop, no service does. No key is needed, because load balancers
//! have none.

use std::time::Duration;

use futures_util::stream;
use text_embeddings_proto::v1::{
    decide_server, embed_server, info_server, predict_server, rerank_server, tokenize_server,
};
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus, health_server::Health,
};

use super::stream::AnswerStream;
use text_embeddings_door::Stop;

use crate::{
    current::CurrentModels,
    models::{Models, RequestTask},
};

/// The time between two checks of a service that a client watches.
const INTERVAL: Duration = Duration::from_secs(1);

/// The health service.
#[derive(Clone)]
pub(super) struct HealthService {
    /// Not the models of now, which a client that watches would keep in memory.
    pub(super) current: CurrentModels,
    pub(super) stop: Stop,
}

impl HealthService {
    /// The status of the service of this name.
    async fn status(&self, name: &str) -> ServingStatus {
        let Some(needs) = Needs::of_service(name) else { return ServingStatus::ServiceUnknown };
        let models = self.current.read_models();
        let serves = match needs {
            Needs::Nothing => !self.stop.is_asked(),
            Needs::AnyModel => self.are_ready(&models).await,
            Needs::OneOf(tasks) => {
                let fitting = models.all_models().iter().map(|served| &served.service.config().model);
                fitting.into_iter().any(|model| tasks.iter().any(|task| task.fits_model(model)))
                    && self.are_ready(&models).await
            }
        };
        if serves { ServingStatus::Serving } else { ServingStatus::NotServing }
    }

    async fn are_ready(&self, models: &Models) -> bool {
        !self.stop.is_asked() && models.are_healthy().await
    }
}

/// The condition under which a service can answer.
#[derive(Debug, PartialEq, Eq)]
enum Needs {
    Nothing,
    /// A model that computes.
    AnyModel,
    /// A model that computes and can do one of these.
    OneOf(&'static [RequestTask]),
}

impl Needs {
    /// `None` if there is no such service.
    fn of_service(name: &str) -> Option<Self> {
        Some(match name {
            info_server::SERVICE_NAME | tokenize_server::SERVICE_NAME => Self::Nothing,
            "" => Self::AnyModel,
            embed_server::SERVICE_NAME => Self::OneOf(&[RequestTask::Embed, RequestTask::EmbedSparse]),
            predict_server::SERVICE_NAME => Self::OneOf(&[RequestTask::Predict]),
            rerank_server::SERVICE_NAME => Self::OneOf(&[RequestTask::Rerank]),
            decide_server::SERVICE_NAME => Self::OneOf(&[RequestTask::Decide]),
            _ => return None,
        })
    }
}

#[async_trait]
impl Health for HealthService {
    type WatchStream = AnswerStream<HealthCheckResponse>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let name = request.into_inner().service;
        match self.status(&name).await {
            ServingStatus::ServiceUnknown => Err(Status::not_found(format!("there is no service `{name}`"))),
            status => Ok(Response::new(HealthCheckResponse { status: status.into() })),
        }
    }

    /// The status, then each change. The stream ends when the server stops, so that watchers do not delay the
    /// end.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let watch = StatusWatch { probe: self.clone(), name: request.into_inner().service, last: None };
        Ok(Response::new(Box::pin(stream::unfold(watch, |mut watch| async {
            let status = watch.next().await?;
            Some((Ok(HealthCheckResponse { status: status.into() }), watch))
        }))))
    }
}

/// A client that watches a service's status.
struct StatusWatch {
    probe: HealthService,
    name: String,
    last: Option<ServingStatus>,
}

impl StatusWatch {
    /// Waits for a status that differs from the last. `None` once the server stops and the client knows it.
    async fn next(&mut self) -> Option<ServingStatus> {
        loop {
            let status = self.probe.status(&self.name).await;
            if self.last != Some(status) {
                self.last = Some(status);
                return Some(status);
            }
            if self.probe.stop.is_asked() {
                return None;
            }
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                () = self.probe.stop.clone().asked() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::grpc::testing::{Server, refusal};
    use text_embeddings_proto::v1::{RerankRequest, rerank_client::RerankClient};
    use tonic::Code;
    use tonic_health::pb::health_client::HealthClient;

    const NAMES: [&str; 7] = [
        "",
        "tei.v1.Info",
        "tei.v1.Tokenize",
        "tei.v1.Embed",
        "tei.v1.Predict",
        "tei.v1.Rerank",
        "tei.v1.Decide",
    ];

    fn named(service: &str) -> HealthCheckRequest {
        HealthCheckRequest { service: service.to_owned() }
    }

    async fn serving(server: &Server) -> Vec<&'static str> {
        let mut client = HealthClient::new(server.channel.clone());
        let mut serving = Vec::new();
        for name in NAMES {
            match client.check(named(name)).await.unwrap().into_inner().status() {
                ServingStatus::Serving => serving.push(name),
                status => assert_eq!(status, ServingStatus::NotServing, "{name}"),
            }
        }
        serving
    }

    #[tokio::test]
    async fn health_follows_kind_and_engine_and_needs_no_key() {
        let server = Server::start_with("--api-key k").await;
        let all = ["", "tei.v1.Info", "tei.v1.Tokenize", "tei.v1.Predict", "tei.v1.Rerank"];
        assert_eq!(serving(&server).await, all);
        server.control.break_all(true);
        let request =
            RerankRequest { query: "q".to_owned(), texts: vec!["a".to_owned()], ..RerankRequest::default() };
        let mut request = Request::new(request);
        request.metadata_mut().insert("authorization", "Bearer k".parse().unwrap());
        let answer = RerankClient::new(server.channel.clone()).rerank(request).await;
        assert_eq!(refusal(answer).0, Code::FailedPrecondition);
        assert_eq!(serving(&server).await, ["tei.v1.Info", "tei.v1.Tokenize"]);
        server.control.break_all(false);
        assert_eq!(serving(&server).await, all);
        let answer = HealthClient::new(server.channel.clone()).check(named("tei.v1.Other")).await;
        assert_eq!(refusal(answer), (Code::NotFound, "there is no service `tei.v1.Other`".to_owned()));
    }

    #[tokio::test]
    async fn watchers_hear_of_each_change_and_of_the_end() {
        let mut server = Server::start().await;
        let mut client = HealthClient::new(server.channel.clone());
        let mut watch = async |name| client.watch(named(name)).await.unwrap().into_inner();
        let mut watches = [watch("").await, watch("tei.v1.Rerank").await, watch("tei.v1.Info").await];
        let mut others = [watch("tei.v1.Embed").await, watch("nobody").await];
        let expected = [ServingStatus::NotServing, ServingStatus::ServiceUnknown];
        for (watch, expected) in others.iter_mut().zip(expected) {
            assert_eq!(watch.message().await.unwrap().unwrap().status(), expected);
        }
        for watch in &mut watches {
            assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
        }
        server.running.stop();
        for watch in &mut watches {
            assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
        }
        for watch in watches.iter_mut().chain(&mut others) {
            assert_eq!(watch.message().await.unwrap(), None);
        }
        server.running.ended().await;
    }
}
