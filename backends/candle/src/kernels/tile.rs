//! The inner loop of every matrix product: a tile of up to [`MAX_ROWS`] × [`COLUMNS`] sums kept in registers.
//!
//! Input: a block of rows and a panel of columns, packed by `pack`. Output: the products' sums, stored or added.
//! What must hold: a sum's value depends on its own row and column only, not on how many rows share the tile, so that
//! a token's result is the same to the last bit in every batch.

#[cfg(target_arch = "x86_64")]
use super::simd::{Avx2, Avx512};
use super::simd::{InstructionSet, Portable, Simd};

/// Columns of a panel.
pub(crate) const COLUMNS: usize = 32;
/// Inner-dimension steps of a packed chunk: packed operands are padded with zeros to a multiple of it.
pub(crate) const CHUNK: usize = 16;
/// The most rows of a tile in any instruction set.
pub(crate) const MAX_ROWS: usize = 14;

/// Where a tile goes.
#[derive(Clone, Copy)]
pub(crate) struct Destination {
    /// The tile's first value.
    pub(crate) pointer: *mut f32,
    /// Distance from a row to the next, in values.
    pub(crate) stride: usize,
    /// Add to what is there instead of overwriting it.
    pub(crate) add: bool,
}

/// Rows of a full tile: as many as leave registers for a column's values.
pub(crate) fn rows(set: InstructionSet) -> usize {
    match set {
        InstructionSet::Portable => 2,
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => 3,
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 => MAX_ROWS,
    }
}

/// The tile function for blocks of `rows` rows: `(chunks, a, b, destination)`.
///
/// `a` is a packed block `[chunks][rows][CHUNK]`, `b` a packed panel `[chunks · CHUNK][COLUMNS]`.
///
/// # Safety
///
/// Of the function returned: the CPU has `set`; `a` and `b` hold that many values; the destination has room for `rows`
/// rows of [`COLUMNS`] values and nobody else accesses them meanwhile.
pub(crate) type TileFunction = unsafe fn(usize, *const f32, *const f32, Destination);

/// The tile function for `rows` rows, 1 ≤ `rows` ≤ [`rows`]`(set)`.
pub(crate) fn function(set: InstructionSet, rows: usize) -> TileFunction {
    match set {
        InstructionSet::Portable => [portable::<1>, portable::<2>][rows - 1],
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => [avx2::<1>, avx2::<2>, avx2::<3>][rows - 1],
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 => {
            const TABLE: [TileFunction; MAX_ROWS] = [
                avx512::<1>,
                avx512::<2>,
                avx512::<3>,
                avx512::<4>,
                avx512::<5>,
                avx512::<6>,
                avx512::<7>,
                avx512::<8>,
                avx512::<9>,
                avx512::<10>,
                avx512::<11>,
                avx512::<12>,
                avx512::<13>,
                avx512::<14>,
            ];
            TABLE[rows - 1]
        }
    }
}

/// One tile from packed operands: `c[row][column] (+)= Σ a · b` over the depth that `a` and `b` share.
///
/// `a` is a block `[chunks][rows][CHUNK]`, `b` a panel `[chunks · CHUNK][COLUMNS]`, `c` at least `rows` rows of
/// [`COLUMNS`] values that lie `stride` apart.
pub(crate) fn multiply(
    set: InstructionSet,
    rows: usize,
    (a, b): (&[f32], &[f32]),
    c: &mut [f32],
    (stride, add): (usize, bool),
) {
    let chunks = a.len() / (rows * CHUNK);
    assert!(b.len() >= chunks * CHUNK * COLUMNS && c.len() >= (rows - 1) * stride + COLUMNS);
    // SAFETY: a value of `InstructionSet` comes from `available`, which asked the CPU, and the sizes were just checked.
    unsafe {
        let to = Destination { pointer: c.as_mut_ptr(), stride, add };
        function(set, rows)(chunks, a.as_ptr(), b.as_ptr(), to);
    }
}

unsafe fn portable<const ROWS: usize>(chunks: usize, a: *const f32, b: *const f32, to: Destination) {
    // SAFETY: passed on to the caller.
    unsafe { tile::<Portable, ROWS, { COLUMNS / 4 }>(chunks, a, b, to) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2<const ROWS: usize>(chunks: usize, a: *const f32, b: *const f32, to: Destination) {
    // SAFETY: passed on to the caller.
    unsafe { tile::<Avx2, ROWS, { COLUMNS / 8 }>(chunks, a, b, to) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn avx512<const ROWS: usize>(chunks: usize, a: *const f32, b: *const f32, to: Destination) {
    // SAFETY: passed on to the caller.
    unsafe { tile::<Avx512, ROWS, { COLUMNS / 16 }>(chunks, a, b, to) }
}

#[expect(
    clippy::needless_range_loop,
    reason = "iterators' closures are compiled without the instruction set"
)]
/// `REGISTERS` registers of `S` span a panel's columns.
#[inline(always)]
unsafe fn tile<S: Simd, const ROWS: usize, const REGISTERS: usize>(
    chunks: usize,
    mut a: *const f32,
    mut b: *const f32,
    to: Destination,
) {
    // SAFETY: the caller vouches for the instruction set, for `chunks` chunks behind `a` and `b`, and for the rows of
    // the destination; every offset below stays within these.
    unsafe {
        // Plain loops over indices: a closure would be a function of its own, without the instruction set.
        let mut sums = [[S::splat(0.0); REGISTERS]; ROWS];
        for _ in 0..chunks {
            for k in 0..CHUNK {
                let mut column = [S::splat(0.0); REGISTERS];
                for r in 0..REGISTERS {
                    column[r] = S::load(b.add(r * S::LANES));
                }
                b = b.add(COLUMNS);
                for row in 0..ROWS {
                    let factor = S::splat(*a.add(row * CHUNK + k));
                    for r in 0..REGISTERS {
                        sums[row][r] = column[r].mul_add(factor, sums[row][r]);
                    }
                }
            }
            a = a.add(ROWS * CHUNK);
        }
        for row in 0..ROWS {
            for r in 0..REGISTERS {
                let pointer = to.pointer.add(row * to.stride + r * S::LANES);
                if to.add {
                    S::splat(1.0).mul_add(S::load(pointer), sums[row][r]).store(pointer);
                } else {
                    sums[row][r].store(pointer);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    #[test]
    fn every_tile_size_of_every_instruction_set_equals_plain_loops() {
        let mut rng = StdRng::seed_from_u64(7);
        for set in InstructionSet::available() {
            for rows in 1..=rows(set) {
                for (chunks, add) in [(0, true), (1, false), (3, true), (5, false)] {
                    let depth = chunks * CHUNK;
                    let a: Vec<f32> = (0..depth * rows).map(|_| rng.random_range(-1.0..1.0)).collect();
                    let b: Vec<f32> = (0..depth * COLUMNS).map(|_| rng.random_range(-1.0..1.0)).collect();
                    let stride = COLUMNS + 3;
                    let before: Vec<f32> = (0..rows * stride).map(|_| rng.random_range(-1.0..1.0)).collect();
                    let mut c = before.clone();
                    multiply(set, rows, (&a, &b), &mut c, (stride, add));
                    for row in 0..rows {
                        for column in 0..stride {
                            let at = row * stride + column;
                            let product: f64 = (0..depth)
                                .filter(|_| column < COLUMNS)
                                .map(|k| {
                                    let a = a[(k / CHUNK * rows + row) * CHUNK + k % CHUNK];
                                    f64::from(a) * f64::from(b[k * COLUMNS + column.min(COLUMNS - 1)])
                                })
                                .sum();
                            let kept = add || column >= COLUMNS;
                            let expected = product + if kept { f64::from(before[at]) } else { 0.0 };
                            assert!(
                                (f64::from(c[at]) - expected).abs() < 1e-5,
                                "{set} {rows} {chunks} {add}"
                            );
                        }
                    }
                }
            }
        }
    }
}
