//! Divides a prompt into pieces, so that a person can see what the model reads.
//!
//! Input: the arguments of [`PromptEncoder::encode_prompt`]. Output: [`ShownPrompt`]. What must hold: the
//! texts of all pieces together are the prompt before truncation, and the ids of the pieces that were not cut
//! are the ids that are scored. Both come from the same stretches.

use super::{
    PairText, PromptEncoder, Truncation,
    stretch::{Needed, Run, Span, Stretch},
    tokens::Tokens,
};
use crate::{
    error::Error,
    templates::{Slot, SlotTexts},
};
use std::ops::Range;

/// A prompt in pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownPrompt {
    /// All pieces in order, including those that were cut.
    pub pieces: Vec<PromptPiece>,
    /// The number of tokens before the first one of the document. Other documents of the same query share
    /// them.
    pub shared: usize,
    /// The most tokens that a prompt may have.
    pub max_input_length: usize,
}

/// A part of a prompt that comes from one source. It was cut as a whole or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptPiece {
    /// The text that it comes from; `None` for the template.
    pub slot: Option<Slot>,
    /// Its text. Empty if its token ends a character that an earlier piece shows.
    pub text: String,
    /// The tokens whose last character is in this piece.
    pub ids: Vec<u32>,
    /// Whether truncation removed it, so that the model does not read it.
    pub cut: bool,
}

impl ShownPrompt {
    /// The number of tokens that the model reads.
    pub fn tokens(&self) -> usize {
        self.count(false)
    }

    /// The number of tokens that truncation removed.
    pub fn truncated(&self) -> usize {
        self.count(true)
    }

    fn count(&self, cut: bool) -> usize {
        self.pieces.iter().filter(|piece| piece.cut == cut).map(|piece| piece.ids.len()).sum()
    }
}

impl PromptEncoder {
    /// The prompt in pieces.
    ///
    /// # Errors
    ///
    /// As for [`PromptEncoder::encode_prompt`].
    pub fn show(&self, text: &PairText<'_>, truncation: Truncation) -> Result<ShownPrompt, Error> {
        if self.reads_lists() {
            return Err(Error::Validation(
                "the prompt of a listwise re-ranker holds all documents of a request, so that it cannot be \
                 shown for one"
                    .to_owned(),
            ));
        }
        self.check_instruction(text.instruction.unwrap_or_default())?;
        let instruction = self.instruction(text.instruction)?;
        let texts = SlotTexts {
            instruction: instruction.unwrap_or_default(),
            query: text.query,
            documents: &[text.document],
        };
        let stretches = self.stretches(self.parts(instruction), &texts, Needed::ALL, None)?;
        let tokens = Tokens::from_stretches(&stretches);
        let [query, document] = self.to_cut(&tokens, truncation)?;
        let shared = tokens.cut(query, document, truncation.direction).reusable;
        let mut kept = tokens.kept(query, document, truncation.direction).into_iter();
        let mut pieces = Pieces::default();
        for stretch in &stretches {
            match stretch {
                Stretch::Fixed(part) => {
                    kept.by_ref().take(part.ids.len()).for_each(drop);
                    let piece = pieces.last(None, false);
                    piece.text.push_str(&part.text);
                    piece.ids.extend_from_slice(&part.ids);
                }
                Stretch::Runs(runs) => runs.iter().for_each(|run| pieces.push_run(run, &mut kept)),
            }
        }
        Ok(ShownPrompt { pieces: pieces.0, shared, max_input_length: self.options.max_input_length })
    }
}

#[derive(Default)]
pub(super) struct Pieces(pub(super) Vec<PromptPiece>);

impl Pieces {
    /// The last piece if it has this slot and `cut`, otherwise a new one.
    pub(super) fn last(&mut self, slot: Option<Slot>, cut: bool) -> &mut PromptPiece {
        if self.0.last().is_none_or(|piece| piece.slot != slot || piece.cut != cut) {
            self.0.push(PromptPiece { slot, text: String::new(), ids: Vec::new(), cut });
        }
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    /// Adds the tokens of a run, each with the text up to its end that no earlier token has.
    fn push_run(&mut self, run: &Run, kept: &mut impl Iterator<Item = bool>) {
        let mut shown = 0;
        for ((&id, &end), is_kept) in run.ids.iter().zip(&run.ends).zip(kept) {
            self.push_text(run, shown..end, !is_kept);
            self.last(run.slot_before(end), !is_kept).ids.push(id);
            shown = shown.max(end);
        }
        // Text that no token covers, and an empty text at the end.
        let length = run.text.len();
        self.push_text(run, shown..length, false);
        for span in run.spans.iter().filter(|span| span.range.is_empty() && span.range.start == length) {
            self.last(span.slot, false);
        }
    }

    fn push_text(&mut self, run: &Run, range: Range<usize>, cut: bool) {
        for Span { range: span, slot } in &run.spans {
            let (start, end) = (span.start.max(range.start), span.end.min(range.end));
            if start < end {
                self.last(*slot, cut).text.push_str(&run.text[start..end]);
            }
            // An empty text also has a piece, before the token that follows it.
            if span.is_empty() && range.contains(&span.start) {
                self.last(*slot, false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

    use super::*;
    use crate::{
        families::{QWEN3_RERANKER, by_name},
        templates::{MessageStyle, PromptTemplate},
        tokenization::{
            EncoderOptions, TokenLimits, TruncationDirection,
            test_tokenizer::{options, qwen_tokenizer, small_tokenizer},
        },
    };
    use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};

    const WORDS: [&str; 18] = [
        "the",
        " yes",
        "no ",
        "?",
        "\n",
        "  ",
        "서울",
        "e\u{301}",
        "\u{301}",
        "😀",
        "👨‍👩‍👧",
        "\r\n\t",
        "<|im_end|>",
        "<think>",
        "<Query>: ",
        "planet",
        "\u{202e}",
        "\u{0}",
    ];

    fn words(random: &mut StdRng, most: usize) -> String {
        (0..random.random_range(0..=most)).map(|_| *WORDS.choose(random).unwrap()).collect()
    }

    fn ids(pieces: &[PromptPiece], is_wanted: impl Fn(&PromptPiece) -> bool) -> Vec<u32> {
        pieces.iter().filter(|piece| is_wanted(piece)).flat_map(|piece| piece.ids.clone()).collect()
    }

    fn text(pieces: &[PromptPiece], slot: Option<Slot>) -> String {
        pieces.iter().filter(|piece| piece.slot == slot).map(|piece| piece.text.as_str()).collect()
    }

    #[test]
    fn the_pieces_are_the_prompt_and_their_ids_those_that_are_scored() {
        let mut random = StdRng::from_os_rng();
        let chat = "{% for m in messages %}{% if m.role == 'document' %}the {{ m.content | trim }}\n<think>{% endif %}\
            {% endfor %}{% for m in messages %}{% if m.role == 'query' %}?{{ m.content }}!{% endif %}{% endfor %}";
        let templates = [
            PromptTemplate::builtin(&QWEN3_RERANKER),
            PromptTemplate::builtin(by_name("qwen3-reranker-evaluation").unwrap()),
            PromptTemplate::from_chat_template(chat, &MessageStyle::plain()).unwrap(),
        ];
        let tokenizers = [Some(small_tokenizer()), qwen_tokenizer()].into_iter().flatten();
        for (tokenizer, template) in
            tokenizers.flat_map(|it| templates.each_ref().map(|template| (it.clone(), template)))
        {
            let encoder = |parse_special_tokens| {
                let options = EncoderOptions { parse_special_tokens, ..options(9999) };
                PromptEncoder::new(tokenizer.clone(), template, options).unwrap()
            };
            let mut encoders = [encoder(false), encoder(true)];
            for round in 0..60 {
                let encoder = &mut encoders[usize::from(round % 5 == 0)];
                let [instruction, query, document] = [5, 9, 14].map(|most| words(&mut random, most));
                let instruction = Some(instruction.as_str()).filter(|_| template.has_instruction());
                let request = PairText { instruction, query: &query, document: &document };
                let direction =
                    *[TruncationDirection::Right, TruncationDirection::Left].choose(&mut random).unwrap();
                let truncation = Truncation { truncate: true, direction, limits: TokenLimits::NONE };
                encoder.options.max_input_length = 9999;
                let whole = encoder.encode_prompt(&request, truncation, None).unwrap();
                let max = random.random_range(1..=whole.ids.len() + 1);
                encoder.options.max_input_length = max;
                let expected = encoder.encode_prompt(&request, truncation, None);
                let shown = encoder.show(&request, truncation);
                let Ok(expected) = expected else {
                    assert_eq!(shown.err(), expected.err());
                    continue;
                };
                let shown = shown.unwrap();
                let pieces = &shown.pieces;
                assert_eq!(ids(pieces, |piece| !piece.cut), expected.ids, "{request:?} {max}");
                assert_eq!(ids(pieces, |_| true), whole.ids, "{request:?} {max}");
                assert_eq!(
                    (shown.tokens(), shown.truncated(), shown.shared, shown.max_input_length),
                    (expected.ids.len(), expected.truncated, expected.reusable, max)
                );
                let all: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
                assert_eq!(all, template.render(instruction.unwrap_or_default(), &query, &document));
                assert_eq!(text(pieces, Some(Slot::Query)), query);
                assert_eq!(text(pieces, Some(Slot::Instruction)), instruction.unwrap_or_default());
                let trimmed = if template.has_instruction() { &document } else { document.trim() };
                assert_eq!(text(pieces, Some(Slot::Document)), trimmed);
                for slot in [Slot::Query, Slot::Document] {
                    assert!(pieces.iter().any(|piece| piece.slot == Some(slot)), "{pieces:?}");
                }
                let is_cuttable = |piece: &PromptPiece| {
                    !piece.cut
                        || piece.ids.is_empty()
                        || matches!(piece.slot, Some(Slot::Query | Slot::Document))
                };
                assert!(pieces.iter().all(is_cuttable), "{pieces:?}");
                let differ =
                    |pair: &[PromptPiece]| (pair[0].slot, pair[0].cut) != (pair[1].slot, pair[1].cut);
                assert!(pieces.windows(2).all(differ), "{pieces:?}");
            }
        }
    }

    #[test]
    fn what_is_cut_stands_in_its_place() {
        let template = PromptTemplate::builtin(&QWEN3_RERANKER);
        let request =
            PairText { instruction: Some("the"), query: "the planet?", document: "yes the text is no" };
        let whole = PromptEncoder::new(small_tokenizer(), &template, options(999)).unwrap();
        let truncation = |direction| Truncation { truncate: true, direction, limits: TokenLimits::NONE };
        let full = whole.show(&request, truncation(TruncationDirection::Right)).unwrap();
        let kinds: Vec<_> = full.pieces.iter().map(|piece| (piece.slot, piece.text.as_str())).collect();
        let prefix = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and \
            the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n\
            <Instruct>: ";
        assert_eq!(
            kinds,
            [
                (None, prefix),
                (Some(Slot::Instruction), "the"),
                (None, "\n<Query>: "),
                (Some(Slot::Query), "the planet?"),
                (None, "\n<Document>: "),
                (Some(Slot::Document), "yes the text is no"),
                (None, "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"),
            ]
        );
        let empty = PairText { instruction: Some(""), document: "", ..request };
        let empty = whole.show(&empty, truncation(TruncationDirection::Right)).unwrap();
        let kinds: Vec<_> = empty.pieces.iter().map(|piece| (piece.slot, piece.ids.is_empty())).collect();
        let slots =
            [None, Some(Slot::Instruction), None, Some(Slot::Query), None, Some(Slot::Document), None];
        assert_eq!(kinds, slots.map(|slot| (slot, matches!(slot, Some(Slot::Instruction | Slot::Document)))));
        let max = full.tokens() - 2;
        let short = PromptEncoder::new(small_tokenizer(), &template, options(max)).unwrap();
        for (direction, expected) in [
            (TruncationDirection::Right, [(false, "yes the text is"), (true, " no")]),
            (TruncationDirection::Left, [(true, "yes the"), (false, " text is no")]),
        ] {
            let shown = short.show(&request, truncation(direction)).unwrap();
            let document = shown.pieces.iter().filter(|piece| piece.slot == Some(Slot::Document));
            let document: Vec<_> = document.map(|piece| (piece.cut, piece.text.as_str())).collect();
            assert_eq!(document, expected);
        }
        let strict =
            Truncation { truncate: false, direction: TruncationDirection::Right, limits: TokenLimits::NONE };
        assert_eq!(short.show(&request, strict), Err(Error::TooLong { got: max + 2, max }));
    }
}
