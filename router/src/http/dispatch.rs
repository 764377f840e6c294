//! Several models behind one port: each request goes to the router of its model.
//!
//! Input: a request. Output: the answer of the router that the model has, which is the router of a server
//! with this model alone. The model is the one of the path `/models/NAME/…`, else of the body's `model`, else
//! the first that can do the route's task. What must hold: a client without the key learns no names; a name
//! that no model has is refused; a request that concerns no model is answered for all of them.

use std::sync::Arc;

use axum::{
    Router,
    extract::{FromRequest, Request},
    http::Uri,
    response::Response,
};
use percent_encoding::percent_decode_str;
use tower_service::Service;

use super::{
    error::{ApiError, refused_answer},
    extract::RawBody,
    format::BodyFormat,
    routes::{Access, Action, Method, Purpose, Route},
};
use crate::{
    models::{RequestTask, Served},
    state::AppState,
};

/// Sends each request to the router of its model.
pub(super) struct RequestDispatcher {
    pub(super) state: AppState,
    pub(super) routes: Vec<Route>,
    /// Answers requests that concern no model.
    pub(super) shared: Router,
    /// A router for each model.
    pub(super) alone: Vec<Router>,
}

impl From<RequestDispatcher> for Router {
    fn from(dispatcher: RequestDispatcher) -> Self {
        let dispatcher = Arc::new(dispatcher);
        Self::new().fallback(async move |request: Request| dispatcher.answer_request(request).await)
    }
}

impl RequestDispatcher {
    async fn answer_request(&self, request: Request) -> Response {
        let path = request.uri().path().to_owned();
        let format = BodyFormat::of_answer(request.headers());
        match self.choose_model(request).await {
            Ok((place, request)) => {
                let router = place.map_or(&self.shared, |place| &self.alone[place]);
                let Ok(mut response) = router.clone().call(request).await;
                if let Some(place) = place {
                    self.state.models.all_models()[place].name_in(response.headers_mut());
                }
                response
            }
            Err(error) => refused_answer(error, &path, format),
        }
    }

    /// The place of the model that a request is for, and the request as this model's router reads it. No
    /// place stands for all models.
    async fn choose_model(&self, mut request: Request) -> Result<(Option<usize>, Request), ApiError> {
        if let Some((place, uri)) = self.own_path(request.uri()) {
            *request.uri_mut() = uri;
            return Ok((Some(place), request));
        }
        let Some(action) = self.action_of(&request) else { return Ok((None, request)) };
        // Without the key, every router answers the same.
        if !self.state.keys.may_pass(request.headers()) {
            return Ok((None, request));
        }
        let name = if action == Action::Info {
            query_model(request.uri())
        } else {
            let (parts, body) = request.into_parts();
            let raw = RawBody::from_request(Request::from_parts(parts.clone(), body), &self.state).await?;
            let (raw, name) = raw.named_model(&parts.headers).await;
            request = Request::from_parts(parts, axum::body::Body::empty());
            raw.put_back(&mut request);
            name
        };
        let task = match action.purpose() {
            Purpose::Task(task) => Some(task),
            Purpose::Prompt => Some(RequestTask::Rerank),
            Purpose::Tokens | Purpose::MainTask | Purpose::Server => None,
        };
        let place = self.state.models.find_model(name.as_deref(), task);
        let place = place.map_err(|error| ApiError::unknown_model(&error))?;
        Ok((Some(place), request))
    }

    /// The place of the model whose path this is, and the path without it.
    fn own_path(&self, uri: &Uri) -> Option<(usize, Uri)> {
        let path = percent_decode_str(uri.path()).decode_utf8().ok()?;
        let (place, rest) = find_by_path(self.state.models.all_models(), &path)?;
        let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        Some((place, format!("{rest}{query}").parse().ok()?))
    }

    /// The action of a request that concerns one model.
    fn action_of(&self, request: &Request) -> Option<Action> {
        let method = match request.method().as_str() {
            "GET" => Method::Get,
            "POST" => Method::Post,
            _ => return None,
        };
        let path = request.uri().path();
        let route = self.routes.iter().find(|route| route.method == method && route.path == path)?;
        let concerns_one = route.access == Access::Keyed && route.action != Action::Models;
        concerns_one.then_some(route.action)
    }
}

/// The place of the model whose requests come on this path, `/models/NAME/…`, and the rest of the path.
fn find_by_path<'a>(models: &[Arc<Served>], path: &'a str) -> Option<(usize, &'a str)> {
    let path = path.strip_prefix("/models/")?;
    let mut found: Option<(usize, &str)> = None;
    for (place, served) in models.iter().enumerate() {
        for name in served.all_names() {
            let Some(rest) = path.strip_prefix(name).filter(|rest| rest.starts_with('/')) else { continue };
            // Of two names that fit, such as `a` and `a/b`, the longer one is meant.
            if found.is_none_or(|(_, other)| rest.len() < other.len()) {
                found = Some((place, rest));
            }
        }
    }
    found
}

/// The name in a query such as `?model=NAME`.
fn query_model(uri: &Uri) -> Option<String> {
    let name = uri.query()?.split('&').find_map(|field| field.strip_prefix("model="))?;
    Some(percent_decode_str(name).decode_utf8_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use crate::http::testing::Server;
    use serde_json::{Value, json};

    /// A server with an embedding model, a re-ranker and a classifier.
    async fn three_models(flags: &str) -> Server {
        let models = "--model-type embedding --served-model-name org/e --alias text-embedding-3-small --and \
                      --served-model-name r --alias rerank-v3.5 --and --model-type classifier --served-model-name c";
        Server::start_with(&format!("{flags} {models}")).await
    }

    const RERANK: &str = r#"{"query":"q","texts":["ZZ"]}"#;
    const EMBED: &str = r#"{"inputs":"ab"}"#;

    #[tokio::test]
    async fn a_request_is_answered_by_its_model() {
        let server = three_models("").await;
        let named = |model: &str| json!({ "model": model, "query": "q", "documents": ["ZZ"] }).to_string();
        let input = |model: Value| json!({ "model": model, "input": "ab" }).to_string();
        // The model that answers shows by the form of its answer, or by its refusal of the task.
        for (path, body, status, part) in [
            ("/rerank", RERANK.to_owned(), 200, r#""index":0"#),
            ("/embed", EMBED.to_owned(), 200, "[["),
            ("/", EMBED.to_owned(), 200, "[["),
            ("/predict", EMBED.to_owned(), 422, "pairs"),
            ("/v1/rerank", named("r"), 200, r#""model":"r""#),
            ("/v2/rerank", named("rerank-v3.5"), 200, r#""index":0"#),
            ("/v1/embeddings", input("text-embedding-3-small".into()), 200, r#""model":"org/e""#),
            ("/v1/embeddings", input(Value::Null), 200, r#""model":"org/e""#),
            ("/v1/embeddings", input("r".into()), 424, "not an embedding model"),
            ("/models/org/e/embed", EMBED.to_owned(), 200, "[["),
            ("/models/org%2Fe/", EMBED.to_owned(), 200, "[["),
            ("/models/r/", RERANK.to_owned(), 200, r#""index":0"#),
            ("/models/r/embed", EMBED.to_owned(), 424, "not an embedding model"),
            ("/models/c/predict", EMBED.to_owned(), 200, "sleepy"),
            // The path's model wins.
            ("/models/r/v1/rerank", named("org/e"), 200, r#""model":"r""#),
        ] {
            let answer = server.post(path, &body, &[]).await;
            assert_eq!(answer.status, status, "{path} {body}: {}", answer.body);
            assert!(answer.body.contains(part), "{path} {body}: {}", answer.body);
            let is_embedders = [r#""org/e""#, "[["].contains(&part.trim_start_matches(r#""model":"#));
            assert_eq!(answer.header("x-model") == Some("org/e"), is_embedders, "{path} {body}");
        }
        // A body that is parsed on another thread.
        let long = json!({ "inputs": "a".repeat(300), "pad": "b".repeat(70_000), "model": "c" }).to_string();
        let answer = server.post("/predict", &long, &[]).await;
        assert!(answer.body.contains("sleepy"), "{}", answer.body);
        let packed = rmp_serde::to_vec_named(&json!({ "inputs": "ab", "model": "c" })).unwrap();
        let answer = server
            .send(
                "POST",
                "/predict",
                &packed,
                &[("Content-Type", "application/msgpack"), ("Accept", "application/json")],
            )
            .await;
        assert!(answer.status == 200 && answer.body.contains("sleepy"), "{}", answer.body);
    }

    #[tokio::test]
    async fn an_embedding_model_re_ranks_only_where_no_re_ranker_does() {
        for (models, expected) in [
            ("--model-type embedding --served-model-name e --and --served-model-name r", "r"),
            ("--served-model-name r --and --model-type embedding --served-model-name e", "r"),
            (
                "--model-type classifier --served-model-name c --and --model-type embedding --served-model-name e",
                "e",
            ),
            (
                "--model-type classifier --served-model-name c --and --model-type embedding --no-cosine-rerank",
                "c",
            ),
        ] {
            let server = Server::start_with(models).await;
            let body = json!({"query": "q", "documents": ["ZZ"]}).to_string();
            let answer = server.post("/v1/rerank", &body, &[]).await;
            let (status, part) = match expected {
                "c" => (424, "it is a classifier".to_owned()),
                name => (200, format!(r#""model":"{name}""#)),
            };
            assert!(answer.status == status && answer.body.contains(&part), "{models}: {}", answer.body);
        }
        let server =
            Server::start_with("--model-type embedding --served-model-name e --and --served-model-name r")
                .await;
        let body =
            json!({"model": "e", "query": "ZZZb", "documents": ["ZZZb"], "raw_scores": true}).to_string();
        let answer = server.post("/v1/rerank", &body, &[]).await;
        assert!(answer.body.contains(r#""relevance_score":1.0"#), "{}", answer.body);
    }

    #[tokio::test]
    async fn an_unknown_model_is_refused_in_the_form_of_the_route_to_clients_with_the_key() {
        let server = three_models("--api-key k").await;
        let message = "there is no model `x`: choose one of org/e, text-embedding-3-small, r, rerank-v3.5, c";
        let body = r#"{"model":"x","query":"q","documents":["a"],"input":"a","inputs":"a"}"#;
        for (path, expected) in [
            ("/embed", format!(r#"{{"error":"{message}","error_type":"Validation"}}"#)),
            ("/v1/embeddings", format!(r#"{{"message":"{message}","code":404,"type":"Validation"}}"#)),
            ("/v1/rerank", format!(r#"{{"detail":"{message}","message":"{message}"}}"#)),
        ] {
            let answer = server.post(path, body, &[("Authorization", "Bearer k")]).await;
            assert_eq!(answer.status, 404, "{path}");
            let (found, expected): (Value, Value) =
                (serde_json::from_str(&answer.body).unwrap(), serde_json::from_str(&expected).unwrap());
            assert_eq!(found, expected, "{path}");
            let answer = server.post(path, body, &[]).await;
            assert!(answer.status == 401 && !answer.body.contains("org/e"), "{}", answer.body);
        }
        let answer = server.send("GET", "/info?model=x", b"", &[("Authorization", "Bearer k")]).await;
        assert_eq!(answer.status, 404);
        assert_eq!(server.post("/models/x/embed", body, &[("Authorization", "Bearer k")]).await.status, 404);
    }

    #[tokio::test]
    async fn what_concerns_no_model_is_answered_for_all() {
        let server = three_models("").await;
        for path in ["/health", "/health/ready", "/models/r/health", "/metrics", "/docs/"] {
            let answer = server.get(path).await;
            let model = if path.starts_with("/models/r/") { Some("r") } else { None };
            assert_eq!((answer.status, answer.header("x-model")), (200, model), "{path}");
        }
        for (path, name) in [("/info", "org/e"), ("/info?model=rerank-v3.5", "r"), ("/models/c/info", "c")] {
            let info: Value = serde_json::from_str(&server.get(path).await.body).unwrap();
            assert_eq!(info["served_model_name"], name, "{path}");
        }
        let list: Value = serde_json::from_str(&server.get("/v1/models").await.body).unwrap();
        let ids: Vec<&str> =
            list["data"].as_array().unwrap().iter().map(|it| it["id"].as_str().unwrap()).collect();
        assert_eq!((list["object"].as_str().unwrap(), ids), ("list", vec!["org/e", "r", "c"]));
        // A body that is too large, or no body at all, is refused as by a server with one model.
        assert_eq!(server.post("/embed", &"a".repeat(100_001), &[]).await.status, 413);
        assert_eq!(server.post("/embed", "{", &[]).await.status, 400);
        assert_eq!(server.send("PUT", "/embed", b"", &[]).await.status, 405);
        assert_eq!(server.get("/nothing").await.status, 404);
        server.control.break_all(true);
        assert_eq!(server.post("/models/c/predict", EMBED, &[]).await.status, 424);
        assert_eq!(server.get("/health").await.status, 503, "one model does not compute");
        assert_eq!(server.get("/models/c/health").await.status, 503);
    }
}
