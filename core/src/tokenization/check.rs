//! The self-check at the start: the encoder must distinguish pairs within a constant frame.
//!
//! Input: a [`PromptEncoder`]. Output: nothing, or the reason not to serve. What must hold: an encoder that
//! passes gives different pairs different prompts, ends every prompt like the template, and agrees with the
//! tokenizer's reading of the whole prompt.

use crate::templates::{Piece, SlotTexts};

use super::{
    EncoderError, PairText, PromptEncoder, TokenLimits, Truncation, TruncationDirection,
    stretch::Needed,
    tokens::{Owner, Tokens},
};

// They start and end alike, because a tokenizer may merge a text's first and last characters with the
// template's.
const QUERIES: [&str; 2] = ["What is the capital of China?", "What is gravity?"];
const DOCUMENTS: [&str; 2] =
    ["The capital of China is Beijing.", "The force that pulls two bodies together."];
/// Texts and questions in the form in which a decider reads them.
const STATES: [&str; 2] = ["What is the capital of China?\n\n", "What is gravity?\n\n"];
const QUESTIONS: [&str; 2] =
    ["Question: Which city?\nA: Beijing.", "Question: Which force?\nB: pulls two bodies together."];

impl PromptEncoder {
    /// Encodes some fixed pairs as a test.
    ///
    /// # Errors
    ///
    /// [`EncoderError`] if different pairs do not give different prompts in the same frame, if the ids of the
    /// pieces differ from the ids of the whole prompt, or if the longest input has no room for texts besides
    /// the frame.
    pub fn self_check(&self) -> Result<(), EncoderError> {
        if self.reads_lists() {
            return self.self_check_list();
        }
        self.check_texts(QUERIES, DOCUMENTS)
    }

    /// The same for a decider's prompt.
    pub(crate) fn self_check_questions(&self) -> Result<(), EncoderError> {
        self.check_texts(STATES, QUESTIONS)
    }

    fn check_texts(&self, queries: [&str; 2], documents: [&str; 2]) -> Result<(), EncoderError> {
        let pairs = [(0, 0), (0, 1), (1, 0)];
        let prompts = pairs.map(|(query, document)| self.check_prompt(queries[query], documents[document]));
        let [first, other_document, other_query] = prompts;
        let (first, other_document, other_query) = (first?, other_document?, other_query?);
        let is_pair = |a: &Tokens, b: &Tokens| a.ids != b.ids && frame_tokens(a) == frame_tokens(b);
        if !(is_pair(&first, &other_document) && is_pair(&first, &other_query)) {
            return Err(EncoderError::Pairs);
        }
        self.check_pieces(&first, [queries[0], documents[0]])?;
        self.check_room(&first, [queries[0], documents[0]])
    }

    fn check_prompt(&self, query: &str, document: &str) -> Result<Tokens, EncoderError> {
        let text = PairText { instruction: None, query, document };
        self.tokens(&text, Needed::ALL, None).map_err(EncoderError::tokenizer)
    }

    /// Checks that encoding in pieces gives the ids of the whole prompt, whatever a tokenizer does at the
    /// start of a text or around control tokens.
    fn check_pieces(&self, first: &Tokens, [query, document]: [&str; 2]) -> Result<(), EncoderError> {
        let instruction = self.default_instruction();
        let texts = [instruction.unwrap_or_default(), query, document];
        let mut whole = Vec::new();
        let mut section = String::new();
        for piece in self.template.form(instruction).map_or(&[][..], |form| self.template.pieces(form)) {
            match piece {
                Piece::Break => whole.extend(self.take_section(&mut section)?),
                Piece::Token(id) => {
                    whole.extend(self.take_section(&mut section)?);
                    whole.push(*id);
                }
                piece => section.push_str(piece.text(&SlotTexts::from(&texts))),
            }
        }
        whole.extend(self.take_section(&mut section)?);
        // Control tokens in the default instruction are text for the encoder, but not for the full tokenizer
        // here.
        let is_comparable = self.options.parse_special_tokens || !self.mentions_added_token();
        if !is_comparable || whole == first.ids {
            return Ok(());
        }
        let message = "this tokenizer gives other ids for the pieces of the prompt than for the whole prompt, which is \
                       not supported: check that tokenizer.json and the template belong to the same model";
        Err(EncoderError::Refused(message.to_owned()))
    }

    /// The ids of a text that is encoded as one string. Leaves it empty.
    fn take_section(&self, section: &mut String) -> Result<Vec<u32>, EncoderError> {
        let encoding = self.tokenizer().encode_fast(std::mem::take(section), false);
        Ok(encoding.map_err(EncoderError::tokenizer)?.get_ids().to_vec())
    }

    fn mentions_added_token(&self) -> bool {
        let tokens = self.tokenizer().get_added_tokens_decoder();
        let instruction = self.default_instruction().unwrap_or_default();
        tokens.values().any(|token| instruction.contains(&token.content))
    }

    /// Checks that a document that is far too long does not change the frame.
    fn check_room(&self, first: &Tokens, [query, document]: [&str; 2]) -> Result<(), EncoderError> {
        let (frame, max) = (first.count(Owner::Frame), self.max_length(first));
        if frame >= max {
            return Err(EncoderError::Refused(format!(
                "the template and the default instruction take {frame} tokens of a longest input of {max}: raise \
                 `--max-input-length`"
            )));
        }
        let document = vec![document; max.div_ceil(4)].join(" ");
        let long = self.check_prompt(query, &document)?;
        let end = first.owners.iter().rev().take_while(|owner| **owner == Owner::Frame).count();
        for direction in [TruncationDirection::Right, TruncationDirection::Left] {
            let cut = self.fit(&long, Truncation { truncate: true, direction, limits: TokenLimits::NONE });
            let cut = cut.map_err(EncoderError::tokenizer)?;
            if cut.ids.len() != max || !cut.ids.ends_with(&first.ids[first.ids.len() - end..]) {
                return Err(EncoderError::Pairs);
            }
        }
        Ok(())
    }
}

/// The tokens that belong neither to the query nor to the document.
fn frame_tokens(prompt: &Tokens) -> Vec<u32> {
    let tokens = prompt.ids.iter().zip(&prompt.owners);
    tokens.filter(|(_, owner)| **owner == Owner::Frame).map(|(id, _)| *id).collect()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

    use super::*;
    use crate::{
        families::{self, QWEN3_RERANKER},
        templates::PromptTemplate,
        tokenization::EncoderOptions,
        tokenization::test_tokenizer::{
            options, qwen_tokenizer, small_encoder, small_tokenizer, small_tokenizer_json, tokenizer_from,
        },
    };
    use serde_json::{Value, json};
    use tokenizers::Tokenizer;

    fn check(tokenizer: Tokenizer, max_input_length: usize) -> Result<(), EncoderError> {
        let template = PromptTemplate::builtin(&QWEN3_RERANKER);
        PromptEncoder::new(tokenizer, &template, options(max_input_length))?.self_check()
    }

    fn with(pointer: &str, value: Value) -> Tokenizer {
        let mut json = small_tokenizer_json(&[]);
        *json.pointer_mut(pointer).unwrap() = value;
        tokenizer_from(&json)
    }

    #[test]
    fn good_encoders_pass() {
        for tokenizer in [Some(small_tokenizer()), qwen_tokenizer()].into_iter().flatten() {
            for family in families::ALL.iter().filter(|family| family.missing_token(&tokenizer).is_none()) {
                for parse_special_tokens in [false, true] {
                    let options = EncoderOptions { parse_special_tokens, ..options(8192) };
                    let template = PromptTemplate::builtin(family);
                    let encoder = PromptEncoder::new(tokenizer.clone(), &template, options).unwrap();
                    assert_eq!(encoder.self_check(), Ok(()));
                }
            }
        }
    }

    #[test]
    fn a_default_instruction_with_control_tokens_is_text() {
        let options =
            EncoderOptions { default_instruction: Some("what <think> means".to_owned()), ..options(8192) };
        let template = PromptTemplate::builtin(&QWEN3_RERANKER);
        let encoder = PromptEncoder::new(small_tokenizer(), &template, options).unwrap();
        assert_eq!(encoder.self_check(), Ok(()));
    }

    #[test]
    fn a_longest_input_without_room_beside_the_frame_is_refused() {
        let frame = small_encoder(8192).check_prompt("", "").unwrap().count(Owner::Frame);
        for max in [1, frame - 9] {
            let error = check(small_tokenizer(), max).unwrap_err();
            let expected = format!(" tokens of a longest input of {max}: raise `--max-input-length`");
            assert!(error.to_string().ends_with(&expected), "{error}");
        }
        assert_eq!(check(small_tokenizer(), frame + 1), Ok(()));
    }

    #[test]
    fn never_the_bug_a_tokenizer_that_reads_all_texts_alike_is_refused() {
        let words = json!({ "type": "WordLevel", "vocab": { "[UNK]": 0 }, "unk_token": "[UNK]" });
        let mut json = small_tokenizer_json(&[]);
        json["model"] = words;
        json["pre_tokenizer"] = Value::Null;
        assert_eq!(check(tokenizer_from(&json), 8192), Err(EncoderError::Pairs));
    }

    #[test]
    fn a_tokenizer_that_marks_the_start_of_a_text_marks_no_run_behind_a_control_token() {
        let metaspace =
            json!({ "type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": true });
        let tokenizer = with("/pre_tokenizer/pretokenizers/0", metaspace);
        assert_eq!(check(tokenizer, 8192), Ok(()));
    }
}
