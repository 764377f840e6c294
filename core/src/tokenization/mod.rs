//! Turns the texts of a request into the token ids of the model's inputs.
//!
//! Input: [`Input`]s. Output: ids, at most as many as the longest input. What must hold: a user's text never
//! yields a special token of the tokenizer, and in a prompt no added token at all; texts without such strings
//! get exactly the ids of the reference; if an input is too long, tokens are cut from the client's texts (in
//! a prompt from the document, then from the query; in a pair without a template from the longer text), but
//! never from the template, the instruction or special tokens.

mod answer;
mod ascii;
mod borders;
mod byte_words;
mod check;
mod error;
mod frame;
mod input;
mod instruction;
mod label;
mod late;
mod list;
mod load;
mod marked;
mod options;
mod pair;
mod pointer;
mod pool;
mod prompt;
mod sequence;
mod shown;
mod side;
mod stretch;
#[cfg(test)]
pub(crate) mod test_tokenizer;
mod text;
mod tokens;

use crate::error::Error;
use instruction::refuse_instruction;
use std::{borrow::Cow, sync::OnceLock};
use stretch::SharedRuns;
use tokenizers::Tokenizer;
use tokens::Sequence;

pub(crate) use borders::LARGE_TEXT;

pub use answer::{AnswerSource, NamedAnswer, answer_tokens};
pub use error::EncoderError;
pub use input::{Input, PairSide, Side};
pub use label::{LabelKind, LabelTokens, MAX_LEVELS, MAX_OPTIONS};
pub use list::ListText;
pub use load::load_tokenizer;
pub use marked::MarkedQuestion;
pub use options::{
    BareTokens, EncoderOptions, ExpansionToken, LateTokens, MarkedLayout, MarkedTokens, Marker,
    PointerTokens, SideTokens, TextLimits, TextOptions,
};
pub use pool::{Place, Tokenization, TokenizerThreads};
pub use prompt::PromptEncoder;
pub use shown::{PromptPiece, ShownPrompt};
pub use text::TextEncoder;
pub use tokens::{Encoded, EncodedPrompts};

/// Encodes a model's inputs as ids.
pub enum Encoder {
    /// A query with a document, or with many, in a template: for generative re-rankers, their conversions,
    /// and models that read the documents of a request together.
    Prompt(Box<PromptEncoder>),
    /// Single texts, and pairs that the tokenizer's own post-processor joins, for all other models.
    Text(Box<TextEncoder>),
}

/// The most bytes of the texts of a prompt that is shown. They are encoded whole, and a person is to read it.
const MAX_SHOWN_BYTES: usize = 128 << 10;
/// The most characters, per token of the longest input, of an input that is tokenized although it must not be
/// cut.
const CHARACTERS_PER_TOKEN: usize = 250;

impl Encoder {
    /// The ids of an input. `shared` belongs to its request, and is only given if all inputs of the request
    /// have the same query and instruction.
    ///
    /// # Errors
    ///
    /// [`Error::EmptyInput`] for an empty text or no ids; [`Error::TooManyCharacters`] if the input must not
    /// be cut; the errors of [`PromptEncoder::encode_prompt`] and of [`TextEncoder`]'s methods;
    /// [`Error::Tokenizer`] for an input of another kind of model.
    pub fn encode(
        &self,
        input: &Input<'_>,
        truncation: Truncation,
        shared: Option<&SharedQuery>,
    ) -> Result<Encoded, Error> {
        if input.is_empty() {
            return Err(Error::EmptyInput { field: "inputs" });
        }
        // The lengths of a query and a document are part of a model that reads them apart.
        if !truncation.truncate && !matches!(input, Input::Late { .. }) {
            self.check_characters(input.characters())?;
        }
        let encoded = match (self, input) {
            (Self::Prompt(encoder), Input::Pair(text)) if !encoder.reads_lists() => {
                encoder.encode_prompt(text, truncation, shared)
            }
            (Self::Text(encoder), Input::Text { prompt, text }) => {
                encoder.encode_text(prompt, text, truncation)
            }
            (Self::Text(encoder), Input::Side(side)) => encoder.encode_side(side, truncation),
            (Self::Text(encoder), Input::Pair(text)) => encoder.encode_pair(text, truncation, shared),
            (Self::Text(encoder), Input::Late { side, instruction, text }) => {
                encoder.check_instruction(*instruction)?;
                encoder.encode_late(*side, text, truncation)
            }
            (Self::Text(encoder), Input::Question { state, question }) => {
                encoder.encode_question(state, question, shared)
            }
            (Self::Text(encoder), Input::Ids(ids)) => encoder.encode_ids(ids, truncation),
            (Self::Text(encoder), Input::PromptedIds { prompt, ids }) => {
                encoder.encode_prompted_ids(prompt, ids, truncation)
            }
            (Self::Prompt(_), _) => Err(other_model()),
        }?;
        self.check_known(&encoded.ids)?;
        Ok(encoded)
    }

    /// Refuses tokens that the tokenizer has and the model's embedding lacks. They would fail the whole
    /// batch.
    fn check_known(&self, ids: &[u32]) -> Result<(), Error> {
        let vocabulary = match self {
            Self::Prompt(encoder) => encoder.options.vocabulary,
            Self::Text(encoder) => Some(encoder.options.vocabulary),
        };
        let Some(limit) = vocabulary else { return Ok(()) };
        let blank =
            if let Self::Text(encoder) = self { encoder.options.bare.map(|bare| bare.blank) } else { None };
        let mut beyond = ids.iter().filter(|id| **id as usize >= limit);
        let Some(id) = beyond.find(|id| Some(**id) != blank) else { return Ok(()) };
        let token = self.tokenizer().id_to_token(*id).unwrap_or_default();
        Err(Error::Tokenizer(format!(
            "a text holds `{token}`, the token {id} of tokenizer.json, but the model has only the tokens below \
             {limit}, so that its files do not belong together: take others, or leave the token out"
        )))
    }

    /// The prompts of pairs with one query and one instruction, which a model reads together. Calls
    /// `is_abandoned` now and then to learn whether the client is gone.
    ///
    /// # Errors
    ///
    /// The errors of [`PromptEncoder::encode_list`]; [`Error::Tokenizer`] for inputs of another kind of
    /// model.
    pub fn encode_list(
        &self,
        pairs: &[Input<'_>],
        truncation: Truncation,
        is_abandoned: &dyn Fn() -> bool,
    ) -> Result<EncodedPrompts, Error> {
        let (Self::Prompt(encoder), Some(Input::Pair(first))) = (self, pairs.first()) else {
            return Err(other_model());
        };
        let mut documents = Vec::with_capacity(pairs.len());
        for input in pairs {
            let Input::Pair(pair) = input else { return Err(other_model()) };
            documents.push(pair.document);
        }
        let list = ListText { instruction: first.instruction, query: first.query, documents: &documents };
        let encoded = encoder.encode_list(&list, truncation, is_abandoned)?;
        for prompt in &encoded.prompts {
            self.check_known(&prompt.ids)?;
        }
        Ok(encoded)
    }

    /// The number of tokens of a text on its own, without special tokens.
    pub(crate) fn count_tokens(&self, text: &str) -> Result<usize, Error> {
        match self {
            Self::Prompt(encoder) => encoder.count_tokens(text),
            Self::Text(encoder) => encoder.count_tokens(text),
        }
    }

    /// Refuses an instruction for which the model has no place. `reads_apart` says that an embedding model
    /// compares the query with the document.
    pub(crate) fn check_instruction(
        &self,
        instruction: Option<&str>,
        reads_apart: bool,
    ) -> Result<(), Error> {
        match self {
            Self::Prompt(encoder) => encoder.instruction(instruction).map(|_| ()),
            Self::Text(encoder) if reads_apart => {
                refuse_instruction(instruction, encoder.options.ignore_instruction)
            }
            Self::Text(encoder) => encoder.check_instruction(instruction),
        }
    }

    /// The most tokens of an input.
    pub fn max_input_length(&self) -> usize {
        match self {
            Self::Prompt(encoder) => encoder.options.max_input_length,
            Self::Text(encoder) => encoder.options.max_input_length,
        }
    }

    /// Refuses an input whose number of characters is too large for any tokenizer to give few enough tokens.
    /// Saves the attempt.
    pub(crate) fn check_characters(&self, got: usize) -> Result<(), Error> {
        let max = self.max_input_length().saturating_mul(CHARACTERS_PER_TOKEN);
        if got > max { Err(Error::TooManyCharacters { got, max }) } else { Ok(()) }
    }

    /// A re-ranker's input, divided into pieces.
    pub(crate) fn show(&self, text: &PairText<'_>, truncation: Truncation) -> Result<ShownPrompt, Error> {
        let got = Input::Pair(*text).bytes();
        if got > MAX_SHOWN_BYTES {
            return Err(Error::Validation(format!(
                "query, text and instruction have {got} bytes together: prompts of up to {MAX_SHOWN_BYTES} bytes \
                 are shown"
            )));
        }
        match self {
            Self::Prompt(encoder) => encoder.show(text, truncation),
            Self::Text(encoder) if encoder.options.late.is_some() => Err(Error::Validation(
                "this model reads query and document apart, so that there is no prompt of both".to_owned(),
            )),
            Self::Text(encoder) => encoder.show(text, truncation),
        }
    }

    /// Whether the model takes single texts, and not only pairs.
    pub fn takes_single_texts(&self) -> bool {
        matches!(self, Self::Text(_))
    }

    /// The model's tokenizer, with all of its tokens.
    pub fn tokenizer(&self) -> &Tokenizer {
        match self {
            Self::Prompt(encoder) => encoder.tokenizer(),
            Self::Text(encoder) => encoder.tokenizer(),
        }
    }
}

fn other_model() -> Error {
    Error::Tokenizer("this input belongs to another kind of model".to_owned())
}

/// The texts before the documents of a request, above all its query. They are encoded once, by the first
/// input that needs them.
#[derive(Default)]
pub struct SharedQuery {
    /// Whether the instruction can fit, for prompts.
    instruction: OnceLock<Result<(), Error>>,
    /// The number of tokens of the query, counted in parts, for large texts in prompts that must not be cut.
    query_tokens: OnceLock<Result<usize, Error>>,
    /// For prompts.
    runs: SharedRuns,
    /// For pairs without a template.
    first: OnceLock<Result<Sequence, Error>>,
}

impl SharedQuery {
    /// The result of `encode`. Of several inputs that share it, only the first calls `encode`.
    fn first_sequence(
        shared: Option<&Self>,
        encode: impl FnOnce() -> Result<Sequence, Error>,
    ) -> Result<Cow<'_, Sequence>, Error> {
        match shared {
            Some(shared) => match shared.first.get_or_init(encode) {
                Ok(sequence) => Ok(Cow::Borrowed(sequence)),
                Err(error) => Err(error.clone()),
            },
            None => encode().map(Cow::Owned),
        }
    }
}

impl From<PromptEncoder> for Encoder {
    fn from(encoder: PromptEncoder) -> Self {
        Self::Prompt(Box::new(encoder))
    }
}

impl From<TextEncoder> for Encoder {
    fn from(encoder: TextEncoder) -> Self {
        Self::Text(Box::new(encoder))
    }
}

/// The end at which a too long text is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TruncationDirection {
    /// Cut its end.
    #[default]
    Right,
    /// Cut its start.
    Left,
}

/// The treatment of an input that is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Truncation {
    /// Whether it may be cut. Otherwise it is refused.
    pub truncate: bool,
    /// The end at which a text is cut.
    pub direction: TruncationDirection,
    /// Additional limits of the request, for pairs only.
    pub limits: TokenLimits,
}

/// A request's own limits on the tokens of a prompt and its texts. Longer texts are cut, even if the request
/// forbids cutting inputs that are too long for the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TokenLimits {
    /// The most tokens of the query.
    pub query: Option<usize>,
    /// The most tokens of each document.
    pub document: Option<usize>,
    /// The most tokens of the whole prompt, template and instruction included.
    pub prompt: Option<usize>,
}

impl TokenLimits {
    /// No limits except the model's.
    pub const NONE: Self = Self { query: None, document: None, prompt: None };
}

/// The texts of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PairText<'a> {
    /// The instruction, which defines relevance. If absent, the template's default applies. Only templates
    /// have a place for it.
    pub instruction: Option<&'a str>,
    /// The query, or the first text of a pair to classify.
    pub query: &'a str,
    /// The document, or the second text.
    pub document: &'a str,
}
