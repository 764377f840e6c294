//! The sizes of the panels that `pack` writes and tiles read, and the place of a tile's first sums.

/// The number of columns of a panel.
pub(crate) const COLUMNS: usize = 32;
/// The number of words per row in a chunk. Packed operands are padded to whole chunks with values of
/// zero.
pub(crate) const WORDS: usize = 16;

/// The place of the rows' initial sums in memory: one row after the other, or the same place for all rows.
#[derive(Clone, Copy)]
pub(super) struct Origin {
    pub(super) first: *const f32,
    /// The distance between the places of two neighbouring rows, in values. Zero for the same place.
    pub(super) stride: usize,
}

impl Origin {
    /// The place of a row's initial sums.
    ///
    /// # Safety
    ///
    /// [`COLUMNS`] values can be read from there, for every row of the tile.
    #[inline(always)]
    pub(super) unsafe fn row(self, row: usize) -> *const f32 {
        // SAFETY: the caller upholds the same conditions.
        unsafe { self.first.add(row * self.stride) }
    }

    /// The same rows from the column `column` on.
    pub(super) fn at_column(self, column: usize) -> Self {
        Self { first: self.first.wrapping_add(column), stride: self.stride }
    }
}
