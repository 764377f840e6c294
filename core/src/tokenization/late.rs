//! Encodes queries and documents of late-interaction models (`ColBERT`), which read them apart.
//!
//! Input: a query or a document. Output: its ids, with a marker or behind a prompt; for a document the tokens
//! whose vectors count, for a query the tokens that expand it. What must hold: `PyLate` and
//! sentence-transformers give the same ids and count the same tokens; a text that spells a marker stays text.

use super::{
    Encoded, EncoderError, Side, SideTokens, Truncation, TruncationDirection, other_model,
    stretch::Needed,
    text::{TEXTS, TextEncoder},
    tokens::{Owner, frame_too_long},
};
use crate::error::Error;

impl TextEncoder {
    /// The ids of a query or a document. Too long texts are cut, whatever the request says: the lengths are
    /// part of the model.
    pub(crate) fn encode_late(
        &self,
        side: Side,
        text: &str,
        truncation: Truncation,
    ) -> Result<Encoded, Error> {
        let Some(late) = &self.options.late else { return Err(other_model()) };
        let (rules, limit) = match side {
            Side::Query => (&late.query, truncation.limits.query),
            Side::Document => (&late.document, truncation.limits.document),
        };
        let mut encoded = self.mark_text(rules, text, limit, truncation)?;
        match (side, late.expansion) {
            (Side::Query, Some(expansion)) => {
                let length = expansion.length.min(self.options.max_input_length);
                let added = length.saturating_sub(encoded.ids.len());
                encoded.ids.resize(encoded.ids.len() + added, expansion.id);
                encoded.unattended = if expansion.is_attended { 0 } else { added };
            }
            (Side::Query, None) => {}
            (Side::Document, _) => {
                let ids = encoded.ids.iter().enumerate();
                encoded.marks =
                    ids.filter(|(_, id)| !late.skipped.contains(id)).map(|(index, _)| index).collect();
            }
        }
        Ok(encoded)
    }

    /// The ids of a text with the marker or behind the prompt of its side, cut to the side's most tokens and
    /// to `limit` of its own.
    fn mark_text(
        &self,
        rules: &SideTokens,
        text: &str,
        limit: Option<usize>,
        truncation: Truncation,
    ) -> Result<Encoded, Error> {
        let max_length = rules.max_length.min(self.options.max_input_length);
        let room = max_length.saturating_sub(rules.marker.iter().count());
        let truncation = Truncation { truncate: true, ..truncation };
        let needed = Needed::new(truncation, room);
        let tokens =
            self.tokens_of_text([rules.text_before(), text], needed.document, truncation.direction)?;
        let own = tokens.count(Owner::Document);
        let above_limit = limit.map_or(0, |limit| own.saturating_sub(limit));
        let excess = tokens.excess(room, truncation)?.max(above_limit);
        if excess > own {
            return Err(frame_too_long(&tokens, room));
        }
        let mut encoded = Encoded { reusable: 0, ..tokens.cut(0, excess, truncation.direction) };
        self.insert_marker(rules, &mut encoded.ids);
        Ok(encoded)
    }

    /// Puts the marker of a side, if it has one, into the ids of a text.
    fn insert_marker(&self, rules: &SideTokens, ids: &mut Vec<u32>) {
        if let Some(marker) = rules.marker {
            let place = if marker.follows_specials { self.frame[0].len() } else { 1 };
            ids.insert(ids.len().min(place), marker.id);
        }
    }

    /// Compares the ids of a text behind the prompt of each side with the ids that the tokenizer gives for
    /// both as one string, as sentence-transformers encodes them.
    pub(super) fn check_late_prompts(&self) -> Result<(), EncoderError> {
        let Some(late) = &self.options.late else { return Ok(()) };
        for rules in [&late.query, &late.document].into_iter().filter(|rules| !rules.prompt.is_empty()) {
            let texts = [rules.text_before(), TEXTS[1]];
            let mut tokens = self
                .tokens_of_text(texts, usize::MAX, TruncationDirection::Right)
                .map_err(EncoderError::tokenizer)?;
            self.insert_marker(rules, &mut tokens.ids);
            let joined = [&rules.prompt, TEXTS[1]].concat();
            let expected = self.tokenizer().encode(joined, true).map_err(EncoderError::tokenizer)?;
            if tokens.ids != expected.get_ids() {
                return Err(EncoderError::Refused(format!(
                    "the prompt `{}` before a query or document becomes other tokens here than in \
                     sentence-transformers, so that scores would differ: this tokenizer is not supported for it",
                    rules.prompt
                )));
            }
            let frame = tokens.ids.len() - tokens.count(Owner::Document);
            let max = rules.max_length.min(self.options.max_input_length);
            if frame >= max {
                return Err(EncoderError::NoRoomForText { frame, max });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::tokenization::{
        ExpansionToken, LateTokens, Marker, TextOptions, TokenLimits, test_tokenizer::small_tokenizer_with,
    };
    use tokenizers::{Tokenizer, processors::template::TemplateProcessing};

    const RIGHT: Truncation =
        Truncation { truncate: false, direction: TruncationDirection::Right, limits: TokenLimits::NONE };

    /// An encoder with a tokenizer of characters.
    fn encoder_with(tokenizer: Tokenizer, late: &LateTokens) -> TextEncoder {
        let options = TextOptions {
            max_input_length: 99,
            vocabulary: 1000,
            late: Some(late.clone()),
            ..TextOptions::default()
        };
        TextEncoder::new(tokenizer, options).unwrap()
    }

    /// A text without special tokens around it.
    fn encode_with(late: &LateTokens, side: Side, text: &str, limits: TokenLimits) -> Encoded {
        let encoder = encoder_with(small_tokenizer_with(&[]), late);
        encoder.encode_late(side, text, Truncation { limits, ..RIGHT }).unwrap()
    }

    #[test]
    fn a_marker_follows_the_special_tokens_before_a_text_even_if_the_text_has_no_tokens() {
        let mut tokenizer = small_tokenizer_with(&[]);
        let names = ["<|im_start|>", "<|endoftext|>"];
        let [first, last] = names.map(|name| tokenizer.token_to_id(name).unwrap());
        let frame = TemplateProcessing::builder()
            .try_single("<|im_start|> $A <|endoftext|>")
            .unwrap()
            .special_tokens(vec![(names[0], first), (names[1], last)])
            .build()
            .unwrap();
        tokenizer.with_post_processor(Some(frame));
        let marker = Some(Marker { id: 900, follows_specials: true });
        let side = SideTokens { marker, prompt: String::new(), max_length: 99 };
        let late = LateTokens { query: side.clone(), document: side, expansion: None, skipped: Vec::new() };
        let encoder = encoder_with(tokenizer, &late);
        for text in ["", "a"] {
            let ids = encoder.encode_late(Side::Document, text, RIGHT).unwrap().ids;
            assert_eq!(ids, [vec![first, 900], ids_of(text), vec![last]].concat(), "{text:?}");
        }
    }

    fn ids_of(text: &str) -> Vec<u32> {
        small_tokenizer_with(&[]).encode(text, false).unwrap().get_ids().to_vec()
    }

    #[test]
    fn a_marker_is_the_second_token_and_queries_are_filled() {
        let side = |marker: Option<u32>, max_length| {
            let marker = marker.map(|id| Marker { id, follows_specials: false });
            SideTokens { marker, prompt: String::new(), max_length }
        };
        let expansion = Some(ExpansionToken { id: 902, is_attended: false, length: 6 });
        let late = LateTokens {
            query: side(Some(900), 6),
            document: side(Some(901), 5),
            expansion,
            skipped: ids_of(","),
        };
        let none = TokenLimits::NONE;
        let [a, b, c] = ["a", "b", "c"].map(|text| ids_of(text)[0]);
        let query = encode_with(&late, Side::Query, "abc", none);
        assert_eq!((query.ids, query.unattended), (vec![a, 900, b, c, 902, 902], 2));
        assert!(query.marks.is_empty());
        // A longer query is cut, and has no expansion.
        let query = encode_with(&late, Side::Query, "abcabc", none);
        assert_eq!((query.ids, query.unattended, query.truncated), (vec![a, 900, b, c, a, b], 0, 1));
        let attended = ExpansionToken { id: 902, is_attended: true, length: 6 };
        let query =
            encode_with(&LateTokens { expansion: Some(attended), ..late.clone() }, Side::Query, "a", none);
        assert_eq!((query.ids, query.unattended), (vec![a, 900, 902, 902, 902, 902], 0));
        let query = encode_with(&LateTokens { expansion: None, ..late.clone() }, Side::Query, "a", none);
        assert_eq!(query.ids, [a, 900]);
        // Punctuation is read, but does not count. A document is not filled.
        let document = encode_with(&late, Side::Document, "a,b", none);
        assert_eq!((document.ids, document.marks), (vec![a, 901, ids_of(",")[0], b], vec![0, 1, 3]));
        let document = encode_with(&late, Side::Document, "abcabc", none);
        assert_eq!((document.ids, document.truncated), (vec![a, 901, b, c, a], 2));
        let limits = TokenLimits { document: Some(2), query: Some(1), prompt: None };
        assert_eq!(encode_with(&late, Side::Document, "abc", limits).ids, [a, 901, b]);
        assert_eq!(encode_with(&late, Side::Query, "abc", limits).ids, [a, 900, 902, 902, 902, 902]);
        let short = ExpansionToken { id: 902, is_attended: true, length: 4 };
        let bare = LateTokens { query: side(None, 6), expansion: Some(short), ..late };
        assert_eq!(encode_with(&bare, Side::Query, "ab", none).ids, [a, b, 902, 902]);
        // A query may be longer than it is filled to, up to its most tokens.
        assert_eq!(encode_with(&bare, Side::Query, "abcab", none).ids, [a, b, c, a, b]);
        assert_eq!(encode_with(&bare, Side::Query, "abcabca", none).ids.len(), 6);
    }
}
