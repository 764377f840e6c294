//! `Info`: the served model and the server's limits.

use text_embeddings_backend_core::ModelType;
use text_embeddings_proto::v1::{self, info_server::Info};
use tonic::{Request, Response, Status, async_trait};

use super::{Grpc, wire::number};
use crate::info;

impl From<&info::Info> for v1::InfoResponse {
    fn from(info: &info::Info) -> Self {
        let info::Info { config, model, .. } = info;
        let (model_type, pooling) = match config.model_type {
            ModelType::Embedding(pool) => (v1::ModelType::Embedding, Some(info::pooling(pool))),
            ModelType::Classifier => (v1::ModelType::Classifier, None),
            ModelType::Reranker | ModelType::ListwiseReranker => (v1::ModelType::Reranker, None),
        };
        Self {
            version: info.version.to_owned(),
            sha: info.sha.map(str::to_owned),
            docker_label: info.docker_label.map(str::to_owned),
            model_id: config.model_id.clone(),
            model_sha: model.sha.clone(),
            model_dtype: model.dtype.clone(),
            model_type: model_type.into(),
            max_concurrent_requests: number(config.max_concurrent_requests),
            max_input_length: number(config.max_input_length),
            max_batch_tokens: number(config.max_batch_tokens),
            max_batch_requests: config.max_batch_requests.map(number),
            max_client_batch_size: number(config.max_client_batch_size),
            tokenization_workers: number(config.tokenization_workers),
            served_model_name: config.served_model_name.clone(),
            auto_truncate: config.auto_truncate,
            model_kind: info.model_kind().to_owned(),
            max_rerank_texts: number(config.max_rerank_texts),
            default_instruction: model.default_instruction.clone(),
            score_activation: model.score_activation.clone(),
            pooling,
            labels: model.labels.clone(),
            prefix_cache_bytes: model.prefix_cache_bytes as u64,
            backend: model.backend.to_owned(),
            weights: model.weights.clone(),
            instruction_set: model.instruction_set.clone(),
            arithmetic: model.arithmetic.clone(),
            threads: number(config.threads),
            pin_threads: config.pin_threads,
            reranker: model.reranker.as_ref().map(Into::into),
        }
    }
}

impl From<&info::RerankerDetails> for v1::RerankerInfo {
    fn from(details: &info::RerankerDetails) -> Self {
        let info::RerankerDetails {
            family,
            family_reason,
            prompt,
            answers,
            cutoff_layers,
            scores_depend_on_request,
            score,
            score_reason,
        } = details.clone();
        Self {
            family,
            family_reason,
            prompt,
            answers,
            cutoff_layers: cutoff_layers.map(number),
            scores_depend_on_request,
            score,
            score_reason,
        }
    }
}

#[async_trait]
impl Info for Grpc {
    async fn info(&self, _: Request<v1::InfoRequest>) -> Result<Response<v1::InfoResponse>, Status> {
        Ok(Response::new((&*self.0.info).into()))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::grpc::testing::Server;
    use text_embeddings_proto::v1::info_client::InfoClient;

    #[tokio::test]
    async fn the_answer_has_teis_fields_and_ours() {
        let server =
            Server::start_with("--max-batch-requests 5 --threads 3 --pin-threads --served-model-name n")
                .await;
        let answer = InfoClient::new(server.channel.clone()).info(v1::InfoRequest {}).await.unwrap();
        let expected = v1::InfoResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            model_id: "org/tiny-reranker".to_owned(),
            model_dtype: "float32".to_owned(),
            model_type: v1::ModelType::Reranker.into(),
            max_concurrent_requests: 512,
            max_input_length: 600,
            max_batch_tokens: 768,
            max_batch_requests: Some(5),
            max_client_batch_size: 4,
            tokenization_workers: 2,
            served_model_name: "n".to_owned(),
            auto_truncate: true,
            model_kind: "listwise-reranker".to_owned(),
            max_rerank_texts: 8,
            default_instruction: Some("Judge.".to_owned()),
            labels: vec!["yes".to_owned()],
            prefix_cache_bytes: 256 << 20,
            instruction_set: Some("portable".to_owned()),
            arithmetic: "float32".to_owned(),
            backend: "candle".to_owned(),
            weights: "model.safetensors".to_owned(),
            threads: 3,
            pin_threads: true,
            ..v1::InfoResponse::default()
        };
        assert_eq!(answer.into_inner(), expected);
    }
}
