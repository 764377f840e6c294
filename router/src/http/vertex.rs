//! `POST /vertex`: several requests in one, as Vertex AI sends them.
//!
//! Input: `instances`, each the body of `/rerank` or of the model's main task. Output: `predictions`, their
//! answers in their order. What must hold: an instance gets the answer of its own route; all instances are
//! parsed before the first is answered; if one fails, the request fails, and the error names the instance;
//! the instances of a request hold at most a share of the permits, whatever their number.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use axum::{
    Extension,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use text_embeddings_backend_core::{ModelType, Pool};
use text_embeddings_core::service::{Answer, Cost};
use utoipa::ToSchema;

use super::{
    embed::{DescribedEmbedAnswer, EmbedAnswer, EmbedBody, EmbedSparseBody, SparseVectorsBody},
    error::ApiError,
    extract::{DecodedBody, UnparsedBody},
    format::BodyFormat,
    json::JsonText,
    near_misses::has_field,
    predict::{PredictBody, PredictionsBody},
    rerank::{Ranks, RerankBody},
    responses::InferenceErrors,
    schemas::TAG,
};
use crate::{cost, info::Info, state::AppState};

/// The instances of one request hold at most 1/`SHARE_OF_PERMITS` of the permits at a time.
const SHARE_OF_PERMITS: usize = 4;

/// Several requests in one.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = VertexRequest, example = json!({"instances": [
    {"query": "What is deep learning?", "texts": ["Machine learning with many layers."]}
]}))]
pub(crate) struct VertexBody {
    #[schema(value_type = Vec<Instance>)]
    instances: Vec<JsonText>,
}

/// An answer for each instance, in their order.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = VertexResponse)]
pub(crate) struct VertexAnswer {
    predictions: Vec<InstancePrediction>,
}

/// The answer of an instance's route.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = VertexPrediction)]
#[serde(untagged)]
pub(crate) enum InstancePrediction {
    Rerank(Ranks),
    Predict(PredictionsBody),
    #[schema(value_type = DescribedEmbedAnswer)]
    Embed(EmbedAnswer),
    EmbedSparse(SparseVectorsBody),
}

/// The body of `/rerank`, or of the model's main task.
#[derive(Deserialize, ToSchema)]
#[schema(as = VertexInstance)]
#[serde(untagged)]
pub(crate) enum Instance {
    Rerank(RerankBody),
    Predict(PredictBody),
    Embed(EmbedBody),
    EmbedSparse(EmbedSparseBody),
}

impl InstancePrediction {
    /// The values of its vectors, which may be much larger than the instance.
    fn count_values(&self) -> usize {
        match self {
            Self::Embed(answer) => answer.count_values(),
            Self::EmbedSparse(SparseVectorsBody(vectors)) => {
                vectors.iter().map(|vector| 2 * vector.len()).sum()
            }
            Self::Rerank(_) | Self::Predict(_) => 0,
        }
    }
}

impl Instance {
    /// A body with `query` and `texts` is re-ranked. Any other is a body of the model's main task.
    fn parse(json: &JsonText, model_type: ModelType) -> Result<Self, String> {
        let text = json.as_str().as_bytes().to_vec();
        let names =
            DecodedBody::new(text, BodyFormat::Json).and_then(|body| body.fields()).unwrap_or_default();
        if has_field(&names, "query") && has_field(&names, "texts") {
            return parse_body(json).map(Self::Rerank);
        }
        match model_type {
            ModelType::Classifier | ModelType::Reranker | ModelType::ListwiseReranker => {
                parse_body(json).map(Self::Predict)
            }
            ModelType::Decider => Err("this model is a decider: POST /v1/decisions".to_owned()),
            ModelType::Embedding(Pool::Splade) => parse_body(json).map(Self::EmbedSparse),
            ModelType::Embedding(_) => parse_body(json).map(Self::Embed),
        }
    }

    async fn answer(self, state: &AppState) -> Result<Answer<InstancePrediction>, ApiError> {
        let service = &state.served().service;
        Ok(match self {
            Self::Rerank(body) => {
                service.rerank(body.into()).await?.map(|ranks| InstancePrediction::Rerank(ranks.into()))
            }
            Self::Predict(body) => {
                let (request, is_batch) = body.split();
                let answer = service.predict(request).await?;
                answer.map(|predictions| {
                    InstancePrediction::Predict(PredictionsBody::new(predictions, is_batch))
                })
            }
            Self::Embed(body) => body.embed_inputs(service).await?.map(InstancePrediction::Embed),
            Self::EmbedSparse(body) => {
                let vectors = service.embed_sparse(body.into()).await?;
                vectors.map(|vectors| InstancePrediction::EmbedSparse(vectors.into()))
            }
        })
    }
}

/// `json` as a body, or the mistake in it.
fn parse_body<T: DeserializeOwned>(json: &JsonText) -> Result<T, String> {
    if !json.is_object() {
        return Err("expected an object, the body of another route".to_owned());
    }
    json.parse(|path, problem| match path.to_string().as_str() {
        "." => problem,
        path => format!("{problem}: `{path}`"),
    })
}

fn parse_instances(body: &DecodedBody, model_type: ModelType) -> Result<Vec<Instance>, ApiError> {
    let instances = body.parse::<VertexBody>()?.instances.into_iter().enumerate();
    instances
        .map(|(index, json)| {
            let parsed = Instance::parse(&json, model_type);
            parsed.map_err(|problem| ApiError::invalid(problem).at(&instance_place(index)))
        })
        .collect()
}

fn instance_place(index: usize) -> String {
    format!("`instances[{index}]`")
}

/// The cost of all instances together. They run concurrently, within `total`.
fn sum(costs: impl Iterator<Item = Cost>, total: Duration) -> Cost {
    costs.fold(Cost { total, ..Cost::default() }, |sum, cost| Cost {
        characters: sum.characters + cost.characters,
        dropped: Cost::sum_counts(sum.dropped, cost.dropped),
        total,
        tokenization: sum.tokenization.max(cost.tokenization),
        queue: sum.queue.max(cost.queue),
        inference: sum.inference.max(cost.inference),
        ..sum.add_step(cost)
    })
}

/// All answers, if their vectors have no more values than an answer may have.
async fn within_limit(
    state: &AppState,
    answers: impl Stream<Item = Result<Answer<InstancePrediction>, ApiError>>,
) -> Result<Vec<Answer<InstancePrediction>>, ApiError> {
    let (mut all, mut values, mut answers) = (Vec::new(), 0, pin!(answers));
    while let Some(answer) = answers.try_next().await? {
        values += answer.value.count_values();
        state.served().service.check_values(values)?;
        all.push(answer);
    }
    Ok(all)
}

/// Answer several requests in one, as Vertex AI sends them. If one fails, so do all.
#[utoipa::path(post, path = "/vertex", tag = TAG, request_body = VertexBody,
    responses(
        (status = 200, description = "The answers, in the order of the instances", body = VertexAnswer),
        InferenceErrors
    ))]
pub(crate) async fn vertex(State(state): State<AppState>, body: UnparsedBody) -> Result<Response, ApiError> {
    let arrival = Instant::now();
    let format = body.answer_format;
    let Info { config, limits, .. } = &state.served().info;
    let model_type = config.model.model_type();
    let instances = body.read_with(move |body| parse_instances(body, model_type)).await??;
    let at_once =
        config.max_client_batch_size.min(limits.max_concurrent_requests.div_ceil(SHARE_OF_PERMITS)).max(1);
    let answers = stream::iter(instances.into_iter().enumerate())
        .map(async |(index, instance)| {
            instance.answer(&state).await.map_err(|error| error.at(&instance_place(index)))
        })
        .buffered(at_once);
    let answers = within_limit(&state, answers).await?;
    let total = sum(answers.iter().map(|answer| answer.cost), arrival.elapsed());
    cost::log("vertex", &total);
    let predictions = answers.into_iter().map(|answer| answer.value).collect();
    // The extension is for the request's span. text-embeddings-inference sends no headers with the cost here.
    Ok((Extension(total), format.respond(StatusCode::OK, &VertexAnswer { predictions })).into_response())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::http::testing::Server;
    use futures_util::future::join_all;
    use serde_json::{Value, json};

    fn parse(value: &Value, model_type: ModelType) -> Result<Instance, String> {
        Instance::parse(&serde_json::from_str(&value.to_string()).unwrap(), model_type)
    }

    fn name(value: &Value, model_type: ModelType) -> &'static str {
        match parse(value, model_type).unwrap() {
            Instance::Rerank(_) => "rerank",
            Instance::Predict(_) => "predict",
            Instance::Embed(_) => "embed",
            Instance::EmbedSparse(_) => "embed_sparse",
        }
    }

    #[test]
    fn an_instance_is_a_body_of_rerank_or_of_the_models_main_task() {
        for (model_type, main) in [
            (ModelType::Embedding(Pool::Mean), "embed"),
            (ModelType::Embedding(Pool::Splade), "embed_sparse"),
            (ModelType::Classifier, "predict"),
            (ModelType::Reranker, "predict"),
            (ModelType::ListwiseReranker, "predict"),
        ] {
            for (value, expected) in [
                (json!({"query": "q", "texts": ["a"], "inputs": "ignored"}), "rerank"),
                (json!({"inputs": "a"}), main),
                (json!({"inputs": ["a", "b"], "truncate": true}), main),
                (json!({"inputs": "a", "add_special_tokens": false, "query": "ignored"}), main),
            ] {
                assert_eq!(name(&value, model_type), expected, "{value} {model_type}");
            }
            for value in [json!({"input": "a"}), json!({"ids": [1]}), json!({})] {
                let error = parse(&value, model_type).err().unwrap();
                assert_eq!(error, "missing field `inputs`", "{value} {model_type}");
            }
            let sentences = json!({"inputs": {"source_sentence": "a", "sentences": ["b"]}});
            assert!(parse(&sentences, model_type).is_err());
        }
        assert_eq!(name(&json!({"inputs": [1, 2]}), ModelType::Embedding(Pool::Mean)), "embed");
    }

    #[tokio::test]
    async fn each_instance_gets_the_answer_of_its_own_route_and_no_cost_in_headers() {
        let server = Server::start().await;
        let instances = [
            ("/rerank", json!({"query": "q", "texts": ["a", "ZZ"], "return_text": true})),
            ("/predict", json!({"inputs": ["q", "ZZ"]})),
            ("/predict", json!({"inputs": [["q", "ZZ"]], "raw_scores": true})),
            ("/rerank", json!({"query": "Z", "texts": ["b"], "top_n": 1})),
        ];
        let mut expected = Vec::new();
        for (path, instance) in &instances {
            expected.push(server.post(path, &instance.to_string(), &[]).await.body);
        }
        let bodies: Vec<_> = instances.iter().map(|(_, instance)| instance).collect();
        let answer =
            server.post("/vertex", &json!({"instances": bodies, "parameters": {}}).to_string(), &[]).await;
        assert!(!answer.head.contains("x-compute") && !answer.head.contains("-time"), "{}", answer.head);
        assert_eq!(
            (answer.status, answer.body),
            (200, format!(r#"{{"predictions":[{}]}}"#, expected.join(",")))
        );
        let none = server.post("/vertex", r#"{"instances":[]}"#, &[]).await;
        assert_eq!((none.status, none.body.as_str()), (200, r#"{"predictions":[]}"#));
    }

    #[tokio::test]
    async fn a_further_route_answers_alike_and_may_take_the_place_of_predict() {
        let instances = json!({"instances": [{"query": "q", "texts": ["a", "ZZ"]}]}).to_string();
        let pair = json!({"inputs": ["q", "ZZ"]}).to_string();
        for (flags, route, status_of_a_pair) in [
            ("", "/vertex", 200),
            ("--aip-predict-route /v1/p:predict", "/v1/p:predict", 200),
            ("--aip-predict-route /predict", "/predict", 422),
        ] {
            let server = Server::start_with(flags).await;
            let expected = server.post("/vertex", &instances, &[]).await;
            assert_eq!(expected.status, 200, "{}", expected.body);
            assert_eq!(server.post(route, &instances, &[]).await.body, expected.body, "{route}");
            assert_eq!(server.post("/predict", &pair, &[]).await.status, status_of_a_pair, "{flags}");
        }
    }

    #[test]
    fn the_costs_of_the_instances_add_up() {
        let [one, two, total] = [1, 2, 9].map(Duration::from_secs);
        let first = Cost {
            texts: 1,
            characters: 2,
            tokens: 3,
            truncated: 4,
            lists: 1,
            dropped: Some(2),
            cached: Some(3),
            untrained_dimensions: Some(7),
            total: two,
            tokenization: two,
            queue: one,
            inference: one,
        };
        let second = Cost { tokenization: one, queue: two, ..first };
        let expected = Cost {
            texts: 2,
            characters: 4,
            tokens: 6,
            truncated: 8,
            lists: 2,
            dropped: Some(4),
            cached: Some(6),
            untrained_dimensions: Some(7),
            total,
            tokenization: two,
            queue: two,
            inference: one,
        };
        assert_eq!(sum([first, second].into_iter(), total), expected);
    }

    #[tokio::test]
    async fn instances_run_beside_each_other_on_a_share_of_the_permits() {
        let server = Server::start_with("--max-concurrent-requests 8").await;
        let body = |count: usize| {
            let instance =
                |index: usize| json!({"query": "q", "texts": ["Z".repeat(index + 1)], "raw_scores": true});
            json!({"instances": (0..count).map(instance).collect::<Vec<_>>()}).to_string()
        };
        let expected = |count: usize| {
            let lists: Vec<_> =
                (0..count).map(|index| format!(r#"[{{"index":0,"score":{index}.0}}]"#)).collect();
            format!(r#"{{"predictions":[{}]}}"#, lists.join(","))
        };
        server.control.hold(true);
        let others = async {
            server.control.batches(1).await;
            // The instances hold two of the eight permits. Six more requests are taken, a seventh is refused.
            let taken = join_all((0..6).map(|_| server.rerank("q", &["a"])));
            let refused = async {
                loop {
                    let refused = server.rerank("q", &["a"]);
                    if let Ok(answer) = tokio::time::timeout(Duration::from_millis(50), refused).await {
                        server.control.hold(false);
                        return answer;
                    }
                }
            };
            tokio::join!(taken, refused)
        };
        let request = body(20);
        let (answer, (taken, refused)) = tokio::join!(server.post("/vertex", &request, &[]), others);
        assert_eq!((answer.status, answer.body), (200, expected(20)));
        assert!(taken.iter().all(|answer| answer.status == 200) && refused.status == 429);
        let alone = Server::start_with("--max-concurrent-requests 1").await;
        let answer = alone.post("/vertex", &request, &[]).await;
        assert_eq!((answer.status, answer.body), (200, expected(20)));
    }
}
