//! `GET /v1/models`: the models of this server, as clients of `OpenAI`'s interface list and retrieve them.

use axum::{
    Json,
    extract::{Path, State, rejection::PathRejection},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    error::ApiError,
    error_shapes::{ErrorBody, ErrorShape, OpenAiErrorBody},
    schemas::TAG,
};
use crate::{
    models::{ChosenModel, PendingModel, Served},
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
    /// The same models, as clients of `TypeSafe`'s interface list them.
    models: Vec<NamedModelBody<'a>>,
}

/// A model in `TypeSafe`'s list.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = NamedModel)]
struct NamedModelBody<'a> {
    name: &'a str,
    description: &'a str,
    /// Always 1970-01-01: the files do not say it.
    #[schema(example = "1970-01-01")]
    release_date: &'static str,
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
    // Not under vLLM's name `root`: LangChain's client for NIM takes a model for an adapter if its `root` is
    // not its `id`, and would find no model.
    model_id: &'a str,
    /// `embedding`, `classifier`, `reranker`, `listwise-reranker` or `decider`. This and the next two fields
    /// are absent before the model was first loaded.
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
            model_id: &info.model_id,
            // A cascade only ranks, whatever its first model is.
            kind: Some(if info.cascade.is_some() { "reranker" } else { info.model_kind() }),
            max_model_len: Some(info.config.model.limits.max_input_length),
            dtype: Some(&info.computation.arithmetic),
            loaded: resident.is_loaded(),
            failure: resident.failure.read_reason(),
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
            model_id: &model.model_id,
            kind: None,
            max_model_len: None,
            dtype: None,
            loaded: false,
            failure: model.failure.read_reason(),
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
    let data: Vec<ModelBody> = served.chain(pending).collect();
    let models = data.iter().map(|&ModelBody { id: name, kind, .. }| {
        let description = kind.unwrap_or("not loaded yet");
        NamedModelBody { name, description, release_date: "1970-01-01" }
    });
    let models = models.collect();
    let failure = state.current.failure.read_reason();
    Json(ModelsBody { object: "list", data, failure, models }).into_response()
}

/// One of the models of this server.
#[utoipa::path(get, path = "/v1/models/{model}", tag = TAG,
    params(("model" = String, Path, description = "One of its names, in which slashes may be escaped")),
    responses(
        (status = 200, description = "The model", body = ModelBody<'static>),
        (status = 401, description = "The key is missing or wrong", body = ErrorBody),
        (status = 400, description = "The name is not UTF-8", body = OpenAiErrorBody),
        (status = 404, description = "No model has this name", body = OpenAiErrorBody)
    )
)]
pub(crate) async fn retrieve_model(
    State(state): State<AppState>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(name) =
        name.map_err(|error| ApiError::malformed(error.body_text()).in_shape(ErrorShape::OpenAi))?;
    let models = state.current.read_models();
    let found = models.find_model(Some(&name), None);
    Ok(match found.map_err(|error| ApiError::unknown_model(&error).in_shape(ErrorShape::OpenAi))? {
        ChosenModel::Served(place) => Json(ModelBody::from(&*models.all_models()[place])).into_response(),
        ChosenModel::Pending(model) => Json(ModelBody::from_pending(&model)).into_response(),
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use serde_json::Value;

    use crate::http::testing::{Server, openai_error};

    #[tokio::test]
    async fn a_model_is_listed_as_openais_clients_read_it() {
        let answer = Server::start().await.get("/v1/models").await;
        assert_eq!(answer.status, 200);
        insta::assert_snapshot!(answer.body, @r#"{"object":"list","data":[{"id":"org/tiny-reranker","object":"model","created":0,"owned_by":"text-embeddings-router","aliases":[],"model_id":"org/tiny-reranker","kind":"listwise-reranker","max_model_len":600,"dtype":"float32","loaded":true}],"models":[{"name":"org/tiny-reranker","description":"listwise-reranker","release_date":"1970-01-01"}]}"#);
    }

    #[tokio::test]
    async fn a_model_is_retrieved_by_its_name_and_an_unknown_one_is_refused_in_openais_form() {
        let server = Server::start_with("--api-key k --served-model-name a/b").await;
        let key = [("Authorization", "Bearer k")];
        let list = server.send("GET", "/v1/models", b"", &key).await;
        let list: Value = serde_json::from_str(&list.body).unwrap();
        for path in ["/v1/models/a/b", "/v1/models/a%2Fb", "/v1/models/a/b/"] {
            let answer = server.send("GET", path, b"", &key).await;
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
            assert_eq!(serde_json::from_str::<Value>(&answer.body).unwrap(), list["data"][0], "{path}");
            assert_eq!(server.get(path).await.status, 401, "{path}");
            assert_eq!(server.send("DELETE", path, b"", &key).await.status, 405, "{path}");
        }
        let message = "there is no model `b`: choose one of a/b";
        let answer = server.send("GET", "/v1/models/b", b"", &key).await;
        assert_eq!((answer.status, answer.body), (404, openai_error(message, 404, "Validation")));
        let answer = server.send("GET", "/v1/models/%ff", b"", &key).await;
        let message = "Invalid URL: Invalid UTF-8 in `model`";
        assert_eq!((answer.status, answer.body), (400, openai_error(message, 400, "Validation")));
    }
}
