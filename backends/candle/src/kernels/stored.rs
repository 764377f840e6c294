//! Matrices in their stored type, read from a checkpoint into memory of this process.
//!
//! Input: bytes of a file, or values. Output: rows, widened to `f32`. What must hold: nothing here refers to
//! a file. With a mapped file, shortening the file would end the process, and overwriting it would change the
//! model.

use super::pack::{self, Stored};
use std::{ops::Range, sync::Arc};
use text_embeddings_checkpoint::FourBits;

/// A tensor `[rows, columns]` in its stored type, row after row. A tensor of one dimension is a single row.
#[derive(Clone)]
pub(crate) struct StoredMatrix {
    values: Arc<Vec<u8>>,
    /// The range of `values` that belongs to this matrix.
    bytes: Range<usize>,
    stored: Stored,
    columns: usize,
    steps: Option<RowSteps>,
}

/// The steps of all rows, and the number of this matrix's first row. The values of a row are multiples of its
/// step, with factors from -128 to 127.
#[derive(Clone)]
struct RowSteps {
    of_rows: Arc<Vec<f32>>,
    first: usize,
}

impl StoredMatrix {
    /// The matrix of these bytes. Their number must be a multiple of a row's bytes.
    pub(crate) fn new(values: Vec<u8>, stored: Stored, columns: usize) -> Self {
        assert!(columns > 0 && values.len().is_multiple_of(stored.row_bytes(columns)));
        Self { bytes: 0..values.len(), values: Arc::new(values), stored, columns, steps: None }
    }

    /// A matrix of `f32` values.
    pub(crate) fn from_values(values: &[f32], columns: usize) -> Self {
        Self::new(values.iter().flat_map(|value| value.to_le_bytes()).collect(), Stored::F32, columns)
    }

    /// A matrix `[rows, columns]`. `fill` writes all values of a row.
    pub(crate) fn from_rows([rows, columns]: [usize; 2], mut fill: impl FnMut(usize, &mut [f32])) -> Self {
        let mut values = vec![0.0; columns];
        let mut bytes = Vec::with_capacity(rows * Stored::F32.row_bytes(columns));
        for row in 0..rows {
            fill(row, &mut values);
            bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        Self::new(bytes, Stored::F32, columns)
    }

    /// A matrix `[rows, columns]` of random values between 1/64 and 1/32, or their negatives, stored as
    /// bfloat16 or as `f32`.
    pub(crate) fn made_up(stored: Stored, [rows, columns]: [usize; 2]) -> Self {
        let mut state = (rows * columns) as u64 | 1;
        let mut bytes = Vec::with_capacity(rows * stored.row_bytes(columns));
        for _ in 0..rows * columns {
            // xorshift64
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let value = 0x3c80 | (state as u16 & 0x807f);
            match stored {
                Stored::Bf16 => bytes.extend(value.to_le_bytes()),
                _ => bytes.extend((u32::from(value) << 16).to_le_bytes()),
            }
        }
        Self::new(bytes, if stored == Stored::Bf16 { stored } else { Stored::F32 }, columns)
    }

    /// Some of its rows. They share the memory.
    pub(crate) fn narrow(&self, rows: Range<usize>) -> Self {
        let size = self.row_size();
        let bytes = self.bytes.start + rows.start * size..self.bytes.start + rows.end * size;
        assert!(rows.start <= rows.end && bytes.end <= self.bytes.end);
        let steps = self.steps.clone().map(|steps| RowSteps { first: steps.first + rows.start, ..steps });
        Self { bytes, steps, ..self.clone() }
    }

    /// The same matrix with known steps. The values of each row must be multiples of its step, with factors
    /// from -128 to 127.
    pub(crate) fn with_steps(self, steps: Vec<f32>) -> Self {
        assert!(steps.len() == self.rows());
        Self { steps: Some(RowSteps { of_rows: Arc::new(steps), first: 0 }), ..self }
    }

    /// The step of a row, if it is known.
    pub(crate) fn step(&self, row: usize) -> Option<f32> {
        self.steps.as_ref().map(|steps| steps.of_rows[steps.first + row])
    }

    /// The number of rows (outputs).
    pub(crate) fn rows(&self) -> usize {
        self.bytes.len() / self.row_size()
    }

    /// The number of columns (inputs).
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// The stored type of the values.
    pub(crate) fn stored(&self) -> Stored {
        self.stored
    }

    /// Whether all values are in groups of four bits, which [`StoredMatrix::four_bits`] gives.
    pub(crate) fn has_four_bits(&self) -> bool {
        matches!(self.stored, Stored::Blocks(encoding) if encoding.has_four_bits())
    }

    /// One row as groups of four bits, if it is stored so.
    pub(crate) fn four_bits(&self, row: usize) -> Option<Vec<FourBits>> {
        match self.stored {
            Stored::Blocks(encoding) => encoding.four_bits(self.row_bytes(row)),
            _ => None,
        }
    }

    /// All values in their stored form, row after row.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.values[self.bytes.clone()]
    }

    /// Widens one row into `out`, which has [`StoredMatrix::columns`] values.
    pub(crate) fn widen_row(&self, row: usize, out: &mut [f32]) {
        pack::widen(self.stored, self.row_bytes(row), out);
    }

    /// One row as `f32`.
    pub(crate) fn row(&self, row: usize) -> Vec<f32> {
        let mut out = vec![0.0; self.columns];
        self.widen_row(row, &mut out);
        out
    }

    /// The bytes of a row.
    fn row_bytes(&self, row: usize) -> &[u8] {
        let size = self.row_size();
        &self.bytes()[row * size..(row + 1) * size]
    }

    /// The size of a row in bytes.
    fn row_size(&self) -> usize {
        self.stored.row_bytes(self.columns)
    }
}
