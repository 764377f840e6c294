//! The lengths of a request's texts, before they are tokens.
//!
//! Input: a request that lists its inputs. Output: characters for its cost, bytes for the order of the
//! tokenizers' jobs, and a bound on its tokens for its permit. What must hold: a common query is counted
//! once, not once for each of its texts.

use super::task::Inputs;
use crate::tokenization::{Input, PairText};

/// The lengths of a request's texts.
pub(super) struct Sizes {
    /// The characters of all inputs. A query counts with each input.
    pub(super) characters: usize,
    /// The bytes to encode for each input. A common query and instruction count with the first input.
    pub(super) bytes: Vec<usize>,
    /// The bytes of the common query and instruction.
    common: usize,
}

impl Sizes {
    pub(super) fn from_inputs(inputs: &impl Inputs) -> Self {
        let count = inputs.count();
        let mut sizes = Self { characters: 0, bytes: Vec::with_capacity(count), common: 0 };
        let common = inputs.have_one_query().then(|| inputs.input(0));
        let Some(Input::Pair(common)) = common else {
            for index in 0..count {
                sizes.characters += inputs.input(index).characters();
                sizes.bytes.push(inputs.input(index).bytes());
            }
            return sizes;
        };
        // The query is not counted again for each of a thousand documents.
        let common = Input::Pair(PairText { document: "", ..common });
        sizes.characters = common.characters() * count;
        sizes.common = common.bytes();
        for index in 0..count {
            if let Input::Pair(PairText { document, .. }) = inputs.input(index) {
                sizes.characters += Input::Text { prompt: "", text: document }.characters();
                sizes.bytes.push(document.len() + if index == 0 { sizes.common } else { 0 });
            }
        }
        sizes
    }

    /// An upper bound on the tokens of all inputs, if none has more than `max_length`. A token is hardly ever
    /// shorter than a byte.
    pub(super) fn max_tokens(&self, max_length: usize) -> usize {
        self.bytes.iter().map(|bytes| (bytes + self.common).min(max_length)).sum()
    }
}
