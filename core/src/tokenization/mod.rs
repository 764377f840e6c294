//! From the texts of a request to the token ids of the model's inputs.
//!
//! Input: [`Input`]s. Output: ids no longer than the longest input. What must hold: text of the user yields no special
//! token of the tokenizer, and in a prompt no added token at all; the ids of texts without such strings are those of the
//! reference, token for token; when an input is too long, tokens are cut from the client's texts (of a prompt from the
//! document, then from the query; of a pair without template from the longer text), and never from the template, the
//! instruction or special tokens.

mod answer;
mod borders;
mod check;
mod error;
mod frame;
mod listwise;
mod load;
mod pair;
mod pool;
mod prompt;
mod shown;
mod stretch;
#[cfg(test)]
mod test_tokenizer;
mod text;
mod tokens;

use crate::{error::Error, families::QueryLimit};
use pair::Sequence;
use std::sync::OnceLock;
use stretch::SharedRuns;
use tokenizers::Tokenizer;

pub use answer::{AnswerSource, NamedAnswer, answer_tokens};
pub use error::EncoderError;
pub use listwise::{EncodedList, ListText, ListwiseEncoder, Prompt};
pub use load::load_tokenizer;
pub use pool::{Place, Tokenization};
pub use prompt::PromptEncoder;
pub use shown::{PromptPiece, ShownPrompt};
pub use text::{TextEncoder, TextOptions};

/// What turns a model's inputs into ids.
pub enum Encoder {
    /// Query and document in a template: generative re-rankers, and conversions of them.
    Prompt(PromptEncoder),
    /// A query and many documents in one prompt: listwise re-rankers.
    Listwise(ListwiseEncoder),
    /// Texts as they are, and pairs as the tokenizer's own post-processor joins them: every other model.
    Text(TextEncoder),
}

/// An input of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input<'a> {
    /// Two texts: a query and a document. The encoder joins them by its template or by the tokenizer's post-processor.
    Pair(PairText<'a>),
    /// A text behind a prompt, which may be empty.
    Text {
        /// What is put before the text.
        prompt: &'a str,
        /// The client's text.
        text: &'a str,
    },
    /// Token ids, taken as they are.
    Ids(&'a [u32]),
    /// Token ids behind a prompt, which may be empty. As with texts, the tokenizer's special tokens stand around them, for
    /// which those among the ids are left out.
    PromptedIds {
        /// What is put before the ids.
        prompt: &'a str,
        /// The client's ids.
        ids: &'a [u32],
    },
}

/// The most characters of an input that is tokenized though it must not be cut, for each token of the longest input.
const CHARACTERS_PER_TOKEN: usize = 250;

impl Input<'_> {
    /// Characters (Unicode scalar values) of the texts that the client sent for this input; an id counts as one.
    #[must_use]
    pub fn characters(&self) -> usize {
        let count = |text: &str| text.chars().count();
        match self {
            Self::Pair(PairText { query, document, .. }) => count(query) + count(document),
            Self::Text { text, .. } => count(text),
            Self::Ids(ids) | Self::PromptedIds { ids, .. } => ids.len(),
        }
    }

    /// Bytes of the texts that the client sent for this input, and of its ids.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Pair(PairText { query, document, .. }) => query.len() + document.len(),
            Self::Text { text, .. } => text.len(),
            Self::Ids(ids) | Self::PromptedIds { ids, .. } => size_of_val(*ids),
        }
    }

    /// Whether the client sent nothing for this input. A re-ranker's document may be empty where its query is not.
    fn is_empty(&self) -> bool {
        match self {
            Self::Pair(PairText { query, document, .. }) => query.is_empty() && document.is_empty(),
            Self::Text { text, .. } => text.is_empty(),
            Self::Ids(ids) | Self::PromptedIds { ids, .. } => ids.is_empty(),
        }
    }
}

impl Encoder {
    /// The ids of an input. `shared` is that of its request, if all inputs of that have one query and one instruction.
    ///
    /// # Errors
    ///
    /// [`Error::EmptyInput`] for an empty text or none; those of [`Encoder::check_characters`] if it must not be cut,
    /// of [`PromptEncoder::encode_prompt`] and of [`TextEncoder`]'s methods; [`Error::Tokenizer`] for an input of another
    /// kind of model.
    pub fn encode(
        &self,
        input: &Input<'_>,
        truncation: Truncation,
        shared: Option<&SharedQuery>,
    ) -> Result<Encoded, Error> {
        if input.is_empty() {
            return Err(Error::EmptyInput { field: "inputs" });
        }
        if !truncation.truncate {
            self.check_characters(input.characters())?;
        }
        match (self, input) {
            (Self::Prompt(encoder), Input::Pair(text)) => encoder.encode_prompt_of(text, truncation, shared),
            (Self::Text(encoder), Input::Text { prompt, text }) => {
                encoder.encode_text(prompt, text, truncation)
            }
            (Self::Text(encoder), Input::Pair(text)) => encoder.encode_pair_of(text, truncation, shared),
            (Self::Text(encoder), Input::Ids(ids)) => encoder.encode_ids(ids, truncation),
            (Self::Text(encoder), Input::PromptedIds { prompt, ids }) => {
                encoder.encode_prompted_ids(prompt, ids, truncation)
            }
            // A listwise re-ranker's pairs are encoded together: [`ListwiseEncoder::encode_list`].
            (Self::Listwise(_), _)
            | (Self::Prompt(_), Input::Text { .. } | Input::Ids(_) | Input::PromptedIds { .. }) => {
                Err(Error::Tokenizer("this input belongs to another kind of model".to_owned()))
            }
        }
    }

    /// The most tokens of an input.
    #[must_use]
    pub fn max_input_length(&self) -> usize {
        match self {
            Self::Prompt(encoder) => encoder.options.max_input_length,
            Self::Listwise(encoder) => encoder.options.max_input_length,
            Self::Text(encoder) => encoder.options.max_input_length,
        }
    }

    /// Refuses an input of so many characters that no tokenizer makes few enough tokens of them, before it tries.
    ///
    /// # Errors
    ///
    /// [`Error::TooManyCharacters`].
    pub fn check_characters(&self, got: usize) -> Result<(), Error> {
        let max = self.max_input_length().saturating_mul(CHARACTERS_PER_TOKEN);
        if got > max { Err(Error::TooManyCharacters { got, max }) } else { Ok(()) }
    }

    /// A re-ranker's input in pieces.
    ///
    /// # Errors
    ///
    /// Those of [`PromptEncoder::show`] or [`TextEncoder::show`].
    pub fn show(&self, text: &PairText<'_>, truncation: Truncation) -> Result<ShownPrompt, Error> {
        match self {
            Self::Prompt(encoder) => encoder.show(text, truncation),
            Self::Listwise(_) => Err(Error::Validation(
                "the prompt of a listwise re-ranker holds all documents of a request, so that it cannot be shown for one"
                    .to_owned(),
            )),
            Self::Text(encoder) => encoder.show(text, truncation),
        }
    }

    /// Whether a single text is an input of the model, and not only a pair.
    #[must_use]
    pub fn takes_single_texts(&self) -> bool {
        matches!(self, Self::Text(_))
    }

    /// The model's tokenizer, with all of its tokens.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        match self {
            Self::Prompt(encoder) => encoder.tokenizer(),
            Self::Listwise(encoder) => encoder.tokenizer(),
            Self::Text(encoder) => encoder.tokenizer(),
        }
    }
}

/// The query of a request's inputs, and what else stands before their documents, encoded once: by the first input that is.
#[derive(Default)]
pub struct SharedQuery {
    /// Of a prompt.
    runs: SharedRuns,
    /// Of a pair without template.
    first: OnceLock<Result<Sequence, Error>>,
}

impl From<PromptEncoder> for Encoder {
    fn from(encoder: PromptEncoder) -> Self {
        Self::Prompt(encoder)
    }
}

impl From<ListwiseEncoder> for Encoder {
    fn from(encoder: ListwiseEncoder) -> Self {
        Self::Listwise(encoder)
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
    /// Closer limits than the model's, of a pair only.
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

/// The texts of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairText<'a> {
    /// What "meets" means; the template's default if absent. Only templates have a place for it.
    pub instruction: Option<&'a str>,
    /// What is looked for; of a pair to classify, the first text.
    pub query: &'a str,
    /// What may meet it; the second text.
    pub document: &'a str,
}

/// An input as token ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// The ids, at most as many as the longest input has.
    pub ids: Vec<u32>,
    /// Of a pair, the index of the first token of type 1. Absent where the model has no token types.
    pub second: Option<usize>,
    /// How many tokens truncation removed, not counting those of bytes that were not even encoded.
    pub truncated: usize,
    /// How many tokens come before the first of the document, or of the only text: other inputs may begin with them, too.
    pub reusable: usize,
}

/// The settings of a [`PromptEncoder`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EncoderOptions {
    /// The instruction of requests that have none (`--default-instruction`). If absent, they get the template's form without
    /// an instruction.
    pub default_instruction: Option<String>,
    /// The most tokens of a prompt, template included (`--max-input-length`).
    pub max_input_length: usize,
    /// Whether control tokens in the texts of a request act as such, as they do in the reference implementation
    /// (`--parse-special-tokens`). Then a document can speak in the template's name.
    pub parse_special_tokens: bool,
    /// Whether an instruction is left out where the template has no place for one; otherwise it is refused.
    pub ignore_instruction: bool,
    /// The model's own limits on its texts.
    pub limits: TextLimits,
}

/// The longest texts that a model's authors let it read, whatever the longest input. What is over them is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TextLimits {
    /// The tokens between the fixed beginning and the fixed end of a prompt.
    pub texts: Option<usize>,
    /// The tokens of the query.
    pub query: Option<QueryLimit>,
    /// The tokens of each document of a prompt with many.
    pub document: Option<usize>,
}
