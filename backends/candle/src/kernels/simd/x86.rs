//! The registers of AVX2 and of AVX-512.

use super::{HIGH_HALF, LOWEST, POWER, Portable, ROUND, Simd};
use std::arch::x86_64::{
    __m256, __m256i, __m512, _CMP_LT_OQ, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_max_ps, _mm_max_ss,
    _mm_movehl_ps, _mm_sfence, _mm_shuffle_ps, _mm256_add_epi32, _mm256_add_ps, _mm256_and_si256,
    _mm256_andnot_ps, _mm256_blendv_ps, _mm256_castps_si256, _mm256_castps256_ps128, _mm256_castsi256_ps,
    _mm256_cmp_ps, _mm256_cmpgt_epi32, _mm256_cvtepi32_ps, _mm256_extractf128_ps, _mm256_fmadd_ps,
    _mm256_loadu_ps, _mm256_loadu_si256, _mm256_maskload_ps, _mm256_maskstore_ps, _mm256_max_ps,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_setr_epi32, _mm256_slli_epi32, _mm256_storeu_ps,
    _mm256_stream_ps, _mm256_sub_epi32, _mm256_sub_ps, _mm512_add_ps, _mm512_and_si512, _mm512_castps_si512,
    _mm512_castsi512_ps, _mm512_cvtepi32_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_mask_blend_ps, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_max_ps, _mm512_reduce_add_ps,
    _mm512_reduce_max_ps, _mm512_reduce_ps, _mm512_scalef_ps, _mm512_set1_epi32, _mm512_set1_ps,
    _mm512_slli_epi32, _mm512_storeu_ps, _mm512_stream_ps, _mm512_sub_epi32, _mm512_sub_ps,
};

macro_rules! register {
    ($name:ident, $half:ident, $register:ty, $lanes:literal, $splat:ident, $load:ident, $store:ident, $load_first:ident,
     $store_first:ident, $stream:ident, $fmadd:ident, $load_words:ident, $shift:ident, $and:ident,
     $splat_word:ident, $cast:ident, $cast_to_words:ident, $sub_words:ident, $convert:ident, $add:ident,
     $max:ident, $first:ident, $exp2:ident, $largest:ident, $sum:ident) => {
        #[derive(Clone, Copy)]
        pub(crate) struct $name($register);

        // SAFETY (all methods): the trait's contract is the contract of the intrinsics.
        impl Simd for $name {
            const LANES: usize = $lanes;
            type Half = $half;

            #[inline(always)]
            unsafe fn splat(value: f32) -> Self {
                // SAFETY: the caller guarantees the instruction set.
                Self(unsafe { $splat(value) })
            }

            #[inline(always)]
            unsafe fn load(pointer: *const f32) -> Self {
                // SAFETY: the caller guarantees the instruction set and the values at `pointer`.
                Self(unsafe { $load(pointer) })
            }

            #[inline(always)]
            unsafe fn store(self, pointer: *mut f32) {
                // SAFETY: the caller guarantees the instruction set and memory at `pointer`.
                unsafe { $store(pointer, self.0) }
            }

            #[inline(always)]
            unsafe fn load_first(pointer: *const f32, count: usize) -> Self {
                // SAFETY: the caller guarantees the instruction set and `count` values at `pointer`.
                Self(unsafe { $load_first(pointer, count) })
            }

            #[inline(always)]
            unsafe fn store_first(self, pointer: *mut f32, count: usize) {
                // SAFETY: the caller guarantees the instruction set and memory for `count` values.
                unsafe { $store_first(pointer, count, self.0) }
            }

            #[inline(always)]
            unsafe fn stream(self, pointer: *mut f32) {
                // SAFETY: the caller guarantees the instruction set and aligned memory at `pointer`.
                unsafe { $stream(pointer, self.0) }
            }

            #[inline(always)]
            unsafe fn fence() {
                // SAFETY: every CPU of this architecture has the instruction.
                unsafe { _mm_sfence() };
            }

            #[inline(always)]
            unsafe fn low_halves(words: *const u32) -> Self {
                // SAFETY: the caller guarantees the instruction set and the words.
                Self(unsafe { $cast($shift::<16>($load_words(words.cast()))) })
            }

            #[inline(always)]
            unsafe fn high_halves(words: *const u32) -> Self {
                // SAFETY: the caller guarantees the instruction set and the words.
                Self(unsafe { $cast($and($load_words(words.cast()), $splat_word(HIGH_HALF.cast_signed()))) })
            }

            #[inline(always)]
            unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
                // SAFETY: the caller guarantees the instruction set.
                Self(unsafe { $fmadd(self.0, factor.0, addend.0) })
            }

            #[inline(always)]
            unsafe fn add(self, other: Self) -> Self {
                // SAFETY: as above.
                Self(unsafe { $add(self.0, other.0) })
            }

            #[inline(always)]
            unsafe fn less_integers(self, pointer: *const i32) -> Self {
                // SAFETY: the caller guarantees the instruction set and the integers at `pointer`.
                Self(unsafe { $convert($sub_words($cast_to_words(self.0), $load_words(pointer.cast()))) })
            }

            #[inline(always)]
            unsafe fn max(self, other: Self) -> Self {
                // SAFETY: as above.
                Self(unsafe { $max(self.0, other.0) })
            }

            #[inline(always)]
            unsafe fn first(self, count: usize, rest: Self) -> Self {
                // SAFETY: as above.
                Self(unsafe { $first(self.0, count, rest.0) })
            }

            #[inline(always)]
            unsafe fn exp2(self) -> Self {
                // SAFETY: as above.
                Self(unsafe { $exp2(self.0) })
            }

            #[inline(always)]
            unsafe fn largest(self) -> f32 {
                // SAFETY: as above.
                unsafe { $largest(self.0) }
            }

            #[inline(always)]
            unsafe fn sum(self) -> f32 {
                // SAFETY: as above.
                unsafe { $sum(self.0) }
            }
        }
    };
}

register!(
    Avx2,
    Portable,
    __m256,
    8,
    _mm256_set1_ps,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    load_first_256,
    store_first_256,
    _mm256_stream_ps,
    _mm256_fmadd_ps,
    _mm256_loadu_si256,
    _mm256_slli_epi32,
    _mm256_and_si256,
    _mm256_set1_epi32,
    _mm256_castsi256_ps,
    _mm256_castps_si256,
    _mm256_sub_epi32,
    _mm256_cvtepi32_ps,
    _mm256_add_ps,
    _mm256_max_ps,
    first_256,
    exp2_256,
    largest_256,
    sum_256
);
register!(
    Avx512,
    Avx2,
    __m512,
    16,
    _mm512_set1_ps,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    load_first_512,
    store_first_512,
    _mm512_stream_ps,
    _mm512_fmadd_ps,
    _mm512_loadu_si512,
    _mm512_slli_epi32,
    _mm512_and_si512,
    _mm512_set1_epi32,
    _mm512_castsi512_ps,
    _mm512_castps_si512,
    _mm512_sub_epi32,
    _mm512_cvtepi32_ps,
    _mm512_add_ps,
    _mm512_max_ps,
    first_512,
    exp2_512,
    _mm512_reduce_max_ps,
    _mm512_reduce_add_ps
);

/// The lanes before `count`.
///
/// # Safety (of all below)
///
/// The CPU has the registers' instruction set.
#[inline(always)]
unsafe fn before_256(count: usize) -> __m256i {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        _mm256_cmpgt_epi32(_mm256_set1_epi32(count.min(8) as i32), lanes)
    }
}

/// The lanes before `count`.
fn before_512(count: usize) -> u16 {
    ((1_u32 << count.min(16)) - 1) as u16
}

#[inline(always)]
unsafe fn first_256(values: __m256, count: usize, rest: __m256) -> __m256 {
    // SAFETY: the caller guarantees the instruction set.
    unsafe { _mm256_blendv_ps(rest, values, _mm256_castsi256_ps(before_256(count))) }
}

#[inline(always)]
unsafe fn first_512(values: __m512, count: usize, rest: __m512) -> __m512 {
    // SAFETY: the caller guarantees the instruction set.
    unsafe { _mm512_mask_blend_ps(before_512(count), rest, values) }
}

#[inline(always)]
unsafe fn load_first_256(pointer: *const f32, count: usize) -> __m256 {
    // SAFETY: the caller guarantees the instruction set and `count` values; no other lane is read.
    unsafe { _mm256_maskload_ps(pointer, before_256(count)) }
}

#[inline(always)]
unsafe fn load_first_512(pointer: *const f32, count: usize) -> __m512 {
    // SAFETY: as above.
    unsafe { _mm512_maskz_loadu_ps(before_512(count), pointer) }
}

#[inline(always)]
unsafe fn store_first_256(pointer: *mut f32, count: usize, values: __m256) {
    // SAFETY: the caller guarantees the instruction set and memory for `count` values; no other is written.
    unsafe { _mm256_maskstore_ps(pointer, before_256(count), values) }
}

#[inline(always)]
unsafe fn store_first_512(pointer: *mut f32, count: usize, values: __m512) {
    // SAFETY: as above.
    unsafe { _mm512_mask_storeu_ps(pointer, before_512(count), values) }
}

/// [`super::exp2`], with intrinsics for each step.
#[inline(always)]
unsafe fn exp2_256(x: __m256) -> __m256 {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let round = _mm256_set1_ps(ROUND);
        let shifted = _mm256_add_ps(x, round);
        let r = _mm256_sub_ps(x, _mm256_sub_ps(shifted, round));
        let [highest, rest @ ..] = POWER;
        let mut p = _mm256_set1_ps(highest);
        for coefficient in rest {
            p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(coefficient));
        }
        let n = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted));
        let power = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), n));
        _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(x, _mm256_set1_ps(LOWEST)), power)
    }
}

/// [`super::exp2`], with instructions that split x and assemble the power.
#[inline(always)]
unsafe fn exp2_512(x: __m512) -> __m512 {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let r = _mm512_reduce_ps::<0>(x);
        let [highest, rest @ ..] = POWER;
        let mut p = _mm512_set1_ps(highest);
        for coefficient in rest {
            p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(coefficient));
        }
        _mm512_scalef_ps(p, _mm512_sub_ps(x, r))
    }
}

#[inline(always)]
unsafe fn largest_256(values: __m256) -> f32 {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let four = _mm_max_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps::<1>(values));
        let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
    }
}

#[inline(always)]
unsafe fn sum_256(values: __m256) -> f32 {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps::<1>(values));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
    }
}
