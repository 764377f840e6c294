//! The keys that queries attend to, in pieces and steps.
//!
//! Input: the packed keys of a batch's segments. Output: for a text, the panels on its way from the root, in
//! steps that begin at multiples of [`KEYS_PER_STEP`] positions of the text.

use crate::{
    attention::{Heads, Scoring},
    cpu::{
        disentangled::DisentangledScores,
        packed_keys::{PackedKeys, panels},
    },
    kernels::layout::COLUMNS,
};
use std::ops::Range;
use text_embeddings_backend_core::Batch;

/// The number of keys whose scores are computed before the softmax takes them in: a multiple of a panel.
pub(super) const KEYS_PER_STEP: usize = 16 * COLUMNS;

/// The keys that queries attend to, and the rules of attention.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    /// Keys and values.
    pub(crate) packed: &'a PackedKeys,
    /// The batch of the keys.
    pub(crate) batch: &'a Batch,
    /// The layer's heads.
    pub(crate) heads: Heads,
    /// The way in which scores become weights.
    pub(crate) scoring: Scoring<'a>,
    /// Additional scores with positions (DeBERTa).
    pub(crate) disentangled: Option<&'a DisentangledScores<'a>>,
}

/// Consecutive panels of a text.
pub(super) struct KeyPiece {
    /// The segment that owns them.
    pub(super) segment: usize,
    /// The range of all panels of that segment, counted in the text.
    pub(super) all: Range<usize>,
    /// The panels of this piece: all except a last one that the next segment's first panel contains as well.
    pub(super) panels: Range<usize>,
}

/// The panels of the text that ends with `segment`.
pub(super) fn pieces(batch: &Batch, segment: usize) -> Vec<KeyPiece> {
    let path = batch.path(segment);
    let all: Vec<Range<usize>> = path.iter().map(|&segment| panels(&batch.segments()[segment])).collect();
    let end = |index: usize| all.get(index + 1).map_or(all[index].end, |next| next.start);
    let piece = |(index, &segment): (usize, &usize)| {
        let panels = all[index].start..end(index);
        KeyPiece { segment, all: all[index].clone(), panels }
    };
    path.iter().enumerate().map(piece).filter(|piece| !piece.panels.is_empty()).collect()
}

/// Keys of a text that the softmax takes in together.
#[derive(Clone, Copy)]
pub(super) struct KeyStep<'a> {
    /// The position of the first key.
    pub(super) first: usize,
    /// The number of keys.
    pub(super) tokens: usize,
    pub(super) packed: &'a PackedKeys,
    /// All pieces of the text.
    pub(super) pieces: &'a [KeyPiece],
}

impl<'a> KeyStep<'a> {
    /// Its range of panels, counted in the text.
    pub(super) fn panels(self) -> Range<usize> {
        self.first / COLUMNS..(self.first + self.tokens).div_ceil(COLUMNS)
    }

    /// The pieces that contain some of its panels, each with the indices of these panels in the piece's
    /// segment.
    pub(super) fn pieces(self) -> impl Iterator<Item = (&'a KeyPiece, Range<usize>)> {
        let panels = self.panels();
        self.pieces.iter().filter_map(move |piece| {
            let from = panels.start.max(piece.panels.start);
            let to = panels.end.min(piece.panels.end);
            (from < to).then(|| (piece, from - piece.all.start..to - piece.all.start))
        })
    }
}
