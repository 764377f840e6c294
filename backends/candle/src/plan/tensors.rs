//! A plan's tensors: matrices by the names, shapes and rows of stored matrices; norms, and where they stand
//! around a block; and the tables of an embedding layer, with the choice of a token's row in each.

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

/// The divisor of a norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NormKind {
    /// The root of the mean square.
    Rms,
    /// The standard deviation, after the mean has been subtracted. A layer norm always has a bias.
    Layer,
}

/// A norm in the checkpoint.
#[derive(Debug, Clone)]
pub(crate) struct NormPlan {
    /// The tensors are `NAME.weight` and, if `bias`, `NAME.bias`.
    pub(crate) name: String,
    pub(crate) kind: NormKind,
    /// Values per row.
    pub(crate) size: usize,
    pub(crate) bias: bool,
    /// Whether 1 is added to the stored weight (Gemma).
    pub(crate) add_one: bool,
    /// The stored weights in the order in which they are used, as ranges. Empty: as they are stored.
    pub(crate) order: Vec<Range<usize>>,
    /// Added to the mean square, or to the variance.
    pub(crate) epsilon: f32,
}

impl NormPlan {
    /// A layer norm with a bias.
    pub(crate) fn layer(name: impl Into<String>, size: usize, epsilon: f32) -> Self {
        Self { bias: true, kind: NormKind::Layer, ..Self::rms(name, size, epsilon) }
    }

    /// A root-mean-square norm.
    pub(crate) fn rms(name: impl Into<String>, size: usize, epsilon: f32) -> Self {
        let (name, order) = (name.into(), Vec::new());
        Self { name, kind: NormKind::Rms, size, bias: false, add_one: false, order, epsilon }
    }
}

/// Where a block is normalised: `x = sum_norm(x + output_norm(block(input_norm(x))))`.
#[derive(Debug, Clone, Default)]
pub(crate) struct NormsPlan {
    /// The norm of its input (pre-norm).
    pub(crate) input: Option<NormPlan>,
    /// The norm of its result before it is added.
    pub(crate) output: Option<NormPlan>,
    /// The norm of the sum (post-norm).
    pub(crate) sum: Option<NormPlan>,
    /// The norm after the block's input has been added to that a second time.
    pub(crate) second_sum: Option<NormPlan>,
}

impl NormsPlan {
    /// Only the norm of the input.
    pub(crate) fn before(norm: NormPlan) -> Self {
        Self { input: Some(norm), ..Self::default() }
    }

    /// Only the norm of the sum.
    pub(crate) fn after(norm: NormPlan) -> Self {
        Self { sum: Some(norm), ..Self::default() }
    }
}

/// A table of vectors.
#[derive(Debug, Clone)]
pub(crate) struct TablePlan {
    /// The tensor, `[rows, width]`.
    pub(crate) tensor: String,
    pub(crate) shape: [usize; 2],
    pub(crate) index: RowIndex,
}

/// From token ids to rows of the table of tokens, where an id is not simply its row (model2vec).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TokenRowsPlan {
    /// The tensor with the row of each token id, `[vocabulary]`.
    pub(crate) mapping: Option<&'static str>,
    /// The tensor with the factor of each token id's row, `[vocabulary]`.
    pub(crate) weights: Option<&'static str>,
    /// A token id behind the vocabulary whose vector is zero: it stands for a text without tokens.
    pub(crate) blank: Option<u32>,
}

/// A table with a row for each kind of texts. A text's row is added to the states of all its tokens.
#[derive(Debug, Clone)]
pub(crate) struct KindsPlan {
    /// `[kinds, hidden]`
    pub(crate) table: TablePlan,
    /// The index of the layer before which it is added.
    pub(crate) layer: usize,
}

/// How a row of an embedding table is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowIndex {
    Token,
    /// The position in the text, plus an offset.
    Position {
        /// The row of the first token.
        offset: usize,
    },
    /// The token type: 0, or 1 in the second text of a pair.
    Type,
    First,
}
