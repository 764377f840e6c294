//! A tensor in a file: the place of its values, and the reading of rows.

use crate::{CheckpointError, Source, encoding::Encoding};
use std::{ops::Range, path::Path, sync::Arc};

/// A tensor of a file. Its values stay in the file until rows are read.
#[derive(Debug, Clone)]
pub struct Tensor {
    source: Arc<Source>,
    /// The offset of its first value from the start of the file, in bytes.
    start: u64,
    encoding: &'static Encoding,
    shape: Vec<usize>,
    order: Order,
}

/// The order in which the values are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Order {
    /// Row after row.
    Rows,
    /// The distance of neighbours in each dimension, in values.
    Strides(Vec<usize>),
    /// Row after row. Within the rows of each head, the rows of the two halves alternate.
    Interleaved { heads: usize },
    /// Only the rows with these numbers are stored, one after the other.
    Picked { numbers: Vec<usize> },
}

/// A range of bytes in a file.
#[derive(Clone, Copy)]
pub(crate) struct ByteRange {
    /// The first byte, from the start of the file.
    pub(crate) start: u64,
    /// The end, from the start of the file.
    pub(crate) end: u64,
}

impl Tensor {
    /// A tensor whose values are row after row from the start of `place`, and inside it.
    pub(crate) fn new(
        source: &Arc<Source>,
        name: &str,
        place: ByteRange,
        encoding: &'static Encoding,
        shape: Vec<usize>,
    ) -> Result<Self, CheckpointError> {
        let tensor = Self { source: source.clone(), start: place.start, encoding, shape, order: Order::Rows };
        let columns = tensor.columns();
        if !columns.is_multiple_of(encoding.values) {
            return Err(source.damaged(format!(
                "the tensor `{name}` has rows of {columns} values, which is not a multiple of the block size of {}",
                encoding.name
            )));
        }
        let size = checked_size(&tensor.shape, encoding);
        let end = size.and_then(|size| place.start.checked_add(size));
        if place.end > source.length || end.is_none_or(|end| end > place.end) {
            return Err(source.damaged(format!(
                "the tensor `{name}` of shape {:?} and type {} does not fit its place in the file",
                tensor.shape, encoding.name
            )));
        }
        Ok(tensor)
    }

    /// A tensor of plain values inside `place`, with neighbours in each dimension `strides` values apart.
    pub(crate) fn strided(
        source: &Arc<Source>,
        name: &str,
        place: ByteRange,
        encoding: &'static Encoding,
        shape: Vec<usize>,
        strides: Vec<usize>,
    ) -> Result<Self, CheckpointError> {
        let refused = |reason: &str| Err(source.damaged(format!("the tensor `{name}` {reason}")));
        if shape.len() != strides.len() {
            return refused("does not have as many strides as dimensions");
        }
        let is_empty = shape.contains(&0);
        let reach = shape.iter().zip(&strides).try_fold(1_usize, |reach, (size, stride)| {
            reach.checked_add(size.saturating_sub(1).checked_mul(*stride)?)
        });
        let available = (place.end.saturating_sub(place.start)) / encoding.bytes as u64;
        if !is_empty && reach.is_none_or(|reach| reach as u64 > available) {
            return refused("reaches beyond its storage");
        }
        let tensor = Self::new(source, name, place, encoding, shape)?;
        let order = if tensor.is_contiguous(&strides) { Order::Rows } else { Order::Strides(strides) };
        Ok(Self { order, ..tensor })
    }

    /// The same tensor, stored with the rows of each head's two halves alternating.
    pub(crate) fn interleaved(self, heads: usize) -> Self {
        Self { order: Order::Interleaved { heads }, ..self }
    }

    /// The matrix of all rows.
    pub(crate) fn flattened(self) -> Self {
        Self { shape: vec![self.rows(), self.columns()], ..self }
    }

    /// A matrix of `rows` rows. This tensor stores only the rows with these numbers; the others cannot be
    /// read.
    pub(crate) fn picked(self, rows: usize, numbers: Vec<usize>) -> Self {
        Self { shape: vec![rows, self.columns()], order: Order::Picked { numbers }, ..self }
    }

    /// Whether `strides` describe values that are stored row after row. The stride of a dimension of size one
    /// does not matter.
    fn is_contiguous(&self, strides: &[usize]) -> bool {
        let mut expected = 1;
        self.shape.iter().zip(strides).rev().all(|(&size, &stride)| {
            let fits = size == 1 || stride == expected;
            expected *= size;
            fits
        }) || self.shape.contains(&0)
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.source.path
    }

    /// Its dimensions. Neighbouring values are in the last one.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Its storage type.
    pub fn encoding(&self) -> &'static Encoding {
        self.encoding
    }

    /// The length of a row: the last dimension. All other dimensions count rows.
    pub fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// The number of rows: the product of all dimensions but the last.
    pub fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// The bytes of some rows as they are stored, row after row. The file may have become shorter since it
    /// was opened.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Io`], and [`CheckpointError::Unsupported`] for a row that is not stored.
    pub fn read_stored(&self, rows: Range<usize>) -> Result<Vec<u8>, CheckpointError> {
        let row = self.columns() / self.encoding.values * self.encoding.bytes;
        match &self.order {
            Order::Rows => self.read_at(rows.start * row, rows.len() * row),
            Order::Strides(strides) => self.gather(strides, rows),
            Order::Picked { numbers } => {
                let mut bytes = Vec::new();
                for index in rows {
                    let stored = numbers.iter().position(|number| *number == index).ok_or_else(|| {
                        self.source.unsupported(format!("its head has no row for the token {index}"))
                    })?;
                    bytes.extend(self.read_at(stored * row, row)?);
                }
                Ok(bytes)
            }
            Order::Interleaved { heads } => {
                let mut bytes = Vec::with_capacity(rows.len() * row);
                let size = self.rows() / heads;
                for index in rows {
                    let (head, within) = (index / size, index % size);
                    let stored = head * size + within % (size / 2) * 2 + within / (size / 2);
                    bytes.extend(self.read_at(stored * row, row)?);
                }
                Ok(bytes)
            }
        }
    }

    /// The bytes of some rows, like [`Tensor::read_stored`], of a type that [`Encoding::widen`] widens.
    ///
    /// # Errors
    ///
    /// Errors of [`Tensor::read_stored`], and [`CheckpointError::Unsupported`] naming a type that is not
    /// supported.
    pub fn read(&self, name: &str, rows: Range<usize>) -> Result<Vec<u8>, CheckpointError> {
        if !self.encoding.is_supported() {
            let supported = Encoding::supported();
            let hint = if self.encoding.name.starts_with("F8") {
                "; without its scales, which `quantization_config` in config.json describes, it has no values"
            } else {
                ""
            };
            return Err(self.source.unsupported(format!(
                "the tensor `{name}` is stored as {}, which is not supported: only {supported} are{hint}",
                self.encoding.name
            )));
        }
        self.read_stored(rows)
    }

    /// All values of a tensor of plain numbers.
    ///
    /// # Errors
    ///
    /// Errors of [`Tensor::read_stored`], and [`CheckpointError::Unsupported`] naming another type.
    pub fn read_numbers(&self, name: &str) -> Result<Vec<f64>, CheckpointError> {
        let bytes = self.read_stored(0..self.rows())?;
        Ok(match self.encoding.name {
            "F64" => bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect(),
            "I32" => bytes.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes).into()).collect(),
            "I64" => bytes.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes) as f64).collect(),
            _ if self.encoding.is_supported() && !self.encoding.is_quantised() => {
                let mut values = vec![0.0; bytes.len() / self.encoding.bytes];
                self.encoding.widen(&bytes, &mut values);
                values.into_iter().map(f64::from).collect()
            }
            other => {
                return Err(self.source.unsupported(format!(
                    "the tensor `{name}` is stored as {other}, which is not supported: only F64, F32, F16, \
                     BF16, I64 and I32 are"
                )));
            }
        })
    }

    fn read_at(&self, offset: usize, length: usize) -> Result<Vec<u8>, CheckpointError> {
        self.source.read(self.start + offset as u64, length)
    }

    /// Reads rows whose values are `strides` apart. It reads at most as many values as the storage has.
    fn gather(&self, strides: &[usize], rows: Range<usize>) -> Result<Vec<u8>, CheckpointError> {
        let size = self.encoding.bytes;
        let (columns, column_stride) = (self.columns(), strides.last().copied().unwrap_or(1));
        let (outer, outer_strides) = (&self.shape[..self.shape.len() - 1], &strides[..strides.len() - 1]);
        let place = |row: usize| {
            let mut rest = row;
            outer.iter().zip(outer_strides).rev().fold(0, |place, (&size, &stride)| {
                let index = rest % size;
                rest /= size;
                place + index * stride
            })
        };
        let first = rows.clone().map(place).min().unwrap_or(0);
        let last = rows.clone().map(place).max().unwrap_or(0) + columns.saturating_sub(1) * column_stride;
        let stored = self.read_at(first * size, (last + 1 - first) * size)?;
        let mut bytes = Vec::with_capacity(rows.len() * columns * size);
        for row in rows {
            let start = place(row) - first;
            for column in 0..columns {
                let value = (start + column * column_stride) * size;
                bytes.extend_from_slice(&stored[value..value + size]);
            }
        }
        Ok(bytes)
    }
}

/// The size of a tensor of this shape in bytes. `None` if the number of values or of rows overflows.
fn checked_size(shape: &[usize], encoding: &Encoding) -> Option<u64> {
    let max_values = shape.iter().try_fold(1_usize, |values, size| values.checked_mul((*size).max(1)))?;
    let bytes = max_values.checked_mul(encoding.bytes)? / encoding.values;
    Some(if shape.contains(&0) { 0 } else { bytes as u64 })
}
