//! Builds a prompt from stretches: fixed parts of the template, and runs that are encoded for each request.
//!
//! Input: the parts of a template, and the texts of a request. Output: [`Stretch`]es, which say for each
//! token which text it comes from, and the prompt's [`Tokens`]. What must hold: the tokens of a text that
//! truncation keeps are the same as in the whole text; only bytes whose tokens are cut anyway stay unencoded.

use super::{
    Truncation, TruncationDirection,
    borders::SkippedBytes,
    byte_words::TextTokens,
    frame::{FixedPart, PromptPart, slot_of},
    prompt::PromptEncoder,
    tokens::{Owner, Tokens},
};
use crate::{
    error::Error,
    templates::{Piece, Slot, SlotTexts},
};
use std::{borrow::Cow, ops::Range, sync::OnceLock};

/// An encoded part of a prompt.
pub(super) enum Stretch<'a> {
    /// A part of the template alone.
    Fixed(&'a FixedPart),
    /// A part with texts of the request. It is one run, or several where bytes were skipped.
    Runs(Cow<'a, [Run]>),
}

/// Literals and texts that were encoded as one string.
#[derive(Debug, Clone, Default)]
pub(super) struct Run {
    pub(super) text: String,
    /// The sources of the text, in order and without gaps.
    pub(super) spans: Vec<Span>,
    pub(super) ids: Vec<u32>,
    /// For each token, the end of its text, as an offset in `text`.
    pub(super) ends: Vec<usize>,
}

/// A part of a run that comes from one source.
#[derive(Debug, Clone)]
pub(super) struct Span {
    pub(super) range: Range<usize>,
    /// `None` is the template.
    pub(super) slot: Option<Slot>,
}

/// The most tokens that truncation keeps of a request's texts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Needed {
    pub(super) query: usize,
    pub(super) document: usize,
    pub(super) direction: TruncationDirection,
}

/// The runs of the parts before the document, if they are the same for all documents of a request. The first
/// text that needs them encodes them. `None` for other parts.
pub(super) type SharedRuns = OnceLock<Result<Vec<Option<Vec<Run>>>, Error>>;

/// Bytes that were skipped after a run.
struct Gap {
    run: usize,
    /// The index of the piece whose text has the bytes.
    piece: usize,
    slot: Slot,
    /// The least number of tokens of the slot that must be encoded.
    min_tokens: usize,
}

impl Gap {
    /// The tokens of the slot at the end that truncation keeps.
    fn count_kept(&self, runs: &[Run], direction: TruncationDirection) -> usize {
        let (before, behind) = runs.split_at(self.run + 1);
        let kept = match direction {
            TruncationDirection::Right => before,
            TruncationDirection::Left => behind,
        };
        kept.iter().flat_map(Run::owners).filter(|owner| *owner == self.slot.into()).count()
    }
}

impl Needed {
    pub(super) const ALL: Self =
        Self { query: usize::MAX, document: usize::MAX, direction: TruncationDirection::Right };

    /// The limits of `truncation` for inputs of at most `max` tokens. Of a text that may not be cut, all
    /// tokens are needed, because the error states their number.
    pub(super) fn new(truncation: Truncation, max: usize) -> Self {
        let limits = truncation.limits;
        let is_cut = truncation.truncate || limits.prompt.is_some();
        let needed = |limit: Option<usize>| match limit {
            Some(limit) if limit < max => limit,
            _ if is_cut => max,
            _ => usize::MAX,
        };
        Self {
            query: needed(limits.query),
            document: needed(limits.document),
            direction: truncation.direction,
        }
    }

    fn tokens_of_piece(self, piece: &Piece) -> usize {
        slot_of(piece).map_or(usize::MAX, |slot| self.tokens_of(slot))
    }

    fn tokens_of(self, slot: Slot) -> usize {
        match slot {
            Slot::Instruction => usize::MAX,
            Slot::Query => self.query,
            Slot::Document => self.document,
        }
    }
}

impl PromptEncoder {
    /// The encoded parts of a prompt. Tokens of texts that are not needed may be missing.
    pub(super) fn stretches<'s>(
        &self,
        parts: &'s [PromptPart],
        texts: &SlotTexts<'_>,
        needed: Needed,
        shared: Option<&'s SharedRuns>,
    ) -> Result<Vec<Stretch<'s>>, Error> {
        let known = match shared {
            None => &[],
            Some(shared) => shared
                .get_or_init(|| self.shared_runs(parts, texts, needed))
                .as_ref()
                .map_err(Clone::clone)?
                .as_slice(),
        };
        let mut stretches = Vec::with_capacity(parts.len());
        for (index, part) in parts.iter().enumerate() {
            stretches.push(match part {
                PromptPart::Fixed(part) => Stretch::Fixed(part),
                PromptPart::Run { pieces, begins } => Stretch::Runs(match known.get(index) {
                    Some(Some(runs)) => Cow::Borrowed(runs.as_slice()),
                    _ => Cow::Owned(self.encode_part(pieces, *begins, texts, needed)?),
                }),
            });
        }
        Ok(stretches)
    }

    /// The runs of the parts without a document.
    fn shared_runs(
        &self,
        parts: &[PromptPart],
        texts: &SlotTexts<'_>,
        needed: Needed,
    ) -> Result<Vec<Option<Vec<Run>>>, Error> {
        parts
            .iter()
            .map(|part| match part {
                PromptPart::Run { pieces, begins }
                    if pieces.iter().all(|piece| slot_of(piece) != Some(Slot::Document)) =>
                {
                    self.encode_part(pieces, *begins, texts, needed).map(Some)
                }
                PromptPart::Run { .. } | PromptPart::Fixed(_) => Ok(None),
            })
            .collect()
    }

    /// Encodes longer and longer parts of long texts, until there are enough tokens of each.
    fn encode_part(
        &self,
        pieces: &[Piece],
        begins: bool,
        texts: &SlotTexts<'_>,
        needed: Needed,
    ) -> Result<Vec<Run>, Error> {
        let direction = needed.direction;
        let mut kept: Vec<usize> =
            pieces.iter().map(|piece| self.borders.first_kept(needed.tokens_of_piece(piece))).collect();
        loop {
            let skipped = |index: usize, text: &str| {
                let max = needed.tokens_of_piece(&pieces[index]);
                self.borders.skipped(text, max, direction, kept[index])
            };
            let (runs, gaps) = self.encode_runs(pieces, begins, texts, skipped)?;
            let mut are_enough = true;
            for gap in &gaps {
                let missing = gap.min_tokens.saturating_sub(gap.count_kept(&runs, direction));
                if missing > 0 {
                    are_enough = false;
                    let (text, before) = (pieces[gap.piece].text(texts), kept[gap.piece]);
                    kept[gap.piece] = self
                        .borders
                        .grow_kept(text, direction, before, missing, |part| self.count_tokens(part))?;
                }
            }
            if are_enough {
                return Ok(runs);
            }
        }
    }

    /// Encodes literals and texts without control tokens between them as one string, except for the bytes
    /// that `skipped` returns for a piece and its text.
    fn encode_runs(
        &self,
        pieces: &[Piece],
        begins: bool,
        texts: &SlotTexts<'_>,
        skipped: impl Fn(usize, &str) -> Option<SkippedBytes>,
    ) -> Result<(Vec<Run>, Vec<Gap>), Error> {
        let (mut runs, mut gaps) = (Vec::new(), Vec::new());
        let mut run = Run::default();
        for (index, piece) in pieces.iter().enumerate() {
            let (text, slot) = (piece.text(texts), slot_of(piece));
            match (skipped(index, text), slot) {
                (Some(SkippedBytes { range, min_tokens }), Some(slot)) => {
                    run.push(&text[..range.start], Some(slot));
                    gaps.push(Gap { run: runs.len(), piece: index, slot, min_tokens });
                    runs.push(std::mem::take(&mut run).encoded(self, begins && runs.is_empty())?);
                    run.push(&text[range.end..], Some(slot));
                }
                _ => run.push(text, slot),
            }
        }
        runs.push(run.encoded(self, begins && runs.is_empty())?);
        Ok((runs, gaps))
    }
}

impl Run {
    fn push(&mut self, text: &str, slot: Option<Slot>) {
        let start = self.text.len();
        self.text.push_str(text);
        self.spans.push(Span { range: start..self.text.len(), slot });
    }

    fn encoded(mut self, encoder: &PromptEncoder, begins: bool) -> Result<Self, Error> {
        let TextTokens { ids, offsets } = encoder.encode_run(&self.text, begins)?;
        (self.ids, self.ends) = (ids, offsets.into_iter().map(|(_, end)| end).collect());
        Ok(self)
    }

    /// The slot of the character that ends at this byte.
    pub(super) fn slot_before(&self, end: usize) -> Option<Slot> {
        let span = self.spans.iter().find(|span| span.range.start < end && end <= span.range.end)?;
        span.slot
    }

    fn owners(&self) -> impl Iterator<Item = Owner> {
        self.ends.iter().map(|end| self.slot_before(*end).map_or(Owner::Frame, Owner::from))
    }

    fn has_slot(&self, slot: Slot) -> bool {
        self.spans.iter().any(|span| span.slot == Some(slot))
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

impl Tokens {
    pub(super) fn from_stretches(stretches: &[Stretch<'_>]) -> Self {
        let mut tokens = Self::default();
        // The number of tokens after the last stretch with a query or a document.
        let mut behind = None;
        let mut has_query = false;
        for stretch in stretches {
            let start = tokens.ids.len();
            let mut has_text = false;
            match stretch {
                Stretch::Fixed(part) => {
                    tokens.marks.extend(part.marks.iter().map(|mark| start + mark));
                    tokens.ids.extend_from_slice(&part.ids);
                    tokens.owners.resize(tokens.ids.len(), Owner::Frame);
                }
                Stretch::Runs(runs) => {
                    for run in runs.iter() {
                        tokens.push_run(run);
                    }
                    let is_query = runs.iter().any(|run| run.has_slot(Slot::Query));
                    has_text = is_query || runs.iter().any(|run| run.has_slot(Slot::Document));
                    if is_query && !has_query {
                        has_query = true;
                        let owners = tokens.owners[start..].iter();
                        tokens.before_query = owners.take_while(|owner| **owner == Owner::Frame).count();
                    }
                }
            }
            let added = tokens.ids.len() - start;
            match behind {
                _ if has_text => behind = Some(0),
                Some(before) => behind = Some(before + added),
                None => tokens.outer += added,
            }
        }
        tokens.outer += behind.unwrap_or_default();
        tokens
    }

    fn push_run(&mut self, run: &Run) {
        if self.before_documents.is_none()
            && let Some(span) = run.spans.iter().find(|span| span.slot == Some(Slot::Document))
        {
            let before = run.ends.iter().take_while(|end| **end <= span.range.start).count();
            self.before_documents = Some(self.ids.len() + before);
        }
        self.owners.extend(run.owners());
        self.ids.extend_from_slice(&run.ids);
    }
}
