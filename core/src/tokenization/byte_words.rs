//! The tokens of mostly ASCII texts in byte-level tokenizers such as Qwen's and Llama 3's, without the
//! library's general machinery.
//!
//! Input: a text. Output: the same ids and offsets that `tokenizers` gives, with a fraction of its work, or
//! nothing: then the library is to encode the text. What must hold: wherever this module is not sure, it
//! gives nothing. Threads share the knowledge of `merged`, without a lock.

use super::borders::{Borders, PATTERNS};
use std::{
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
};
use tokenizers::{
    Model, ModelWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper,
    SplitDelimiterBehavior, Tokenizer, models::bpe::BPE, pre_tokenizers::split::SplitPattern,
};

/// The properties of a tokenizer on which its plain texts depend.
pub(super) struct ByteWords {
    max_digits: usize,
    /// The bytes with which an added token may begin. The library looks for those tokens first.
    added: [bool; 128],
    /// The places at which texts with other characters are divided.
    borders: Borders,
    /// The character that stands for each byte in the vocabulary.
    characters: [char; 128],
    /// For each id, whether it is known that the merges of its token's characters end in this token.
    merged: Vec<AtomicBool>,
}

/// The tokens of a text.
#[derive(Default)]
pub(super) struct TextTokens {
    pub(super) ids: Vec<u32>,
    /// The start and end of each token's bytes in the text. Tokens of one character overlap.
    pub(super) offsets: Vec<(usize, usize)>,
}

impl TextTokens {
    pub(super) fn from_library(tokenizer: &Tokenizer, text: &str) -> tokenizers::Result<Self> {
        let encoding = tokenizer.encode(text, false)?;
        Ok(Self { ids: encoding.get_ids().to_vec(), offsets: encoding.get_offsets().to_vec() })
    }
}

impl ByteWords {
    /// `None` for tokenizers of other kinds.
    pub(super) fn from_tokenizer(tokenizer: &Tokenizer) -> Option<Self> {
        let (None | Some(NormalizerWrapper::NFC(_))) = tokenizer.get_normalizer() else { return None };
        let Some(PreTokenizerWrapper::Sequence(steps)) = tokenizer.get_pre_tokenizer() else { return None };
        let [PreTokenizerWrapper::Split(split), PreTokenizerWrapper::ByteLevel(bytes)] = steps.as_ref()
        else {
            return None;
        };
        let SplitPattern::Regex(pattern) = &split.pattern else { return None };
        let index = PATTERNS.iter().position(|known| known == pattern)?;
        let is_isolated = split.behavior == SplitDelimiterBehavior::Isolated && !split.invert;
        let is_known = is_isolated && !bytes.add_prefix_space && !bytes.use_regex;
        let model = bpe_model(tokenizer)?;
        if !is_known || model.dropout.is_some() || trims_offsets(tokenizer.get_post_processor()) {
            return None;
        }
        let mut added = [false; 128];
        for (id, token) in tokenizer.get_added_tokens_decoder() {
            // Text may spell a special token that the model's own vocabulary has.
            if token.special && model.id_to_token(id).is_some() {
                return None;
            }
            *added.get_mut(usize::from(token.content.bytes().next()?))? = true;
        }
        let borders = Borders::from_tokenizer(tokenizer);
        let characters = std::array::from_fn(|byte| match u8::try_from(byte) {
            Ok(visible @ b'!'..=b'~') => char::from(visible),
            // 33 bytes before them are invisible, too.
            _ => char::from_u32(256 + byte.min(33) as u32).unwrap_or_default(),
        });
        let merged = (0..tokenizer.get_vocab_size(false)).map(|_| AtomicBool::new(false)).collect();
        Some(Self { max_digits: [1, 3][index], added, borders, characters, merged })
    }

    /// The tokens of a text. The library encodes the words around characters that are not ASCII. `None` if
    /// the text has bytes with which an added token may begin, or if the model has no token for a byte.
    pub(super) fn encode_plain(&self, tokenizer: &Tokenizer, text: &str) -> Option<TextTokens> {
        let (model, bytes) = (bpe_model(tokenizer)?, text.as_bytes());
        if bytes.iter().any(|byte| self.added.get(usize::from(*byte)).is_some_and(|is_added| *is_added)) {
            return None;
        }
        let mut tokens = TextTokens::default();
        let mut start = 0;
        while let Some(other) = bytes[start..].iter().position(|byte| !byte.is_ascii()) {
            let other = start + other;
            let is_border = |at: &usize| self.borders.splits_at(bytes, *at);
            let from = (start + 1..other).rfind(is_border).unwrap_or(start);
            let to = (other + 1..bytes.len().saturating_sub(1)).find(is_border).unwrap_or(bytes.len());
            self.push_ascii(model, text, start..from, &mut tokens)?;
            let library = TextTokens::from_library(tokenizer, &text[from..to]).ok()?;
            tokens.ids.extend(library.ids);
            tokens.offsets.extend(library.offsets.iter().map(|(start, end)| (from + start, from + end)));
            start = to;
        }
        self.push_ascii(model, text, start..text.len(), &mut tokens)?;
        Some(tokens)
    }

    fn push_ascii(&self, model: &BPE, text: &str, part: Range<usize>, tokens: &mut TextTokens) -> Option<()> {
        let (mut start, mut characters) = (part.start, String::new());
        while start < part.end {
            let word = &text.as_bytes()[start..part.end];
            let word = &word[..word_length(word, self.max_digits)];
            characters.clear();
            characters.extend(word.iter().map(|byte| self.characters[usize::from(*byte)]));
            let whole = model.token_to_id(&characters);
            let merged = whole.and_then(|id| self.merged.get(id as usize));
            match (whole, merged) {
                (Some(id), Some(merged)) if merged.load(Ordering::Relaxed) => {
                    tokens.ids.push(id);
                    tokens.offsets.push((start, start + word.len()));
                }
                _ => {
                    let parts = model.tokenize(&characters).ok()?;
                    if parts.last()?.offsets.1 < characters.len() {
                        return None;
                    }
                    if let Some(merged) = merged {
                        merged.store(parts.len() == 1 && Some(parts[0].id) == whole, Ordering::Relaxed);
                    }
                    let mut from = start;
                    for part in parts {
                        let end = start + characters.get(..part.offsets.1)?.chars().count();
                        tokens.ids.push(part.id);
                        tokens.offsets.push((from, end));
                        from = end;
                    }
                }
            }
            start += word.len();
        }
        Some(())
    }
}

fn bpe_model(tokenizer: &Tokenizer) -> Option<&BPE> {
    if let ModelWrapper::BPE(model) = tokenizer.get_model() { Some(model) } else { None }
}

/// Whether a post-processor may exclude white space from the offsets of tokens.
fn trims_offsets(processor: Option<&PostProcessorWrapper>) -> bool {
    match processor {
        None | Some(PostProcessorWrapper::Template(_) | PostProcessorWrapper::Bert(_)) => false,
        Some(PostProcessorWrapper::ByteLevel(bytes)) => bytes.trim_offsets,
        Some(PostProcessorWrapper::Sequence(steps)) => {
            steps.as_ref().iter().any(|step| trims_offsets(Some(step)))
        }
        Some(PostProcessorWrapper::Roberta(_)) => true,
    }
}

/// The length of the first word of an ASCII text, as the patterns of `borders.rs` say. The steps here are
/// their alternatives, in order.
fn word_length(text: &[u8], max_digits: usize) -> usize {
    let first = text[0];
    let mut ends = CONTRACTIONS.iter();
    if first == b'\''
        && let Some(end) =
            ends.find(|end| text[1..].get(..end.len()).is_some_and(|next| next.eq_ignore_ascii_case(end)))
    {
        return 1 + end.len();
    }
    let other = usize::from(!first.is_ascii_alphanumeric() && !is_line_break(first));
    let letters = run_end(text, other, |byte| byte.is_ascii_alphabetic());
    if letters > other {
        return letters;
    }
    if first.is_ascii_digit() {
        return run_end(&text[..max_digits.min(text.len())], 0, |byte| byte.is_ascii_digit());
    }
    let space = usize::from(first == b' ');
    let signs = run_end(text, space, |byte| !byte.is_ascii_alphanumeric() && !is_space(byte));
    if signs > space {
        return run_end(text, signs, is_line_break);
    }
    let spaces = run_end(text, 0, is_space);
    match text[..spaces].iter().rposition(|byte| is_line_break(*byte)) {
        Some(last) => last + 1,
        // The last space belongs to the next word.
        None if spaces > 1 && spaces < text.len() => spaces - 1,
        None => spaces,
    }
}

const CONTRACTIONS: [&[u8]; 7] = [b"s", b"t", b"re", b"ve", b"m", b"ll", b"d"];

fn run_end(text: &[u8], start: usize, is_part: impl Fn(u8) -> bool) -> usize {
    start + text[start..].iter().take_while(|byte| is_part(**byte)).count()
}

fn is_line_break(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b'\t'..=b'\r' | b' ')
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

    use super::*;
    use crate::tokenization::test_tokenizer::{qwen_tokenizer, small_tokenizer_json, tokenizer_from};
    use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
    use serde_json::{Value, json};

    const PARTS: [&str; 39] = [
        "the",
        "yes",
        " the",
        "The",
        "THE",
        "er",
        "'s",
        "'S",
        "'",
        "'ll",
        "'rE",
        "'t",
        " ",
        "  ",
        "\t",
        "\n",
        "\r\n",
        "\u{b}",
        "\u{c}",
        "\0",
        "\u{1c}",
        "\u{7f}",
        "?",
        " <",
        "_",
        "12",
        "4567",
        "\u{e9}",
        "<think>",
        "x",
        " x a",
        " word then",
        "e\u{301}",
        "\u{301}",
        "서울",
        "😀",
        "\u{212a}",
        "\u{17f}",
        "\u{a0}",
    ];

    fn tokenizers() -> Vec<Tokenizer> {
        let small = small_tokenizer_json(&["t h", "th e", "Ġ the", "Ċ Ċ", "? Ċ", "Ġ Ġ", "1 2", "12 4"]);
        let mut groups = small.clone();
        groups["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = PATTERNS[1].into();
        // No merges end in this token, and there is no character for a line break.
        let vocabulary = groups["model"]["vocab"].as_object_mut().unwrap();
        let unused = vocabulary.remove("Ċ").unwrap();
        vocabulary.insert("yes".to_owned(), unused);
        groups["model"]["merges"] = json!(["t h", "th e", "1 2", "12 4"]);
        let mut direct = groups.clone();
        direct["model"]["ignore_merges"] = true.into();
        let jsons = [small, groups, direct];
        jsons.iter().map(tokenizer_from).chain(qwen_tokenizer()).collect()
    }

    #[test]
    fn tokens_equal_the_library_s_on_random_texts_or_there_are_none() {
        let seed = rand::rng().random();
        let mut rng = StdRng::seed_from_u64(seed);
        for mut tokenizer in tokenizers() {
            tokenizer.with_truncation(None).unwrap();
            let words = ByteWords::from_tokenizer(&tokenizer).unwrap();
            let mut found = 0;
            for _ in 0..10_000 {
                let mut text = String::new();
                for _ in 0..rng.random_range(0..12) {
                    if rng.random_bool(0.3) {
                        text.push(char::from(rng.random_range(0..128u8)));
                    } else {
                        text.push_str(PARTS.choose(&mut rng).unwrap());
                    }
                }
                let Some(tokens) = words.encode_plain(&tokenizer, &text) else { continue };
                let expected = TextTokens::from_library(&tokenizer, &text).unwrap();
                assert_eq!(tokens.ids, expected.ids, "{text:?} {seed}");
                assert_eq!(tokens.offsets, expected.offsets, "{text:?} {seed}");
                found += usize::from(!text.is_empty());
            }
            assert!(found > 2000, "{found}");
        }
    }

    #[test]
    fn other_tokenizers_are_left_to_the_library() {
        let plain = small_tokenizer_json(&[]);
        for (pointer, value) in [
            ("/normalizer", json!({ "type": "Lowercase" })),
            ("/pre_tokenizer", Value::Null),
            ("/pre_tokenizer/pretokenizers/0/pattern/Regex", json!(r"\s+")),
            ("/pre_tokenizer/pretokenizers/0/behavior", json!("Removed")),
            ("/pre_tokenizer/pretokenizers/1/add_prefix_space", json!(true)),
            ("/pre_tokenizer/pretokenizers/1/use_regex", json!(true)),
            ("/post_processor/trim_offsets", json!(true)),
            ("/model/dropout", json!(0.5)),
            ("/added_tokens/0/content", json!("é")),
        ] {
            let mut changed = plain.clone();
            match changed.pointer_mut(pointer) {
                Some(part) => *part = value,
                None => changed["model"]["dropout"] = value,
            }
            assert!(ByteWords::from_tokenizer(&tokenizer_from(&changed)).is_none(), "{pointer}");
        }
        assert!(ByteWords::from_tokenizer(&tokenizer_from(&plain)).is_some());
    }
}
