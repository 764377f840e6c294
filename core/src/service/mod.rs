//! Typed requests to typed answers: what the server does, without a transport.
//!
//! Input: one of the request types of the submodules. Output: an [`Answer`], or an [`Error`](crate::error::Error)
//! that was already counted. HTTP and gRPC call the same methods of [`Service`], so that they cannot differ.
//! What must hold: a request is counted once, as a success or as a failure, in the metrics of `crate::metrics`.

mod compute;
mod embed;
mod listwise;
mod model;
mod predict;
mod request;
mod rerank;
mod score;
mod show;
mod tokenize;

use crate::{
    infer::{Engine, EngineGauges},
    tokenization::{Encoder, Tokenization},
};
use std::{sync::Arc, time::Duration};
use text_embeddings_backend_core::ModelType;

pub use embed::{
    EmbedAllRequest, EmbedEncoding, EmbedInput, EmbedInputs, EmbedOutputs, EmbedOutputsRequest, EmbedRequest,
    EmbedSparseRequest, SimilarityRequest,
};
pub use model::{Prompts, ServedModel};
pub use predict::{PredictInput, PredictRequest, Prediction};
pub use rerank::{Rank, RerankRequest};
pub use score::ScoreRequest;
pub use show::ShowRequest;
pub use tokenize::{DecodeRequest, Token, TokenizeRequest};

/// The limits and defaults that requests are held to.
#[derive(Debug, Clone)]
pub struct ServiceConfig {
    /// What kind of model is served; a route for another kind answers [`crate::error::Error::ModelType`].
    pub model_type: ModelType,
    /// Its labels, prompts and dimensions.
    pub model: ServedModel,
    /// The most texts of one rerank request (`--max-rerank-texts`).
    pub max_rerank_texts: usize,
    /// The most inputs of one request on the other routes (`--max-client-batch-size`).
    pub max_client_batch_size: usize,
    /// Whether an input that is too long is truncated when the request does not say (`--auto-truncate`).
    pub auto_truncate: bool,
    /// How long a request may wait before the first of its texts is computed (`--queue-timeout`); for ever if absent.
    pub queue_timeout: Option<Duration>,
}

/// The result of a request with what it cost.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer<T> {
    /// The result.
    pub value: T,
    /// What it cost.
    pub cost: Cost,
}

impl<T> Answer<T> {
    /// The same answer in another form.
    #[must_use]
    pub fn map<U>(self, form: impl FnOnce(T) -> U) -> Answer<U> {
        Answer { value: form(self.value), cost: self.cost }
    }
}

/// What a request cost: the content of the answer's `x-…` headers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Texts, or pairs, that were given to the model.
    pub texts: usize,
    /// Characters (Unicode scalar values) of the texts the client sent; a query counts once for each of its texts.
    pub characters: usize,
    /// Tokens of all prompts, each counted in full, after truncation.
    pub tokens: usize,
    /// Texts from which tokens were cut.
    pub truncated: usize,
    /// Prompts in which a listwise re-ranker read the texts, whose scores depend on each other; 0 for other models.
    pub lists: usize,
    /// From the arrival of the request to its answer.
    pub total: Duration,
    /// The longest wait for, and work of, a tokenizer among the request's texts.
    pub tokenization: Duration,
    /// The longest wait in the queue among the request's texts.
    pub queue: Duration,
    /// The longest forward pass among the request's texts.
    pub inference: Duration,
}

/// What the server does. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    tokenization: Arc<Tokenization>,
    engine: Arc<Engine>,
    config: Arc<ServiceConfig>,
    patient: bool,
}

impl Service {
    /// Joins the parts that start-up made.
    #[must_use]
    pub fn new(tokenization: Tokenization, engine: Engine, config: ServiceConfig) -> Self {
        let (tokenization, engine, config) = (Arc::new(tokenization), Arc::new(engine), Arc::new(config));
        Self { tokenization, engine, config, patient: false }
    }

    /// The same service, whose requests wait for a free permit where others are refused: for clients that send the
    /// next request only when an earlier one is answered.
    #[must_use]
    pub fn patient(&self) -> Self {
        Self { patient: true, ..self.clone() }
    }

    /// Whether the model reads the documents of a request together, so that a score depends on the others.
    #[must_use]
    pub fn is_listwise(&self) -> bool {
        matches!(self.tokenization.encoder(), Encoder::Listwise(_))
    }

    /// The limits and defaults in force.
    #[must_use]
    pub fn config(&self) -> &ServiceConfig {
        &self.config
    }

    /// What the metrics need of the engine.
    #[must_use]
    pub fn gauges(&self) -> EngineGauges {
        self.engine.gauges()
    }

    /// Completes when the device is lost: nothing is computed any more, and every request is refused.
    pub async fn device_lost(&self) {
        self.engine.device_lost().await;
    }

    /// Whether the device is lost.
    #[must_use]
    pub fn is_device_lost(&self) -> bool {
        self.engine.is_device_lost()
    }

    /// Whether the server can compute: the device thread runs, and the last batch, or a probe of one token if that
    /// failed, succeeded.
    pub async fn healthy(&self) -> bool {
        self.engine.healthy().await
    }
}

#[cfg(test)]
mod testing;
