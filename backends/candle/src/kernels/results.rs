//! The way of a tile's sums to their places among the results of a product.
//!
//! Input: the sums, and scales if they are sums of integers. Output: values in place, or in the rows of the
//! results. What must hold: a result depends on its own sum, scales and bias only.

use super::{
    layout::{COLUMNS, WORDS},
    places::SpacedRows,
    simd::{Simd, dispatch},
};
use std::ops::Range;

/// Turns the bits of `i32` sums into values: `(sum - correction) · (scale of the row · scale of the column) +
/// bias`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SumScaling<'a> {
    /// The scales of the rows, at least as many as there are rows.
    pub(crate) of_rows: &'a [f32],
    /// The scales of the columns.
    pub(crate) of_columns: &'a [f32; COLUMNS],
    /// For bytes: what [`InstructionSet::byte_excess`](super::InstructionSet::byte_excess) adds to the sums.
    pub(crate) corrections: &'a [i32; COLUMNS],
    pub(crate) biases: &'a [f32; COLUMNS],
}

/// The way in which a result takes its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placing {
    /// It replaces the value there.
    Replace,
    /// It does so, and bypasses the caches if the places are aligned. [`fence_stores`] must follow. Large
    /// results would be evicted from the caches before they are read.
    Stream,
    /// It is added to the value there.
    Add,
}

/// The scales, corrections and biases of a register's columns.
#[derive(Clone, Copy)]
struct ColumnScaling<S> {
    scales: S,
    corrections: *const i32,
    biases: S,
}

impl<S: Simd> ColumnScaling<S> {
    /// Of the columns from `at` on.
    ///
    /// # Safety
    ///
    /// The CPU has the registers' instruction set, and there is a register's columns from `at` on.
    #[inline(always)]
    unsafe fn of_columns(scaling: &SumScaling<'_>, at: usize) -> Self {
        // SAFETY: the caller upholds the same conditions.
        unsafe {
            Self {
                scales: S::load(scaling.of_columns.as_ptr().add(at)),
                corrections: scaling.corrections.as_ptr().add(at),
                biases: S::load(scaling.biases.as_ptr().add(at)),
            }
        }
    }

    /// The values of some sums.
    ///
    /// # Safety
    ///
    /// As of [`of_columns`](Self::of_columns).
    #[inline(always)]
    unsafe fn scale_values(self, sums: S, of_row: f32) -> S {
        // SAFETY: the caller upholds the same conditions.
        unsafe {
            let scales = self.scales.mul_add(S::splat(of_row), S::splat(0.0));
            sums.less_integers(self.corrections).mul_add(scales, self.biases)
        }
    }
}

/// A way to bring a register's values to their place: one for each [`Placing`], so that each has a loop
/// without branches.
trait Put {
    /// The values that are put in the first `lanes` lanes.
    ///
    /// # Safety
    ///
    /// The CPU has the registers' instruction set, and `place` has at least `lanes` values.
    unsafe fn put_values<S: Simd>(values: S, place: *mut f32, lanes: usize);
}

/// [`Placing::Replace`], and [`Placing::Stream`] with `STREAM`.
struct Replace<const STREAM: bool>;

impl<const STREAM: bool> Put for Replace<STREAM> {
    #[inline(always)]
    unsafe fn put_values<S: Simd>(values: S, place: *mut f32, lanes: usize) {
        // SAFETY: the caller upholds the same conditions, and chose `STREAM` for aligned places only.
        unsafe {
            match lanes < S::LANES {
                true => values.store_first(place, lanes),
                false if STREAM => values.stream(place),
                false => values.store(place),
            }
        }
    }
}

/// [`Placing::Add`].
struct Add;

impl Put for Add {
    #[inline(always)]
    unsafe fn put_values<S: Simd>(values: S, place: *mut f32, lanes: usize) {
        // SAFETY: the caller upholds the same conditions.
        unsafe {
            if lanes < S::LANES {
                values.add(S::load_first(place, lanes)).store_first(place, lanes);
            } else {
                values.add(S::load(place)).store(place);
            }
        }
    }
}

/// [`place_rows`] for one kind of it, and the rows in a range.
///
/// # Safety
///
/// The CPU has the registers' instruction set.
#[inline(always)]
unsafe fn put_rows<S: Simd, P: Put>(
    rows: &[[f32; COLUMNS]],
    scaling: Option<&SumScaling<'_>>,
    out: &mut SpacedRows<'_>,
    range: Range<usize>,
) {
    let of_rows = scaling.map_or(&[][..], |scaling| scaling.of_rows);
    let (width, end) = (out.width.min(COLUMNS), range.end);
    assert!(end <= out.count && end <= rows.len() && (scaling.is_none() || end <= of_rows.len()));
    // A register's columns of all rows, then the next ones: their scales stay in registers.
    for at in (0..width).step_by(S::LANES) {
        // SAFETY: the caller guarantees the instruction set. `at` is a multiple of a register below
        // `COLUMNS`, which is one, too. There are as many rows, and scales if any, as places (asserted), and
        // `width` values at each place.
        unsafe {
            let (from, lanes) = (rows.as_ptr().cast::<f32>().add(at), width - at);
            if let Some(scaling) = scaling {
                let of_columns = ColumnScaling::<S>::of_columns(scaling, at);
                for index in range.clone() {
                    let of_row = *of_rows.as_ptr().add(index);
                    let values = of_columns.scale_values(S::load(from.add(index * COLUMNS)), of_row);
                    P::put_values(values, out.row_start(index).add(at), lanes);
                }
            } else {
                for index in range.clone() {
                    P::put_values(S::load(from.add(index * COLUMNS)), out.row_start(index).add(at), lanes);
                }
            }
        }
    }
}

dispatch! {
    /// Brings the first values of each row to its place in `out`, as many as the place has.
    fn place_rows(
        rows: &[[f32; COLUMNS]],
        scaling: Option<&SumScaling<'_>>,
        out: &mut SpacedRows<'_>,
        placing: Placing,
    ) {
        let all = 0..out.count;
        // SAFETY: `dispatch` chooses registers of an instruction set that this CPU has. Only aligned memory
        // is streamed to.
        unsafe {
            match placing {
                Placing::Stream if out.are_aligned(size_of::<S>()) => {
                    // Parts of a cache line must follow each other, to leave the CPU together. So registers
                    // that are shorter finish one row before the next.
                    let together = if S::LANES < WORDS { 1 } else { all.len().max(1) };
                    for first in all.clone().step_by(together) {
                        let range = first..all.end.min(first + together);
                        put_rows::<S, Replace<true>>(rows, scaling, out, range);
                    }
                }
                Placing::Replace | Placing::Stream => put_rows::<S, Replace<false>>(rows, scaling, out, all),
                Placing::Add => put_rows::<S, Add>(rows, scaling, out, all),
            }
        }
    }
}

dispatch! {
    /// Turns the sums of products of integers into values in place.
    fn scale_sums(sums: &mut [[f32; COLUMNS]], scaling: &SumScaling<'_>) {
        assert!(sums.len() <= scaling.of_rows.len());
        for at in (0..COLUMNS).step_by(S::LANES) {
            // SAFETY: as in `place_rows`.
            unsafe {
                let of_columns = ColumnScaling::<S>::of_columns(scaling, at);
                for (sums, &of_row) in sums.iter_mut().zip(scaling.of_rows) {
                    let sums = sums.as_mut_ptr().add(at);
                    of_columns.scale_values(S::load(sums), of_row).store(sums);
                }
            }
        }
    }
}

dispatch! {
    /// Orders stores that bypassed the caches before all later accesses, for all threads.
    fn fence_stores() {
        // SAFETY: the CPU has the instruction set.
        unsafe { S::fence() };
    }
}

#[cfg(test)]
mod tests {
    use super::{super::InstructionSet, super::lines::CacheLines, *};
    use rand::{Rng, SeedableRng, rngs::StdRng};

    /// Sums of integers in five rows, and scalings with more rows.
    struct Sample {
        sums: [[i32; COLUMNS]; 5],
        of_rows: [f32; 6],
        of_columns: [f32; COLUMNS],
        corrections: [i32; COLUMNS],
        biases: [f32; COLUMNS],
    }

    impl Sample {
        fn random(rng: &mut StdRng) -> Self {
            let mut integers = |most: i32| std::array::from_fn(|_| rng.random_range(-most..most));
            let (sums, corrections) = ([(); 5].map(|()| integers(40_000_000)), integers(9_000_000));
            Self {
                sums,
                corrections,
                of_rows: [0.03, 0.5, 2.0, 7.0, 1e-3, 1.0],
                of_columns: std::array::from_fn(|_| rng.random_range(0.0..0.01)),
                biases: std::array::from_fn(|_| rng.random_range(-3.0..3.0)),
            }
        }

        fn bits(&self) -> [[f32; COLUMNS]; 5] {
            self.sums.map(|row| row.map(|sum| f32::from_bits(sum.cast_unsigned())))
        }

        fn scaling(&self) -> SumScaling<'_> {
            let Self { of_rows, of_columns, corrections, biases, .. } = self;
            SumScaling { of_rows, of_columns, corrections, biases }
        }

        /// A value, and how far a computed one may be from it.
        fn value(&self, row: usize, column: usize) -> [f64; 2] {
            let scale = f64::from(self.of_rows[row] * self.of_columns[column]);
            let product = f64::from(self.sums[row][column] - self.corrections[column]) * scale;
            let value = product + f64::from(self.biases[column]);
            [value, 2e-7 * (product.abs() + value.abs())]
        }
    }

    #[test]
    fn sums_of_integers_become_values() {
        let mut rng = StdRng::seed_from_u64(10);
        for set in InstructionSet::available() {
            let sample = Sample::random(&mut rng);
            let mut out = sample.bits();
            scale_sums(set, &mut out, &sample.scaling());
            for (at, &got) in out.as_flattened().iter().enumerate() {
                let [expected, tolerance] = sample.value(at / COLUMNS, at % COLUMNS);
                assert!((f64::from(got) - expected).abs() <= tolerance, "{set}: {got} for {expected}");
            }
        }
    }

    #[test]
    fn rows_of_tiles_come_to_their_places_at_every_width() {
        let mut rng = StdRng::seed_from_u64(8);
        for set in InstructionSet::available() {
            for (columns, is_scaled) in (1..=COLUMNS).flat_map(|columns| [(columns, false), (columns, true)])
            {
                let sample = Sample::random(&mut rng);
                let mut rows = sample.bits();
                let mut values = rows;
                scale_sums(set, &mut values, &sample.scaling());
                if !is_scaled {
                    rows = values;
                }
                let scaling = is_scaled.then(|| sample.scaling());
                let before: Vec<f32> = (0..5 * columns).map(|_| rng.random_range(-3.0..3.0)).collect();
                for placing in [Placing::Replace, Placing::Stream, Placing::Add] {
                    // Aligned, so that some widths are streamed to.
                    let mut out = CacheLines::default();
                    out.resize(before.len());
                    let out = out.as_mut_slice();
                    out.copy_from_slice(&before);
                    place_rows(
                        set,
                        &rows,
                        scaling.as_ref(),
                        &mut SpacedRows::of_slice(out, columns),
                        placing,
                    );
                    fence_stores(set);
                    for (at, (&mut got, before)) in out.iter_mut().zip(&before).enumerate() {
                        let value = values[at / columns][at % columns];
                        let expected = if placing == Placing::Add { before + value } else { value };
                        assert!(
                            got.to_bits() == expected.to_bits(),
                            "{set} {columns} {placing:?} {is_scaled} at {at}: {got} for {expected}"
                        );
                    }
                }
            }
        }
    }
}
