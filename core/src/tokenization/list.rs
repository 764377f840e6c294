//! Encodes prompts with a query and many documents, for models that read the documents of a request together.
//!
//! Input: a [`ListText`]. Output: [`EncodedPrompts`], as many as the documents need by the rule of the
//! authors' code. What must hold: every document is in exactly one prompt, in the order of the request; the
//! marks are tokens of the template, whatever the texts contain; no prompt is longer than the longest input.

mod plan;

use super::{
    Encoded, EncodedPrompts, EncoderError, PromptEncoder, TokenLimits, Truncation, TruncationDirection,
    borders::{Borders, SkippedBytes},
    frame,
    prompt::{no_room, too_long_query},
    stretch::Needed,
    tokens::{Tokens, failed},
};
use crate::{
    error::Error,
    families::QueryLimit,
    templates::{SlotTexts, TemplateForm, written_out},
};
use plan::{Cut, Room};
use std::ops::Range;

/// A query and the documents that are read together with it.
#[derive(Debug, Clone, Copy)]
pub struct ListText<'a> {
    /// The instruction, which defines relevance. If absent, the server's default applies.
    pub instruction: Option<&'a str>,
    /// The query.
    pub query: &'a str,
    /// The documents to rank.
    pub documents: &'a [&'a str],
}

/// A text in the form in which it goes into a prompt.
#[derive(Debug, Clone)]
struct FittedText {
    text: String,
    /// The number of its tokens when it is encoded alone.
    tokens: usize,
    is_cut: bool,
}

/// The texts of a list in the form in which they go into prompts.
struct FittedTexts {
    form: TemplateForm,
    instruction: String,
    query: FittedText,
    documents: Vec<FittedText>,
}

impl PromptEncoder {
    /// Encodes some fixed lists as a test.
    pub(super) fn self_check_list(&self) -> Result<(), EncoderError> {
        let encode = |documents: &[&str]| {
            let list = ListText { instruction: None, query: "What is gravity?", documents };
            let truncation = Truncation {
                truncate: true,
                direction: TruncationDirection::Right,
                limits: TokenLimits::NONE,
            };
            self.encode_list(&list, truncation, &|| false).map_err(EncoderError::tokenizer)
        };
        let [first, second] = ["A force that pulls two bodies together.", "Bread is baked from flour."];
        let (one, other) = (encode(&[first, second])?, encode(&[second, first])?);
        let marks: usize = one.prompts.iter().map(|prompt| prompt.marks.len()).sum();
        if one == other || marks != one.prompts.len() + 2 || one.truncated > 0 {
            return Err(EncoderError::Pairs);
        }
        Ok(())
    }

    /// The prompts of a list. Calls `is_abandoned` now and then to learn whether the client is gone.
    ///
    /// # Errors
    ///
    /// [`Error::Validation`] for a query that is too long and may not be cut, or an instruction that leaves
    /// no room for texts; [`Error::TooLong`] and [`Error::TooManyCharacters`] for a document that is too long
    /// and may not be cut; [`Error::Tokenizer`] if the tokenizer fails, or if the client is gone.
    pub fn encode_list(
        &self,
        list: &ListText<'_>,
        truncation: Truncation,
        is_abandoned: &dyn Fn() -> bool,
    ) -> Result<EncodedPrompts, Error> {
        self.check_instruction(list.instruction.unwrap_or_default())?;
        let instruction = self.instruction(list.instruction)?;
        let query = self.fit_query(list.query, truncation)?;
        let mut documents = Vec::with_capacity(list.documents.len());
        for (index, document) in list.documents.iter().enumerate() {
            if is_abandoned() {
                return Err(abandoned());
            }
            let fitted = self.fit_text(document, self.max_document_tokens(truncation), truncation);
            documents.push(match fitted {
                Err(error) if list.documents.len() > 1 => return Err(error.of_input(index)),
                fitted => fitted?,
            });
        }
        let mut texts = FittedTexts {
            form: self.template.form(instruction).unwrap_or(TemplateForm::Instructed),
            instruction: self.without_marks(instruction.unwrap_or_default()),
            query,
            documents,
        };
        let mut encoded = EncodedPrompts::default();
        let mut start = 0;
        while start < texts.documents.len() {
            if is_abandoned() {
                return Err(abandoned());
            }
            let prompt = self.next_prompt(&mut texts, start, truncation)?;
            // The last mark is the query's.
            start += prompt.marks.len().saturating_sub(1).max(1);
            encoded.prompts.push(prompt);
        }
        let is_cut = |document: &&FittedText| document.is_cut || texts.query.is_cut;
        encoded.truncated = texts.documents.iter().filter(is_cut).count();
        Ok(encoded)
    }

    /// The most tokens of each document: the model's limit, or the request's if it is smaller.
    fn max_document_tokens(&self, truncation: Truncation) -> usize {
        let own = self.options.limits.document.unwrap_or(usize::MAX);
        own.min(truncation.limits.document.unwrap_or(usize::MAX))
    }

    fn fit_query(&self, text: &str, truncation: Truncation) -> Result<FittedText, Error> {
        let own = match self.options.limits.query {
            Some(QueryLimit::Tokens(tokens)) => tokens,
            Some(QueryLimit::ThreeQuarters) | None => usize::MAX,
        };
        let asked = truncation.limits.query.unwrap_or(usize::MAX);
        let may_cut = Truncation { truncate: true, ..truncation };
        let piece = self.fit_text(text, own.min(asked), may_cut)?;
        if piece.is_cut && own < asked && !truncation.truncate {
            let got = self.encode(&self.without_marks(text))?.len();
            return Err(too_long_query(got, own));
        }
        Ok(piece)
    }

    /// A text without the authors' marks, with at most `max_tokens` tokens. A longer text is cut as in the
    /// authors' code: the tokens that stay are decoded to text.
    fn fit_text(&self, text: &str, max_tokens: usize, truncation: Truncation) -> Result<FittedText, Error> {
        let text = self.without_marks(text);
        let is_models_limit = truncation.limits.document.is_none_or(|asked| asked > max_tokens);
        if !truncation.truncate && is_models_limit {
            // No tokenizer turns this many characters into so few tokens.
            let (got, max) = (text.chars().count(), max_tokens.saturating_mul(super::CHARACTERS_PER_TOKEN));
            if got > max {
                return Err(Error::TooManyCharacters { got, max });
            }
            // A large text is encoded whole only if it may fit.
            let (mut got, mut max) = (0, max_tokens.saturating_mul(2));
            if self.borders.is_large(&text) {
                got = self.count_tokens(&text)?;
            }
            if got <= max {
                (got, max) = (self.encode(&text)?.len(), max_tokens);
            }
            if got > max {
                return Err(Error::TooLong { got, max: max_tokens });
            }
        }
        let ids = self.encode_end(&text, max_tokens, truncation.direction)?;
        let tokens = ids.len().min(max_tokens);
        if ids.len() == tokens {
            return Ok(FittedText { text, tokens, is_cut: false });
        }
        let kept = match truncation.direction {
            TruncationDirection::Right => &ids[..max_tokens],
            TruncationDirection::Left => &ids[ids.len() - max_tokens..],
        };
        let text = self.tokenizers.full.decode(kept, false).map_err(failed)?;
        Ok(FittedText { text, tokens, is_cut: true })
    }

    /// The tokens of a text. For a long text, more than `max_tokens` tokens at the end that truncation keeps.
    fn encode_end(
        &self,
        text: &str,
        max_tokens: usize,
        direction: TruncationDirection,
    ) -> Result<Vec<u32>, Error> {
        let mut kept = self.borders.first_kept(max_tokens);
        loop {
            let Some(SkippedBytes { range, min_tokens }) =
                self.borders.skipped(text, max_tokens, direction, kept)
            else {
                return self.encode(text);
            };
            let ids = self.encode(match direction {
                TruncationDirection::Right => &text[..range.start],
                TruncationDirection::Left => &text[range.end..],
            })?;
            if ids.len() >= min_tokens {
                return Ok(ids);
            }
            let missing = min_tokens.saturating_sub(ids.len());
            kept = self.borders.grow_kept(text, direction, kept, missing, |part| self.count_tokens(part))?;
        }
    }

    fn without_marks(&self, text: &str) -> String {
        let removes = self.template.list().map_or(&[][..], |list| list.removes);
        removes.iter().fold(text.to_owned(), |text, mark| text.replace(mark, ""))
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        Ok(self.encode_run(text, true)?.ids)
    }

    /// The prompt that begins with the document `start`. Cuts its texts if not even one document fits.
    fn next_prompt(
        &self,
        texts: &mut FittedTexts,
        start: usize,
        truncation: Truncation,
    ) -> Result<Encoded, Error> {
        let asked = truncation.limits.prompt;
        let max_length = self.options.max_input_length.min(asked.unwrap_or(usize::MAX));
        let room = Room {
            documents: self.template.list().map_or(1, |list| list.max_documents),
            tokens: max_length,
            document_tokens: self.max_document_tokens(truncation),
        };
        let lengths: Vec<usize> = texts.documents[start..].iter().map(|piece| piece.tokens).collect();
        let mut count = room.documents_of(&lengths, texts.query.tokens);
        loop {
            let prompt = self.list_prompt(texts, start..start + count)?;
            let Some(excess) = prompt.ids.len().checked_sub(max_length).filter(|excess| *excess > 0) else {
                return Ok(prompt);
            };
            if count > 1 {
                count = plan::without(&lengths[..count], excess);
                continue;
            }
            if !truncation.truncate && asked.is_none() {
                return Err(Error::TooLong { got: prompt.ids.len(), max: max_length });
            }
            let [query, document] = [texts.query.tokens, texts.documents[start].tokens];
            let Some(Cut { query, document }) = plan::cut(excess, query, document) else {
                return Err(Error::Validation(no_room(
                    prompt.ids.len() - 2 * query - document,
                    max_length,
                    max_length < self.options.max_input_length,
                )));
            };
            let cut = Truncation { truncate: true, ..truncation };
            if query < texts.query.tokens {
                texts.query = FittedText { is_cut: true, ..self.fit_text(&texts.query.text, query, cut)? };
            }
            let piece = &mut texts.documents[start];
            if document < piece.tokens {
                *piece = FittedText { is_cut: true, ..self.fit_text(&piece.text, document, cut)? };
            }
        }
    }

    fn list_prompt(&self, texts: &FittedTexts, documents: Range<usize>) -> Result<Encoded, Error> {
        let pieces = written_out(self.template.pieces(texts.form), documents.len());
        let parts = frame::parts(&pieces, &self.tokenizers, Borders::default());
        let parts = parts.map_err(|error| Error::Tokenizer(error.to_string()))?;
        let documents: Vec<&str> = texts.documents[documents].iter().map(|text| text.text.as_str()).collect();
        let texts =
            SlotTexts { instruction: &texts.instruction, query: &texts.query.text, documents: &documents };
        let tokens = Tokens::from_stretches(&self.stretches(&parts, &texts, Needed::ALL, None)?);
        let Tokens { ids, marks, before_documents, .. } = tokens;
        let reusable = before_documents.unwrap_or(0);
        Ok(Encoded { ids, second: None, marks, unattended: 0, kind: 0, truncated: 0, reusable })
    }
}

/// The error of an abandoned request. No client reads it.
fn abandoned() -> Error {
    Error::Tokenizer("the request was abandoned".to_owned())
}
