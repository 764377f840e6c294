//! The memory in which tiles leave their sums.

#[cfg(test)]
use super::MAX_ROWS;
use super::{super::lines::CacheLines, COLUMNS};

/// The sums of tiles, row after row: `f32`, or the bits of `i32` if both operands are bytes. Each row has its
/// own cache lines.
#[derive(Default)]
pub(crate) struct Sums(CacheLines<f32>);

impl Sums {
    /// Memory for one tile.
    #[cfg(test)]
    pub(crate) fn of_tile() -> Self {
        let mut sums = Self::default();
        sums.reserve(MAX_ROWS);
        sums
    }

    /// Reserves memory for at least `rows` rows, with unspecified content.
    pub(crate) fn reserve(&mut self, rows: usize) {
        self.0.resize(self.0.capacity().max(rows * COLUMNS));
    }

    /// All rows that there is memory for.
    pub(crate) fn rows(&mut self) -> &mut [[f32; COLUMNS]] {
        self.0.as_mut_slice().as_chunks_mut().0
    }
}
