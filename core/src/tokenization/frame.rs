//! Splits a template into fixed parts, as ids, and parts that are encoded for every request.
//!
//! Input: the pieces of a template, and the tokenizers. Output: [`PromptPart`]s. What must hold: each control
//! token of the literals has its own id; all text between two control tokens, of the template and of the
//! request, is one run that is encoded as one string, because a tokenizer may merge text across borders. A
//! run only ends at a line break of the template if the tokenizer is known to split there. The part before it
//! is then the same for all documents.

use super::{EncoderError, borders::Borders};
use crate::templates::{Piece, Slot, SlotTexts};
use tokenizers::{AddedToken, NormalizedString, Normalizer, Tokenizer};

/// The model's tokenizer with and without its added tokens. Without them, control tokens are text.
pub(super) struct Tokenizers {
    pub(super) full: Tokenizer,
    pub(super) plain: Tokenizer,
    pub(super) controls: Controls,
    /// The plain tokenizer for text after a control token, for tokenizers that mark the beginning of a text.
    inner: Option<Box<Tokenizer>>,
}

impl Tokenizers {
    pub(super) fn new(mut full: Tokenizer) -> Result<Self, EncoderError> {
        full.with_truncation(None).map_err(EncoderError::tokenizer)?;
        full.with_padding(None);
        let plain = without_added_tokens(&full)?;
        let inner = without_mark(&plain)?.map(Box::new);
        let controls = Controls::new(&full);
        Ok(Self { full, plain, controls, inner })
    }

    /// The tokenizer for a text that begins the input, or for one that follows a control token.
    pub(super) fn of_text(&self, begins: bool) -> &Tokenizer {
        match &self.inner {
            Some(inner) if !begins => inner,
            _ => &self.plain,
        }
    }

    /// Refuses a tokenizer whose vocabulary contains a control token even without the added tokens. Control
    /// tokens are the special ones and those that the template uses.
    pub(super) fn check_leaks(&self, literals: &[&str]) -> Result<(), EncoderError> {
        for (id, token) in self.full.get_added_tokens_decoder() {
            let encoding =
                self.plain.encode_fast(token.content.as_str(), false).map_err(EncoderError::tokenizer)?;
            let is_control = token.special || literals.iter().any(|text| text.contains(&token.content));
            if is_control && encoding.get_ids().contains(&id) {
                return Err(EncoderError::Refused(format!(
                    "text of a request that reads `{}` would become that control token with this tokenizer (it is in \
                     the model's vocabulary, too), so that a document could speak in the template's name; if that is \
                     acceptable start with `--parse-special-tokens`",
                    token.content
                )));
            }
        }
        Ok(())
    }
}

/// The tokenizer without its added tokens, for which they are text.
pub(super) fn without_added_tokens(full: &Tokenizer) -> Result<Tokenizer, EncoderError> {
    let mut plain = Tokenizer::new(full.get_model().clone());
    plain.with_normalizer(full.get_normalizer().cloned()).map_err(EncoderError::tokenizer)?;
    plain.with_pre_tokenizer(full.get_pre_tokenizer().cloned());
    plain.with_post_processor(full.get_post_processor().cloned());
    Ok(plain)
}

/// The tokenizer without the mark that it puts before the first word of a text. `None` if it has no such
/// mark.
fn without_mark(tokenizer: &Tokenizer) -> Result<Option<Tokenizer>, EncoderError> {
    const FIRST: &str = r#""prepend_scheme":"first""#;
    let json = tokenizer.to_string(false).map_err(EncoderError::tokenizer)?;
    if !serde_json::to_string(&tokenizer.get_pre_tokenizer()).is_ok_and(|json| json.contains(FIRST)) {
        return Ok(None);
    }
    let without = json.replace(FIRST, r#""prepend_scheme":"never""#);
    without.parse().map(Some).map_err(EncoderError::tokenizer)
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PromptPart {
    /// Ids that are the same in every prompt.
    Fixed(FixedPart),
    /// Pieces that are encoded as one string. At least one of them is a slot.
    Run {
        pieces: Vec<Piece>,
        /// Whether the run begins the input. Some tokenizers put a mark there. All other runs follow a
        /// control token.
        begins: bool,
    },
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FixedPart {
    pub(super) ids: Vec<u32>,
    /// The text that they stand for.
    pub(super) text: String,
    /// The indices of the ids whose states become vectors.
    pub(super) marks: Vec<usize>,
}

/// A piece of a literal: an added token, or text.
enum LiteralPiece {
    Control(u32, String),
    Plain(String),
}

/// Splits a template into parts, and its runs at the given borders.
pub(super) fn parts(
    pieces: &[Piece],
    tokenizers: &Tokenizers,
    borders: Borders,
) -> Result<Vec<PromptPart>, EncoderError> {
    let controls = &tokenizers.controls;
    let mut builder = PartsBuilder { tokenizers, borders, parts: Vec::new(), run: Vec::new(), begins: true };
    for piece in pieces {
        match piece {
            Piece::Slot { .. } => builder.run.push(piece.clone()),
            Piece::Break => {
                builder.end_run()?;
                builder.begins = true;
            }
            Piece::Seam if borders.lines => {
                builder.end_run()?;
                builder.begins = false;
            }
            Piece::Token(id) => {
                builder.end_run()?;
                let text = tokenizers.full.id_to_token(*id);
                let text = text.ok_or_else(|| {
                    EncoderError::Refused(format!(
                        "the prompt ends with the token {id}, which the tokenizer (tokenizer.json) does not have: \
                         check that it belongs to the model"
                    ))
                })?;
                builder.push_fixed(&[*id], &text);
            }
            Piece::Literal(text) | Piece::Mark(text) => {
                for item in controls.split(text, &tokenizers.full)? {
                    match item {
                        LiteralPiece::Control(id, text) => {
                            builder.end_run()?;
                            builder.begins = false;
                            builder.push_fixed(&[id], &text);
                            builder.mark_last(matches!(piece, Piece::Mark(_)));
                        }
                        LiteralPiece::Plain(text) => builder.push_plain(&text)?,
                    }
                }
            }
            // `written_out` replaces them.
            Piece::Seam | Piece::Each(_) | Piece::Count | Piece::Number => {}
        }
    }
    builder.end_run()?;
    Ok(builder.parts)
}

/// The slot of a piece; `None` for other pieces.
pub(super) fn slot_of(piece: &Piece) -> Option<Slot> {
    if let Piece::Slot { slot, .. } = piece { Some(*slot) } else { None }
}

struct PartsBuilder<'a> {
    tokenizers: &'a Tokenizers,
    borders: Borders,
    parts: Vec<PromptPart>,
    run: Vec<Piece>,
    /// Whether the next run begins the input.
    begins: bool,
}

impl PartsBuilder<'_> {
    fn push_plain(&mut self, text: &str) -> Result<(), EncoderError> {
        let mut rest = text;
        if let Some(border) = self.borders.line(text) {
            let (line, behind) = text.split_at(border);
            self.run.push(Piece::Literal(line.to_owned()));
            self.end_run()?;
            self.begins = false;
            rest = behind;
        }
        self.run.push(Piece::Literal(rest.to_owned()));
        Ok(())
    }

    /// A run without slots is encoded here, once.
    fn end_run(&mut self) -> Result<(), EncoderError> {
        let run = std::mem::take(&mut self.run);
        if run.iter().any(|piece| slot_of(piece).is_some()) {
            self.parts.push(PromptPart::Run { pieces: run, begins: self.begins });
            return Ok(());
        }
        let text: String = run.iter().map(|piece| piece.text(&SlotTexts::from(&[""; 3]))).collect();
        if text.is_empty() {
            return Ok(());
        }
        let tokenizer = self.tokenizers.of_text(self.begins);
        let encoding = tokenizer.encode_fast(text.as_str(), false).map_err(EncoderError::tokenizer)?;
        self.push_fixed(encoding.get_ids(), &text);
        Ok(())
    }

    fn push_fixed(&mut self, added: &[u32], literal: &str) {
        match self.parts.last_mut() {
            Some(PromptPart::Fixed(part)) => {
                part.ids.extend_from_slice(added);
                part.text.push_str(literal);
            }
            _ if literal.is_empty() => {}
            _ => self.parts.push(PromptPart::Fixed(FixedPart {
                ids: added.to_vec(),
                text: literal.to_owned(),
                marks: Vec::new(),
            })),
        }
    }

    /// Marks the control token that was just added, if it `is_mark`.
    fn mark_last(&mut self, is_mark: bool) {
        if let Some(PromptPart::Fixed(part)) = self.parts.last_mut()
            && is_mark
        {
            part.marks.extend(part.ids.len().checked_sub(1));
        }
    }
}

/// The added tokens of a tokenizer, longest first.
pub(super) struct Controls(Vec<(u32, AddedToken)>);

impl Controls {
    pub(super) fn new(tokenizer: &Tokenizer) -> Self {
        let mut tokens: Vec<_> = tokenizer.get_added_tokens_decoder().into_iter().collect();
        tokens.retain(|(_, token)| !token.content.is_empty());
        tokens.sort_unstable_by_key(|(id, token)| (std::cmp::Reverse(token.content.len()), *id));
        Self(tokens)
    }

    /// Splits a literal at added tokens: at the leftmost first, and there at the longest, as the tokenizer
    /// itself does.
    fn split(&self, text: &str, tokenizer: &Tokenizer) -> Result<Vec<LiteralPiece>, EncoderError> {
        let mut items = Vec::new();
        let mut rest = text;
        while let Some((start, id, token)) = self.first_in(rest) {
            check_token(token, tokenizer)?;
            if start > 0 {
                items.push(LiteralPiece::Plain(rest[..start].to_owned()));
            }
            items.push(LiteralPiece::Control(id, token.content.clone()));
            rest = &rest[start + token.content.len()..];
        }
        if !rest.is_empty() {
            items.push(LiteralPiece::Plain(rest.to_owned()));
        }
        Ok(items)
    }

    fn first_in(&self, text: &str) -> Option<(usize, u32, &AddedToken)> {
        text.char_indices().find_map(|(start, _)| {
            let found = self.0.iter().find(|(_, token)| text[start..].starts_with(&token.content));
            found.map(|(id, token)| (start, *id, token))
        })
    }
}

/// Refuses tokens of the template that are recognised depending on the text around them.
fn check_token(token: &AddedToken, tokenizer: &Tokenizer) -> Result<(), EncoderError> {
    let settings = [
        ("single_word", token.single_word),
        ("lstrip", token.lstrip),
        ("rstrip", token.rstrip),
        ("normalized", token.normalized && is_changed(tokenizer, &token.content)?),
    ];
    if let Some((setting, _)) = settings.into_iter().find(|(_, is_set)| *is_set) {
        return Err(EncoderError::Refused(format!(
            "the template's token `{}` has `{setting}` set in tokenizer.json, which is not supported: unset it there, \
             or choose another template with `--chat-template`",
            token.content
        )));
    }
    Ok(())
}

fn is_changed(tokenizer: &Tokenizer, text: &str) -> Result<bool, EncoderError> {
    let mut normalized = NormalizedString::from(text);
    if let Some(normalizer) = tokenizer.get_normalizer() {
        normalizer.normalize(&mut normalized).map_err(EncoderError::tokenizer)?;
    }
    Ok(normalized.get() != text)
}
