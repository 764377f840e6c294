//! Encodes a text and a question with marked options, for deciders of the family any2jev.
//!
//! Input: a [`MarkedQuestion`] and a text. Output: the ids of `state text question instructions (option TEXT
//! option_end)* decide`, with the places of the last token of each option, then of `decide`. What must hold:
//! the authors' package gives the same ids (`any2jev/packing.py`, `encode`); the tokens between the texts are
//! never tokens of a text; nothing is cut.

use super::{Encoded, MarkedQuestion, PointerTokens, SharedQuery, TextEncoder, TruncationDirection};
use crate::error::Error;

/// The longest name of a token, in characters, that the authors' package changes in texts.
const MAX_NAME: usize = 64;

impl TextEncoder {
    /// The ids of a text and a question about it.
    pub(super) fn encode_pointer(
        &self,
        text: &str,
        question: &MarkedQuestion,
        tokens: &PointerTokens,
        shared: Option<&SharedQuery>,
    ) -> Result<Encoded, Error> {
        let [state, instructions, option, option_end, decide] = tokens.delimiters;
        let sequence = SharedQuery::first_sequence(shared, || {
            self.sequence(["", &without_token_names(text)], 0, usize::MAX, TruncationDirection::Right)
        })?;
        let found = sequence.encoding.get_ids();
        check_length(1 + found.len() + sequence.missing, tokens.max_state)?;
        let mut ids = Vec::with_capacity(1 + found.len() + tokens.max_branch.min(256));
        ids.push(state);
        ids.extend(found);
        let reusable = ids.len();
        ids.push(instructions);
        let missing = self.add_text(&mut ids, &question.text)?;
        check_length(ids.len() - reusable + missing, tokens.max_branch)?;
        let mut marks = Vec::with_capacity(question.options.len() + 1);
        for text in &question.options {
            ids.push(option);
            let missing = self.add_text(&mut ids, text)?;
            // Each option is checked, so that many long ones stop early.
            check_length(ids.len() - reusable + missing, tokens.max_branch)?;
            marks.push(ids.len());
            ids.push(option_end);
        }
        marks.push(ids.len());
        ids.push(decide);
        check_length(ids.len() - reusable, tokens.max_branch)?;
        check_length(ids.len(), self.options.max_input_length)?;
        Ok(Encoded { ids, second: None, marks, unattended: 0, kind: 0, truncated: 0, reusable })
    }

    /// Adds the ids of a text behind others. Returns the number of tokens that are left out, because they do
    /// not fit anyway.
    fn add_text(&self, ids: &mut Vec<u32>, text: &str) -> Result<usize, Error> {
        let text = without_token_names(text);
        let sequence = self.sequence(["", &text], 0, usize::MAX, TruncationDirection::Right)?;
        ids.extend(sequence.encoding.get_ids());
        Ok(sequence.missing)
    }
}

fn check_length(got: usize, max: usize) -> Result<(), Error> {
    if got <= max { Ok(()) } else { Err(Error::TooLong { got, max }) }
}

/// A text in which `<|name|>` became `<¦name¦>`, as in the texts that the models were trained on.
fn without_token_names(text: &str) -> String {
    let mut changed = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("<|") {
        let (before, from) = rest.split_at(start);
        changed.push_str(before);
        let inside = &from[2..];
        let end = inside.find(['|', '<', '>']).unwrap_or(inside.len());
        let name = &inside[..end];
        if inside[end..].starts_with("|>") && (1..=MAX_NAME).contains(&name.chars().count()) {
            changed.extend(["<¦", name, "¦>"]);
            rest = &inside[end + 2..];
        } else {
            changed.push_str("<|");
            rest = inside;
        }
    }
    changed + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cases from Python's `re.sub(r"<\|([^|<>]{1,64})\|>", …)`.
    #[test]
    fn names_of_tokens_become_text_as_in_the_authors_package() {
        let long = format!("<|{}|>", "é".repeat(64));
        let longer = format!("<|{}|>", "é".repeat(65));
        for (text, expected) in [
            ("a<|fim_suffix|>b<|x y|>", "a<¦fim_suffix¦>b<¦x y¦>".to_owned()),
            ("<||> <|a|b|> <|<|c|>|>", "<||> <|a|b|> <|<¦c¦>|>".to_owned()),
            ("<|open", "<|open".to_owned()),
            ("<|a\n|><|", "<¦a\n¦><|".to_owned()),
            (&long, long.replace('|', "¦")),
            (&longer, longer.clone()),
        ] {
            assert_eq!(without_token_names(text), expected);
        }
    }
}
