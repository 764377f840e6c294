//! Builds a prompt from stretches: fixed parts of the template, and runs that are encoded for each request.
//!
//! Input: the parts of a template, and the texts of a request. Output: [`Stretch`]es, and from these the
//! prompt's [`Tokens`]. What must hold: the tokens of a text that truncation keeps are the same as in the
//! whole text; only bytes whose tokens are cut anyway stay unencoded.

use super::{
    Truncation, TruncationDirection,
    frame::{PromptPart, slot_of},
    prompt::PromptEncoder,
    text::failed,
    tokens::{Owner, Tokens},
};
use crate::{
    error::Error,
    templates::{Piece, Slot},
};
use std::{ops::Range, sync::OnceLock};
use tokenizers::Encoding;

/// An encoded stretch of a prompt.
pub(super) enum Stretch<'a> {
    /// A part of the template alone.
    Fixed { ids: &'a [u32], text: &'a str },
    /// A part that contains texts of the request.
    Run(Box<Run>),
}

/// Literals and texts that were encoded as one string.
pub(super) struct Run {
    pub(super) text: String,
    /// The ranges of bytes in `text` and their slots, in order and without gaps. `None` is the template.
    pub(super) spans: Vec<(Range<usize>, Option<Slot>)>,
    /// The encoding. Its offsets are bytes of `text`.
    pub(super) encoding: Encoding,
}

/// The most tokens that truncation keeps of a request's texts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Needed {
    pub(super) query: usize,
    pub(super) document: usize,
    pub(super) direction: TruncationDirection,
}

/// The runs before the document, if they are the same for all documents of a request. The first text that
/// needs them encodes them.
pub(super) type SharedRuns = OnceLock<Result<Vec<Option<RunTokens>>, Error>>;

/// The tokens of a run.
#[derive(Debug, Clone)]
pub(super) struct RunTokens {
    ids: Vec<u32>,
    owners: Vec<Owner>,
}

/// A range of bytes that was skipped after a run.
struct Gap {
    run: usize,
    slot: Slot,
}

impl Needed {
    /// The limits of `truncation` for inputs of at most `max` tokens. If nothing may be cut, all tokens are
    /// needed, because the error states their number.
    pub(super) fn of(truncation: Truncation, max: usize) -> Self {
        let most = |limit: Option<usize>| {
            if truncation.truncate { limit.unwrap_or(max).min(max) } else { usize::MAX }
        };
        let limits = truncation.limits;
        Self { query: most(limits.query), document: most(limits.document), direction: truncation.direction }
    }

    fn of_slot(self, slot: Slot) -> usize {
        match slot {
            Slot::Instruction => usize::MAX,
            Slot::Query => self.query,
            Slot::Document => self.document,
        }
    }
}

impl PromptEncoder {
    /// The prompt before truncation, as stretches.
    pub(super) fn stretches<'s>(
        &'s self,
        parts: &'s [PromptPart],
        texts: [&str; 3],
    ) -> Result<Vec<Stretch<'s>>, Error> {
        let stretch = |part: &'s PromptPart| match part {
            PromptPart::Fixed { ids, text } => Ok(Stretch::Fixed { ids, text }),
            PromptPart::Run { pieces, begins } => {
                let mut string = RunString::default();
                for piece in pieces {
                    string.push(piece.text(texts), slot_of(piece));
                }
                Ok(Stretch::Run(Box::new(string.encode(self, *begins)?)))
            }
        };
        parts.iter().map(stretch).collect()
    }

    /// The tokens of the prompt. Tokens of texts that truncation cuts anyway may be missing.
    pub(super) fn tokens(
        &self,
        parts: &[PromptPart],
        texts: [&str; 3],
        needed: Needed,
        shared: Option<&SharedRuns>,
    ) -> Result<Tokens, Error> {
        let encode = |part: &PromptPart| match part {
            PromptPart::Fixed { .. } => Ok(None),
            PromptPart::Run { pieces, begins } => self.run_tokens(pieces, *begins, texts, needed).map(Some),
        };
        let is_shared = |part: &PromptPart| !part.slots().contains(&Slot::Document);
        let encode_shared =
            || parts.iter().map(|part| if is_shared(part) { encode(part) } else { Ok(None) }).collect();
        let shared = match shared {
            None => &[],
            Some(shared) => shared.get_or_init(encode_shared).as_ref().map_err(Clone::clone)?.as_slice(),
        };
        let mut prompt = PromptTokens::default();
        for (index, part) in parts.iter().enumerate() {
            if let PromptPart::Fixed { ids, .. } = part {
                prompt.push_fixed(ids);
                continue;
            }
            let known = shared.get(index).and_then(Option::as_ref);
            let own = if known.is_some() { None } else { encode(part)? };
            if let Some(RunTokens { ids, owners }) = known.or(own.as_ref()) {
                prompt.push(&part.slots(), ids, owners.iter().copied());
            }
        }
        Ok(prompt.end())
    }

    /// Encodes longer and longer parts of long texts, until there are enough tokens of each.
    fn run_tokens(
        &self,
        pieces: &[Piece],
        begins: bool,
        texts: [&str; 3],
        needed: Needed,
    ) -> Result<RunTokens, Error> {
        let mut attempt = 0;
        loop {
            let gap = |piece: &Piece, text: &str| {
                let most = slot_of(piece).map_or(usize::MAX, |slot| needed.of_slot(slot));
                self.borders.gap(text, most, needed.direction, attempt)
            };
            let (runs, gaps) = self.encode_runs(pieces, begins, texts, gap)?;
            let is_enough = |gap: &Gap| {
                let (before, behind) = runs.split_at(gap.run + 1);
                let kept = match needed.direction {
                    TruncationDirection::Right => before,
                    TruncationDirection::Left => behind,
                };
                let owners = kept.iter().flat_map(Run::owners);
                owners.filter(|owner| *owner == gap.slot.into()).count() >= needed.of_slot(gap.slot)
            };
            if gaps.iter().all(is_enough) {
                let ids = runs.iter().flat_map(|run| run.encoding.get_ids()).copied().collect();
                return Ok(RunTokens { ids, owners: runs.iter().flat_map(Run::owners).collect() });
            }
            attempt += 1;
        }
    }

    /// Encodes literals and texts without control tokens between them as one string, except for the bytes
    /// that `gap` returns for the text of a piece. `texts` are in the order of [`Slot`].
    fn encode_runs(
        &self,
        pieces: &[Piece],
        begins: bool,
        texts: [&str; 3],
        gap: impl Fn(&Piece, &str) -> Option<Range<usize>>,
    ) -> Result<(Vec<Run>, Vec<Gap>), Error> {
        let (mut runs, mut gaps) = (Vec::new(), Vec::new());
        let mut string = RunString::default();
        for piece in pieces {
            let (text, slot) = (piece.text(texts), slot_of(piece));
            match (gap(piece, text), slot) {
                (Some(gap), Some(slot)) => {
                    string.push(&text[..gap.start], Some(slot));
                    gaps.push(Gap { run: runs.len(), slot });
                    runs.push(std::mem::take(&mut string).encode(self, begins && runs.is_empty())?);
                    string.push(&text[gap.end..], Some(slot));
                }
                _ => string.push(text, slot),
            }
        }
        runs.push(string.encode(self, begins && runs.is_empty())?);
        Ok((runs, gaps))
    }
}

/// A run that is not encoded yet.
#[derive(Default)]
struct RunString {
    text: String,
    spans: Vec<(Range<usize>, Option<Slot>)>,
}

impl RunString {
    fn push(&mut self, text: &str, slot: Option<Slot>) {
        let start = self.text.len();
        self.text.push_str(text);
        self.spans.push((start..self.text.len(), slot));
    }

    fn encode(self, encoder: &PromptEncoder, begins: bool) -> Result<Run, Error> {
        let Self { text, spans } = self;
        let parses = encoder.options.parse_special_tokens;
        let tokenizers = &encoder.tokenizers;
        let tokenizer = if parses { &tokenizers.full } else { tokenizers.of_text(begins) };
        let encoding = tokenizer.encode(text.as_str(), false).map_err(failed)?;
        Ok(Run { text, spans, encoding })
    }
}

impl Run {
    /// The slot of the character that ends at this byte.
    pub(super) fn slot_before(&self, end: usize) -> Option<Slot> {
        self.spans.iter().find(|(span, _)| span.start < end && end <= span.end).and_then(|(_, slot)| *slot)
    }

    /// The owner of each token.
    fn owners(&self) -> impl Iterator<Item = Owner> {
        let ends = self.encoding.get_offsets().iter().map(|(_, end)| *end);
        ends.map(|end| self.slot_before(end).map_or(Owner::Frame, Owner::from))
    }
}

impl From<Slot> for Owner {
    fn from(slot: Slot) -> Self {
        match slot {
            Slot::Query => Self::Query,
            Slot::Document => Self::Document,
            Slot::Instruction => Self::Frame,
        }
    }
}

/// Collects the tokens of a prompt from its stretches.
#[derive(Default)]
struct PromptTokens {
    tokens: Tokens,
    has_text: bool,
    has_query: bool,
    /// The number of tokens after the last stretch with a text of the request.
    behind: usize,
}

impl PromptTokens {
    fn push_fixed(&mut self, ids: &[u32]) {
        self.push(&[], ids, std::iter::repeat_n(Owner::Frame, ids.len()));
    }

    /// Adds a run that contains these slots.
    fn push(&mut self, slots: &[Slot], ids: &[u32], owners: impl Iterator<Item = Owner> + Clone) {
        if slots.contains(&Slot::Query) && !self.has_query {
            self.has_query = true;
            let is_frame = |owner: &Owner| *owner == Owner::Frame;
            self.tokens.before_query = owners.clone().take_while(is_frame).count();
        }
        if slots.iter().any(|slot| *slot != Slot::Instruction) {
            self.has_text = true;
            self.behind = 0;
        } else if self.has_text {
            self.behind += ids.len();
        } else {
            self.tokens.outer += ids.len();
        }
        self.tokens.ids.extend_from_slice(ids);
        self.tokens.owners.extend(owners);
    }

    fn end(mut self) -> Tokens {
        self.tokens.outer += self.behind;
        self.tokens
    }
}

impl Stretch<'_> {
    /// The tokens of all stretches of a prompt.
    pub(super) fn join(stretches: &[Self]) -> Tokens {
        let mut prompt = PromptTokens::default();
        for stretch in stretches {
            match stretch {
                Self::Fixed { ids, .. } => prompt.push_fixed(ids),
                Self::Run(run) => {
                    let slots: Vec<Slot> = run.spans.iter().filter_map(|(_, slot)| *slot).collect();
                    let owners: Vec<Owner> = run.owners().collect();
                    prompt.push(&slots, run.encoding.get_ids(), owners.iter().copied());
                }
            }
        }
        prompt.end()
    }
}
