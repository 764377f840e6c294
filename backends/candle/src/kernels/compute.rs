//! The resources of a computation on the CPU, which packing and products share.

use super::{instruction_set::InstructionSet, threads::Threads};

/// The most rows that a thread takes at a time in row-wise operations.
const MAX_ROWS_PER_ITEM: usize = 28;
/// The fewest rows that are worth a thread's while.
const MIN_ROWS_PER_ITEM: usize = 4;

/// The instruction set and the threads to compute with.
pub(crate) struct Compute {
    /// The vector instructions to use.
    pub(crate) set: InstructionSet,
    /// The threads to use.
    pub(crate) threads: Threads,
}

impl Compute {
    /// The number of rows that a thread takes at a time in row-wise operations on `rows` rows. Threads get
    /// equal shares, also of few rows.
    pub(crate) fn rows_per_item(&self, rows: usize) -> usize {
        let items = rows.max(1).div_ceil(MAX_ROWS_PER_ITEM).next_multiple_of(self.threads.count());
        rows.div_ceil(items).max(MIN_ROWS_PER_ITEM)
    }

    /// The number of rows of each such item.
    pub(crate) fn rows_of_items(&self, rows: usize) -> impl Iterator<Item = usize> + use<> {
        let per_item = self.rows_per_item(rows);
        (0..rows).step_by(per_item).map(move |from| per_item.min(rows - from))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    #[test]
    fn few_rows_are_shared_equally_and_many_in_small_parts() {
        for (threads, rows, expected) in [
            (1, 0, 4),
            (1, 20, 20),
            (1, 29, 15),
            (2, 1, 4),
            (2, 7, 4),
            (2, 32, 16),
            (2, 57, 15),
            (2, 5600, 28),
            (3, 30, 10),
            (16, 32, 4),
        ] {
            let compute =
                Compute { set: InstructionSet::Portable, threads: Threads::start(threads).unwrap() };
            assert_eq!(compute.rows_per_item(rows), expected, "{rows} rows, {threads} threads");
        }
    }
}
