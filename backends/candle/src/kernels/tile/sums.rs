//! Where tiles leave their sums.

use super::{COLUMNS, MAX_ROWS};

/// Sums of tiles, row after row: `f32`, or the bits of `i32` where both operands are bytes. Each row has cache lines of its own.
#[derive(Default)]
pub(crate) struct Sums(Vec<SumsRow>);

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct SumsRow([f32; COLUMNS]);

impl Sums {
    /// Room for a tile.
    pub(crate) fn of_tile() -> Self {
        let mut sums = Self::default();
        sums.reserve(MAX_ROWS);
        sums
    }

    /// Makes room for at least `rows` rows, whose content is unspecified.
    pub(crate) fn reserve(&mut self, rows: usize) {
        if self.0.len() < rows {
            self.0.resize(rows, SumsRow([0.0; COLUMNS]));
        }
    }

    /// All rows there is room for.
    pub(crate) fn rows(&mut self) -> &mut [[f32; COLUMNS]] {
        // SAFETY: a row is exactly its values: they fill whole cache lines.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len()) }
    }
}

const _: () = assert!(size_of::<SumsRow>() == size_of::<[f32; COLUMNS]>());
