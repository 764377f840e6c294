//! The order in which the tiles of a product are computed.
//!
//! Input: rows in blocks, a weight in panels, and the number of threads. Output: items for threads, and the
//! steps of an item: chunk after chunk of rows, in each one group after the other of panels, in each one
//! slice after the other of the depth, in each one panel after the other. A chunk and a group are an item.
//! What must hold: slices of a panel follow each other in one item, so that a sum has the same bits as
//! without slices.
//!
//! A panel is read once for each chunk, so a chunk has many rows. A slice of their words fits the cache. It
//! is read once for each group, so a group has several panels if there are several slices.

use super::{
    layout::WORDS,
    matrix::Matrix,
    operand::{Operand, OperandBlocks},
    tile::MAX_ROWS,
};
use std::ops::Range;

/// The bytes of packed rows that are multiplied with one panel after the other. They fit a second-level cache
/// together with a panel.
const ROWS_BYTES: usize = 384 * 1024;
/// The rows for which a panel is read. Fewer rows multiply faster than a shared cache delivers panels.
const CHUNK_ROWS: usize = 140;
/// The panels that are multiplied with a slice of rows before the next slice.
const PANELS_PER_GROUP: usize = 4;
/// Guided scheduling: a thread takes 1/SHARE of an equal share of the remaining work.
const SHARE: usize = 4;

/// The order of a product's tiles.
pub(super) struct TileOrder {
    /// The blocks that are multiplied.
    blocks: Range<usize>,
    chunks: usize,
    blocks_per_chunk: usize,
    panels: usize,
    groups: usize,
    panels_per_group: usize,
    pub(super) slices: usize,
    /// The lines of a row, [`WORDS`] words each, and the lines of a slice.
    lines: usize,
    lines_per_slice: usize,
    /// The rows of sums that a thread needs memory for.
    pub(super) sums: usize,
}

/// A step of an item: the slice of a panel that the blocks of a chunk are multiplied with.
#[derive(Clone)]
pub(super) struct PanelSlice {
    pub(super) blocks: Range<usize>,
    pub(super) panel: usize,
    pub(super) slice: usize,
    /// The panel's index in its group.
    place: usize,
}

impl TileOrder {
    pub(super) fn new(x: &OperandBlocks<'_>, weight: &Matrix, threads: usize) -> Self {
        let Operand { block_rows, row_words, .. } = *x.operand;
        let (blocks, panels) = (x.range.len(), weight.panels);
        let block_bytes = block_rows * row_words * size_of::<u32>();
        let mut max_blocks = ROWS_BYTES / block_bytes;
        // A panel of nibbles is expanded as a whole.
        if !weight.has_nibbles() {
            max_blocks = max_blocks.max(CHUNK_ROWS.div_ceil(block_rows));
        }
        // Chunks of about equal size.
        let chunks = blocks.div_ceil(max_blocks.clamp(1, blocks.max(1)));
        let blocks_per_chunk = blocks.div_ceil(chunks.max(1)).max(1);
        let slices =
            if weight.has_nibbles() { 1 } else { (blocks_per_chunk * block_bytes).div_ceil(ROWS_BYTES) };
        let lines = row_words / WORDS;
        let lines_per_slice = lines.div_ceil(slices).max(1);
        let slices = lines.div_ceil(lines_per_slice).max(1);
        let enough = chunks * panels / (SHARE * threads);
        let panels_per_group = if slices == 1 { 1 } else { enough.clamp(1, PANELS_PER_GROUP) };
        let sums = if slices == 1 { MAX_ROWS } else { panels_per_group * blocks_per_chunk * block_rows };
        let groups = panels.div_ceil(panels_per_group);
        Self {
            blocks: x.range.clone(),
            chunks,
            blocks_per_chunk,
            panels,
            groups,
            panels_per_group,
            slices,
            lines,
            lines_per_slice,
            sums,
        }
    }

    /// The ranges of items that threads take one after the other.
    pub(super) fn shares(&self, threads: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        shrinking(self.chunks * self.groups, threads)
    }

    /// The steps of an item.
    pub(super) fn steps(&self, item: usize) -> impl Iterator<Item = PanelSlice> + Clone + use<> {
        let first = self.blocks.start + item / self.groups * self.blocks_per_chunk;
        let blocks = first..self.blocks.end.min(first + self.blocks_per_chunk);
        let first = item % self.groups * self.panels_per_group;
        let panels = first..self.panels.min(first + self.panels_per_group);
        (0..self.slices).flat_map(move |slice| {
            let blocks = blocks.clone();
            panels.clone().enumerate().map(move |(place, panel)| PanelSlice {
                blocks: blocks.clone(),
                panel,
                slice,
                place,
            })
        })
    }

    /// The lines of a slice.
    pub(super) fn lines_of(&self, slice: usize) -> Range<usize> {
        let first = slice * self.lines_per_slice;
        first..self.lines.min(first + self.lines_per_slice)
    }

    /// A slice of a panel's words.
    pub(super) fn words<'a>(&self, panel: &'a [u32], slice: usize) -> &'a [u32] {
        let (lines, per_line) = (self.lines_of(slice), panel.len() / self.lines.max(1));
        &panel[lines.start * per_line..lines.end * per_line]
    }

    /// The row in a thread's memory at which the sums of a step's tile begin. They stay there between slices.
    pub(super) fn place_of_sums(&self, step: &PanelSlice, tile: usize, block_rows: usize) -> usize {
        if self.slices == 1 { 0 } else { (step.place * self.blocks_per_chunk + tile) * block_rows }
    }
}

/// Splits `0..total` into ranges that `threads` threads take one after the other. Each is a share of the
/// remaining work, so that there are few, and all threads end at about the same time.
fn shrinking(total: usize, threads: usize) -> impl Iterator<Item = Range<usize>> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let left = total - from;
        let part = from..from + left.div_ceil(SHARE * threads);
        from = part.end;
        (left > 0).then_some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_each_other_and_shrink_to_one() {
        for (total, threads) in [(0, 1), (1, 4), (7, 2), (64, 2), (1000, 3), (5, 64)] {
            let parts: Vec<_> = shrinking(total, threads).collect();
            let flat: Vec<usize> = parts.iter().cloned().flatten().collect();
            assert_eq!(flat, (0..total).collect::<Vec<_>>());
            assert!(parts.windows(2).all(|pair| pair[0].len() >= pair[1].len()), "{parts:?}");
            assert!(parts.last().is_none_or(|last| last.len() == 1), "{parts:?}");
        }
    }
}
