//! Tiles by x86 instructions that multiply and add a whole word at once.

use super::{Ahead, COLUMNS, Origin, WORDS};
use std::arch::x86_64::{
    __m256i, __m512bh, __m512i, _mm256_dpbusd_avx_epi32, _mm256_loadu_si256, _mm256_set1_epi32,
    _mm256_storeu_si256, _mm512_dpbf16_ps, _mm512_dpbusd_epi32, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_set1_epi32, _mm512_storeu_ps, _mm512_storeu_si512,
};
use std::mem::transmute;

macro_rules! tile {
    ($(#[$target:meta])* $name:ident, $register:ty, $lanes:literal, $load_sums:ident, $load:ident, $splat:ident, $store:ident,
     $step:expr) => {
        $(#[$target])*
        pub(super) unsafe fn $name<const ROWS: usize>(
            chunks: usize,
            mut a: *const u32,
            mut b: *const u32,
            start: Origin,
            mut ahead: Ahead,
            to: *mut f32,
        ) {
            const REGISTERS: usize = COLUMNS / $lanes;
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
                    for word in 0..WORDS {
                        let mut column = [$splat(0); REGISTERS];
                        for r in 0..REGISTERS {
                            column[r] = $load(b.add(r * $lanes).cast());
                        }
                        b = b.add(COLUMNS);
                        for row in 0..ROWS {
                            let factors: $register = $splat((*a.add(row * WORDS + word)).cast_signed());
                            for r in 0..REGISTERS {
                                sums[row][r] = $step(sums[row][r], factors, column[r]);
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
tile!(
    #[target_feature(enable = "avx512f,avx512vnni")]
    native_int8_avx512,
    __m512i,
    16,
    _mm512_loadu_si512,
    _mm512_loadu_si512,
    _mm512_set1_epi32,
    _mm512_storeu_si512,
    |sum, a, b| _mm512_dpbusd_epi32(sum, a, b)
);
tile!(
    #[target_feature(enable = "avx2,avxvnni")]
    native_int8_avx2,
    __m256i,
    8,
    _mm256_loadu_si256,
    _mm256_loadu_si256,
    _mm256_set1_epi32,
    _mm256_storeu_si256,
    |sum, a, b| _mm256_dpbusd_avx_epi32(sum, a, b)
);
