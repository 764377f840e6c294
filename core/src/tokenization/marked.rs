//! Encodes a question with marked options and the text that it is about, for deciders such as Laya.
//!
//! Input: a [`MarkedQuestion`] and a text. Output: the ids of `begin question separator (marker option)*
//! separator text separator`, with the places of the markers. What must hold: the authors' package gives the
//! same ids and places (`laya/common.py`, `build_head`), and cuts long options and questions as well; the
//! text is never cut; a text that spells a special token stays text.

use super::{
    Encoded, MarkedLayout, MarkedTokens, SharedQuery, TextEncoder, TruncationDirection, other_model,
};
use crate::error::Error;

const OPTION_TOKENS: usize = 48;
/// With less room than this for the question, the options are cut.
const QUESTION_ROOM: usize = 16;
/// The fewest tokens to which an option, with its marker, and a question are cut.
const FEWEST_OPTION: usize = 4;
const FEWEST_QUESTION: usize = 8;

/// A question with its options.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MarkedQuestion {
    /// The number of its type.
    pub kind: u32,
    /// Its text.
    pub text: String,
    /// Its options; at least one.
    pub options: Vec<String>,
}

impl MarkedQuestion {
    pub(super) fn all_texts(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.text.as_str()).chain(self.options.iter().map(String::as_str))
    }
}

impl TextEncoder {
    /// The ids of a question about a text.
    pub(crate) fn encode_question(
        &self,
        state: &str,
        question: &MarkedQuestion,
        shared: Option<&SharedQuery>,
    ) -> Result<Encoded, Error> {
        let tokens = match &self.options.marked {
            Some(MarkedLayout::Laya(tokens)) => tokens,
            Some(MarkedLayout::Pointer(tokens)) => {
                return self.encode_pointer(state, question, tokens, shared);
            }
            None => return Err(other_model()),
        };
        let mut options = Vec::with_capacity(question.options.len());
        let mut all = 0;
        for option in &question.options {
            let option = [" ", &tokens.without_marker(option)].concat();
            let ids = self.first_ids(&option, OPTION_TOKENS + 1)?;
            all += ids.len();
            let ids = ids.into_iter().take(OPTION_TOKENS);
            options.push(std::iter::once(tokens.marker).chain(ids).collect::<Vec<u32>>());
        }
        if count_all(&options) + QUESTION_ROOM > tokens.max_question {
            let share = tokens.max_question.saturating_sub(QUESTION_ROOM) / options.len().max(1);
            for option in &mut options {
                option.truncate(share.max(FEWEST_OPTION));
            }
        }
        let room = tokens.max_question.saturating_sub(count_all(&options)).max(FEWEST_QUESTION);
        let text = self.first_ids(&tokens.without_marker(&question.text), room + 1)?;
        all += text.len();
        let mut ids = vec![tokens.begin];
        ids.extend(text.iter().take(room));
        ids.push(tokens.separator);
        let mut marks = Vec::with_capacity(options.len());
        for option in &options {
            marks.push(ids.len());
            ids.extend(option);
        }
        // The tokens that were cut: all texts' tokens less those that stay. Of a cut text, one more is known.
        let truncated = all + 1 + 1 + marks.len() - ids.len();
        ids.push(tokens.separator);
        self.add_state(&mut ids, &tokens.without_marker(state), shared)?;
        ids.push(tokens.separator);
        Ok(Encoded { ids, second: None, marks, unattended: 0, kind: question.kind, truncated, reusable: 0 })
    }

    /// Adds the tokens of the text behind a question.
    fn add_state(&self, ids: &mut Vec<u32>, state: &str, shared: Option<&SharedQuery>) -> Result<(), Error> {
        let sequence = SharedQuery::first_sequence(shared, || {
            self.sequence(["", state], 0, usize::MAX, TruncationDirection::Right)
        })?;
        let state = sequence.encoding.get_ids();
        let max = self.options.max_input_length;
        let got = ids.len() + state.len() + sequence.missing + 1;
        if got > max {
            return Err(Error::TooLong { got, max });
        }
        ids.extend(state);
        Ok(())
    }

    /// The ids of the beginning of a text, at most `needed`.
    fn first_ids(&self, text: &str, needed: usize) -> Result<Vec<u32>, Error> {
        let sequence = self.sequence(["", text], 0, needed, TruncationDirection::Right)?;
        Ok(sequence.encoding.get_ids().iter().copied().take(needed).collect())
    }
}

fn count_all(options: &[Vec<u32>]) -> usize {
    options.iter().map(Vec::len).sum()
}

impl MarkedTokens {
    fn without_marker(&self, text: &str) -> String {
        text.replace(&self.marker_text, " ")
    }
}
