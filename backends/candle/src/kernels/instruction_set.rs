//! The sets of vector instructions, and the ones that this CPU has.

#[cfg(target_arch = "aarch64")]
use std::arch::is_aarch64_feature_detected;
use std::{fmt, str::FromStr};

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

    /// Whether the CPU has instructions for products of bfloat16. They are at least twice as fast as products
    /// of `f32`.
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

    /// Whether products of 16 bits, bfloat16 or integers, are faster than products of `f32`.
    #[must_use]
    pub fn has_fast_16_bits(self) -> bool {
        self.has_bf16() || self.takes_int16()
    }

    /// Whether 16-bit integers take bfloat16's place: the CPU does not multiply that, and multiplies them
    /// faster than `f32`. Without VNNI, AVX-512 has too few units for it.
    pub(crate) fn takes_int16(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 | Self::Avx2Vnni | Self::Avx512Vnni => true,
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
