//! Sums by ARM's instructions that multiply two rows by two columns, with two words of each. One instruction
//! computes four sums of eight or sixteen products: twice the work of an instruction on lanes.
//!
//! A register of a line holds a word of four columns. So two lines are combined into two registers of two
//! columns each: 8 such steps for 24 multiplications in a full tile. Each sum belongs to one row and one
//! column. An odd last row is paired with itself.

use super::{LANES, REGISTERS, Register, WIDTH};
use crate::kernels::layout::{COLUMNS, Origin, WORDS};
use std::arch::{
    aarch64::{
        vcombine_u32, vdupq_n_u32, vld1_u32, vreinterpretq_u32_u64, vreinterpretq_u64_u32, vst1q_u32,
        vzip1q_u64, vzip2q_u64,
    },
    asm,
};

/// The most pairs of rows.
const PAIRS: usize = super::ROWS.div_ceil(2);

/// The way in which pairs of rows and of columns are multiplied and added.
pub(super) trait Pairs {
    /// Multiplies the two words of each row in `rows`, which holds a pair of rows per register, by the words
    /// of four columns at `line` and in the next line. Adds the products to `sums`: for each pair first the
    /// sums with the first two columns, then those with the other two, with the first row's sums before the
    /// second's. Only uses the first `pairs` pairs.
    ///
    /// # Safety
    ///
    /// The CPU has the instruction set, and there are four words at both places.
    unsafe fn step(
        pairs: usize,
        sums: &mut [[Register; 2]; PAIRS],
        rows: &[Register; PAIRS],
        line: *const u32,
    );
}

/// Signed bytes.
pub(super) struct Int8I8mm;
/// Pairs of bfloat16. Sums are rounded to odd, not to nearest, and subnormal values are flushed to zero.
pub(super) struct NativeBf16;

/// One step in a single piece of assembly. Otherwise the compiler loads so far ahead that it runs out of
/// registers. Stable Rust has no functions for these instructions yet, either.
macro_rules! step {
    ($instruction:literal, $values:literal, ($sums:ident, $rows:ident, $line:ident):
     $($pair:literal $left:ident $right:ident $row:ident),*) => {
        asm!(
            "ldr {even:q}, [{line}]",
            "ldr {odd:q}, [{line}, {to_next_line}]",
            "zip1 {columns:v}.4s, {even:v}.4s, {odd:v}.4s",
            "zip2 {odd:v}.4s, {even:v}.4s, {odd:v}.4s",
            $(concat!(
                $instruction, " {", stringify!($left), ":v}.4s, ",
                "{", stringify!($row), ":v}.", $values, ", {columns:v}.", $values
            ),)*
            $(concat!(
                $instruction, " {", stringify!($right), ":v}.4s, ",
                "{", stringify!($row), ":v}.", $values, ", {odd:v}.", $values
            ),)*
            line = in(reg) $line,
            to_next_line = const COLUMNS * size_of::<u32>(),
            even = out(vreg) _,
            odd = out(vreg) _,
            columns = out(vreg) _,
            $($left = inout(vreg) $sums[$pair][0],
            $right = inout(vreg) $sums[$pair][1],
            $row = in(vreg) $rows[$pair],)*
            options(pure, readonly, nostack, preserves_flags),
        )
    };
}

macro_rules! pairs {
    ($($name:ident = $instruction:literal, $values:literal;)*) => {$(
        impl Pairs for $name {
            #[inline(always)]
            unsafe fn step(
                pairs: usize,
                sums: &mut [[Register; 2]; PAIRS],
                rows: &[Register; PAIRS],
                line: *const u32,
            ) {
                // SAFETY: the caller guarantees the instruction and the words of both lines. Only the named
                // registers change.
                unsafe {
                    match pairs {
                        1 => step!($instruction, $values, (sums, rows, line): 0 a b x),
                        2 => step!($instruction, $values, (sums, rows, line): 0 a b x, 1 c d y),
                        _ => step!($instruction, $values, (sums, rows, line): 0 a b x, 1 c d y, 2 e f z),
                    }
                }
            }
        }
    )*};
}

pairs! {
    Int8I8mm = "smmla", "16b";
    NativeBf16 = "bfmmla", "8h";
}

/// Computes all sums of a tile.
#[expect(clippy::needless_range_loop, reason = "plain loops, as in the other bodies")]
#[inline(always)]
pub(super) unsafe fn by_pairs<const ROWS: usize, P: Pairs>(
    chunks: usize,
    a: *const u32,
    b: *const u32,
    start: Origin,
    to: *mut f32,
) {
    let pairs = ROWS.div_ceil(2);
    // SAFETY: the caller guarantees the instruction set, `chunks` chunks from `a` and `b` on, `ROWS` rows
    // from `start` on, and memory for as many rows of sums.
    unsafe {
        for first in (0..COLUMNS).step_by(WIDTH) {
            let mut sums = [[[vdupq_n_u32(0); 2]; PAIRS]; REGISTERS];
            for pair in 0..pairs {
                let (upper, lower) = rows_of_pair::<ROWS>(pair);
                let (upper, lower) = (start.row(upper).cast::<u32>(), start.row(lower).cast::<u32>());
                for r in 0..REGISTERS {
                    for half in 0..2 {
                        let place = first + r * LANES + 2 * half;
                        sums[r][pair][half] =
                            vcombine_u32(vld1_u32(upper.add(place)), vld1_u32(lower.add(place)));
                    }
                }
            }
            let (mut a, mut b) = (a, b);
            for _ in 0..chunks {
                for word in (0..WORDS).step_by(2) {
                    let mut rows = [vdupq_n_u32(0); PAIRS];
                    for pair in 0..pairs {
                        let (upper, lower) = rows_of_pair::<ROWS>(pair);
                        let (upper, lower) = (a.add(upper * WORDS + word), a.add(lower * WORDS + word));
                        rows[pair] = vcombine_u32(vld1_u32(upper), vld1_u32(lower));
                    }
                    for r in 0..REGISTERS {
                        P::step(pairs, &mut sums[r], &rows, b.add(first + r * LANES));
                    }
                    b = b.add(2 * COLUMNS);
                }
                a = a.add(ROWS * WORDS);
            }
            for pair in 0..pairs {
                let (upper, lower) = rows_of_pair::<ROWS>(pair);
                for r in 0..REGISTERS {
                    let [left, right] = sums[r][pair].map(|sums| vreinterpretq_u64_u32(sums));
                    let to = to.cast::<u32>().add(first + r * LANES);
                    vst1q_u32(to.add(lower * COLUMNS), vreinterpretq_u32_u64(vzip2q_u64(left, right)));
                    vst1q_u32(to.add(upper * COLUMNS), vreinterpretq_u32_u64(vzip1q_u64(left, right)));
                }
            }
        }
    }
}

/// The upper and the lower row of a pair. The last row of an odd number is both.
const fn rows_of_pair<const ROWS: usize>(pair: usize) -> (usize, usize) {
    let upper = 2 * pair;
    (upper, if upper + 1 < ROWS { upper + 1 } else { ROWS - 1 })
}
