//! The tokens of an input before truncation, each with the text that it belongs to.
//!
//! Input: ids with their owners, and how many tokens each text has to give. Output: [`Encoded`]. What must hold: only
//! tokens of texts that the client sent are cut, and of each text only at the end that the request names.

use super::{Encoded, Truncation, TruncationDirection};
use crate::error::Error;

/// To whom a token belongs: to the text in which its last character lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// Template, instruction, prompt, special tokens: what is never cut.
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
    /// The index of the first token of type 1.
    pub(super) second: Option<usize>,
    /// Tokens of a prompt's fixed beginning and fixed end, outside of which no text of a request stands.
    pub(super) outer: usize,
    /// Tokens of the template and the instruction that are encoded in one string with the query and come before it.
    pub(super) before_query: usize,
}

impl Tokens {
    /// How many tokens belong to `owner`.
    pub(super) fn count(&self, owner: Owner) -> usize {
        self.owners.iter().filter(|it| **it == owner).count()
    }

    /// How many tokens there are too many; none may be where the request forbids truncation.
    pub(super) fn excess(&self, max: usize, truncation: Truncation) -> Result<usize, Error> {
        match self.ids.len() {
            got if got > max && !truncation.truncate => Err(Error::TooLong { got, max }),
            got => Ok(got.saturating_sub(max)),
        }
    }

    /// Which tokens stay when so many of query and document go, which must have them, from the end that `direction`
    /// names.
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

    /// Removes so many tokens of query and document, as [`Tokens::kept`] says.
    pub(super) fn cut(&self, query: usize, document: usize, direction: TruncationDirection) -> Encoded {
        let kept = self.kept(query, document, direction);
        let kept: Vec<usize> = (0..self.ids.len()).filter(|&index| kept[index]).collect();
        let ids = kept.iter().map(|&index| self.ids[index]).collect();
        // Also where all of the document was cut: then the inputs of a query are all the same.
        let first = self.owners.iter().position(|owner| *owner == Owner::Document);
        let reusable = first.map_or(0, |first| kept.partition_point(|&index| index < first));
        let second = self.second.and_then(|second| kept.iter().position(|&index| index >= second));
        Encoded { ids, second, truncated: query + document, reusable }
    }
}
