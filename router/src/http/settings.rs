//! The flags that concern only HTTP: pages that may call from a browser, and the variables of hosting
//! platforms, which are Vertex AI's routes (`AIP_*`) and the Hub's `TASK`.
//!
//! Input: [`Args`]. Output: [`HttpSettings`], which add their routes to the table. What must hold: a flag
//! that cannot be honoured, or a path that the server has with another meaning, is refused by name before
//! anything is loaded. The exceptions are `/predict` and `/v1/models/NAME`, which deployments on Vertex AI
//! commonly name: they then take Vertex AI's requests. A task that is unknown, or belongs to another kind of
//! model, changes nothing.

use axum::http::{HeaderValue, Method};
use text_embeddings_backend_core::ModelType;
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

use super::routes::{Action, MODEL_PATH, PREDICT_PATH, ROUTES, Route};
use crate::{
    args::{Args, nonempty},
    config::ConfigError,
};

const SIMILARITY: &str = "sentence-similarity";

/// The settings that the router is made from.
#[derive(Debug, Clone)]
pub(crate) struct HttpSettings {
    /// The origins whose pages may call from a browser; `None` stands for any origin.
    origins: Option<Vec<HeaderValue>>,
    /// A second path of `POST /vertex`. If it is `/predict`, it replaces `POST /predict`.
    predict_route: Option<String>,
    /// A further path of `GET /health`.
    health_route: Option<String>,
    task: Option<String>,
}

impl HttpSettings {
    /// Checks the flags. Fails if an origin is not an origin, a route is not a path, or the server has the
    /// path with another meaning.
    pub(crate) fn resolve(args: &Args) -> Result<Self, ConfigError> {
        let (predict, health) = (args.aip_predict_route.as_deref(), args.aip_health_route.as_deref());
        Ok(Self {
            origins: origins(&args.cors_allow_origin)?,
            predict_route: further_path("--aip-predict-route", predict, Action::Vertex)?,
            health_route: further_path("--aip-health-route", health, Action::Health)?,
            task: nonempty(args.task.as_ref()).cloned(),
        })
    }

    /// The headers that tell browsers which pages may call. A page may send any header, because clients have
    /// headers of their own (`OpenAI`'s a dozen), and may read every header of an answer.
    pub(super) fn cors(&self) -> CorsLayer {
        let origins = match &self.origins {
            Some(origins) => AllowOrigin::list(origins.iter().cloned()),
            None => Any.into(),
        };
        CorsLayer::new()
            .allow_origin(origins)
            .allow_methods([Method::GET, Method::POST])
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers(Any)
    }

    /// All routes: the server's own and the platform's.
    pub(crate) fn routes(&self) -> Vec<Route> {
        let mut routes = ROUTES.to_vec();
        let further = [(&self.predict_route, Action::Vertex), (&self.health_route, Action::Health)];
        for (path, action) in further {
            let Some(path) = path else { continue };
            let Some(first) = ROUTES.iter().find(|route| route.action == action) else { continue };
            let route = Route { path: path.clone().into(), ..first.clone() };
            routes.retain(|other| other.method != route.method || other.path != route.path);
            routes.push(route);
        }
        routes
    }

    /// Whether the model's main task is `/similarity`. Says so in the log if a task was given that has no
    /// effect.
    pub(crate) fn main_task_is_similarity(&self, model_type: ModelType) -> bool {
        let Some(task) = &self.task else { return false };
        let similarity = task == SIMILARITY && matches!(model_type, ModelType::Embedding(_));
        if !similarity {
            tracing::info!(
                "TASK={task} has no effect: `POST /` and `/invocations` are this kind of model's own task"
            );
        }
        similarity
    }
}

fn origins(origins: &[String]) -> Result<Option<Vec<HeaderValue>>, ConfigError> {
    if origins.is_empty() || origins.iter().any(|origin| origin == "*") {
        return Ok(None);
    }
    origins
        .iter()
        .map(|origin| {
            let value = if origin.contains("://") { HeaderValue::from_str(origin).ok() } else { None };
            value.ok_or_else(|| {
                ConfigError(format!(
                    "`--cors-allow-origin {origin}` is not an origin: give scheme and host such as \
                     `https://example.org`, or `*`"
                ))
            })
        })
        .collect::<Result<_, _>>()
        .map(Some)
}

/// A further path of `action`, if the flag gives one that the action does not have yet.
fn further_path(flag: &str, given: Option<&str>, action: Action) -> Result<Option<String>, ConfigError> {
    let own: Vec<&Route> = ROUTES.iter().filter(|route| route.action == action).collect();
    let Some(path) = given.filter(|path| !path.is_empty() && own.iter().all(|route| route.path != *path))
    else {
        return Ok(None);
    };
    let refuse = |problem: &str| {
        Err(ConfigError(format!("`{flag} {path}` {problem}: give a path such as `{}`", own[0].path)))
    };
    // A route `/docs` may have a second one, `/docs/`.
    let without_slash = path.strip_suffix('/').unwrap_or(path);
    let is_taken = ROUTES.iter().any(|route| {
        route.method == own[0].method
            && ![PREDICT_PATH, MODEL_PATH].contains(&&*route.path)
            && (route.has_path(path) || route.has_path(without_slash))
    });
    if is_taken {
        return refuse("is a route of the server with another meaning");
    }
    let is_legal =
        path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-._~!$&'()+,;=:@%".contains(&byte));
    if !path.starts_with('/') || path.contains("/:") || !is_legal {
        return refuse("is not the path of a URL");
    }
    Ok(Some(path.to_owned()))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::http::testing::Server;
    use serde_json::json;
    use text_embeddings_backend_core::Pool;

    #[test]
    fn an_origin_that_is_not_one_is_named() {
        let args = ["text-embeddings-router", "--model-id", "m", "--cors-allow-origin", "example.org"];
        let error = HttpSettings::resolve(&Args::try_from(args).unwrap()).unwrap_err().to_string();
        let expected = "`--cors-allow-origin example.org` is not an origin: give scheme and host such as \
                        `https://example.org`, or `*`";
        assert_eq!(error, expected);
    }

    #[test]
    fn a_star_among_the_origins_means_any() {
        for (flags, expected) in [
            ("", None),
            ("--cors-allow-origin * --cors-allow-origin http://a", None),
            ("--cors-allow-origin http://a --cors-allow-origin https://b:8", Some(2)),
        ] {
            let args = Args::with_flags(flags).unwrap();
            let origins = HttpSettings::resolve(&args).unwrap().origins;
            assert_eq!(origins.map(|origins| origins.len()), expected, "{flags}");
        }
    }

    fn resolve(flag: &str, value: &str) -> Result<HttpSettings, String> {
        let args = ["text-embeddings-router", "--model-id", "m", flag, value];
        HttpSettings::resolve(&Args::try_from(args).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_route_is_a_path_that_is_free() {
        let long = "/v1/endpoints/12/deployedModels/34:predict";
        let table = [
            ("--aip-predict-route", "/vertex", Ok(None)),
            ("--aip-predict-route", "", Ok(None)),
            ("--aip-predict-route", long, Ok(Some(long))),
            ("--aip-predict-route", "/health", Ok(Some("/health"))),
            ("--aip-predict-route", "/predict", Ok(Some("/predict"))),
            (
                "--aip-predict-route",
                "/rerank",
                Err("is a route of the server with another meaning: give a path such as `/vertex`"),
            ),
            (
                "--aip-predict-route",
                "/",
                Err("is a route of the server with another meaning: give a path such as `/vertex`"),
            ),
            ("--aip-predict-route", "vertex", Err("is not the path of a URL: give a path such as `/vertex`")),
            ("--aip-predict-route", "/a/{b}", Err("is not the path of a URL: give a path such as `/vertex`")),
            ("--aip-predict-route", "/:a", Err("is not the path of a URL: give a path such as `/vertex`")),
            ("--aip-predict-route", "/a?b", Err("is not the path of a URL: give a path such as `/vertex`")),
            ("--aip-health-route", "/", Ok(None)),
            ("--aip-health-route", "/ping", Ok(None)),
            (
                "--aip-health-route",
                "/docs/",
                Err("is a route of the server with another meaning: give a path such as `/health`"),
            ),
            ("--aip-health-route", "/is_alive", Ok(Some("/is_alive"))),
            ("--aip-health-route", "/rerank", Ok(Some("/rerank"))),
            (
                "--aip-health-route",
                "/metrics",
                Err("is a route of the server with another meaning: give a path such as `/health`"),
            ),
            ("--aip-health-route", "/a b", Err("is not the path of a URL: give a path such as `/health`")),
        ];
        for (flag, value, expected) in table {
            let found = resolve(flag, value).map(|settings| {
                if flag.contains("health") { settings.health_route } else { settings.predict_route }
            });
            let expected = expected.map(|route| route.map(str::to_owned));
            assert_eq!(found, expected.map_err(|problem| format!("`{flag} {value}` {problem}")));
        }
    }

    #[test]
    fn only_sentence_similarity_of_an_embedding_model_changes_the_main_task() {
        let embedding = ModelType::Embedding(Pool::LastToken);
        let table = [
            ("sentence-similarity", embedding, true),
            ("sentence-similarity", ModelType::ListwiseReranker, false),
            ("sentence-similarity", ModelType::Classifier, false),
            ("feature-extraction", embedding, false),
            ("Sentence-Similarity", embedding, false),
            ("", embedding, false),
        ];
        for (task, model_type, expected) in table {
            assert_eq!(
                resolve("--task", task).unwrap().main_task_is_similarity(model_type),
                expected,
                "{task}"
            );
        }
    }

    #[tokio::test]
    async fn vertex_ais_routes_are_served_beside_the_others() {
        let instances = json!({"instances": [{"query": "q", "texts": ["ZZ"]}]}).to_string();
        let expected = r#"{"predictions":[[{"index":0,"score":0.7310586}]]}"#;
        // One path may be both routes. It may also be a route of the server with another method.
        for (predict, health) in [
            ("/v1/models/m:predict", "/v1/models/m"),
            ("/aip", "/aip"),
            ("/health", "/rerank"),
            ("/vertex", "/"),
        ] {
            let flags = format!("--api-key k --aip-predict-route {predict} --aip-health-route {health}");
            let server = Server::start_with(&flags).await;
            for path in [predict, "/vertex"] {
                let answer = server.post(path, &instances, &[("Authorization", "Bearer k")]).await;
                assert_eq!((answer.status, answer.body.as_str()), (200, expected), "{predict} {path}");
                assert_eq!(server.post(path, &instances, &[]).await.status, 401, "{predict} {path}");
            }
            for path in [health, "/health"] {
                let answer = server.get(path).await;
                assert_eq!((answer.status, answer.body.as_str()), (200, ""), "{health} {path}");
            }
        }
    }
}
