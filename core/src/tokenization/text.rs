//! Encodes the inputs of embedding models and classifiers: a text after a prompt, a pair, or ids.
//!
//! Input: the tokenizer, then the texts of requests. Output: [`Encoded`]. What must hold: ordinary texts get
//! the ids that `transformers` gives them, including the special tokens of the tokenizer's post-processor;
//! text that spells a special token stays text; if an input is too long, its texts are cut, but never the
//! prompt or the special tokens.

use super::{
    Encoded, EncoderError, TokenLimits, Truncation, TruncationDirection,
    ascii::AsciiWords,
    borders::{Borders, SkippedBytes},
    byte_words::ByteWords,
    frame::without_added_tokens,
    options::{BareTokens, MarkedLayout, TextOptions},
    stretch::Needed,
    tokens::{Owner, Sequence, Tokens, failed, is_special},
};
use crate::error::Error;
use std::collections::HashMap;
use tokenizers::{Encoding, PostProcessorWrapper, Tokenizer};

// They start and end alike, so that a tokenizer which only reads the ends fails the check.
pub(super) const TEXTS: [&str; 2] = ["What is the capital of China?", "What is gravity, and where is it?"];

/// Encodes texts. It has no threads; see `Tokenization`.
pub struct TextEncoder {
    /// The model's tokenizer, with all of its tokens.
    full: Tokenizer,
    /// The model's tokenizer, in which special tokens in a text are text.
    pub(super) plain: Tokenizer,
    pub(super) options: TextOptions,
    /// The text of each special token, by its id.
    pub(super) special: HashMap<u32, String>,
    /// The special tokens that the post-processor puts before and after a text.
    pub(super) frame: [Vec<u32>; 2],
    pub(super) borders: Borders,
    /// For tokenizers whose plain texts need no library.
    pub(super) ascii: Option<AsciiWords>,
    /// The same for tokenizers of another kind.
    pub(super) words: Option<ByteWords>,
}

impl BareTokens {
    /// The tokens that stay of a text's tokens.
    fn strip_tokens(self, encoded: Encoded) -> Encoded {
        let mut ids = encoded.ids;
        ids.retain(|id| Some(*id) != self.unknown);
        if ids.is_empty() {
            ids.push(self.blank);
        }
        Encoded { ids, reusable: 0, ..encoded }
    }
}

impl TextEncoder {
    /// Prepares to encode texts. Removes truncation and padding from `tokenizer`.
    ///
    /// # Errors
    ///
    /// [`EncoderError::Tokenizer`] if the tokenizer does not accept that.
    pub fn new(mut tokenizer: Tokenizer, options: TextOptions) -> Result<Self, EncoderError> {
        tokenizer.with_truncation(None).map_err(EncoderError::tokenizer)?;
        tokenizer.with_padding(None);
        if options.bare.is_some() {
            tokenizer.with_post_processor(None::<PostProcessorWrapper>);
        }
        let mut plain = match &options.marked {
            // Its texts follow tokens that many tokenizers do not call special.
            Some(MarkedLayout::Pointer(_)) if !options.parse_special_tokens => {
                without_added_tokens(&tokenizer)?
            }
            _ => tokenizer.clone(),
        };
        plain.set_encode_special_tokens(!options.parse_special_tokens);
        let added = tokenizer.get_added_tokens_decoder();
        let special = added.into_iter().filter(|(_, token)| token.special);
        let special = special.map(|(id, token)| (id, token.content)).collect();
        let borders = Borders::from_tokenizer(&plain);
        let ascii = AsciiWords::from_tokenizer(&plain);
        let words = ByteWords::from_tokenizer(&plain);
        let frame = special_tokens(&plain)?;
        Ok(Self { full: tokenizer, plain, options, special, frame, borders, ascii, words })
    }

    /// Encodes some fixed texts after `prompt` as a test.
    ///
    /// # Errors
    ///
    /// [`EncoderError`] if different texts get the same ids, or if the longest input leaves no room for a
    /// text.
    pub fn self_check(&self, prompt: &str) -> Result<(), EncoderError> {
        let [first, second] = TEXTS.map(|text| {
            self.tokens_of_text([prompt, text], usize::MAX, TruncationDirection::Right)
                .map_err(EncoderError::tokenizer)
        });
        let (first, second) = (first?, second?);
        if first.ids == second.ids {
            let message = "the tokenizer (tokenizer.json) reads two different texts alike, so their vectors or labels \
                           would mean nothing: check that it belongs to the model";
            return Err(EncoderError::Refused(message.to_owned()));
        }
        let (frame, max) = (first.count(Owner::Frame), self.options.max_input_length);
        if frame >= max {
            return Err(EncoderError::NoRoomForText { frame, max });
        }
        self.check_late_prompts()
    }

    /// The ids of a text after a prompt, encoded as one string, with the tokenizer's special tokens.
    ///
    /// # Errors
    ///
    /// [`Error::TooLong`] if the input is too long and may not be truncated; [`Error::Validation`] if the
    /// prompt alone is too long; [`Error::Tokenizer`] if the tokenizer fails.
    pub fn encode_text(&self, prompt: &str, text: &str, truncation: Truncation) -> Result<Encoded, Error> {
        // A request's own limits only apply to pairs.
        let truncation = Truncation { limits: TokenLimits::NONE, ..truncation };
        self.encode_limited([prompt, text], truncation)
    }

    pub(super) fn encode_limited(&self, texts: [&str; 2], truncation: Truncation) -> Result<Encoded, Error> {
        let needed = Needed::new(truncation, self.options.max_input_length);
        let [prompt, text] = texts;
        let short = self.cut_characters(text, truncation)?;
        let tokens = self.tokens_of_text([prompt, short], needed.document, truncation.direction)?;
        let encoded = self.cut_document(&tokens, truncation)?;
        Ok(match self.options.bare {
            None => encoded,
            Some(bare) => {
                let is_cut = usize::from(short.len() < text.len());
                Encoded { truncated: encoded.truncated.max(is_cut), ..bare.strip_tokens(encoded) }
            }
        })
    }

    /// Cuts a text to the most characters, if the model has such a limit.
    fn cut_characters<'t>(&self, text: &'t str, truncation: Truncation) -> Result<&'t str, Error> {
        let per_token = self.options.bare.and_then(|bare| bare.characters_per_token);
        let Some(max) = per_token.map(|count| count.saturating_mul(self.options.max_input_length)) else {
            return Ok(text);
        };
        // A character has a byte at least.
        let excess = if text.len() > max { text.chars().count().saturating_sub(max) } else { 0 };
        if excess == 0 {
            return Ok(text);
        }
        if !truncation.truncate {
            return Err(Error::TooManyCharacters { got: max + excess, max });
        }
        let is_right = truncation.direction == TruncationDirection::Right;
        let cut = text.char_indices().nth(if is_right { max } else { excess });
        let (kept, rest) = text.split_at(cut.map_or(text.len(), |(at, _)| at));
        Ok(if is_right { kept } else { rest })
    }

    /// Ids that the client sent, used unchanged, without a prompt and special tokens.
    pub(crate) fn encode_ids(&self, ids: &[u32], truncation: Truncation) -> Result<Encoded, Error> {
        self.check_ids(ids)?;
        let owners = vec![Owner::Document; ids.len()];
        let tokens = Tokens { ids: ids.to_vec(), owners, ..Tokens::default() };
        let excess = tokens.excess(self.options.max_input_length, truncation)?;
        Ok(tokens.cut(0, excess, truncation.direction))
    }

    /// Ids that the client sent, after a prompt and between the special tokens that surround a text. Special
    /// tokens among `ids` are removed, because clients that tokenize themselves send these around their text.
    pub(crate) fn encode_prompted_ids(
        &self,
        prompt: &str,
        ids: &[u32],
        truncation: Truncation,
    ) -> Result<Encoded, Error> {
        self.check_ids(ids)?;
        let [before, after] = &self.frame;
        let prompt = self.encode_sequence(prompt, 0)?;
        let body = ids.iter().filter(|id| !self.special.contains_key(id));
        let before = before.iter().chain(prompt.get_ids()).map(|id| (*id, Owner::Frame));
        let after = after.iter().map(|id| (*id, Owner::Frame));
        let (ids, owners) = before.chain(body.map(|id| (*id, Owner::Document))).chain(after).unzip();
        let tokens = self.with_last_token(Tokens { ids, owners, ..Tokens::default() });
        let encoded = self.cut_document(&tokens, truncation)?;
        Ok(match self.options.bare {
            None => encoded,
            Some(bare) => bare.strip_tokens(encoded),
        })
    }

    fn check_ids(&self, ids: &[u32]) -> Result<(), Error> {
        let limit = self.options.vocabulary;
        if ids.is_empty() {
            return Err(Error::EmptyInput { field: "inputs" });
        }
        match ids.iter().find(|id| **id as usize >= limit) {
            None => Ok(()),
            Some(id) => Err(Error::Validation(format!(
                "`inputs` holds the token id {id}, but the ids of this model are below {limit}"
            ))),
        }
    }

    /// The model's tokenizer, with all of its tokens.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.full
    }

    /// The tokens of a prompt and the text after it. At most `needed` tokens of the text will stay.
    pub(super) fn tokens_of_text(
        &self,
        [prompt, text]: [&str; 2],
        needed: usize,
        direction: TruncationDirection,
    ) -> Result<Tokens, Error> {
        let Sequence { encoding, missing, before_gap, .. } =
            self.sequence([prompt, text], 0, needed, direction)?;
        let encoding = self.plain.post_process(encoding, None, true).map_err(failed)?;
        let specials = (0..encoding.len()).take_while(|index| is_special(&encoding, *index)).count();
        let tokens = self.tokens(&encoding, |index| {
            // Behind skipped bytes, offsets do not say where a token is.
            let is_in_prompt = index < specials + before_gap
                && (1..=prompt.len()).contains(&encoding.get_offsets()[index].1);
            let is_frame = is_special(&encoding, index) || is_in_prompt;
            if is_frame { Owner::Frame } else { Owner::Document }
        });
        Ok(self.with_last_token(Tokens { missing, ..tokens }))
    }

    /// Adds the token that texts of this model end with, if it has one, and it is not there.
    fn with_last_token(&self, mut tokens: Tokens) -> Tokens {
        if let Some(last) = self.options.last_token.filter(|last| tokens.ids.last() != Some(last)) {
            tokens.ids.push(last);
            tokens.owners.push(Owner::Frame);
        }
        tokens
    }

    /// Encodes a text after a prompt as the first (0) or second (1) sequence of an input. At most `needed`
    /// tokens of the text will stay, so bytes whose tokens would be cut anyway are skipped.
    pub(super) fn sequence(
        &self,
        [prompt, text]: [&str; 2],
        place: u32,
        needed: usize,
        direction: TruncationDirection,
    ) -> Result<Sequence, Error> {
        // To know how long a large text is, it is not encoded whole.
        let is_counted = needed == usize::MAX && self.borders.is_large(text);
        let needed = if is_counted { self.options.max_input_length.saturating_add(1) } else { needed };
        let mut kept_bytes = self.borders.first_kept(needed);
        loop {
            let Some(SkippedBytes { range, min_tokens }) =
                self.borders.skipped(text, needed, direction, kept_bytes)
            else {
                let encoding = self.encode_sequence(&[prompt, text].concat(), place)?;
                return Ok(Sequence::whole(encoding));
            };
            let mut before = self.encode_sequence(&[prompt, &text[..range.start]].concat(), place)?;
            let behind = self.encode_sequence(&text[range.end..], place)?;
            let kept = match direction {
                TruncationDirection::Right => {
                    before.get_offsets().iter().filter(|(_, end)| *end > prompt.len()).count()
                }
                TruncationDirection::Left => behind.len(),
            };
            if kept >= min_tokens {
                let in_prompt = before.get_offsets().iter().filter(|(_, end)| *end <= prompt.len()).count();
                let before_gap = before.len();
                before.merge_with(behind, true);
                let missing = if is_counted {
                    (in_prompt + self.count_tokens(text)?).saturating_sub(before.len())
                } else {
                    0
                };
                return Ok(Sequence { encoding: before, is_counted, missing, before_gap });
            }
            let (missing, count) = (min_tokens - kept, |part: &str| self.count_tokens(part));
            kept_bytes = self.borders.grow_kept(text, direction, kept_bytes, missing, count)?;
        }
    }

    pub(super) fn count_tokens(&self, text: &str) -> Result<usize, Error> {
        self.borders.count_by_parts(text, |part| Ok(self.encode_sequence(part, 0)?.len()))
    }

    pub(super) fn tokens(&self, encoding: &Encoding, owner: impl Fn(usize) -> Owner) -> Tokens {
        let second = encoding.get_type_ids().iter().position(|type_id| *type_id != 0);
        Tokens {
            ids: encoding.get_ids().to_vec(),
            owners: (0..encoding.len()).map(owner).collect(),
            second: if self.options.has_token_types { second } else { None },
            ..Tokens::default()
        }
    }
}

/// The special tokens that the post-processor puts before and after a text.
fn special_tokens(tokenizer: &Tokenizer) -> Result<[Vec<u32>; 2], EncoderError> {
    let encoding = tokenizer.encode(TEXTS[0], true).map_err(EncoderError::tokenizer)?;
    let is_text = |index: &usize| !is_special(&encoding, *index);
    let first = (0..encoding.len()).find(is_text).unwrap_or(encoding.len());
    let last = (0..encoding.len()).rfind(is_text).map_or(encoding.len(), |last| last + 1);
    let ids = encoding.get_ids();
    Ok([ids[..first].to_vec(), ids[last..].to_vec()])
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

    use super::*;
    use crate::tokenization::{
        PairText,
        test_tokenizer::{ADDED_TOKENS, qwen_tokenizer, small_tokenizer_json, tokenizer_from},
    };
    use serde_json::{Value, json};

    const RIGHT: Truncation =
        Truncation { truncate: true, direction: TruncationDirection::Right, limits: TokenLimits::NONE };
    const LEFT: Truncation =
        Truncation { truncate: true, direction: TruncationDirection::Left, limits: TokenLimits::NONE };
    const STRICT: Truncation =
        Truncation { truncate: false, direction: TruncationDirection::Right, limits: TokenLimits::NONE };
    const MERGES: [&str; 4] = ["t h", "th e", "i n", "e r"];

    /// The small tokenizer with a post-processor that puts special tokens around a text, and between the
    /// texts of a pair.
    fn json() -> Value {
        let mut json = small_tokenizer_json(&MERGES);
        let special = |name: &str| json!({ "SpecialToken": { "id": name, "type_id": 0 } });
        let (start, end) = (special("<|im_start|>"), special("<|endoftext|>"));
        let sequence = |name: &str| json!({ "Sequence": { "id": name, "type_id": 0 } });
        let id = |name: &str| {
            let tokens = json["added_tokens"].as_array().unwrap();
            tokens.iter().find(|token| token["content"] == name).unwrap()["id"].clone()
        };
        let entry = |name: &str| json!({ "id": name, "ids": [id(name)], "tokens": [name] });
        json["post_processor"] = json!({
            "type": "TemplateProcessing",
            "single": [start, sequence("A"), end],
            "pair": [start, sequence("A"), end, sequence("B"), end],
            "special_tokens": {
                "<|im_start|>": entry("<|im_start|>"), "<|endoftext|>": entry("<|endoftext|>")
            }
        });
        json
    }

    fn tokenizer() -> Tokenizer {
        let mut tokenizer = tokenizer_from(&json());
        tokenizer.with_truncation(None).unwrap();
        tokenizer
    }

    fn options(max_input_length: usize) -> TextOptions {
        TextOptions {
            max_input_length,
            vocabulary: tokenizer().get_vocab_size(true),
            has_token_types: true,
            ..TextOptions::default()
        }
    }

    fn encoder(max_input_length: usize) -> TextEncoder {
        TextEncoder::new(tokenizer(), options(max_input_length)).unwrap()
    }

    fn pair<'a>(query: &'a str, document: &'a str) -> PairText<'a> {
        PairText { instruction: None, query, document }
    }

    fn reference(texts: &str) -> Vec<u32> {
        tokenizer().encode(texts, true).unwrap().get_ids().to_vec()
    }

    #[test]
    fn ordinary_texts_get_the_tokenizers_own_ids_with_the_prompt_as_part_of_the_text() {
        for (prompt, text) in [
            ("", "the inner"),
            ("", ""),
            ("query: t", "he 서울 <tool_call>"),
            ("the ", " 😀\r\n"),
            ("no <think>", "</think>"),
        ] {
            let encoded = encoder(99).encode_text(prompt, text, STRICT).unwrap();
            let ids = reference(&format!("{prompt}{text}"));
            assert_eq!((encoded.ids, encoded.truncated), (ids, 0), "{prompt}|{text}");
        }
        assert_eq!(encoder(99).encode_text("query: t", "he", RIGHT).unwrap().ids, reference("query: the"));
        let Some(qwen) = qwen_tokenizer() else { return };
        let encoder = TextEncoder::new(qwen.clone(), options(99)).unwrap();
        let ids = encoder.encode_text("Query:", "행성 planet", RIGHT).unwrap().ids;
        assert_eq!(ids, qwen.encode("Query:행성 planet", true).unwrap().get_ids());
    }

    #[test]
    fn never_the_bug_no_text_of_a_user_yields_a_special_token() {
        let parsing = TextOptions { parse_special_tokens: true, ..options(99) };
        let parsing = TextEncoder::new(tokenizer(), parsing).unwrap();
        for (content, special) in ADDED_TOKENS {
            let id = tokenizer().token_to_id(content).unwrap();
            let text = format!("a{content}b");
            let inner = |ids: &[u32]| ids[1..ids.len() - 1].contains(&id);
            let single = encoder(99).encode_text("", &text, RIGHT).unwrap().ids;
            assert_eq!(
                inner(&single),
                !special,
                "{content}: others are the vocabulary's, as in transformers"
            );
            let both = encoder(99).encode_pair(&pair("x", &text), RIGHT, None).unwrap().ids;
            let count = |ids: &[u32]| ids.iter().filter(|it| **it == id).count();
            let plain = encoder(99).encode_pair(&pair("x", "ab"), RIGHT, None).unwrap().ids;
            assert_eq!(count(&both) - count(&plain), usize::from(!special), "{content}");
            assert!(inner(&parsing.encode_text("", &text, RIGHT).unwrap().ids), "{content}");
        }
    }

    /// A tokenizer like XLM-RoBERTa's: the vocabulary of its model holds the special tokens as pieces.
    fn unigram_tokenizer() -> Tokenizer {
        let specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"];
        let mut vocabulary: Vec<(String, f64)> =
            specials.iter().map(|special| ((*special).to_owned(), 0.0)).collect();
        let pieces = ["\u{2581}", "<", ">", "/", "s", "m", "a", "k", "ma", "sk", "\u{2581}a"];
        vocabulary.extend(pieces.iter().map(|piece| ((*piece).to_owned(), -3.0)));
        let added: Vec<Value> = (0..specials.len())
            .map(|id| {
                json!({ "id": id, "content": specials[id], "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": true })
            })
            .collect();
        let special = |name: &str| json!({ "SpecialToken": { "id": name, "type_id": 0 } });
        let sequence = |name: &str| json!({ "Sequence": { "id": name, "type_id": 0 } });
        let entry = |id: usize| json!({ "id": specials[id], "ids": [id], "tokens": [specials[id]] });
        let (start, end) = (special("<s>"), special("</s>"));
        tokenizer_from(&json!({
            "version": "1.0", "added_tokens": added, "normalizer": { "type": "NFKC" },
            "pre_tokenizer": { "type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true },
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [start, sequence("A"), end],
                "pair": [start, sequence("A"), end, end, sequence("B"), end],
                "special_tokens": { "<s>": entry(0), "</s>": entry(2) }
            },
            "model": { "type": "Unigram", "unk_id": 3, "vocab": vocabulary, "byte_fallback": false },
        }))
    }

    /// Before, the model's vocabulary turned the text into these tokens.
    #[test]
    fn never_the_bug_no_text_spells_a_special_token_that_the_models_vocabulary_holds() {
        let encoder = |parse_special_tokens| {
            let options = TextOptions {
                max_input_length: 99,
                vocabulary: 99,
                parse_special_tokens,
                ..TextOptions::default()
            };
            TextEncoder::new(unigram_tokenizer(), options).unwrap()
        };
        let specials = |ids: &[u32]| ids.iter().filter(|id| **id < 5).copied().collect::<Vec<_>>();
        for text in ["a</s></s>a", "<s>", "<mask>", "\u{ff1c}\u{ff53}\u{ff1e}", "mask<mask>mask", "<pad>a"] {
            let single = encoder(false).encode_text("", text, STRICT).unwrap().ids;
            assert!([vec![0, 2], vec![0, 3, 3, 2]].contains(&specials(&single)), "{text}: {single:?}");
            for (query, document) in [(text, "a"), ("a", text)] {
                let both = encoder(false).encode_pair(&pair(query, document), STRICT, None).unwrap().ids;
                let found = specials(&both).into_iter().filter(|id| *id != 3).collect::<Vec<_>>();
                assert_eq!(found, [0, 2, 2, 2], "{text}: {both:?}");
                let shown = encoder(false).show(&pair(query, document), STRICT).unwrap();
                assert_eq!(shown.pieces.iter().flat_map(|piece| piece.ids.clone()).collect::<Vec<_>>(), both);
            }
            // The reference, and this server if it is told to, read it as the special token.
            let parsed = encoder(true).encode_text("", text, STRICT).unwrap().ids;
            assert_eq!(parsed, unigram_tokenizer().encode(text, true).unwrap().get_ids());
            assert!(specials(&parsed).len() > 2, "{text}: {parsed:?}");
        }
        // A character that the model does not know is still the unknown token.
        assert_eq!(specials(&encoder(false).encode_text("", "火", STRICT).unwrap().ids), [0, 3, 2]);
    }

    #[test]
    fn at_every_limit_the_text_is_cut_and_the_prompt_and_special_tokens_never() {
        let (prompt, text) = ("query: the ", "er in the 서울 planet");
        let whole = reference(&format!("{prompt}{text}"));
        let before = 1 + tokenizer().encode(prompt, false).unwrap().len();
        let body = &whole[before..whole.len() - 1];
        for max in before + 1..=whole.len() + 1 {
            let excess = whole.len().saturating_sub(max);
            for (truncation, kept) in [(RIGHT, &body[..body.len() - excess]), (LEFT, &body[excess..])] {
                let ids = [&whole[..before], kept, &whole[whole.len() - 1..]].concat();
                let encoded = encoder(max).encode_text(prompt, text, truncation);
                assert_eq!(
                    encoded,
                    Ok(Encoded {
                        ids,
                        second: None,
                        marks: vec![],
                        unattended: 0,
                        kind: 0,
                        truncated: excess,
                        reusable: before
                    }),
                    "{max}"
                );
            }
            let strict = encoder(max).encode_text(prompt, text, STRICT);
            match excess {
                0 => assert_eq!(strict.unwrap().ids, whole),
                _ => assert_eq!(strict, Err(Error::TooLong { got: whole.len(), max })),
            }
        }
        let error = encoder(before).encode_text(prompt, text, RIGHT).unwrap_err();
        let reason = format!("it takes {} tokens of a longest input of {before}", before + 1);
        assert!(matches!(&error, Error::Validation(text) if text.ends_with(&reason)), "{error}");
    }

    #[test]
    fn ids_are_taken_as_they_are_and_held_to_vocabulary_and_length() {
        let vocabulary = options(5).vocabulary as u32;
        let ids = [vocabulary - 1, 0, 3, 3, 9];
        let encode = |ids: &[u32], max, truncation| encoder(max).encode_ids(ids, truncation);
        assert_eq!(
            encode(&ids, 5, STRICT),
            Ok(Encoded {
                ids: ids.to_vec(),
                second: None,
                marks: vec![],
                unattended: 0,
                kind: 0,
                truncated: 0,
                reusable: 0
            })
        );
        assert_eq!(
            encode(&ids, 4, RIGHT),
            Ok(Encoded {
                ids: ids[..4].to_vec(),
                second: None,
                marks: vec![],
                unattended: 0,
                kind: 0,
                truncated: 1,
                reusable: 0
            })
        );
        assert_eq!(
            encode(&ids, 3, LEFT),
            Ok(Encoded {
                ids: ids[2..].to_vec(),
                second: None,
                marks: vec![],
                unattended: 0,
                kind: 0,
                truncated: 2,
                reusable: 0
            })
        );
        assert_eq!(encode(&ids, 4, STRICT), Err(Error::TooLong { got: 5, max: 4 }));
        assert_eq!(encode(&[], 4, RIGHT), Err(Error::EmptyInput { field: "inputs" }));
        for id in [vocabulary, u32::MAX] {
            let error = encode(&[0, id, 1], 2, RIGHT).unwrap_err().to_string();
            assert!(error.contains(&format!("id {id}, ")) && error.ends_with(&format!("below {vocabulary}")));
        }
    }

    #[test]
    fn ids_behind_a_prompt_stand_where_a_text_would() {
        let (prompt, text) = ("query: ", "the inner");
        let ids = tokenizer().encode(text, false).unwrap().get_ids().to_vec();
        let encode =
            |prompt, ids: &[u32], max, truncation| encoder(max).encode_prompted_ids(prompt, ids, truncation);
        let whole = encoder(99).encode_text(prompt, text, STRICT).unwrap();
        assert_eq!(encode(prompt, &ids, 99, STRICT).unwrap(), whole);
        let framed = reference(text);
        assert!(framed.len() == ids.len() + 2 && framed[1..=ids.len()] == ids);
        assert_eq!(encode(prompt, &framed, 99, STRICT).unwrap(), whole, "special tokens are not doubled");
        assert_eq!(encode("", &ids, 99, STRICT).unwrap().ids, framed);
        let max = whole.ids.len() - 1;
        assert_eq!(encode(prompt, &ids, max, STRICT), Err(Error::TooLong { got: max + 1, max }));
        for (truncation, kept) in [(RIGHT, &ids[..ids.len() - 1]), (LEFT, &ids[1..])] {
            let cut = encode(prompt, &ids, max, truncation).unwrap();
            assert_eq!(
                (&cut, cut.truncated),
                (&Encoded { truncated: 1, ..encode(prompt, kept, 99, STRICT).unwrap() }, 1)
            );
        }
        let options_with_last = TextOptions { last_token: Some(ids[0]), ..options(99) };
        let ended = TextEncoder::new(tokenizer(), options_with_last).unwrap();
        let whole = ended.encode_text(prompt, text, STRICT).unwrap();
        assert_eq!(whole.ids.last(), Some(&ids[0]));
        assert_eq!(ended.encode_prompted_ids(prompt, &ids, STRICT).unwrap(), whole);
        assert!(matches!(encode(prompt, &ids, 3, RIGHT), Err(Error::Validation(_))));
        assert_eq!(encode(prompt, &[], 99, RIGHT), Err(Error::EmptyInput { field: "inputs" }));
        let vocabulary = options(9).vocabulary as u32;
        assert!(matches!(encode(prompt, &[vocabulary], 99, RIGHT), Err(Error::Validation(_))));
    }

    #[test]
    fn bare_tokens_have_no_special_tokens_and_a_blank_if_there_is_none() {
        use TruncationDirection::{Left, Right};
        let bare = BareTokens { blank: 900, unknown: None, characters_per_token: None };
        let encode = |bare: BareTokens, longest: usize, text: &str, direction| {
            let options = TextOptions { bare: Some(bare), ..options(longest) };
            let encoder = TextEncoder::new(tokenizer(), options).unwrap();
            encoder.encode_text("", text, Truncation { truncate: true, direction, limits: TokenLimits::NONE })
        };
        let plain = |text: &str| -> Vec<u32> { tokenizer().encode(text, false).unwrap().get_ids().to_vec() };
        let all = plain("a b c a");
        assert!(all.len() > 3 && tokenizer().encode("a", true).unwrap().len() > plain("a").len());
        assert_eq!(encode(bare, 99, "a b c a", Right).unwrap().ids, all);
        // The unknown token is left out of the tokens that stay.
        let without = |unknown| BareTokens { unknown: Some(unknown), ..bare };
        let kept: Vec<u32> = all.iter().copied().filter(|id| *id != all[0]).collect();
        assert_eq!(encode(without(all[0]), 99, "a b c a", Right).unwrap().ids, kept);
        assert_eq!(encode(without(all[0]), 1, "a b c a", Right).unwrap().ids, [900]);
        assert_eq!(encode(without(plain("a")[0]), 99, "a", Right).unwrap().ids, [900]);
        // Characters are cut before the text is encoded.
        let short = BareTokens { characters_per_token: Some(1), ..bare };
        for (text, direction, expected) in [
            ("a b c", Right, "a b"),
            ("a b c", Left, "b c"),
            ("a b", Right, "a b"),
            ("ä b c", Right, "ä b"),
            ("ä b c", Left, "b c"),
        ] {
            let encoded = encode(short, 3, text, direction).unwrap();
            assert_eq!(encoded.ids, plain(expected)[..plain(expected).len().min(3)], "{text} {direction:?}");
            assert_eq!(encoded.truncated > 0, text != expected, "{text} {direction:?}");
        }
        let options = TextOptions { bare: Some(short), ..options(3) };
        let encoder = TextEncoder::new(tokenizer(), options).unwrap();
        let strict = Truncation { truncate: false, direction: Right, limits: TokenLimits::NONE };
        let refused = encoder.encode_text("", "a b c", strict).unwrap_err();
        assert_eq!(refused, Error::TooManyCharacters { got: 5, max: 3 });
    }

    #[test]
    fn a_tokenizer_that_cannot_serve_is_refused() {
        assert_eq!(encoder(99).self_check("query: "), Ok(()));
        let frame = 2 + tokenizer().encode("query: ", false).unwrap().len();
        assert_eq!(encoder(frame + 1).self_check("query: "), Ok(()));
        let no_room = Err(EncoderError::NoRoomForText { frame, max: frame });
        assert_eq!(encoder(frame).self_check("query: "), no_room);
        let mut json = json();
        json["model"] = json!({ "type": "WordLevel", "vocab": { "[UNK]": 0 }, "unk_token": "[UNK]" });
        json["pre_tokenizer"] = Value::Null;
        let blind = TextEncoder::new(tokenizer_from(&json), options(99)).unwrap();
        let refused = blind.self_check("").unwrap_err().to_string();
        assert!(refused.contains("reads two different texts alike"), "{refused}");
    }
}
