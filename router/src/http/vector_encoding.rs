//! The encodings of vectors: numbers of five types, as a list or as base64 of their bytes.
//!
//! Input: a vector of length one. Output: the vector as a body has it. What must hold: this file alone
//! decides how a value is rounded, so that every route gives the same bytes for the same vector. Binary
//! vectors equal the ones that `quantize_embeddings` of sentence-transformers gives.

use std::borrow::Cow;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{RefOr, Schema},
};

/// The largest magnitude of an int8 value. -128 is not used, so that a vector and its negation have the same
/// length.
const MAX_INT8: f32 = 127.0;
/// Half the range of int8 and uint8 values, in multiples of `1 / sqrt(dimensions)`, the root mean square of a
/// value of a unit vector. Larger values are clipped.
const INT8_RANGE: f32 = 8.0;

/// A type of numbers or a notation, by the name that clients give it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EncodingFormat {
    /// float32 values.
    #[default]
    Float,
    /// base64 of the little-endian values.
    Base64,
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

/// The encoding of the vectors of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct VectorEncoding {
    /// The type of the numbers, never `Base64`.
    numbers: EncodingFormat,
    /// Whether they are written as base64 of their bytes instead of as a list.
    is_base64: bool,
}

/// A vector in an answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum EncodedVector {
    Float(Vec<f32>),
    Signed(Vec<i8>),
    Unsigned(Vec<u8>),
    Base64(String),
}

impl ToSchema for EncodedVector {
    fn name() -> Cow<'static, str> {
        "Embedding".into()
    }
}

impl PartialSchema for EncodedVector {
    fn schema() -> RefOr<Schema> {
        DescribedVector::schema()
    }
}

/// A vector: numbers, which are integers for integer types, or the bytes of the numbers in base64.
///
/// A list of integers is a list of numbers, too, so that the types have one description.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "a description, not a value")]
enum DescribedVector {
    Numbers(Vec<f32>),
    Base64(String),
}

impl VectorEncoding {
    /// The encoding that one name means: base64 is of float32 values.
    pub(crate) fn from_format(format: EncodingFormat) -> Self {
        match format {
            EncodingFormat::Base64 => Self { numbers: EncodingFormat::Float, is_base64: true },
            numbers => Self { numbers, is_base64: false },
        }
    }

    /// The encoding that a body's fields ask for: `OpenAI`'s `encoding_format`, Voyage's `output_dtype`,
    /// which is a type of numbers, and Jina's `embedding_type`.
    ///
    /// # Errors
    ///
    /// The fields that contradict each other.
    pub(crate) fn from_fields(
        encoding_format: EncodingFormat,
        output_dtype: Option<EncodingFormat>,
        embedding_type: Option<EncodingFormat>,
    ) -> Result<Self, String> {
        if output_dtype == Some(EncodingFormat::Base64) {
            return Err("`output_dtype` is a type of numbers: send base64 as `encoding_format`".to_owned());
        }
        let mut chosen = Self::from_format(encoding_format);
        for (name, format) in [("output_dtype", output_dtype), ("embedding_type", embedding_type)] {
            let Some(other) = format.map(Self::from_format) else { continue };
            // `float` is the default of each field, and says no more than that.
            if other.numbers != EncodingFormat::Float {
                if chosen.numbers != EncodingFormat::Float && chosen.numbers != other.numbers {
                    return Err(format!("`{name}` contradicts another field: ask for one type of numbers"));
                }
                chosen.numbers = other.numbers;
            }
            chosen.is_base64 |= other.is_base64;
        }
        Ok(chosen)
    }

    /// Whether the answer has base64 of other numbers than float32.
    pub(crate) fn is_base64_of_integers(self) -> bool {
        self.is_base64 && self.numbers != EncodingFormat::Float
    }

    /// A vector of length one in this encoding.
    pub(crate) fn encode_vector(self, vector: &[f32]) -> EncodedVector {
        let encoded = match self.numbers {
            EncodingFormat::Float | EncodingFormat::Base64 => EncodedVector::Float(vector.to_vec()),
            EncodingFormat::Int8 => EncodedVector::Signed(round_to_int8(vector)),
            EncodingFormat::Uint8 => {
                EncodedVector::Unsigned(round_to_int8(vector).into_iter().map(add_offset).collect())
            }
            EncodingFormat::Binary => EncodedVector::Signed(pack_bits(vector).map(subtract_offset).collect()),
            EncodingFormat::Ubinary => EncodedVector::Unsigned(pack_bits(vector).collect()),
        };
        if self.is_base64 {
            EncodedVector::Base64(BASE64_STANDARD.encode(encoded.into_bytes()))
        } else {
            encoded
        }
    }
}

impl EncodedVector {
    /// The bytes of the numbers, little-endian.
    fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Float(values) => values.into_iter().flat_map(f32::to_le_bytes).collect(),
            Self::Signed(values) => values.into_iter().map(i8::cast_unsigned).collect(),
            Self::Unsigned(values) => values,
            Self::Base64(text) => text.into_bytes(),
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

/// 128 more, as a byte.
fn add_offset(value: i8) -> u8 {
    value.cast_unsigned() ^ 0x80
}

/// 128 less.
fn subtract_offset(byte: u8) -> i8 {
    (byte ^ 0x80).cast_signed()
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
    use EncodingFormat::{Base64, Binary, Float, Int8, Ubinary, Uint8};

    fn encoded(format: EncodingFormat, vector: &[f32]) -> EncodedVector {
        VectorEncoding::from_format(format).encode_vector(vector)
    }

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
            assert_eq!(encoded(Binary, &values), EncodedVector::Signed(binary), "{values:?}");
            assert_eq!(encoded(Ubinary, &values), EncodedVector::Unsigned(ubinary), "{values:?}");
        }
    }

    #[test]
    fn integers_are_rounded_to_the_nearest_and_clipped() {
        // Up to 64 dimensions, the range is [-1, 1], and nothing is clipped.
        let short = [1.0, -1.0, 0.0, 0.5 / 127.0, 1.5 / 127.0, -0.6 / 127.0, 0.25];
        assert_eq!(encoded(Int8, &short), EncodedVector::Signed(vec![127, -127, 0, 0, 2, -1, 32]));
        assert_eq!(encoded(Uint8, &short), EncodedVector::Unsigned(vec![255, 1, 128, 128, 130, 127, 160]));
        // With 1024, it is [-0.25, 0.25].
        let mut long = vec![0.0; 1024];
        long[..5].copy_from_slice(&[0.25, -0.25, 0.9, -0.9, 1.0 / 508.0]);
        let EncodedVector::Signed(values) = encoded(Int8, &long) else { unreachable!() };
        assert_eq!((values.len(), &values[..6]), (1024, &[127, -127, 127, -127, 1, 0][..]));
    }

    #[test]
    fn base64_is_of_the_bytes_of_the_numbers() {
        assert_eq!(encoded(Base64, &[1.0, -2.5]), EncodedVector::Base64("AACAPwAAIMA=".to_owned()));
        let of = |dtype| VectorEncoding::from_fields(Base64, Some(dtype), None).unwrap();
        let vector = [1.0, -1.0, 0.0];
        for (dtype, bytes) in
            [(Int8, &[127, 129, 0][..]), (Uint8, &[255, 1, 128]), (Binary, &[0]), (Ubinary, &[128])]
        {
            let expected = EncodedVector::Base64(BASE64_STANDARD.encode(bytes));
            assert_eq!(of(dtype).encode_vector(&vector), expected, "{dtype:?}");
            assert!(
                of(dtype).is_base64_of_integers()
                    && !VectorEncoding::from_format(dtype).is_base64_of_integers()
            );
        }
        assert!(!of(Float).is_base64_of_integers());
    }

    #[test]
    fn fields_agree_or_are_refused() {
        let encoding = |numbers, is_base64| Ok(VectorEncoding { numbers, is_base64 });
        let two =
            |name: &str| Err(format!("`{name}` contradicts another field: ask for one type of numbers"));
        for (format, dtype, kind, expected) in [
            (Float, None, None, encoding(Float, false)),
            (Base64, None, None, encoding(Float, true)),
            (Int8, None, None, encoding(Int8, false)),
            (Float, Some(Int8), None, encoding(Int8, false)),
            (Base64, Some(Ubinary), None, encoding(Ubinary, true)),
            (Base64, Some(Float), None, encoding(Float, true)),
            (Float, None, Some(Base64), encoding(Float, true)),
            (Float, None, Some(Binary), encoding(Binary, false)),
            (Uint8, Some(Uint8), Some(Uint8), encoding(Uint8, false)),
            (Int8, Some(Uint8), None, two("output_dtype")),
            (Float, Some(Int8), Some(Binary), two("embedding_type")),
            (
                Float,
                Some(Base64),
                None,
                Err("`output_dtype` is a type of numbers: send base64 as `encoding_format`".to_owned()),
            ),
        ] {
            let found = VectorEncoding::from_fields(format, dtype, kind);
            assert_eq!(found, expected, "{format:?} {dtype:?} {kind:?}");
        }
    }
}
