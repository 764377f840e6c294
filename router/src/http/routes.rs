//! The routes of HTTP as data.
//!
//! Output: [`ROUTES`], one row for each method of each path. The router, the check of the key, the answers
//! 404 and 405, the format of errors and the second names in the `OpenAPI` description follow from the rows.
//! What must hold: no two rows have the same path and method; the first row of an action has the path that
//! its handler is described under.

use std::borrow::Cow;

use axum::http::Method;

use super::error_shapes::ErrorShape;
use crate::models::RequestTask;

/// The path of Vertex AI's requests, in addition to the one that the platform names.
pub(crate) const VERTEX_PATH: &str = "/vertex";
/// The only path of this server that the platform's route for Vertex AI may replace.
pub(crate) const PREDICT_PATH: &str = "/predict";
/// The path on which `documents` are answered as Cohere's second version answers them.
pub(crate) const COHERE_V2_PATH: &str = "/v2/rerank";
/// The path on which texts are embedded as Cohere's second version embeds them.
pub(crate) const COHERE_V2_EMBED_PATH: &str = "/v2/embed";
/// The `OpenAPI` description.
pub(crate) const DESCRIPTION_PATH: &str = "/api-doc/openapi.json";
/// The models. One of them is below this path, under its name, which may have slashes.
pub(crate) const MODEL_PATH: &str = "/v1/models/{model}";
/// The page to try the model on.
pub(crate) const PLAYGROUND_PATH: &str = "/playground";
/// The end of a path that stands for any file of a folder, and the one that stands for the name of a model.
const ANY_FILE: &str = "{file}";
const ANY_MODEL: &str = "{model}";
/// A longer path is not compared with the routes: comparing takes time proportional to its length.
const MAX_COMPARED: usize = 64;

/// Which requests need the key, if the server has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Every request. Such a route is also traced, and keeps its client's deadline.
    Keyed,
    /// Every request to a server with `--api-key-everywhere`.
    KeyedOnDemand,
    /// None: load balancers have no key.
    Open,
}

/// The places where clients can learn of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listed {
    /// In the `OpenAPI` description, and as a suggestion for a misspelled path.
    Described,
    /// As a suggestion only.
    Suggested,
    /// Nowhere: a file of a page, or a redirection to one.
    Hidden,
}

/// The task of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Rerank,
    Score,
    Predict,
    Decide,
    Embed,
    EmbedAll,
    EmbedSparse,
    Similarity,
    OpenAiEmbeddings,
    CohereEmbed,
    Tokenize,
    Decode,
    Vertex,
    /// The action that fits the model: re-ranking, prediction, decision, embedding or
    /// similarity.
    MainTask,
    Prompt,
    Info,
    Models,
    Model,
    Health,
    Live,
    Ready,
    Metrics,
    Description,
    DocsRedirect,
    Docs,
    Playground,
    PlaygroundRedirect,
    PlaygroundFile,
}

/// The purpose of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A task that only some models can do.
    Task(RequestTask),
    /// Texts to tokens and back, which every model can do.
    Tokens,
    /// A look at the tokens of a re-ranker's prompt.
    Prompt,
    /// The main task of the model, whatever it is.
    MainTask,
    /// Facts, probes and pages.
    Server,
}

impl Action {
    /// The purpose, from which the choice among several models and the group on the page of routes follow.
    pub(crate) fn purpose(self) -> Purpose {
        match self {
            Self::Rerank | Self::Score => Purpose::Task(RequestTask::Rerank),
            Self::Prompt => Purpose::Prompt,
            Self::Predict => Purpose::Task(RequestTask::Predict),
            Self::Decide => Purpose::Task(RequestTask::Decide),
            Self::Embed | Self::EmbedAll | Self::OpenAiEmbeddings | Self::CohereEmbed | Self::Similarity => {
                Purpose::Task(RequestTask::Embed)
            }
            Self::EmbedSparse => Purpose::Task(RequestTask::EmbedSparse),
            Self::Tokenize | Self::Decode => Purpose::Tokens,
            Self::MainTask | Self::Vertex => Purpose::MainTask,
            Self::Info
            | Self::Models
            | Self::Model
            | Self::Health
            | Self::Live
            | Self::Ready
            | Self::Metrics
            | Self::Description
            | Self::DocsRedirect
            | Self::Docs
            | Self::Playground
            | Self::PlaygroundRedirect
            | Self::PlaygroundFile => Purpose::Server,
        }
    }
}

/// A method of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    /// `GET` or `POST`. axum answers `HEAD` wherever it answers `GET`.
    pub(crate) method: Method,
    /// The path in `OpenAPI`'s notation. Only paths from flags are allocated.
    pub(crate) path: Cow<'static, str>,
    pub(crate) action: Action,
    pub(crate) access: Access,
    pub(crate) listed: Listed,
    /// The format of an error where the request's body does not decide it.
    pub(crate) error_shape: ErrorShape,
}

/// All routes but those that the platform adds.
pub(crate) static ROUTES: [Route; 41] = [
    post("/rerank", Action::Rerank, ErrorShape::Tei),
    post("/v1/rerank", Action::Rerank, ErrorShape::MessageAndDetail),
    post(COHERE_V2_PATH, Action::Rerank, ErrorShape::Cohere),
    post("/reranking", Action::Rerank, ErrorShape::Nested),
    post("/v1/reranking", Action::Rerank, ErrorShape::Nested),
    post("/v1/ranking", Action::Rerank, ErrorShape::MessageAndDetail),
    post("/score", Action::Score, ErrorShape::Nested),
    post("/v1/score", Action::Score, ErrorShape::Nested),
    post(PREDICT_PATH, Action::Predict, ErrorShape::Tei),
    post("/v1/decisions", Action::Decide, ErrorShape::Nested),
    post("/v1/systemone", Action::Decide, ErrorShape::Nested),
    post("/embed", Action::Embed, ErrorShape::Tei),
    post("/embed_all", Action::EmbedAll, ErrorShape::Tei),
    post("/embed_sparse", Action::EmbedSparse, ErrorShape::Tei),
    post("/similarity", Action::Similarity, ErrorShape::Tei),
    post("/v1/embeddings", Action::OpenAiEmbeddings, ErrorShape::OpenAi),
    post("/embeddings", Action::OpenAiEmbeddings, ErrorShape::OpenAi),
    post(COHERE_V2_EMBED_PATH, Action::CohereEmbed, ErrorShape::Cohere),
    post("/v1/embed", Action::CohereEmbed, ErrorShape::MessageAndDetail),
    post("/tokenize", Action::Tokenize, ErrorShape::Tei),
    post("/decode", Action::Decode, ErrorShape::Tei),
    post(VERTEX_PATH, Action::Vertex, ErrorShape::Tei),
    post("/", Action::MainTask, ErrorShape::Tei),
    post("/invocations", Action::MainTask, ErrorShape::Tei),
    post("/playground/prompt", Action::Prompt, ErrorShape::Tei),
    get("/info", Action::Info, Access::Keyed, Listed::Described),
    get("/v1/models", Action::Models, Access::Keyed, Listed::Described),
    get(MODEL_PATH, Action::Model, Access::Keyed, Listed::Described),
    get("/health", Action::Health, Access::Open, Listed::Described),
    get("/ping", Action::Health, Access::Open, Listed::Described),
    get("/", Action::Health, Access::Open, Listed::Described),
    get("/health/live", Action::Live, Access::Open, Listed::Described),
    get("/health/ready", Action::Ready, Access::Open, Listed::Described),
    get("/metrics", Action::Metrics, Access::KeyedOnDemand, Listed::Described),
    get("/docs", Action::DocsRedirect, Access::KeyedOnDemand, Listed::Suggested),
    get("/docs/", Action::Docs, Access::KeyedOnDemand, Listed::Hidden),
    get("/docs/{file}", Action::Docs, Access::KeyedOnDemand, Listed::Hidden),
    get(DESCRIPTION_PATH, Action::Description, Access::KeyedOnDemand, Listed::Suggested),
    get(PLAYGROUND_PATH, Action::Playground, Access::KeyedOnDemand, Listed::Suggested),
    get("/playground/", Action::PlaygroundRedirect, Access::KeyedOnDemand, Listed::Hidden),
    get("/playground/{file}", Action::PlaygroundFile, Access::KeyedOnDemand, Listed::Hidden),
];

/// A route that computes for a client with the key.
pub(crate) const fn post(path: &'static str, action: Action, error_shape: ErrorShape) -> Route {
    let path = Cow::Borrowed(path);
    Route {
        method: Method::POST,
        path,
        action,
        access: Access::Keyed,
        listed: Listed::Described,
        error_shape,
    }
}

/// A route that is read.
pub(crate) const fn get(path: &'static str, action: Action, access: Access, listed: Listed) -> Route {
    let path = Cow::Borrowed(path);
    Route { method: Method::GET, path, action, access, listed, error_shape: ErrorShape::Tei }
}

impl Route {
    /// The path in axum's notation.
    pub(crate) fn axum_path(&self) -> String {
        self.path.replace(ANY_MODEL, "{*model}")
    }

    /// Whether `path` is this route's path, a file of its folder, or a model below it.
    pub(crate) fn has_path(&self, path: &str) -> bool {
        self.path == path
            || self.variable_part(path, ANY_MODEL).is_some()
            || self.variable_part(path, ANY_FILE).is_some_and(|file| !file.contains('/'))
    }

    fn variable_part<'a>(&self, path: &'a str, variable: &str) -> Option<&'a str> {
        path.strip_prefix(self.path.strip_suffix(variable)?).filter(|part| !part.is_empty())
    }
}

impl Access {
    /// Whether a request needs the key, on a server where `--api-key-everywhere` is set or not.
    pub(crate) fn needs_key(self, everywhere: bool) -> bool {
        match self {
            Self::Keyed => true,
            Self::KeyedOnDemand => everywhere,
            Self::Open => false,
        }
    }
}

/// The routes that a request for `path` reaches by one method or another.
pub(crate) fn of_path<'a>(routes: &'a [Route], path: &str) -> Vec<&'a Route> {
    // axum prefers a path to a pattern, also where the path does not have the request's method.
    let exact: Vec<&Route> = routes.iter().filter(|route| route.path == path).collect();
    if exact.is_empty() { routes.iter().filter(|route| route.has_path(path)).collect() } else { exact }
}

/// The format of errors on `path`, where the request's body does not decide it. TEI's where the path has no
/// route.
pub(crate) fn error_shape(path: &str) -> ErrorShape {
    ROUTES.iter().find(|route| route.path == path).map_or(ErrorShape::Tei, |route| route.error_shape)
}

/// The route that a client most likely meant by a `path` that has none, if one is near: at most a quarter of
/// the path's characters differ, or the last segments are equal. Case and slashes at the end do not count.
pub(crate) fn nearest<'a>(routes: &'a [Route], path: &str) -> Option<&'a Route> {
    if path.len() > MAX_COMPARED {
        return None;
    }
    let path = path.trim_end_matches('/').to_lowercase();
    let segment = path.rsplit('/').next().filter(|segment| !segment.is_empty())?;
    let candidates = routes.iter().filter(|route| route.listed != Listed::Hidden).filter_map(|route| {
        let distance = strsim::osa_distance(&path, &route.path);
        let is_near = distance * 4 <= path.len() || route.path.rsplit('/').next() == Some(segment);
        is_near.then_some((distance, route))
    });
    candidates.min_by_key(|(distance, _)| *distance).map(|(_, route)| route)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The paths of a method, without the hidden ones.
    pub(crate) fn paths(method: Method) -> impl Iterator<Item = &'static str> {
        let told = move |route: &&Route| route.method == method && route.listed != Listed::Hidden;
        ROUTES.iter().filter(told).map(|route| route.path.as_ref())
    }

    #[test]
    fn no_path_has_one_method_twice() {
        for (index, route) in ROUTES.iter().enumerate() {
            let is_same = |other: &&Route| (&other.method, &other.path) == (&route.method, &route.path);
            assert!(ROUTES[index + 1..].iter().find(is_same).is_none(), "{route:?}");
        }
    }

    #[test]
    fn a_misspelled_path_leads_to_the_nearest_route() {
        let table = [
            ("/rerank2", Some("POST /rerank")),
            ("/rerang", Some("POST /rerank")),
            ("/Rerank/", Some("POST /rerank")),
            ("//rerank", Some("POST /rerank")),
            ("/v3/rerank", Some("POST /v1/rerank")),
            ("/api/rerank", Some("POST /v1/rerank")),
            ("/v3/embed", Some("POST /v2/embed")),
            ("/v2/embeddings", Some("POST /v1/embeddings")),
            ("/embedding", Some("POST /embeddings")),
            ("/embed-sparse", Some("POST /embed_sparse")),
            ("/openapi.json", Some("GET /api-doc/openapi.json")),
            ("/healthz", Some("GET /health")),
            ("/livez/live", Some("GET /health/live")),
            ("/metric", Some("GET /metrics")),
            ("/v1/chat/completions", None),
            ("/v1/completions", None),
            ("/favicon.ico", None),
            ("/docs/none.js", None),
            ("//", None),
            ("", None),
        ];
        for (path, expected) in table {
            let found = nearest(&ROUTES, path).map(|route| format!("{} {}", route.method, route.path));
            assert_eq!(found.as_deref(), expected, "{path}");
        }
        let long = format!("/{}/rerank", "a".repeat(MAX_COMPARED));
        assert_eq!(nearest(&ROUTES, &long), None);
    }

    #[test]
    fn a_file_is_one_segment_and_a_models_name_may_have_several() {
        let file = get("/docs/{file}", Action::Docs, Access::Open, Listed::Hidden);
        let table = [("/docs/a.js", true), ("/docs/", false), ("/docs/a/b", false), ("/docs", false)];
        for (path, expected) in table {
            assert_eq!(file.has_path(path), expected, "{path}");
        }
        let model = get(MODEL_PATH, Action::Model, Access::Open, Listed::Hidden);
        for (path, expected) in
            [("/v1/models/m", true), ("/v1/models/a/m", true), ("/v1/models/", false), ("/v1/models", false)]
        {
            assert_eq!(model.has_path(path), expected, "{path}");
        }
    }
}
