//! Vector registers of each instruction set behind one trait, and the choice among them at run time.
//!
//! A kernel is written once as an `#[inline(always)]` function over `S: Simd`; [`dispatch`] compiles it for every
//! instruction set and calls the one it is given.

#[cfg(target_arch = "aarch64")]
use std::arch::is_aarch64_feature_detected;
use std::{fmt, str::FromStr};

/// The vector instructions that a kernel uses. Outside this crate a value comes from [`InstructionSet::available`] or from
/// its name only, so that this CPU has the instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstructionSet {
    /// What every CPU of the target architecture has.
    #[non_exhaustive]
    Portable,
    /// AVX2 with FMA.
    #[cfg(target_arch = "x86_64")]
    #[non_exhaustive]
    Avx2,
    /// AVX2 and its products of bytes (AVX-VNNI).
    #[cfg(target_arch = "x86_64")]
    #[non_exhaustive]
    Avx2Vnni,
    /// AVX-512 F, BW, DQ and VL: what every server CPU with AVX-512 since 2017 has.
    #[cfg(target_arch = "x86_64")]
    #[non_exhaustive]
    Avx512,
    /// AVX-512 and its products of bytes (VNNI).
    #[cfg(target_arch = "x86_64")]
    #[non_exhaustive]
    Avx512Vnni,
    /// AVX-512 and its products of bytes and of bfloat16.
    #[cfg(target_arch = "x86_64")]
    #[non_exhaustive]
    Avx512Bf16,
    /// AVX-512 with both products, and those of whole tiles of bytes and of bfloat16 (AMX).
    #[cfg(target_arch = "x86_64")]
    #[non_exhaustive]
    Avx512Amx,
    /// NEON: fused multiplication of `f32`.
    #[cfg(target_arch = "aarch64")]
    #[non_exhaustive]
    Neon,
    /// NEON and its products of bytes.
    #[cfg(target_arch = "aarch64")]
    #[non_exhaustive]
    NeonDotprod,
    /// NEON and its products of small matrices of bytes and of bfloat16.
    #[cfg(target_arch = "aarch64")]
    #[non_exhaustive]
    NeonI8mmBf16,
}

impl InstructionSet {
    /// All that this CPU has, the best one last.
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

    /// The best that this CPU has.
    pub(crate) fn best() -> Self {
        Self::available().pop().unwrap_or(Self::Portable)
    }

    /// Whether products of bfloat16 are instructions of their own, twice as fast as those of `f32` or faster.
    pub(crate) fn has_bf16(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 | Self::Avx512Amx => true,
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mmBf16 => true,
            _ => false,
        }
    }

    /// What is added to a row's bytes: x86 multiplies unsigned bytes with the columns' signed ones, ARM signed with signed.
    pub(crate) fn byte_offset(self) -> i32 {
        match self {
            #[cfg(target_arch = "aarch64")]
            Self::Neon | Self::NeonDotprod | Self::NeonI8mmBf16 => 0,
            _ => 128,
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
        f.write_str(match self {
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
        })
    }
}

impl FromStr for InstructionSet {
    type Err = String;

    /// The instruction set of that name, if this CPU has it; else the names of those it has.
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
/// The methods may use instructions that only some CPUs have: call them only where the CPU has the instruction set.
/// `load` and `store` access [`Simd::LANES`] values from `pointer` on, which need no alignment.
pub(crate) trait Simd: Copy {
    /// Values in a register.
    const LANES: usize;
    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(pointer: *const f32) -> Self;
    unsafe fn store(self, pointer: *mut f32);
    /// Of each of [`Simd::LANES`] words, the lower half as a bfloat16, widened.
    unsafe fn low_halves(words: *const u32) -> Self;
    /// Of each of [`Simd::LANES`] words, the upper half as a bfloat16, widened.
    unsafe fn high_halves(words: *const u32) -> Self;
    /// `self * factor + addend`, fused where the instruction set can.
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self;
}

/// The bits of a word's upper half.
pub(crate) const HIGH_HALF: u32 = 0xffff_0000;

/// Four values, for the compiler to place in whatever registers there are.
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
        // SAFETY: the caller vouches for four values at `pointer`; the array has the alignment of one value.
        Self(unsafe { pointer.cast::<[f32; 4]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, pointer: *mut f32) {
        // SAFETY: the caller vouches for room for four values at `pointer`.
        unsafe { pointer.cast::<[f32; 4]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn low_halves(words: *const u32) -> Self {
        // SAFETY: the caller vouches for four words; the array has the alignment of one.
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
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{HIGH_HALF, Simd};
    use std::arch::x86_64::{
        __m256, __m512, _mm256_and_si256, _mm256_castsi256_ps, _mm256_fmadd_ps, _mm256_loadu_ps,
        _mm256_loadu_si256, _mm256_set1_epi32, _mm256_set1_ps, _mm256_slli_epi32, _mm256_storeu_ps,
        _mm512_and_si512, _mm512_castsi512_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512,
        _mm512_set1_epi32, _mm512_set1_ps, _mm512_slli_epi32, _mm512_storeu_ps,
    };

    macro_rules! register {
        ($name:ident, $register:ty, $lanes:literal, $splat:ident, $load:ident, $store:ident, $fmadd:ident,
         $load_words:ident, $shift:ident, $and:ident, $splat_word:ident, $cast:ident) => {
            #[derive(Clone, Copy)]
            pub(crate) struct $name($register);

            // SAFETY (all methods): the trait's contract is the intrinsics' own.
            impl Simd for $name {
                const LANES: usize = $lanes;

                #[inline(always)]
                unsafe fn splat(value: f32) -> Self {
                    // SAFETY: the caller vouches for the instruction set.
                    Self(unsafe { $splat(value) })
                }

                #[inline(always)]
                unsafe fn load(pointer: *const f32) -> Self {
                    // SAFETY: the caller vouches for the instruction set and for the values at `pointer`.
                    Self(unsafe { $load(pointer) })
                }

                #[inline(always)]
                unsafe fn store(self, pointer: *mut f32) {
                    // SAFETY: the caller vouches for the instruction set and for room at `pointer`.
                    unsafe { $store(pointer, self.0) }
                }

                #[inline(always)]
                unsafe fn low_halves(words: *const u32) -> Self {
                    // SAFETY: the caller vouches for the instruction set and for the words.
                    Self(unsafe { $cast($shift::<16>($load_words(words.cast()))) })
                }

                #[inline(always)]
                unsafe fn high_halves(words: *const u32) -> Self {
                    // SAFETY: the caller vouches for the instruction set and for the words.
                    Self(unsafe { $cast($and($load_words(words.cast()), $splat_word(HIGH_HALF as i32))) })
                }

                #[inline(always)]
                unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
                    // SAFETY: the caller vouches for the instruction set.
                    Self(unsafe { $fmadd(self.0, factor.0, addend.0) })
                }
            }
        };
    }

    register!(
        Avx2,
        __m256,
        8,
        _mm256_set1_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_fmadd_ps,
        _mm256_loadu_si256,
        _mm256_slli_epi32,
        _mm256_and_si256,
        _mm256_set1_epi32,
        _mm256_castsi256_ps
    );
    register!(
        Avx512,
        __m512,
        16,
        _mm512_set1_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_fmadd_ps,
        _mm512_loadu_si512,
        _mm512_slli_epi32,
        _mm512_and_si512,
        _mm512_set1_epi32,
        _mm512_castsi512_ps
    );
}

/// Defines `pub(crate) fn name(set, args…)` that runs a body compiled for the instruction set `set`.
///
/// The body is safe code that the compiler vectorises with what the instruction set offers; `FUSED` tells it whether
/// `f32::mul_add` is one instruction (else it is a slow library call), `WIDE` whether the instruction set is AVX-512.
macro_rules! dispatch {
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$doc])*
        pub(crate) fn $name(set: $crate::kernels::InstructionSet, $($arg: $type),*) {
            #[inline(always)]
            fn body<const FUSED: bool, const WIDE: bool>($($arg: $type),*) $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            fn avx512($($arg: $type),*) {
                body::<true, true>($($arg),*);
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $type),*) {
                body::<true, false>($($arg),*);
            }
            match set {
                $crate::kernels::InstructionSet::Portable => body::<false, false>($($arg),*),
                // SAFETY: a value of `InstructionSet` other than `Portable` comes from `available`, which asked the CPU.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::InstructionSet::Avx2 | $crate::kernels::InstructionSet::Avx2Vnni => unsafe { avx2($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                _ => unsafe { avx512($($arg),*) },
                // Every CPU of this architecture has NEON.
                #[cfg(target_arch = "aarch64")]
                _ => body::<true, false>($($arg),*),
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
}
