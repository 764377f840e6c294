//! Encodes pairs without a template: two texts, which the tokenizer's own post-processor joins.
//!
//! Input: a query and a document, or two texts to classify. Output: [`Encoded`], with token types if the
//! model has them, or the pair in pieces. What must hold: an ordinary pair gets the ids and types that
//! `transformers` gives it; if a pair is too long, the longer text is cut first (`longest_first`), and
//! special tokens never.

use super::{
    Encoded, EncoderError, PairText, PromptPiece, SharedQuery, ShownPrompt, TextEncoder, TokenLimits,
    Truncation, TruncationDirection,
    instruction::choose_instruction,
    shown::Pieces,
    side::room_for_texts,
    stretch::Needed,
    tokens::{Owner, Sequence, Tokens, failed, is_special},
};
use crate::{error::Error, templates::Slot};
use tokenizers::Encoding;

// They start and end alike, so that a tokenizer which only reads the ends fails the check.
const PAIRS: [[&str; 2]; 3] = [
    ["What is the capital of China?", "The capital of China is Beijing."],
    ["What is the capital of China?", "The city of Beijing is in China."],
    ["What is a city of China?", "The capital of China is Beijing."],
];

/// The number of tokens of a pair's texts that were counted and left out.
#[derive(Debug, Clone, Copy, Default)]
struct MissingTokens {
    query: usize,
    document: usize,
}

/// The number of tokens to cut from a pair's texts.
struct PairCut {
    query: usize,
    document: usize,
    /// Whether both texts exceed their half of an odd number of tokens, so that the longer one keeps one
    /// token more.
    is_uneven: bool,
}

impl TextEncoder {
    /// Encodes some fixed pairs as a test.
    ///
    /// # Errors
    ///
    /// [`EncoderError`] if different pairs get the same ids, if the tokenizer's token types are not 0 and
    /// then 1, or if the longest input has no room for texts besides the special tokens.
    pub fn self_check_pairs(&self) -> Result<(), EncoderError> {
        let [first, other_document, other_query] = PAIRS.map(|[query, document]| {
            let pair = PairText { instruction: None, query, document };
            self.encoding_of_pair(&pair).map_err(EncoderError::tokenizer)
        });
        let (first, other_document, other_query) = (first?, other_document?, other_query?);
        if first.get_ids() == other_document.get_ids() || first.get_ids() == other_query.get_ids() {
            let message = "the tokenizer (tokenizer.json) reads two different pairs of texts alike, so their scores \
                           would mean nothing: check that it belongs to the model";
            return Err(EncoderError::Refused(message.to_owned()));
        }
        let types = first.get_type_ids();
        let second = types.iter().position(|type_id| *type_id != 0).unwrap_or(types.len());
        if self.options.has_token_types && types[second..].iter().any(|type_id| *type_id != 1) {
            let message = "the tokenizer (tokenizer.json) gives the tokens of a pair other types than 0 and then 1, \
                           which is not supported: check that it belongs to the model";
            return Err(EncoderError::Refused(message.to_owned()));
        }
        let (frame, max) = (self.tokens_of_pair(&first).count(Owner::Frame), self.options.max_input_length);
        if frame >= max { Err(EncoderError::NoRoomForText { frame, max }) } else { Ok(()) }
    }

    /// The ids of two texts. If another pair of the request has been encoded, the query comes from `shared`.
    ///
    /// # Errors
    ///
    /// [`Error::TooLong`] if the pair is too long and may not be truncated; [`Error::Validation`] if there is
    /// an instruction, or if the special tokens alone are too long; [`Error::Tokenizer`] if the tokenizer
    /// fails.
    pub fn encode_pair(
        &self,
        text: &PairText<'_>,
        truncation: Truncation,
        shared: Option<&SharedQuery>,
    ) -> Result<Encoded, Error> {
        self.check_instruction(text.instruction)?;
        let needed = Needed::new(truncation, self.options.max_input_length);
        let query = SharedQuery::first_sequence(shared, || self.query(text.query, needed))?;
        let mut max_tokens = needed.document;
        loop {
            let document = self.sequence(["", text.document], 1, max_tokens, truncation.direction)?;
            let pair = (query.encoding.clone(), document.encoding);
            let encoding = self.plain.post_process(pair.0, Some(pair.1), true).map_err(failed)?;
            let tokens = self.tokens_of_pair(&encoding);
            let missing = MissingTokens { query: query.missing, document: document.missing };
            let cut = self.pair_to_cut(&tokens, missing, truncation)?;
            if document.is_counted || !cut.is_uneven {
                let mut encoded = tokens.cut(cut.query, cut.document, truncation.direction);
                encoded.truncated += missing.query + missing.document;
                return Ok(encoded);
            }
            // The odd token goes to the longer text, so the document's full length is needed.
            max_tokens = usize::MAX;
        }
    }

    /// Encodes the whole query, and keeps the tokens that are needed.
    fn query(&self, text: &str, needed: Needed) -> Result<Sequence, Error> {
        let mut sequence = self.sequence(["", text], 0, usize::MAX, needed.direction)?;
        let tokens = sequence.encoding.len();
        if tokens > needed.query.max(1) {
            let direction = match needed.direction {
                TruncationDirection::Right => tokenizers::TruncationDirection::Right,
                TruncationDirection::Left => tokenizers::TruncationDirection::Left,
            };
            sequence.encoding.truncate(needed.query.max(1), 0, direction);
            sequence.encoding.set_overflowing(Vec::new());
            sequence.missing += tokens - sequence.encoding.len();
        }
        Ok(sequence)
    }

    /// The pair in pieces: special tokens, query, document.
    pub(crate) fn show(&self, text: &PairText<'_>, truncation: Truncation) -> Result<ShownPrompt, Error> {
        let encoding = self.encoding_of_pair(text)?;
        let tokens = self.tokens_of_pair(&encoding);
        let PairCut { query, document, .. } =
            self.pair_to_cut(&tokens, MissingTokens::default(), truncation)?;
        let kept = tokens.kept(query, document, truncation.direction);
        let shared = tokens.cut(query, document, truncation.direction).reusable;
        let pieces = self.pieces(text, &encoding, &tokens, &kept);
        Ok(ShownPrompt { pieces, shared, max_input_length: self.options.max_input_length })
    }

    fn encoding_of_pair(&self, text: &PairText<'_>) -> Result<Encoding, Error> {
        self.check_instruction(text.instruction)?;
        let query = self.encode_sequence(text.query, 0)?;
        let document = self.encode_sequence(text.document, 1)?;
        self.plain.post_process(query, Some(document), true).map_err(failed)
    }

    pub(super) fn check_instruction(&self, requested: Option<&str>) -> Result<(), Error> {
        choose_instruction(requested, None, None, self.options.ignore_instruction).map(|_| ())
    }

    fn tokens_of_pair(&self, encoding: &Encoding) -> Tokens {
        let sequences = encoding.get_sequence_ids();
        self.tokens(encoding, |index| match sequences[index] {
            _ if is_special(encoding, index) => Owner::Frame,
            Some(0) => Owner::Query,
            _ => Owner::Document,
        })
    }

    /// The number of tokens to cut from the query and from the document: first for the request's limits on
    /// each, then for the longest input. The texts have `missing` tokens more than `tokens` contains.
    fn pair_to_cut(
        &self,
        tokens: &Tokens,
        missing: MissingTokens,
        truncation: Truncation,
    ) -> Result<PairCut, Error> {
        let [frame, query, document] =
            [Owner::Frame, Owner::Query, Owner::Document].map(|owner| tokens.count(owner));
        let TokenLimits { query: query_limit, document: document_limit, prompt } = truncation.limits;
        let wanted = [(query + missing.query, query_limit), (document + missing.document, document_limit)]
            .map(|(tokens, limit)| tokens.min(limit.unwrap_or(usize::MAX)));
        let max_length = self.options.max_input_length;
        let got = frame + wanted[0] + wanted[1];
        if got > max_length && prompt.is_none() && !truncation.truncate {
            return Err(Error::TooLong { got, max: max_length });
        }
        let room = room_for_texts(tokens, max_length, prompt)?;
        let kept = longest_first(wanted, room);
        let is_uneven = wanted[0].min(wanted[1]) > room / 2 && room % 2 == 1;
        Ok(PairCut {
            query: query.saturating_sub(kept[0]),
            document: document.saturating_sub(kept[1]),
            is_uneven,
        })
    }

    /// The pieces of a pair. Text that no token covers, such as white space, belongs to the piece before it.
    fn pieces(
        &self,
        text: &PairText<'_>,
        encoding: &Encoding,
        tokens: &Tokens,
        kept: &[bool],
    ) -> Vec<PromptPiece> {
        let mut pieces = Pieces::default();
        // For each text, the number of bytes that earlier pieces show.
        let mut shown = [0; 2];
        let last = [Owner::Query, Owner::Document]
            .map(|owner| tokens.owners.iter().rposition(|of_token| *of_token == owner));
        for (index, &id) in tokens.ids.iter().enumerate() {
            let owner = tokens.owners[index];
            let (place, slot, text) = match owner {
                Owner::Query => (0, Slot::Query, text.query),
                Owner::Document => (1, Slot::Document, text.document),
                Owner::Frame => {
                    let content = self.tokenizer().id_to_token(id).unwrap_or_default();
                    let piece = pieces.last(None, false);
                    piece.text.push_str(&content);
                    piece.ids.push(id);
                    continue;
                }
            };
            let end = encoding.get_offsets()[index].1.max(shown[place]);
            let piece = pieces.last(Some(slot), !kept[index]);
            piece.text.push_str(text.get(shown[place]..end).unwrap_or_default());
            piece.ids.push(id);
            shown[place] = end;
            if last[place] == Some(index) && end < text.len() {
                pieces.last(Some(slot), !kept[index]).text.push_str(text.get(end..).unwrap_or_default());
            }
        }
        pieces.0
    }
}

/// The number of tokens that each text of a pair keeps if both may have `room` tokens together. The longer
/// text is cut first, and two texts that are both too long keep half each, as in `longest_first` of Hugging
/// Face's tokenizers.
fn longest_first([first, second]: [usize; 2], room: usize) -> [usize; 2] {
    if first + second <= room {
        return [first, second];
    }
    let short = first.min(second).min(room / 2);
    let long = room - short;
    if first > second { [long, short] } else { [short, long] }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

    use super::*;
    use crate::tokenization::{
        TextOptions, TruncationDirection,
        borders::Borders,
        test_tokenizer::{small_tokenizer_json, tokenizer_from},
    };
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use serde_json::{Value, json};
    use tokenizers::{Tokenizer, TruncationParams, TruncationStrategy};

    const RIGHT: Truncation =
        Truncation { truncate: true, direction: TruncationDirection::Right, limits: TokenLimits::NONE };
    const LEFT: Truncation = Truncation { direction: TruncationDirection::Left, ..RIGHT };
    const STRICT: Truncation = Truncation { truncate: false, ..RIGHT };

    /// The small tokenizer with BERT's special tokens: `<s> A </s>` and `<s> A </s> B </s>`. The last two
    /// parts have type 1.
    fn json() -> Value {
        let mut json = small_tokenizer_json(&["t h", "th e"]);
        let special = |name: &str, type_id: u8| json!({ "SpecialToken": { "id": name, "type_id": type_id } });
        let sequence = |name: &str, type_id: u8| json!({ "Sequence": { "id": name, "type_id": type_id } });
        let (start, end) = ("<|im_start|>", "<|endoftext|>");
        let id = |name: &str| {
            let tokens = json["added_tokens"].as_array().unwrap();
            tokens.iter().find(|token| token["content"] == name).unwrap()["id"].clone()
        };
        let entry = |name: &str| json!({ "id": name, "ids": [id(name)], "tokens": [name] });
        json["post_processor"] = json!({
            "type": "TemplateProcessing",
            "single": [special(start, 0), sequence("A", 0), special(end, 0)],
            "pair": [special(start, 0), sequence("A", 0), special(end, 0), sequence("B", 1), special(end, 1)],
            "special_tokens": { start: entry(start), end: entry(end) }
        });
        json
    }

    fn tokenizer() -> Tokenizer {
        let mut tokenizer = tokenizer_from(&json());
        tokenizer.with_truncation(None).unwrap();
        tokenizer
    }

    fn encoder_of(tokenizer: Tokenizer, max_input_length: usize, has_token_types: bool) -> TextEncoder {
        let vocabulary = tokenizer.get_vocab_size(true);
        let options = TextOptions { max_input_length, vocabulary, has_token_types, ..TextOptions::default() };
        TextEncoder::new(tokenizer, options).unwrap()
    }

    fn encoder(max_input_length: usize) -> TextEncoder {
        encoder_of(tokenizer(), max_input_length, true)
    }

    fn pair<'a>(query: &'a str, document: &'a str) -> PairText<'a> {
        PairText { instruction: None, query, document }
    }

    #[test]
    fn pairs_are_joined_typed_and_cut_as_the_tokenizers_library_does() {
        let mut rng = StdRng::seed_from_u64(7);
        let mut text = |max_tokens: usize| -> String {
            (0..rng.random_range(0..=max_tokens)).map(|_| char::from(rng.random_range(b'a'..=b'z'))).collect()
        };
        for _ in 0..300 {
            let texts = [text(12), text(12)];
            let max = 4 + text(20).len();
            for (truncation, direction) in [
                (RIGHT, tokenizers::TruncationDirection::Right),
                (LEFT, tokenizers::TruncationDirection::Left),
            ] {
                let mut reference = tokenizer();
                let params = TruncationParams {
                    max_length: max,
                    strategy: TruncationStrategy::LongestFirst,
                    stride: 0,
                    direction,
                };
                reference.with_truncation(Some(params)).unwrap();
                let expected = reference.encode((texts[0].as_str(), texts[1].as_str()), true).unwrap();
                let text = pair(&texts[0], &texts[1]);
                let encoded = encoder(max).encode_pair(&text, truncation, None).unwrap();
                assert_eq!(encoded.ids, expected.get_ids(), "{texts:?} at {max}");
                let second = expected.get_type_ids().iter().position(|type_id| *type_id == 1);
                assert_eq!(encoded.second, second, "{texts:?} at {max}");
                let whole = encoder(99).encode_pair(&text, STRICT, None).unwrap().ids.len();
                assert_eq!(encoded.truncated, whole.saturating_sub(max));
                let untyped =
                    encoder_of(tokenizer(), max, false).encode_pair(&text, truncation, None).unwrap();
                assert_eq!((untyped.ids, untyped.second), (encoded.ids, None));
            }
        }
        let text = pair("a", "b");
        assert_eq!(encoder(4).encode_pair(&text, STRICT, None), Err(Error::TooLong { got: 5, max: 4 }));
        assert!(matches!(encoder(2).encode_pair(&text, RIGHT, None), Err(Error::Validation(_))));
    }

    #[test]
    fn a_request_may_limit_query_document_and_pair() {
        let text = pair("zzzz", "yyyyyy");
        for (query, document, prompt, kept) in [
            (Some(2), None, None, ["zz", "yyyyyy"]),
            (None, Some(1), None, ["zzzz", "y"]),
            (Some(9), Some(9), Some(8), ["zz", "yyy"]),
            (Some(1), Some(3), Some(6), ["z", "yy"]),
        ] {
            let limits = TokenLimits { query, document, prompt };
            let encoded = encoder(99).encode_pair(&text, Truncation { limits, ..STRICT }, None).unwrap();
            let expected = encoder(99).encode_pair(&pair(kept[0], kept[1]), STRICT, None).unwrap();
            assert_eq!(encoded.ids, expected.ids, "{limits:?}");
        }
        let limits = TokenLimits { prompt: Some(2), ..TokenLimits::NONE };
        let error =
            encoder(99).encode_pair(&text, Truncation { limits, ..STRICT }, None).unwrap_err().to_string();
        let expected = "Input validation error: `truncate_prompt_tokens` is too small: the special tokens alone take 3 tokens. Given: 2";
        assert_eq!(error, expected);
    }

    /// Before, a large query, a large pair that must not be cut, and one that shares an odd number of tokens
    /// were encoded whole.
    #[test]
    fn a_large_pair_is_cut_or_refused_as_when_it_is_encoded_whole() {
        let mut rng = StdRng::seed_from_u64(5);
        let mut words = |bytes: usize| -> String {
            let word = |rng: &mut StdRng| (0..rng.random_range(1..9)).map(|_| 'a').collect::<String>() + " b";
            let mut text = String::new();
            while text.len() < bytes {
                text.push_str(&word(&mut rng));
            }
            text
        };
        let (long, longer) = (words(500), words(900));
        let with = |borders: fn(Borders) -> Borders, max| {
            let mut encoder = encoder(max);
            encoder.borders = borders(encoder.borders);
            encoder
        };
        let slow = |max| with(|_| Borders::default(), max);
        let fast = |max| with(Borders::for_small_texts, max);
        let outcome = |encoder: &TextEncoder, query: &str, document: &str, truncation| {
            let encoded = encoder.encode_pair(&pair(query, document), truncation, None);
            encoded.map(|encoded| (encoded.ids, encoded.second, encoded.truncated > 0))
        };
        let limits = TokenLimits { document: Some(7), ..TokenLimits::NONE };
        for (query, document) in
            [("the", &*longer), (&*longer, "the"), (&*long, &*longer), (&*longer, &*long)]
        {
            for (max, truncation) in
                [(8, RIGHT), (9, LEFT), (9, STRICT), (50, Truncation { limits, ..STRICT })]
            {
                let expected = outcome(&slow(max), query, document, truncation);
                assert_eq!(
                    outcome(&fast(max), query, document, truncation),
                    expected,
                    "{max} {truncation:?}"
                );
            }
        }
        let strict = |encoder: TextEncoder| encoder.encode_text("the ", &longer, STRICT);
        assert_eq!(strict(fast(9)), strict(slow(9)));
    }

    #[test]
    fn an_instruction_is_refused() {
        let text = PairText { instruction: Some("x"), ..pair("a", "b") };
        let error = encoder(99).encode_pair(&text, RIGHT, None).unwrap_err().to_string();
        assert!(error.starts_with("Input validation error: `instruction` cannot be given"), "{error}");
        assert_eq!(encoder(99).show(&text, RIGHT).unwrap_err().to_string(), error);
    }

    #[test]
    fn the_pieces_are_the_texts_and_their_ids_are_those_that_are_scored() {
        let texts =
            [pair("the hot end ", "서울 the <|endoftext|> planet"), pair("the", ""), pair("a", " b ")];
        for (text, max) in texts.iter().flat_map(|text| [5, 8, 99].map(|max| (text, max))) {
            for truncation in [RIGHT, LEFT] {
                let shown = encoder(max).show(text, truncation).unwrap();
                let encoded = encoder(max).encode_pair(text, truncation, None).unwrap();
                let kept = shown.pieces.iter().filter(|piece| !piece.cut);
                let ids: Vec<u32> = kept.flat_map(|piece| piece.ids.clone()).collect();
                assert_eq!(ids, encoded.ids, "{text:?} at {max}");
                assert_eq!((shown.truncated(), shown.shared), (encoded.truncated, encoded.reusable));
                for (slot, wanted) in [(Some(Slot::Query), text.query), (Some(Slot::Document), text.document)]
                {
                    let pieces = shown.pieces.iter().filter(|piece| piece.slot == slot);
                    let whole: String = pieces.map(|piece| piece.text.as_str()).collect();
                    assert_eq!(whole, wanted, "{text:?} at {max}");
                }
            }
        }
    }

    #[test]
    fn a_tokenizer_that_cannot_serve_pairs_is_refused() {
        assert_eq!(encoder(99).self_check_pairs(), Ok(()));
        assert_eq!(encoder(3).self_check_pairs(), Err(EncoderError::NoRoomForText { frame: 3, max: 3 }));
        let with = |pointer: &str, value: Value| {
            let mut json = json();
            *json.pointer_mut(pointer).unwrap() = value;
            encoder_of(tokenizer_from(&json), 99, true).self_check_pairs()
        };
        let second_type = "/post_processor/pair/3/Sequence/type_id";
        let refused = with(second_type, json!(2)).unwrap_err().to_string();
        assert!(refused.contains("other types than 0 and then 1"), "{refused}");
        assert_eq!(with(second_type, json!(0)), Ok(()), "only the last token has type 1");
        let blind = json!({ "type": "WordLevel", "vocab": { "[UNK]": 0 }, "unk_token": "[UNK]" });
        let mut json = json();
        json["model"] = blind;
        json["pre_tokenizer"] = Value::Null;
        let encoder = encoder_of(tokenizer_from(&json), 99, true);
        let refused = encoder.self_check_pairs().unwrap_err().to_string();
        assert!(refused.contains("reads two different pairs of texts alike"), "{refused}");
    }
}
