//! HTTP: the routes, and what every one of them passes through.
//!
//! Input: an [`AppState`]. Output: answers as `docs/wire-compatibility.md` lists them. What must hold:
//! every answer that is not a success has an error body.

mod auth;
mod deadline;
mod decode;
mod embed;
mod error;
mod extract;
mod format;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod health;
mod info;
mod inputs;
mod openai;
mod openapi;
mod platform;
mod playground;
mod predict;
#[cfg(test)]
mod random;
mod rerank;
mod score;
mod settings;
mod similarity;
#[cfg(test)]
pub(crate) mod testing;
mod tokenize;
mod trace;
mod vertex;
mod words;

use axum::{
    Extension, Router,
    extract::{DefaultBodyLimit, Request, State},
    http::StatusCode,
    middleware,
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post},
};
use serde::{Deserialize, Serialize};
use text_embeddings_backend_core::{ModelType, Pool};
use text_embeddings_core::{service::Answer, tokenization::TruncationDirection};
use utoipa::ToSchema;

use crate::{cost, door::Speech, state::AppState};
use error::ApiError;
use extract::discard;
use format::Format;
use openapi::TAG;
use platform::{PREDICT_ROUTE, VERTEX_ROUTE};
use playground::{PAGE_ROUTE, PROMPT_ROUTE};

pub(crate) use settings::Settings;

/// The paths of `POST`, all of which want the key.
const POST_ROUTES: [&str; 20] = [
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
    "/reranking",
    "/v1/reranking",
    "/score",
    "/v1/score",
    "/predict",
    "/embed",
    "/embed_all",
    "/embed_sparse",
    "/similarity",
    "/embeddings",
    "/v1/embeddings",
    "/tokenize",
    "/decode",
    "/vertex",
    "/",
    "/invocations",
    PROMPT_ROUTE,
];
/// The paths of re-ranking, of which the body says whose it is.
const RERANK_ROUTES: [&str; 5] = ["/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking"];
/// The paths that answer a probe. `/` is one too.
const HEALTH_ROUTES: [&str; 3] = ["/health", "/ping", "/"];
/// The only path of `GET` that wants the key.
const INFO_ROUTE: &str = "/info";
/// The paths of `GET` with another meaning.
const GET_ROUTES: [&str; 7] =
    [INFO_ROUTE, "/metrics", "/health/live", "/health/ready", "/docs", "/api-doc/openapi.json", PAGE_ROUTE];

/// What this module's clients speak.
pub(crate) const SPEECH: Speech = Speech::Http;

/// What answers them.
///
/// # Errors
///
/// None.
#[expect(clippy::unnecessary_wraps, reason = "that of gRPC can fail")]
pub(crate) fn app(state: AppState) -> std::io::Result<Router> {
    Ok(router(state))
}

/// The route table.
fn router(state: AppState) -> Router {
    let platform = &state.server.http.platform;
    let mut open =
        Router::new().route("/health/live", get(health::live)).route("/health/ready", get(health::ready));
    for path in HEALTH_ROUTES.into_iter().chain(platform.health_route.as_deref()) {
        open = open.route(path, get(health::health));
    }
    let model_type = state.service.config().model_type;
    let main_task = if platform.main_task_is_similarity(model_type) {
        post(similarity::similarity)
    } else {
        main_task(model_type)
    };
    let keyed = Router::new()
        .route(INFO_ROUTE, get(info::info))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/decode", post(decode::decode))
        .route(PROMPT_ROUTE, post(playground::prompt))
        .route("/invocations", main_task.clone())
        .route("/", main_task)
        .route(VERTEX_ROUTE, post(vertex::vertex))
        .route("/embed", post(embed::embed))
        .route("/embed_all", post(embed::embed_all))
        .route("/embed_sparse", post(embed::embed_sparse))
        .route("/similarity", post(similarity::similarity));
    let keyed = match platform.predict_route.as_deref() {
        Some(PREDICT_ROUTE) => keyed.route(PREDICT_ROUTE, post(vertex::vertex)),
        other => {
            let keyed = keyed.route(PREDICT_ROUTE, post(predict::predict));
            other.into_iter().fold(keyed, |keyed, path| keyed.route(path, post(vertex::vertex)))
        }
    };
    let keyed = RERANK_ROUTES
        .into_iter()
        .fold(keyed, |keyed, path| keyed.route(path, post(rerank::rerank)))
        .route("/score", post(score::score))
        .route("/v1/score", post(score::score))
        .route("/embeddings", post(openai::embeddings))
        .route("/v1/embeddings", post(openai::embeddings));
    let require_key = middleware::from_fn_with_state(state.clone(), auth::require_key);
    let traced = middleware::from_fn_with_state(state.clone(), trace::trace);
    let documents =
        Router::new().route("/metrics", get(metrics)).merge(openapi::routes()).merge(playground::routes());
    let documents =
        if state.server.key_everywhere { documents.route_layer(require_key.clone()) } else { documents };
    let keyed = keyed.route_layer(middleware::from_fn(deadline::keep));
    open.merge(documents)
        .merge(keyed.route_layer(require_key).route_layer(traced))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        // `RawBody` has its own limit, which reads on so that the client can read the answer.
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn(words::in_the_clients_words))
        .layer(state.server.http.cors())
        .with_state(state)
}

/// What `POST /` and `SageMaker`'s route stand for.
fn main_task(model_type: ModelType) -> MethodRouter<AppState> {
    match model_type {
        ModelType::Reranker | ModelType::ListwiseReranker => post(rerank::rerank),
        ModelType::Classifier => post(predict::predict),
        ModelType::Embedding(Pool::Splade) => post(embed::embed_sparse),
        ModelType::Embedding(_) => post(embed::embed),
    }
}

/// Prometheus metrics.
#[utoipa::path(get, path = "/metrics", tag = TAG, security(()),
    responses((status = 200, description = "Prometheus text", body = String, content_type = "text/plain")))]
async fn metrics(State(state): State<AppState>) -> impl IntoResponse {
    state.metrics.answer()
}

// The body is read here too: left unread, it would close the connection under the client's next request.
async fn not_found(request: Request) -> ApiError {
    let path = request.uri().path().to_owned();
    discard(request).await;
    let gets = [&HEALTH_ROUTES[..], &GET_ROUTES].concat().join(", ");
    ApiError::not_found(&path, &format!("POST {} and GET {gets}", POST_ROUTES.join(", ")))
}

// As in text-embeddings-inference, a client without the key is told that, and not which methods there are.
async fn method_not_allowed(State(state): State<AppState>, request: Request) -> ApiError {
    let (path, method) = (request.uri().path().to_owned(), request.method().clone());
    let path = path.as_str();
    let predict_route = &state.server.http.platform.predict_route;
    let is_keyed =
        path == INFO_ROUTE || POST_ROUTES.contains(&path) || predict_route.as_deref() == Some(path);
    let may_pass = !is_keyed || state.keys.may_pass(request.headers());
    discard(request).await;
    if may_pass { ApiError::method_not_allowed(method.as_str(), path) } else { ApiError::unauthorized() }
}

/// The default of fields that are on unless a request says otherwise.
fn yes() -> bool {
    true
}

/// From which end a text is cut, in TEI's two spellings.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[schema(as = TruncationDirection)]
enum TruncationSide {
    #[default]
    #[serde(alias = "right")]
    Right,
    #[serde(alias = "left")]
    Left,
}

impl From<TruncationSide> for TruncationDirection {
    fn from(side: TruncationSide) -> Self {
        match side {
            TruncationSide::Right => Self::Right,
            TruncationSide::Left => Self::Left,
        }
    }
}

/// An inference route's answer: the body that `body` makes of the value, the cost as headers and in the log.
fn respond<T, B: Serialize>(
    state: &AppState,
    format: Format,
    route: &'static str,
    answer: Answer<T>,
    body: impl FnOnce(T) -> B,
) -> Response {
    let Answer { value, cost } = answer;
    cost::log(route, &cost);
    let headers: axum::http::HeaderMap = cost::headers(&cost, state.compute_type).into_iter().collect();
    // The cost once more, for the request's span.
    (headers, Extension(cost), format.respond(StatusCode::OK, &body(value))).into_response()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::{POST_ROUTES, testing::Server};
    use std::time::{Duration, Instant};
    use tokio::{io::AsyncWriteExt, net::TcpStream};

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
        for path in POST_ROUTES {
            let answer = server.post(path, BODY, &[]).await;
            let message = "this server wants its key as `Authorization: Bearer KEY`";
            let expected = match path {
                "/embeddings" | "/v1/embeddings" => {
                    format!(r#"{{"message":"{message}","code":401,"type":"Unauthorized"}}"#)
                }
                "/v1/rerank" => format!(r#"{{"message":"{message}","detail":"{message}"}}"#),
                "/v2/rerank" => format!(r#","message":"{message}"}}"#),
                "/reranking" | "/v1/reranking" | "/score" | "/v1/score" => format!(
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
    async fn routes_of_embedding_models_say_what_is_wrong() {
        let server = Server::start().await;
        let sentences = r#"{"inputs":{"source_sentence":"a","sentences":["b"]}}"#;
        for (path, body) in [
            ("/embed", r#"{"inputs":"a"}"#),
            ("/embed_all", r#"{"inputs":[1]}"#),
            ("/embed_sparse", r#"{"inputs":["a",[1]]}"#),
            ("/similarity", sentences),
        ] {
            let answer = server.post(path, body, &[]).await;
            let sparse = if path == "/embed_sparse" { " with SPLADE pooling" } else { "" };
            let expected = format!(
                r#"{{"error":"Backend error: Model is not an embedding model{sparse}","error_type":"Backend"}}"#
            );
            assert_eq!((answer.status, answer.body), (424, expected), "{path}");
        }
        for path in ["/embeddings", "/v1/embeddings"] {
            let answer = server.post(path, r#"{"input":"a"}"#, &[]).await;
            let expected =
                r#"{"message":"Backend error: Model is not an embedding model","code":424,"type":"Backend"}"#;
            assert_eq!((answer.status, answer.body.as_str()), (424, expected), "{path}");
        }
    }

    #[tokio::test]
    async fn what_is_not_a_route_is_told_which_there_are() {
        let server = Server::start().await;
        let answer = server.post("/rerang?x=1", BODY, &[]).await;
        assert_eq!(answer.status, 404);
        insta::assert_snapshot!(answer.body, @r#"{"error":"there is no route `/rerang`; there are POST /rerank, /v1/rerank, /v2/rerank, /reranking, /v1/reranking, /score, /v1/score, /predict, /embed, /embed_all, /embed_sparse, /similarity, /embeddings, /v1/embeddings, /tokenize, /decode, /vertex, /, /invocations, /playground/prompt and GET /health, /ping, /, /info, /metrics, /health/live, /health/ready, /docs, /api-doc/openapi.json, /playground","error_type":"Validation"}"#);
        let answer = server.get("/rerank").await;
        assert_eq!((answer.status, answer.header("allow")), (405, Some("post")));
        insta::assert_snapshot!(answer.body, @r#"{"error":"`/rerank` does not take GET: see the answer's `Allow` header","error_type":"Validation"}"#);
        let answer = server.post("/metrics", BODY, &[]).await;
        assert_eq!((answer.status, answer.header("allow")), (405, Some("get,head")));
        let answer = server.send("DELETE", "/", b"", &[]).await;
        assert_eq!(answer.status, 405);
        let allowed = answer.header("allow").unwrap();
        assert!(allowed.contains("get") && allowed.contains("post"), "{allowed}");
    }

    #[tokio::test]
    async fn bodies_that_are_no_json_are_refused_and_the_server_goes_on() {
        let server = Server::start().await;
        let post = async |body: &[u8], media_type: &str| {
            let headers = [("Content-Type", media_type)];
            server.send("POST", "/rerank", body, if media_type.is_empty() { &[] } else { &headers }).await
        };
        assert_eq!(post(BODY.as_bytes(), "").await.status, 200);
        assert_eq!(post(BODY.as_bytes(), "application/json; charset=utf-8").await.status, 200);
        let form = post(BODY.as_bytes(), "application/x-www-form-urlencoded").await;
        assert_eq!(form.status, 415);
        insta::assert_snapshot!(form.body, @r#"{"error":"the request body must be JSON or MessagePack, with `Content-Type: application/json` or `application/msgpack`, not `application/x-www-form-urlencoded`","error_type":"Validation"}"#);
        let broken = post(br#"{"query":"q","texts":["a"#, "application/json").await;
        assert_eq!(broken.status, 400);
        insta::assert_snapshot!(broken.body, @r#"{"error":"the request body is not JSON: EOF while parsing a string at line 1 column 24","error_type":"Validation"}"#);
        for (body, status) in [
            (&b"\xff"[..], 400),
            (br#"{"query":"\ud800","texts":["a"]}"#, 400),
            (br#"{"query":"q","texts":["a"],"truncation_direction":null}"#, 400),
            (b"", 400),
            (b"null", 422),
            (b"[1]", 422),
        ] {
            let answer = post(body, "application/json").await;
            assert_eq!(answer.status, status, "{}", answer.body);
            assert!(answer.body.ends_with(r#""error_type":"Validation"}"#), "{}", answer.body);
        }
        assert_eq!(post(BODY.as_bytes(), "application/json").await.status, 200);
    }

    #[tokio::test]
    async fn without_a_free_permit_the_client_is_asked_to_come_back() {
        let server = Server::start_with("--max-concurrent-requests 1").await;
        server.control.hold(true);
        let refused = async {
            server.control.batches(1).await;
            let refused = server.post("/rerank", BODY, &[]).await;
            server.control.hold(false);
            refused
        };
        let (first, refused) = tokio::join!(server.post("/rerank", BODY, &[]), refused);
        assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
        assert_eq!(refused.body, r#"{"error":"Model is overloaded","error_type":"Overloaded"}"#);
        assert_eq!(first.status, 200);
        assert_eq!(server.post("/rerank", BODY, &[]).await.status, 200);
    }

    #[tokio::test]
    async fn a_client_that_goes_away_does_not_stop_the_others() {
        let server = Server::start().await;
        server.control.hold(true);
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let head = format!("POST /rerank HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", BODY.len());
        stream.write_all(format!("{head}{BODY}").as_bytes()).await.unwrap();
        server.control.batches(1).await;
        drop(stream);
        let other = server.post("/rerank", BODY, &[]);
        server.control.hold(false);
        assert_eq!(other.await.status, 200);
    }

    #[tokio::test]
    async fn requests_in_flight_are_answered_before_the_server_ends() {
        let mut server = Server::start().await;
        server.control.hold(true);
        let control = server.control.clone();
        let head = format!("POST /rerank HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", BODY.len());
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(format!("{head}{BODY}").as_bytes()).await.unwrap();
        control.batches(1).await;
        server.stop();
        while TcpStream::connect(server.address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        control.hold(false);
        let mut answer = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("0.7310586"), "{answer}");
        server.ended().await;
    }

    #[tokio::test]
    async fn the_drain_has_an_end() {
        let mut server = Server::start_draining("", Duration::from_millis(50)).await;
        server.control.hold(true);
        let control = server.control.clone();
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let head = format!("POST /rerank HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", BODY.len());
        stream.write_all(format!("{head}{BODY}").as_bytes()).await.unwrap();
        control.batches(1).await;
        let start = Instant::now();
        server.stop();
        server.ended().await;
        assert!(start.elapsed() < Duration::from_secs(10));
        control.hold(false);
    }

    #[tokio::test]
    async fn browsers_are_allowed_in_by_origin() {
        let preflight = [
            ("Origin", "https://a.example"),
            ("Access-Control-Request-Method", "POST"),
            ("Access-Control-Request-Headers", "content-type"),
        ];
        for (flags, expected) in [
            ("", Some("*")),
            ("--cors-allow-origin https://a.example", Some("https://a.example")),
            ("--cors-allow-origin https://b.example", None),
        ] {
            let server = Server::start_with(&format!("--api-key k {flags}")).await;
            let answer = server.send("OPTIONS", "/rerank", b"", &preflight).await;
            assert_eq!(
                (answer.status, answer.header("access-control-allow-origin")),
                (200, expected),
                "{flags}"
            );
        }
    }
}
