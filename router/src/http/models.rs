//! `GET /v1/models`: the models of this server, as clients of `OpenAI`'s interface list them.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::ToSchema;

use super::{error_shapes::ErrorBody, schemas::TAG};
use crate::{
    models::{PendingModel, Served},
    state::AppState,
};

/// The models.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ModelList)]
pub(crate) struct ModelsBody<'a> {
    #[schema(example = "list")]
    object: &'static str,
    data: Vec<ModelBody<'a>>,
    /// Why the last change of the models file, or of a model's files, was not taken over. The models are
    /// those from before.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
}

/// A model.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Model)]
struct ModelBody<'a> {
    /// The name by which requests ask for it.
    id: &'a str,
    #[schema(example = "model")]
    object: &'static str,
    /// Always 0: the files do not say it.
    created: u64,
    owned_by: &'static str,
    /// Further names.
    aliases: &'a [String],
    /// The model as the user named it.
    root: &'a str,
    /// `embedding`, `classifier`, `reranker` or `listwise-reranker`. This and the next two fields are absent
    /// before the model was first loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    /// The longest input in tokens, under `vLLM`'s name.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_model_len: Option<usize>,
    /// The arithmetic.
    #[serde(skip_serializing_if = "Option::is_none")]
    dtype: Option<&'a str>,
    /// Whether it is in memory. If it is not, the next request loads it.
    loaded: bool,
    /// Why it could not be loaded the last time.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
}

impl<'a> From<&'a Served> for ModelBody<'a> {
    fn from(Served { info, aliases, resident, .. }: &'a Served) -> Self {
        Self {
            id: &info.served_model_name,
            object: "model",
            created: 0,
            owned_by: "text-embeddings-router",
            aliases,
            root: &info.model_id,
            kind: Some(info.model_kind()),
            max_model_len: Some(info.config.model.limits.max_input_length),
            dtype: Some(&info.computation.arithmetic),
            loaded: resident.is_loaded(),
            failure: resident.last_failure(),
        }
    }
}

impl<'a> ModelBody<'a> {
    fn from_pending(model: &'a PendingModel) -> Self {
        Self {
            id: model.own_name(),
            object: "model",
            created: 0,
            owned_by: "text-embeddings-router",
            aliases: model.further_names(),
            root: &model.model_id,
            kind: None,
            max_model_len: None,
            dtype: None,
            loaded: false,
            failure: model.last_failure(),
        }
    }
}

/// The models of this server.
#[utoipa::path(get, path = "/v1/models", tag = TAG, responses(
    (status = 200, description = "The models, the first one first", body = ModelsBody<'static>),
    (status = 401, description = "The key is missing or wrong", body = ErrorBody)
))]
pub(crate) async fn list_models(State(state): State<AppState>) -> Response {
    let models = state.current.read_models();
    let pending = models.pending_models().iter().map(|model| ModelBody::from_pending(model));
    let served = models.all_models().iter().map(|served| ModelBody::from(&**served));
    let data = served.chain(pending).collect();
    Json(ModelsBody { object: "list", data, failure: state.current.last_failure() }).into_response()
}

#[cfg(test)]
mod tests {
    use crate::http::testing::Server;

    #[tokio::test]
    async fn a_model_is_listed_as_openais_clients_read_it() {
        let answer = Server::start().await.get("/v1/models").await;
        assert_eq!(answer.status, 200);
        insta::assert_snapshot!(answer.body, @r#"{"object":"list","data":[{"id":"org/tiny-reranker","object":"model","created":0,"owned_by":"text-embeddings-router","aliases":[],"root":"org/tiny-reranker","kind":"listwise-reranker","max_model_len":600,"dtype":"float32","loaded":true}]}"#);
    }
}
