//! Compares the ids of every case of `integration_tests/reference`, whose README specifies them, with the
//! Python reference.
//!
//! Input: the committed fixtures. What must hold: each prompt has exactly the expected ids, through the
//! built-in prompt and, where a model brings one, through the model's own chat template.

#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use serde::{Deserialize, de::DeserializeOwned};
use std::{collections::HashMap, fs, path::PathBuf};
use text_embeddings_backend_core::AnswerTokens;
use text_embeddings_core::{
    families::{Answers, QWEN3_RERANKER},
    templates::{MessageStyle, PromptTemplate},
    tokenization::{
        AnswerSource, EncoderOptions, PairText, PromptEncoder, TokenLimits, Truncation, TruncationDirection,
        answer_tokens,
    },
};
use tokenizers::Tokenizer;

#[derive(Deserialize)]
struct Case {
    name: String,
    instruction: Option<String>,
    query: String,
    document: Document,
    max_length: usize,
    truncation_direction: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Document {
    Text(String),
    Repeated { repeat: String, times: usize },
}

impl Document {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Repeated { repeat, times } => repeat.repeat(*times),
        }
    }
}

/// Long lists are stored by their first and last values.
#[derive(Deserialize)]
#[serde(untagged)]
enum Expected {
    Whole { length: usize, ids: Vec<u32> },
    Ends { length: usize, first: Vec<u32>, last: Vec<u32> },
}

#[derive(Deserialize)]
struct PromptFacts {
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    yes: u32,
    no: u32,
    default_instruction: String,
}

fn fixture(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../integration_tests/reference/fixtures")).join(path)
}

fn read<T: DeserializeOwned>(path: &str) -> T {
    serde_json::from_slice(&fs::read(fixture(path)).unwrap()).unwrap()
}

fn tokenizer() -> Tokenizer {
    Tokenizer::from_file(fixture("models/tied-bf16/tokenizer.json")).unwrap()
}

fn encode(case: &Case, template: &PromptTemplate) -> Vec<u32> {
    let options = EncoderOptions {
        default_instruction: template.default_instruction().map(str::to_owned),
        max_input_length: case.max_length,
        ..EncoderOptions::default()
    };
    let encoder = PromptEncoder::new(tokenizer(), template, options).unwrap();
    let document = case.document.text();
    let text = PairText { instruction: case.instruction.as_deref(), query: &case.query, document: &document };
    let direction = match case.truncation_direction.as_str() {
        "left" => TruncationDirection::Left,
        _ => TruncationDirection::Right,
    };
    let encoded = encoder
        .encode_prompt(&text, Truncation { truncate: true, direction, limits: TokenLimits::NONE })
        .unwrap();
    assert!(encoded.truncated == 0 || encoded.ids.len() == case.max_length, "{}", case.name);
    encoded.ids
}

/// The model card's procedure: the body is encoded alone and cut at its end. The script of the fixtures
/// compares the long cases with it, too.
fn official_ids(case: &Case, facts: &PromptFacts) -> Vec<u32> {
    let instruction = case.instruction.as_deref().unwrap_or(&facts.default_instruction);
    let body =
        format!("<Instruct>: {instruction}\n<Query>: {}\n<Document>: {}", case.query, case.document.text());
    let mut ids = facts.prefix.clone();
    ids.extend(tokenizer().encode_fast(body, false).unwrap().get_ids());
    ids.truncate(case.max_length - facts.suffix.len());
    ids.extend(&facts.suffix);
    ids
}

#[test]
fn every_case_has_the_ids_of_the_reference() {
    let cases: Vec<Case> = read("cases.json");
    let expected: HashMap<String, Expected> = read("expected/ids.json");
    let facts: PromptFacts = read("expected/prompt.json");
    assert!(cases.len() > 60 && cases.len() == expected.len());
    let builtin = PromptTemplate::builtin(&QWEN3_RERANKER);
    for case in &cases {
        let (name, ids) = (&case.name, encode(case, &builtin));
        match &expected[name] {
            Expected::Whole { length, ids: expected } => {
                assert_eq!((ids.len(), &ids), (*length, expected), "{name}");
            }
            Expected::Ends { length, first, last } => {
                assert!(ids.len() == *length && ids.starts_with(first) && ids.ends_with(last), "{name}");
                assert!(ids == official_ids(case, &facts), "{name}");
            }
        }
    }
}

#[test]
fn the_chat_template_of_the_model_folder_is_the_builtin_prompt() {
    let source = fs::read_to_string(fixture("models/tied-bf16/chat_template.jinja")).unwrap();
    let builtin = PromptTemplate::builtin(&QWEN3_RERANKER);
    assert_eq!(PromptTemplate::from_chat_template(&source, &MessageStyle::plain()).unwrap(), builtin);
}

#[test]
fn the_frame_and_the_answers_are_those_of_the_reference() {
    let facts: PromptFacts = read("expected/prompt.json");
    let tokenizer = tokenizer();
    let answers = AnswerTokens::difference(facts.yes, Some(facts.no));
    assert_eq!(answer_tokens(&tokenizer, AnswerSource::Family(Answers::YES_NO)), Ok(answers));
    let template = PromptTemplate::builtin(&QWEN3_RERANKER);
    assert_eq!(template.default_instruction(), Some(facts.default_instruction.as_str()));
    let options = EncoderOptions {
        default_instruction: Some(facts.default_instruction),
        max_input_length: 8192,
        ..EncoderOptions::default()
    };
    let encoder = PromptEncoder::new(tokenizer, &template, options).unwrap();
    assert_eq!(encoder.self_check(), Ok(()));
    let text = PairText { instruction: None, query: "a", document: "b" };
    let truncation =
        Truncation { truncate: true, direction: TruncationDirection::Right, limits: TokenLimits::NONE };
    let ids = encoder.encode_prompt(&text, truncation).unwrap().ids;
    assert!(ids.starts_with(&facts.prefix) && ids.ends_with(&facts.suffix));
}
