//! Hides the vector registers of each instruction set behind one trait, and chooses the instruction set at
//! run time.
//!
//! A kernel is written once, as an `#[inline(always)]` function over `S: Simd`. [`dispatch`] compiles it for
//! every instruction set and calls the requested version.

#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
use std::arch::is_aarch64_feature_detected;
use std::{f32::consts::LN_2, fmt, str::FromStr};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

/// The vector instructions that a kernel uses. Code outside this crate only gets a value from
/// [`InstructionSet::available`] or by its name, so that this CPU has the instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstructionSet {
    /// The instructions that every CPU of the target architecture has.
    #[non_exhaustive]
    Portable,
    /// AVX2 with FMA.
    #[cfg(target_arch = "x86_64")]
    #[non_exhaustive]
    Avx2,
    /// AVX2 with products of bytes (AVX-VNNI).
    #[cfg(target_arch = "x86_64")]
    #[non_exhaustive]
    Avx2Vnni,
    /// AVX-512 F, BW, DQ and VL, which every server CPU with AVX-512 has had since 2017.
    #[cfg(target_arch = "x86_64")]
    #[non_exhaustive]
    Avx512,
    /// AVX-512 with products of bytes (VNNI).
    #[cfg(target_arch = "x86_64")]
    #[non_exhaustive]
    Avx512Vnni,
    /// AVX-512 with products of bytes and of bfloat16.
    #[cfg(target_arch = "x86_64")]
    #[non_exhaustive]
    Avx512Bf16,
    /// AVX-512 with products of bytes and of bfloat16, and with products of whole tiles of both (AMX).
    #[cfg(target_arch = "x86_64")]
    #[non_exhaustive]
    Avx512Amx,
    /// NEON, with fused multiplication and addition of `f32`.
    #[cfg(target_arch = "aarch64")]
    #[non_exhaustive]
    Neon,
    /// NEON with products of bytes.
    #[cfg(target_arch = "aarch64")]
    #[non_exhaustive]
    NeonDotprod,
    /// NEON with products of small matrices of bytes and of bfloat16.
    #[cfg(target_arch = "aarch64")]
    #[non_exhaustive]
    NeonI8mmBf16,
}

impl InstructionSet {
    /// The name, as a flag has it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2Vnni => "avx2+vnni",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => "avx512+vnni",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => "avx512+vnni+bf16",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Amx => "avx512+vnni+bf16+amx",
            #[cfg(target_arch = "aarch64")]
            Self::Neon => "neon",
            #[cfg(target_arch = "aarch64")]
            Self::NeonDotprod => "neon+dotprod",
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mmBf16 => "neon+i8mm+bf16",
        }
    }

    /// All instruction sets that this CPU has. The best one is last.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut sets = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let avx512 = avx2 && has_avx512();
            let vnni = avx512 && is_x86_feature_detected!("avx512vnni");
            let bf16 = vnni && is_x86_feature_detected!("avx512bf16");
            let extensions = [
                (Self::Avx2, avx2),
                (Self::Avx2Vnni, avx2 && is_x86_feature_detected!("avxvnni")),
                (Self::Avx512, avx512),
                (Self::Avx512Vnni, vnni),
                (Self::Avx512Bf16, bf16),
                (Self::Avx512Amx, bf16 && super::amx::usable()),
            ];
            sets.extend(extensions.into_iter().filter(|(_, has)| *has).map(|(set, _)| set));
        }
        #[cfg(target_arch = "aarch64")]
        {
            sets.push(Self::Neon);
            if is_aarch64_feature_detected!("dotprod") {
                sets.push(Self::NeonDotprod);
            }
            if is_aarch64_feature_detected!("i8mm") && is_aarch64_feature_detected!("bf16") {
                sets.push(Self::NeonI8mmBf16);
            }
        }
        sets
    }

    /// The best instruction set that this CPU has.
    #[must_use]
    pub fn best() -> Self {
        Self::available().pop().unwrap_or(Self::Portable)
    }

    /// Whether the CPU has instructions for products of bfloat16. They are at least twice as fast as those of
    /// `f32`.
    #[must_use]
    pub fn has_bf16(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 | Self::Avx512Amx => true,
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mmBf16 => true,
            _ => false,
        }
    }

    /// Whether products of 16 bits, bfloat16 or integers, are faster than those of `f32`.
    #[must_use]
    pub fn has_fast_16_bits(self) -> bool {
        self.has_bf16() || self.has_int16()
    }

    /// Whether products of 16-bit integers are faster than those of `f32`. Without VNNI, AVX-512 has too few
    /// units for it.
    pub(crate) fn has_int16(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 | Self::Avx2Vnni | Self::Avx512Vnni | Self::Avx512Bf16 | Self::Avx512Amx => true,
            _ => false,
        }
    }

    /// Whether products of bfloat16 and of bytes run in tile registers.
    pub(crate) fn has_amx(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Amx => true,
            _ => false,
        }
    }

    /// The number that is added to the bytes of a row. x86 multiplies unsigned bytes (rows) by signed bytes
    /// (columns), ARM multiplies signed bytes.
    pub(crate) fn byte_offset(self) -> i32 {
        match self {
            #[cfg(target_arch = "aarch64")]
            Self::Neon | Self::NeonDotprod | Self::NeonI8mmBf16 => 0,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => 0,
            _ => 128,
        }
    }

    /// The number that a tile adds to a sum besides the product, for this byte of a column and any of a row.
    pub(crate) fn byte_excess(self, byte: i8) -> i32 {
        match self {
            // The sign moves to the row's byte by inverting its bits.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => i32::from(byte.min(0)),
            _ => self.byte_offset() * i32::from(byte),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

impl fmt::Display for InstructionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for InstructionSet {
    type Err = String;

    /// The instruction set with this name, if this CPU has it. The error lists the names of the available
    /// ones.
    fn from_str(name: &str) -> Result<Self, String> {
        let available = Self::available();
        available.iter().find(|set| set.to_string() == name).copied().ok_or_else(|| {
            let names: Vec<String> = available.iter().map(ToString::to_string).collect();
            format!("this CPU has {}", names.join(", "))
        })
    }
}

/// A vector register of `f32`s.
///
/// # Safety
///
/// The methods may use instructions that only some CPUs have, so the CPU must have the instruction set.
/// `load` and `store` access [`Simd::LANES`] values from `pointer` on, without alignment. Memory that
/// `stream` wrote must not be accessed before `fence`.
pub(crate) trait Simd: Copy {
    /// The number of values in a register.
    const LANES: usize;
    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(pointer: *const f32) -> Self;
    unsafe fn store(self, pointer: *mut f32);
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
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    #[test]
    fn names_are_those_of_the_sets_this_cpu_has() {
        let available = InstructionSet::available();
        for &set in &available {
            assert_eq!(set.to_string().parse(), Ok(set));
        }
        assert_eq!(available.first(), Some(&InstructionSet::Portable));
        assert_eq!(available.last(), Some(&InstructionSet::best()));
        for name in ["", "Portable", "avx", "avx512+amx"] {
            let message = name.parse::<InstructionSet>().unwrap_err();
            assert!(message.starts_with("this CPU has portable"), "{message}");
            assert!(message.ends_with(&InstructionSet::best().to_string()), "{message}");
        }
    }

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
