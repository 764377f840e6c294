//! Compares the ids of texts and pairs of `integration_tests/reference`, for embedding models and
//! classifiers, with the Python reference.
//!
//! Input: the committed fixtures. What must hold: each input has exactly the expected ids, including prompt,
//! special tokens and truncation.

#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use serde::{Deserialize, de::DeserializeOwned};
use std::{collections::BTreeMap, fs, path::PathBuf};
use text_embeddings_core::tokenization::{
    PairText, TextEncoder, TextOptions, TokenLimits, Truncation, TruncationDirection,
};
use tokenizers::Tokenizer;

#[derive(Deserialize)]
struct Case {
    name: String,
    text: Text,
    prompt_name: Option<String>,
    max_length: Option<usize>,
    truncation_direction: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Text {
    Whole(String),
    Repeated { repeat: String, times: usize },
}

impl Text {
    fn whole(&self) -> String {
        match self {
            Self::Whole(text) => text.clone(),
            Self::Repeated { repeat, times } => repeat.repeat(*times),
        }
    }
}

#[derive(Deserialize)]
struct Expected {
    name: String,
    ids: Vec<u32>,
    #[serde(default)]
    inputs: Vec<String>,
}

#[derive(Deserialize)]
struct Prompts {
    prompts: BTreeMap<String, String>,
}

fn read<T: DeserializeOwned>(path: &str) -> T {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../integration_tests/reference/fixtures");
    serde_json::from_slice(&fs::read(PathBuf::from(fixtures).join(path)).unwrap()).unwrap()
}

fn encoder(model: &str, max_input_length: usize) -> TextEncoder {
    let tokenizer: serde_json::Value = read(&format!("models/{model}/tokenizer.json"));
    let tokenizer: Tokenizer = tokenizer.to_string().parse().unwrap();
    let vocabulary = tokenizer.get_vocab_size(true);
    let options = TextOptions { max_input_length, vocabulary, ..TextOptions::default() };
    TextEncoder::new(tokenizer, options).unwrap()
}

#[test]
fn every_text_has_the_ids_of_the_reference() {
    let cases: Vec<Case> = read("embedding_cases.json");
    for (model, longest) in [("embedding-last", 40_960), ("embedding-mean-dense", 47)] {
        let Prompts { prompts } = read(&format!("models/{model}/config_sentence_transformers.json"));
        let expected: Vec<Expected> = read(&format!("expected/{model}.json"));
        assert!(expected.len() >= 28, "{model}");
        for Expected { name, ids, .. } in expected {
            let case = cases.iter().find(|case| case.name == name).unwrap();
            let prompt = case.prompt_name.as_ref().map_or("", |name| &prompts[name]);
            let direction = match case.truncation_direction.as_str() {
                "left" => TruncationDirection::Left,
                _ => TruncationDirection::Right,
            };
            let encoder = encoder(model, case.max_length.unwrap_or(longest));
            let truncation = Truncation { truncate: true, direction, limits: TokenLimits::NONE };
            let encoded = encoder.encode_text(prompt, &case.text.whole(), truncation).unwrap();
            assert_eq!(encoded.ids, ids, "{model} {name}");
        }
    }
}

#[test]
fn every_text_and_pair_of_a_classifier_has_the_ids_of_the_reference() {
    let expected: Vec<Expected> = read("expected/seq-cls-3.json");
    let (mut texts, mut pairs) = (0, 0);
    for Expected { name, ids, inputs } in expected {
        let encoder = encoder("seq-cls-3", ids.len());
        let truncation =
            Truncation { truncate: false, direction: TruncationDirection::Right, limits: TokenLimits::NONE };
        let encoded = match inputs.as_slice() {
            [text] => {
                texts += 1;
                encoder.encode_text("", text, truncation)
            }
            inputs => {
                pairs += 1;
                let pair = PairText { instruction: None, query: &inputs[0], document: &inputs[1] };
                encoder.encode_pair(&pair, truncation)
            }
        };
        assert_eq!(encoded.unwrap().ids, ids, "{name}");
    }
    assert!(texts > 3 && pairs > 3);
}
