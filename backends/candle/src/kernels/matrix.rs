//! Weights, packed once when a model is loaded.
//!
//! Input: the parts of a weight. Output: panels of columns in an [`OperandFormat`]. What must hold: a panel
//! that is not full is padded with columns of zeros.

use super::{
    compute::Compute,
    instruction_set::InstructionSet,
    layout::COLUMNS,
    nibbles::{self, FineGroup, GROUP, NibbleGroup, PanelFineGroups, PanelGroups},
    pack::{self, OperandFormat, Words},
    pages::Pages,
    stored::StoredMatrix,
};
use text_embeddings_checkpoint::FourBits;

/// The number of gates in a panel of gates and their gated values.
pub(crate) const GATES: usize = COLUMNS / 2;

/// The format to which a weight's values are converted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WeightFormat {
    /// The same format as the rows that it is multiplied with.
    AsRows(OperandFormat),
    /// Four bits, in groups ([`nibbles`]). They are multiplied with rows of [`OperandFormat::Int8`].
    Int4,
}

impl From<OperandFormat> for WeightFormat {
    fn from(format: OperandFormat) -> Self {
        Self::AsRows(format)
    }
}

impl WeightFormat {
    /// The format that products read.
    pub(crate) fn products(self) -> OperandFormat {
        match self {
            Self::AsRows(format) => format,
            Self::Int4 => OperandFormat::Int8,
        }
    }
}

/// A packed weight: panels `[panel][word][COLUMNS]`, or `[panel][pair of words][COLUMNS]` for nibbles.
pub(crate) struct Matrix {
    /// The format that products read.
    pub(super) format: OperandFormat,
    /// The number of columns of the weight.
    pub(super) depth: usize,
    /// The number of rows of the weight.
    outputs: usize,
    pub(super) panels: usize,
    words: Pages,
    groups: Groups,
    /// For integers, by panel and column: the scale of the column, and for bytes their sum times the offset
    /// of the rows' bytes. A product subtracts the latter, which the offset added.
    pub(super) scales: Vec<([f32; COLUMNS], [i32; COLUMNS])>,
    /// The biases that products add to each column's sums, by panel; empty without a bias.
    pub(super) biases: Vec<[f32; COLUMNS]>,
}

/// The groups of nibbles, by panel and range of values.
enum Groups {
    /// For other formats than nibbles.
    None,
    Coarse(Vec<PanelGroups>),
    /// For weights with rows that a file stores in four bits.
    Fine(Vec<PanelFineGroups>),
}

/// The groups of a panel that is being packed.
enum GroupsOfPanel<'a> {
    Coarse(&'a mut [PanelGroups]),
    Fine(&'a mut [PanelFineGroups]),
}

impl Groups {
    fn new(len: usize, fine: bool) -> Self {
        match (len, fine) {
            (0, _) => Self::None,
            (_, false) => Self::Coarse(vec![PanelGroups::EMPTY; len]),
            (_, true) => Self::Fine(vec![PanelFineGroups::EMPTY; len]),
        }
    }

    /// The groups of each panel, `len` for each; nothing for other formats.
    fn panels(&mut self, len: usize) -> Box<dyn Iterator<Item = GroupsOfPanel<'_>> + Send + '_> {
        match self {
            Self::None => Box::new(std::iter::empty()),
            Self::Coarse(groups) => Box::new(groups.chunks_exact_mut(len).map(GroupsOfPanel::Coarse)),
            Self::Fine(groups) => Box::new(groups.chunks_exact_mut(len).map(GroupsOfPanel::Fine)),
        }
    }
}

/// How to pack a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WeightPacking {
    /// The format to which its values are converted.
    pub(crate) format: WeightFormat,
    /// The columns that its rows become.
    pub(crate) order: ColumnOrder,
}

/// The order in which the rows of a weight become columns of panels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ColumnOrder {
    /// In the order of the rows.
    Plain,
    /// The first half of the rows are gates, the second half the values that they gate. Each panel has
    /// [`GATES`] columns of both.
    Gated,
}

impl ColumnOrder {
    /// The index of the weight's row for the column `column` of panel `panel`; `None` for padding.
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

/// Changes a row before it is packed.
type Prepare<'a> = &'a (dyn Fn(&mut [f32]) + Sync);

impl Matrix {
    /// Packs the parts of a weight. They are stacked below each other and have the same number of columns.
    pub(crate) fn pack(
        compute: &Compute,
        parts: &[StoredMatrix],
        format: impl Into<WeightFormat>,
        order: ColumnOrder,
    ) -> Self {
        let format = format.into();
        Self::pack_rows(compute, parts, WeightPacking { format, order }, None)
    }

    /// Adds `bias`, a value for each row of the weight, to all products with this matrix.
    pub(crate) fn with_bias(mut self, bias: &[f32], order: ColumnOrder) -> Self {
        assert!(bias.len() == self.outputs);
        let biases = (0..self.panels).map(|panel| {
            std::array::from_fn(|column| order.row(bias.len(), panel, column).map_or(0.0, |row| bias[row]))
        });
        self.biases = biases.collect();
        self
    }

    /// Like [`Matrix::pack`], for rows that `prepare` changes first.
    pub(crate) fn pack_prepared(
        compute: &Compute,
        parts: &[StoredMatrix],
        packing: WeightPacking,
        prepare: impl Fn(&mut [f32]) + Sync,
    ) -> Self {
        Self::pack_rows(compute, parts, packing, Some(&prepare))
    }

    /// Packs rows. If `prepare` does not change them and their steps are known, they become bytes without an
    /// error.
    fn pack_rows(
        compute: &Compute,
        parts: &[StoredMatrix],
        WeightPacking { format, order }: WeightPacking,
        prepare: Option<Prepare<'_>>,
    ) -> Self {
        let depth = parts[0].columns();
        assert!(parts.iter().all(|part| part.columns() == depth));
        let outputs = parts.iter().map(StoredMatrix::rows).sum();
        let keeps_steps = prepare.is_none() && format == WeightFormat::AsRows(OperandFormat::Int8);
        let keeps_nibbles = prepare.is_none() && format == WeightFormat::Int4;
        // Writes a row, and returns its step or its nibbles if the row keeps them.
        let row = |mut row: usize, out: &mut [f32]| {
            for part in parts {
                if row < part.rows() {
                    part.widen_row(row, out);
                    return (
                        if keeps_steps { part.step(row) } else { None },
                        if keeps_nibbles { part.four_bits(row) } else { None },
                    );
                }
                row -= part.rows();
            }
            (None, None)
        };
        let panels = order.panels(outputs);
        let products = format.products();
        let row_words = products.words(depth);
        let of_nibbles = if format == WeightFormat::Int4 { row_words * 4 / GROUP } else { 0 };
        let panel_words = COLUMNS * if of_nibbles > 0 { row_words / 2 } else { row_words };
        let mut words = Pages::zeroed(panels * panel_words);
        let is_fine = keeps_nibbles && parts.iter().any(StoredMatrix::has_four_bits);
        let mut groups = Groups::new(panels * of_nibbles, is_fine);
        let mut scales = vec![([0.0; COLUMNS], [0; COLUMNS]); if products.is_scaled() { panels } else { 0 }];
        let (mut of_panel, mut groups_of_panel) = (scales.iter_mut(), groups.panels(of_nibbles));
        let items = words.as_mut_slice().chunks_exact_mut(panel_words).enumerate();
        let items = items.map(|(panel, words)| (panel, words, of_panel.next(), groups_of_panel.next()));
        compute.threads.for_each(items, |(panel, words, mut scales, mut groups)| {
            let mut values = vec![0.0; depth];
            let mut rows = vec![0; COLUMNS * row_words];
            for (column, words) in rows.chunks_exact_mut(row_words).enumerate() {
                let Some(index) = order.row(outputs, panel, column) else { continue };
                let (step, stored) = row(index, &mut values);
                if let Some(prepare) = prepare {
                    prepare(&mut values);
                }
                let mut scale = 1.0;
                let excess = if let Some(groups) = &mut groups {
                    let row = WeightRow { values: &values, stored };
                    nibbles_of_row(compute.set, row, words, groups, column, &mut scale)
                } else {
                    match step {
                        Some(step) => {
                            pack::multiples(&values, step, words);
                            scale = step;
                        }
                        None => pack::row(compute.set, products, &values, 0, words, &mut scale),
                    }
                    let words = if products == OperandFormat::Int8 { &*words } else { &[] };
                    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
                    bytes.map(|byte| compute.set.byte_excess(byte.cast_signed())).sum()
                };
                if let Some((scales, corrections)) = &mut scales {
                    corrections[column] = excess;
                    scales[column] = scale;
                }
            }
            match groups {
                Some(_) => pack_nibbles(compute.set, &rows, row_words, words),
                None => pack::panel(compute.set, &rows, row_words, words),
            }
        });
        drop(groups_of_panel);
        Self { format: products, depth, outputs, panels, words, groups, scales, biases: Vec::new() }
    }

    /// The number of rows of the weight.
    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// The number of columns of the weight, and the bytes that a product reads of it.
    #[cfg(any(test, feature = "benchmarks"))]
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.depth, size_of_val(self.words.as_slice()))
    }

    /// Whether panels are stored as nibbles.
    pub(super) fn has_nibbles(&self) -> bool {
        !matches!(self.groups, Groups::None)
    }

    /// A panel's words in the form that products read. Nibbles are expanded to bytes in `bytes`.
    pub(super) fn panel<'a>(&'a self, set: InstructionSet, panel: usize, bytes: &'a mut Words) -> &'a [u32] {
        let stored = self.stored_panel(panel);
        if !self.has_nibbles() {
            return stored;
        }
        bytes.resize(2 * stored.len());
        let out = bytes.as_mut_slice();
        match &self.groups {
            Groups::None => {}
            Groups::Coarse(groups) => nibbles::expand(set, stored, self.part(groups, panel), out),
            Groups::Fine(groups) => nibbles::expand_fine(set, stored, self.part(groups, panel), out),
        }
        bytes.as_slice()
    }

    /// The part of `all` that belongs to a panel.
    fn part<'a, T>(&self, all: &'a [T], panel: usize) -> &'a [T] {
        let size = all.len() / self.panels;
        &all[panel * size..(panel + 1) * size]
    }

    /// A panel's words in their stored form.
    pub(super) fn stored_panel(&self, panel: usize) -> &[u32] {
        self.part(self.words.as_slice(), panel)
    }
}

/// Packs the rows of a panel, whose bytes hold a nibble each, as nibbles.
fn pack_nibbles(set: InstructionSet, rows: &[u32], row_words: usize, words: &mut [u32]) {
    let mut lines = vec![0; rows.len()];
    pack::panel(set, rows, row_words, &mut lines);
    let pairs = lines.as_chunks::<COLUMNS>().0.as_chunks::<2>().0;
    for (line, [first, second]) in words.as_chunks_mut::<COLUMNS>().0.iter_mut().zip(pairs) {
        *line = nibbles::pair([first, second]);
    }
}

/// A weight's row: its values, and the four bits in which the checkpoint stores it, if it does.
struct WeightRow<'a> {
    values: &'a [f32],
    stored: Option<Vec<FourBits>>,
}

/// Writes the nibbles of a row as bytes of `words`, and its groups as a column's. Returns what tiles add for
/// the row's expanded bytes. A row that is stored in four bits keeps them if the panel has fine groups.
fn nibbles_of_row(
    set: InstructionSet,
    WeightRow { values, stored }: WeightRow<'_>,
    words: &mut [u32],
    panel: &mut GroupsOfPanel<'_>,
    column: usize,
    scale: &mut f32,
) -> i32 {
    let mut nibbles = vec![0; 4 * words.len()];
    let mut fine = vec![FineGroup::default(); nibbles.len() / GROUP];
    let kept = stored.is_some_and(|stored| nibbles::keep(&stored, values, &mut nibbles, &mut fine, scale));
    let mut groups = vec![NibbleGroup::default(); fine.len()];
    if !kept {
        nibbles::quantise(set, values, &mut nibbles, &mut groups, scale);
        fine = groups.iter().map(|&group| group.into()).collect();
    }
    for (word, four) in words.iter_mut().zip(nibbles.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*four);
    }
    match panel {
        GroupsOfPanel::Coarse(panel) => {
            for (panel, &group) in panel.iter_mut().zip(&groups) {
                panel.set(column, group);
            }
        }
        GroupsOfPanel::Fine(panel) => {
            for (panel, &group) in panel.iter_mut().zip(&fine) {
                panel.set(column, group);
            }
        }
    }
    let groups = nibbles.as_chunks::<GROUP>().0.iter().zip(&fine);
    groups.flat_map(|(nibbles, group)| nibbles.map(|nibble| set.byte_excess(group.byte(nibble)))).sum()
}
