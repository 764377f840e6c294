//! A service for tests: a tokenizer of a thousand words, a backend that hashes ids, small limits.
//!
//! Input: a kind of model, and changes to the limits. Output: a [`Fixture`]. [`Fixture::raw_score`] and
//! [`Fixture::values`] give the expected answers, computed without queue, batch and threads. The words
//! `fail`, `panic`, `nan` and `break` misbehave as in `infer::testing`; `w6` to `w999` are words without a
//! meaning.

#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use super::{Service, ServiceConfig};
use crate::{
    families::QWEN3_RERANKER,
    infer::{
        Engine, EngineLimits,
        testing::{BREAK, Control, FAIL, NAN, PANIC, values},
    },
    metrics::ModelMetrics,
    model::{EmbeddingModel, InputLimits, Model, ModelKind, Prompts, Reading, RerankScoring, Reranker},
    templates::PromptTemplate,
    tokenization::{
        Encoder, EncoderOptions, Input, PairText, PromptEncoder, TextEncoder, TextOptions, TokenLimits,
        Tokenization, Truncation, TruncationDirection,
    },
};
use std::{collections::BTreeMap, future::Future, sync::Arc};
use text_embeddings_backend_core::{AnswerTokens, Head, Pool, Pooling, Wanted};
use tokenizers::Tokenizer;

/// The longest prompt, in tokens. The frame around query and document takes a few dozen of them.
pub(crate) const MAX_INPUT_LENGTH: usize = 400;

/// The tokenizer's special token.
pub(crate) const CLS: u32 = 1000;

pub(crate) struct Fixture {
    pub(crate) service: Service,
    pub(crate) control: Control,
    width: usize,
}

/// A generative re-ranker with batches of at most `max_batch_tokens` tokens.
pub(crate) fn fixture(max_batch_tokens: usize) -> Fixture {
    fixture_with(max_batch_tokens, |_| ())
}

/// Like [`fixture`], with other limits or another kind of model.
pub(crate) fn fixture_with(max_batch_tokens: usize, change: impl FnOnce(&mut ServiceConfig)) -> Fixture {
    let mut config = reranker_config();
    change(&mut config);
    let width = if reranker(&mut config).scoring == RerankScoring::default() { 1 } else { 2 };
    fixture_of(limits(max_batch_tokens, 512), prompt_encoder().into(), width, config)
}

/// Like [`fixture`], with at most `max_concurrent_requests` requests in flight.
pub(crate) fn fixture_with_permits(max_batch_tokens: usize, max_concurrent_requests: usize) -> Fixture {
    fixture_of_limits(limits(max_batch_tokens, max_concurrent_requests))
}

/// Like [`fixture`], with these limits of the engine.
pub(crate) fn fixture_of_limits(limits: EngineLimits) -> Fixture {
    fixture_of(limits, prompt_encoder().into(), 1, reranker_config())
}

/// An embedding model with vectors of seven values and two prompts.
pub(crate) fn embedding_fixture(max_batch_tokens: usize, change: impl FnOnce(&mut ServiceConfig)) -> Fixture {
    let named = [("query", "w700 w701 "), ("document", "")];
    let prompts = Prompts {
        named: named.map(|(name, prompt)| (name.to_owned(), prompt.to_owned())).into(),
        default: String::new(),
    };
    let outputs = Wanted { whole: true, tokens: true, sparse: false };
    let pool = Pool::LastToken;
    let model = EmbeddingModel {
        pool,
        outputs,
        prompts,
        empty_tokens: Vec::new(),
        last_token: None,
        bare_tokens: None,
        trained_lengths: Vec::new(),
        cosine_ranking: None,
    };
    let head = Head::embedding(Pooling::Last, Vec::new());
    let mut config = ServiceConfig { dimensions: 7, ..config(ModelKind::Embedder(model), head) };
    change(&mut config);
    fixture_of(limits(max_batch_tokens, 512), text_encoder().into(), 7, config)
}

/// A classifier with these labels.
pub(crate) fn classifier_fixture(labels: &[&str]) -> Fixture {
    let labels: Vec<String> = labels.iter().map(|&label| label.to_owned()).collect();
    let width = labels.len();
    let config = config(ModelKind::Classifier(labels), Head::classification(width));
    fixture_of(limits(100, 512), text_encoder().into(), width, config)
}

/// The limits of an engine: the tokens of a batch, and the requests in flight.
pub(crate) fn limits(max_batch_tokens: usize, max_concurrent_requests: usize) -> EngineLimits {
    EngineLimits {
        max_batch_tokens,
        max_input_length: max_batch_tokens,
        max_batch_requests: None,
        max_concurrent_requests,
        max_queue_tokens: usize::MAX,
        device_timeout: None,
    }
}

/// The settings of a generative re-ranker.
fn reranker_config() -> ServiceConfig {
    let reranker = Reranker {
        is_generative: true,
        reading: Reading::Template(PromptTemplate::builtin(&QWEN3_RERANKER)),
        labels: vec!["yes".to_owned()],
        ..Reranker::default()
    };
    let answers = AnswerTokens::difference(1, None);
    config(ModelKind::Reranker(Box::new(reranker)), Head::answers(answers))
}

fn config(kind: ModelKind, head: Head) -> ServiceConfig {
    ServiceConfig {
        model: Arc::new(Model { kind, reason: String::new(), head, limits: InputLimits::default() }),
        calibration: None,
        dimensions: 0,
        max_rerank_texts: 16,
        max_questions: 8,
        min_score: None,
        max_client_batch_size: 4,
        max_openai_inputs: 4,
        max_answer_values: usize::MAX,
        auto_truncate: true,
        queue_timeout: None,
    }
}

/// The re-ranker of these settings, to be changed.
pub(crate) fn reranker(config: &mut ServiceConfig) -> &mut Reranker {
    match &mut Arc::make_mut(&mut config.model).kind {
        ModelKind::Reranker(reranker) => reranker,
        kind => unreachable!("a re-ranker: {kind:?}"),
    }
}

/// The embedding model of these settings, to be changed.
pub(crate) fn embedder(config: &mut ServiceConfig) -> &mut EmbeddingModel {
    match &mut Arc::make_mut(&mut config.model).kind {
        ModelKind::Embedder(embedder) => embedder,
        kind => unreachable!("an embedding model: {kind:?}"),
    }
}

fn fixture_of(limits: EngineLimits, encoder: Encoder, width: usize, config: ServiceConfig) -> Fixture {
    let control = Control::default();
    let engine = Engine::start(control.backend_of_width(width), limits, ModelMetrics::default()).unwrap();
    let tokenization = Tokenization::start(encoder, 2).unwrap();
    Fixture { service: Service::new(tokenization, engine, config), control, width }
}

impl Fixture {
    /// The raw score of a pair, and the tokens of its prompt.
    pub(crate) fn raw_score(&self, instruction: Option<&str>, query: &str, document: &str) -> (f32, usize) {
        let ids = self.ids(&Input::Pair(PairText { instruction, query, document }));
        (values(&ids, 1)[0], ids.len())
    }

    /// The backend's values for an input.
    pub(crate) fn values(&self, input: &Input<'_>) -> Vec<f32> {
        values(&self.ids(input), self.width)
    }

    /// The backend's values for an input up to each of its tokens.
    pub(crate) fn values_of_tokens(&self, input: &Input<'_>) -> Vec<Vec<f32>> {
        let ids = self.ids(input);
        (1..=ids.len()).map(|end| values(&ids[..end], self.width)).collect()
    }

    /// The ids of an input. Its end is cut if it is too long.
    pub(crate) fn ids(&self, input: &Input<'_>) -> Vec<u32> {
        let truncation =
            Truncation { truncate: true, direction: TruncationDirection::Right, limits: TokenLimits::NONE };
        self.service.tokenization.encoder().encode(input, truncation, None).unwrap().ids
    }
}

/// Runs a future on a runtime without other threads, so that a recorder sees its metrics.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

fn prompt_encoder() -> PromptEncoder {
    let options = EncoderOptions {
        default_instruction: Some("w7".to_owned()),
        max_input_length: MAX_INPUT_LENGTH,
        ..EncoderOptions::default()
    };
    PromptEncoder::new(tokenizer(), &PromptTemplate::builtin(&QWEN3_RERANKER), options).unwrap()
}

fn text_encoder() -> TextEncoder {
    let options = TextOptions {
        max_input_length: MAX_INPUT_LENGTH,
        vocabulary: CLS as usize + 1,
        has_token_types: true,
        ..TextOptions::default()
    };
    TextEncoder::new(tokenizer(), options).unwrap()
}

/// A tokenizer of words and runs of punctuation. It puts `[CLS]` before each text if special tokens are
/// requested.
fn tokenizer() -> Tokenizer {
    let named = [("[UNK]", 0), ("fail", FAIL), ("panic", PANIC), ("nan", NAN), ("break", BREAK), ("행성", 5)];
    let mut vocabulary: BTreeMap<String, u32> = (6..CLS).map(|id| (format!("w{id}"), id)).collect();
    vocabulary.extend(named.map(|(word, id)| (word.to_owned(), id)));
    let file = serde_json::json!({
        "version": "1.0",
        "added_tokens": [{
            "id": CLS, "content": "[CLS]", "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false
        }],
        "pre_tokenizer": { "type": "Whitespace" },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                { "SpecialToken": { "id": "[CLS]", "type_id": 0 } },
                { "Sequence": { "id": "A", "type_id": 0 } }
            ],
            "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 1 } }],
            "special_tokens": { "[CLS]": { "id": "[CLS]", "ids": [CLS], "tokens": ["[CLS]"] } }
        },
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]" }
    });
    file.to_string().parse().unwrap()
}
