//! From a query and a document to the token ids of the whole prompt.
//!
//! Input: the texts of a request. Output: ids no longer than the longest input. What must hold: text of the user
//! yields no added token of the tokenizer, special or not; the ids of texts without such strings are those of the
//! reference, token for token; when a prompt is too long, tokens are cut from the document, then from the query, and
//! never from the template or the instruction.

mod answer;
mod check;
mod error;
mod frame;
mod pool;
mod prompt;
#[cfg(test)]
mod test_tokenizer;

pub use answer::answer_tokens;
pub use error::EncoderError;
pub use pool::Tokenization;
pub use prompt::PromptEncoder;

/// From which end a text that is too long is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TruncationDirection {
    /// Its end goes.
    #[default]
    Right,
    /// Its start goes.
    Left,
}

/// What to do with a prompt that is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncation {
    /// Whether it may be cut; if not it is refused.
    pub truncate: bool,
    /// From which end its document, and then its query, is cut.
    pub direction: TruncationDirection,
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

/// A prompt as token ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// The ids, at most as many as the longest input has.
    pub ids: Vec<u32>,
    /// How many tokens truncation removed.
    pub truncated: usize,
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
