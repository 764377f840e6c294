//! A service for tests: a tokenizer of a thousand words, a backend that hashes ids, small limits.
//!
//! Input: changes to the limits. Output: a [`Fixture`], and by [`Fixture::raw_score`] what it must answer, computed
//! without queue, batch and threads. The words `fail`, `panic`, `nan` and `break` misbehave as in `infer::testing`; `w6` to
//! `w999` are words without a meaning.

#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use super::{Service, ServiceConfig};
use crate::{
    infer::{
        Engine, EngineLimits,
        testing::{BREAK, Control, FAIL, NAN, PANIC, score},
    },
    templates::{BuiltinTemplate, PromptTemplate},
    tokenization::{
        EncoderOptions, PromptEncoder, PromptText, Tokenization, Truncation, TruncationDirection,
    },
};
use std::{collections::BTreeMap, future::Future};
use text_embeddings_backend_core::ModelType;
use tokenizers::Tokenizer;

/// The longest prompt, in tokens; the frame around query and document takes a few dozen of them.
pub(crate) const MAX_INPUT_LENGTH: usize = 400;

/// The tokenizer's special token.
pub(crate) const CLS: u32 = 1000;

pub(crate) struct Fixture {
    pub(crate) service: Service,
    pub(crate) control: Control,
}

/// A service whose batches hold `max_batch_tokens`.
pub(crate) fn fixture(max_batch_tokens: usize) -> Fixture {
    fixture_with(max_batch_tokens, |_| ())
}

/// As [`fixture`], with other limits or another kind of model.
pub(crate) fn fixture_with(max_batch_tokens: usize, change: impl FnOnce(&mut ServiceConfig)) -> Fixture {
    fixture_of(
        EngineLimits { max_batch_tokens, max_batch_requests: None, max_concurrent_requests: 512 },
        change,
    )
}

/// As [`fixture`], with so many requests in flight at most.
pub(crate) fn fixture_with_permits(max_batch_tokens: usize, max_concurrent_requests: usize) -> Fixture {
    fixture_of(EngineLimits { max_batch_tokens, max_batch_requests: None, max_concurrent_requests }, |_| ())
}

fn fixture_of(limits: EngineLimits, change: impl FnOnce(&mut ServiceConfig)) -> Fixture {
    let mut config = ServiceConfig {
        model_type: ModelType::ListwiseReranker,
        max_rerank_texts: 16,
        max_client_batch_size: 4,
        auto_truncate: true,
    };
    change(&mut config);
    let control = Control::default();
    let engine = Engine::start(control.backend(), limits).unwrap();
    let tokenization = Tokenization::start(encoder(), 2).unwrap();
    Fixture { service: Service::new(tokenization, engine, config), control }
}

impl Fixture {
    /// The raw score of a pair, and the tokens of its prompt.
    pub(crate) fn raw_score(&self, instruction: Option<&str>, query: &str, document: &str) -> (f32, usize) {
        let truncation = Truncation { truncate: true, direction: TruncationDirection::Right };
        let prompt = PromptText { instruction, query, document };
        let ids = self.service.tokenization.encoder().encode_prompt(&prompt, truncation).unwrap().ids;
        (score(&ids), ids.len())
    }
}

/// Runs a future on a runtime that has no thread but this one, so that a recorder sees what it counts.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

fn encoder() -> PromptEncoder {
    let options = EncoderOptions {
        default_instruction: "w7".to_owned(),
        max_input_length: MAX_INPUT_LENGTH,
        parse_special_tokens: false,
    };
    PromptEncoder::new(tokenizer(), &PromptTemplate::builtin(BuiltinTemplate::Qwen3Reranker), options)
        .unwrap()
}

/// Words and runs of punctuation, with a `[CLS]` put before each text that asks for special tokens.
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
