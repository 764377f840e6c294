//! The tokens of an input before truncation, each with its owner.
//!
//! Input: ids with their owners, and the number of tokens to remove from each text. Output: [`Encoded`]. What
//! must hold: only tokens of the client's texts are cut, and only at the end of a text that the request
//! chooses.

use super::{Truncation, TruncationDirection};
use crate::error::Error;
use text_embeddings_backend_core::amount;
use tokenizers::Encoding;

/// An input as token ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// The ids, at most as many as the longest input.
    pub ids: Vec<u32>,
    /// For a pair, the index of the first token of type 1. `None` if the model has no token types.
    pub second: Option<usize>,
    /// In a prompt with many documents, the indices of the tokens whose states become vectors: one for each
    /// document in order, then the query's.
    pub marks: Vec<usize>,
    /// The number of last tokens to which no token attends ([`Text::unattended`]).
    ///
    /// [`Text::unattended`]: text_embeddings_backend_core::Text::unattended
    pub unattended: usize,
    /// The kind of the text ([`Text::kind`]).
    ///
    /// [`Text::kind`]: text_embeddings_backend_core::Text::kind
    pub kind: u32,
    /// The number of tokens that truncation removed, without tokens of bytes that were not encoded.
    pub truncated: usize,
    /// The number of tokens before the first one of the document, or of the only text. Other inputs may begin
    /// with them, too.
    pub reusable: usize,
}

/// The prompts of some inputs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EncodedPrompts {
    /// The prompts, in the order of their inputs.
    pub prompts: Vec<Encoded>,
    /// The number of inputs from which tokens were cut. All documents of a list if its query was cut.
    pub truncated: usize,
}

impl From<Encoded> for EncodedPrompts {
    fn from(encoded: Encoded) -> Self {
        Self { truncated: usize::from(encoded.truncated > 0), prompts: vec![encoded] }
    }
}

/// A text of an input, encoded without special tokens.
#[derive(Clone)]
pub(super) struct Sequence {
    pub(super) encoding: Encoding,
    /// Whether `missing` says how many tokens are not in `encoding`.
    pub(super) is_counted: bool,
    /// The number of tokens that are left out of `encoding`, because they will be cut or refused anyway.
    pub(super) missing: usize,
    /// The number of tokens before the bytes that were skipped; all if none were.
    pub(super) before_gap: usize,
}

impl Sequence {
    pub(super) fn whole(encoding: Encoding) -> Self {
        Self { is_counted: true, missing: 0, before_gap: encoding.len(), encoding }
    }
}

/// The owner of a token: the text that contains its last character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// Template, instruction, prompt and special tokens, which are never cut.
    Frame,
    /// The query, or the first text of a pair.
    Query,
    /// The document, the second text of a pair, or the only text.
    Document,
}

/// Ids with the [`Owner`] of each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tokens {
    pub(super) ids: Vec<u32>,
    pub(super) owners: Vec<Owner>,
    /// The number of tokens of the client's texts that were counted and left out.
    pub(super) missing: usize,
    /// The index of the first token of type 1.
    pub(super) second: Option<usize>,
    /// The tokens of the prompt's fixed beginning and fixed end, which surround all texts of the request.
    pub(super) outer: usize,
    /// The tokens of the template and the instruction that come before the query and are encoded in one
    /// string with it.
    pub(super) before_query: usize,
    /// The indices of the tokens whose states become vectors.
    pub(super) marks: Vec<usize>,
    /// The number of tokens before the place of the first document, if the prompt has one.
    pub(super) before_documents: Option<usize>,
}

impl Tokens {
    /// The number of tokens that belong to `owner`.
    pub(super) fn count(&self, owner: Owner) -> usize {
        self.owners.iter().filter(|it| **it == owner).count()
    }

    /// The number of tokens above `max`. An error if there are any and the request forbids truncation.
    pub(super) fn excess(&self, max: usize, truncation: Truncation) -> Result<usize, Error> {
        match self.ids.len() + self.missing {
            got if got > max && !truncation.truncate => Err(Error::TooLong { got, max }),
            got => Ok(got.saturating_sub(max)),
        }
    }

    /// For each token, whether it stays if `query` and `document` tokens are removed from these texts, at the
    /// end that `direction` says. The texts must have that many tokens.
    pub(super) fn kept(&self, query: usize, document: usize, direction: TruncationDirection) -> Vec<bool> {
        let (mut of_query, mut of_document) = (query, document);
        let mut is_kept = |owner: &Owner| {
            let to_drop = match owner {
                Owner::Frame => return true,
                Owner::Query => &mut of_query,
                Owner::Document => &mut of_document,
            };
            let dropped = *to_drop > 0;
            *to_drop = to_drop.saturating_sub(1);
            !dropped
        };
        match direction {
            TruncationDirection::Left => self.owners.iter().map(&mut is_kept).collect(),
            TruncationDirection::Right => {
                let mut kept: Vec<bool> = self.owners.iter().rev().map(&mut is_kept).collect();
                kept.reverse();
                kept
            }
        }
    }

    /// Removes `query` and `document` tokens from these texts, as in [`Tokens::kept`].
    pub(super) fn cut(&self, query: usize, document: usize, direction: TruncationDirection) -> Encoded {
        let kept = self.kept(query, document, direction);
        let kept: Vec<usize> = (0..self.ids.len()).filter(|&index| kept[index]).collect();
        let ids = kept.iter().map(|&index| self.ids[index]).collect();
        // This also applies if the whole document was cut, because then all inputs of a query are the same.
        let first = self.owners.iter().position(|owner| *owner == Owner::Document);
        let reusable = first.map_or(0, |first| kept.partition_point(|&index| index < first));
        let second = self.second.and_then(|second| kept.iter().position(|&index| index >= second));
        let truncated = query + document;
        Encoded { ids, second, marks: Vec::new(), unattended: 0, kind: 0, truncated, reusable }
    }
}

/// Whether the post-processor added this token.
pub(super) fn is_special(encoding: &Encoding, index: usize) -> bool {
    encoding.get_special_tokens_mask()[index] == 1
}

#[expect(clippy::needless_pass_by_value, reason = "the form that `map_err` takes")]
pub(super) fn failed(error: tokenizers::Error) -> Error {
    Error::Tokenizer(error.to_string())
}

pub(super) fn frame_too_long(tokens: &Tokens, max: usize) -> Error {
    let frame = amount(tokens.count(Owner::Frame), "token");
    Error::Validation(format!(
        "the prompt is too long: with the special tokens it takes {frame} of a longest input of {max}"
    ))
}
