//! Keys and values in the layout that attention's products read.
//!
//! Input: keys and values next to each other, `[tokens, 2 · key heads · size]`. Output: for each segment and
//! key head, the keys as panels `[panel][word][COLUMNS]` and the values as panels `[panel of the head][word
//! of tokens][COLUMNS]`. What must hold: both are padded with zeros, which do not change a score or a mean. A
//! panel holds the keys of [`COLUMNS`] positions from a multiple of [`COLUMNS`] on, whatever segments they
//! belong to, so that a text's panels are the same in every batch. A segment's first panel therefore begins
//! with keys of earlier segments.

use super::workspace::{WORKSPACE, Workspace};
use crate::attention::Heads;
use crate::kernels::{
    ahead,
    compute::Compute,
    layout::COLUMNS,
    pack::{self, OperandFormat, Words, int16},
};
use std::ops::Range;
use text_embeddings_backend_core::{Batch, Segment};

/// The number of tokens between a row that is packed and the row that is prefetched. The rows of a head lie
/// further apart than the CPU looks ahead by itself.
const AHEAD: usize = 8;

/// The keys and values of a batch, packed per segment and key head.
pub(crate) struct PackedKeys {
    pub(super) format: OperandFormat,
    keys: Words,
    values: Words,
    /// For integers: the scales of each segment's keys, then of its values, for each head.
    scales: Vec<f32>,
    starts: Vec<SegmentStarts>,
}

/// The places of a segment's first head.
#[derive(Clone, Copy, Default)]
struct SegmentStarts {
    keys: usize,
    values: usize,
    scales: usize,
}

/// The packed keys and values of a segment, for one head.
#[derive(Default)]
pub(super) struct PackedHead<W, S> {
    pub(super) keys: W,
    pub(super) values: W,
    /// For integers: a scale for each position of all panels, one for padding.
    pub(super) key_scales: S,
    pub(super) value_scales: S,
}

/// The panels that contain a segment's keys, counted from the text's first panel.
pub(super) fn panels(segment: &Segment) -> Range<usize> {
    segment.position / COLUMNS..(segment.position + segment.rows.len()).div_ceil(COLUMNS)
}

/// The sizes of one segment's panels for one head, in words.
#[derive(Clone, Copy)]
pub(super) struct PackedSize {
    /// The number of positions in all panels.
    pub(super) tokens: usize,
    /// The words of a key.
    pub(super) key: usize,
    /// The words of a column of values. A word holds one or more tokens.
    pub(super) column: usize,
    value_panels: usize,
    /// The number of scales of the keys, and of the values.
    scales: usize,
}

impl PackedSize {
    pub(super) fn new(format: OperandFormat, panels: usize, heads: Heads) -> Self {
        let tokens = panels * COLUMNS;
        Self {
            tokens,
            key: format.words(heads.size),
            column: tokens / format.per_word(),
            value_panels: heads.size.div_ceil(COLUMNS),
            scales: if format.is_scaled() { tokens } else { 0 },
        }
    }

    fn keys(self) -> usize {
        self.tokens * self.key
    }

    fn values(self) -> usize {
        self.value_panels * COLUMNS * self.column
    }
}

impl PackedKeys {
    /// Memory for keys and values in `format`, which is not [`OperandFormat::Int8`].
    pub(crate) fn new(format: OperandFormat) -> Self {
        let words = Words::default;
        Self { format, keys: words(), values: words(), scales: Vec::new(), starts: Vec::new() }
    }

    /// Packs `keys_values`, `[tokens, 2 · key heads · size]`, and overwrites the earlier content. `places`
    /// maps each row of the batch to a row of `keys_values`.
    pub(crate) fn pack(
        &mut self,
        compute: &Compute,
        keys_values: &[f32],
        places: &[usize],
        heads: Heads,
        batch: &Batch,
    ) {
        let format = self.format;
        let sizes: Vec<PackedSize> = batch
            .segments()
            .iter()
            .map(|segment| PackedSize::new(format, panels(segment).len(), heads))
            .collect();
        let mut next = SegmentStarts::default();
        self.starts.clear();
        for size in &sizes {
            self.starts.push(next);
            next.keys += heads.keys * size.keys();
            next.values += heads.keys * size.values();
            next.scales += heads.keys * 2 * size.scales;
        }
        self.keys.resize(next.keys);
        self.values.resize(next.values);
        self.scales.resize(next.scales, 0.0);
        let rows: Vec<Vec<usize>> = (0..sizes.len()).map(|segment| rows(batch, segment)).collect();
        let (mut keys, mut values) = (self.keys.as_mut_slice(), self.values.as_mut_slice());
        let mut scales = self.scales.as_mut_slice();
        let mut items = Vec::new();
        for (rows, &size) in rows.iter().zip(&sizes) {
            for head in 0..heads.keys {
                let mut out = PackedHead::<&mut [u32], &mut [f32]>::default();
                (out.keys, keys) = keys.split_at_mut(size.keys());
                (out.values, values) = values.split_at_mut(size.values());
                (out.key_scales, scales) = scales.split_at_mut(size.scales);
                (out.value_scales, scales) = scales.split_at_mut(size.scales);
                items.push((rows, size, head, out));
            }
        }
        compute.threads.for_each(items.into_iter(), |(rows, size, head, out)| {
            let stride = 2 * heads.keys * heads.size;
            let row = |token: usize, head: usize| {
                &keys_values[places[rows[token]] * stride + head * heads.size..][..heads.size]
            };
            let PackedHead { keys, values, key_scales, value_scales } = out;
            let packing = HeadPacking { compute, format, tokens: rows.len(), size };
            packing.pack_keys(|token| row(token, head), keys, key_scales);
            packing.pack_values(|token| row(token, heads.keys + head), values, value_scales);
        });
    }

    /// The packed keys and values of a segment, for one head.
    pub(super) fn head(&self, segment: usize, head: usize, size: PackedSize) -> PackedHead<&[u32], &[f32]> {
        let SegmentStarts { keys, values, scales } = self.starts[segment];
        let scales = &self.scales[scales + head * 2 * size.scales..][..2 * size.scales];
        let (key_scales, value_scales) = scales.split_at(size.scales);
        PackedHead {
            keys: &self.keys.as_slice()[keys + head * size.keys()..][..size.keys()],
            values: &self.values.as_slice()[values + head * size.values()..][..size.values()],
            key_scales,
            value_scales,
        }
    }
}

/// The rows of the batch with the keys in a segment's panels, in the order of their positions: first keys of
/// its ancestors, if its first panel contains any, then its own.
fn rows(batch: &Batch, segment: usize) -> Vec<usize> {
    let segments = batch.segments();
    let own = &segments[segment];
    let mut missing = own.position % COLUMNS;
    let mut before = Vec::with_capacity(missing);
    let mut ancestor = own.parent;
    while missing > 0
        && let Some(index) = ancestor
    {
        let Segment { rows, parent, .. } = &segments[index];
        let taken = missing.min(rows.len());
        before.extend((rows.end - taken..rows.end).rev());
        (missing, ancestor) = (missing - taken, *parent);
    }
    before.into_iter().rev().chain(own.rows.clone()).collect()
}

/// How to pack the keys and values of one head.
struct HeadPacking<'a> {
    compute: &'a Compute,
    format: OperandFormat,
    /// The number of keys.
    tokens: usize,
    size: PackedSize,
}

impl HeadPacking<'_> {
    /// The rows of a panel's tokens, in the memory of `rows`.
    fn rows_of_panel<'a, 'r>(
        &self,
        row: &impl Fn(usize) -> &'a [f32],
        panel: usize,
        rows: &'r mut [&'a [f32]; COLUMNS],
    ) -> &'r [&'a [f32]] {
        let in_panel = panel * COLUMNS..self.tokens.min((panel + 1) * COLUMNS);
        let rows = &mut rows[..in_panel.len()];
        for (values, token) in rows.iter_mut().zip(in_panel) {
            if token + AHEAD < self.tokens {
                ahead::bring_values_near(row(token + AHEAD));
            }
            *values = row(token);
        }
        rows
    }

    /// Packs keys as panels `[panel][word][COLUMNS]`, padded with zeros.
    fn pack_keys<'a>(&self, row: impl Fn(usize) -> &'a [f32], keys: &mut [u32], scales: &mut [f32]) {
        let Self { compute, format, tokens, size } = *self;
        WORKSPACE.with_borrow_mut(|Workspace { words, .. }| {
            words.resize(COLUMNS * size.key, 0);
            for (panel, out) in keys.chunks_exact_mut(size.key * COLUMNS).enumerate() {
                ahead::bring_values_near(out);
                let mut rows = [&[][..]; COLUMNS];
                let rows = self.rows_of_panel(&row, panel, &mut rows);
                let words = &mut words[..rows.len() * size.key];
                let scales = scales.get_mut(panel * COLUMNS..).unwrap_or_default();
                pack::rows(compute.set, format, rows, words, scales);
                pack::panel(compute.set, words, size.key, out);
            }
        });
        scales.iter_mut().skip(tokens).for_each(|scale| *scale = 1.0);
    }

    /// Packs values as panels `[panel of the head][word of tokens][COLUMNS]`, padded with zeros.
    fn pack_values<'a>(&self, row: impl Fn(usize) -> &'a [f32], values: &mut [u32], scales: &mut [f32]) {
        let Self { compute, format, tokens, size } = *self;
        // The words of a panel's tokens in a panel of the head, and of all tokens.
        let (words, stride) = (COLUMNS / format.per_word() * COLUMNS, size.column * COLUMNS);
        for panel in 0..tokens.div_ceil(COLUMNS) {
            let lines = &mut values[panel * words..];
            lines.chunks(stride).for_each(|lines| ahead::bring_values_near(&lines[..words]));
            let mut rows = [&[][..]; COLUMNS];
            let rows = self.rows_of_panel(&row, panel, &mut rows);
            let scales = scales.get_mut(panel * COLUMNS..).unwrap_or_default();
            if format.is_scaled() {
                int16::write_scales(compute.set, rows, scales);
            }
            pack::pack_lines(compute.set, format, rows, scales, lines, stride);
        }
        scales.iter_mut().skip(tokens).for_each(|scale| *scale = 1.0);
    }
}
