//! `Info`: the served model and the server's limits.

use text_embeddings_core::model::{CosineRanking, ModelKind, Reranker};
use text_embeddings_proto::v1::{self, info_server::Info};
use tonic::{Request, Response, Status, async_trait};

use super::{Grpc, wire::number};
use crate::info;

impl From<&info::Info> for v1::InfoResponse {
    fn from(info: &info::Info) -> Self {
        let info::Info { config, limits, machine, computation, .. } = info;
        let model = &config.model;
        let reranker = model.reranker();
        let model_type = match &model.kind {
            ModelKind::Embedder(_) => v1::ModelType::Embedding,
            ModelKind::Classifier(_) => v1::ModelType::Classifier,
            ModelKind::Reranker(_) => v1::ModelType::Reranker,
            ModelKind::Decider(_) => v1::ModelType::Decider,
        };
        Self {
            version: info::VERSION.to_owned(),
            sha: info::COMMIT.map(str::to_owned),
            docker_label: info::DOCKER_LABEL.map(str::to_owned),
            model_id: info.model_id.clone(),
            model_sha: info.model_sha.clone(),
            model_dtype: computation.dtype.clone(),
            model_type: model_type.into(),
            max_concurrent_requests: number(limits.max_concurrent_requests),
            max_input_length: number(model.limits.max_input_length),
            max_batch_tokens: number(limits.max_batch_tokens),
            max_batch_requests: limits.max_batch_requests.map(number),
            max_client_batch_size: number(config.max_client_batch_size),
            tokenization_workers: number(machine.tokenization_workers),
            served_model_name: info.served_model_name.clone(),
            auto_truncate: config.auto_truncate,
            model_kind: info.model_kind().to_owned(),
            max_rerank_texts: number(config.max_rerank_texts),
            default_instruction: reranker.and_then(Reranker::shown_instruction).map(str::to_owned),
            score_activation: reranker.and_then(|model| model.score_activation.clone()),
            pooling: model.embedder().map(|model| info::pooling(model.pool)),
            labels: model.labels().to_vec(),
            prefix_cache_bytes: computation.prefix_cache_bytes as u64,
            score_cache_bytes: machine.score_cache_bytes() as u64,
            backend: computation.backend.to_owned(),
            weights: computation.weights.clone(),
            instruction_set: computation.instruction_set.clone(),
            arithmetic: computation.arithmetic.clone(),
            threads: number(machine.threads),
            pin_threads: computation.pinned_threads,
            reranker: reranker.map(reranker_info),
            cosine_reranking: model.cosine_ranking().map(cosine_info),
        }
    }
}

/// How an embedding model re-ranks.
fn cosine_info(ranking: &CosineRanking) -> v1::CosineReranking {
    v1::CosineReranking {
        raw_score: ranking.compared.raw_score().to_owned(),
        score: CosineRanking::SCORE.to_string(),
        query_prompt: ranking.query_prompt.clone(),
        document_prompt: ranking.document_prompt.clone(),
    }
}

/// How a re-ranker scores, and where each part of that comes from.
fn reranker_info(reranker: &Reranker) -> v1::RerankerInfo {
    let family = reranker.family.as_ref();
    v1::RerankerInfo {
        family: family.map(|family| family.value.name.to_owned()),
        family_reason: family.map(|family| family.source.clone()),
        prompt: reranker.prompt_source.clone(),
        answers: reranker.answers.clone(),
        cutoff_layers: reranker.cutoff_layers.map(number),
        scores_depend_on_request: reranker.reads_lists(),
        score: reranker.score.value.to_string(),
        score_reason: reranker.score.source.clone(),
    }
}

#[async_trait]
impl Info for Grpc {
    async fn info(&self, _: Request<v1::InfoRequest>) -> Result<Response<v1::InfoResponse>, Status> {
        Ok(Response::new((&self.0.served().info).into()))
    }
}
