//! Tiles in generic code, compiled for each instruction set: of `f32`, and of integers where no instruction
//! multiplies a word.

#[cfg(target_arch = "x86_64")]
use crate::kernels::simd::{Avx2, Avx512};
use crate::kernels::{
    ahead::{Ahead, bring_line},
    layout::{COLUMNS, Origin, WORDS},
    simd::{Portable, Simd},
};
use std::arch::asm;

/// Compiles a generic body for one instruction set.
macro_rules! compiled {
    ($($(#[$target:meta])* $name:ident = $body:ident($simd:ty $(, $registers:expr, $column_pairs:literal)?);)*) => {$(
        $(#[$target])*
        pub(super) unsafe fn $name<const ROWS: usize>(
            chunks: usize,
            a: *const u32,
            b: *const u32,
            start: Origin,
            ahead: Ahead,
            sums: *mut f32,
        ) {
            // SAFETY: the caller upholds the same conditions.
            unsafe { $body::<ROWS, $simd $(, { $registers }, $column_pairs)?>(chunks, a, b, start, ahead, sums) }
        }
    )*};
}

compiled! {
    f32_portable = multiply_tile(Portable, COLUMNS / 4, false);
    f32_by_bf16_portable = multiply_tile(Portable, COLUMNS / 4, true);
    int16_portable = tile_of_integers(Int16Products);
    int8_portable = tile_of_integers(Int8Products);
}

#[cfg(target_arch = "x86_64")]
compiled! {
    #[target_feature(enable = "avx2,fma")]
    f32_avx2 = multiply_tile(Avx2, COLUMNS / 16, false);
    #[target_feature(enable = "avx2,fma")]
    f32_low_avx2 = multiply_tile(Avx2, COLUMNS / 8, false);
    #[target_feature(enable = "avx2,fma")]
    f32_by_bf16_avx2 = multiply_tile(Avx2, COLUMNS / 16, true);
    #[target_feature(enable = "avx2,fma")]
    f32_by_bf16_low_avx2 = multiply_tile(Avx2, COLUMNS / 8, true);
    #[target_feature(enable = "avx512f")]
    f32_avx512 = multiply_tile(Avx512, COLUMNS / 16, false);
    #[target_feature(enable = "avx512f")]
    f32_by_bf16_avx512 = multiply_tile(Avx512, COLUMNS / 16, true);
    #[target_feature(enable = "avx512f,avx512bw")]
    int8_avx512 = tile_of_integers(Int8Products);
}

// The bodies below use plain loops over indices. A closure would be compiled as a separate function, without
// the instruction set.

/// Rows of `f32`, and columns of `f32` or, with `COLUMN_PAIRS`, of pairs of bfloat16 that are widened here. A
/// pair of a column meets two words of a row.
#[expect(clippy::needless_range_loop, reason = "see above")]
#[inline(always)]
unsafe fn multiply_tile<const ROWS: usize, S: Simd, const REGISTERS: usize, const COLUMN_PAIRS: bool>(
    chunks: usize,
    mut a: *const u32,
    mut b: *const u32,
    start: Origin,
    mut ahead: Ahead,
    to: *mut f32,
) {
    // SAFETY: the caller guarantees the instruction set, `chunks` chunks from `a` on, and as many values in
    // `b`.
    unsafe {
        let mut sums = started::<ROWS, S, REGISTERS>(start);
        for _ in 0..chunks {
            ahead.step();
            for pair in 0..WORDS / 2 {
                for half in 0..2 {
                    let words = if COLUMN_PAIRS && half == 1 { hide_origin(b) } else { b };
                    let mut column = [S::splat(0.0); REGISTERS];
                    for r in 0..REGISTERS {
                        let words = words.add(r * S::LANES);
                        column[r] = match (COLUMN_PAIRS, half) {
                            (false, _) => S::load(words.cast()),
                            (true, 0) => S::low_halves(words),
                            (true, _) => S::high_halves(words),
                        };
                    }
                    if !COLUMN_PAIRS || half == 1 {
                        b = b.add(COLUMNS);
                    }
                    if S::LANES == 16 {
                        bring_line(a, ROWS + 2 * pair + half);
                    }
                    for row in 0..ROWS {
                        let factor = S::splat(*a.add(row * WORDS + 2 * pair + half).cast());
                        for r in 0..REGISTERS {
                            sums[row][r] = column[r].mul_add(factor, sums[row][r]);
                        }
                    }
                }
            }
            a = a.add(ROWS * WORDS);
        }
        store(&sums, to);
    }
}

/// The same address, which the compiler takes for another one. So it loads words again, where it would keep
/// them in registers that the sums need, and would move sums to memory.
#[expect(clippy::pointers_in_nomem_asm_block, reason = "there are no instructions that could use the memory")]
#[inline(always)]
fn hide_origin(mut address: *const u32) -> *const u32 {
    // SAFETY: there are no instructions.
    unsafe {
        asm!("/* {0} */", inout(reg) address, options(pure, nomem, nostack, preserves_flags));
    }
    address
}

/// The sum of the products of a row's word with a column's word.
trait WordProducts {
    fn sum_products(of_row: u32, of_column: u32) -> i32;
}

/// Two 16-bit integers.
struct Int16Products;

impl WordProducts for Int16Products {
    #[inline(always)]
    fn sum_products(of_row: u32, of_column: u32) -> i32 {
        [0, 16]
            .map(|shift| i32::from((of_row >> shift) as i16) * i32::from((of_column >> shift) as i16))
            .iter()
            .sum()
    }
}

/// Four bytes, unsigned in rows and signed in columns.
struct Int8Products;

impl WordProducts for Int8Products {
    #[inline(always)]
    fn sum_products(of_row: u32, of_column: u32) -> i32 {
        let mut sum = 0;
        for (factor, value) in of_row.to_le_bytes().into_iter().zip(of_column.to_le_bytes()) {
            sum += i32::from(factor) * i32::from(value.cast_signed());
        }
        sum
    }
}

/// Integers, for CPUs without an instruction for the products of a word.
#[inline(always)]
unsafe fn tile_of_integers<const ROWS: usize, P: WordProducts>(
    chunks: usize,
    mut a: *const u32,
    mut b: *const u32,
    start: Origin,
    mut ahead: Ahead,
    to: *mut f32,
) {
    let mut sums = [[0_i32; COLUMNS]; ROWS];
    for (row, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller guarantees the values of each row at `start`.
        *sums = unsafe { start.row(row).cast::<[i32; COLUMNS]>().read_unaligned() };
    }
    for _ in 0..chunks {
        ahead.step();
        for word in 0..WORDS {
            // SAFETY: the caller guarantees `chunks` chunks from `a` and from `b` on.
            let columns = unsafe { b.cast::<[u32; COLUMNS]>().read_unaligned() };
            for (row, sums) in sums.iter_mut().enumerate() {
                // SAFETY: as above.
                let factors = unsafe { *a.add(row * WORDS + word) };
                for (sum, column) in sums.iter_mut().zip(columns) {
                    *sum += P::sum_products(factors, column);
                }
            }
            // SAFETY: as above.
            b = unsafe { b.add(COLUMNS) };
        }
        // SAFETY: as above.
        a = unsafe { a.add(ROWS * WORDS) };
    }
    // SAFETY: the caller guarantees memory for `ROWS` rows of sums.
    unsafe { to.cast::<[[i32; COLUMNS]; ROWS]>().write_unaligned(sums) }
}

/// The initial sums.
#[expect(clippy::needless_range_loop, reason = "see above")]
#[inline(always)]
unsafe fn started<const ROWS: usize, S: Simd, const REGISTERS: usize>(
    start: Origin,
) -> [[S; REGISTERS]; ROWS] {
    // SAFETY: the caller guarantees the instruction set and the rows' values.
    unsafe {
        let mut sums = [[S::splat(0.0); REGISTERS]; ROWS];
        for row in 0..ROWS {
            for r in 0..REGISTERS {
                sums[row][r] = S::load(start.row(row).add(r * S::LANES));
            }
        }
        sums
    }
}

#[inline(always)]
unsafe fn store<const ROWS: usize, S: Simd, const REGISTERS: usize>(
    sums: &[[S; REGISTERS]; ROWS],
    to: *mut f32,
) {
    for (row, sums) in sums.iter().enumerate() {
        for (r, &sum) in sums.iter().enumerate() {
            // SAFETY: the caller guarantees the instruction set and memory for `ROWS` rows.
            unsafe { sum.store(to.add(row * COLUMNS + r * S::LANES)) }
        }
    }
}
