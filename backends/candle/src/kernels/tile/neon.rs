//! Tiles on ARM. They compute the sums of some rows and half of a panel's columns at a time.
//!
//! A register holds four words, and there are 32 registers: 20 for the sums of 5 rows × 16 columns, 5 for the
//! rows' words (an instruction takes its factor from any lane, so that one register serves four steps), one
//! for the mask that separates bfloat16 values, and 6 through which the columns pass. In four steps, 5 loads
//! of rows and 16 of columns serve 80 multiplications: 0.26 loads each. Three rows and all 32 columns would
//! take 0.36, and would read the panel, which is larger than a first-level cache, 1.7 times as often.
//! Multiplication in pairs of rows ([`pairs`]) uses 6 rows.

mod pairs;

use super::{OperandFormat, RowsBody, by_rows, int16_portable};
use crate::kernels::ahead::Ahead;
use crate::kernels::instruction_set::InstructionSet;
use crate::kernels::layout::{COLUMNS, Origin, WORDS};
use crate::kernels::simd::HIGH_HALF;
use pairs::{Int8I8mm, NativeBf16, by_pairs};
use std::arch::{
    aarch64::{
        uint32x4_t, vaddq_s32, vandq_u32, vdupq_laneq_u32, vdupq_n_u32, vfmaq_laneq_f32, vget_low_s8,
        vld1q_u32, vmull_high_s8, vmull_s8, vpaddlq_s16, vpaddq_s32, vreinterpretq_f32_u32,
        vreinterpretq_s8_u32, vreinterpretq_s32_u32, vreinterpretq_u32_f32, vreinterpretq_u32_s32,
        vshlq_n_u32, vst1q_u32,
    },
    asm,
};

/// The most rows of a tile.
const ROWS: usize = 6;
/// The number of words in a register.
const LANES: usize = 4;
/// The number of registers for a row's sums.
const REGISTERS: usize = 4;
/// The number of columns whose sums are in registers at a time.
const WIDTH: usize = LANES * REGISTERS;

/// A register of four words of any format.
type Register = uint32x4_t;

/// The number of rows of a full tile.
pub(super) fn rows(set: InstructionSet) -> usize {
    if set == InstructionSet::NeonI8mmBf16 { ROWS } else { 5 }
}

/// The bodies for each number of rows.
pub(super) fn bodies(set: InstructionSet, a: OperandFormat, b: OperandFormat) -> &'static [RowsBody] {
    use OperandFormat::{Bf16, F32, Int8, Int16, WideBf16};
    match (set, (a, b)) {
        (_, (F32, Bf16)) => by_rows!(f32_by_bf16, COLUMNS, 1 2 3 4 5 6;),
        // The caller passes widened values as `f32`.
        (_, (F32 | WideBf16, _)) => by_rows!(f32, COLUMNS, 1 2 3 4 5 6;),
        // The caller asserts the instruction.
        (_, (Bf16, _)) => by_rows!(native_bf16, COLUMNS, 1 2 3 4 5 6;),
        // Not faster than `f32`: only for tests.
        (_, (Int16, _)) => by_rows!(int16_portable, COLUMNS, 1 2 3 4 5 6;),
        (InstructionSet::NeonI8mmBf16, (Int8, _)) => by_rows!(int8_i8mm, COLUMNS, 1 2 3 4 5 6;),
        (InstructionSet::NeonDotprod, (Int8, _)) => by_rows!(int8_dotprod, COLUMNS, 1 2 3 4 5 6;),
        (_, (Int8, _)) => by_rows!(int8, COLUMNS, 1 2 3 4 5 6;),
    }
}

macro_rules! compiled {
    ($($(#[$target:meta])* $name:ident = $body:ident($step:ty);)*) => {$(
        $(#[$target])*
        unsafe fn $name<const ROWS: usize>(
            chunks: usize,
            a: *const u32,
            b: *const u32,
            start: Origin,
            _ahead: Ahead,
            sums: *mut f32,
        ) {
            // SAFETY: the caller upholds the same conditions.
            unsafe { $body::<ROWS, $step>(chunks, a, b, start, sums) }
        }
    )*};
}

// Every CPU of this architecture has NEON.
compiled! {
    f32 = by_lanes(F32);
    f32_by_bf16 = by_lanes(F32ByBf16);
    int8 = by_lanes(Int8);
    #[target_feature(enable = "neon,dotprod")]
    int8_dotprod = by_lanes(Int8Dotprod);
    #[target_feature(enable = "neon,i8mm")]
    int8_i8mm = by_pairs(Int8I8mm);
    #[target_feature(enable = "neon,bf16")]
    native_bf16 = by_pairs(NativeBf16);
}

/// The way in which a register of columns and a lane of a row's words are multiplied and added.
trait Lanes {
    /// The number of a row's words that are multiplied with the same words of the columns, each with another
    /// half of them.
    const PER_LINE: usize = 1;

    /// The columns' words, or one half of them.
    #[inline(always)]
    fn columns(words: Register, _half: usize) -> Register {
        words
    }

    /// `sums + columns · factors[LANE]`.
    ///
    /// # Safety
    ///
    /// The CPU has the instruction set.
    unsafe fn step<const LANE: i32>(sums: Register, columns: Register, factors: Register) -> Register;
}

/// `f32` on both sides.
struct F32;
/// `f32` rows, and pairs of bfloat16 in the columns.
struct F32ByBf16;
/// Signed bytes, for CPUs without an instruction that adds their products.
struct Int8;
/// Signed bytes, with the instruction that adds their products.
struct Int8Dotprod;

/// The lower (0) or upper (1) half of each word as a bfloat16, widened.
#[inline(always)]
fn widened(words: Register, half: usize) -> Register {
    // SAFETY: every CPU of this architecture has NEON.
    unsafe { if half == 0 { vshlq_n_u32::<16>(words) } else { vandq_u32(words, vdupq_n_u32(HIGH_HALF)) } }
}

impl Lanes for F32 {
    #[inline(always)]
    unsafe fn step<const LANE: i32>(sums: Register, columns: Register, factors: Register) -> Register {
        // SAFETY: every CPU of this architecture has NEON.
        unsafe {
            let (columns, factors) = (vreinterpretq_f32_u32(columns), vreinterpretq_f32_u32(factors));
            vreinterpretq_u32_f32(vfmaq_laneq_f32::<LANE>(vreinterpretq_f32_u32(sums), columns, factors))
        }
    }
}

impl Lanes for F32ByBf16 {
    const PER_LINE: usize = 2;

    #[inline(always)]
    fn columns(words: Register, half: usize) -> Register {
        widened(words, half)
    }

    #[inline(always)]
    unsafe fn step<const LANE: i32>(sums: Register, columns: Register, factors: Register) -> Register {
        // SAFETY: the caller upholds the same conditions.
        unsafe { F32::step::<LANE>(sums, columns, factors) }
    }
}

impl Lanes for Int8 {
    #[inline(always)]
    unsafe fn step<const LANE: i32>(sums: Register, columns: Register, factors: Register) -> Register {
        // SAFETY: every CPU of this architecture has NEON.
        unsafe {
            let columns = vreinterpretq_s8_u32(columns);
            let factor = vreinterpretq_s8_u32(vdupq_laneq_u32::<LANE>(factors));
            // A product fits 16 bits, but the sum of two may not.
            let low = vpaddlq_s16(vmull_s8(vget_low_s8(columns), vget_low_s8(factor)));
            let high = vpaddlq_s16(vmull_high_s8(columns, factor));
            vreinterpretq_u32_s32(vaddq_s32(vreinterpretq_s32_u32(sums), vpaddq_s32(low, high)))
        }
    }
}

impl Lanes for Int8Dotprod {
    #[inline(always)]
    unsafe fn step<const LANE: i32>(mut sums: Register, columns: Register, factors: Register) -> Register {
        // SAFETY: the caller guarantees the instruction, which stable Rust has no function for yet. It
        // changes only its first register.
        unsafe {
            asm!(
                "sdot {sums:v}.4s, {columns:v}.16b, {factors:v}.4b[{lane}]",
                sums = inout(vreg) sums,
                columns = in(vreg) columns,
                factors = in(vreg) factors,
                lane = const LANE,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sums
    }
}

/// Computes all sums of a tile.
#[expect(clippy::needless_range_loop, reason = "plain loops, as in the other bodies")]
#[inline(always)]
unsafe fn by_lanes<const ROWS: usize, L: Lanes>(
    chunks: usize,
    a: *const u32,
    b: *const u32,
    start: Origin,
    to: *mut f32,
) {
    // SAFETY: the caller guarantees the instruction set, `chunks` chunks from `a` on, the lines of `b` for
    // their words, `ROWS` rows from `start` on, and memory for as many rows of sums.
    unsafe {
        for first in (0..COLUMNS).step_by(WIDTH) {
            let mut sums = [[vdupq_n_u32(0); REGISTERS]; ROWS];
            for row in 0..ROWS {
                for r in 0..REGISTERS {
                    sums[row][r] = vld1q_u32(start.row(row).cast::<u32>().add(first + r * LANES));
                }
            }
            let (mut a, mut b) = (a, b);
            for _ in 0..chunks {
                for word in (0..WORDS).step_by(LANES) {
                    quad::<ROWS, L>(&mut sums, a.add(word), b.add(first));
                    b = b.add(LANES / L::PER_LINE * COLUMNS);
                }
                a = a.add(ROWS * WORDS);
            }
            for row in 0..ROWS {
                for r in 0..REGISTERS {
                    vst1q_u32(to.cast::<u32>().add(row * COLUMNS + first + r * LANES), sums[row][r]);
                }
            }
        }
    }
}

/// Multiplies four words of each row at `a` with the lines at `lines` that belong to them.
#[expect(clippy::needless_range_loop, reason = "plain loops, as in the other bodies")]
#[inline(always)]
unsafe fn quad<const ROWS: usize, L: Lanes>(
    sums: &mut [[Register; REGISTERS]; ROWS],
    a: *const u32,
    lines: *const u32,
) {
    // SAFETY: the caller guarantees the instruction set, the words and the lines.
    unsafe {
        let mut factors = [vdupq_n_u32(0); ROWS];
        for row in 0..ROWS {
            factors[row] = vld1q_u32(a.add(row * WORDS));
        }
        lane::<0, ROWS, L>(sums, &factors, lines);
        lane::<1, ROWS, L>(sums, &factors, lines);
        lane::<2, ROWS, L>(sums, &factors, lines);
        lane::<3, ROWS, L>(sums, &factors, lines);
    }
}

/// Multiplies one lane of the rows' words with the line that belongs to it.
#[expect(clippy::needless_range_loop, reason = "plain loops, as in the other bodies")]
#[inline(always)]
unsafe fn lane<const LANE: i32, const ROWS: usize, L: Lanes>(
    sums: &mut [[Register; REGISTERS]; ROWS],
    factors: &[Register; ROWS],
    lines: *const u32,
) {
    let (line, in_line) = (LANE as usize / L::PER_LINE, LANE as usize % L::PER_LINE);
    for r in 0..REGISTERS {
        // SAFETY: the caller guarantees the instruction set and the lines.
        unsafe {
            let words = vld1q_u32(lines.add(line * COLUMNS + r * LANES));
            let columns = L::columns(words, in_line);
            for row in 0..ROWS {
                sums[row][r] = L::step::<LANE>(sums[row][r], columns, factors[row]);
            }
        }
    }
}
