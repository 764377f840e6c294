//! `GET /info`: the served model and the server's limits.
//!
//! Output: TEI's fields, and further ones, most of them about re-rankers. What must hold: a generative
//! re-ranker has the key `reranker` too, because clients look for it.

use std::{collections::BTreeMap, num::NonZeroU32};

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use text_embeddings_core::{
    model::{Calibration, CosineRanking, DecisionTemperatures, ModelKind, Reranker},
    tokenization::MAX_LEVELS,
};
use utoipa::ToSchema;

use super::{error_shapes::ErrorBody, schemas::TAG};
use crate::{
    args::CascadeArgs,
    info::{COMMIT, DOCKER_LABEL, Info, VERSION, pooling},
    state::AppState,
};

/// The served model and the server's limits.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Info)]
pub(crate) struct InfoBody<'a> {
    #[schema(example = "Qwen/Qwen3-Reranker-0.6B")]
    model_id: &'a str,
    /// The commit on the Hub; null for a local folder.
    model_sha: Option<&'a str>,
    /// The arithmetic, or `float16` if `--dtype` asks for it.
    #[schema(example = "float32")]
    model_dtype: &'a str,
    served_model_name: &'a str,
    model_type: ModelTypeBody,
    max_concurrent_requests: usize,
    max_input_length: usize,
    /// The most tokens of a forward pass; a longer input has a pass of its own.
    max_batch_tokens: usize,
    #[schema(default = json!(null))]
    max_batch_requests: Option<usize>,
    max_client_batch_size: usize,
    auto_truncate: bool,
    tokenization_workers: usize,
    version: &'static str,
    sha: Option<&'static str>,
    docker_label: Option<&'static str>,
    /// `embedding`, `classifier`, `reranker`, `listwise-reranker` or `decider`. A `listwise-reranker` is a
    /// generative re-ranker, or a re-ranker that reads many documents at once.
    model_kind: &'static str,
    /// The most texts of one request to `/rerank`.
    max_rerank_texts: usize,
    /// The most questions of one request to `/v1/decisions`. Null: the model does not decide.
    max_questions: Option<usize>,
    /// The answer to a request without `min_score` leaves out lower scores. Null: it has all texts.
    min_score: Option<f32>,
    /// The instruction of requests without one: what "relevant" means. Null if the model takes no
    /// instruction.
    default_instruction: Option<&'a str>,
    /// The function that sentence-transformers applies to a re-ranker's raw score, such as `sigmoid` or
    /// `identity`. This server applies `score` of `reranker`, or nothing with `raw_scores`. Null for other
    /// models.
    #[schema(example = "identity")]
    score_activation: Option<&'a str>,
    /// How a re-ranker scores; null for other models.
    reranker: Option<RerankerBody<'a>>,
    /// How an embedding model re-ranks; null for other models, and with `--no-cosine-rerank`.
    cosine_reranking: Option<CosineRankingBody<'a>>,
    /// The backend: `candle` (this server's own models and kernels), `ort` (ONNX Runtime) or `python`.
    #[schema(example = "candle")]
    backend: &'a str,
    /// The files of the weights, their format and the types that they store. The type of most values comes
    /// first.
    #[schema(example = "model.gguf (GGUF: Q8_0, F32)")]
    weights: &'a str,
    /// The arithmetic in use. It differs from `model_dtype` only on a CPU with `--dtype float16`.
    #[schema(example = "bfloat16")]
    arithmetic: &'a str,
    /// The CPU's vector instructions in use; null if another device computes.
    #[schema(example = "avx512+vnni+bf16")]
    instruction_set: Option<&'a str>,
    /// The threads that compute.
    threads: usize,
    /// Whether each of these threads is pinned to a CPU of its own.
    pin_threads: bool,
    /// The size of the cache of prefixes that requests share, in bytes; 0 if there is no cache.
    prefix_cache_bytes: usize,
    /// The size of the cache of computed scores, which all models share, in bytes; 0 if there is no cache.
    score_cache_bytes: usize,
    /// The hash of a prompt of a re-ranker or a decider, by which a calibration knows its model.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_hash: Option<&'a str>,
    /// The file of `--calibration`. Without one, scores and answers are not calibrated.
    #[serde(skip_serializing_if = "Option::is_none")]
    calibration: Option<CalibrationBody<'a>>,
    /// The two models, if it is a cascade. Everything else is the first model's.
    #[serde(skip_serializing_if = "Option::is_none")]
    cascade: Option<CascadeBody<'a>>,
}

/// Numbers that were fitted to judged answers.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CalibrationInfo)]
struct CalibrationBody<'a> {
    /// Its file.
    file: String,
    /// The name of the judged questions.
    data: &'a str,
    /// The score of a re-ranker as a function of the raw score x.
    #[schema(example = "sigmoid((x-2.1)/1.5)")]
    score: Option<String>,
    /// The divisors of the logits of decisions, by the type of the question.
    decisions: Option<BTreeMap<&'static str, f64>>,
}

impl<'a> CalibrationBody<'a> {
    fn from_calibration(calibration: &'a Calibration) -> Self {
        Self {
            file: calibration.path.display().to_string(),
            data: &calibration.data,
            score: calibration.score.map(|rule| rule.to_string()),
            decisions: calibration.decisions.map(|DecisionTemperatures { choice, score, noul }| {
                BTreeMap::from([("choice", choice), ("score", score), ("noul", noul)])
            }),
        }
    }
}

/// Two re-rankers, one after the other.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Cascade)]
struct CascadeBody<'a> {
    /// The model that scores all texts.
    first: &'a str,
    /// The model that scores the best of them again.
    then: &'a str,
    /// The most texts that it scores.
    keep: usize,
    /// The time in which an answer is wanted.
    budget_ms: Option<u32>,
}

impl<'a> From<&'a CascadeArgs> for CascadeBody<'a> {
    fn from(CascadeArgs { first, then, keep, budget_ms, .. }: &'a CascadeArgs) -> Self {
        Self { first, then, keep: keep.get(), budget_ms: budget_ms.map(NonZeroU32::get) }
    }
}

/// How a re-ranker scores, and where each part of that comes from.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RerankerInfo)]
pub(crate) struct RerankerBody<'a> {
    /// The family whose prompt, answers and score rule apply; null if the server knows no family of this
    /// model.
    #[schema(example = "zerank")]
    family: Option<&'a str>,
    /// How the server recognised the family.
    family_reason: Option<&'a str>,
    /// Where the prompt comes from.
    prompt: &'a str,
    /// The tokens whose logits are the raw score, and where they come from; null for a model with a head.
    answers: Option<&'a str>,
    /// The number of layers that a layer-wise re-ranker computes; null for other models.
    cutoff_layers: Option<usize>,
    /// Whether a document's score depends on the other documents of its request: a listwise re-ranker reads
    /// them together.
    scores_depend_on_request: bool,
    /// The score as a function of the raw score x, unless the request asks for raw scores.
    #[schema(example = "sigmoid(x/5)")]
    score: String,
    /// Where the function comes from.
    score_reason: &'a str,
}

impl<'a> From<&'a Reranker> for RerankerBody<'a> {
    fn from(reranker: &'a Reranker) -> Self {
        let family = reranker.family.as_ref();
        Self {
            family: family.map(|family| family.value.name),
            family_reason: family.map(|family| family.source.as_str()),
            prompt: &reranker.prompt_source,
            answers: reranker.answers.as_deref(),
            cutoff_layers: reranker.cutoff_layers,
            scores_depend_on_request: reranker.reads_lists(),
            score: reranker.score.value.to_string(),
            score_reason: &reranker.score.source,
        }
    }
}

/// How an embedding model re-ranks.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CosineReranking)]
pub(crate) struct CosineRankingBody<'a> {
    /// The raw score: `cosine`, of the vectors of query and document, or `maxsim`, of their tokens' vectors.
    #[schema(example = "cosine")]
    raw_score: &'static str,
    /// The score as a function of the raw score x, unless the request asks for raw scores. With `maxsim`, x
    /// is the raw score divided by the number of the query's vectors.
    #[schema(example = "(x+1)/2")]
    score: String,
    /// The prompt before the query; may be empty.
    query_prompt: &'a str,
    /// The prompt before each document; may be empty.
    document_prompt: &'a str,
}

impl<'a> CosineRankingBody<'a> {
    fn from_ranking(ranking: &'a CosineRanking) -> Self {
        Self {
            raw_score: ranking.compared.raw_score(),
            score: CosineRanking::SCORE.to_string(),
            query_prompt: &ranking.query_prompt,
            document_prompt: &ranking.document_prompt,
        }
    }
}

/// The kind of the model. A generative re-ranker is a `reranker` too.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ModelType)]
#[serde(rename_all = "lowercase")]
enum ModelTypeBody {
    Embedding(PoolingBody),
    Classifier(LabelsBody),
    Reranker(LabelsBody),
    Decider(DeciderBody),
}

/// The limits of a decider.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DeciderModel)]
struct DeciderBody {
    /// The most options of a question.
    max_options: usize,
    /// The most levels of a scale.
    max_levels: usize,
}

/// The pooling of an embedding model.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = EmbeddingModel)]
struct PoolingBody {
    /// `cls`, `mean`, `splade` or `last_token`.
    pooling: String,
}

/// The classes and their numbers.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ClassifierModel)]
struct LabelsBody {
    id2label: BTreeMap<String, String>,
    label2id: BTreeMap<String, usize>,
}

impl LabelsBody {
    fn new(labels: &[String]) -> Self {
        let numbered = || labels.iter().enumerate();
        Self {
            id2label: numbered().map(|(id, label)| (id.to_string(), label.clone())).collect(),
            label2id: numbered().map(|(id, label)| (label.clone(), id)).collect(),
        }
    }
}

impl From<&ModelKind> for ModelTypeBody {
    fn from(kind: &ModelKind) -> Self {
        match kind {
            ModelKind::Embedder(model) => Self::Embedding(PoolingBody { pooling: pooling(model.pool) }),
            ModelKind::Classifier(labels) => Self::Classifier(LabelsBody::new(labels)),
            ModelKind::Reranker(model) => Self::Reranker(LabelsBody::new(&model.labels)),
            ModelKind::Decider(model) => {
                Self::Decider(DeciderBody { max_options: model.max_options(), max_levels: MAX_LEVELS })
            }
        }
    }
}

impl<'a> From<&'a Info> for InfoBody<'a> {
    fn from(info: &'a Info) -> Self {
        let Info { config, limits, machine, computation, cascade, .. } = info;
        let model = &config.model;
        let reranker = model.reranker();
        Self {
            model_id: &info.model_id,
            model_sha: info.model_sha.as_deref(),
            model_dtype: &computation.dtype,
            served_model_name: &info.served_model_name,
            model_type: ModelTypeBody::from(&model.kind),
            max_concurrent_requests: limits.max_concurrent_requests,
            max_input_length: model.limits.max_input_length,
            max_batch_tokens: limits.max_batch_tokens,
            max_batch_requests: limits.max_batch_requests,
            max_client_batch_size: config.max_client_batch_size,
            auto_truncate: config.auto_truncate,
            tokenization_workers: machine.tokenization_workers,
            version: VERSION,
            sha: COMMIT,
            docker_label: DOCKER_LABEL,
            model_kind: info.model_kind(),
            max_rerank_texts: config.max_rerank_texts,
            max_questions: (cascade.is_none() && model.how_it_decides().is_some())
                .then_some(config.max_questions),
            min_score: config.min_score,
            default_instruction: reranker.and_then(Reranker::shown_instruction),
            score_activation: reranker.and_then(|model| model.score_activation.as_deref()),
            reranker: reranker.map(RerankerBody::from),
            cosine_reranking: model.cosine_ranking().map(CosineRankingBody::from_ranking),
            backend: computation.backend,
            arithmetic: &computation.arithmetic,
            instruction_set: computation.instruction_set.as_deref(),
            threads: machine.threads,
            pin_threads: computation.pinned_threads,
            prefix_cache_bytes: computation.prefix_cache_bytes,
            score_cache_bytes: machine.score_cache_bytes(),
            prompt_hash: info.prompt_hash.as_deref(),
            calibration: config.calibration.as_deref().map(CalibrationBody::from_calibration),
            cascade: cascade.as_ref().map(CascadeBody::from),
            weights: &computation.weights,
        }
    }
}

/// The served model and the server's limits.
#[utoipa::path(get, path = "/info", operation_id = "get_model_info", tag = TAG, responses(
    (status = 200, description = "The model and the limits", body = InfoBody<'static>),
    (status = 401, description = "The key is missing or wrong", body = ErrorBody)
))]
pub(crate) async fn info(State(state): State<AppState>) -> Response {
    Json(InfoBody::from(&state.served().info)).into_response()
}
