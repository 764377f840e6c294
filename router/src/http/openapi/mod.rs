//! The description of the HTTP interface, and the page that shows it.
//!
//! Output: `GET /api-doc/openapi.json`, made from the types of the bodies; `GET /docs`, Swagger UI from
//! inside the binary, with the routes grouped by task (`groups.rs`). What must hold: everything in TEI's own
//! description is in this one; the page loads nothing from elsewhere; `docs/openapi.json` is this
//! description.

mod additions;
mod groups;
#[cfg(test)]
mod tests;

use std::sync::{Arc, LazyLock};

use axum::{
    body::Bytes,
    http::{StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use utoipa::{OpenApi, ToSchema};
use utoipa_swagger_ui::{Config, serve};

use super::{
    cohere, decide, embed,
    error::ApiError,
    error_shapes::{CohereEmbedErrorBody, ErrorBody, NestedErrorBody, OpenAiErrorBody, RerankErrorBody},
    health, info, models, openai, playground, predict,
    rerank::{self, AnyAnswer, AnyBody, options::Options},
    responses::RerankErrors,
    routes::ROUTES,
    schemas::TAG,
    score,
    similarity::{self, Cosines, SimilarityBody},
    tokenize,
    vertex::{self, Instance, InstancePrediction},
};
use additions::Additions;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Text Embeddings Router",
        description = "Re-ranking, classification and embeddings, over the interface of text-embeddings-inference.",
        license(name = "Apache-2.0", url = "https://www.apache.org/licenses/LICENSE-2.0"),
        contact()
    ),
    paths(
        cohere::embed_texts, decide::decide, embed::embed, embed::embed_all, embed::embed_sparse, health::health, health::live,
        health::ready, info::info, health::metrics, models::list_models, models::retrieve_model, openai::embeddings, playground::prompt,
        predict::predict, rerank::rerank, score::score, similarity::similarity, tokenize::decode, tokenize::tokenize,
        vertex::vertex, main_task
    ),
    components(schemas(CohereEmbedErrorBody, ErrorBody, OpenAiErrorBody, RerankErrorBody, NestedErrorBody, Options)),
    security((), ("key" = [])),
    modifiers(&Additions),
    tags((name = "Text Embeddings Inference", description = "What clients of text-embeddings-inference call"))
)]
struct ApiDescription;

/// The body of the model's main task, as its route takes it.
#[derive(Deserialize, ToSchema)]
#[schema(as = MainTaskRequest)]
#[serde(untagged)]
#[expect(dead_code, reason = "a description, not a value")]
enum MainTaskBody {
    Rerank(AnyBody),
    Similarity(SimilarityBody),
    Other(Instance),
}

/// The answer of the model's main task, as its route gives it.
#[derive(Serialize, ToSchema)]
#[schema(as = MainTaskAnswer)]
#[serde(untagged)]
#[expect(dead_code, reason = "a description, not a value")]
enum MainTaskAnswer {
    Rerank(AnyAnswer),
    Similarity(Cosines),
    Other(InstancePrediction),
}

/// Answer the model's main task.
///
/// That is the task of `/rerank`, `/predict` or `/embed`, or of `/similarity` with
/// `TASK=sentence-similarity`.
#[utoipa::path(post, path = "/", tag = TAG, request_body = MainTaskBody,
    responses((status = 200, description = "The answer of that route", body = MainTaskAnswer), RerankErrors))]
#[expect(dead_code, reason = "describes a route whose handler depends on the model")]
fn main_task() {}

/// The description as a value.
pub(crate) fn api_document() -> utoipa::openapi::OpenApi {
    ApiDescription::openapi()
}

/// Answers are written once: a client without the key may ask for them as often as it likes.
static DESCRIPTION: LazyLock<Bytes> = LazyLock::new(|| to_json_bytes(&api_document()));
static GROUPED_DESCRIPTION: LazyLock<Bytes> =
    LazyLock::new(|| to_json_bytes(&groups::by_task(api_document())));

fn to_json_bytes(document: &utoipa::openapi::OpenApi) -> Bytes {
    // A description has no part that JSON cannot express.
    serde_json::to_vec(document).unwrap_or_default().into()
}

fn answer_json(written: &Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], written.clone()).into_response()
}

pub(crate) async fn description() -> Response {
    answer_json(&DESCRIPTION)
}

/// Redirects to the page. The address is relative, because a proxy may add a prefix to the path.
pub(crate) async fn redirect() -> Response {
    (StatusCode::SEE_OTHER, [(header::LOCATION, "docs/")]).into_response()
}

/// The page. Swagger UI's own cannot be read on a phone, and leads nowhere.
const PAGE: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/page.css");
/// The description with its routes grouped by task, for the page only: programs that are generated from a
/// description are named by its groups.
const GROUPED: &str = "routes.json";

/// A file of the page: its own, or one of Swagger UI.
pub(crate) async fn page(uri: Uri) -> Response {
    let file = uri.path().trim_start_matches("/docs/");
    match file {
        "" => return ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], PAGE).into_response(),
        "page.css" => return ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], STYLE).into_response(),
        GROUPED => return answer_json(&GROUPED_DESCRIPTION),
        _ => {}
    }
    // By default the page would send the description to swagger.io for validation.
    let config = Config::from(GROUPED)
        .validator_url("none")
        .use_base_layout()
        .default_models_expand_depth(-1)
        .deep_linking(true);
    match serve(file, Arc::new(config)) {
        Ok(Some(file)) => ([(header::CONTENT_TYPE, file.content_type)], file.bytes).into_response(),
        Ok(None) | Err(_) => ApiError::not_found(&ROUTES, uri.path()).into_response(),
    }
}
