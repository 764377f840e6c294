//! Where tiles leave their sums.

use super::{super::lines::Lines, COLUMNS, MAX_ROWS};

/// Sums of tiles, row after row: `f32`, or the bits of `i32` where both operands are bytes. Each row has cache lines of its own.
#[derive(Default)]
pub(crate) struct Sums(Lines<f32>);

impl Sums {
    /// Room for a tile.
    pub(crate) fn of_tile() -> Self {
        let mut sums = Self::default();
        sums.reserve(MAX_ROWS);
        sums
    }

    /// Makes room for at least `rows` rows, whose content is unspecified.
    pub(crate) fn reserve(&mut self, rows: usize) {
        self.0.resize(self.0.capacity().max(rows * COLUMNS));
    }

    /// All rows there is room for.
    pub(crate) fn rows(&mut self) -> &mut [[f32; COLUMNS]] {
        self.0.as_mut_slice().as_chunks_mut().0
    }
}
