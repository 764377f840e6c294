//! Hides the vector registers of each instruction set behind one trait.
//!
//! A kernel is written once, as an `#[inline(always)]` function over `S: Simd`. [`dispatch`] compiles it for
//! every instruction set and calls the requested version.

#[cfg(target_arch = "x86_64")]
mod x86;

use std::f32::consts::LN_2;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

/// A vector register of `f32`s.
///
/// # Safety
///
/// The methods may use instructions that only some CPUs have, so the CPU must have the instruction set.
/// `load` and `store` access [`Simd::LANES`] values from `pointer` on, `load_first` and `store_first` only
/// `count`, without alignment. Memory that
/// `stream` wrote must not be accessed before `fence`.
pub(crate) trait Simd: Copy {
    /// The number of values in a register.
    const LANES: usize;
    /// Registers of half as many values, if there are any.
    type Half: Simd;
    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(pointer: *const f32) -> Self;
    unsafe fn store(self, pointer: *mut f32);
    /// The first `count` values, less than a register's, and other lanes of any content.
    unsafe fn load_first(pointer: *const f32, count: usize) -> Self;
    /// Stores the first `count` values, less than a register's.
    unsafe fn store_first(self, pointer: *mut f32, count: usize);
    /// A store that bypasses the caches if the instruction set can do that. `pointer` must be aligned to a
    /// register.
    #[inline(always)]
    unsafe fn stream(self, pointer: *mut f32) {
        // SAFETY: the caller upholds the same conditions.
        unsafe { self.store(pointer) }
    }
    /// Orders earlier calls of `stream` before all later accesses, for all threads.
    #[inline(always)]
    unsafe fn fence() {}
    /// The lower half of each of [`Simd::LANES`] words as a bfloat16, widened.
    unsafe fn low_halves(words: *const u32) -> Self;
    /// The upper half of each of [`Simd::LANES`] words as a bfloat16, widened.
    unsafe fn high_halves(words: *const u32) -> Self;
    /// `self * factor + addend`, fused if the instruction set can.
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    /// The bits of the lanes as `i32`, less the integers at `pointer`, as values.
    unsafe fn less_integers(self, pointer: *const i32) -> Self;
    /// The larger value of each lane. If the value in `self` is NaN, the value in `other`.
    unsafe fn max(self, other: Self) -> Self;
    /// The first `count` values of `self`, followed by the other lanes of `rest`.
    unsafe fn first(self, count: usize, rest: Self) -> Self;
    /// 2ˣ as in [`exp2`], except that results below 2⁻¹²⁶ need not be zero.
    unsafe fn exp2(self) -> Self;
    /// The largest value. The register must not contain NaN.
    unsafe fn largest(self) -> f32;
    /// The sum of all values.
    unsafe fn sum(self) -> f32;
}

/// A mask for the bits of a word's upper half.
pub(crate) const HIGH_HALF: u32 = 0xffff_0000;

/// Four values. The compiler puts them in whatever registers the CPU has.
#[derive(Clone, Copy)]
pub(crate) struct Portable([f32; 4]);

impl Simd for Portable {
    const LANES: usize = 4;
    type Half = Self;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; 4])
    }

    #[inline(always)]
    unsafe fn load(pointer: *const f32) -> Self {
        // SAFETY: the caller guarantees four values at `pointer`; the array has the alignment of one value.
        Self(unsafe { pointer.cast::<[f32; 4]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, pointer: *mut f32) {
        // SAFETY: the caller guarantees memory for four values at `pointer`.
        unsafe { pointer.cast::<[f32; 4]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn load_first(pointer: *const f32, count: usize) -> Self {
        // SAFETY: the caller guarantees `count` values at `pointer`.
        Self(std::array::from_fn(|i| if i < count { unsafe { *pointer.add(i) } } else { 0.0 }))
    }

    #[inline(always)]
    unsafe fn store_first(self, pointer: *mut f32, count: usize) {
        for (i, value) in self.0.into_iter().enumerate().take(count) {
            // SAFETY: the caller guarantees memory for `count` values at `pointer`.
            unsafe { *pointer.add(i) = value };
        }
    }

    #[inline(always)]
    unsafe fn low_halves(words: *const u32) -> Self {
        // SAFETY: the caller guarantees four words; the array has the alignment of one.
        let words = unsafe { words.cast::<[u32; 4]>().read_unaligned() };
        Self(std::array::from_fn(|i| f32::from_bits(words[i] << 16)))
    }

    #[inline(always)]
    unsafe fn high_halves(words: *const u32) -> Self {
        // SAFETY: as above.
        let words = unsafe { words.cast::<[u32; 4]>().read_unaligned() };
        Self(std::array::from_fn(|i| f32::from_bits(words[i] & HIGH_HALF)))
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] * factor.0[i] + addend.0[i]))
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] + other.0[i]))
    }

    #[inline(always)]
    unsafe fn less_integers(self, pointer: *const i32) -> Self {
        // SAFETY: the caller guarantees four integers at `pointer`; the array has the alignment of one.
        let integers = unsafe { pointer.cast::<[i32; 4]>().read_unaligned() };
        Self(std::array::from_fn(|i| self.0[i].to_bits().cast_signed().wrapping_sub(integers[i]) as f32))
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| if self.0[i] > other.0[i] { self.0[i] } else { other.0[i] }))
    }

    #[inline(always)]
    unsafe fn first(self, count: usize, rest: Self) -> Self {
        Self(std::array::from_fn(|i| if i < count { self.0[i] } else { rest.0[i] }))
    }

    #[inline(always)]
    unsafe fn exp2(self) -> Self {
        Self(self.0.map(exp2::<false>))
    }

    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        self.0.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        self.0.into_iter().sum()
    }
}

/// Adding 1.5 · 2²³ leaves the nearest integer in the low bits of the sum.
pub(super) const ROUND: f32 = 12_582_912.0;
/// The exponent below which [`exp2`] is zero.
pub(super) const LOWEST: f32 = -126.0;

/// The polynomial of degree 6 with the smallest relative error from 2ʳ for |r| ≤ 1/2, highest power first.
const POWER: [f32; 7] =
    [1.532_115_4e-4, 1.339_016_1e-3, 9.618_526e-3, 5.550_362e-2, 2.402_264_8e-1, LN_2, 1.0];

/// 2ˣ to within 2 units in the last place for -126 ≤ x < 128. Zero below that range, undefined above.
///
/// x = n + r with |r| ≤ 1/2. The result is the polynomial [`POWER`] in r, scaled by 2ⁿ through the exponent's
/// bits.
#[inline(always)]
pub(super) fn exp2<const FUSED: bool>(x: f32) -> f32 {
    let shifted = x + ROUND;
    let r = x - (shifted - ROUND);
    let [mut p, rest @ ..] = POWER;
    for coefficient in rest {
        p = mul_add::<FUSED>(p, r, coefficient);
    }
    let power = f32::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 23));
    if x < LOWEST { 0.0 } else { power }
}

#[inline(always)]
pub(super) fn mul_add<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// Defines `pub(crate) fn name(set, args…)`, which runs a body compiled for the instruction set `set`.
///
/// The body is safe code that the compiler vectorises. `FUSED` says whether `f32::mul_add` is one
/// instruction; otherwise it is a slow library call. `WIDE` says whether the instruction set is AVX-512. `S`
/// is the register type, for code that the compiler does not vectorise well by itself.
macro_rules! dispatch {
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$doc])*
        pub(crate) fn $name(set: $crate::kernels::InstructionSet, $($arg: $type),*) {
            #[inline(always)]
            fn body<S: $crate::kernels::simd::Simd, const FUSED: bool, const WIDE: bool>($($arg: $type),*) {
                // Kernels load rows of a panel in whole registers.
                const { assert!($crate::kernels::layout::COLUMNS.is_multiple_of(S::LANES)) };
                $body
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            fn avx512($($arg: $type),*) {
                body::<$crate::kernels::simd::Avx512, true, true>($($arg),*);
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $type),*) {
                body::<$crate::kernels::simd::Avx2, true, false>($($arg),*);
            }
            match set {
                $crate::kernels::InstructionSet::Portable => body::<$crate::kernels::simd::Portable, false, false>($($arg),*),
                // SAFETY: every `InstructionSet` except `Portable` comes from `available`, which checked the
                // CPU.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::InstructionSet::Avx2 | $crate::kernels::InstructionSet::Avx2Vnni => unsafe { avx2($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                _ => unsafe { avx512($($arg),*) },
                // Every CPU of this architecture has NEON.
                #[cfg(target_arch = "aarch64")]
                _ => body::<$crate::kernels::simd::Portable, true, false>($($arg),*),
            }
        }
    };
}
pub(crate) use dispatch;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_two_are_accurate_over_their_range() {
        for i in -125_999..127_990 {
            let x = i as f32 * 1e-3;
            let expected = f64::from(x).exp2();
            for got in [exp2::<true>(x), exp2::<false>(x)] {
                let error = (f64::from(got) - expected).abs();
                assert!(error <= 1.3e-7 * expected, "2^{x} = {got}, not {expected}");
            }
        }
        for low in [-126.5, -200.0, f32::MIN, f32::NEG_INFINITY] {
            assert_eq!([exp2::<true>(low), exp2::<false>(low)].map(f32::to_bits), [0; 2], "{low}");
        }
        assert!(exp2::<true>(f32::NAN).is_nan());
    }
}
