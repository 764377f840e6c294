//! The cut of a text that is read alone, such as a query or a document of an embedding model.
//!
//! Input: a text of a pair, its prompt, and the request's limits. Output: [`Encoded`]. What must hold:
//! without limits, the ids are the ones of the text after its prompt.

use super::{
    Encoded, PairSide, TextEncoder, TokenLimits, Truncation,
    instruction::refuse_instruction,
    tokens::{Owner, Tokens, frame_too_long},
};
use crate::error::Error;
use text_embeddings_backend_core::amount;

impl TextEncoder {
    /// The ids of a query or a document that is read alone, as for [`TextEncoder::encode_text`]. The limit on
    /// its tokens and the request's limit on a prompt hold in addition to the longest input.
    pub(super) fn encode_side(&self, side: &PairSide<'_>, truncation: Truncation) -> Result<Encoded, Error> {
        let &PairSide { instruction, prompt, text, max_tokens } = side;
        refuse_instruction(instruction, self.options.ignore_instruction)?;
        let limits = TokenLimits { query: None, document: max_tokens, ..truncation.limits };
        self.encode_limited([prompt, text], Truncation { limits, ..truncation })
    }

    /// Cuts the text: first to the request's limit on it, then to the longest input. The tokens of the prompt
    /// and special tokens stay.
    pub(super) fn cut_document(&self, tokens: &Tokens, truncation: Truncation) -> Result<Encoded, Error> {
        let max = self.options.max_input_length;
        let TokenLimits { document: limit, prompt, .. } = truncation.limits;
        let document = tokens.count(Owner::Document);
        let wanted = (document + tokens.missing).min(limit.unwrap_or(usize::MAX));
        let got = tokens.count(Owner::Frame) + wanted;
        if got > max && prompt.is_none() && !truncation.truncate {
            return Err(Error::TooLong { got, max });
        }
        let kept = wanted.min(room_for_texts(tokens, max, prompt)?);
        Ok(tokens.cut(0, document.saturating_sub(kept), truncation.direction))
    }
}

/// The tokens that the frame leaves to the texts, in an input of at most `max` tokens and in a request with
/// this limit on a prompt.
pub(super) fn room_for_texts(tokens: &Tokens, max: usize, prompt: Option<usize>) -> Result<usize, Error> {
    let frame = tokens.count(Owner::Frame);
    let room = max.min(prompt.unwrap_or(max)).checked_sub(frame);
    room.ok_or_else(|| match prompt.filter(|limit| *limit < max) {
        None => frame_too_long(tokens, max),
        Some(limit) => Error::Validation(format!(
            "`truncate_prompt_tokens` is too small: the special tokens alone take {}. Given: {limit}",
            amount(frame, "token")
        )),
    })
}
