//! Several models behind one port: each request goes to the router of its model.
//!
//! Input: a request. Output: the answer of the router that the model has, which is the router of a server
//! with this model alone. The model is the one of the path `/models/NAME/…`, else of the body's `model`, else
//! the first that can do the route's task. What must hold: a client without the key learns no names; a name
//! that no model has is refused; a request that concerns no model is answered for all of them.

use std::{sync::Arc, time::Instant};

use axum::{
    Router,
    extract::{FromRequest, Request},
    http::{Method, Uri},
    response::Response,
};
use futures_util::future::OptionFuture;
use percent_encoding::percent_decode_str;
use text_embeddings_core::error::Error;
use text_embeddings_door::Account;
use tower_service::Service;

use super::{
    deadline,
    error::{ApiError, ErrorForm},
    extract::{RawBody, discard},
    routes::{Access, Action, Purpose, Route},
};
use crate::{
    models::{ChosenModel, Models, PendingModel, RequestTask, UnknownModel},
    state::AppState,
};

/// The beginning of the paths that name a model.
const MODELS: &str = "/models/";

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
        // The route decides the form of an error.
        let own = self.own_path(request.uri()).map(|(_, rest)| rest);
        if own.is_none()
            && let Some((error, path)) = self.misnamed_model(&request)
        {
            let form = ErrorForm::from_headers(&path, request.headers());
            discard(request).await;
            return form.refused_answer(error);
        }
        let form = ErrorForm::from_headers(own.as_ref().unwrap_or(request.uri()).path(), request.headers());
        let answered = match self.choose_model(request).await {
            Ok((model, request)) => self.answer_from(model, request).await,
            Err(error) => Err(error),
        };
        answered.unwrap_or_else(|error| form.refused_answer(error))
    }

    async fn answer_from(&self, model: Option<ChosenModel>, request: Request) -> Result<Response, ApiError> {
        match model {
            None => {
                let Ok(response) = self.shared.clone().call(request).await;
                Ok(response)
            }
            Some(ChosenModel::Served(place)) => {
                let router = self.alone[place].clone();
                Ok(self.state.models.all_models()[place].answer_named(router, request).await)
            }
            Some(ChosenModel::Pending(model)) => {
                let limit = deadline::limit_of(request.headers())?;
                let account = request.extensions().get::<Account>().cloned();
                let evicted = OptionFuture::from(account.as_ref().map(Account::until_evicted));
                let load = async {
                    tokio::select! {
                        loaded = self.state.current.load_model(&model) => loaded.map_err(ApiError::from),
                        Some(cut) = evicted => Err(ApiError::cut(cut)),
                    }
                };
                let came = Instant::now();
                match deadline::answer_within(limit, load).await.flatten() {
                    Ok(mut applications) => {
                        let left = limit.map(|limit| limit.saturating_sub(came.elapsed()));
                        let Ok(response) =
                            deadline::answer_within(left, applications.first.call(request)).await?;
                        Ok(response)
                    }
                    Err(error) => {
                        // Otherwise the connection would end with this answer, and a client may already have
                        // sent its next request.
                        discard(request).await;
                        Err(error)
                    }
                }
            }
        }
    }

    /// The model that a request is for, and the request as it is read there; no model if it concerns none or
    /// all of them.
    async fn choose_model(&self, mut request: Request) -> Result<(Option<ChosenModel>, Request), ApiError> {
        if let Some((model, uri)) = self.own_path(request.uri()) {
            return self.choose_by_path(model, uri, request);
        }
        let Some(action) = self.action_of(&request) else {
            return Ok((self.probed_model(&request)?, request));
        };
        // Without the key, every router answers the same.
        if !self.state.keys.may_pass(request.headers()) {
            return Ok((None, request));
        }
        let name = if action == Action::Info {
            query_model(request.uri())
        } else {
            let (parts, body) = request.into_parts();
            let raw = RawBody::from_request(Request::from_parts(parts.clone(), body), &self.state).await?;
            let (raw, name) = raw.named_model(&parts.headers).await?;
            request = Request::from_parts(parts, axum::body::Body::empty());
            raw.put_back(&mut request);
            name
        };
        let task = match action.purpose() {
            Purpose::Task(task) => Some(task),
            Purpose::Prompt => Some(RequestTask::Rerank),
            Purpose::Tokens | Purpose::MainTask | Purpose::Server => None,
        };
        let chosen = self.state.models.find_model(name.as_deref(), task);
        Ok((Some(chosen.map_err(|error| ApiError::unknown_model(&error))?), request))
    }

    /// The same for a request on the path of a model. A model is loaded only for a request that it is to
    /// compute, by a client with the key; others learn no more of it than of the server.
    fn choose_by_path(
        &self,
        model: ChosenModel,
        uri: Uri,
        mut request: Request,
    ) -> Result<(Option<ChosenModel>, Request), ApiError> {
        let whole = std::mem::replace(request.uri_mut(), uri);
        if let ChosenModel::Pending(pending) = &model {
            if self.action_of(&request).is_some() && self.state.keys.may_pass(request.headers()) {
                *request.uri_mut() = whole;
            } else {
                if self.asks_for_health(&request) {
                    check_loading(pending)?;
                }
                return Ok((None, request));
            }
        }
        Ok((Some(model), request))
    }

    /// The model whose path this is, and the path without it.
    fn own_path(&self, uri: &Uri) -> Option<(ChosenModel, Uri)> {
        let path = percent_decode_str(uri.path()).decode_utf8().ok()?;
        let (name, rest) = find_by_path(&self.state.models, &path)?;
        let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let model = self.state.models.find_model(Some(name), None).ok()?;
        // The address of a model alone is its main route, as on a server with one model.
        let rest = if rest.is_empty() { "/" } else { rest };
        Some((model, format!("{rest}{query}").parse().ok()?))
    }

    /// The error for a path `/models/NAME/…` with a name that no model has, and the rest of the path. The
    /// name may have slashes: it ends where the longest path of a route begins.
    fn misnamed_model(&self, request: &Request) -> Option<(ApiError, String)> {
        let path = percent_decode_str(request.uri().path()).decode_utf8().ok()?;
        let path = path.strip_prefix(MODELS)?;
        let rests = self.routes.iter().map(|route| route.path.as_ref()).filter(|rest| path.ends_with(rest));
        let rest = rests.max_by_key(|rest| rest.len()).unwrap_or_default();
        let name = path.strip_suffix(rest).filter(|name| !name.is_empty())?;
        let error = self.state.models.find_model(Some(name), None).err()?;
        Some((self.unknown_model(error, request), rest.to_owned()))
    }

    /// The error for an unknown name, which tells the names to a client with the key only.
    fn unknown_model(&self, error: UnknownModel, request: &Request) -> ApiError {
        let may_learn = self.state.keys.may_pass(request.headers());
        ApiError::unknown_model(&if may_learn { error } else { error.without_names() })
    }

    fn asks_for_health(&self, request: &Request) -> bool {
        matches!(self.route_of(request).map(|route| route.action), Some(Action::Health | Action::Ready))
    }

    /// The model whose health a probe asks for, `/health?model=NAME`.
    fn probed_model(&self, request: &Request) -> Result<Option<ChosenModel>, ApiError> {
        let (true, Some(name)) = (self.asks_for_health(request), query_model(request.uri())) else {
            return Ok(None);
        };
        match self.state.models.find_model(Some(&name), None) {
            Ok(ChosenModel::Pending(model)) => check_loading(&model).map(|()| None),
            Ok(served) => Ok(Some(served)),
            Err(error) => Err(self.unknown_model(error, request)),
        }
    }

    /// The action of a request that concerns one model.
    fn action_of(&self, request: &Request) -> Option<Action> {
        let route = self.route_of(request)?;
        let concerns_one = route.access == Access::Keyed && route.action != Action::Models;
        concerns_one.then_some(route.action)
    }

    fn route_of(&self, request: &Request) -> Option<&Route> {
        // Whoever serves GET serves HEAD, too.
        let method = if request.method() == Method::HEAD { &Method::GET } else { request.method() };
        let path = request.uri().path();
        self.routes.iter().find(|route| route.method == method && route.path == path)
    }
}

/// A model that is loaded later is as healthy as the server, unless loading it failed the last time.
fn check_loading(model: &PendingModel) -> Result<(), ApiError> {
    match model.failure.read_reason() {
        Some(_) => Err(Error::Unhealthy.into()),
        None => Ok(()),
    }
}

/// The name of the model whose requests come on this path, `/models/NAME/…`, and the rest of the path.
fn find_by_path<'a>(models: &Models, path: &'a str) -> Option<(&'a str, &'a str)> {
    let path = path.strip_prefix(MODELS)?;
    let fitting = models
        .known_names()
        .filter(|name| path.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')));
    // Of two names that fit, such as `a` and `a/b`, the longer one is meant.
    let name = fitting.max_by_key(|name| name.len())?;
    Some(path.split_at(name.len()))
}

/// The name in a query such as `?model=NAME`.
fn query_model(uri: &Uri) -> Option<String> {
    let name = uri.query()?.split('&').find_map(|field| field.strip_prefix("model="))?;
    Some(percent_decode_str(name).decode_utf8_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use crate::http::testing::{Server, openai_error};
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
            ("/models/r", RERANK.to_owned(), 200, r#""index":0"#),
            ("/models/org/e", EMBED.to_owned(), 200, "[["),
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
            ("/rerank", format!(r#"{{"error":"{message}","error_type":"Validation"}}"#)),
            ("/v1/embeddings", openai_error(message, 404, "Validation")),
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
        let key = [("Authorization", "Bearer k")];
        for (path, name) in [
            ("/models/x/embed", "x"),
            ("/models/org/x/v2/embed", "org/x"),
            ("/models/ra", "ra"),
            ("/models/x/y", "x/y"),
        ] {
            let start = format!("there is no model `{name}`");
            let answer = server.post(path, body, &key).await;
            let expected =
                format!("{start}: choose one of org/e, text-embedding-3-small, r, rerank-v3.5, c\"");
            assert!(answer.status == 404 && answer.body.contains(&expected), "{}", answer.body);
            let answer = server.post(path, body, &[]).await;
            assert!(answer.status == 404 && answer.body.contains(&format!("{start}\"")), "{}", answer.body);
        }
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
        for (path, status) in [
            ("/health", 503),
            ("/health/ready", 503),
            ("/models/c/health", 503),
            ("/health?model=c", 503),
            ("/health/ready?a=b&model=c", 503),
            ("/health?model=r", 200),
            ("/health/ready?model=org%2Fe", 200),
            ("/health/live", 200),
        ] {
            assert_eq!(server.get(path).await.status, status, "{path}: one model does not compute");
            assert_eq!(server.send("HEAD", path, b"", &[]).await.status, status, "{path}, without the body");
        }
    }

    #[tokio::test]
    async fn a_probe_of_one_model_needs_no_key_and_tells_no_names() {
        let server = three_models("--api-key k").await;
        assert_eq!(server.get("/health?model=rerank-v3.5").await.status, 200);
        let (key, short) = (("Authorization", "Bearer k"), "there is no model `x`");
        let full = format!("{short}: choose one of org/e, text-embedding-3-small, r, rerank-v3.5, c");
        for (headers, message) in [(&[][..], short), (&[key], full.as_str())] {
            let answer = server.send("GET", "/health?model=x", b"", headers).await;
            let body: Value = serde_json::from_str(&answer.body).unwrap();
            assert_eq!((answer.status, body["error"].as_str()), (404, Some(message)));
        }
        // As in text-embeddings-inference, one model has no name.
        assert_eq!(Server::start().await.get("/health?model=x").await.status, 200);
    }
}
