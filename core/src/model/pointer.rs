//! any2jev: a trained decider (`any2jev/model.py` of its authors' package), which is an adapter of a causal
//! model with a head that compares the state behind each option with the state at the end.
//!
//! Input: the settings in its files. Output: a [`Pointer`].

use serde::Deserialize;
use text_embeddings_backend_core::Head;
use tokenizers::Tokenizer;

use super::Refusal;
use crate::files::ModelFolder;
use crate::tokenization::PointerTokens;

/// A trained decider of the family any2jev.
#[derive(Debug, Clone, PartialEq)]
pub struct Pointer {
    /// The tokens around the texts.
    pub tokens: PointerTokens,
    /// The values of each of the two vectors of a state.
    pub size: usize,
    /// The divisor of logits.
    pub temperature: f64,
}

/// The settings in `any2jev.json`.
#[derive(Deserialize)]
struct PointerSettings {
    delimiters: [String; 5],
    head_dim: usize,
    temperature: f64,
    max_state: usize,
    max_branch: usize,
}

impl ModelFolder {
    /// Whether it is a decider of the family any2jev.
    pub(super) fn is_pointer(&self) -> bool {
        self.config.raw["any2jev"].is_object()
    }
}

impl Pointer {
    pub(super) fn from_files(files: &ModelFolder, tokenizer: &Tokenizer) -> Result<(Self, Head), Refusal> {
        let settings = PointerSettings::deserialize(&files.config.raw["any2jev"]);
        let settings = settings.map_err(|error| refuse_settings(&error.to_string()))?;
        if !(settings.temperature.is_finite() && settings.temperature > 0.0) {
            return Err(refuse_settings("`temperature` is not a positive number"));
        }
        let mut delimiters = [0; 5];
        for (id, token) in delimiters.iter_mut().zip(&settings.delimiters) {
            let found = tokenizer.token_to_id(token);
            *id =
                found.ok_or_else(|| refuse_settings(&format!("the tokenizer lacks the token `{token}`")))?;
        }
        let tokens =
            PointerTokens { delimiters, max_state: settings.max_state, max_branch: settings.max_branch };
        let (size, temperature) = (settings.head_dim, settings.temperature);
        Ok((Self { tokens, size, temperature }, Head::PROJECTOR))
    }
}

fn refuse_settings(problem: &str) -> Refusal {
    Refusal::Other(format!("any2jev.json or tokenizer/tokenizer.json: {problem}: download the model again"))
}
