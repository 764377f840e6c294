//! Tiles by x86 instructions that multiply and add a whole word at once.

use crate::kernels::{
    ahead::{Ahead, bring_line},
    layout::{COLUMNS, Origin, WORDS},
};
use std::arch::x86_64::{
    __m256i, __m512bh, __m512i, _mm256_abs_epi8, _mm256_add_epi32, _mm256_cmpgt_epi8,
    _mm256_dpbusd_avx_epi32, _mm256_dpwssd_avx_epi32, _mm256_loadu_si256, _mm256_madd_epi16,
    _mm256_maddubs_epi16, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_setzero_si256, _mm256_storeu_si256,
    _mm256_xor_si256, _mm512_add_epi32, _mm512_dpbf16_ps, _mm512_dpbusd_epi32, _mm512_dpwssd_epi32,
    _mm512_loadu_ps, _mm512_loadu_si512, _mm512_madd_epi16, _mm512_set1_epi32, _mm512_storeu_ps,
    _mm512_storeu_si512,
};
use std::mem::transmute;

macro_rules! tile {
    ($(#[$target:meta])* $name:ident, $register:ty, $lanes:literal, $registers:expr, $load_sums:ident, $load:ident, $splat:ident,
     $store:ident, $step:expr) => {
        $(#[$target])*
        pub(super) unsafe fn $name<const ROWS: usize>(
            chunks: usize,
            mut a: *const u32,
            mut b: *const u32,
            start: Origin,
            mut ahead: Ahead,
            to: *mut f32,
        ) {
            /// The registers of a row's sums.
            const REGISTERS: usize = $registers;
            const IS_WIDE: bool = $lanes == 16;
            /// The words of a row that are multiplied before a branch: with more of them, loads of columns
            /// wait less for the second-level cache. AVX2 has too few registers: the compiler would move sums
            /// to memory.
            const UNROLLED: usize = if IS_WIDE { 4 } else { 1 };
            // SAFETY: the caller guarantees the instruction set, `chunks` chunks from `a` and `b` on, `ROWS`
            // rows from `start` on, and memory for as many rows at `to`. `to` may be the same memory: it is
            // read before it is written.
            unsafe {
                let mut sums = [[$load_sums(start.first.cast()); REGISTERS]; ROWS];
                for row in 0..ROWS {
                    for r in 0..REGISTERS {
                        sums[row][r] = $load_sums(start.row(row).add(r * $lanes).cast());
                    }
                }
                for _ in 0..chunks {
                    ahead.step();
                    for first in (0..WORDS).step_by(UNROLLED) {
                        for word in first..first + UNROLLED {
                            let mut column = [$splat(0); REGISTERS];
                            for r in 0..REGISTERS {
                                column[r] = $load(b.add(r * $lanes).cast());
                            }
                            b = b.add(COLUMNS);
                            if IS_WIDE {
                                bring_line(a, ROWS + word);
                            }
                            for row in 0..ROWS {
                                let factors: $register = $splat((*a.add(row * WORDS + word)).cast_signed());
                                for r in 0..REGISTERS {
                                    sums[row][r] = $step(sums[row][r], factors, column[r]);
                                }
                            }
                        }
                    }
                    a = a.add(ROWS * WORDS);
                }
                for row in 0..ROWS {
                    for r in 0..REGISTERS {
                        $store(to.add(row * COLUMNS + r * $lanes).cast(), sums[row][r]);
                    }
                }
            }
        }
    };
}

tile!(
    #[target_feature(enable = "avx512f,avx512bf16")]
    native_bf16_avx512,
    __m512i,
    16,
    COLUMNS / 16,
    _mm512_loadu_ps,
    _mm512_loadu_si512,
    _mm512_set1_epi32,
    _mm512_storeu_ps,
    |sum, a: __m512i, b: __m512i| _mm512_dpbf16_ps(
        sum,
        transmute::<__m512i, __m512bh>(a),
        transmute::<__m512i, __m512bh>(b)
    )
);
/// Tiles of integers with registers of one size.
macro_rules! tiles_of_integers {
    ($register:ty, $lanes:literal, $load:ident, $splat:ident, $store:ident:
     $($features:literal $name:ident, $registers:expr, $step:expr;)*) => {$(
        tile!(
            #[target_feature(enable = $features)]
            $name,
            $register,
            $lanes,
            $registers,
            $load,
            $load,
            $splat,
            $store,
            $step
        );
    )*};
}

tiles_of_integers! {
    __m512i, 16, _mm512_loadu_si512, _mm512_set1_epi32, _mm512_storeu_si512:
    "avx512f,avx512vnni" native_int8_avx512, COLUMNS / 16, |sum, a, b| _mm512_dpbusd_epi32(sum, a, b);
    "avx512f,avx512vnni" native_int16_avx512vnni, COLUMNS / 16, |sum, a, b| _mm512_dpwssd_epi32(sum, a, b);
    "avx512f,avx512bw" native_int16_avx512, COLUMNS / 16,
        |sum, a, b| _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
}

tiles_of_integers! {
    __m256i, 8, _mm256_loadu_si256, _mm256_set1_epi32, _mm256_storeu_si256:
    "avx2,avxvnni" native_int16_avx2vnni, COLUMNS / 16, |sum, a, b| _mm256_dpwssd_avx_epi32(sum, a, b);
    "avx2,avxvnni" native_int16_low_avx2vnni, COLUMNS / 8, |sum, a, b| _mm256_dpwssd_avx_epi32(sum, a, b);
    "avx2" native_int16_avx2, COLUMNS / 16, |sum, a, b| _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
    "avx2" native_int16_low_avx2, COLUMNS / 8, |sum, a, b| _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
    "avx2,avxvnni" native_int8_avx2vnni, COLUMNS / 16, |sum, a, b| _mm256_dpbusd_avx_epi32(sum, a, b);
    "avx2,avxvnni" native_int8_low_avx2vnni, COLUMNS / 8, |sum, a, b| _mm256_dpbusd_avx_epi32(sum, a, b);
    "avx2" native_int8_avx2, COLUMNS / 16, |sum, a, b| add_products(sum, a, b);
    "avx2" native_int8_low_avx2, COLUMNS / 8, |sum, a, b| add_products(sum, a, b);
}

/// `sum + a · b + min(b, 0)` for four signed bytes in each lane, without an instruction for it. The nearest
/// one multiplies unsigned bytes with signed ones, and adds neighbours with saturation. So the sign of `b`
/// moves to `a`, as bits that are inverted: `-a - 1` for a negative `b`. (`vpsignb` would give `-a`, but has
/// half of the units.) No byte of `a` is -128, and a magnitude of `b` is at most 128, so that two products
/// stay within 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn add_products(sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
    let signs = _mm256_cmpgt_epi8(_mm256_setzero_si256(), b);
    let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(b), _mm256_xor_si256(a, signs));
    _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
}
