//! Weights, packed once when a model is loaded.
//!
//! Input: parts of a weight. Output: panels of columns in a [`Format`]. What must hold: a panel
//! that is not full is filled with columns of zeros.

use super::{
    matmul::Compute,
    pack::{self, Format},
    pages::Pages,
    stored::StoredMatrix,
    tile::COLUMNS,
};

/// Gates of a panel of gates and what they gate.
pub(crate) const GATES: usize = COLUMNS / 2;

/// A weight, packed: panels `[panel][word][COLUMNS]`.
pub(crate) struct Matrix {
    pub(super) format: Format,
    /// Columns of the weight.
    pub(super) depth: usize,
    /// Rows of the weight.
    outputs: usize,
    pub(super) panels: usize,
    words: Pages,
    /// Of [`Format::Int8`], by panel and column: the scale of a column, and the sum of its bytes times the offset of
    /// the rows' bytes, which is what that adds to a sum.
    pub(super) scales: Vec<([f32; COLUMNS], [i32; COLUMNS])>,
    /// What is added to each column's sums, by panel; empty if there is no bias.
    pub(super) biases: Vec<[f32; COLUMNS]>,
}

/// How a weight is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packing {
    /// What its values are converted to.
    pub(crate) format: Format,
    /// Which of its rows become which columns.
    pub(crate) order: Order,
}

/// How the rows of a weight become columns of panels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// As they come.
    Plain,
    /// The first half are gates, the second half what they gate: each panel has [`GATES`] of both.
    Gated,
}

impl Order {
    /// The row of the weight that is column `column` of panel `panel`.
    fn row(self, outputs: usize, panel: usize, column: usize) -> Option<usize> {
        match self {
            Self::Plain => Some(panel * COLUMNS + column).filter(|&row| row < outputs),
            Self::Gated => {
                let gate = Some(panel * GATES + column % GATES).filter(|&gate| gate < outputs / 2);
                gate.map(|gate| gate + column / GATES * (outputs / 2))
            }
        }
    }

    fn panels(self, outputs: usize) -> usize {
        match self {
            Self::Plain => outputs.div_ceil(COLUMNS),
            Self::Gated => (outputs / 2).div_ceil(GATES),
        }
    }
}

impl Matrix {
    /// Packs the parts of a weight, which stand one below the other and have the same number of columns.
    pub(crate) fn pack(compute: &Compute, parts: &[StoredMatrix], format: Format, order: Order) -> Self {
        Self::pack_prepared(compute, parts, Packing { format, order }, |_| {})
    }

    /// Adds `bias`, a value for each row of the weight, to all products with it.
    pub(crate) fn with_bias(mut self, bias: &[f32], order: Order) -> Self {
        assert!(bias.len() == self.outputs);
        let of_column = |panel, column| order.row(bias.len(), panel, column).map_or(0.0, |row| bias[row]);
        let of_panel = |panel| std::array::from_fn(|column| of_column(panel, column));
        self.biases = (0..self.panels).map(of_panel).collect();
        self
    }

    /// The same of rows that `prepare` has changed.
    pub(crate) fn pack_prepared(
        compute: &Compute,
        parts: &[StoredMatrix],
        Packing { format, order }: Packing,
        prepare: impl Fn(&mut [f32]) + Sync,
    ) -> Self {
        let depth = parts[0].columns();
        assert!(parts.iter().all(|part| part.columns() == depth));
        let outputs = parts.iter().map(StoredMatrix::rows).sum();
        let row = |mut row: usize, out: &mut [f32]| {
            for part in parts {
                if row < part.rows() {
                    return part.widen_row(row, out);
                }
                row -= part.rows();
            }
        };
        let panels = order.panels(outputs);
        let row_words = format.words(depth);
        let mut words = Pages::zeroed(panels * COLUMNS * row_words);
        let mut scales =
            vec![([0.0; COLUMNS], [0; COLUMNS]); if format == Format::Int8 { panels } else { 0 }];
        let mut of_panel = scales.iter_mut();
        let items = words.as_mut_slice().chunks_exact_mut(COLUMNS * row_words).enumerate();
        let items = items.map(|(panel, words)| (panel, words, of_panel.next()));
        compute.threads.for_each(items, |(panel, words, mut scales)| {
            let mut values = vec![0.0; depth];
            let mut rows = vec![0; COLUMNS * row_words];
            for (column, words) in rows.chunks_exact_mut(row_words).enumerate() {
                let Some(index) = order.row(outputs, panel, column) else { continue };
                row(index, &mut values);
                prepare(&mut values);
                let mut scale = 1.0;
                pack::row(compute.set, format, &values, 0, words, &mut scale);
                if let Some((scales, corrections)) = &mut scales {
                    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
                    let sum: i32 = bytes.map(|byte| i32::from(byte.cast_signed())).sum();
                    corrections[column] = compute.set.byte_offset() * sum;
                    scales[column] = scale;
                }
            }
            pack::panel(compute.set, &rows, row_words, words);
        });
        Self { format, depth, outputs, panels, words, scales, biases: Vec::new() }
    }

    /// Rows of the weight.
    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Columns of the weight, and the bytes that a product reads of it.
    #[cfg(any(test, feature = "benchmarks"))]
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.depth, size_of_val(self.words.as_slice()))
    }

    /// A panel's words.
    pub(super) fn panel(&self, panel: usize) -> &[u32] {
        let size = COLUMNS * self.format.words(self.depth);
        &self.words.as_slice()[panel * size..(panel + 1) * size]
    }
}
