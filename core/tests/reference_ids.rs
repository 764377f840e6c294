//! Compares the ids of every case of `integration_tests/reference`, whose README specifies them, with the
//! Python reference.
//!
//! Input: the committed fixtures. What must hold: each prompt, and each text and pair of an embedding model
//! or a classifier, has exactly the expected ids, through the built-in prompt and, where a model brings one,
//! through the model's own chat template.

#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use serde::{Deserialize, de::DeserializeOwned};
use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::PathBuf,
};
use text_embeddings_backend_core::AnswerTokens;
use text_embeddings_core::{
    families::{Answers, QWEN3_RERANKER},
    templates::{MessageStyle, PromptTemplate},
    tokenization::{
        AnswerSource, EncoderOptions, PairText, PromptEncoder, TextEncoder, TextOptions, TokenLimits,
        Truncation, TruncationDirection, answer_tokens,
    },
};
use tokenizers::Tokenizer;

#[derive(Deserialize)]
struct Case {
    name: String,
    instruction: Option<String>,
    query: String,
    document: CaseText,
    max_length: usize,
    truncation_direction: Direction,
}

/// A single text for an embedding model.
#[derive(Deserialize)]
struct TextCase {
    name: String,
    text: CaseText,
    prompt_name: Option<String>,
    max_length: Option<usize>,
    truncation_direction: Direction,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum CaseText {
    Whole(String),
    Repeated { repeat: String, times: usize },
}

impl CaseText {
    fn whole(&self) -> String {
        match self {
            Self::Whole(text) => text.clone(),
            Self::Repeated { repeat, times } => repeat.repeat(*times),
        }
    }
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum Direction {
    Left,
    Right,
}

impl Direction {
    /// With this end cut where a text is too long.
    fn truncation(self) -> Truncation {
        let direction = match self {
            Self::Left => TruncationDirection::Left,
            Self::Right => TruncationDirection::Right,
        };
        Truncation { truncate: true, direction, limits: TokenLimits::NONE }
    }
}

/// Long lists are stored by their first and last values.
#[derive(Deserialize)]
#[serde(untagged)]
enum Expected {
    Whole { length: usize, ids: Vec<u32> },
    Ends { length: usize, first: Vec<u32>, last: Vec<u32> },
}

/// The ids of a text, or of a classifier's text or pair.
#[derive(Deserialize)]
struct ExpectedText {
    name: String,
    ids: Vec<u32>,
    #[serde(default)]
    inputs: Vec<String>,
}

#[derive(Deserialize)]
struct Prompts {
    prompts: BTreeMap<String, String>,
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
    let document = case.document.whole();
    let text = PairText { instruction: case.instruction.as_deref(), query: &case.query, document: &document };
    let encoded = encoder.encode_prompt(&text, case.truncation_direction.truncation(), None).unwrap();
    assert!(encoded.truncated == 0 || encoded.ids.len() == case.max_length, "{}", case.name);
    encoded.ids
}

/// The model card's procedure: the body is encoded alone and cut at its end. The script of the fixtures
/// compares the long cases with it, too.
fn official_ids(case: &Case, facts: &PromptFacts) -> Vec<u32> {
    let instruction = case.instruction.as_deref().unwrap_or(&facts.default_instruction);
    let body =
        format!("<Instruct>: {instruction}\n<Query>: {}\n<Document>: {}", case.query, case.document.whole());
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
    let ids = encoder.encode_prompt(&text, Direction::Right.truncation(), None).unwrap().ids;
    assert!(ids.starts_with(&facts.prefix) && ids.ends_with(&facts.suffix));
}

fn text_encoder(model: &str, max_input_length: usize) -> TextEncoder {
    let tokenizer = Tokenizer::from_file(fixture(&format!("models/{model}/tokenizer.json"))).unwrap();
    let vocabulary = tokenizer.get_vocab_size(true);
    let options = TextOptions { max_input_length, vocabulary, ..TextOptions::default() };
    TextEncoder::new(tokenizer, options).unwrap()
}

#[test]
fn every_text_has_the_ids_of_the_reference() {
    let cases: Vec<TextCase> = read("embedding_cases.json");
    for (model, longest) in [("embedding-last", 40_960), ("embedding-mean-dense", 47)] {
        let Prompts { prompts } = read(&format!("models/{model}/config_sentence_transformers.json"));
        let expected: Vec<ExpectedText> = read(&format!("expected/{model}.json"));
        assert!(expected.len() >= 28, "{model}");
        for ExpectedText { name, ids, .. } in expected {
            let case = cases.iter().find(|case| case.name == name).unwrap();
            let prompt = case.prompt_name.as_ref().map_or("", |name| &prompts[name]);
            let encoder = text_encoder(model, case.max_length.unwrap_or(longest));
            let truncation = case.truncation_direction.truncation();
            let encoded = encoder.encode_text(prompt, &case.text.whole(), truncation).unwrap();
            assert_eq!(encoded.ids, ids, "{model} {name}");
        }
    }
}

#[test]
fn every_text_and_pair_of_a_classifier_has_the_ids_of_the_reference() {
    let expected: Vec<ExpectedText> = read("expected/seq-cls-3.json");
    let (mut texts, mut pairs) = (0, 0);
    for ExpectedText { name, ids, inputs } in expected {
        let encoder = text_encoder("seq-cls-3", ids.len());
        let truncation = Truncation { truncate: false, ..Direction::Right.truncation() };
        let encoded = match inputs.as_slice() {
            [text] => {
                texts += 1;
                encoder.encode_text("", text, truncation)
            }
            inputs => {
                pairs += 1;
                let pair = PairText { instruction: None, query: &inputs[0], document: &inputs[1] };
                encoder.encode_pair(&pair, truncation, None)
            }
        };
        assert_eq!(encoded.unwrap().ids, ids, "{name}");
    }
    assert!(texts > 3 && pairs > 3);
}
