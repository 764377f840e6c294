//! `GET /v1/models`: the models of this server, as clients of `OpenAI`'s interface list them.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::ToSchema;

use super::{error_shapes::ErrorBody, schemas::TAG};
use crate::{models::Served, state::AppState};

/// The models.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ModelList)]
pub(crate) struct ModelsBody<'a> {
    #[schema(example = "list")]
    object: &'static str,
    data: Vec<ModelBody<'a>>,
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
    /// `embedding`, `classifier`, `reranker` or `listwise-reranker`.
    kind: &'static str,
    /// The longest input in tokens, under `vLLM`'s name.
    max_model_len: usize,
    /// The arithmetic.
    dtype: &'a str,
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
            kind: info.model_kind(),
            max_model_len: info.config.model.limits.max_input_length,
            dtype: &info.computation.arithmetic,
            loaded: resident.is_loaded(),
            failure: resident.last_failure(),
        }
    }
}

/// The models of this server.
#[utoipa::path(get, path = "/v1/models", tag = TAG, responses(
    (status = 200, description = "The models, the first one first", body = ModelsBody<'static>),
    (status = 401, description = "The key is missing or wrong", body = ErrorBody)
))]
pub(crate) async fn list_models(State(state): State<AppState>) -> Response {
    let data = state.models.all_models().iter().map(|served| ModelBody::from(&**served)).collect();
    Json(ModelsBody { object: "list", data }).into_response()
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
