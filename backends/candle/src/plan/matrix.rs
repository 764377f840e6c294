//! A plan's matrices, described by the names, shapes and rows of stored matrices.

use std::ops::Range;

/// A matrix made of one or more stored matrices, or of some of their rows.
#[derive(Debug, Clone)]
pub(crate) struct MatrixPlan {
    /// The parts, one below the other.
    pub(crate) parts: Vec<MatrixPart>,
}

/// Rows of a stored matrix.
#[derive(Debug, Clone)]
pub(crate) struct MatrixPart {
    /// The stored matrix, `[outputs, inputs]`.
    pub(crate) weight: String,
    /// Its bias, `[outputs]`.
    pub(crate) bias: Option<String>,
    /// Its shape.
    pub(crate) shape: [usize; 2],
    /// The rows that are used.
    pub(crate) rows: Range<usize>,
    /// Whether these rows become columns of the matrix.
    pub(crate) transposed: bool,
}

impl MatrixPart {
    /// All of `NAME.weight` `[outputs, inputs]` with `NAME.bias`.
    pub(crate) fn new(name: &str, [outputs, inputs]: [usize; 2]) -> Self {
        Self {
            weight: format!("{name}.weight"),
            bias: Some(format!("{name}.bias")),
            shape: [outputs, inputs],
            rows: 0..outputs,
            transposed: false,
        }
    }

    /// This part, without a bias unless `bias` is true.
    pub(crate) fn biased(self, bias: bool) -> Self {
        Self { bias: if bias { self.bias } else { None }, ..self }
    }

    /// This part with only these rows.
    pub(crate) fn rows(self, rows: Range<usize>) -> Self {
        Self { rows, ..self }
    }

    fn outputs(&self) -> usize {
        if self.transposed { self.shape[1] } else { self.rows.len() }
    }
}

impl From<MatrixPart> for MatrixPlan {
    fn from(part: MatrixPart) -> Self {
        Self { parts: vec![part] }
    }
}

impl<const PARTS: usize> From<[MatrixPart; PARTS]> for MatrixPlan {
    fn from(parts: [MatrixPart; PARTS]) -> Self {
        Self { parts: parts.into() }
    }
}

impl MatrixPlan {
    /// Values per row of its product.
    pub(crate) fn outputs(&self) -> usize {
        self.parts.iter().map(MatrixPart::outputs).sum()
    }
}
