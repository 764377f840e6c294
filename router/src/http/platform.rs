//! What hosting platforms say by variables: Vertex AI's routes (`AIP_*`) and the Hub's `TASK`.
//!
//! Input: [`Args`]. Output: [`Platform`], from which the route table takes further routes. What must hold: a route that
//! is one of the server's own with another meaning is refused before anything is loaded, but for `/predict`, which
//! deployments on Vertex AI commonly name and which then is Vertex AI's; a task that is unknown, or
//! another kind of model's, changes nothing.

use text_embeddings_backend_core::ModelType;

use super::{GET_ROUTES, HEALTH_ROUTES, POST_ROUTES};
use crate::{args::Args, config::ConfigError};

/// Vertex AI's own route, wherever else its requests are to be answered.
pub(crate) const VERTEX_ROUTE: &str = "/vertex";
/// The one route of our own whose place Vertex AI's may take.
pub(crate) const PREDICT_ROUTE: &str = "/predict";
const SIMILARITY: &str = "sentence-similarity";

/// Further routes, and what `POST /` stands for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Platform {
    /// A second path of `POST /vertex`; where it is `/predict`, in place of `POST /predict`.
    pub(crate) predict_route: Option<String>,
    /// A further path of `GET /health`.
    pub(crate) health_route: Option<String>,
    task: Option<String>,
}

impl Platform {
    /// Checks the routes.
    ///
    /// # Errors
    ///
    /// For a route that is no path, or is taken.
    pub(crate) fn resolve(args: &Args) -> Result<Self, ConfigError> {
        let predict = ("--aip-predict-route", &args.aip_predict_route);
        let health = ("--aip-health-route", &args.aip_health_route);
        let taken: Vec<&str> = POST_ROUTES.into_iter().filter(|path| *path != PREDICT_ROUTE).collect();
        Ok(Self {
            predict_route: route(predict, &[VERTEX_ROUTE], &taken)?,
            health_route: route(health, &HEALTH_ROUTES, &GET_ROUTES)?,
            task: args.task.clone().filter(|task| !task.is_empty()),
        })
    }

    /// Whether the model's main task is `/similarity`. Says so in the log if a task was given that has no effect.
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

/// The route to add: none if there is none to add, or the server has it already with the same meaning.
fn route(
    (flag, given): (&'static str, &Option<String>),
    same: &[&str],
    taken: &[&str],
) -> Result<Option<String>, ConfigError> {
    let Some(path) = given.as_deref().filter(|path| !path.is_empty() && !same.contains(path)) else {
        return Ok(None);
    };
    let refuse = |problem: &str| {
        let advice = format!("{problem}: give a path such as `{}`", same[0]);
        Err(ConfigError::Value { flag, value: path.to_owned(), problem: advice })
    };
    // Where there is a route, the same with a slash behind may be one, too.
    if taken.iter().any(|own| path.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest == "/")) {
        return refuse("is a route of the server with another meaning");
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~!$&'()+,;=:@%".contains(&byte);
    if !path.starts_with('/') || path.contains("/:") || !path.bytes().all(allowed) {
        return refuse("is no path of a URL");
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
            ("--aip-predict-route", "vertex", Err("is no path of a URL: give a path such as `/vertex`")),
            ("--aip-predict-route", "/a/{b}", Err("is no path of a URL: give a path such as `/vertex`")),
            ("--aip-predict-route", "/:a", Err("is no path of a URL: give a path such as `/vertex`")),
            ("--aip-predict-route", "/a?b", Err("is no path of a URL: give a path such as `/vertex`")),
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
            ("--aip-health-route", "/a b", Err("is no path of a URL: give a path such as `/health`")),
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
        // One path may be both; it may also be a route of the server's by another method.
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
