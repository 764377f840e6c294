//! The settings of both encoders, from a model's files and the flags.

use crate::families::QueryLimit;

/// The settings of a [`PromptEncoder`](super::PromptEncoder).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EncoderOptions {
    /// The instruction for requests without one (`--default-instruction`). If absent, such requests get the
    /// template's form without an instruction.
    pub default_instruction: Option<String>,
    /// The most tokens of a prompt, template included (`--max-input-length`).
    pub max_input_length: usize,
    /// Whether control tokens in the texts of a request act as such, as in the reference implementation
    /// (`--parse-special-tokens`). A document can then imitate the template.
    pub parse_special_tokens: bool,
    /// Whether an instruction is ignored if the template has no place for it. Otherwise it is refused.
    pub ignore_instruction: bool,
    /// The model's own limits on its texts.
    pub limits: TextLimits,
    /// The number of token ids that the model knows: the rows of its token embedding. If absent, every id of
    /// the tokenizer is taken.
    pub vocabulary: Option<usize>,
}

/// The longest texts that a model's authors let it read, independent of the longest input. Longer texts are
/// cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TextLimits {
    /// The most tokens between the fixed beginning and the fixed end of a prompt.
    pub texts: Option<usize>,
    /// The most tokens of the query.
    pub query: Option<QueryLimit>,
    /// The most tokens of each document, in a prompt with many.
    pub document: Option<usize>,
}

/// The settings of a [`TextEncoder`](super::TextEncoder).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextOptions {
    /// The most tokens of an input, prompt and special tokens included (`--max-input-length`).
    pub max_input_length: usize,
    /// Whether special tokens in the texts of a request act as such (`--parse-special-tokens`).
    pub parse_special_tokens: bool,
    /// The number of token ids that the model knows: the rows of its token embedding.
    pub vocabulary: usize,
    /// Whether the tokens of a pair's second text have another type than the tokens of the first.
    pub has_token_types: bool,
    /// Whether an instruction for re-ranking is ignored. Otherwise it is refused.
    pub ignore_instruction: bool,
    /// The token that ends each text, unless the tokenizer appends it itself.
    pub last_token: Option<u32>,
    /// How a model without layers makes tokens of a text. No special tokens surround it.
    pub bare: Option<BareTokens>,
    /// How a model that reads queries and documents apart makes tokens of them.
    pub late: Option<LateTokens>,
    /// How a decider that marks the options of a question makes tokens of it.
    pub marked: Option<MarkedLayout>,
}

/// The rules by which a model without layers makes tokens of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BareTokens {
    /// The token that stands for a text without tokens. Its vector is zero.
    pub blank: u32,
    /// The token of unknown characters, if it is left out.
    pub unknown: Option<u32>,
    /// The most characters of a text, for each token of the longest input: the rest is cut before it is
    /// encoded. `None` for no such limit.
    pub characters_per_token: Option<usize>,
}

/// How queries and documents become tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LateTokens {
    /// Of queries.
    pub query: SideTokens,
    /// Of documents.
    pub document: SideTokens,
    /// The token that fills queries.
    pub expansion: Option<ExpansionToken>,
    /// The tokens of documents whose vectors do not count, such as punctuation.
    pub skipped: Vec<u32>,
}

/// How the texts of one side become tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SideTokens {
    /// The token that marks the side, if there is any.
    pub marker: Option<Marker>,
    /// The text before each input. If there is a marker, it is the marker's text.
    pub prompt: String,
    /// The most tokens, marker, prompt and special tokens included. Longer texts are cut.
    pub max_length: usize,
}

impl SideTokens {
    /// The text before each input that becomes tokens with it.
    pub(super) fn text_before(&self) -> &str {
        if self.marker.is_none() { &self.prompt } else { "" }
    }
}

/// The token that marks the queries or the documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marker {
    /// Its id.
    pub id: u32,
    /// Whether it comes behind the special tokens that begin an input. Otherwise it comes behind the first
    /// token of any kind.
    pub follows_specials: bool,
}

/// The token that fills queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpansionToken {
    /// Its id.
    pub id: u32,
    /// Whether tokens attend to it. Otherwise it attends to the query's own tokens only.
    pub is_attended: bool,
    /// The number of tokens up to which a query is filled.
    pub length: usize,
}

/// The order of a question's texts and tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MarkedLayout {
    /// Laya's: the question, its options, then the text.
    Laya(MarkedTokens),
    /// any2jev's: the text, then the question and its options.
    Pointer(PointerTokens),
}

/// The tokens around a question's texts, and the limit on their number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkedTokens {
    /// The first token.
    pub begin: u32,
    /// The token behind the question, the options and the text.
    pub separator: u32,
    /// The token before each option.
    pub marker: u32,
    /// Its text, which becomes a space in all texts.
    pub marker_text: String,
    /// The most tokens of question and options.
    pub max_question: usize,
}

/// The tokens around the texts, and the limits on their number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PointerTokens {
    /// The tokens before the text, before the instructions, before and behind an option, and at the end.
    pub delimiters: [u32; 5],
    /// The most tokens of the text, with the one before it.
    pub max_state: usize,
    /// The most tokens of a question.
    pub max_branch: usize,
}
