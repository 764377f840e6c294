//! GGUF, llama.cpp's format: metadata by name, then the tensors.
//!
//! A file begins with a magic number, a version and two counts. The metadata follow, each a name and a typed
//! value, then the names, shapes, types and offsets of the tensors, and finally the aligned values. Metadata
//! and tensors have llama.cpp's names, which `translate` knows. What must hold: every length and count is
//! checked against the rest of the file and a limit before memory is taken for it.

mod config;
mod reader;
mod translate;

pub use self::{config::config, reader::MetadataValue, translate::is_bidirectional};

use self::reader::SourceReader;
use crate::{CheckpointError, Source, Tensor, encoding::Encoding, insert, tensor::ByteRange};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The first bytes of a file.
pub(crate) const MAGIC: &[u8] = b"GGUF";
/// The most tensors of a file.
const MOST_TENSORS: u64 = 1 << 20;
/// The most metadata entries of a file. All tokens together are one entry.
const MOST_METADATA: u64 = 1 << 16;
/// The most dimensions of a tensor, as the format defines it.
const MOST_DIMENSIONS: u32 = 4;
/// The alignment of tensors if the file does not state it.
const ALIGNMENT: u64 = 32;

/// The names of tensor types by the format's numbers.
const TYPES: [(u32, &str); 34] = [
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (6, "Q5_0"),
    (7, "Q5_1"),
    (8, "Q8_0"),
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (12, "Q4_K"),
    (13, "Q5_K"),
    (14, "Q6_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (30, "BF16"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
    (40, "NVFP4"),
    (41, "Q1_0"),
];

/// A GGUF file's metadata and tensors, under llama.cpp's names.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    /// The metadata.
    pub metadata: Metadata,
    tensors: BTreeMap<String, Tensor>,
}

/// Metadata values by name.
#[derive(Debug, Default)]
pub struct Metadata(BTreeMap<String, MetadataValue>);

impl Metadata {
    /// The value with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&MetadataValue> {
        self.0.get(name)
    }

    /// The text with this name.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Some(MetadataValue::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The whole number with this name, if it is not negative.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<usize> {
        match self.get(name) {
            Some(MetadataValue::Whole(number)) => usize::try_from(*number).ok(),
            _ => None,
        }
    }

    /// The number with this name.
    #[must_use]
    pub fn real(&self, name: &str) -> Option<f64> {
        match self.get(name) {
            Some(MetadataValue::Real(number)) => Some(*number),
            Some(MetadataValue::Whole(number)) => Some(*number as f64),
            _ => None,
        }
    }

    /// The switch with this name.
    #[must_use]
    pub fn switch(&self, name: &str) -> Option<bool> {
        match self.get(name) {
            Some(MetadataValue::Switch(switch)) => Some(*switch),
            _ => None,
        }
    }

    /// The list of texts with this name.
    #[must_use]
    pub fn texts(&self, name: &str) -> Option<&[String]> {
        match self.get(name) {
            Some(MetadataValue::Texts(texts)) => Some(texts),
            _ => None,
        }
    }

    /// The list of whole numbers with this name.
    #[must_use]
    pub fn numbers(&self, name: &str) -> Option<Vec<i64>> {
        self.get(name).and_then(MetadataValue::numbers)
    }

    /// The list of numbers with this name.
    #[must_use]
    pub fn reals(&self, name: &str) -> Option<Vec<f64>> {
        self.get(name).and_then(MetadataValue::reals)
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl File {
    /// Opens a GGUF file and reads everything except the tensors' values.
    ///
    /// # Errors
    ///
    /// [`CheckpointError`] naming the file if it is not a complete GGUF file, or has a feature that is not
    /// supported.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let source = Arc::new(Source::open(path)?);
        if source.start(MAGIC.len() as u64)? != MAGIC {
            return Err(source.damaged("it does not begin as a GGUF file"));
        }
        Self::of(&source)
    }

    pub(crate) fn of(source: &Arc<Source>) -> Result<Self, CheckpointError> {
        let mut reader = SourceReader::new(source, MAGIC.len() as u64);
        let version = reader.u32()?;
        if !(2..=3).contains(&version) {
            let order = if version.swap_bytes() < 16 { ", or its numbers are big-endian" } else { "" };
            return Err(source.unsupported(format!(
                "its GGUF version is {version}{order}; versions 2 and 3, little-endian, are supported"
            )));
        }
        let tensors = reader.count("tensors", MOST_TENSORS)?;
        let count = reader.count("metadata", MOST_METADATA)?;
        let mut metadata = Metadata::default();
        for _ in 0..count {
            let name = reader.name()?;
            let value = reader.value(&name)?;
            if metadata.0.contains_key(&name) {
                return Err(source.damaged(format!("it has the metadata `{name}` twice")));
            }
            metadata.0.insert(name, value);
        }
        if metadata.number("split.count").is_some_and(|parts| parts > 1) {
            return Err(source.unsupported(
                "it is one part of a model that was split: join the parts with `llama-gguf-split --merge`",
            ));
        }
        let alignment = match metadata.get("general.alignment") {
            None => ALIGNMENT,
            Some(MetadataValue::Whole(alignment))
                if (1..=1 << 20).contains(alignment) && alignment.count_ones() == 1 =>
            {
                *alignment as u64
            }
            Some(_) => return Err(source.damaged("its `general.alignment` is not a power of two")),
        };
        let infos: Vec<TensorInfo> = (0..tensors).map(|_| info(&mut reader)).collect::<Result<_, _>>()?;
        let start = reader.position().next_multiple_of(alignment);
        let mut found = BTreeMap::new();
        for info in infos {
            let tensor = placed(source, &info, (start, alignment))?;
            insert(&mut found, info.name, tensor)?;
        }
        Ok(Self { path: source.path.clone(), metadata, tensors: found })
    }

    /// llama.cpp's name of the architecture.
    #[must_use]
    pub fn architecture(&self) -> &str {
        self.metadata.text("general.architecture").unwrap_or_default()
    }

    /// The number of layers that have tensors.
    fn layers(&self) -> usize {
        let number = |name: &String| name.strip_prefix("blk.")?.split('.').next()?.parse::<usize>().ok();
        self.tensors.keys().filter_map(number).collect::<std::collections::BTreeSet<_>>().len()
    }

    fn damaged(&self, reason: impl Into<String>) -> CheckpointError {
        CheckpointError::Damaged { path: self.path.clone(), reason: reason.into() }
    }

    /// An error that names the file.
    #[must_use]
    pub fn unsupported(&self, reason: impl Into<String>) -> CheckpointError {
        CheckpointError::Unsupported { path: self.path.clone(), reason: reason.into() }
    }

    /// The shape of the tensor with llama.cpp's name. Neighbouring values are in the last dimension.
    #[must_use]
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(Tensor::shape)
    }

    /// The tensors under the names that `transformers` gives them.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Unsupported`] naming an unknown architecture or tensor.
    pub(crate) fn translated(&self, source: &Source) -> Result<BTreeMap<String, Tensor>, CheckpointError> {
        translate::tensors(self, source)
    }
}

/// A file's description of a tensor.
struct TensorInfo {
    name: String,
    shape: Vec<usize>,
    kind: u32,
    /// The offset of its first value from the start of all tensors' values, in bytes.
    offset: u64,
}

fn info(reader: &mut SourceReader<'_>) -> Result<TensorInfo, CheckpointError> {
    let name = reader.name()?;
    let dimensions = reader.u32()?;
    if dimensions > MOST_DIMENSIONS {
        return Err(reader.damaged(format!("the tensor `{name}` has {dimensions} dimensions")));
    }
    let mut shape = Vec::new();
    for _ in 0..dimensions {
        let size = reader.u64()?;
        let size = usize::try_from(size).ok().filter(|size| isize::try_from(*size).is_ok());
        shape.push(
            size.ok_or_else(|| reader.damaged(format!("the tensor `{name}` has an impossible shape")))?,
        );
    }
    // The file lists the dimension of neighbouring values first.
    shape.reverse();
    Ok(TensorInfo { name, shape, kind: reader.u32()?, offset: reader.u64()? })
}

/// The tensor with its place in the file. `start` is the offset of all tensors' values.
fn placed(
    source: &Arc<Source>,
    info: &TensorInfo,
    (start, alignment): (u64, u64),
) -> Result<Tensor, CheckpointError> {
    let TensorInfo { name, shape, kind, offset } = info;
    let encoding =
        TYPES.iter().find(|(number, _)| number == kind).and_then(|(_, name)| Encoding::named(name));
    let Some(encoding) = encoding else {
        return Err(source.unsupported(format!(
            "the tensor `{name}` has the unknown type {kind}: supported are {}",
            Encoding::supported()
        )));
    };
    if offset % alignment != 0 {
        return Err(source.damaged(format!("the tensor `{name}` is not aligned")));
    }
    let Some(start) = start.checked_add(*offset).filter(|start| *start <= source.length) else {
        return Err(source.damaged(format!("the tensor `{name}` begins beyond the end of the file")));
    };
    Tensor::new(source, name, ByteRange { start, end: source.length }, encoding, shape.clone())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    const U32: u32 = 4;
    const TEXT: u32 = 8;
    const LIST: u32 = 9;

    /// Builds the bytes of a file, part by part.
    #[derive(Default, Clone)]
    struct Bytes(Vec<u8>);

    impl Bytes {
        fn header(version: u32, tensors: u64, metadata: u64) -> Self {
            Self(MAGIC.to_vec()).u32(version).u64(tensors).u64(metadata)
        }

        fn u32(mut self, number: u32) -> Self {
            self.0.extend(number.to_le_bytes());
            self
        }

        fn u64(mut self, number: u64) -> Self {
            self.0.extend(number.to_le_bytes());
            self
        }

        fn text(self, text: &str) -> Self {
            let mut longer = self.u64(text.len() as u64);
            longer.0.extend(text.as_bytes());
            longer
        }

        fn info(self, name: &str, shape: &[u64], kind: u32, offset: u64) -> Self {
            let named = self.text(name).u32(shape.len() as u32);
            shape.iter().fold(named, |bytes, size| bytes.u64(*size)).u32(kind).u64(offset)
        }

        /// Zeros up to the next multiple of 32, then the bytes of the tensors.
        fn values(mut self, length: usize) -> Vec<u8> {
            self.0.resize(self.0.len().next_multiple_of(32) + length, 0);
            self.0
        }
    }

    fn opened(content: &[u8]) -> Result<File, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, content).unwrap();
        File::open(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn what_a_file_says_is_read_and_its_tensors_are_where_it_says() {
        let content = Bytes::header(3, 2, 2)
            .text("general.architecture")
            .u32(TEXT)
            .text("qwen3")
            .text("numbers")
            .u32(LIST)
            .u32(U32)
            .u64(2)
            .u32(7)
            .u32(9)
            .info("a", &[2, 3], 0, 0)
            .info("b", &[32], 8, 32)
            .values(32 + 34);
        let file = opened(&content).unwrap();
        assert_eq!((file.architecture(), file.metadata.numbers("numbers")), ("qwen3", Some(vec![7, 9])));
        assert_eq!((file.shape("a"), file.shape("b")), (Some([3, 2].as_slice()), Some([32].as_slice())));
        assert!(opened(&content[..content.len() - 1]).unwrap_err().contains("`b`"));
    }

    #[test]
    fn counts_and_places_that_cannot_be_are_refused_before_memory_is_taken() {
        let one =
            |shape: &[u64], kind, offset| Bytes::header(3, 1, 0).info("w", shape, kind, offset).values(64);
        let value = |name: &str, kind: u32| Bytes::header(3, 0, 1).text(name).u32(kind);
        let alignment = |number| value("general.alignment", U32).u32(number).values(0);
        let twice = || Bytes::header(3, 0, 2).text("x").u32(U32).u32(1).text("x").u32(U32).u32(1).values(0);
        let tensors_twice = || Bytes::header(3, 2, 0).info("w", &[8], 0, 0).info("w", &[8], 0, 32).values(64);
        let table = [
            ("version 1", Bytes::header(1, 0, 0).0, "GGUF version is 1;"),
            ("big-endian", Bytes::header(3_u32.swap_bytes(), 0, 0).0, "big-endian"),
            ("only a magic number", MAGIC.to_vec(), "ends at byte 4"),
            ("tensors without end", Bytes::header(3, u64::MAX, 0).0, "18446744073709551615 tensors"),
            ("metadata without end", Bytes::header(3, 0, 1 << 40).0, "1099511627776 metadata"),
            ("more tensors than there are", Bytes::header(3, 1 << 20, 0).0, "ends at byte"),
            ("a name of gigabytes", Bytes::header(3, 0, 1).u64(1 << 33).0, "claims to have 8589934592 bytes"),
            ("a text of gigabytes", value("x", TEXT).u64(1 << 33).0, "claims to have 8589934592 bytes"),
            ("a text longer than the file", value("x", TEXT).u64(1 << 20).0, "ends at byte"),
            (
                "a list without end",
                value("x", LIST).u32(U32).u64(u64::MAX).0,
                "a list of 18446744073709551615 items",
            ),
            ("texts without end", value("x", LIST).u32(TEXT).u64(1 << 40).0, "a list of 1099511627776 items"),
            ("a list of lists", value("x", LIST).u32(LIST).u64(1).0, "a list of lists"),
            ("an unknown kind of value", value("x", 13).u64(0).0, "unknown type 13"),
            ("metadata twice", twice(), "metadata `x` twice"),
            ("alignment 0", alignment(0), "not a power of two"),
            ("alignment 48", alignment(48), "not a power of two"),
            ("alignment of gigabytes", alignment(1 << 31), "not a power of two"),
            ("five dimensions", one(&[1; 5], 0, 0), "5 dimensions"),
            ("an unknown type", one(&[8], 99, 0), "unknown type 99"),
            ("a type that is gone", one(&[32], 4, 0), "unknown type 4"),
            ("half a block", one(&[16], 8, 0), "block size of Q8_0"),
            ("a shape that overflows", one(&[1 << 40, 1 << 40], 0, 0), "does not fit its place"),
            ("a size that is negative", one(&[1 << 63], 0, 0), "impossible shape"),
            (
                "a shape that overflows with nothing in it",
                one(&[0, 1 << 40, 1 << 40], 0, 0),
                "does not fit its place",
            ),
            ("values behind the end", one(&[16], 0, 32), "does not fit its place"),
            ("a place behind the end", one(&[1], 0, 1 << 40), "begins beyond the end"),
            ("a place that overflows", one(&[1], 0, u64::MAX - 31), "begins beyond the end"),
            ("a place that is not aligned", one(&[1], 0, 4), "is not aligned"),
            ("tensors twice", tensors_twice(), "tensor `w` twice"),
        ];
        for (row, content, part) in table {
            let message = opened(&content).unwrap_err();
            assert!(message.contains(part) && message.contains("model.gguf"), "{row}: {message}");
        }
    }
}
