//! The queries of one item as rows of tiles: their scores, weights and sums of values.
//!
//! Input: packed keys and values, a step at a time. Output: the weighted means of the values. What must hold:
//! a row's result depends on its own query and keys only.

use super::keys::{KEYS_PER_STEP, KeyPiece, KeyStep, Keys};
use crate::{
    attention::{Heads, PlacedToken, Scoring},
    cpu::{
        disentangled::DisentangledScores,
        packed_keys::{PackedHead, PackedKeys, PackedSize},
        workspace::Workspace,
    },
    kernels::{
        activation,
        ahead::Ahead,
        compute::Compute,
        layout::COLUMNS,
        pack::{self, OperandFormat, int16},
        results::{self, SumScaling},
        softmax::{self, RunningSoftmax, StepFactors, SumScales},
        tile::{self, MAX_ROWS, Start, TileKernel, TileOperands, ZEROS},
    },
};
use std::{f32::consts::LOG2_E, ops::Range};
use text_embeddings_backend_core::Segment;

/// The number of heads of a query that are packed together.
const HEADS_AT_ONCE: usize = 16;

/// Consecutive queries.
#[derive(Clone, Copy)]
pub(super) struct QueryBlock {
    pub(super) queries: usize,
    /// The first query's row among all queries.
    pub(super) first_row: usize,
    /// The first query's position in its text.
    pub(super) position: usize,
}

/// The queries of one item and one key head, as rows `[query, group]` of tiles.
#[derive(Clone, Copy)]
pub(super) struct Tiles<'a> {
    compute: &'a Compute,
    /// The format of keys and values.
    format: OperandFormat,
    /// The format of queries and weights.
    row_format: OperandFormat,
    /// The products of queries with keys, and of weights with values.
    kernel: TileKernel,
    heads: Heads,
    scoring: Scoring<'a>,
    disentangled: Option<&'a DisentangledScores<'a>>,
    /// The key head.
    head: usize,
    /// The first query's row among all queries.
    first_row: usize,
    /// The first query's position in its text.
    position: usize,
    /// The number of query heads that share the key head.
    group: usize,
    rows: usize,
    block_rows: usize,
    /// The number of words of a query.
    query_words: usize,
    /// The number of panels of a head's values.
    panels: usize,
}

impl<'a> Tiles<'a> {
    /// For the first key head.
    pub(super) fn new(compute: &'a Compute, keys: Keys<'a>, part: QueryBlock) -> Self {
        let QueryBlock { queries, first_row, position } = part;
        let Keys { packed: &PackedKeys { format, .. }, heads, scoring, disentangled, .. } = keys;
        let group = heads.queries / heads.keys;
        let rows = queries * group;
        let row_format = format.of_rows(compute.set);
        let block_rows = rows.div_ceil(rows.div_ceil(tile::rows(compute.set, row_format)));
        let (query_words, panels) = (row_format.words(heads.size), heads.size.div_ceil(COLUMNS));
        Self {
            compute,
            format,
            row_format,
            kernel: TileKernel::new(compute.set, row_format, format),
            heads,
            scoring,
            disentangled,
            head: 0,
            first_row,
            position,
            group,
            rows,
            block_rows,
            query_words,
            panels,
        }
    }

    /// The same queries, for another key head.
    pub(super) fn of_key_head(self, head: usize) -> Self {
        Self { head, ..self }
    }

    /// The index of a row's query.
    fn query(&self, row: usize) -> usize {
        // A division would take longer than the comparison.
        if self.group == 1 { row } else { row / self.group }
    }

    /// The index of a row's head among those that share the key head.
    fn head_in_group(&self, row: usize) -> usize {
        row - self.query(row) * self.group
    }

    /// The row ranges of the blocks.
    fn blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (rows, block_rows) = (self.rows, self.block_rows);
        (0..rows).step_by(block_rows).map(move |first| first..rows.min(first + block_rows))
    }

    /// The columns of a row's values among a query's heads.
    fn columns(&self, row: usize) -> Range<usize> {
        let start = (self.head * self.group + self.head_in_group(row)) * self.heads.size;
        start..start + self.heads.size
    }

    /// The range of some rows' words among the packed queries of all key heads.
    fn words(&self, head: usize, rows: &Range<usize>) -> Range<usize> {
        let before = head * self.rows;
        (before + rows.start) * self.query_words..(before + rows.end) * self.query_words
    }

    /// The packed keys and values of a head, for a piece's segment.
    fn packed<'k>(
        &self,
        step: KeyStep<'k>,
        piece: &KeyPiece,
    ) -> (PackedSize, PackedHead<&'k [u32], &'k [f32]>) {
        let size = PackedSize::new(self.format, piece.all.len(), self.heads);
        (size, step.packed.head(piece.segment, self.head, size))
    }

    /// Reserves memory for the item's queries and result, for all heads.
    pub(super) fn reserve(&self, workspace: &mut Workspace, values: usize) {
        workspace.queries.resize(self.heads.keys * self.rows * self.query_words);
        workspace.query_scales.resize(self.heads.keys * self.rows, 1.0);
        workspace.words.resize(self.heads.queries * self.query_words, 0);
        workspace.scales.resize(self.heads.queries, 1.0);
        workspace.out.resize(values, 0.0);
        workspace.totals.reserve(self.rows * self.panels);
        workspace.scores.reserve(self.block_rows * KEYS_PER_STEP / COLUMNS);
        workspace.weights.resize(self.block_rows * KEYS_PER_STEP);
        workspace.tile.reserve(self.block_rows);
    }

    /// Packs all heads of a query, which `Workspace::values` holds.
    pub(super) fn place_query(&self, workspace: &mut Workspace, query: usize) {
        let Workspace { values, words, scales, .. } = &mut *workspace;
        let words_at_once = HEADS_AT_ONCE * self.query_words;
        for ((values, words), scales) in values
            .chunks(HEADS_AT_ONCE * self.heads.size)
            .zip(words.chunks_mut(words_at_once))
            .zip(scales.chunks_mut(HEADS_AT_ONCE))
        {
            let mut heads = [&[][..]; HEADS_AT_ONCE];
            heads.iter_mut().zip(values.chunks(self.heads.size)).for_each(|(to, from)| *to = from);
            pack::rows(self.compute.set, self.row_format, &heads[..scales.len()], words, scales);
        }
        for member in 0..self.group {
            let row = query * self.group + member;
            let first = row - row % self.block_rows;
            let block = first..self.rows.min(first + self.block_rows);
            for key_head in 0..self.heads.keys {
                let head = key_head * self.group + member;
                workspace.query_scales[key_head * self.rows + row] = workspace.scales[head];
                let words = &workspace.words[head * self.query_words..][..self.query_words];
                let queries = &mut workspace.queries.as_mut_slice()[self.words(key_head, &block)];
                pack::place(words, queries, row - first, block.len());
            }
        }
    }

    /// Resets the running softmaxes.
    pub(super) fn start(&self, workspace: &mut Workspace) {
        for (state, value) in [
            (&mut workspace.max, f32::NEG_INFINITY),
            (&mut workspace.sum, 0.0),
            (&mut workspace.correction, 0.0),
            (&mut workspace.step_sum, 0.0),
        ] {
            state.clear();
            state.resize(self.rows, value);
        }
        workspace.totals.rows()[..self.rows * self.panels].fill([0.0; COLUMNS]);
    }

    /// Takes in the keys of a step, for a text that ends with the segment `last`.
    pub(super) fn attend(&self, workspace: &mut Workspace, step: KeyStep<'_>, last: &Segment) {
        workspace.key_scales.clear();
        workspace.value_scales.clear();
        if self.format.is_scaled() {
            for (piece, panels) in step.pieces() {
                let (_, PackedHead { key_scales, value_scales, .. }) = self.packed(step, piece);
                let keys = panels.start * COLUMNS..panels.end * COLUMNS;
                workspace.key_scales.extend_from_slice(&key_scales[keys.clone()]);
                workspace.value_scales.extend_from_slice(&value_scales[keys]);
            }
        }
        let visible =
            |row: usize| self.scoring.mask.visible(self.position + self.query(row), step.first, step.tokens);
        for rows in self.blocks() {
            // Windows move to the right with the rows. So no row sees keys beyond the last row's end or
            // before the first row's start.
            let (of_first, of_last) = (visible(rows.start), visible(rows.end - 1));
            let (from, to) = (of_first.start, of_last.end);
            if from < to {
                let seen = from - from % COLUMNS..to.next_multiple_of(COLUMNS);
                workspace.visible.clear();
                if of_first == of_last {
                    // So do the rows between them.
                    workspace.visible.resize(rows.len(), from - seen.start..to - seen.start);
                } else {
                    workspace.visible.extend(rows.clone().map(|row| {
                        let Range { start, end } = visible(row);
                        start.max(seen.start) - seen.start..end.max(seen.start) - seen.start
                    }));
                }
                let first = step.first + seen.start;
                let from = seen.start.min(workspace.value_scales.len());
                let step = KeyStep { first, tokens: step.tokens.min(seen.end) - seen.start, ..step };
                self.weigh(workspace, rows.clone(), step, from, last);
                self.add_values(workspace, rows, step);
            }
        }
    }

    /// Computes the weights of a step's keys for a block's rows, and packs them as a block. The scales of the
    /// step's values begin at the index `first_scale`.
    fn weigh(
        &self,
        workspace: &mut Workspace,
        rows: Range<usize>,
        step: KeyStep<'_>,
        first_scale: usize,
        last: &Segment,
    ) {
        let set = self.compute.set;
        let block = &workspace.queries.as_slice()[self.words(self.head, &rows)];
        let panels = step.panels().len();
        let count = panels * COLUMNS;
        let scores = &mut workspace.scores.rows()[..panels * rows.len()];
        let mut of_panels = scores.chunks_exact_mut(rows.len());
        for (piece, panels) in step.pieces() {
            let (size, PackedHead { keys, .. }) = self.packed(step, piece);
            let keys = &keys[panels.start * COLUMNS * size.key..panels.end * COLUMNS * size.key];
            for (keys, scores) in keys.chunks_exact(COLUMNS * size.key).zip(&mut of_panels) {
                let operands = TileOperands { a: block, b: keys };
                self.kernel.multiply(rows.len(), operands, Start::Zeros, Ahead::NOTHING, scores);
            }
        }
        let mut sum_scales = self.format.is_scaled().then(|| SumScales {
            of_rows: &workspace.query_scales[self.head * self.rows..][rows.clone()],
            of_keys: &workspace.key_scales[first_scale..],
        });
        let Scoring { soft_cap, bias, .. } = self.scoring;
        let are_changed = soft_cap.is_some() || bias.is_some() || self.disentangled.is_some();
        if let Some(SumScales { of_rows, of_keys }) = sum_scales.take_if(|_| are_changed) {
            for (scores, of_columns) in scores.chunks_exact_mut(rows.len()).zip(of_keys.as_chunks().0) {
                let scaling = SumScaling { of_rows, of_columns, corrections: &[0; COLUMNS], biases: &ZEROS };
                results::scale_sums(set, scores, &scaling);
            }
        }
        if let Some(cap) = soft_cap {
            activation::soft_cap(set, scores.as_flattened_mut(), cap * self.scoring.divisor);
        }
        if let Some(bias) = bias {
            let mut biases = [&[][..]; MAX_ROWS];
            for (biases, row) in biases.iter_mut().zip(rows.clone()) {
                let head = self.head * self.group + self.head_in_group(row);
                *biases = bias.biases_of(head, self.position + self.query(row), step.first, count);
            }
            softmax::add_biases(set, scores, &biases[..rows.len()]);
        }
        if let Some(disentangled) = self.disentangled {
            // In models with such scores, a text is one segment.
            let row = last.rows.start + step.first - last.position;
            let first = PlacedToken { row, position: step.first };
            workspace.biases.clear();
            workspace.biases.resize(rows.len() * count, 0.0);
            for (biases, row) in workspace.biases.chunks_exact_mut(count).zip(rows.clone()) {
                let query = PlacedToken { row: self.first_row + row, position: self.position + row };
                disentangled.write(self.head, query, first, &mut biases[..step.tokens]);
            }
            let mut biases = [&[][..]; MAX_ROWS];
            biases.iter_mut().zip(workspace.biases.chunks_exact(count)).for_each(|(to, from)| *to = from);
            softmax::add_biases(set, scores, &biases[..rows.len()]);
        }
        let mut running = RunningSoftmax {
            max: &mut workspace.max[rows.clone()],
            sum: &mut workspace.sum[rows.clone()],
            correction: &mut workspace.correction[rows.clone()],
            step_sum: &mut workspace.step_sum[rows.clone()],
        };
        let lines = &mut workspace.weights.as_mut_slice().as_chunks_mut().0[..2 * scores.len()];
        let of_scores = LOG2_E / self.scoring.divisor;
        let of_weights = &workspace.value_scales[first_scale..];
        let factors = StepFactors { of_scores, sum_scales, of_weights };
        softmax::step(set, scores, &workspace.visible, factors, &mut running, lines);
        if self.row_format.is_scaled() {
            int16::round_block(set, lines, &mut workspace.step_sum[rows]);
        } else {
            pack::block(set, self.row_format, lines, rows.len());
        }
    }

    /// Adds a step's weighted values to the earlier sums, which it first scales to the new maximum.
    fn add_values(&self, workspace: &mut Workspace, rows: Range<usize>, step: KeyStep<'_>) {
        // For one panel's keys: the words of a column of values, and the words of a block's weights.
        let (set, words) = (self.compute.set, COLUMNS / self.format.per_word());
        let block_words = rows.len() * self.row_format.words(COLUMNS);
        let totals = &mut workspace.totals.rows()[rows.start * self.panels..rows.end * self.panels];
        let (tile, factors) = (workspace.tile.rows(), &workspace.correction[rows.clone()]);
        let scales = if self.format.is_scaled() { &workspace.step_sum[rows.clone()] } else { &[] };
        for (panel, totals) in totals.chunks_exact_mut(rows.len()).enumerate() {
            let mut weights = workspace.weights.as_slice();
            let mut start = Start::Zeros;
            for (piece, keys) in step.pieces() {
                let (size, PackedHead { values, .. }) = self.packed(step, piece);
                let values = &values[panel * size.column * COLUMNS..]
                    [keys.start * words * COLUMNS..keys.end * words * COLUMNS];
                let (of_piece, rest) = weights.split_at(keys.len() * block_words);
                let operands = TileOperands { a: of_piece, b: values };
                self.kernel.multiply(rows.len(), operands, start, Ahead::NOTHING, tile);
                (weights, start) = (rest, Start::Sums);
            }
            softmax::scale_and_add(set, tile, scales, factors, totals);
        }
    }

    /// Writes the weighted means of the values to their places in `Workspace::out`.
    pub(super) fn finish(&self, workspace: &mut Workspace) {
        let width = self.heads.queries * self.heads.size;
        for rows in self.blocks() {
            let totals = &workspace.totals.rows()[rows.start * self.panels..rows.end * self.panels];
            let mut starts = [0; MAX_ROWS];
            for (start, row) in starts.iter_mut().zip(rows.clone()) {
                *start = self.query(row) * width + self.columns(row).start;
            }
            let (sums, starts) = (&workspace.sum[rows.clone()], &starts[..rows.len()]);
            softmax::write_means(self.compute.set, totals, sums, starts, self.heads.size, &mut workspace.out);
        }
    }
}
