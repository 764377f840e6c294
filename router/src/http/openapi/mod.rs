//! The description of the HTTP interface, and the page that shows it.
//!
//! Output: `GET /api-doc/openapi.json`, made from the types of the bodies; `GET /docs`, Swagger UI from inside the
//! binary; both without a key. What must hold: everything in TEI's own description is in this one; the page loads
//! nothing from elsewhere; `docs/openapi.json` is this description.

mod additions;
mod responses;
mod shapes;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::{
    Json, Router,
    http::{StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::get,
};
use serde::{Deserialize, Serialize};
use utoipa::{OpenApi, ToSchema};
use utoipa_swagger_ui::{Config, serve};

use super::{
    decode, embed,
    error::{ApiError, ErrorBody, OpenAiErrorBody},
    health, info, openai, playground, predict,
    rerank::{self, AnyAnswer, AnyBody, options::Options},
    score,
    similarity::{self, Cosines, SimilarityBody},
    tokenize,
    vertex::{self, Instance, Prediction},
    words::{NestedErrorBody, RerankErrorBody},
};
use crate::state::AppState;
use additions::Additions;
pub(crate) use responses::{InferenceErrors, OpenAiErrors, RerankErrors, ScoreErrors, TokenizerErrors};
pub(crate) use shapes::{only_null, prompt_tokens};

/// The group of all operations.
pub(crate) const TAG: &str = "Text Embeddings Inference";
const DOCUMENT: &str = "/api-doc/openapi.json";

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Text Embeddings Router",
        description = "Re-ranking, classification and embeddings, over the interface of text-embeddings-inference.",
        license(name = "Apache-2.0", url = "https://www.apache.org/licenses/LICENSE-2.0"),
        contact()
    ),
    paths(
        decode::decode, embed::embed, embed::embed_all, embed::embed_sparse, health::health, health::live, health::ready, info::info,
        super::metrics, openai::embeddings, playground::prompt, predict::predict, rerank::rerank, score::score, similarity::similarity,
        tokenize::tokenize, vertex::vertex, main_task
    ),
    components(schemas(ErrorBody, OpenAiErrorBody, RerankErrorBody, NestedErrorBody, Options)),
    security((), ("key" = [])),
    modifiers(&Additions),
    tags((name = "Text Embeddings Inference", description = "What clients of text-embeddings-inference call"))
)]
struct Description;

/// The body of the model's main task: that of its route.
#[derive(Deserialize, ToSchema)]
#[schema(as = MainTaskRequest)]
#[serde(untagged)]
#[expect(dead_code, reason = "a description, not a value")]
enum MainTaskBody {
    Rerank(AnyBody),
    Similarity(SimilarityBody),
    Other(Instance),
}

/// The answer of the model's main task: that of its route.
#[derive(Serialize, ToSchema)]
#[schema(as = MainTaskAnswer)]
#[serde(untagged)]
#[expect(dead_code, reason = "a description, not a value")]
enum MainTaskAnswer {
    Rerank(AnyAnswer),
    Similarity(Cosines),
    Other(Prediction),
}

/// Answer the model's main task: `/rerank`, `/predict` or `/embed`; `/similarity` with `TASK=sentence-similarity`.
#[utoipa::path(post, path = "/", tag = TAG, request_body = MainTaskBody,
    responses((status = 200, description = "The answer of that route", body = MainTaskAnswer), RerankErrors))]
#[expect(dead_code, reason = "describes a route whose handler depends on the model")]
fn main_task() {}

/// The routes of the description and the page.
pub(crate) fn routes() -> Router<AppState> {
    Router::new()
        .route(DOCUMENT, get(|| async { Json(Description::openapi()) }))
        // Relative, so that it holds behind a proxy that puts something before the path.
        .route("/docs", get(|| async { (StatusCode::SEE_OTHER, [(header::LOCATION, "docs/")]) }))
        .route("/docs/", get(page))
        .route("/docs/{file}", get(page))
}

/// A file of Swagger UI.
async fn page(uri: Uri) -> Response {
    let file = uri.path().trim_start_matches("/docs/");
    // Without its own validator the page would ask swagger.io's whether the description is right.
    let config = Config::from("../api-doc/openapi.json").validator_url("none");
    match serve(file, Arc::new(config)) {
        Ok(Some(file)) => ([(header::CONTENT_TYPE, file.content_type)], file.bytes).into_response(),
        Ok(None) | Err(_) => {
            ApiError::not_found(uri.path(), "GET /docs, /api-doc/openapi.json").into_response()
        }
    }
}
