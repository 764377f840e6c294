//! The encoding of a text alone, without the special tokens that surround an input.
//!
//! Input: a text. Output: its tokens with their places in the text. What must hold: text that spells a
//! special token stays text; the fast way for plain texts gives the tokens of the library.

use super::{text::TextEncoder, tokens::failed};
use crate::error::Error;
use tokenizers::{Encoding, Model, OffsetType, PreTokenizer, Token};

impl TextEncoder {
    /// The tokens of a sequence, without the post-processor's.
    pub(super) fn encode_sequence(&self, text: &str, place: u32) -> Result<Encoding, Error> {
        let words = self.words.as_ref();
        if let Some(tokens) = words.and_then(|words| words.encode_plain(&self.plain, text)) {
            let tokens = tokens.ids.into_iter().zip(tokens.offsets);
            return Ok(tokens.map(|(id, offsets)| (id, String::new(), offsets, None, place)).collect());
        }
        let plain = self.ascii.as_ref().and_then(|words| {
            words.encode_plain(&self.plain, text, place, |id| self.special.contains_key(&id))
        });
        plain.map_or_else(|| self.encode_by_library(text, place), Ok)
    }

    /// The steps of `Tokenizer::encode` for a sequence, without the post-processor.
    pub(super) fn encode_by_library(&self, text: &str, place: u32) -> Result<Encoding, Error> {
        let tokenizer = &self.plain;
        let added = tokenizer.get_added_vocabulary();
        let mut words = added.extract_and_normalize(tokenizer.get_normalizer(), text);
        if let Some(splitter) = tokenizer.get_pre_tokenizer() {
            splitter.pre_tokenize(&mut words).map_err(failed)?;
        }
        words.tokenize(|word| self.tokenize_word(word.get())).map_err(failed)?;
        words.into_encoding(None, place, OffsetType::Byte).map_err(failed)
    }

    /// The model's tokens of a word. Where a part of the word spells a special token that the model's own
    /// vocabulary holds, as in XLM-RoBERTa's, its characters become tokens instead.
    fn tokenize_word(&self, word: &str) -> tokenizers::Result<Vec<Token>> {
        let model = self.plain.get_model();
        let tokens = model.tokenize(word)?;
        let spells_special = |token: &Token| {
            self.special
                .get(&token.id)
                .is_some_and(|special| word.get(token.offsets.0..token.offsets.1) == Some(special))
        };
        if self.options.parse_special_tokens || !tokens.iter().any(spells_special) {
            return Ok(tokens);
        }
        let mut spelled = Vec::with_capacity(tokens.len());
        for token in tokens {
            if !spells_special(&token) {
                spelled.push(token);
                continue;
            }
            for (place, character) in word[token.offsets.0..token.offsets.1].char_indices() {
                let start = token.offsets.0 + place;
                for mut part in model.tokenize(&word[start..start + character.len_utf8()])? {
                    part.offsets = (part.offsets.0 + start, part.offsets.1 + start);
                    spelled.push(part);
                }
            }
        }
        Ok(spelled)
    }
}
