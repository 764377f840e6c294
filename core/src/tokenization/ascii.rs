//! The tokens of ASCII texts in BERT's tokenizers, without the library's general machinery.
//!
//! Input: a text. Output: the same ids and offsets that `tokenizers` gives, with a fraction of its work, or
//! nothing: then the library is to encode the text. What must hold: wherever this module is not sure, it
//! gives nothing. In ASCII without control characters, BERT's normalizer only lowers letters, and so keeps
//! all offsets.

use tokenizers::{
    Encoding, Model, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, Tokenizer,
    models::wordpiece::WordPiece,
};

/// The properties of a tokenizer on which its plain texts depend.
pub(super) struct AsciiWords {
    is_lowered: bool,
    /// The bytes with which an added token may begin. The library looks for those tokens first.
    added: [bool; 128],
}

impl AsciiWords {
    /// `None` for tokenizers of other kinds.
    pub(super) fn from_tokenizer(tokenizer: &Tokenizer) -> Option<Self> {
        let Some(NormalizerWrapper::BertNormalizer(normalizer)) = tokenizer.get_normalizer() else {
            return None;
        };
        let Some(PreTokenizerWrapper::BertPreTokenizer(_)) = tokenizer.get_pre_tokenizer() else {
            return None;
        };
        word_piece(tokenizer)?;
        let mut added = [false; 128];
        for token in tokenizer.get_added_tokens_decoder().values() {
            let first = token.content.bytes().next()?;
            // The normalizer may turn a character that is not ASCII into one that is.
            *added.get_mut(usize::from(first.to_ascii_lowercase()))? = true;
            *added.get_mut(usize::from(first.to_ascii_uppercase()))? = true;
        }
        Some(Self { is_lowered: normalizer.lowercase, added })
    }

    /// The tokens of a text as the sequence `place` of an input. `None` if the text has bytes that are not
    /// plain, or words that the vocabulary does not have, or a token that `is_special` names.
    pub(super) fn encode_plain(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        place: u32,
        is_special: impl Fn(u32) -> bool,
    ) -> Option<Encoding> {
        let model = word_piece(tokenizer)?;
        if !text.bytes().all(|byte| self.is_plain(byte)) {
            return None;
        }
        let lowered = if self.is_lowered { text.to_ascii_lowercase() } else { text.to_owned() };
        let mut tokens = Vec::with_capacity(text.len() / 4 + 2);
        let mut piece = String::new();
        let (mut start, mut word) = (0, 0);
        while let Some((from, end)) = next_word(lowered.as_bytes(), start) {
            if end - from > model.max_input_chars_per_word {
                return None;
            }
            let mut begin = from;
            while begin < end {
                let (id, behind) = find_piece(model, &lowered[begin..end], begin > from, &mut piece)?;
                if is_special(id) {
                    return None;
                }
                tokens.push((id, String::new(), (begin, begin + behind), Some(word), place));
                begin += behind;
            }
            word += 1;
            start = end;
        }
        Some(tokens.into_iter().collect())
    }

    fn is_plain(&self, byte: u8) -> bool {
        let is_text = matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~');
        is_text && !self.added.get(usize::from(byte)).copied().unwrap_or(true)
    }
}

fn word_piece(tokenizer: &Tokenizer) -> Option<&WordPiece> {
    if let ModelWrapper::WordPiece(model) = tokenizer.get_model() { Some(model) } else { None }
}

/// The next word at or behind `start`: a sign of punctuation, or other bytes up to one or to a space.
fn next_word(text: &[u8], start: usize) -> Option<(usize, usize)> {
    let from = start + text[start..].iter().position(|byte| !byte.is_ascii_whitespace())?;
    if text[from].is_ascii_punctuation() {
        return Some((from, from + 1));
    }
    let end = text[from..].iter().position(|byte| byte.is_ascii_whitespace() || byte.is_ascii_punctuation());
    let length = end.unwrap_or(text.len() - from);
    Some((from, from + length))
}

/// The id and the length of the longest piece at the start of `rest`, the rest of a word, or the whole word.
fn find_piece(model: &WordPiece, rest: &str, is_inner: bool, piece: &mut String) -> Option<(u32, usize)> {
    let prefix = if is_inner { model.continuing_subword_prefix.as_str() } else { "" };
    piece.clear();
    piece.push_str(prefix);
    piece.push_str(rest);
    for length in (1..=rest.len()).rev() {
        piece.truncate(prefix.len() + length);
        if let Some(id) = model.token_to_id(piece) {
            return Some((id, length));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::tokenization::{TextEncoder, TextOptions, test_tokenizer::tokenizer_from};
    use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
    use serde_json::{Value, json};

    fn json(lowercase: bool, added: &[Value]) -> Value {
        let mut vocabulary: Vec<String> = [
            "[UNK]", "[CLS]", "spell", "the", "riv", "##er", "##er##", "##s", "a", "b", "Cap", "##a", "##b",
            "##1",
        ]
        .map(str::to_owned)
        .to_vec();
        vocabulary.extend("!\"#$%&'()*+,-./:;<=>?@\\]^_`{|}~0123".chars().map(String::from));
        let vocabulary: Value =
            vocabulary.iter().enumerate().map(|(id, word)| (word.clone(), json!(id))).collect();
        json!({
            "added_tokens": added,
            "normalizer": { "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                "strip_accents": null, "lowercase": lowercase },
            "pre_tokenizer": { "type": "BertPreTokenizer" },
            "model": { "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 12, "vocab": vocabulary },
        })
    }

    fn added(id: u32, content: &str, special: bool) -> Value {
        json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": !special, "special": special })
    }

    #[test]
    fn tokens_equal_the_library_s_on_random_texts_or_there_are_none() {
        let seed = rand::rng().random();
        let mut rng = StdRng::seed_from_u64(seed);
        let parts = [
            "the",
            "The",
            "riv",
            "RIVERS",
            "rivera",
            "ab",
            "abab1",
            "a1",
            "Capa",
            "[",
            "]",
            "[CLS]",
            " ",
            "  ",
            "\t",
            "\n",
            "\r",
            "\u{b}",
            "\0",
            "\u{7f}",
            "!",
            ".",
            "##",
            "##er",
            "#",
            "_",
            "'",
            "spell",
            "é",
            "\u{212a}",
            "aaaaaaaaaaaaa",
            "ababababab",
            "z",
            "0",
            "-",
        ];
        let specials = [added(0, "[UNK]", true), added(1, "[CLS]", true)];
        for (lowercase, more) in [(true, None), (false, None), (true, Some(added(2, "spell", true)))] {
            let all: Vec<Value> = specials.iter().cloned().chain(more.clone()).collect();
            let tokenizer = tokenizer_from(&json(lowercase, &all));
            let encoder = TextEncoder::new(tokenizer, TextOptions::default()).unwrap();
            let words = AsciiWords::from_tokenizer(&encoder.plain).unwrap();
            let mut found = 0;
            for _ in 0..5000 {
                let text: String =
                    (0..rng.random_range(0..9)).map(|_| *parts.choose(&mut rng).unwrap()).collect();
                let Some(encoding) = words.encode_plain(&encoder.plain, &text, 1, |id| id < 2) else {
                    continue;
                };
                let expected = encoder.encode_by_library(&text, 1).unwrap();
                assert_eq!(encoding.get_ids(), expected.get_ids(), "{text:?} {seed}");
                assert_eq!(encoding.get_offsets(), expected.get_offsets(), "{text:?} {seed}");
                assert_eq!(encoding.get_type_ids(), expected.get_type_ids(), "{text:?} {seed}");
                assert_eq!(encoding.get_word_ids(), expected.get_word_ids(), "{text:?} {seed}");
                assert_eq!(encoding.get_special_tokens_mask(), expected.get_special_tokens_mask());
                assert_eq!(encoding.get_attention_mask(), expected.get_attention_mask());
                found += usize::from(!text.is_empty());
            }
            assert!(found > 200, "{found}");
        }
    }

    #[test]
    fn other_tokenizers_and_added_tokens_that_the_normalizer_changes_are_left_to_the_library() {
        let plain = json(true, &[]);
        assert!(AsciiWords::from_tokenizer(&tokenizer_from(&plain)).is_some());
        for (key, value) in [
            ("normalizer", json!({ "type": "Lowercase" })),
            ("normalizer", Value::Null),
            ("pre_tokenizer", json!({ "type": "Whitespace" })),
            ("added_tokens", json!([added(60, "\u{212a}", false)])),
        ] {
            let mut changed = plain.clone();
            changed[key] = value;
            assert!(AsciiWords::from_tokenizer(&tokenizer_from(&changed)).is_none(), "{key}");
        }
    }
}
