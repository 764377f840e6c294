//! Activations packed for products: blocks of rows in an [`OperandFormat`], which many threads write row by
//! row.
//!
//! Input: rows of `f32`. Output: an [`Operand`]. What must hold: only one [`OperandRows`] writes each row.

use super::{
    ahead,
    instruction_set::InstructionSet,
    layout::WORDS,
    pack::{self, OperandFormat, Words},
    places::SharedPointer,
    tile,
};
use std::{cell::RefCell, marker::PhantomData, ops::Range};

/// Results up to this size, in bytes, stay in the caches until the next operation reads them. Larger results
/// bypass the caches.
pub(super) const CACHED_BYTES: usize = 2 * 1024 * 1024;

/// Packed rows in blocks `[block][chunk][row][WORDS]`. All blocks but the last have the same height.
#[derive(Debug)]
pub(crate) struct Operand {
    pub(super) format: OperandFormat,
    pub(super) rows: usize,
    pub(super) depth: usize,
    /// The length of a row in words, padding included.
    pub(super) row_words: usize,
    pub(super) block_rows: usize,
    pub(super) words: Words,
    /// The scale of each row of integers.
    pub(super) scales: Vec<f32>,
}

impl Operand {
    /// An operand for products with columns in `format`, with rows of `depth` values in the memory of
    /// `words`. The rows have unspecified content.
    pub(super) fn new(
        set: InstructionSet,
        format: OperandFormat,
        rows: usize,
        depth: usize,
        mut words: Words,
    ) -> Self {
        let format = format.of_rows(set);
        let row_words = format.words(depth);
        let max_rows = tile::rows(set, format);
        let block_rows = rows.div_ceil(rows.div_ceil(max_rows).max(1)).max(1);
        words.resize(rows * row_words);
        let scales = vec![1.0; if format.is_scaled() { rows } else { 0 }];
        Self { format, rows, depth, row_words, block_rows, words, scales }
    }

    /// Splits the rows into consecutive ranges with the lengths in `counts`, one for each thread.
    pub(super) fn split(&mut self, set: InstructionSet, counts: &[usize]) -> Vec<OperandRows<'_>> {
        let Self { format, row_words, .. } = *self;
        let rows = (self.rows, self.block_rows);
        let words = SharedPointer(self.words.as_mut_slice().as_mut_ptr());
        let scales = format.is_scaled().then_some(SharedPointer(self.scales.as_mut_ptr()));
        let mut from = 0_usize;
        let parts = counts.iter().map(|&count| {
            let range = from..from.saturating_add(count);
            from = range.end;
            assert!(from <= rows.0);
            OperandRows { set, format, rows, row_words, range, words, scales, operand: PhantomData }
        });
        parts.collect()
    }

    /// Takes the memory out and leaves no rows.
    pub(crate) fn take_words(&mut self) -> Words {
        self.rows = 0;
        std::mem::take(&mut self.words)
    }

    /// The number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// The format of the packed rows.
    #[cfg(any(test, feature = "benchmarks"))]
    pub(crate) fn format(&self) -> OperandFormat {
        self.format
    }

    /// The values of `f32` rows, one after the other.
    #[cfg(test)]
    pub(crate) fn values(&self) -> Vec<f32> {
        assert!(self.format == OperandFormat::F32);
        self.padded_values().chunks(self.row_words).flat_map(|row| &row[..self.depth]).copied().collect()
    }

    /// All values of `f32` or bfloat16 rows, padding included, row after row.
    #[cfg(test)]
    pub(crate) fn padded_values(&self) -> Vec<f32> {
        let mut values = Vec::new();
        for (_, rows, block) in self.blocks(0..self.block_count()) {
            for row in 0..rows {
                let lines =
                    block.chunks(rows * WORDS).flat_map(|chunk| &chunk[row * WORDS..(row + 1) * WORDS]);
                match self.format {
                    OperandFormat::F32 | OperandFormat::WideBf16 => {
                        values.extend(lines.map(|&word| f32::from_bits(word)));
                    }
                    _ => values
                        .extend(lines.flat_map(|&word| [word << 16, word & 0xffff_0000]).map(f32::from_bits)),
                }
            }
        }
        values
    }

    /// The number of rows whose results, `bytes` each, stay in the caches until they are read: at least one
    /// block, and about equal numbers of blocks in all steps.
    pub(crate) fn rows_per_step(&self, bytes: usize) -> usize {
        let blocks = self.block_count();
        let steps = blocks.div_ceil((CACHED_BYTES / (self.block_rows * bytes)).max(1)).max(1);
        blocks.div_ceil(steps) * self.block_rows
    }

    /// The number of blocks.
    pub(super) fn block_count(&self) -> usize {
        self.rows.div_ceil(self.block_rows)
    }

    /// All blocks.
    pub(super) fn whole(&self) -> OperandBlocks<'_> {
        self.part(0..self.block_count())
    }

    /// The blocks in a range.
    pub(super) fn part(&self, range: Range<usize>) -> OperandBlocks<'_> {
        OperandBlocks { operand: self, range }
    }

    /// The index of the first row, the number of rows and the words of each block in a range.
    pub(super) fn blocks(&self, range: Range<usize>) -> impl Iterator<Item = (usize, usize, &[u32])> {
        range.map(|block| {
            let first = block * self.block_rows;
            let rows = self.block_rows.min(self.rows - first);
            (first, rows, &self.words.as_slice()[first * self.row_words..(first + rows) * self.row_words])
        })
    }
}

/// Some blocks of an operand.
pub(super) struct OperandBlocks<'a> {
    pub(super) operand: &'a Operand,
    pub(super) range: Range<usize>,
}

impl OperandBlocks<'_> {
    /// The index of the first block's first row.
    pub(super) fn first_row(&self) -> usize {
        self.range.start * self.operand.block_rows
    }

    /// The number of rows.
    pub(super) fn rows(&self) -> usize {
        self.operand.rows.min(self.range.end * self.operand.block_rows) - self.first_row()
    }
}

/// Some rows of an operand, which can be written in any order.
pub(crate) struct OperandRows<'a> {
    set: InstructionSet,
    format: OperandFormat,
    /// The number of rows in the operand, and the number of rows per block.
    rows: (usize, usize),
    row_words: usize,
    range: Range<usize>,
    words: SharedPointer<u32>,
    /// The scales, for integers only.
    scales: Option<SharedPointer<f32>>,
    operand: PhantomData<&'a mut Operand>,
}

impl OperandRows<'_> {
    /// The words of one of these rows.
    fn row_lines(&self, row: usize) -> RowLines {
        assert!(self.range.contains(&row));
        let (rows, block_rows) = self.rows;
        let first_row = row - row % block_rows;
        let first = first_row * self.row_words + (row - first_row) * WORDS;
        let stride = block_rows.min(rows - first_row) * WORDS;
        RowLines { words: self.words, first, stride, count: self.row_words / WORDS }
    }

    /// Packs `values` into the row `index` of these rows.
    pub(crate) fn write(&mut self, index: usize, values: &[f32]) {
        let row = self.range.start + index;
        assert!(self.format.words(values.len()) == self.row_words);
        let mut lines = self.row_lines(row);
        if self.format == OperandFormat::F32 {
            let (whole, rest) = values.as_chunks::<WORDS>();
            for (chunk, values) in whole.iter().enumerate() {
                *lines.line_at(chunk) = values.map(f32::to_bits);
            }
            for chunk in whole.len()..lines.count {
                let rest = if chunk == whole.len() { rest } else { &[] };
                pack::row(self.set, self.format, rest, 0, lines.line_at(chunk), &mut 1.0);
            }
            return;
        }
        // They come near while the row is packed. Each is in a cache line of its own.
        (0..lines.count).for_each(|chunk| ahead::bring_near(lines.line_at(chunk)));
        SCRATCH.with_borrow_mut(|words| {
            words.resize(self.row_words, 0);
            let mut scale = 1.0;
            pack::row(self.set, self.format, values, self.set.byte_offset(), words, &mut scale);
            if let Some(scales) = self.scales {
                // SAFETY: in this format `scales` has one value per row. The row is in `self.range` (asserted
                // above), and no other `OperandRows` writes rows of that range.
                let of_row = unsafe { scales.part(row, 1) };
                of_row[0] = scale;
            }
            for (chunk, words) in words.as_chunks().0.iter().enumerate() {
                *lines.line_at(chunk) = *words;
            }
        });
    }
}

/// The words of a row, in lines that the other rows of its block separate.
struct RowLines {
    words: SharedPointer<u32>,
    /// The index of the first line's first word.
    first: usize,
    /// The distance of two lines, in words.
    stride: usize,
    count: usize,
}

impl RowLines {
    fn line_at(&mut self, index: usize) -> &mut [u32; WORDS] {
        assert!(index < self.count);
        // SAFETY: the row's block has as many lines of it. They hold words of this row only, and no other
        // `OperandRows` writes it.
        unsafe { &mut *self.words.0.add(self.first + index * self.stride).cast() }
    }
}

thread_local! {
    /// Holds a row's words before they are placed in a block.
    static SCRATCH: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}
