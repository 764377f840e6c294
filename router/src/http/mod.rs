//! HTTP: the router, made from the table of routes (`routes.rs`).
//!
//! Input: an [`AppState`]. Output: answers as `docs/wire-compatibility.md` lists them. What must hold: every
//! answer that is not a success has an error body. Files import from each other and never from this one,
//! which imports them.

mod cohere;
mod compression;
mod deadline;
mod decide;
mod dispatch;
mod embed;
mod error;
mod error_shapes;
mod extract;
mod format;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod health;
mod info;
mod inputs;
mod json;
mod models;
mod named_fields;
mod near_misses;
mod one_or_many;
mod openai;
mod openapi;
mod playground;
mod predict;
#[cfg(test)]
mod random;
mod rerank;
mod responses;
mod routes;
mod schemas;
mod score;
mod settings;
mod shared;
mod similarity;
#[cfg(test)]
pub(crate) mod testing;
mod tidy_paths;
mod tokenize;
mod trace;
mod unknown_fields;
mod vector_encoding;
mod vertex;

use std::sync::Arc;

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request, State},
    http::Method,
    middleware::{self, Next},
    response::Response,
    routing::{MethodFilter, MethodRouter, on, post},
};
use text_embeddings_backend_core::{ModelType, Pool};

use crate::state::AppState;
use dispatch::RequestDispatcher;
use error::ApiError;
use error_shapes::ErrorShape;
use extract::discard;
use routes::{Access, Action, Route};
use tidy_paths::tidy_paths;
use unknown_fields::FieldRules;

pub(crate) use decide::answer_decisions;
pub(crate) use settings::HttpSettings;

/// The router of all routes. Several models have a router each, among which `dispatch` chooses.
pub(crate) fn all_routes(state: &AppState, settings: &HttpSettings) -> Router {
    let shared = model_app(state.clone(), settings);
    let router = if state.models.is_single() {
        shared
    } else {
        let states = state.models.each_alone().map(|models| AppState { models, ..state.clone() });
        let alone = states.map(|state| model_app(state, settings)).collect();
        RequestDispatcher { routes: settings.routes(), shared, alone, state: state.clone() }.into()
    };
    tidy_paths(router.layer(settings.cors()), &settings.routes())
}

/// The router of all routes, for a model.
fn model_app(state: AppState, settings: &HttpSettings) -> Router {
    let routes: Arc<[Route]> = settings.routes().into();
    let main_task = main_task(&state, settings);
    let with_access = |access| {
        let routes = routes.iter().filter(|route| route.access == access);
        routes
            .fold(Router::new(), |router, route| router.route(&route.axum_path(), handler(route, &main_task)))
    };
    let require_key = middleware::from_fn_with_state(state.clone(), require_key);
    let (is_strict, describe) = (state.server.strict_fields, openapi::api_document);
    let field_rules = FieldRules { is_strict, describe };
    let traced = middleware::from_fn_with_state(state.clone(), trace::trace);
    let keyed = with_access(Access::Keyed)
        .route_layer(middleware::from_fn(deadline::keep))
        .route_layer(middleware::from_fn_with_state(field_rules, unknown_fields::name_ignored))
        .route_layer(require_key.clone())
        .route_layer(traced);
    let on_demand = with_access(Access::KeyedOnDemand);
    let on_demand = if Access::KeyedOnDemand.needs_key(state.server.key_everywhere) {
        on_demand.route_layer(require_key)
    } else {
        on_demand
    };
    let (all, server) = (Arc::clone(&routes), state.clone());
    with_access(Access::Open)
        .merge(on_demand)
        .merge(keyed)
        .fallback(async move |request: Request| not_found(&all, request).await)
        .method_not_allowed_fallback(async move |request: Request| {
            method_not_allowed(&routes, &server, request).await
        })
        // `RawBody` has its own limit, which reads on so that the client can read the answer.
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn(error::rewrite))
        .with_state(state)
}

fn handler(route: &Route, main_task: &MethodRouter<AppState>) -> MethodRouter<AppState> {
    let method = if route.method == Method::GET { MethodFilter::GET } else { MethodFilter::POST };
    match route.action {
        Action::Rerank => on(method, rerank::rerank),
        Action::Score => on(method, score::score),
        Action::Predict => on(method, predict::predict),
        Action::Decide => on(method, decide::decide),
        Action::Embed => on(method, embed::embed),
        Action::EmbedAll => on(method, embed::embed_all),
        Action::EmbedSparse => on(method, embed::embed_sparse),
        Action::Similarity => on(method, similarity::similarity),
        Action::OpenAiEmbeddings => on(method, openai::embeddings),
        Action::CohereEmbed => on(method, cohere::embed_texts),
        Action::Tokenize => on(method, tokenize::tokenize),
        Action::Decode => on(method, tokenize::decode),
        Action::Vertex => on(method, vertex::vertex),
        Action::MainTask => main_task.clone(),
        Action::Prompt => on(method, playground::prompt),
        Action::Info => on(method, info::info),
        Action::Models => on(method, models::list_models),
        Action::Model => on(method, models::retrieve_model),
        Action::Health => on(method, health::health),
        Action::Live => on(method, health::live),
        Action::Ready => on(method, health::ready),
        Action::Metrics => on(method, health::metrics),
        Action::Description => on(method, openapi::description),
        Action::DocsRedirect => on(method, openapi::redirect),
        Action::Docs => on(method, openapi::page),
        Action::Playground => on(method, playground::page),
        Action::PlaygroundRedirect => on(method, playground::redirect),
        Action::PlaygroundFile => on(method, playground::named_file),
    }
}

/// The handler that fits the model.
fn main_task(state: &AppState, settings: &HttpSettings) -> MethodRouter<AppState> {
    let model_type = state.served().service.config().model.model_type();
    if settings.main_task_is_similarity(model_type) {
        return post(similarity::similarity);
    }
    match model_type {
        ModelType::Reranker | ModelType::ListwiseReranker => post(rerank::rerank),
        ModelType::Classifier => post(predict::predict),
        ModelType::Decider => post(decide::decide),
        ModelType::Embedding(Pool::Splade) => post(embed::embed_sparse),
        ModelType::Embedding(_) => post(embed::embed),
    }
}

/// Passes requests on that carry the key. Without a key on the server, all requests pass.
async fn require_key(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if state.keys.may_pass(request.headers()) {
        return Ok(next.run(request).await);
    }
    discard(request).await;
    Err(ApiError::unauthorized())
}

// The bodies of refused requests are read: left unread, they would close the connection under the client's
// next request.
async fn not_found(routes: &[Route], request: Request) -> ApiError {
    let path = request.uri().path().to_owned();
    discard(request).await;
    let error = ApiError::not_found(routes, &path);
    // text-embeddings-inference has no routes there but OpenAI's, so its clients do not read this.
    let is_dialects = ["/v1/", "/v2/"].iter().any(|start| path.starts_with(start));
    if is_dialects { error.in_shape(ErrorShape::OpenAi) } else { error }
}

// As in text-embeddings-inference, a client without the key does not learn which methods there are.
async fn method_not_allowed(routes: &[Route], state: &AppState, request: Request) -> ApiError {
    let (path, method) = (request.uri().path().to_owned(), request.method().clone());
    let here = routes::of_path(routes, &path);
    let needs_key = here.iter().any(|route| route.access.needs_key(state.server.key_everywhere));
    let may_pass = !needs_key || state.keys.may_pass(request.headers());
    discard(request).await;
    if may_pass {
        let allowed: Vec<Method> = here.iter().map(|route| route.method.clone()).collect();
        ApiError::method_not_allowed(&path, &allowed, method.as_str())
    } else {
        ApiError::unauthorized()
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::{
        Method,
        routes::{Listed, ROUTES, tests::paths},
        testing::{Server, openai_error},
    };

    const BODY: &str = r#"{"query":"q","texts":["ZZ"]}"#;

    #[tokio::test]
    async fn every_inference_route_tells_its_cost_in_the_headers() {
        let reranker = Server::start().await;
        let embedder = Server::start_with("--model-type embedding").await;
        let text = r#"{"inputs":"ab"}"#;
        let sentences = r#"{"inputs":{"source_sentence":"a","sentences":["b"]}}"#;
        let input = r#"{"input":"ab"}"#;
        for (server, path, body, characters) in [
            (&reranker, "/rerank", BODY, "3"),
            (&reranker, "/", BODY, "3"),
            (&reranker, "/invocations", BODY, "3"),
            (&reranker, "/predict", r#"{"inputs":["q","ab"]}"#, "3"),
            (&embedder, "/embed", text, "2"),
            (&embedder, "/embed_all", text, "2"),
            (&embedder, "/", text, "2"),
            (&embedder, "/invocations", text, "2"),
            (&embedder, "/similarity", sentences, "2"),
            (&embedder, "/embeddings", input, "2"),
            (&embedder, "/v1/embeddings", input, "2"),
            (&embedder, "/v2/embed", r#"{"texts":["ab"]}"#, "2"),
            (&embedder, "/v1/embed", r#"{"texts":["ab"]}"#, "2"),
        ] {
            let answer = server.post(path, body, &[]).await;
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
            let header = |name| answer.header(name).unwrap_or_else(|| unreachable!("{path} has no {name}"));
            let number = |name| header(name).parse::<u64>().unwrap();
            assert_eq!(
                (header("x-compute-type"), header("x-compute-characters")),
                ("cpu", characters),
                "{path}"
            );
            assert!(number("x-compute-tokens") >= 2 && number("x-truncated-texts") == 0, "{path}");
            assert_eq!(number("x-compute-time"), number("x-total-time"), "{path}");
            for name in ["x-tokenization-time", "x-queue-time", "x-inference-time"] {
                assert!(number(name) <= number("x-total-time"), "{path} {name}");
            }
        }
    }

    #[tokio::test]
    async fn keyed_routes_want_the_key_and_open_ones_do_not() {
        let server = Server::start_with("--api-key k3y").await;
        for path in paths(Method::POST) {
            let answer = server.post(path, BODY, &[]).await;
            let message = "this server wants its key as `Authorization: Bearer KEY`";
            let expected = match path {
                "/embeddings" | "/v1/embeddings" => openai_error(message, 401, "Unauthorized"),
                "/v1/rerank" | "/v1/ranking" | "/v1/embed" => {
                    format!(r#"{{"message":"{message}","detail":"{message}"}}"#)
                }
                "/v2/rerank" | "/v2/embed" => format!(r#","message":"{message}"}}"#),
                "/reranking" | "/v1/reranking" | "/score" | "/v1/score" | "/v1/decisions"
                | "/v1/systemone" => format!(
                    r#"{{"error":{{"message":"{message}","type":"Unauthorized","param":null,"code":401}}}}"#
                ),
                _ => format!(r#"{{"error":"{message}","error_type":"Unauthorized"}}"#),
            };
            assert_eq!(answer.status, 401, "{path}");
            assert!(answer.body.ends_with(&expected), "{path}: {}", answer.body);
            assert_ne!(
                server.post(path, BODY, &[("Authorization", "Bearer k3y")]).await.status,
                401,
                "{path}"
            );
        }
        assert_eq!(server.get("/info").await.status, 401);
        for (method, path) in [("GET", "/embed"), ("DELETE", "/v1/rerank"), ("POST", "/info"), ("PUT", "/")] {
            assert_eq!(
                server.send(method, path, b"", &[]).await.status,
                401,
                "the key comes before the method"
            );
            let answer = server.send(method, path, b"", &[("Authorization", "Bearer k3y")]).await;
            assert_eq!(answer.status, 405, "{method} {path}");
        }
        assert_eq!(server.post("/metrics", BODY, &[]).await.status, 405, "an open route tells its methods");
        assert_eq!(server.send("GET", "/info", b"", &[("Authorization", "Bearer k3y")]).await.status, 200);
        assert_eq!(server.post("/rerank", BODY, &[("Authorization", "Bearer k3y")]).await.status, 200);
        for path in ["/health", "/", "/ping", "/metrics"] {
            assert_eq!(server.get(path).await.status, 200, "{path}");
        }
    }

    #[tokio::test]
    async fn every_route_answers_its_methods_and_names_them_to_others() {
        let server = Server::start().await;
        for route in ROUTES.iter().filter(|route| route.listed != Listed::Hidden) {
            let path = route.path.as_ref();
            for method in ["GET", "POST", "HEAD", "PUT", "DELETE"] {
                let has = |method| ROUTES.iter().any(|other| other.method == method && other.path == path);
                let (get, post) = (has(Method::GET), has(Method::POST));
                let answer = server.send(method, path, b"{}", &[]).await;
                let is_allowed = match method {
                    "GET" | "HEAD" => get,
                    "POST" => post,
                    _ => false,
                };
                assert_eq!(answer.status != 405, is_allowed, "{method} {path}: {answer:?}");
                if !is_allowed {
                    let mut allowed: Vec<&str> = answer.header("allow").unwrap().split(',').collect();
                    allowed.sort_unstable();
                    let (expected, named): (&[&str], &str) = match (get, post) {
                        (true, true) => (&["get", "head", "post"], "POST and GET"),
                        (true, false) => (&["get", "head"], "GET"),
                        _ => (&["post"], "POST"),
                    };
                    assert_eq!(allowed, expected, "{method} {path}");
                    let message = format!("`{path}` takes {named}, not {method}");
                    assert!(method == "HEAD" || answer.body.contains(&message), "{}", answer.body);
                }
            }
        }
        let answer = server.get("/rerank").await;
        insta::assert_snapshot!(answer.body, @r#"{"error":"`/rerank` takes POST, not GET","error_type":"Validation"}"#);
    }
}
