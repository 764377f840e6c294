//! Finds places where a text can be divided without changing a token, and the bytes of a long text that need
//! no encoding.
//!
//! Input: a tokenizer, then texts. Output: places in a text. What must hold: if both parts at such a place
//! are encoded separately, their ids together are the ids of the whole text. This is only known for
//! tokenizers that first split texts into words by the rules listed here. For all other tokenizers there are
//! no such places.

use super::TruncationDirection;
use serde_json::Value;
use std::ops::Range;
use tokenizers::{AddedToken, Tokenizer};

/// The number of bytes of a text that the first attempt encodes for each token that may stay.
const BYTES_PER_TOKEN: usize = 8;
/// Texts up to this length, in bytes, are encoded whole, because skipping bytes would gain nothing.
const SHORT: usize = 4096;
/// The factor by which the next attempt is longer if an attempt gave too few tokens. Of a large text, the
/// next one is as long as the tokens of its parts say.
const GROWTH: usize = 3;
/// A text with more bytes is never encoded whole before its beginning, or its end, was. A tokenizer takes up
/// to 750 bytes for each byte.
pub(crate) const LARGE_TEXT: usize = 64 << 10;
/// The bytes at the other end of a large text that are encoded, because the template is next to them.
const OTHER_END: usize = 256;

/// The patterns of Qwen and of Llama 3. In these, a line break ends a word, whatever follows.
pub(super) const PATTERNS: [&str; 2] = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// The places at which a tokenizer splits every text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Borders {
    texts: TextBorders,
    /// Whether it splits after a line break that precedes two ASCII characters, the first of them visible.
    pub(super) lines: bool,
    /// The smallest number of bytes of a text that are encoded.
    least: usize,
    /// The size in bytes from which a text without borders is divided anywhere. 0 for never.
    large: usize,
}

/// The places in a text of a request at which a tokenizer splits it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct TextBorders {
    /// Whether it splits before a space between an ASCII letter or digit and an ASCII letter.
    words: bool,
    /// Whether it splits between two ASCII punctuation marks, and between two ideographs.
    characters: bool,
    /// Whether it splits before a comma or full stop of Chinese or Japanese between two ideographs.
    clauses: bool,
}

/// The bytes of a text that need no encoding.
pub(super) struct SkippedBytes {
    pub(super) range: Range<usize>,
    /// The least number of tokens of the text that must be encoded at the end that is kept: one more than
    /// stay, or it would not be known that the text was cut. With fewer, too many bytes were skipped.
    pub(super) min_tokens: usize,
}

impl Borders {
    pub(super) fn from_tokenizer(tokenizer: &Tokenizer) -> Self {
        let json = |part: Result<Value, serde_json::Error>| part.unwrap_or(Value::Bool(false));
        let normalizer = json(serde_json::to_value(tokenizer.get_normalizer()));
        let splitter = json(serde_json::to_value(tokenizer.get_pre_tokenizer()));
        let splitters = steps(&splitter, "pretokenizers");
        let is_known = steps(&normalizer, "normalizers").into_iter().all(is_local)
            && splitters.iter().all(|step| splits_words(step) || keeps_words_apart(step));
        let added = tokenizer.get_added_tokens_decoder();
        let texts = TextBorders {
            words: is_known
                && splitters.iter().any(|step| splits_words(step))
                && !added.values().any(joins_words),
            characters: is_known
                && splitters.iter().any(|step| step["type"] == "BertPreTokenizer")
                && steps(&normalizer, "normalizers").iter().any(|step| step["handle_chinese_chars"] == true)
                && !added.values().any(joins_characters),
            clauses: is_known
                && splitters.iter().any(|step| is_pattern(step))
                && !added.values().any(has_ideograph),
        };
        Self {
            texts,
            least: SHORT,
            large: LARGE_TEXT,
            lines: is_known
                && splitters.iter().any(|step| is_pattern(step))
                && !added.values().any(|token| token.content.contains('\n')),
        }
    }

    /// The same borders, for texts that are large for a test.
    #[cfg(test)]
    pub(super) fn for_small_texts(self) -> Self {
        Self { least: 1, large: 200, ..self }
    }

    /// The place after the last line break of `text`, a text of the template, at which it can be divided.
    pub(super) fn line(self, text: &str) -> Option<usize> {
        let bytes = text.as_bytes();
        if self.lines {
            (1..bytes.len().saturating_sub(1)).rfind(|at| {
                bytes[at - 1] == b'\n' && bytes[*at].is_ascii_graphic() && bytes[at + 1].is_ascii()
            })
        } else {
            None
        }
    }

    /// Whether a text is too large to be encoded whole if that can be avoided.
    pub(super) fn is_large(self, text: &str) -> bool {
        self.large > 0 && text.len() > self.large
    }

    /// Whether a text of a request is split at this place, which is neither its start nor its last byte.
    pub(super) fn splits_at(self, bytes: &[u8], at: usize) -> bool {
        self.texts.split_at(bytes, at)
    }

    /// The number of tokens of a text, of whose parts `count` counts one after the other, which takes little
    /// memory. Where a part does not end at a border, the number may be wrong by a few tokens.
    pub(super) fn count_by_parts<E>(
        self,
        text: &str,
        count: impl Fn(&str) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let (mut total, mut rest) = (0, text);
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(self.part_length(rest));
            total += count(part)?;
            rest = behind;
        }
        Ok(total)
    }

    /// The length of the first part of a text whose parts are counted one by one. It ends at a border if
    /// there is one.
    fn part_length(self, text: &str) -> usize {
        if !self.is_large(text) {
            return text.len();
        }
        let border = (self.large / 2..self.large).rfind(|at| self.texts.split_at(text.as_bytes(), *at));
        border.unwrap_or_else(|| text.floor_char_boundary(self.large))
    }

    /// The bytes of a text that the first attempt keeps if at most `tokens` of its tokens stay.
    pub(super) fn first_kept(self, tokens: usize) -> usize {
        tokens.saturating_mul(BYTES_PER_TOKEN).max(self.least)
    }

    /// The bytes of a text that the next attempt keeps, after `kept` bytes had `missing` tokens too few.
    ///
    /// A text may have few tokens in its first bytes and very many in the next ones. So the tokens of a large
    /// text are counted in parts, and no more than one part too many is encoded at once.
    pub(super) fn grow_kept<E>(
        self,
        text: &str,
        direction: TruncationDirection,
        kept: usize,
        missing: usize,
        count_tokens: impl Fn(&str) -> Result<usize, E>,
    ) -> Result<usize, E> {
        if !self.is_large(text) {
            return Ok(kept.saturating_mul(GROWTH));
        }
        let (mut grown, mut missing) = (kept, missing.max(1));
        while missing > 0 && grown < text.len() {
            let rest = match direction {
                TruncationDirection::Right => text.ceil_char_boundary(grown)..text.len(),
                TruncationDirection::Left => 0..text.floor_char_boundary(text.len() - grown),
            };
            let length = rest.len().min(self.large);
            let part = match direction {
                TruncationDirection::Right => rest.start..text.ceil_char_boundary(rest.start + length),
                TruncationDirection::Left => text.floor_char_boundary(rest.end - length)..rest.end,
            };
            missing = missing.saturating_sub(count_tokens(&text[part.clone()])?);
            grown = match direction {
                TruncationDirection::Right => part.end,
                TruncationDirection::Left => text.len() - part.start,
            };
        }
        Ok(grown)
    }

    /// The bytes of a text that need no encoding if at most `tokens` of its tokens stay, at the end that
    /// `direction` keeps, where at least `kept` bytes stay. `None` if all bytes are needed. The first and the
    /// last word are always needed, because other text is next to them.
    ///
    /// A large text without borders near by is divided anywhere. The tokens next to the division may be other
    /// ones than in the whole text, so twice as many tokens are then needed.
    pub(super) fn skipped(
        self,
        text: &str,
        tokens: usize,
        direction: TruncationDirection,
        kept: usize,
    ) -> Option<SkippedBytes> {
        if kept >= text.len() {
            return None;
        }
        let (first, last) = match direction {
            TruncationDirection::Right => (kept, text.len() - 1),
            TruncationDirection::Left => (1, text.len() - kept),
        };
        let bytes = text.as_bytes();
        // A border that is far away would not bound the bytes that are encoded.
        let reach = if self.is_large(text) { self.large } else { text.len() };
        let start = (first..last.min(first + reach)).find(|at| self.texts.split_at(bytes, *at));
        let end = start.and_then(|start| {
            (last.saturating_sub(reach).max(start + 1)..last).rfind(|at| self.texts.split_at(bytes, *at))
        });
        if let (Some(start), Some(end)) = (start, end) {
            return Some(SkippedBytes { range: start..end, min_tokens: tokens.saturating_add(1) });
        }
        if !self.is_large(text) {
            return None;
        }
        let range = match direction {
            TruncationDirection::Right => kept..text.len().saturating_sub(OTHER_END),
            TruncationDirection::Left => OTHER_END..text.len() - kept,
        };
        let range = text.ceil_char_boundary(range.start)..text.floor_char_boundary(range.end);
        let min_tokens = tokens.saturating_mul(2).saturating_add(1);
        if range.is_empty() { None } else { Some(SkippedBytes { range, min_tokens }) }
    }
}

impl TextBorders {
    /// Whether every text is split at this place, which is neither its start nor its last byte.
    fn split_at(self, bytes: &[u8], at: usize) -> bool {
        let (before, next) = (bytes[at - 1], bytes[at]);
        let is_word = self.words
            && before.is_ascii_alphanumeric()
            && next == b' '
            && bytes[at + 1].is_ascii_alphabetic();
        let is_character = self.characters
            && ((before.is_ascii_punctuation() && next.is_ascii_punctuation())
                || (is_ideograph_before(bytes, at) && is_ideograph(next)));
        let is_clause = self.clauses
            && bytes.get(at..at + 3).is_some_and(|mark| CLAUSE_ENDS.contains(&mark))
            && is_ideograph_before(bytes, at)
            && bytes.get(at + 3).copied().is_some_and(is_ideograph);
        is_word || is_character || is_clause
    }
}

/// The commas and the full stop of Chinese and Japanese, in UTF-8.
const CLAUSE_ENDS: [&[u8]; 3] = ["，".as_bytes(), "、".as_bytes(), "。".as_bytes()];

/// Whether a byte begins a character from U+5000 to U+9FFF. These are ideographs, and no normalizer changes
/// them.
fn is_ideograph(byte: u8) -> bool {
    (0xe5..=0xe9).contains(&byte)
}

fn is_ideograph_before(bytes: &[u8], at: usize) -> bool {
    at.checked_sub(3).is_some_and(|start| is_ideograph(bytes[start]))
}

/// Whether an added token holds two characters between which a text may be divided.
fn joins_characters(token: &AddedToken) -> bool {
    token.content.as_bytes().windows(2).any(|pair| pair.iter().all(u8::is_ascii_punctuation))
        || has_ideograph(token)
}

fn has_ideograph(token: &AddedToken) -> bool {
    token.content.bytes().any(is_ideograph)
}

/// The steps of a normalizer or pre-tokenizer; empty if there is none.
fn steps<'a>(part: &'a Value, list: &str) -> Vec<&'a Value> {
    match part {
        Value::Null => Vec::new(),
        part if part["type"] == "Sequence" => {
            part[list].as_array().into_iter().flatten().flat_map(|step| steps(step, list)).collect()
        }
        part => vec![part],
    }
}

/// Whether a normalizer treats the two sides of a border independently and keeps the border's three
/// characters, except for their case. It must not add or remove text at the beginning.
fn is_local(step: &Value) -> bool {
    match step["type"].as_str().unwrap_or_default() {
        "NFC" | "NFD" | "NFKC" | "NFKD" | "Lowercase" | "StripAccents" | "BertNormalizer" | "Nmt"
        | "Precompiled" => true,
        "Strip" => step["strip_left"] == false,
        "Replace" => {
            let pattern = &step["pattern"];
            pattern["Regex"] == " {2,}"
                || pattern["String"].as_str().is_some_and(|text| !text.is_ascii() && !text.contains(' '))
        }
        _ => false,
    }
}

/// Whether a pre-tokenizer splits at every border between words.
fn splits_words(step: &Value) -> bool {
    match step["type"].as_str().unwrap_or_default() {
        "BertPreTokenizer" | "Whitespace" | "WhitespaceSplit" => true,
        "Metaspace" => step["split"] == true,
        "ByteLevel" => step["use_regex"] == true,
        _ => is_pattern(step),
    }
}

/// Whether a pre-tokenizer only splits its pieces further, each independently.
fn keeps_words_apart(step: &Value) -> bool {
    matches!(step["type"].as_str(), Some("ByteLevel" | "Digits" | "Punctuation" | "Metaspace"))
}

fn is_pattern(step: &Value) -> bool {
    let pattern = step["pattern"]["Regex"].as_str();
    step["type"] == "Split"
        && step["behavior"] == "Isolated"
        && step["invert"] == false
        && pattern.is_some_and(|pattern| PATTERNS.contains(&pattern))
}

/// Whether an added token can cover both sides of a border between words, or take its space.
fn joins_words(token: &AddedToken) -> bool {
    let content = token.content.as_bytes();
    let has_border = content.windows(2).any(|pair| pair[0].is_ascii_alphanumeric() && pair[1] == b' ');
    has_border
        || content.starts_with(b" ")
        || (token.rstrip && content.last().is_some_and(u8::is_ascii_alphanumeric))
        || (token.lstrip && content.first().is_some_and(u8::is_ascii_alphabetic))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

    use super::*;
    use crate::{
        families::QWEN3_RERANKER,
        templates::{MessageStyle, PromptTemplate},
        tokenization::{
            Encoder, EncoderOptions, Input, PairText, PromptEncoder, SharedQuery, TextEncoder, TextOptions,
            TokenLimits, Truncation,
            test_tokenizer::{small_tokenizer_json, tokenizer_from},
        },
    };
    use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
    use serde_json::json;

    /// Words whose tokens depend on their neighbours in one tokenizer or another.
    const WORDS: [&str; 28] = [
        "the",
        "other",
        "in",
        "er",
        "x",
        "7",
        "2024",
        "it's",
        "end.",
        "(the",
        "  ",
        " ",
        "\n",
        "\n\n",
        "\t",
        "?\n",
        "é",
        "e\u{301}",
        "서울",
        "中文",
        "😀",
        "<|im_end|>",
        "\u{2581}a",
        "A-B",
        "...",
        "?!\u{301}",
        "火星，红色。红色",
        "火星是红色",
    ];

    fn text(rng: &mut StdRng, words: usize) -> String {
        let mut text = String::new();
        for _ in 0..words {
            text.push_str(WORDS.choose(rng).unwrap());
            if rng.random_bool(0.8) {
                text.push(' ');
            }
        }
        text
    }

    /// BERT with an added token as its own ones, in which no two punctuation marks are neighbours.
    const BERT_ALONE: &str = "BERT with [CLS]";

    /// Named tokenizers that split texts into words in each of the known ways.
    fn tokenizers() -> Vec<(&'static str, Tokenizer)> {
        let split = |pattern: &str| json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false });
        let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
        let patterns = PATTERNS.map(|pattern| {
            (
                json!({ "type": "NFC" }),
                json!({ "type": "Sequence", "pretokenizers": [split(pattern), bytes] }),
            )
        });
        let gpt2 =
            json!({ "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true });
        let bert = json!({
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true
        });
        let xlmr = json!({ "type": "Sequence", "normalizers": [
            { "type": "Nmt" }, { "type": "NFKC" }, { "type": "Strip", "strip_left": false, "strip_right": true },
            { "type": "Replace", "pattern": { "Regex": " {2,}" }, "content": " " }
        ] });
        let mark = json!({ "type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true });
        let marks = json!({ "type": "Sequence", "pretokenizers": [{ "type": "WhitespaceSplit" }, mark] });
        let [qwen, llama] = patterns;
        let bert_pieces = (bert.clone(), json!({ "type": "BertPreTokenizer" }));
        let kinds = [
            ("Qwen", qwen),
            ("Llama 3", llama),
            ("GPT-2", (Value::Null, gpt2)),
            ("BERT", (bert, json!({ "type": "BertPreTokenizer" }))),
            (BERT_ALONE, bert_pieces),
            ("XLM-R", (xlmr, marks)),
            ("Metaspace", (Value::Null, mark)),
        ];
        let tokenizer = |(name, (normalizer, splitter)): (&'static str, (Value, Value))| {
            let mut json = small_tokenizer_json(&["t h", "th e", "i n", "e r", "Ġ the", "Ġ in"]);
            json["normalizer"] = normalizer;
            json["pre_tokenizer"] = splitter;
            json["truncation"] = Value::Null;
            if name == BERT_ALONE {
                let mut token = json["added_tokens"][0].take();
                token["content"] = json!("[CLS]");
                json["added_tokens"] = json!([token]);
            }
            (name, tokenizer_from(&json))
        };
        kinds.into_iter().map(tokenizer).collect()
    }

    #[test]
    fn a_text_may_be_cut_at_its_borders() {
        let mut rng = StdRng::from_os_rng();
        for (name, tokenizer) in tokenizers() {
            let borders = Borders { least: 1, ..Borders::from_tokenizer(&tokenizer) };
            assert!(borders.texts.words, "{name}");
            assert_eq!(borders.lines, ["Qwen", "Llama 3"].contains(&name), "{name}");
            let ids = |text: &str| tokenizer.encode(text, false).unwrap().get_ids().to_vec();
            let mut cuts = 0;
            for _ in 0..300 {
                let words = rng.random_range(1..30);
                let text = text(&mut rng, words);
                let whole = ids(&text);
                for direction in [TruncationDirection::Left, TruncationDirection::Right] {
                    // Both ends of a gap are borders.
                    if let Some(SkippedBytes { range, .. }) =
                        borders.skipped(&text, 1, direction, borders.first_kept(1))
                    {
                        for at in [range.start, range.end] {
                            let parts = [ids(&text[..at]), ids(&text[at..])].concat();
                            assert_eq!(parts, whole, "{name}: {:?} {:?}", &text[..at], &text[at..]);
                            cuts += 1;
                        }
                    }
                }
                let line = format!("{text}\n<Document>: ");
                if let Some(at) = borders.line(&line) {
                    assert!(line[at..].starts_with("<Document>: "));
                    let behind = format!("<Document>: {text}");
                    let whole = ids(&format!("{text}\n{behind}"));
                    assert_eq!([ids(&line[..at]), ids(&behind)].concat(), whole, "{name}: {text:?}");
                    cuts += 1;
                }
            }
            assert!(cuts > 100, "{name}: {cuts}");
        }
    }

    /// Before, these texts were encoded whole: up to 750 bytes of memory for each byte.
    #[test]
    fn a_large_text_is_never_encoded_whole_where_few_of_its_tokens_stay() {
        let texts =
            [".", "ﷺ", "火", "a", "\u{301}", "😀", "火星，"].map(|text| text.repeat(2_000_000 / text.len()));
        for (name, tokenizer) in tokenizers() {
            let borders = Borders::from_tokenizer(&tokenizer);
            for text in &texts {
                for direction in [TruncationDirection::Left, TruncationDirection::Right] {
                    for attempt in 0..3 {
                        let kept = 4096 << (2 * attempt);
                        let SkippedBytes { range, min_tokens } =
                            borders.skipped(text, 512, direction, kept).unwrap();
                        assert!(text.is_char_boundary(range.start) && text.is_char_boundary(range.end));
                        let encoded = text.len() - range.len();
                        assert!(encoded < kept + 300, "{name}: {encoded}");
                        assert!([513, 1025].contains(&min_tokens));
                    }
                }
            }
        }
        let bert = tokenizers().into_iter().find(|(name, _)| *name == BERT_ALONE).unwrap().1;
        let qwen = tokenizers().into_iter().find(|(name, _)| *name == "Qwen").unwrap().1;
        for (tokenizer, text) in [(&bert, "."), (&bert, "火"), (&qwen, "火星，")] {
            let text = text.repeat(100_000);
            let borders = Borders::from_tokenizer(tokenizer);
            let skipped = borders.skipped(&text, 512, TruncationDirection::Left, 4096).unwrap();
            assert_eq!(skipped.min_tokens, 513, "these are borders of the tokenizer");
        }
    }

    /// Before, three times as many bytes were encoded at once as in the attempt before, however many tokens
    /// the further ones had, and everything up to the next border, however far away it was.
    #[test]
    fn hardly_more_of_a_large_text_is_encoded_than_has_the_needed_tokens() {
        let count = |part: &str| Ok::<_, ()>(part.matches('x').count());
        let (sparse, dense) = ("\u{301}".repeat(300_000), "x".repeat(1_400_000));
        let far = format!("{dense} a b{dense}");
        for (name, tokenizer) in tokenizers() {
            let borders = Borders::from_tokenizer(&tokenizer);
            for (text, direction) in [
                (format!("{sparse}{dense}"), TruncationDirection::Right),
                (format!("{dense}{sparse}"), TruncationDirection::Left),
            ] {
                let kept = borders.grow_kept(&text, direction, 4096, 1024, count).unwrap();
                assert!((sparse.len()..sparse.len() + LARGE_TEXT + 1024).contains(&kept), "{name}: {kept}");
                assert_eq!(borders.grow_kept(&text, direction, 4096, usize::MAX, count), Ok(text.len()));
            }
            for direction in [TruncationDirection::Left, TruncationDirection::Right] {
                let SkippedBytes { range, .. } = borders.skipped(&far, 512, direction, 4096).unwrap();
                assert!(far.len() - range.len() < 4096 + LARGE_TEXT, "{name}: {range:?}");
            }
        }
    }

    #[test]
    fn of_other_tokenizers_no_border_is_known() {
        let borders = |change: &dyn Fn(&mut Value)| {
            let mut json = small_tokenizer_json(&["t h"]);
            json["normalizer"] = json!({ "type": "NFC" });
            json["pre_tokenizer"] = json!({ "type": "WhitespaceSplit" });
            change(&mut json);
            Borders::from_tokenizer(&tokenizer_from(&json)).texts.words
        };
        assert!(borders(&|_| ()));
        let pattern = json!({
            "type": "Split", "pattern": { "Regex": "\\w+ \\w+" }, "behavior": "Isolated", "invert": false
        });
        for splitter in [
            Value::Null,
            pattern.clone(),
            json!({ "type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "first", "split": false }),
            json!({ "type": "Sequence", "pretokenizers": [pattern, { "type": "WhitespaceSplit" }] }),
        ] {
            assert!(!borders(&|json| json["pre_tokenizer"] = splitter.clone()), "{splitter}");
        }
        for normalizer in [
            json!({ "type": "Prepend", "prepend": "\u{2581}" }),
            json!({ "type": "Strip", "strip_left": true, "strip_right": false }),
            json!({ "type": "Replace", "pattern": { "String": " " }, "content": "\u{2581}" }),
        ] {
            assert!(!borders(&|json| json["normalizer"] = normalizer.clone()), "{normalizer}");
        }
        for (content, setting) in [("a b", ""), (" b", ""), ("the", "rstrip"), ("the", "lstrip")] {
            let change = |json: &mut Value| {
                json["added_tokens"][0]["content"] = json!(content);
                json["added_tokens"][0]["normalized"] = json!(false);
                if !setting.is_empty() {
                    json["added_tokens"][0][setting] = json!(true);
                }
            };
            assert!(!borders(&change), "{content:?} {setting}");
        }
    }

    const CHAT: &str = "{% for m in messages %}{% if m.role == 'document' %}the {{ m.content | trim }}\n\
        {% endif %}{% endfor %}\n{% for m in messages %}{% if m.role == 'query' %}?{{ m.content }}!{% endif %}{% endfor %}";

    /// In this tokenizer an ideograph has no token, so the words at both ends, which are always encoded, may
    /// have none.
    #[test]
    fn a_cut_text_is_known_as_cut_if_the_words_at_its_ends_have_no_token() {
        let tokenizer = tokenizers().into_iter().find(|(name, _)| *name == "BERT").unwrap().1;
        let template = PromptTemplate::from_chat_template(CHAT, &MessageStyle::plain()).unwrap();
        let options = EncoderOptions { max_input_length: 200, ..EncoderOptions::default() };
        let mut encoder = PromptEncoder::new(tokenizer, &template, options).unwrap();
        encoder.borders.least = 1;
        let encoder = Encoder::from(encoder);
        let document = "星星星 the in the in the in 星星星";
        let text = PairText { instruction: None, query: "the", document };
        for direction in [TruncationDirection::Left, TruncationDirection::Right] {
            let limits = TokenLimits { document: Some(1), ..TokenLimits::NONE };
            let truncation = Truncation { truncate: true, direction, limits };
            let encoded = encoder.encode(&Input::Pair(text), truncation, None).unwrap();
            assert!(encoded.truncated > 0, "{direction:?} {encoded:?}");
        }
    }

    /// Every input has the same ids as when all of its bytes are encoded, whatever is skipped and shared.
    #[test]
    fn what_is_left_out_and_what_is_shared_changes_no_id() {
        let mut rng = StdRng::from_os_rng();
        let templates = [
            PromptTemplate::builtin(&QWEN3_RERANKER),
            PromptTemplate::from_chat_template(CHAT, &MessageStyle::plain()).unwrap(),
        ];
        let mut left_out = 0;
        for (name, tokenizer) in tokenizers() {
            for max in [200, 201, 240] {
                let mut encoders: Vec<(Encoder, Encoder)> = Vec::new();
                // Without added tokens, the control tokens of a template are long texts.
                for template in templates.iter().filter(|_| name != BERT_ALONE) {
                    let encoder = || {
                        let options = EncoderOptions { max_input_length: max, ..EncoderOptions::default() };
                        PromptEncoder::new(tokenizer.clone(), template, options)
                    };
                    let (Ok(mut fast), Ok(mut slow)) = (encoder(), encoder()) else { continue };
                    fast.borders.least = 1;
                    slow.borders = Borders::default();
                    encoders.push((fast.into(), slow.into()));
                }
                let encoder = || {
                    let options = TextOptions {
                        max_input_length: max - 180,
                        vocabulary: 999,
                        ..TextOptions::default()
                    };
                    TextEncoder::new(tokenizer.clone(), options).unwrap()
                };
                let (mut fast, mut slow) = (encoder(), encoder());
                fast.borders.least = 1;
                slow.borders = Borders::default();
                encoders.push((fast.into(), slow.into()));
                for (fast, slow) in &encoders {
                    for round in 0..12 {
                        let lengths = [rng.random_range(1..60), rng.random_range(1..200)];
                        let query = text(&mut rng, lengths[0]);
                        let limit = |rng: &mut StdRng| rng.random_bool(0.2).then(|| rng.random_range(1..30));
                        let limits =
                            TokenLimits { query: limit(&mut rng), document: limit(&mut rng), prompt: None };
                        let direction = [TruncationDirection::Left, TruncationDirection::Right][round % 2];
                        let truncation = Truncation { truncate: true, direction, limits };
                        let shared = SharedQuery::default();
                        for _ in 0..3 {
                            let document = text(&mut rng, lengths[1]);
                            let pair = Input::Pair(PairText {
                                instruction: None,
                                query: &query,
                                document: &document,
                            });
                            let single = Input::Text { prompt: "the in ", text: &document };
                            let wanted = slow.encode(&pair, truncation, None).unwrap();
                            for shared in [None, Some(&shared)] {
                                let found = fast.encode(&pair, truncation, shared).unwrap();
                                assert_eq!(
                                    (&found.ids, found.reusable, found.truncated > 0),
                                    (&wanted.ids, wanted.reusable, wanted.truncated > 0),
                                    "{name} {truncation:?}: {query:?} {document:?}"
                                );
                                left_out += usize::from(found.truncated < wanted.truncated);
                            }
                            if fast.takes_single_texts() {
                                let found = fast.encode(&single, truncation, None).unwrap();
                                let wanted = slow.encode(&single, truncation, None).unwrap();
                                assert_eq!(found.ids, wanted.ids, "{name} {truncation:?}: {document:?}");
                            }
                        }
                    }
                }
            }
        }
        assert!(left_out > 100, "{left_out}");
    }
}
