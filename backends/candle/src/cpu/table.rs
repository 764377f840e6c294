//! Embedding tables, in the checkpoint's type or in four bits.

use crate::{
    kernels::{
        compute::Compute,
        nibbles::{self, GROUP, NibbleGroup},
    },
    load::Weight,
};

/// The smallest number of values of a table that is kept in four bits. For smaller tables the memory saved is
/// not worth the error.
const LARGE: usize = 1 << 22;

/// A table `[ids, columns]`.
pub(crate) enum EmbeddingTable {
    /// In the checkpoint's type.
    Stored(Weight),
    /// With four bits per value.
    Nibbles(Nibbles),
}

/// Rows of nibbles, which [`nibbles`] makes.
pub(crate) struct Nibbles {
    columns: usize,
    /// Two nibbles per byte, the first in the lower half. Each row takes `groups of a row · GROUP / 2` bytes.
    pairs: Vec<u8>,
    groups: Vec<NibbleGroup>,
    /// The factor of each row. NaN if the row has a value that is not finite.
    scales: Vec<f32>,
}

impl EmbeddingTable {
    /// A table with four bits per value if it is large enough, otherwise in its stored type. Four bits of a
    /// file are kept as they are.
    pub(crate) fn compact(compute: &Compute, values: Weight) -> Self {
        let (rows, columns) = (values.rows(), values.columns());
        if rows * columns < LARGE || values.has_four_bits() {
            return Self::Stored(values);
        }
        let of_row = columns.div_ceil(GROUP);
        let row_bytes = of_row * GROUP / 2;
        let mut pairs = vec![0; rows * row_bytes];
        let mut groups = vec![NibbleGroup::default(); rows * of_row];
        let mut scales = vec![0.0; rows];
        let per_item = compute.rows_per_item(rows);
        let items = pairs.chunks_mut(per_item * row_bytes).zip(groups.chunks_mut(per_item * of_row));
        let items = items.zip(scales.chunks_mut(per_item)).enumerate();
        compute.threads.for_each(items, |(item, ((pairs, groups), scales))| {
            let (mut row, mut found) = (vec![0.0; columns], vec![0; of_row * GROUP]);
            let rows = pairs.chunks_exact_mut(row_bytes).zip(groups.chunks_exact_mut(of_row)).zip(scales);
            for (index, ((pairs, groups), scale)) in rows.enumerate() {
                values.widen_row(item * per_item + index, &mut row);
                nibbles::quantise(compute.set, &row, &mut found, groups, scale);
                for (byte, [first, second]) in pairs.iter_mut().zip(found.as_chunks::<2>().0) {
                    *byte = first | second << 4;
                }
            }
        });
        Self::Nibbles(Nibbles { columns, pairs, groups, scales })
    }

    /// The number of rows.
    pub(crate) fn rows(&self) -> usize {
        match self {
            Self::Stored(values) => values.rows(),
            Self::Nibbles(table) => table.scales.len(),
        }
    }

    /// The length of a row.
    pub(crate) fn columns(&self) -> usize {
        match self {
            Self::Stored(values) => values.columns(),
            Self::Nibbles(table) => table.columns,
        }
    }

    /// The size of a row in bytes.
    #[cfg(any(test, feature = "benchmarks"))]
    pub(crate) fn row_bytes(&self) -> usize {
        match self {
            Self::Stored(values) => values.stored().row_bytes(values.columns()),
            Self::Nibbles(table) => {
                table.columns.div_ceil(GROUP) * (GROUP / 2 + size_of::<NibbleGroup>()) + size_of::<f32>()
            }
        }
    }

    /// Widens one row into `out`, which has [`EmbeddingTable::columns`] values.
    pub(crate) fn widen_row(&self, row: usize, out: &mut [f32]) {
        match self {
            Self::Stored(values) => values.widen_row(row, out),
            Self::Nibbles(table) => table.widen_row(row, out),
        }
    }
}

impl Nibbles {
    fn widen_row(&self, row: usize, out: &mut [f32]) {
        let of_row = self.columns.div_ceil(GROUP);
        let scale = self.scales[row];
        let pairs = self.pairs[row * of_row * GROUP / 2..].chunks_exact(GROUP / 2);
        let groups = &self.groups[row * of_row..];
        for ((out, pairs), group) in out.chunks_mut(GROUP).zip(pairs).zip(groups) {
            for (index, out) in out.iter_mut().enumerate() {
                let nibble = pairs[index / 2] >> (4 * (index % 2)) & 0xf;
                *out = f32::from(group.byte(nibble)) * scale;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::kernels::{InstructionSet, threads::Threads};
    use rand::{Rng, SeedableRng, rngs::StdRng};

    #[test]
    fn a_large_table_holds_what_nibbles_make_of_its_rows_and_a_small_one_its_values() {
        let compute = Compute { set: InstructionSet::best(), threads: Threads::start(2).unwrap() };
        let mut rng = StdRng::seed_from_u64(43);
        let columns = 129;
        for rows in [LARGE / columns, LARGE / columns + 1] {
            let mut values: Vec<f32> = (0..rows * columns).map(|_| rng.random_range(-1.0..1.0)).collect();
            values[columns..2 * columns].fill(0.0);
            values[3 * columns - 1] = f32::INFINITY;
            let table = EmbeddingTable::compact(&compute, Weight::from_values(&values, columns));
            assert_eq!((table.rows(), table.columns()), (rows, columns));
            let is_large = rows * columns >= LARGE;
            assert_eq!(matches!(table, EmbeddingTable::Nibbles(_)), is_large);
            let mut out = vec![7.0; columns];
            for (index, row) in values.chunks(columns).enumerate().step_by(if is_large { 1 } else { 100 }) {
                table.widen_row(index, &mut out);
                if !is_large {
                    assert_eq!(out, row);
                    continue;
                }
                let (mut nibbles, mut groups, mut scale) =
                    (vec![0; 160], vec![NibbleGroup::default(); 5], 0.0);
                nibbles::quantise(compute.set, row, &mut nibbles, &mut groups, &mut scale);
                assert_eq!(scale.is_nan(), index == 2);
                for (place, got) in out.iter().enumerate() {
                    let expected = f32::from(groups[place / GROUP].byte(nibbles[place])) * scale;
                    assert!(
                        got.to_bits() == expected.to_bits() || scale.is_nan() && got.is_nan(),
                        "{index}: {got} for {expected}"
                    );
                }
            }
        }
    }
}
