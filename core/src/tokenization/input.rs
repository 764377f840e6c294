//! The inputs of a model: texts, pairs and token ids.
//!
//! What must hold: sizes count the client's texts and ids, and not the model's prompts.

use super::{MarkedQuestion, PairText};

/// Which of the two texts of a pair a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The query.
    Query,
    /// The document.
    Document,
}

/// A text of a pair that is read alone: the query or the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PairSide<'a> {
    /// The request's instruction, which has no place here.
    pub instruction: Option<&'a str>,
    /// The prompt before the text, which may be empty.
    pub prompt: &'a str,
    /// The client's text, which may be empty.
    pub text: &'a str,
    /// The request's own limit on the tokens of this text.
    pub max_tokens: Option<usize>,
}

/// An input of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Input<'a> {
    /// Two texts: a query and a document. The encoder joins them by its template or by the tokenizer's
    /// post-processor.
    Pair(PairText<'a>),
    /// A text after a prompt, which may be empty.
    Text {
        /// The prompt before the text.
        prompt: &'a str,
        /// The client's text.
        text: &'a str,
    },
    /// A text of a pair that is read alone, for an embedding model that re-ranks.
    Side(PairSide<'a>),
    /// A query or a document of a late-interaction model, which puts a marker into it.
    Late {
        /// Which of the two it is.
        side: Side,
        /// The request's instruction, which has no place here.
        instruction: Option<&'a str>,
        /// The client's text.
        text: &'a str,
    },
    /// A question about a text, for a decider that marks its options.
    Question {
        /// The text.
        state: &'a str,
        /// The question.
        question: &'a MarkedQuestion,
    },
    /// Token ids, used unchanged.
    Ids(&'a [u32]),
    /// Token ids after a prompt, which may be empty. As for texts, the tokenizer's special tokens surround
    /// them. Special tokens among the ids are removed.
    PromptedIds {
        /// The prompt before the ids.
        prompt: &'a str,
        /// The client's ids.
        ids: &'a [u32],
    },
}

impl<'a> PairText<'a> {
    /// One of the two texts, for a late-interaction model.
    pub fn late_side(&self, side: Side) -> Input<'a> {
        let text = if side == Side::Query { self.query } else { self.document };
        Input::Late { side, instruction: self.instruction, text }
    }
}

impl Input<'_> {
    /// The number of characters (Unicode scalar values) that the client sent for this input. An id counts as
    /// one.
    pub fn characters(&self) -> usize {
        match self {
            Self::Pair(PairText { query, document, .. }) => {
                count_characters(query) + count_characters(document)
            }
            Self::Text { text, .. } | Self::Late { text, .. } | Self::Side(PairSide { text, .. }) => {
                count_characters(text)
            }
            Self::Question { state, question } => {
                count_characters(state) + question.all_texts().map(count_characters).sum::<usize>()
            }
            Self::Ids(ids) | Self::PromptedIds { ids, .. } => ids.len(),
        }
    }

    /// The number of bytes of the texts and ids that the client sent for this input.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Pair(PairText { instruction, query, document }) => {
                instruction.map_or(0, str::len) + query.len() + document.len()
            }
            Self::Text { text, .. } | Self::Late { text, .. } | Self::Side(PairSide { text, .. }) => {
                text.len()
            }
            Self::Question { state, question } => {
                state.len() + question.all_texts().map(str::len).sum::<usize>()
            }
            Self::Ids(ids) | Self::PromptedIds { ids, .. } => size_of_val(*ids),
        }
    }

    /// Whether the client sent nothing for this input. A document may be empty if its query is not.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Pair(PairText { query, document, .. }) => query.is_empty() && document.is_empty(),
            Self::Text { text, .. } => text.is_empty(),
            Self::Side(_) | Self::Question { .. } => false,
            Self::Late { side, text, .. } => *side == Side::Query && text.is_empty(),
            Self::Ids(ids) | Self::PromptedIds { ids, .. } => ids.is_empty(),
        }
    }
}

fn count_characters(text: &str) -> usize {
    text.chars().count()
}
