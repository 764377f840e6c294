//! From the texts of a request to the token ids of the model's inputs.
//!
//! Input: [`Input`]s. Output: ids no longer than the longest input. What must hold: text of the user yields no special
//! token of the tokenizer, and in a re-ranker's prompt no added token at all; the ids of texts without such strings are
//! those of the reference, token for token; when an input is too long, tokens are cut from the client's texts (of a
//! prompt from the document, then from the query), and never from the template, the instruction or special tokens.

mod answer;
mod check;
mod error;
mod frame;
mod pool;
mod prompt;
mod shown;
#[cfg(test)]
mod test_tokenizer;
mod text;
mod tokens;

use crate::error::Error;
use tokenizers::Tokenizer;

pub use answer::answer_tokens;
pub use error::EncoderError;
pub use pool::Tokenization;
pub use prompt::PromptEncoder;
pub use shown::{PromptPiece, ShownPrompt};
pub use text::{TextEncoder, TextOptions};

/// What turns a model's inputs into ids.
pub enum Encoder {
    /// A re-ranker's: query and document in its template.
    Prompt(PromptEncoder),
    /// That of an embedding model or a classifier: texts as they are.
    Text(TextEncoder),
}

/// An input of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input<'a> {
    /// For a re-ranker.
    Prompt(PromptText<'a>),
    /// A text behind a prompt, which may be empty.
    Text {
        /// What is put before the text.
        prompt: &'a str,
        /// The client's text.
        text: &'a str,
    },
    /// Two texts for a classifier.
    Pair([&'a str; 2]),
    /// Token ids, taken as they are.
    Ids(&'a [u32]),
}

impl Input<'_> {
    /// Characters (Unicode scalar values) of the texts that the client sent for this input; an id counts as one.
    #[must_use]
    pub fn characters(&self) -> usize {
        let count = |text: &str| text.chars().count();
        match self {
            Self::Prompt(PromptText { query, document, .. }) => count(query) + count(document),
            Self::Text { text, .. } => count(text),
            Self::Pair([first, second]) => count(first) + count(second),
            Self::Ids(ids) => ids.len(),
        }
    }
}

impl Encoder {
    /// The ids of an input.
    ///
    /// # Errors
    ///
    /// Those of [`PromptEncoder::encode_prompt`] and of [`TextEncoder`]'s methods; [`Error::Tokenizer`] for an input of
    /// another kind of model.
    pub fn encode(&self, input: &Input<'_>, truncation: Truncation) -> Result<Encoded, Error> {
        match (self, input) {
            (Self::Prompt(encoder), Input::Prompt(text)) => encoder.encode_prompt(text, truncation),
            (Self::Text(encoder), Input::Text { prompt, text }) => {
                encoder.encode_text(prompt, text, truncation)
            }
            (Self::Text(encoder), Input::Pair(texts)) => encoder.encode_pair(*texts, truncation),
            (Self::Text(encoder), Input::Ids(ids)) => encoder.encode_ids(ids, truncation),
            (Self::Prompt(_), _) | (Self::Text(_), Input::Prompt(_)) => {
                Err(Error::Tokenizer("this input belongs to another kind of model".to_owned()))
            }
        }
    }

    /// A re-ranker's prompt in pieces.
    ///
    /// # Errors
    ///
    /// Those of [`PromptEncoder::show`]; [`Error::ModelType`] for another kind of model.
    pub fn show(&self, text: &PromptText<'_>, truncation: Truncation) -> Result<ShownPrompt, Error> {
        match self {
            Self::Prompt(encoder) => encoder.show(text, truncation),
            Self::Text(_) => Err(Error::ModelType { wanted: "a re-ranker" }),
        }
    }

    /// The model's tokenizer, with all of its tokens.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        match self {
            Self::Prompt(encoder) => encoder.tokenizer(),
            Self::Text(encoder) => encoder.tokenizer(),
        }
    }
}

impl From<PromptEncoder> for Encoder {
    fn from(encoder: PromptEncoder) -> Self {
        Self::Prompt(encoder)
    }
}

impl From<TextEncoder> for Encoder {
    fn from(encoder: TextEncoder) -> Self {
        Self::Text(encoder)
    }
}

/// From which end a text that is too long is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TruncationDirection {
    /// Its end goes.
    #[default]
    Right,
    /// Its start goes.
    Left,
}

/// What to do with an input that is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncation {
    /// Whether it may be cut; if not it is refused.
    pub truncate: bool,
    /// From which end a text is cut.
    pub direction: TruncationDirection,
    /// Closer limits than the model's, of a prompt only.
    pub limits: TokenLimits,
}

/// The most tokens of a prompt and its texts, where a request asks for fewer than fit. What is over them is cut,
/// whether or not the request allows cutting what is too long for the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenLimits {
    /// Of the query.
    pub query: Option<usize>,
    /// Of each document.
    pub document: Option<usize>,
    /// Of the whole prompt, template and instruction included.
    pub prompt: Option<usize>,
}

impl TokenLimits {
    /// No limits but the model's.
    pub const NONE: Self = Self { query: None, document: None, prompt: None };
}

/// The texts of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptText<'a> {
    /// What "meets" means; the encoder's default if absent.
    pub instruction: Option<&'a str>,
    /// What is looked for.
    pub query: &'a str,
    /// What may meet it.
    pub document: &'a str,
}

/// An input as token ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// The ids, at most as many as the longest input has.
    pub ids: Vec<u32>,
    /// How many tokens truncation removed.
    pub truncated: usize,
    /// How many tokens come before the first of the document, or of the only text: other inputs may begin with them, too.
    pub reusable: usize,
}

/// The settings of a [`PromptEncoder`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncoderOptions {
    /// The instruction of requests that have none (`--default-instruction`).
    pub default_instruction: String,
    /// The most tokens of a prompt, template included (`--max-input-length`).
    pub max_input_length: usize,
    /// Whether control tokens in the texts of a request act as such, as they do in the reference implementation
    /// (`--parse-special-tokens`). Then a document can speak in the template's name.
    pub parse_special_tokens: bool,
}
