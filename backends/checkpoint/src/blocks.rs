//! Widens quantised blocks of GGUF to `f32`.
//!
//! A block holds values as small integers, and one or two factors. The multiplications follow the order of
//! the format's reference, so that the results have the same bits (`integration_tests/test_gguf.py` compares
//! them).

use half::f16;

/// Values of a block, or of a part of a block, with one pair of factors.
pub(crate) const SMALL: usize = 32;
/// Values of a block whose parts have integer factors.
const LARGE: usize = 256;

/// 32 neighbouring values in four bits each. A value is `step · nibble + least`, without an error in `f32`
/// except the sum's rounding, which the type's definition has, too.
#[derive(Debug, Clone, Copy)]
pub struct FourBits {
    /// The difference of neighbouring values.
    pub step: f32,
    /// The value of nibble 0.
    pub least: f32,
    /// Numbers from 0 to 15.
    pub nibbles: [u8; SMALL],
}

/// The values of the 16 codes of `IQ4_NL`.
const NON_LINEAR: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Each block of `BYTES` bytes with its place in the output.
fn each<'a, const BYTES: usize, const VALUES: usize>(
    blocks: &'a [u8],
    out: &'a mut [f32],
) -> impl Iterator<Item = (&'a [u8; BYTES], &'a mut [f32; VALUES])> {
    blocks.as_chunks().0.iter().zip(out.as_chunks_mut().0)
}

/// The half-precision number at byte `at` of a block.
fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// The four bits of value `index`, of 32 values in 16 bytes. The low nibbles hold the first 16 values.
fn nibble(bytes: &[u8], index: usize) -> u8 {
    let half = SMALL / 2;
    if index < half { bytes[index] & 15 } else { bytes[index - half] >> 4 }
}

/// The fifth bit of value `index`, shifted to its place in the number.
fn fifth(bytes: &[u8], index: usize) -> u8 {
    (bytes[index / 8] >> (index % 8) & 1) << 4
}

/// [`FourBits`] of `Q4_0`: a factor, and nibbles from which 8 is subtracted.
pub(crate) fn four_bits_of_q4_0(blocks: &[u8], out: &mut [FourBits]) {
    for (block, out) in blocks.as_chunks::<18>().0.iter().zip(out) {
        let step = half(block, 0);
        let nibbles = std::array::from_fn(|index| nibble(&block[2..], index));
        *out = FourBits { step, least: -8.0 * step, nibbles };
    }
}

/// [`FourBits`] of `Q4_1`: a factor, the value of nibble 0, and nibbles.
pub(crate) fn four_bits_of_q4_1(blocks: &[u8], out: &mut [FourBits]) {
    for (block, out) in blocks.as_chunks::<20>().0.iter().zip(out) {
        let nibbles = std::array::from_fn(|index| nibble(&block[4..], index));
        *out = FourBits { step: half(block, 0), least: half(block, 2), nibbles };
    }
}

/// [`FourBits`] of `Q4_K`: eight for each block.
pub(crate) fn four_bits_of_q4_k(blocks: &[u8], out: &mut [FourBits]) {
    for (block, out) in blocks.as_chunks::<144>().0.iter().zip(out.chunks_mut(LARGE / SMALL)) {
        for (part, out) in out.iter_mut().enumerate() {
            let (factor, offset) = factors(&block[4..16], part);
            let nibbles = std::array::from_fn(|index| shared_nibble(&block[16..], part, index));
            *out = FourBits { step: half(block, 0) * factor, least: -(half(block, 2) * offset), nibbles };
        }
    }
}

pub(crate) fn q4_0(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in each::<18, SMALL>(blocks, out) {
        let scale = half(block, 0);
        for (index, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from(nibble(&block[2..], index) as i8 - 8);
        }
    }
}

pub(crate) fn q4_1(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in each::<20, SMALL>(blocks, out) {
        let (scale, least) = (half(block, 0), half(block, 2));
        for (index, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from(nibble(&block[4..], index)) + least;
        }
    }
}

pub(crate) fn q5_0(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in each::<22, SMALL>(blocks, out) {
        let scale = half(block, 0);
        for (index, out) in out.iter_mut().enumerate() {
            let value = nibble(&block[6..], index) | fifth(&block[2..6], index);
            *out = scale * f32::from(value as i8 - 16);
        }
    }
}

pub(crate) fn q5_1(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in each::<24, SMALL>(blocks, out) {
        let (scale, least) = (half(block, 0), half(block, 2));
        for (index, out) in out.iter_mut().enumerate() {
            let value = nibble(&block[8..], index) | fifth(&block[4..8], index);
            *out = scale * f32::from(value) + least;
        }
    }
}

pub(crate) fn q8_0(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in each::<34, SMALL>(blocks, out) {
        let scale = half(block, 0);
        for (out, value) in out.iter_mut().zip(&block[2..]) {
            *out = scale * f32::from(*value as i8);
        }
    }
}

pub(crate) fn iq4_nl(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in each::<18, SMALL>(blocks, out) {
        let scale = half(block, 0);
        for (index, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from(NON_LINEAR[usize::from(nibble(&block[2..], index))]);
        }
    }
}

/// The factor and the offset of part `part` of eight, six bits each. Twelve bytes hold all of them.
fn factors(bytes: &[u8], part: usize) -> (f32, f32) {
    let (factor, offset) = if part < 4 {
        (bytes[part] & 63, bytes[part + 4] & 63)
    } else {
        let low = bytes[part + 4];
        ((low & 15) | (bytes[part - 4] >> 6) << 4, (low >> 4) | (bytes[part] >> 6) << 4)
    };
    (f32::from(factor), f32::from(offset))
}

/// A block of `Q4_K` or `Q5_K`. `bits(part, index)` gives the stored integer of a value.
fn k_block(block: &[u8], out: &mut [f32; LARGE], bits: impl Fn(usize, usize) -> u8) {
    let (scale, least) = (half(block, 0), half(block, 2));
    for (part, out) in out.as_chunks_mut::<SMALL>().0.iter_mut().enumerate() {
        let (factor, offset) = factors(&block[4..16], part);
        let (scale, least) = (scale * factor, least * offset);
        for (index, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from(bits(part, index)) - least;
        }
    }
}

/// The four bits of value `index` of part `part`. Two parts share 32 bytes.
fn shared_nibble(bytes: &[u8], part: usize, index: usize) -> u8 {
    bytes[part / 2 * SMALL + index] >> (part % 2 * 4) & 15
}

/// The two bits of value `index` of a block of `Q2_K` or `Q3_K`, and the byte among the 32 of its half that
/// holds them.
fn two_bits(bytes: &[u8], index: usize) -> (u8, usize) {
    let (part, within) = (index / 128, index % 128);
    let (quarter, column) = (within / 32, within % 32);
    (bytes[part * 32 + column] >> (2 * quarter) & 3, column)
}

pub(crate) fn q2_k(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in each::<84, LARGE>(blocks, out) {
        let (scale, least) = (half(block, 80), half(block, 82));
        for (index, out) in out.iter_mut().enumerate() {
            // 16 values share a byte with a factor in the low nibble and an offset in the high one.
            let (factor, offset) = (block[index / 16] & 15, block[index / 16] >> 4);
            let (bits, _) = two_bits(&block[16..], index);
            *out = scale * f32::from(factor) * f32::from(bits) - least * f32::from(offset);
        }
    }
}

pub(crate) fn q3_k(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in each::<110, LARGE>(blocks, out) {
        let scale = half(block, 108);
        for (index, out) in out.iter_mut().enumerate() {
            let factor = f32::from(signed_factor(&block[96..108], index / 16));
            let (low, column) = two_bits(&block[32..], index);
            // The third bits come first in the block. A bit for each value of the same column.
            let high = block[column] >> (index / 32) & 1;
            *out = scale * factor * f32::from((low | high << 2) as i8 - 4);
        }
    }
}

/// The factor of part `part` of sixteen in `Q3_K`, six bits each. Eight bytes hold the low nibbles of all
/// factors, four more their high bits.
fn signed_factor(bytes: &[u8], part: usize) -> i8 {
    let low = bytes[part % 8] >> (part / 8 * 4) & 15;
    let high = bytes[8 + part % 4] >> (part / 4 * 2) & 3;
    (low | high << 4) as i8 - 32
}

pub(crate) fn q4_k(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in each::<144, LARGE>(blocks, out) {
        k_block(block, out, |part, index| shared_nibble(&block[16..], part, index));
    }
}

pub(crate) fn q5_k(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in each::<176, LARGE>(blocks, out) {
        k_block(block, out, |part, index| {
            shared_nibble(&block[48..], part, index) | (block[16 + index] >> part & 1) << 4
        });
    }
}

pub(crate) fn q6_k(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in each::<210, LARGE>(blocks, out) {
        let scale = half(block, 208);
        for (index, out) in out.iter_mut().enumerate() {
            // Two halves of 128 values each. Each half has 64 bytes of low bits, 32 bytes of high bits and 8
            // factors.
            let (part, within) = (index / 128, index % 128);
            let (quarter, column) = (within / 32, within % 32);
            let low = block[part * 64 + quarter % 2 * 32 + column] >> (quarter / 2 * 4) & 15;
            let high = block[128 + part * 32 + column] >> (2 * quarter) & 3;
            let factor = f32::from(block[192 + index / 16] as i8);
            *out = scale * factor * f32::from((low | high << 4) as i8 - 32);
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use crate::Encoding;
    use serde_json::Value;

    fn bytes(hex: &Value) -> Vec<u8> {
        let hex = hex.as_str().unwrap();
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn steps_and_nibbles_give_the_values_of_the_wide_blocks() {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../integration_tests/reference/fixtures/blocks.json");
        let rows: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let mut found = Vec::new();
        for (name, row) in rows.as_object().unwrap() {
            let (encoding, blocks) = (Encoding::named(name).unwrap(), bytes(&row["blocks"]));
            let mut values = vec![0.0; blocks.len() / encoding.bytes * encoding.values];
            encoding.widen(&blocks, &mut values);
            let Some(groups) = encoding.four_bits(&blocks) else { continue };
            found.push(name.as_str());
            assert_eq!(groups.len() * 32, values.len(), "{name}");
            let of_groups = groups.iter().flat_map(|group| {
                group.nibbles.iter().map(|&nibble| group.step * f32::from(nibble) + group.least)
            });
            assert!(of_groups.eq(values.iter().copied()), "{name}");
            assert!(groups.iter().flat_map(|group| group.nibbles).all(|nibble| nibble < 16), "{name}");
        }
        assert_eq!(found, ["Q4_0", "Q4_1", "Q4_K"]);
    }

    #[test]
    fn each_type_has_the_bits_of_llama_cpps_own_package() {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../integration_tests/reference/fixtures/blocks.json");
        let rows: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let rows = rows.as_object().unwrap();
        assert_eq!(rows.len(), 13);
        for (name, row) in rows {
            let encoding = Encoding::named(name).unwrap();
            let (blocks, expected) = (bytes(&row["blocks"]), bytes(&row["values"]));
            let mut values = vec![0.0; blocks.len() / encoding.bytes * encoding.values];
            encoding.widen(&blocks, &mut values);
            let found: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            assert!(found == expected, "{name}");
        }
    }
}
