//! The description of the HTTP interface, and the page that shows it.
//!
//! Output: `GET /api-doc/openapi.json`, made from the types of the bodies; `GET /docs`, Swagger UI from inside the
//! binary; both without a key. What must hold: everything in TEI's own description is in this one; the page loads
//! nothing from elsewhere; `docs/openapi.json` is this description.

mod responses;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::{
    Json, Router,
    http::{StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::get,
};
use serde::Deserialize;
use text_embeddings_core::service::Cost;
use utoipa::{
    Modify, OpenApi, ToSchema,
    openapi::{
        Header, Object, OpenApi as Document, RefOr, Schema, Type,
        schema::AnyOfBuilder,
        security::{Http, HttpAuthScheme, SecurityScheme},
    },
};
use utoipa_swagger_ui::{Config, serve};

use super::{
    decode::{self, DecodeBody},
    embed::{self, EmbedAllBody, EmbedBody, EmbedSparseBody},
    error::{ApiError, ErrorBody, OpenAiErrorBody},
    health, info,
    openai::{self, OpenAiBody},
    playground,
    predict::{self, PredictBody},
    rerank::{self, RerankBody},
    similarity::{self, SimilarityBody},
    tokenize::{self, TokenizeBody},
    vertex::{self, Prediction},
};
use crate::{cost, state::AppState};
pub(crate) use responses::{InferenceErrors, OpenAiErrors, TokenizerErrors};

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
        super::metrics, openai::embeddings, playground::prompt, predict::predict, rerank::rerank, similarity::similarity,
        tokenize::tokenize, vertex::vertex, main_task
    ),
    components(schemas(AnyRequest, ErrorBody, OpenAiErrorBody)),
    security((), ("key" = [])),
    modifiers(&Additions),
    tags((name = "Text Embeddings Inference", description = "What clients of text-embeddings-inference call"))
)]
struct Description;

/// The body of another route. Where the fields leave open which, it is the one of the model's main task.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "a description, not a value")]
pub(crate) enum AnyRequest {
    Rerank(RerankBody),
    Predict(PredictBody),
    Embed(EmbedBody),
    EmbedAll(EmbedAllBody),
    EmbedSparse(EmbedSparseBody),
    Similarity(SimilarityBody),
    OpenAi(OpenAiBody),
    Tokenize(TokenizeBody),
    Decode(DecodeBody),
}

/// Answer the model's main task: `/rerank`, `/predict` or `/embed`; `/similarity` with `TASK=sentence-similarity`.
#[utoipa::path(post, path = "/", tag = TAG, request_body = AnyRequest,
    responses((status = 200, description = "The answer of that route", body = Prediction), InferenceErrors))]
#[expect(dead_code, reason = "describes a route whose handler depends on the model")]
fn main_task() {}

/// What the derived description lacks: the key, the headers of costs, and the second names of routes.
struct Additions;

impl Modify for Additions {
    fn modify(&self, description: &mut Document) {
        describe_costs(description);
        let components = description.components.get_or_insert_default();
        // A body may be that of several routes, which `oneOf` forbids.
        if let Some(RefOr::T(schema)) = components.schemas.get_mut("AnyRequest")
            && let Schema::OneOf(bodies) = schema
        {
            let any = AnyOfBuilder::new().description(bodies.description.take());
            *schema = bodies.items.drain(..).fold(any, AnyOfBuilder::item).into();
        }
        let key = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        components.add_security_scheme("key", key);
        let paths = &mut description.paths.paths;
        let second_names = [("/health", "/ping"), ("/", "/invocations"), ("/v1/embeddings", "/embeddings")];
        for (first, second) in second_names {
            let Some(mut item) = paths.get(first).cloned() else { continue };
            let operations = [&mut item.get, &mut item.post].into_iter().flatten();
            for id in operations.filter_map(|operation| operation.operation_id.as_mut()) {
                *id = format!("{id}_{}", second.trim_start_matches('/'));
            }
            paths.insert(second.to_owned(), item);
        }
        // `/` is a probe, too.
        let probe = paths.get("/ping").and_then(|item| item.get.clone());
        if let (Some(root), Some(mut probe)) = (paths.get_mut("/"), probe) {
            probe.operation_id = Some("health_root".to_owned());
            root.get = Some(probe);
        }
    }
}

/// Adds the headers of costs to what answers with them: routes that compute, and so may be unable to.
fn describe_costs(description: &mut Document) {
    let header = |name: &str| {
        let kind = if name == "x-compute-type" { Type::String } else { Type::Integer };
        Header::new(Object::with_type(kind))
    };
    let items = description.paths.paths.values_mut();
    let operations = items.filter_map(|item| item.post.as_mut());
    for responses in operations.map(|operation| &mut operation.responses.responses) {
        let computes = responses.contains_key("503");
        if let Some(RefOr::T(success)) = responses.get_mut("200").filter(|_| computes) {
            let names = cost::headers(&Cost::default(), "cpu").map(|(name, _)| name.to_string());
            success.headers.extend(names.map(|name| (name.clone(), header(&name).into())));
        }
        if let Some(RefOr::T(overloaded)) = responses.get_mut("429") {
            overloaded.headers.insert("retry-after".to_owned(), header("retry-after").into());
        }
    }
}

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
