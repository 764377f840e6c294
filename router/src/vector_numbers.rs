//! The types of the numbers of a vector.
//!
//! Input: a vector of float32 values; for int8 and uint8 one of length one. Output: its values in another
//! type, and their bytes. What must hold: this file alone decides how a value is rounded, so that every route
//! and both transports give the same bytes for the same vector. Binary vectors equal the ones that
//! `quantize_embeddings` of sentence-transformers gives.

use half::f16;

/// The largest magnitude of an int8 value. -128 is not used, so that a vector and its negation have the same
/// length.
const MAX_INT8: f32 = 127.0;
/// Half the range of int8 and uint8 values, in multiples of `1 / sqrt(dimensions)`, the root mean square of a
/// value of a unit vector. Larger values are clipped.
const INT8_RANGE: f32 = 8.0;

/// The refusal of numbers whose scale is made for vectors of length one.
pub(crate) const NEEDS_UNIT_LENGTH: &str =
    "`int8` and `uint8` are for vectors of length one: leave `normalize` out, or ask for another type";

/// A type of numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum NumberType {
    #[default]
    Float,
    Float16,
    /// A value of 1/√dimensions is about 16, and values from -127 to 127.
    Int8,
    /// The same plus 128.
    Uint8,
    /// A bit for each value, 1 if it is above zero; eight of them in a number from -128 to 127, which is 128
    /// less than the byte.
    Binary,
    /// The same in a byte from 0 to 255.
    Ubinary,
}

/// The values of a vector.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum VectorNumbers {
    Float(Vec<f32>),
    Float16(Vec<f16>),
    Signed(Vec<i8>),
    Unsigned(Vec<u8>),
}

impl NumberType {
    /// Whether the scale of the numbers is made for vectors of length one.
    pub(crate) fn needs_unit_length(self) -> bool {
        matches!(self, Self::Int8 | Self::Uint8)
    }

    /// The values of a vector in this type.
    pub(crate) fn convert_vector(self, vector: Vec<f32>) -> VectorNumbers {
        match self {
            Self::Float => VectorNumbers::Float(vector),
            // Values beyond the range of float16 become its largest, so that none is infinite.
            Self::Float16 => {
                let max = f16::MAX.to_f32();
                let values = vector.iter().map(|value| f16::from_f32(value.clamp(-max, max)));
                VectorNumbers::Float16(values.collect())
            }
            Self::Int8 => VectorNumbers::Signed(round_to_int8(&vector)),
            // Flipping the highest bit of a byte adds 128, or subtracts it.
            Self::Uint8 => {
                let values = round_to_int8(&vector).into_iter();
                VectorNumbers::Unsigned(values.map(|value| value.cast_unsigned() ^ 0x80).collect())
            }
            Self::Binary => {
                VectorNumbers::Signed(pack_bits(&vector).map(|byte| (byte ^ 0x80).cast_signed()).collect())
            }
            Self::Ubinary => VectorNumbers::Unsigned(pack_bits(&vector).collect()),
        }
    }
}

impl VectorNumbers {
    /// The bytes of the numbers, little-endian.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Float(values) => values.into_iter().flat_map(f32::to_le_bytes).collect(),
            Self::Float16(values) => values.into_iter().flat_map(f16::to_le_bytes).collect(),
            Self::Signed(values) => values.into_iter().map(i8::cast_unsigned).collect(),
            Self::Unsigned(values) => values,
        }
    }
}

/// The values of a unit vector in 255 steps, rounded to the nearest. The scale depends on the length alone,
/// so that products of two vectors can be compared with products of others.
fn round_to_int8(vector: &[f32]) -> Vec<i8> {
    let range = (INT8_RANGE / (vector.len() as f32).sqrt()).min(1.0);
    let scale = MAX_INT8 / range;
    vector.iter().map(|value| (value * scale).round_ties_even().clamp(-MAX_INT8, MAX_INT8) as i8).collect()
}

/// A bit for each value, the first one the highest of its byte. The last byte is filled with zeros.
fn pack_bits(vector: &[f32]) -> impl Iterator<Item = u8> {
    vector.chunks(8).map(|values| {
        let mut byte = 0;
        for (place, value) in values.iter().enumerate() {
            byte |= u8::from(*value > 0.0) << (7 - place);
        }
        byte
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize)]
    struct QuantisedVector {
        /// The little-endian bytes of its values.
        vector: String,
        binary: Vec<i8>,
        ubinary: Vec<u8>,
    }

    #[test]
    fn bits_are_those_of_sentence_transformers() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../integration_tests/reference/fixtures/quantised_vectors.json"
        );
        let rows: Vec<QuantisedVector> =
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        assert!(rows.len() > 10);
        for QuantisedVector { vector, binary, ubinary } in rows {
            let value = |bytes: &[u8]| {
                let bits = u32::from_str_radix(str::from_utf8(bytes).unwrap(), 16).unwrap();
                f32::from_bits(bits.swap_bytes())
            };
            let values: Vec<f32> = vector.as_bytes().chunks(8).map(value).collect();
            assert_eq!(
                NumberType::Binary.convert_vector(values.clone()),
                VectorNumbers::Signed(binary),
                "{values:?}"
            );
            assert_eq!(
                NumberType::Ubinary.convert_vector(values.clone()),
                VectorNumbers::Unsigned(ubinary),
                "{values:?}"
            );
        }
    }

    #[test]
    fn integers_are_rounded_to_the_nearest_and_clipped() {
        // Up to 64 dimensions, the range is [-1, 1], and nothing is clipped.
        let short = vec![1.0, -1.0, 0.0, 0.5 / 127.0, 1.5 / 127.0, -0.6 / 127.0, 0.25];
        let signed = VectorNumbers::Signed(vec![127, -127, 0, 0, 2, -1, 32]);
        assert_eq!(NumberType::Int8.convert_vector(short.clone()), signed);
        let unsigned = VectorNumbers::Unsigned(vec![255, 1, 128, 128, 130, 127, 160]);
        assert_eq!(NumberType::Uint8.convert_vector(short), unsigned);
        // With 1024, it is [-0.25, 0.25].
        let mut long = vec![0.0; 1024];
        long[..5].copy_from_slice(&[0.25, -0.25, 0.9, -0.9, 1.0 / 508.0]);
        let VectorNumbers::Signed(values) = NumberType::Int8.convert_vector(long) else { unreachable!() };
        assert_eq!((values.len(), &values[..6]), (1024, &[127, -127, 127, -127, 1, 0][..]));
    }

    #[test]
    fn halves_are_the_nearest_and_finite() {
        // Bits of float16 by IEEE 754; ties go to even. The last two are beyond its range.
        let table: [(f32, u16); 10] = [
            (0.0, 0),
            (-0.0, 0x8000),
            (1.0, 0x3c00),
            (-2.5, 0xc100),
            (1.0 + 1.0 / 2048.0, 0x3c00),
            (1.0 + 3.0 / 2048.0, 0x3c02),
            (6.0e-8, 1),
            (1.0e-8, 0),
            (65_520.0, 0x7bff),
            (-1.0e30, 0xfbff),
        ];
        let expected: Vec<u8> = table.iter().flat_map(|(_, bits)| bits.to_le_bytes()).collect();
        let values = table.map(|(value, _)| value).to_vec();
        assert_eq!(NumberType::Float16.convert_vector(values).into_bytes(), expected);
    }
}
