//! The types in which files store tensors, as data: values and bytes per block, and the function that widens
//! a block.
//!
//! What must hold: a block widened to `f32` has the same bits as in the reference implementation of its
//! format.

use crate::blocks::{self, FourBits, SMALL};
use half::{bf16, f16};
use std::fmt;

/// Widens whole blocks to values. Both slices hold the same number of blocks.
type Widen = fn(&[u8], &mut [f32]);

/// Reads blocks as groups of 32 values in four bits. `out` has a group for every 32 values.
type Read = fn(&[u8], &mut [FourBits]);

/// A storage type.
pub struct Encoding {
    /// Its name in its format.
    pub name: &'static str,
    /// The number of values in a block.
    pub values: usize,
    /// The number of bytes of a block.
    pub bytes: usize,
    widen: Option<Widen>,
    four_bits: Option<Read>,
}

/// 32-bit floating point.
pub static F32: Encoding = Encoding::new("F32", 1, 4, Some(widen_f32));
/// 16-bit floating point (IEEE half).
pub static F16: Encoding = Encoding::new("F16", 1, 2, Some(widen_f16));
/// 16-bit floating point with the range of 32-bit.
pub static BF16: Encoding = Encoding::new("BF16", 1, 2, Some(widen_bf16));

/// 64-bit floating point. Its values are rounded to 32 bits, as `transformers` does.
static F64: Encoding = Encoding::new("F64", 1, 8, Some(widen_f64));

/// Whole numbers from -128 to 127 that are the values themselves. Most checkpoints with bytes also store the
/// bytes' scales, so [`Encoding::named`] gives a type of this name that cannot be computed with.
pub static UNSCALED_BYTES: Encoding = Encoding::new("I8", 1, 1, Some(widen_bytes));

/// The supported types with blocks.
static BLOCKS: [Encoding; 11] = [
    Encoding::new("Q4_0", 32, 18, Some(blocks::q4_0)).with_four_bits(blocks::four_bits_of_q4_0),
    Encoding::new("Q4_1", 32, 20, Some(blocks::q4_1)).with_four_bits(blocks::four_bits_of_q4_1),
    Encoding::new("Q5_0", 32, 22, Some(blocks::q5_0)),
    Encoding::new("Q5_1", 32, 24, Some(blocks::q5_1)),
    Encoding::new("Q8_0", 32, 34, Some(blocks::q8_0)),
    Encoding::new("Q2_K", 256, 84, Some(blocks::q2_k)),
    Encoding::new("Q3_K", 256, 110, Some(blocks::q3_k)),
    Encoding::new("Q4_K", 256, 144, Some(blocks::q4_k)).with_four_bits(blocks::four_bits_of_q4_k),
    Encoding::new("Q5_K", 256, 176, Some(blocks::q5_k)),
    Encoding::new("Q6_K", 256, 210, Some(blocks::q6_k)),
    Encoding::new("IQ4_NL", 32, 18, Some(blocks::iq4_nl)),
];

/// Types in which no model is stored. Only `F8_E8M0`, a type of scales, can be computed with. Their sizes are
/// known, so that files with them are checked like all others.
static OTHERS: [Encoding; 33] = [
    Encoding::new("I8", 1, 1, None),
    Encoding::new("I16", 1, 2, None),
    Encoding::new("I32", 1, 4, None),
    Encoding::new("I64", 1, 8, None),
    Encoding::new("U8", 1, 1, None),
    Encoding::new("U16", 1, 2, None),
    Encoding::new("U32", 1, 4, None),
    Encoding::new("U64", 1, 8, None),
    Encoding::new("BOOL", 1, 1, None),
    Encoding::new("C64", 1, 8, None),
    Encoding::new("F8_E4M3", 1, 1, None),
    Encoding::new("F8_E5M2", 1, 1, None),
    Encoding::new("F8_E8M0", 1, 1, Some(widen_powers)),
    Encoding::new("F8_E4M3FNUZ", 1, 1, None),
    Encoding::new("F8_E5M2FNUZ", 1, 1, None),
    Encoding::new("Q8_1", 32, 40, None),
    Encoding::new("Q8_K", 256, 292, None),
    Encoding::new("IQ2_XXS", 256, 66, None),
    Encoding::new("IQ2_XS", 256, 74, None),
    Encoding::new("IQ3_XXS", 256, 98, None),
    Encoding::new("IQ1_S", 256, 50, None),
    Encoding::new("IQ3_S", 256, 110, None),
    Encoding::new("IQ2_S", 256, 82, None),
    Encoding::new("IQ4_XS", 256, 136, None),
    Encoding::new("IQ1_M", 256, 56, None),
    Encoding::new("TQ1_0", 256, 54, None),
    Encoding::new("TQ2_0", 256, 66, None),
    Encoding::new("MXFP4", 32, 17, None),
    Encoding::new("NVFP4", 64, 36, None),
    Encoding::new("Q1_0", 128, 18, None),
    Encoding::new("F4", 2, 1, None),
    Encoding::new("F6_E2M3", 4, 3, None),
    Encoding::new("F6_E3M2", 4, 3, None),
];

impl Encoding {
    const fn new(name: &'static str, values: usize, bytes: usize, widen: Option<Widen>) -> Self {
        Self { name, values, bytes, widen, four_bits: None }
    }

    const fn with_four_bits(mut self, read: Read) -> Self {
        self.four_bits = Some(read);
        self
    }

    /// Whether its values can be computed with.
    pub fn is_supported(&self) -> bool {
        self.widen.is_some()
    }

    /// Whether it stores blocks of quantised numbers.
    pub fn is_quantised(&self) -> bool {
        self.values > 1
    }

    /// Widens whole blocks into `out`, which has exactly as many values. A type that is not supported leaves
    /// `out` unchanged.
    pub fn widen(&self, blocks: &[u8], out: &mut [f32]) {
        if let Some(widen) = self.widen {
            widen(blocks, out);
        }
    }

    /// Whether all of its values are in groups of [`FourBits`].
    pub fn has_four_bits(&self) -> bool {
        self.four_bits.is_some()
    }

    /// Whole blocks as groups of 32 values; `None` for a type whose values are not [`FourBits`].
    pub fn four_bits(&self, blocks: &[u8]) -> Option<Vec<FourBits>> {
        let read = self.four_bits?;
        let empty = FourBits { step: 0.0, least: 0.0, nibbles: [0; SMALL] };
        let mut groups = vec![empty; blocks.len() / self.bytes * self.values / SMALL];
        read(blocks, &mut groups);
        Some(groups)
    }

    /// The type with this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        [&F32, &F16, &BF16, &F64]
            .into_iter()
            .chain(&BLOCKS)
            .chain(&OTHERS)
            .find(|encoding| encoding.name == name)
    }

    /// The names of all supported types.
    pub fn supported() -> String {
        let all = [&F32, &F16, &BF16, &F64].into_iter().chain(&BLOCKS);
        all.map(|encoding| encoding.name).collect::<Vec<_>>().join(", ")
    }
}

impl PartialEq for Encoding {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Encoding {}

impl fmt::Debug for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

fn widen_f32(bytes: &[u8], out: &mut [f32]) {
    for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *out = f32::from_le_bytes(*bytes);
    }
}

fn widen_f64(bytes: &[u8], out: &mut [f32]) {
    for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *out = f64::from_le_bytes(*bytes) as f32;
    }
}

fn widen_f16(bytes: &[u8], out: &mut [f32]) {
    for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *out = f16::from_le_bytes(*bytes).to_f32();
    }
}

fn widen_bytes(bytes: &[u8], out: &mut [f32]) {
    for (out, byte) in out.iter_mut().zip(bytes) {
        *out = f32::from(byte.cast_signed());
    }
}

fn widen_powers(bytes: &[u8], out: &mut [f32]) {
    for (out, byte) in out.iter_mut().zip(bytes) {
        *out = if *byte == u8::MAX { f32::NAN } else { 2_f32.powi(i32::from(*byte) - 127) };
    }
}

fn widen_bf16(bytes: &[u8], out: &mut [f32]) {
    for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *out = bf16::from_le_bytes(*bytes).to_f32();
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    #[test]
    fn each_type_has_one_name() {
        let all = || [&F32, &F16, &BF16, &F64].into_iter().chain(&BLOCKS).chain(&OTHERS);
        for encoding in all() {
            assert_eq!(all().filter(|other| other.name == encoding.name).count(), 1, "{encoding:?}");
        }
        assert_eq!(Encoding::named("Q3_K"), all().find(|encoding| encoding.name == "Q3_K"));
        assert_eq!(Encoding::named("Q9_K"), None);
        let mut value = [0.0];
        F64.widen(&0.1_f64.to_le_bytes(), &mut value);
        assert_eq!(value.map(f32::to_bits), [0.1_f32.to_bits()]);
        let mut powers = [0.0; 4];
        Encoding::named("F8_E8M0").unwrap().widen(&[0, 127, 130, 255], &mut powers);
        assert_eq!(powers[..3], [2_f32.powi(-127), 1.0, 8.0]);
        assert!(powers[3].is_nan());
    }
}
