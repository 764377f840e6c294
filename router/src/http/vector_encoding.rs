//! The notations of vectors in bodies: numbers of one of six types, as a list or as their bytes.
//!
//! Input: the fields of a body, and a vector. Output: the vector as a body has it. What must hold: the fields
//! of all dialects mean the same.

use std::borrow::Cow;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize, Serializer};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{RefOr, Schema},
};

use crate::vector_numbers::{NumberType, VectorNumbers};

/// A type of numbers or a notation, by the name that clients give it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EncodingFormat {
    /// float32 values.
    #[default]
    #[serde(alias = "float32")]
    Float,
    /// The bytes of little-endian values: base64 in JSON, binary data in `MessagePack`.
    Base64,
    /// float16 values.
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

impl EncodingFormat {
    /// The type of numbers; float32 for base64, which does not name one.
    fn number_type(self) -> NumberType {
        match self {
            Self::Float | Self::Base64 => NumberType::Float,
            Self::Float16 => NumberType::Float16,
            Self::Int8 => NumberType::Int8,
            Self::Uint8 => NumberType::Uint8,
            Self::Binary => NumberType::Binary,
            Self::Ubinary => NumberType::Ubinary,
        }
    }
}

/// The encoding of the vectors of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct VectorEncoding {
    pub(crate) numbers: NumberType,
    /// Whether they are written as their bytes instead of as a list.
    is_bytes: bool,
}

/// A vector in an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum EncodedVector {
    List(VectorNumbers),
    Bytes(Vec<u8>),
}

impl Serialize for EncodedVector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::List(VectorNumbers::Float(values)) => values.serialize(serializer),
            Self::List(VectorNumbers::Float16(values)) => {
                serializer.collect_seq(values.iter().map(|value| value.to_f32()))
            }
            Self::List(VectorNumbers::Signed(values)) => values.serialize(serializer),
            Self::List(VectorNumbers::Unsigned(values)) => values.serialize(serializer),
            Self::Bytes(bytes) if serializer.is_human_readable() => {
                serializer.serialize_str(&BASE64_STANDARD.encode(bytes))
            }
            Self::Bytes(bytes) => serializer.serialize_bytes(bytes),
        }
    }
}

impl EncodedVector {
    /// The values; for bytes, the float32 values that have as many.
    pub(crate) fn count_values(&self) -> usize {
        match self {
            Self::List(VectorNumbers::Float(values)) => values.len(),
            Self::List(VectorNumbers::Float16(values)) => values.len(),
            Self::List(VectorNumbers::Signed(values)) => values.len(),
            Self::List(VectorNumbers::Unsigned(values)) => values.len(),
            Self::Bytes(bytes) => bytes.len().div_ceil(size_of::<f32>()),
        }
    }
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
    VectorNumbers(Vec<f32>),
    Base64(String),
}

impl VectorEncoding {
    /// The encoding that one name means: base64 is of float32 values.
    pub(crate) fn from_format(format: EncodingFormat) -> Self {
        Self { numbers: format.number_type(), is_bytes: format == EncodingFormat::Base64 }
    }

    /// The encoding that a body's fields ask for: `OpenAI`'s `encoding_format`, Voyage's `output_dtype`,
    /// which is a type of numbers, and Jina's `embedding_type`. Refuses fields that contradict each other.
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
            if other.numbers != NumberType::Float {
                if chosen.numbers != NumberType::Float && chosen.numbers != other.numbers {
                    return Err(format!("`{name}` contradicts another field: ask for one type of numbers"));
                }
                chosen.numbers = other.numbers;
            }
            chosen.is_bytes |= other.is_bytes;
        }
        Ok(chosen)
    }

    /// Whether the answer has the bytes of other numbers than float32.
    pub(crate) fn is_base64_of_others(self) -> bool {
        self.is_bytes && self.numbers != NumberType::Float
    }

    pub(crate) fn encode_vector(self, vector: Vec<f32>) -> EncodedVector {
        let numbers = self.numbers.convert_vector(vector);
        if self.is_bytes { EncodedVector::Bytes(numbers.into_bytes()) } else { EncodedVector::List(numbers) }
    }

    pub(crate) fn encode_all(self, vectors: impl IntoIterator<Item = Vec<f32>>) -> Vec<EncodedVector> {
        vectors.into_iter().map(|vector| self.encode_vector(vector)).collect()
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use EncodingFormat::{Base64, Binary, Float, Float16, Int8, Ubinary, Uint8};
    use serde_json::json;

    #[test]
    fn numbers_are_a_list_or_bytes_in_both_formats() {
        let vector = vec![1.0, -1.0, 0.0];
        for (dtype, list, bytes) in [
            (Float, json!([1.0, -1.0, 0.0]), &[0, 0, 128, 63, 0, 0, 128, 191, 0, 0, 0, 0][..]),
            (Float16, json!([1.0, -1.0, 0.0]), &[0, 60, 0, 188, 0, 0]),
            (Int8, json!([127, -127, 0]), &[127, 129, 0]),
            (Uint8, json!([255, 1, 128]), &[255, 1, 128]),
            (Binary, json!([0]), &[0]),
            (Ubinary, json!([128]), &[128]),
        ] {
            let plain = VectorEncoding::from_format(dtype).encode_vector(vector.clone());
            assert_eq!(serde_json::to_value(&plain).unwrap(), list, "{dtype:?}");
            let packed = rmp_serde::to_vec_named(&plain).unwrap();
            assert_eq!(rmp_serde::from_slice::<serde_json::Value>(&packed).unwrap(), list, "{dtype:?}");
            let encoding = VectorEncoding::from_fields(Base64, Some(dtype), None).unwrap();
            assert_eq!(encoding.is_base64_of_others(), dtype != Float);
            let encoded = encoding.encode_vector(vector.clone());
            assert_eq!(serde_json::to_value(&encoded).unwrap(), BASE64_STANDARD.encode(bytes), "{dtype:?}");
            // 0xc4: binary data, up to 255 bytes.
            let packed = rmp_serde::to_vec_named(&encoded).unwrap();
            assert_eq!(packed, [&[0xc4, bytes.len() as u8], bytes].concat(), "{dtype:?}");
        }
    }

    #[test]
    fn fields_agree_or_are_refused() {
        let encoding = |numbers: EncodingFormat, is_bytes| {
            Ok(VectorEncoding { numbers: numbers.number_type(), is_bytes })
        };
        let two =
            |name: &str| Err(format!("`{name}` contradicts another field: ask for one type of numbers"));
        for (format, dtype, kind, expected) in [
            (Float, None, None, encoding(Float, false)),
            (Base64, None, None, encoding(Float, true)),
            (Int8, None, None, encoding(Int8, false)),
            (Base64, Some(Float16), None, encoding(Float16, true)),
            (Float16, None, Some(Float16), encoding(Float16, false)),
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
