//! `GET /info`: what is served, and within which limits.
//!
//! Output: TEI's fields, and besides what a user of a generative re-ranker asks for. What must hold: a generative
//! re-ranker reports the key `reranker` too, so that clients which look for it go on working.

use std::collections::BTreeMap;

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use text_embeddings_backend_core::ModelType;

use crate::{
    info::{Info, ModelDetails},
    state::AppState,
};

/// The answer.
#[derive(Debug, Serialize)]
struct InfoBody<'a> {
    model_id: &'a str,
    model_sha: Option<&'a str>,
    model_dtype: String,
    served_model_name: &'a str,
    model_type: ModelTypeBody,
    max_concurrent_requests: usize,
    max_input_length: usize,
    max_batch_tokens: usize,
    max_batch_requests: Option<usize>,
    max_client_batch_size: usize,
    auto_truncate: bool,
    tokenization_workers: usize,
    version: &'static str,
    sha: Option<&'static str>,
    docker_label: Option<&'static str>,
    model_kind: &'static str,
    max_rerank_texts: usize,
    default_instruction: Option<&'a str>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum ModelTypeBody {
    Embedding { pooling: String },
    Classifier(Labels),
    Reranker(Labels),
}

#[derive(Debug, Serialize)]
struct Labels {
    id2label: BTreeMap<String, String>,
    label2id: BTreeMap<String, usize>,
}

impl Labels {
    fn new(labels: &[String]) -> Self {
        let numbered = || labels.iter().enumerate();
        Self {
            id2label: numbered().map(|(id, label)| (id.to_string(), label.clone())).collect(),
            label2id: numbered().map(|(id, label)| (label.clone(), id)).collect(),
        }
    }
}

impl ModelTypeBody {
    fn new(model_type: ModelType, details: &ModelDetails) -> Self {
        let labels = Labels::new(&details.labels);
        match model_type {
            ModelType::Embedding(pool) => Self::Embedding { pooling: pool.to_string() },
            ModelType::Classifier => Self::Classifier(labels),
            ModelType::Reranker | ModelType::ListwiseReranker => Self::Reranker(labels),
        }
    }
}

impl<'a> From<&'a Info> for InfoBody<'a> {
    fn from(info: &'a Info) -> Self {
        let Info { config, model, .. } = info;
        Self {
            model_id: &config.model_id,
            model_sha: model.sha.as_deref(),
            model_dtype: config.dtype.to_string(),
            served_model_name: &config.served_model_name,
            model_type: ModelTypeBody::new(config.model_type, model),
            max_concurrent_requests: config.max_concurrent_requests,
            max_input_length: config.max_input_length,
            max_batch_tokens: config.max_batch_tokens,
            max_batch_requests: config.max_batch_requests,
            max_client_batch_size: config.max_client_batch_size,
            auto_truncate: config.auto_truncate,
            tokenization_workers: config.tokenization_workers,
            version: info.version,
            sha: info.sha,
            docker_label: info.docker_label,
            model_kind: info.model_kind(),
            max_rerank_texts: config.max_rerank_texts,
            default_instruction: model.default_instruction.as_deref(),
        }
    }
}

/// Answers a request.
pub(crate) async fn info(State(state): State<AppState>) -> Response {
    Json(InfoBody::from(&*state.info)).into_response()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use crate::http::testing::Server;

    #[tokio::test]
    async fn the_answer_has_teis_fields_and_ours() {
        let answer = Server::start().await.get("/info").await;
        assert_eq!(answer.status, 200);
        let mut value: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        value["tokenization_workers"] = 1.into();
        insta::assert_json_snapshot!(value, @r#"
        {
          "auto_truncate": true,
          "default_instruction": "Judge.",
          "docker_label": null,
          "max_batch_requests": null,
          "max_batch_tokens": 16384,
          "max_client_batch_size": 4,
          "max_concurrent_requests": 512,
          "max_input_length": 600,
          "max_rerank_texts": 8,
          "model_dtype": "float32",
          "model_id": "org/tiny-reranker",
          "model_kind": "listwise-reranker",
          "model_sha": null,
          "model_type": {
            "reranker": {
              "id2label": {
                "0": "yes"
              },
              "label2id": {
                "yes": 0
              }
            }
          },
          "served_model_name": "org/tiny-reranker",
          "sha": null,
          "tokenization_workers": 1,
          "version": "0.1.0"
        }
        "#);
    }
}
