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

use super::state::AppState;
use crate::config::Config;

/// The answer.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Info {
    model_id: String,
    model_sha: Option<String>,
    model_dtype: String,
    served_model_name: String,
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
    default_instruction: Option<String>,
}

/// What start-up learns of the model beside its [`Config`].
#[derive(Debug, Clone, Default)]
pub(crate) struct ModelDetails {
    /// The commit on the Hub; none for a local folder.
    pub(crate) sha: Option<String>,
    /// The classes in order; for a generative re-ranker `["yes"]`.
    pub(crate) labels: Vec<String>,
    /// The instruction in force where a request has none.
    pub(crate) default_instruction: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "lowercase")]
enum ModelTypeBody {
    Embedding { pooling: String },
    Classifier(Labels),
    Reranker(Labels),
}

#[derive(Debug, Clone, Serialize)]
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

impl Info {
    /// The answer for a model served as `config` says.
    pub(crate) fn new(config: &Config, details: ModelDetails) -> Self {
        let labels = || Labels::new(&details.labels);
        let (model_type, model_kind) = match config.model_type {
            ModelType::Embedding(pool) => {
                (ModelTypeBody::Embedding { pooling: pool.to_string() }, "embedding")
            }
            ModelType::Classifier => (ModelTypeBody::Classifier(labels()), "classifier"),
            ModelType::Reranker => (ModelTypeBody::Reranker(labels()), "reranker"),
            ModelType::ListwiseReranker => (ModelTypeBody::Reranker(labels()), "listwise-reranker"),
        };
        Self {
            model_id: config.model_id.clone(),
            model_sha: details.sha,
            model_dtype: config.dtype.to_string(),
            served_model_name: config.served_model_name.clone(),
            model_type,
            max_concurrent_requests: config.max_concurrent_requests,
            max_input_length: config.max_input_length,
            max_batch_tokens: config.max_batch_tokens,
            max_batch_requests: config.max_batch_requests,
            max_client_batch_size: config.max_client_batch_size,
            auto_truncate: config.auto_truncate,
            tokenization_workers: config.tokenization_workers,
            version: env!("CARGO_PKG_VERSION"),
            sha: option_env!("GIT_SHA"),
            docker_label: option_env!("DOCKER_LABEL"),
            model_kind,
            max_rerank_texts: config.max_rerank_texts,
            default_instruction: details.default_instruction,
        }
    }
}

impl Info {
    /// The model's name in answers.
    pub(crate) fn served_model_name(&self) -> &str {
        &self.served_model_name
    }
}

/// Answers a request.
pub(crate) async fn info(State(state): State<AppState>) -> Response {
    Json(&*state.info).into_response()
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
