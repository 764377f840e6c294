//! GGUF, llama.cpp's format: metadata by name, then the tensors.
//!
//! A file begins with a magic number, a version and two counts. The metadata follow, each a name and a typed
//! value, then the names, shapes, types and offsets of the tensors, and finally the aligned values. Metadata
//! and tensors have llama.cpp's names, which `translate` knows. What must hold: every length and count is
//! checked against the rest of the file and a limit before memory is taken for it.

mod architectures;
mod config;
mod hybrid;
mod metadata_reader;
mod reader;
mod tensor_names;
mod translate;

pub(crate) use self::translate::tensors;
pub use self::{
    config::config,
    metadata_reader::CONVERTED,
    reader::MetadataValue,
    translate::{Separators, separators},
};

use self::reader::SourceReader;
use crate::{CheckpointError, ModelFile, Source, Tensor, encoding::Encoding, insert, tensor::ByteRange};
use std::{collections::BTreeMap, sync::Arc};

/// The first bytes of a file.
pub(crate) const MAGIC: &[u8] = b"GGUF";
/// The most tensors of a file.
const MAX_TENSORS: u64 = 1 << 20;
/// The most metadata entries of a file. All tokens together are one entry.
const MAX_METADATA: u64 = 1 << 16;
/// The most dimensions of a tensor, as the format defines it.
const MAX_DIMENSIONS: u32 = 4;
/// Matrices that may have one row. llama.cpp's quantiser then writes them as vectors.
const MAYBE_ONE_ROW: [&str; 2] = ["token_types.weight", "cls.output.weight"];
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
    source: Arc<Source>,
    /// The metadata.
    pub metadata: Metadata,
    tensors: BTreeMap<String, Tensor>,
}

/// Metadata values by name.
#[derive(Debug, Default)]
pub struct Metadata(BTreeMap<String, MetadataValue>);

impl Metadata {
    /// The value with this name.
    pub fn get(&self, name: &str) -> Option<&MetadataValue> {
        self.0.get(name)
    }

    /// The text with this name.
    pub fn text(&self, name: &str) -> Option<&str> {
        if let Some(MetadataValue::Text(text)) = self.get(name) { Some(text) } else { None }
    }

    /// The whole number with this name, if it is not negative.
    pub fn number(&self, name: &str) -> Option<usize> {
        match self.get(name) {
            Some(MetadataValue::Whole(number)) => usize::try_from(*number).ok(),
            _ => None,
        }
    }

    /// The number with this name.
    pub fn real(&self, name: &str) -> Option<f64> {
        match self.get(name) {
            Some(MetadataValue::Real(number)) => Some(*number),
            Some(MetadataValue::Whole(number)) => Some(*number as f64),
            _ => None,
        }
    }

    /// The switch with this name.
    pub fn switch(&self, name: &str) -> Option<bool> {
        if let Some(MetadataValue::Switch(switch)) = self.get(name) { Some(*switch) } else { None }
    }

    /// The list of texts with this name.
    pub fn texts(&self, name: &str) -> Option<&[String]> {
        if let Some(MetadataValue::Texts(texts)) = self.get(name) { Some(texts) } else { None }
    }

    /// The list of whole numbers with this name.
    pub fn numbers(&self, name: &str) -> Option<Vec<i64>> {
        self.get(name).and_then(MetadataValue::numbers)
    }

    /// The list of numbers with this name.
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
    pub fn open(file: impl Into<ModelFile>) -> Result<Self, CheckpointError> {
        let source = Arc::new(Source::open(&file.into())?);
        if source.start(MAGIC.len() as u64)? != MAGIC {
            return Err(source.damaged("it does not begin as a GGUF file"));
        }
        Self::read(source)
    }

    pub(crate) fn read(source: Arc<Source>) -> Result<Self, CheckpointError> {
        let mut reader = SourceReader::new(&source, MAGIC.len() as u64);
        let version = reader.u32()?;
        if !(2..=3).contains(&version) {
            let order = if version.swap_bytes() < 16 { ", or its numbers are big-endian" } else { "" };
            return Err(source.unsupported(format!(
                "its GGUF version is {version}{order}; versions 2 and 3, little-endian, are supported"
            )));
        }
        let tensors = reader.count("tensors", MAX_TENSORS)?;
        let count = reader.count("metadata", MAX_METADATA)?;
        let mut metadata = Metadata::default();
        for _ in 0..count {
            let name = reader.name()?;
            let value = reader.value(&name)?;
            if metadata.0.contains_key(&name) {
                return Err(source.damaged(format!("it has the metadata `{name}` twice")));
            }
            if let Some(expected) = value.expected_type(&name) {
                return Err(source.damaged(format!("its metadata `{name}` are not {expected}")));
            }
            metadata.0.insert(name, value);
        }
        if metadata.text("general.type") == Some("adapter") {
            return Err(
                source.unsupported("it is an adapter: merge it into its base with `llama-export-lora`")
            );
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
            let tensor = placed(&source, &info, start, alignment)?;
            insert(&mut found, info.name, tensor)?;
        }
        Ok(Self { source, metadata, tensors: found })
    }

    /// llama.cpp's name of the architecture.
    pub fn architecture(&self) -> &str {
        self.metadata.text("general.architecture").unwrap_or_default()
    }

    /// The number of layers that have tensors.
    fn layers(&self) -> usize {
        self.tensors
            .keys()
            .filter_map(|name| name.strip_prefix("blk.")?.split('.').next()?.parse::<usize>().ok())
            .collect::<std::collections::BTreeSet<_>>()
            .len()
    }

    fn damaged(&self, reason: impl Into<String>) -> CheckpointError {
        self.source.damaged(reason)
    }

    /// An error that names the file.
    pub fn unsupported(&self, reason: impl Into<String>) -> CheckpointError {
        self.source.unsupported(reason)
    }

    /// The shape of the tensor with llama.cpp's name. Neighbouring values are in the last dimension.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(Tensor::shape)
    }

    /// Whether there is a tensor with llama.cpp's name.
    pub fn has_tensor(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The matrices of the dense modules that change the pooled vector, in their order.
    ///
    /// # Errors
    ///
    /// [`CheckpointError`] naming a tensor that is not a matrix, or that cannot be read.
    pub fn dense(&self) -> Result<Vec<DenseMatrix>, CheckpointError> {
        let found = architectures::DENSE.into_iter().filter_map(|name| Some((name, self.tensors.get(name)?)));
        found.map(|(name, tensor)| self.dense_matrix(name, tensor)).collect()
    }

    fn dense_matrix(&self, name: &str, tensor: &Tensor) -> Result<DenseMatrix, CheckpointError> {
        let [outputs, inputs] = *tensor.shape() else {
            return Err(self.damaged(format!("its tensor `{name}` is not a matrix")));
        };
        let mut values = vec![0.0; outputs * inputs];
        tensor.encoding().widen(&tensor.read(name, 0..outputs)?, &mut values);
        Ok(DenseMatrix { outputs, inputs, values })
    }
}

/// The matrix of a dense module.
pub struct DenseMatrix {
    /// Values per result.
    pub outputs: usize,
    /// Values per input.
    pub inputs: usize,
    /// Row after row, `[outputs, inputs]`.
    pub values: Vec<f32>,
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
    if dimensions > MAX_DIMENSIONS {
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
    if shape.len() == 1 && MAYBE_ONE_ROW.contains(&name.as_str()) {
        shape.insert(0, 1);
    }
    Ok(TensorInfo { name, shape, kind: reader.u32()?, offset: reader.u64()? })
}

/// The tensor with its place in the file. `start` is the offset of all tensors' values.
fn placed(
    source: &Arc<Source>,
    info: &TensorInfo,
    start: u64,
    alignment: u64,
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
mod tests;
