//! A re-ranking request and its answer.
//!
//! Input: nothing. Output: the types. What must hold: they name nothing that computes.

use crate::tokenization::{TokenLimits, TruncationDirection};

/// A query and the texts to rank.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RerankRequest {
    /// The query. Must not be empty.
    pub query: String,
    /// The texts. The list must not be empty, but a text may be.
    pub texts: Vec<String>,
    /// The instruction, which defines relevance. If absent, the server's default applies.
    pub instruction: Option<String>,
    /// Whether too long inputs are truncated; the server's default if absent.
    pub truncate: Option<bool>,
    /// The end at which a text is cut.
    pub truncation_direction: TruncationDirection,
    /// Additional limits on the tokens of each text.
    pub limits: TokenLimits,
    /// Whether to return the authors' raw scores instead of the scores by the model's rule.
    pub raw_scores: bool,
    /// Whether to send the texts back.
    pub return_text: bool,
    /// The least score of a text that is returned, as the answer shows it: a raw score with `raw_scores`. The
    /// server's default if absent.
    pub min_score: Option<f32>,
    /// The number of best texts to return; all if absent or 0.
    pub top_n: Option<usize>,
    /// How texts that do not fit a prompt are divided. If absent, they are cut.
    pub chunking: Option<Chunking>,
    /// The number of best texts whose sentences get scores of their own.
    pub highlight: usize,
}

/// A text's rank.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rank {
    /// The text's index in the request.
    pub index: usize,
    /// Its score by the model's rule, or the raw score if the request asked for it.
    pub score: f32,
    /// The text itself, if the request asked for it.
    pub text: Option<String>,
    /// In a cascade, the number of the model that gave the score: 1 or 2.
    pub stage: Option<u8>,
    /// The part of the text that has this score, if the request divides long texts.
    pub best_passage: Option<Passage>,
    /// The scores of the text's sentences, in their order, if the request asked for them.
    pub highlights: Option<Vec<Highlight>>,
}

/// The stages of a cascade, as in [`Rank::stage`].
pub(super) const SCORED_BY_FIRST: u8 = 1;
pub(super) const SCORED_BY_SECOND: u8 = 2;

/// The score of a text for a query.
#[derive(Debug, Clone, Copy)]
pub(super) struct Score {
    /// The authors' raw score.
    pub(super) raw: f32,
    /// The score by the model's rule.
    pub(super) default: f32,
    /// The score as a probability, for the metrics.
    pub(super) probability: f32,
}

impl Score {
    /// The score that a request wants.
    pub(super) fn wanted_score(self, raw_scores: bool) -> f32 {
        if raw_scores { self.raw } else { self.default }
    }
}

/// How texts that do not fit a prompt are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunking {
    /// The most windows of a text. The rest of the text is not read.
    pub max_chunks: usize,
    /// The most tokens with which a window repeats the end of the window before it.
    pub overlap: usize,
}

impl Chunking {
    /// Cohere's default for the most windows of a text.
    pub const MAX_CHUNKS: usize = 10;
}

/// A part of a text, in characters (Unicode scalar values) of the text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Passage {
    /// The index of its first character.
    pub start: usize,
    /// The index behind its last character.
    pub end: usize,
    /// Its text, if the request wants texts back.
    pub text: Option<String>,
}

/// A sentence with its score for the query.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Highlight {
    /// The sentence, without the white space around it.
    pub passage: Passage,
    /// Its score in the form of the text's score.
    pub score: f32,
}
