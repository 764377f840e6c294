//! Several models behind one port: each call goes to the services of its model.
//!
//! Input: a call, which may name its model in the metadata as `model`. Output: the answer of the services
//! that the model has. What must hold: a client without the key learns no names; health and reflection are
//! answered for all models.

use std::sync::Arc;

use axum::{
    Router,
    extract::Request,
    response::{IntoResponse, Response},
};
use text_embeddings_proto::v1::{decide_server, embed_server, predict_server, rerank_server};
use tonic::Status;
use tower_service::Service;

use super::{deadline, error};
use crate::{
    current::Applications,
    models::{ChosenModel, PendingModel, RequestTask, UnknownModel},
    state::AppState,
};

/// The beginning of the names of the services of `tei.proto`.
const SERVICES: &str = "tei.v1.";
/// The metadata that names a model.
const MODEL: &str = "model";

/// Sends each call to the services of its model.
pub(super) struct CallDispatcher {
    pub(super) state: AppState,
    /// Answers calls that concern no model.
    pub(super) shared: Router,
    /// The services of each model.
    pub(super) alone: Vec<Router>,
}

impl From<CallDispatcher> for Router {
    fn from(dispatcher: CallDispatcher) -> Self {
        let dispatcher = Arc::new(dispatcher);
        Self::new().fallback(async move |request: Request| dispatcher.answer_call(request).await)
    }
}

impl CallDispatcher {
    async fn answer_call(&self, request: Request) -> Response {
        match self.choose_model(&request) {
            Ok(None) => {
                let Ok(response) = self.shared.clone().call(request).await;
                response
            }
            Ok(Some(ChosenModel::Served(place))) => {
                let router = self.alone[place].clone();
                self.state.models.all_models()[place].answer_named(router, request).await
            }
            Ok(Some(ChosenModel::Pending(model))) => {
                let limit = deadline::limit_of(request.headers());
                deadline::answer_within(limit, self.load_and_answer(&model, request)).await
            }
            Err(error) => refused_call(Status::not_found(error.to_string())),
        }
    }

    async fn load_and_answer(&self, model: &PendingModel, request: Request) -> Response {
        match self.state.current.load_model(model).await {
            Ok(Applications { first, second }) => {
                let Ok(response) = second.unwrap_or(first).call(request).await;
                response
            }
            Err(error) => refused_call(error::status(error)),
        }
    }

    /// The model that a call is for; absent if it concerns all models.
    fn choose_model(&self, request: &Request) -> Result<Option<ChosenModel>, UnknownModel> {
        let Some((service, method)) = called_method(request) else { return Ok(None) };
        // Without the key, all services answer the same.
        if !self.state.keys.may_pass(request.headers()) {
            return Ok(None);
        }
        let name = request.headers().get(MODEL).map(|name| String::from_utf8_lossy(name.as_bytes()));
        self.state.models.find_model(name.as_deref(), task_of(service, method)).map(Some)
    }
}

/// The service and the method of a call to `tei.proto`; absent for probes and reflection.
pub(super) fn called_method(request: &Request) -> Option<(&str, &str)> {
    let called = request.uri().path().trim_start_matches('/').split_once('/');
    called.filter(|(service, _)| service.starts_with(SERVICES))
}

fn refused_call(status: Status) -> Response {
    status.into_http::<axum::body::Body>().into_response()
}

/// The task of a method that only some models can do.
fn task_of(service: &str, method: &str) -> Option<RequestTask> {
    match service {
        rerank_server::SERVICE_NAME => Some(RequestTask::Rerank),
        predict_server::SERVICE_NAME => Some(RequestTask::Predict),
        decide_server::SERVICE_NAME => Some(RequestTask::Decide),
        embed_server::SERVICE_NAME if method.starts_with("EmbedSparse") => Some(RequestTask::EmbedSparse),
        embed_server::SERVICE_NAME => Some(RequestTask::Embed),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use crate::grpc::testing::{Server, refusal};
    use text_embeddings_proto::v1::{
        EmbedRequest, InfoRequest, RerankRequest, embed_client::EmbedClient, info_client::InfoClient,
        rerank_client::RerankClient,
    };
    use tonic::{Code, Request};
    use tonic_health::pb::{
        HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
    };

    fn with_model<T>(message: T, model: Option<&'static str>) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", "Bearer k".parse().unwrap());
        if let Some(model) = model {
            request.metadata_mut().insert("model", model.parse().unwrap());
        }
        request
    }

    #[tokio::test]
    async fn a_call_is_answered_by_its_model() {
        let server = Server::start_with(
            "--api-key k --model-type embedding --served-model-name e --and --served-model-name r",
        )
        .await;
        let mut info = InfoClient::new(server.channel.clone());
        for (model, expected) in [(None, "e"), (Some("e"), "e"), (Some("r"), "r")] {
            let answer = info.info(with_model(InfoRequest {}, model)).await.unwrap();
            assert_eq!(answer.metadata().get("x-model").unwrap(), expected);
            assert_eq!(answer.into_inner().served_model_name, expected);
        }
        let refused = refusal(info.info(with_model(InfoRequest {}, Some("x"))).await);
        assert_eq!(refused, (Code::NotFound, "there is no model `x`: choose one of e, r".to_owned()));
        let mut without_key = Request::new(InfoRequest {});
        without_key.metadata_mut().insert("model", "x".parse().unwrap());
        assert_eq!(refusal(info.info(without_key).await).0, Code::Unauthenticated);

        let text = || EmbedRequest { inputs: "ab".to_owned(), ..EmbedRequest::default() };
        let rerank = || RerankRequest {
            query: "q".to_owned(),
            texts: vec!["Z".to_owned()],
            ..RerankRequest::default()
        };
        let mut embed = EmbedClient::new(server.channel.clone());
        let mut ranks = RerankClient::new(server.channel.clone());
        assert!(embed.embed(with_model(text(), None)).await.is_ok());
        assert!(ranks.rerank(with_model(rerank(), None)).await.is_ok());
        assert_eq!(refusal(embed.embed(with_model(text(), Some("r"))).await).0, Code::FailedPrecondition);
        // The re-ranker is preferred, and the embedding model gives (x+1)/2 of the cosine of 45 degrees.
        for (model, expected) in [(None, 0.5), (Some("r"), 0.5), (Some("e"), 0.853_553_4)] {
            let answer = ranks.rerank(with_model(rerank(), model)).await.unwrap().into_inner();
            assert!((answer.ranks[0].score - expected).abs() < 1e-6, "{model:?}: {answer:?}");
        }

        // A service serves if it fits one of the models.
        let mut health = HealthClient::new(server.channel.clone());
        for (service, expected) in [
            ("tei.v1.Embed", ServingStatus::Serving),
            ("tei.v1.Rerank", ServingStatus::Serving),
            ("", ServingStatus::Serving),
        ] {
            let request = HealthCheckRequest { service: service.to_owned() };
            assert_eq!(health.check(request).await.unwrap().into_inner().status(), expected, "{service}");
        }
    }
}
