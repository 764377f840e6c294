//! The server's functions as typed requests and answers, independent of the transport.
//!
//! Input: one of the request types of the submodules. Output: an [`Answer`], or an
//! [`Error`] that is already counted. HTTP and gRPC call the same methods of
//! [`Service`], so that they cannot differ. What must hold: the metrics of `crate::metrics` count a request
//! once, as a success or as a failure.

mod cascade;
mod compute;
mod cosine;
mod decide;
mod divider;
mod embed;
mod late;
mod max_sim;
mod model;
mod passages;
mod predict;
mod prompts;
mod ranking;
mod request;
mod rerank;
mod score;
mod score_cache;
mod scoring;
mod show;
mod similarity;
mod sizes;
mod task;
mod tokenize;
mod vectors;

use crate::{
    error::Error,
    infer::{Engine, Permit},
    model::{Calibration, Model, Reranker},
    tokenization::Tokenization,
};
use score_cache::ModelScores;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use text_embeddings_backend_core::{PlainSimilarity, TokenSimilarity};

pub use cascade::SecondStage;
pub use decide::{
    Decision, DecisionRequest, DecisionText, JsonStrings, Question, QuestionKind, QuestionOption,
};
pub use embed::{EmbedEncoding, EmbedInput, EmbedInputs, EmbedOutputs, EmbedRequest};
pub use predict::{PredictInput, PredictRequest, Prediction};
pub use ranking::{Chunking, Highlight, Passage, Rank, RerankRequest};
pub use score::ScoreRequest;
pub use score_cache::ScoreCache;
pub use show::ShowRequest;
pub use similarity::SimilarityRequest;
pub use tokenize::{DecodeRequest, Token, TokenizeRequest};

/// The time between two looks whether a model is still used.
const UNUSED_INTERVAL: Duration = Duration::from_millis(50);

/// The limits and defaults for requests.
#[derive(Debug, Clone)]
pub struct ServiceConfig {
    /// The model. A request for another kind of model answers [`crate::error::Error::ModelType`].
    pub model: Arc<Model>,
    /// The numbers that were fitted to judged answers, if there are some.
    pub calibration: Option<Arc<Calibration>>,
    /// The length of an embedding model's vectors; 0 for other models.
    pub dimensions: usize,
    /// The most texts of one rerank request (`--max-rerank-texts`).
    pub max_rerank_texts: usize,
    /// The most questions of one request to decide (`--max-questions`).
    pub max_questions: usize,
    /// The least score of a re-ranked text if the request does not say (`--min-score`).
    pub min_score: Option<f32>,
    /// The most inputs of one request on the other routes (`--max-client-batch-size`).
    pub max_client_batch_size: usize,
    /// The most inputs of one request in `OpenAI`'s format.
    pub max_openai_inputs: usize,
    /// The most values of the vectors of an answer: more would not fit `--max-unsent-bytes`.
    pub max_answer_values: usize,
    /// Whether too long inputs are truncated if the request does not say (`--auto-truncate`).
    pub auto_truncate: bool,
    /// The longest time that a request may wait until the first of its texts is computed (`--queue-timeout`);
    /// unlimited if absent.
    pub queue_timeout: Option<Duration>,
}

/// The result of a request, with its cost.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer<T> {
    /// The result.
    pub value: T,
    /// The cost of the request.
    pub cost: Cost,
}

impl<T> Answer<T> {
    /// The same answer with its value changed by `form`.
    pub fn map<U>(self, form: impl FnOnce(T) -> U) -> Answer<U> {
        Answer { value: form(self.value), cost: self.cost }
    }
}

/// The cost of a request: the content of the answer's `x-…` headers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// The number of texts or pairs that the model computed.
    pub texts: usize,
    /// The number of characters (Unicode scalar values) of the client's texts. A query counts once for each
    /// of its texts.
    pub characters: usize,
    /// The number of tokens of all prompts after truncation. Each prompt counts in full.
    pub tokens: usize,
    /// The number of texts from which tokens were cut.
    pub truncated: usize,
    /// The number of prompts in which a listwise re-ranker read the texts. Scores of texts in one prompt
    /// depend on each other. 0 for other models.
    pub lists: usize,
    /// The number of texts that a re-ranking left out, because their scores were too low. Absent without a
    /// least score.
    pub dropped: Option<usize>,
    /// The number of texts whose score or vector was computed before. Absent without a score cache.
    pub cached: Option<usize>,
    /// The length to which vectors were cut, if the model was trained to be cut to others.
    pub untrained_dimensions: Option<usize>,
    /// The time from the arrival of the request to its answer.
    pub total: Duration,
    /// The longest tokenization among the request's texts, including the wait for a tokenizer.
    pub tokenization: Duration,
    /// The longest wait in the queue among the request's texts.
    pub queue: Duration,
    /// The longest forward pass among the request's texts.
    pub inference: Duration,
}

/// The server's functions. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    tokenization: Arc<Tokenization>,
    engine: Arc<Engine>,
    config: Arc<ServiceConfig>,
    admission: ServiceAdmission,
    second_stage: Option<Arc<SecondStage>>,
    similarity: Arc<dyn TokenSimilarity>,
    /// Values that were computed before.
    scores: Option<ModelScores>,
}

/// How requests get their permits.
#[derive(Clone)]
enum ServiceAdmission {
    /// At once, or they are refused.
    AtOnce,
    /// They wait for one.
    InTurn,
    /// The first one has this permit.
    Held(Arc<Mutex<Option<Permit>>>),
}

impl Service {
    /// Combines the parts that the start made.
    pub fn new(tokenization: Tokenization, engine: Engine, config: ServiceConfig) -> Self {
        let (tokenization, engine, config) = (Arc::new(tokenization), Arc::new(engine), Arc::new(config));
        let (admission, similarity) = (ServiceAdmission::AtOnce, Arc::new(PlainSimilarity));
        Self { tokenization, engine, config, admission, second_stage: None, similarity, scores: None }
    }

    /// The same service, which compares the vectors of tokens by `similarity`.
    #[must_use]
    pub fn with_similarity(self, similarity: Arc<dyn TokenSimilarity>) -> Self {
        Self { similarity, ..self }
    }

    /// The same service, which keeps scores and vectors in `cache`. Other models may keep theirs there, too.
    #[must_use]
    pub fn with_score_cache(self, cache: &Arc<ScoreCache>) -> Self {
        Self { scores: Some(ModelScores::from_cache(Arc::clone(cache))), ..self }
    }

    /// The same service, except that requests wait for a free permit instead of being refused. It is for
    /// clients that send the next request only after an earlier one is answered.
    #[must_use]
    pub fn patient(&self) -> Self {
        Self { admission: ServiceAdmission::InTurn, ..self.clone() }
    }

    /// The same service with a permit for its next request, which this waits for. It is for clients that send
    /// requests before earlier ones are answered: nothing is done for a request before it has its permit.
    ///
    /// # Errors
    ///
    /// [`Error::Unhealthy`] while the device hangs; [`Error::DeviceLost`] once it is lost.
    pub async fn admit_next(&self) -> Result<Self, Error> {
        let permit = self.engine.acquire(0).await?;
        Ok(Self { admission: ServiceAdmission::Held(Arc::new(Mutex::new(Some(permit)))), ..self.clone() })
    }

    /// Whether the model reads the documents of a request together, so that a score depends on the other
    /// documents.
    pub fn reads_lists(&self) -> bool {
        self.config.model.reranker().is_some_and(Reranker::reads_lists)
    }

    /// The limits and defaults in force.
    pub fn config(&self) -> &ServiceConfig {
        &self.config
    }

    /// The engine that computes.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Completes when nothing else uses the model: no request, and no other service. Then this service may be
    /// dropped, which frees the model and blocks meanwhile.
    pub async fn until_unused(&self) {
        while Arc::strong_count(&self.engine) > 1 {
            tokio::time::sleep(UNUSED_INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod testing;
