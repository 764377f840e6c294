//! Reads the metadata of a GGUF file in sequence.
//!
//! What must hold: reading stops at [`MAX_METADATA_BYTES`], and memory is taken only for bytes that the file
//! has.

use crate::{CheckpointError, Source};

/// The most bytes of all metadata and tensor descriptions. The largest vocabularies take 20 million.
const MAX_METADATA_BYTES: u64 = 128 << 20;
/// The longest text, in bytes. Templates have thousands.
const MAX_TEXT: u64 = 16 << 20;
/// The longest name, in bytes. The format allows 65535 for metadata and 64 for tensors.
const MAX_NAME: u64 = 1024;
/// The number of bytes read from the file at once.
const CHUNK: u64 = 1 << 20;

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
pub enum MetadataValue {
    /// A whole number of any width. `u64` values beyond `i64` are clamped.
    Whole(i64),
    /// A floating-point number of 32 or 64 bits.
    Real(f64),
    /// A switch.
    Switch(bool),
    /// A text.
    Text(String),
    /// A list of texts.
    Texts(Vec<String>),
    /// A list of numbers.
    Numbers(NumberList),
}

/// Numbers in their stored form.
#[derive(Debug, Clone, PartialEq)]
pub struct NumberList {
    kind: ValueType,
    /// The bytes of the numbers, one after the other.
    bytes: Vec<u8>,
}

/// The type of some entries.
struct ExpectedType {
    /// Its name in messages.
    name: &'static str,
    fits: fn(&MetadataValue) -> bool,
    /// The ends of the entries' names.
    ends: &'static [&'static str],
}

/// The types of entries that a file may lack. Those that it must have are checked where they are read.
const EXPECTED_TYPES: [ExpectedType; 5] = [
    ExpectedType {
        name: "a text",
        fits: |value| matches!(value, MetadataValue::Text(_)),
        ends: &[
            "general.name",
            "general.type",
            ".rope.scaling.type",
            ".hidden_act",
            "tokenizer.chat_template",
            ".chat_template.rerank",
        ],
    },
    ExpectedType {
        name: "true or false",
        fits: |value| matches!(value, MetadataValue::Switch(_)),
        ends: &[
            ".attention.causal",
            ".normalizer.lowercase",
            ".normalizer.strip_accents",
            ".add_bos_token",
            ".add_eos_token",
            ".add_space_prefix",
            ".remove_extra_whitespaces",
        ],
    },
    ExpectedType {
        name: "a whole number",
        fits: |value| matches!(value, MetadataValue::Whole(0..)),
        ends: &[
            "split.count",
            "pooling_type",
            "_token_id",
            ".attention.key_length",
            ".attention.value_length",
            ".attention.sliding_window",
            ".rope.dimension_count",
            ".full_attention_interval",
            ".moe_every_n_layers",
        ],
    },
    ExpectedType {
        name: "a number",
        fits: |value| matches!(value, MetadataValue::Real(_) | MetadataValue::Whole(_)),
        ends: &[
            ".rope.freq_base",
            ".rope.freq_base_swa",
            ".rope.scaling.factor",
            ".rope.scale_linear",
            ".rope.scaling.attn_factor",
            ".final_logit_softcapping",
        ],
    },
    ExpectedType {
        name: "a list of texts",
        fits: |value| matches!(value, MetadataValue::Texts(_)),
        ends: &[".classifier.output_labels"],
    },
];

impl MetadataValue {
    /// The type that an entry of this name must have, if it has another one.
    pub(super) fn expected_type(&self, name: &str) -> Option<&'static str> {
        let expected = EXPECTED_TYPES.iter().find(|row| row.ends.iter().any(|end| name.ends_with(end)))?;
        (!(expected.fits)(self)).then_some(expected.name)
    }

    /// The numbers of a list, if they are whole.
    pub fn numbers(&self) -> Option<Vec<i64>> {
        let numbers = self.items()?.map(|value| match value {
            Self::Whole(number) => Some(number),
            _ => None,
        });
        numbers.collect()
    }

    /// The numbers of a list.
    pub fn reals(&self) -> Option<Vec<f64>> {
        let numbers = self.items()?.map(|value| match value {
            Self::Real(number) => Some(number),
            Self::Whole(number) => Some(number as f64),
            _ => None,
        });
        numbers.collect()
    }

    fn items(&self) -> Option<impl Iterator<Item = Self>> {
        match self {
            Self::Numbers(NumberList { kind, bytes }) => {
                Some(bytes.chunks_exact(kind.size()).map(|bytes| kind.value(bytes)))
            }
            _ => None,
        }
    }
}

/// The numeric types, with the format's numbers for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    /// A byte that is 0 or 1.
    Bool = 7,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

/// The format's numbers for the types text and list.
const TEXT: u32 = 8;
const LIST: u32 = 9;

impl ValueType {
    const ALL: [Self; 11] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u32 == number)
    }

    fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// The number that `bytes` encode. `bytes` has exactly the length of the type.
    fn value(self, bytes: &[u8]) -> MetadataValue {
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let bits = u64::from_le_bytes(wide);
        match self {
            Self::U8 | Self::U16 | Self::U32 | Self::I64 => MetadataValue::Whole(bits as i64),
            // A number beyond `i64` becomes the largest one. It is then larger than any count in the file.
            Self::U64 => MetadataValue::Whole(i64::try_from(bits).unwrap_or(i64::MAX)),
            Self::I8 => MetadataValue::Whole((bits as i8).into()),
            Self::I16 => MetadataValue::Whole((bits as i16).into()),
            Self::I32 => MetadataValue::Whole((bits as i32).into()),
            Self::F32 => MetadataValue::Real(f32::from_bits(bits as u32).into()),
            Self::F64 => MetadataValue::Real(f64::from_bits(bits)),
            Self::Bool => MetadataValue::Switch(bits != 0),
        }
    }
}

/// Reads forward from a position of the file, through a buffer.
pub(super) struct SourceReader<'s> {
    source: &'s Source,
    /// The position in the file of the next byte to read.
    position: u64,
    ahead: Vec<u8>,
    /// The number of bytes of `ahead` that were handed out.
    used: usize,
}

impl<'s> SourceReader<'s> {
    pub(super) fn new(source: &'s Source, position: u64) -> Self {
        Self { source, position, ahead: Vec::new(), used: 0 }
    }

    pub(super) fn position(&self) -> u64 {
        self.position
    }

    pub(super) fn damaged(&self, reason: impl Into<String>) -> CheckpointError {
        self.source.damaged(reason)
    }

    fn bytes(&mut self, length: u64) -> Result<&[u8], CheckpointError> {
        let left = self.source.length.saturating_sub(self.position);
        if length > left {
            return Err(self.damaged(format!("it ends at byte {} within its metadata", self.source.length)));
        }
        if self.position + length > MAX_METADATA_BYTES {
            return Err(self.damaged(format!("its metadata are longer than {MAX_METADATA_BYTES} bytes")));
        }
        let length = length as usize;
        if self.ahead.len() - self.used < length {
            let next = left.min(CHUNK.max(length as u64)) as usize;
            self.ahead = self.source.read(self.position, next)?;
            self.used = 0;
        }
        let start = self.used;
        self.used += length;
        self.position += length as u64;
        Ok(&self.ahead[start..self.used])
    }

    fn array<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], CheckpointError> {
        let mut array = [0; LENGTH];
        array.copy_from_slice(self.bytes(LENGTH as u64)?);
        Ok(array)
    }

    pub(super) fn u32(&mut self) -> Result<u32, CheckpointError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, CheckpointError> {
        self.array().map(u64::from_le_bytes)
    }

    /// A count of `what`, at most `max`.
    pub(super) fn count(&mut self, what: &str, max: u64) -> Result<u64, CheckpointError> {
        let count = self.u64()?;
        if count > max {
            return Err(self.damaged(format!("it claims to have {count} {what}")));
        }
        Ok(count)
    }

    fn text(&mut self, max_length: u64) -> Result<String, CheckpointError> {
        let length = self.u64()?;
        if length > max_length {
            return Err(self.damaged(format!("a text in its metadata claims to have {length} bytes")));
        }
        // Tokens of byte-level vocabularies are UTF-8, too. Invalid bytes become replacement characters: no
        // valid file has any.
        Ok(String::from_utf8_lossy(self.bytes(length)?).into_owned())
    }

    /// The name of a metadata value or a tensor.
    pub(super) fn name(&mut self) -> Result<String, CheckpointError> {
        self.text(MAX_NAME)
    }

    pub(super) fn value(&mut self, name: &str) -> Result<MetadataValue, CheckpointError> {
        match self.u32()? {
            TEXT => self.text(MAX_TEXT).map(MetadataValue::Text),
            LIST => self.list(name),
            number => {
                let kind = self.kind(name, number)?;
                Ok(kind.value(self.bytes(kind.size() as u64)?))
            }
        }
    }

    fn kind(&self, name: &str, number: u32) -> Result<ValueType, CheckpointError> {
        ValueType::from_number(number).ok_or_else(|| match number {
            LIST => self.damaged(format!("its metadata `{name}` are a list of lists")),
            _ => self.damaged(format!("its metadata `{name}` have the unknown type {number}")),
        })
    }

    fn list(&mut self, name: &str) -> Result<MetadataValue, CheckpointError> {
        let number = self.u32()?;
        let count = self.u64()?;
        let left = self.source.length.saturating_sub(self.position).min(MAX_METADATA_BYTES);
        let size = if number == TEXT { 8 } else { self.kind(name, number)?.size() as u64 };
        let Some(length) = count.checked_mul(size).filter(|length| *length <= left) else {
            return Err(self.damaged(format!("its metadata `{name}` claim to be a list of {count} items")));
        };
        if number == TEXT {
            let mut texts = Vec::new();
            for _ in 0..count {
                texts.push(self.text(MAX_TEXT)?);
            }
            return Ok(MetadataValue::Texts(texts));
        }
        let kind = self.kind(name, number)?;
        Ok(MetadataValue::Numbers(NumberList { kind, bytes: self.bytes(length)?.to_vec() }))
    }
}
