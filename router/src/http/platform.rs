//! The variables of hosting platforms: Vertex AI's routes (`AIP_*`) and the Hub's `TASK`.
//!
//! Input: [`Args`]. Output: [`Platform`], which adds its routes to the table. What must hold: a path that
//! the server has with another meaning is refused before anything is loaded. The exceptions are `/predict`
//! and `/v1/models/NAME`, which deployments on Vertex AI commonly name: they then take Vertex AI's requests.
//! A task that is unknown, or belongs to another kind of model, changes nothing.

use text_embeddings_backend_core::ModelType;

use super::routes::{Action, MODEL_PATH, PREDICT_PATH, ROUTES, Route};
use crate::{
    args::{Args, nonempty},
    config::ConfigError,
};

const SIMILARITY: &str = "sentence-similarity";

/// Further routes, and a choice of the main task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Platform {
    /// A second path of `POST /vertex`. If it is `/predict`, it replaces `POST /predict`.
    predict_route: Option<String>,
    /// A further path of `GET /health`.
    health_route: Option<String>,
    task: Option<String>,
}

impl Platform {
    /// Checks the routes.
    ///
    /// # Errors
    ///
    /// If a route is not a path, or the server has the path with another meaning.
    pub(crate) fn resolve(args: &Args) -> Result<Self, ConfigError> {
        Ok(Self {
            predict_route: further_path(
                "--aip-predict-route",
                args.aip_predict_route.as_deref(),
                Action::Vertex,
            )?,
            health_route: further_path(
                "--aip-health-route",
                args.aip_health_route.as_deref(),
                Action::Health,
            )?,
            task: nonempty(args.task.as_ref()).cloned(),
        })
    }

    /// All routes: the server's own and the platform's.
    pub(crate) fn routes(&self) -> Vec<Route> {
        let mut routes = ROUTES.to_vec();
        let further = [(&self.predict_route, Action::Vertex), (&self.health_route, Action::Health)];
        for (path, action) in further {
            let Some(path) = path else { continue };
            let Some(first) = ROUTES.iter().find(|route| route.action == action) else { continue };
            let route = first.clone().on_path(path.clone());
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

    fn resolve(flag: &str, value: &str) -> Result<Platform, String> {
        let args = ["text-embeddings-router", "--model-id", "m", flag, value];
        Platform::resolve(&Args::try_from(args).unwrap()).map_err(|error| error.to_string())
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
            let found = resolve(flag, value).map(|platform| {
                if flag.contains("health") { platform.health_route } else { platform.predict_route }
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
        assert!(!Platform::default().main_task_is_similarity(embedding));
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
