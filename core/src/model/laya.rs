//! Laya: a trained decider (`laya/agent.py` of its authors' package).
//!
//! Input: the settings in its files. Output: a [`Laya`]. What must hold: temperatures are those that the
//! authors' code applies, which bounds the values of the files.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use text_embeddings_backend_core::Head;
use tokenizers::Tokenizer;

use super::Refusal;
use crate::files::ModelFolder;
use crate::tokenization::MarkedTokens;

/// The authors' limit on question and options if the settings do not say.
const MAX_QUESTION: usize = 192;
const TEMPERATURES: [f64; 2] = [0.5, 5.0];

/// A trained decider of the family Laya.
#[derive(Debug, Clone, PartialEq)]
pub struct Laya {
    /// The tokens around a question's texts.
    pub tokens: MarkedTokens,
    /// The divisor of logits for each type of question.
    temperatures: [f64; 3],
    /// The divisor of logits for a type and a number of options, such as `choice:3-5`.
    by_options: BTreeMap<String, f64>,
}

/// The settings in `rl_agent_config.json`, with the tokens of `tokenizer_config.json`.
#[derive(Deserialize)]
struct LayaSettings {
    head_max_len: Option<usize>,
    temperature: Option<Vec<Value>>,
    temperature_by_options: Option<BTreeMap<String, Value>>,
    cls_token: String,
    sep_token: String,
    mask_token: String,
}

impl ModelFolder {
    /// Whether it is a decider of the family Laya.
    pub(super) fn is_laya(&self) -> bool {
        self.config.raw["laya"].is_object()
    }
}

impl Laya {
    pub(super) fn from_files(files: &ModelFolder, tokenizer: &Tokenizer) -> Result<(Self, Head), Refusal> {
        let settings = LayaSettings::deserialize(&files.config.raw["laya"]);
        let settings = settings.map_err(|error| refuse_settings(&error.to_string()))?;
        let tokens = MarkedTokens {
            begin: find_token(tokenizer, &settings.cls_token)?,
            separator: find_token(tokenizer, &settings.sep_token)?,
            marker: find_token(tokenizer, &settings.mask_token)?,
            marker_text: settings.mask_token,
            max_question: settings.head_max_len.unwrap_or(MAX_QUESTION),
        };
        let given = settings.temperature.unwrap_or_else(|| vec![Value::from(1); 3]);
        let [choice, score, noul] = given.as_slice() else {
            return Err(refuse_settings("`temperature` is not a list of three numbers"));
        };
        let temperatures = [choice, score, noul].map(bounded_temperature);
        let by_options = settings.temperature_by_options.unwrap_or_default().into_iter();
        let by_options = by_options.map(|(name, value)| (name, bounded_temperature(&value))).collect();
        Ok((Self { tokens, temperatures, by_options }, Head::PROJECTOR))
    }

    /// The divisor of the logits of `count` options, for a type by its number and name.
    pub fn find_temperature(&self, number: u32, name: &str, count: usize) -> f64 {
        let bucket = match count {
            0..=2 => "2",
            3..=5 => "3-5",
            6..=10 => "6-10",
            _ => "11+",
        };
        let found = self.by_options.get(&format!("{name}:{bucket}"));
        found.copied().unwrap_or(self.temperatures[number as usize])
    }
}

fn find_token(tokenizer: &Tokenizer, token: &str) -> Result<u32, Refusal> {
    let id = tokenizer.token_to_id(token);
    id.ok_or_else(|| refuse_settings(&format!("the tokenizer lacks the token `{token}`")))
}

fn refuse_settings(problem: &str) -> Refusal {
    Refusal::Other(format!(
        "rl_agent_config.json or tokenizer/tokenizer_config.json: {problem}: download the model again"
    ))
}

/// A temperature within the bounds; 1 for a value that is not a number.
fn bounded_temperature(value: &Value) -> f64 {
    let number = match value {
        // Python reads numbers in strings, too.
        Value::String(text) => text.trim().parse().ok(),
        other => other.as_f64(),
    };
    match number.filter(|number| number.is_finite()) {
        Some(number) => number.clamp(TEMPERATURES[0], TEMPERATURES[1]),
        None => 1.0,
    }
}
