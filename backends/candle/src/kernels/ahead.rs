//! Prefetching: hints to bring memory near before it is read or written.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

use super::layout::WORDS;

/// Memory that will be needed soon. Each chunk prefetches a part of it. Only a hint: ARM ignores it, and AMX
/// the words.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ahead {
    /// Words that the next tiles read.
    words: *const u32,
    /// The number of cache lines of them to prefetch per chunk.
    lines: usize,
    /// The place of the first row's sums after this tile: two lines.
    place: *const f32,
    /// The distance between the places of two rows, in values.
    stride: usize,
    /// The number of rows whose places to prefetch per chunk.
    rows: usize,
}

impl Ahead {
    /// No memory to prefetch.
    pub(crate) const NOTHING: Self =
        Self { words: std::ptr::null(), lines: 0, place: std::ptr::null(), stride: 0, rows: 0 };

    /// The part of `words` that the first of `tiles` tiles of `chunks` chunks prefetches.
    #[inline]
    pub(crate) fn of_tiles(words: &[u32], tiles: usize, chunks: usize) -> Self {
        let lines = words.len().div_ceil(WORDS * tiles.max(1) * chunks.max(1));
        Self { words: words.as_ptr(), lines, ..Self::NOTHING }
    }

    /// The part of the tile number `tile`.
    #[inline]
    pub(crate) fn of_tile(self, tile: usize, chunks: usize) -> Self {
        Self { words: self.words.wrapping_add(tile * chunks * self.lines * WORDS), ..self }
    }

    /// Also the places of rows from `place` on, `per_chunk` in each chunk.
    #[inline]
    pub(crate) fn with_places(self, place: *const f32, stride: usize, per_chunk: usize) -> Self {
        Self { place, stride, rows: per_chunk, ..self }
    }

    /// The parts of two equal calls of `chunks` chunks each. The first prefetches all places. If it
    /// prefetched all words, too, memory would be idle during the second: in BERT-base in `f32`, that took a
    /// quarter of a short text's time.
    #[inline]
    pub(super) fn split_in_halves(self, chunks: usize) -> [Self; 2] {
        let lines = self.lines.div_ceil(2);
        let words = self.words.wrapping_add(chunks * lines * WORDS);
        [Self { lines, ..self }, Self { words, lines: self.lines - lines, ..Self::NOTHING }]
    }

    /// Prefetches the places of `chunks` chunks.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn bring_places(self, chunks: usize) {
        let mut places = Self { lines: 0, ..self };
        (0..chunks).for_each(|_| places.step());
    }

    /// Prefetches the next part.
    #[inline(always)]
    pub(super) fn step(&mut self) {
        for _ in 0..self.lines {
            bring_near(self.words);
            self.words = self.words.wrapping_add(WORDS);
        }
        for _ in 0..self.rows {
            bring_near(self.place);
            bring_near(self.place.wrapping_add(WORDS));
            self.place = self.place.wrapping_add(self.stride);
        }
    }
}

/// Prefetches the cache line at any address. Only a hint, which ARM ignores.
#[inline(always)]
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "nothing is done there"))]
pub(crate) fn bring_near<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every CPU of this architecture has the instruction, and it has no visible effect.
    unsafe {
        _mm_prefetch::<_MM_HINT_T1>(address.cast());
    }
}

/// Prefetches a line of rows into the first-level cache: the one with this index from the first line of
/// `chunk` on. A chunk has a line of each row. All lines of the next one are needed at once, so a tile of
/// AVX-512 requests one after the other while it multiplies a chunk. (Tiles of AVX2 gained nothing.)
#[inline(always)]
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "nothing is done there"))]
pub(super) fn bring_line(chunk: *const u32, index: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(chunk.wrapping_add(index * WORDS).cast());
    }
}

/// Prefetches the row `index` of `rows`, if it exists. Products write large results past the caches, so that
/// a row-wise reader would wait for memory at the start of each row.
pub(crate) fn bring_row_near(rows: &[f32], index: usize, width: usize) {
    bring_values_near(rows.chunks(width).nth(index).unwrap_or_default());
}

/// Prefetches values.
pub(crate) fn bring_values_near<T>(values: &[T]) {
    values.chunks(WORDS).for_each(|line| bring_near(line.as_ptr()));
}
