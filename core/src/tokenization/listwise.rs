//! Encodes prompts with a query and many documents, for listwise re-rankers.
//!
//! Input: a [`ListText`]. Output: [`EncodedPrompts`], as many as the documents need by the
//! rule of the authors' code. What must hold: every document is in exactly one prompt, in the order of the
//! request; the marks are tokens of the template, whatever the texts contain; no prompt is longer than the
//! longest input.

mod plan;

use super::{
    Encoded, EncodedPrompts, EncoderError, EncoderOptions, TokenLimits, Truncation, TruncationDirection,
    borders::Borders,
    frame::{self, LiteralPiece},
    prompt::{Tokenizers, no_room},
    text::failed,
};
use crate::{
    error::Error,
    families::{Listwise, QueryLimit},
};
use plan::{Cut, Room};
use std::ops::Range;
use text_embeddings_backend_core::amount;
use tokenizers::Tokenizer;

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

/// Encodes the prompts of a listwise re-ranker.
pub struct ListwiseEncoder {
    tokenizers: Tokenizers,
    borders: Borders,
    form: &'static Listwise,
    before: Vec<LiteralPiece>,
    before_instructed: Vec<LiteralPiece>,
    document: Vec<LiteralPiece>,
    after: Vec<LiteralPiece>,
    pub(super) options: EncoderOptions,
}

/// A text in the form in which it goes into a prompt.
#[derive(Debug, Clone)]
struct ListPiece {
    text: String,
    /// The number of its tokens when it is encoded alone.
    tokens: usize,
    is_cut: bool,
}

/// The texts of a list in the form in which they go into prompts.
struct ListPieces {
    instruction: Option<String>,
    query: ListPiece,
    documents: Vec<ListPiece>,
}

/// A prompt under construction.
#[derive(Default)]
struct Builder {
    ids: Vec<u32>,
    marks: Vec<usize>,
    /// The text since the last control token, and the offset of its first document.
    run: String,
    document_at: Option<usize>,
    reusable: Option<usize>,
}

/// The values for the placeholders of the template.
#[derive(Clone, Copy, Default)]
struct PlaceholderValues<'a> {
    instruction: &'a str,
    query: &'a str,
    document: &'a str,
    count: usize,
    number: usize,
}

impl ListwiseEncoder {
    /// Prepares the prompts of a model. Removes truncation and padding from `tokenizer`.
    ///
    /// # Errors
    ///
    /// As for [`super::PromptEncoder::new`].
    pub fn new(
        tokenizer: Tokenizer,
        form: &'static Listwise,
        options: EncoderOptions,
    ) -> Result<Self, EncoderError> {
        let tokenizers = Tokenizers::new(tokenizer)?;
        let split = |literal: &str| frame::split(literal, &tokenizers.full);
        let (before, before_instructed) = (split(form.before)?, split(form.before_instructed)?);
        let (document, after) = (split(form.document)?, split(form.after)?);
        if !options.parse_special_tokens {
            tokenizers.check_leaks(&[form.before, form.before_instructed, form.document, form.after])?;
        }
        let borders =
            Borders::of(if options.parse_special_tokens { &tokenizers.full } else { &tokenizers.plain });
        Ok(Self { tokenizers, borders, form, before, before_instructed, document, after, options })
    }

    /// Encodes some fixed lists as a test.
    ///
    /// # Errors
    ///
    /// [`EncoderError`] if the marks are not found, if different documents give the same ids, or if the
    /// longest input has no room for a document.
    pub fn self_check(&self) -> Result<(), EncoderError> {
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
        let instruction = list.instruction.or(self.options.default_instruction.as_deref());
        let instruction = instruction.filter(|instruction| !instruction.is_empty());
        let instruction = instruction.map(|instruction| self.without_marks(instruction));
        let query = self.query(list.query, truncation)?;
        let mut documents = Vec::with_capacity(list.documents.len());
        for document in list.documents {
            if is_abandoned() {
                return Err(abandoned());
            }
            documents.push(self.piece(document, self.most_of_document(truncation), truncation)?);
        }
        let mut pieces = ListPieces { instruction, query, documents };
        let mut encoded = EncodedPrompts::default();
        let mut start = 0;
        while start < pieces.documents.len() {
            if is_abandoned() {
                return Err(abandoned());
            }
            let prompt = self.next_prompt(&mut pieces, start, truncation)?;
            // The last mark is the query's.
            start += prompt.marks.len().saturating_sub(1).max(1);
            encoded.prompts.push(prompt);
        }
        let is_cut = |piece: &&ListPiece| piece.is_cut || pieces.query.is_cut;
        encoded.truncated = pieces.documents.iter().filter(is_cut).count();
        Ok(encoded)
    }

    /// The model's tokenizer, with all of its tokens.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizers.full
    }

    /// The most tokens of each document: the model's limit, or the request's if it is smaller.
    fn most_of_document(&self, truncation: Truncation) -> usize {
        let own = self.options.limits.document.unwrap_or(usize::MAX);
        own.min(truncation.limits.document.unwrap_or(usize::MAX))
    }

    fn query(&self, text: &str, truncation: Truncation) -> Result<ListPiece, Error> {
        let own = match self.options.limits.query {
            Some(QueryLimit::Tokens(tokens)) => tokens,
            Some(QueryLimit::ThreeQuarters) | None => usize::MAX,
        };
        let asked = truncation.limits.query.unwrap_or(usize::MAX);
        let may_cut = Truncation { truncate: true, ..truncation };
        let piece = self.piece(text, own.min(asked), may_cut)?;
        if piece.is_cut && own < asked && !truncation.truncate {
            let got = self.encode(&self.without_marks(text))?.len();
            return Err(Error::Validation(format!(
                "`query` must have at most {}. Given: {got}",
                amount(own, "token")
            )));
        }
        Ok(piece)
    }

    /// A text without the authors' marks, with at most `most` tokens. A longer text is cut as in the authors'
    /// code: the tokens that stay are decoded to text.
    fn piece(&self, text: &str, most: usize, truncation: Truncation) -> Result<ListPiece, Error> {
        let text = self.without_marks(text);
        let is_models_limit = truncation.limits.document.is_none_or(|asked| asked > most);
        if !truncation.truncate && is_models_limit {
            // No tokenizer turns this many characters into so few tokens.
            let (got, max) = (text.chars().count(), most.saturating_mul(super::CHARACTERS_PER_TOKEN));
            if got > max {
                return Err(Error::TooManyCharacters { got, max });
            }
            let got = self.encode(&text)?.len();
            if got > most {
                return Err(Error::TooLong { got, max: most });
            }
        }
        let ids = self.encode_end(&text, most, truncation.direction)?;
        let tokens = ids.len().min(most);
        if ids.len() == tokens {
            return Ok(ListPiece { text, tokens, is_cut: false });
        }
        let kept = match truncation.direction {
            TruncationDirection::Right => &ids[..most],
            TruncationDirection::Left => &ids[ids.len() - most..],
        };
        let text = self.tokenizers.full.decode(kept, false).map_err(failed)?;
        Ok(ListPiece { text, tokens, is_cut: true })
    }

    /// The tokens of a text. For a long text, more than `most` tokens at the end that truncation keeps.
    fn encode_end(&self, text: &str, most: usize, direction: TruncationDirection) -> Result<Vec<u32>, Error> {
        let mut attempt = 0;
        loop {
            let gap = self.borders.gap(text, most, direction, attempt);
            let part = match (&gap, direction) {
                (None, _) => text,
                (Some(gap), TruncationDirection::Right) => &text[..gap.start],
                (Some(gap), TruncationDirection::Left) => &text[gap.end..],
            };
            let ids = self.encode(part)?;
            if gap.is_none() || ids.len() > most {
                return Ok(ids);
            }
            attempt += 1;
        }
    }

    fn without_marks(&self, text: &str) -> String {
        self.form.removes.iter().fold(text.to_owned(), |text, mark| text.replace(mark, ""))
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        let parses = self.options.parse_special_tokens;
        let tokenizer = if parses { &self.tokenizers.full } else { self.tokenizers.of_text(true) };
        Ok(tokenizer.encode_fast(text, false).map_err(failed)?.get_ids().to_vec())
    }

    /// The prompt that begins with the document `start`. Cuts its texts if not even one document fits.
    fn next_prompt(
        &self,
        pieces: &mut ListPieces,
        start: usize,
        truncation: Truncation,
    ) -> Result<Encoded, Error> {
        let asked = truncation.limits.prompt;
        let longest = self.options.max_input_length.min(asked.unwrap_or(usize::MAX));
        let room = Room {
            documents: self.form.documents,
            longest,
            longest_document: self.most_of_document(truncation),
        };
        let lengths: Vec<usize> = pieces.documents[start..].iter().map(|piece| piece.tokens).collect();
        let mut count = room.documents_of(&lengths, pieces.query.tokens);
        loop {
            let prompt = self.build(pieces, start..start + count)?;
            let Some(excess) = prompt.ids.len().checked_sub(longest).filter(|excess| *excess > 0) else {
                return Ok(prompt);
            };
            if count > 1 {
                count = plan::without(&lengths[..count], excess);
                continue;
            }
            if !truncation.truncate && asked.is_none() {
                return Err(Error::TooLong { got: prompt.ids.len(), max: longest });
            }
            let [query, document] = [pieces.query.tokens, pieces.documents[start].tokens];
            let Some(Cut { query, document }) = plan::cut(excess, query, document) else {
                return Err(Error::Validation(no_room(
                    prompt.ids.len() - 2 * query - document,
                    longest,
                    longest < self.options.max_input_length,
                )));
            };
            let cut = Truncation { truncate: true, ..truncation };
            if query < pieces.query.tokens {
                pieces.query = ListPiece { is_cut: true, ..self.piece(&pieces.query.text, query, cut)? };
            }
            let piece = &mut pieces.documents[start];
            if document < piece.tokens {
                *piece = ListPiece { is_cut: true, ..self.piece(&piece.text, document, cut)? };
            }
        }
    }

    /// The prompt with a range of documents.
    fn build(&self, pieces: &ListPieces, documents: Range<usize>) -> Result<Encoded, Error> {
        let values = PlaceholderValues {
            instruction: pieces.instruction.as_deref().unwrap_or_default(),
            query: &pieces.query.text,
            count: documents.len(),
            ..PlaceholderValues::default()
        };
        let mut builder = Builder::default();
        let before = if pieces.instruction.is_some() { &self.before_instructed } else { &self.before };
        self.push(&mut builder, before, values)?;
        for (number, piece) in pieces.documents[documents].iter().enumerate() {
            self.push(
                &mut builder,
                &self.document,
                PlaceholderValues { document: &piece.text, number, ..values },
            )?;
        }
        self.push(&mut builder, &self.after, values)?;
        self.end_run(&mut builder)?;
        let Builder { ids, marks, reusable, .. } = builder;
        Ok(Encoded { ids, second: None, marks, truncated: 0, reusable: reusable.unwrap_or(0) })
    }

    fn push(
        &self,
        builder: &mut Builder,
        items: &[LiteralPiece],
        values: PlaceholderValues<'_>,
    ) -> Result<(), Error> {
        for item in items {
            match item {
                LiteralPiece::Plain(text) => builder.push_text(text, values),
                LiteralPiece::Control(id, token) => {
                    self.end_run(builder)?;
                    if [self.form.document_mark, self.form.query_mark].contains(&token.as_str()) {
                        builder.marks.push(builder.ids.len());
                    }
                    builder.ids.push(*id);
                }
            }
        }
        Ok(())
    }

    /// Encodes the text since the last control token as one string.
    fn end_run(&self, builder: &mut Builder) -> Result<(), Error> {
        let run = std::mem::take(&mut builder.run);
        if run.is_empty() {
            return Ok(());
        }
        let parses = self.options.parse_special_tokens;
        let begins = builder.ids.is_empty();
        let tokenizer = if parses { &self.tokenizers.full } else { self.tokenizers.of_text(begins) };
        let encoding = tokenizer.encode(run, false).map_err(failed)?;
        if let (Some(at), None) = (builder.document_at.take(), builder.reusable) {
            let before = encoding.get_offsets().iter().take_while(|(_, end)| *end <= at).count();
            builder.reusable = Some(builder.ids.len() + before);
        }
        builder.ids.extend_from_slice(encoding.get_ids());
        Ok(())
    }
}

impl Builder {
    /// Adds text of the template with values for its placeholders. Values are not searched for placeholders.
    fn push_text(&mut self, text: &str, values: PlaceholderValues<'_>) {
        let mut rest = text;
        while let Some((literal, behind)) = rest.split_once('{') {
            self.run.push_str(literal);
            let (place, behind) = behind.split_once('}').unwrap_or((behind, ""));
            match place {
                "instruction" => self.run.push_str(values.instruction),
                "query" => self.run.push_str(values.query),
                "count" => self.run.push_str(&values.count.to_string()),
                "number" => self.run.push_str(&values.number.to_string()),
                _ => {
                    self.document_at.get_or_insert(self.run.len());
                    self.run.push_str(values.document);
                }
            }
            rest = behind;
        }
        self.run.push_str(rest);
    }
}

/// The error of an abandoned request. No client reads it.
fn abandoned() -> Error {
    Error::Tokenizer("the request was abandoned".to_owned())
}
