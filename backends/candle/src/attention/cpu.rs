//! Attention on the CPU: packed keys and values, tiles of scores, a softmax that runs along the keys.
//!
//! Input: queries `[query rows, heads · size]`, keys and values side by side `[tokens, 2 · key heads · size]`.
//! Output: `[query rows, heads · size]`. Memory is linear in the tokens: scores exist for one block of queries and
//! [`KEYS_PER_STEP`] keys at a time. The queries of all heads that share a key head are rows of the same tile.

use super::{
    Heads, QuerySpan,
    packed::{PackedKeys, PackedSize},
};
use crate::kernels::{
    elementwise::{self, RunningSoftmax},
    matmul::Compute,
    pack::{self, Format, Words},
    tile::{self, COLUMNS, Sums, WORDS},
};
use std::{cell::RefCell, ops::Range};
use text_embeddings_backend_core::Batch;

/// Keys whose scores are computed before the softmax takes them in: a multiple of a panel.
const KEYS_PER_STEP: usize = 4 * COLUMNS;
/// The most query tokens of one work item; their tiles share the keys in the cache.
const QUERIES_PER_ITEM: usize = 64;

/// Work of one thread: some queries of one span, and where their result goes.
struct Item<'a> {
    segment: usize,
    /// The first query's place in its segment.
    offset: usize,
    queries: &'a [f32],
    out: &'a mut [f32],
}

/// Attends from `queries`, whose places `spans` gives in the order of their rows, to `keys_values` packed in `packed`.
pub(crate) fn attention(
    compute: &Compute,
    (queries, spans): (&[f32], &[QuerySpan]),
    packed: &PackedKeys,
    heads: Heads,
    batch: &Batch,
    out: &mut [f32],
) {
    let width = heads.queries * heads.size;
    let total = queries.len() / width;
    let per_item = total.div_ceil(4 * compute.threads.count()).clamp(1, QUERIES_PER_ITEM);
    let mut items = Vec::new();
    let mut rest = out;
    for span in spans {
        for from in (0..span.rows.len()).step_by(per_item) {
            let count = per_item.min(span.rows.len() - from);
            let item_out;
            (item_out, rest) = rest.split_at_mut(count * width);
            let queries = &queries[(span.rows.start + from) * width..][..count * width];
            items.push(Item { segment: span.segment, offset: span.offset + from, queries, out: item_out });
        }
    }
    // The longest paths first: the last items to run are then short, and the threads end together.
    items.reverse();
    compute.threads.for_each(items.into_iter(), |mut item| {
        WORKSPACE.with_borrow_mut(|workspace| attend(compute, &mut item, packed, heads, batch, workspace));
    });
}

/// Scratch memory of a thread.
#[derive(Default)]
struct Workspace {
    /// The queries of one key head, as rows `[query, group]`, scaled.
    rows: Vec<f32>,
    /// The same, packed as blocks.
    blocks: Words,
    /// A row's words before they are placed in a block.
    words: Vec<u32>,
    scores: Vec<f32>,
    weights: Words,
    tile: Sums,
    sums: Vec<f32>,
    softmax: Vec<RunningSoftmax>,
}

thread_local! {
    static WORKSPACE: RefCell<Workspace> = RefCell::new(Workspace::default());
}

fn attend(
    compute: &Compute,
    item: &mut Item<'_>,
    packed: &PackedKeys,
    heads: Heads,
    batch: &Batch,
    workspace: &mut Workspace,
) {
    let group = heads.queries / heads.keys;
    let width = heads.queries * heads.size;
    let path = batch.path(item.segment);
    for head in 0..heads.keys {
        let columns = head * group * heads.size..(head + 1) * group * heads.size;
        workspace.rows.clear();
        for query in item.queries.chunks_exact(width) {
            workspace.rows.extend_from_slice(&query[columns.clone()]);
        }
        elementwise::scale(compute.set, &mut workspace.rows, 1.0 / (heads.size as f32).sqrt());
        let tiles = Tiles::of(compute, packed.format, item.queries.len() / width * group, heads.size);
        tiles.start(workspace);
        for &segment in &path {
            let tokens = batch.segments()[segment].rows.len();
            let size = PackedSize::of(packed.format, tokens, heads);
            let own = (segment == item.segment).then_some((item.offset, group));
            tiles.attend_segment(workspace, packed.head(segment, head, size), size, tokens, own);
        }
        let per_query = tiles.finish(workspace, heads.size).chunks_exact(group * heads.size);
        for (values, out) in per_query.zip(item.out.chunks_exact_mut(width)) {
            out[columns.clone()].copy_from_slice(values);
        }
    }
}

/// The queries of one item and key head as rows of tiles.
struct Tiles<'a> {
    compute: &'a Compute,
    format: Format,
    rows: usize,
    block_rows: usize,
    /// Words of a query.
    query_words: usize,
    /// A head's size padded to whole panels: the width of `Workspace::sums`.
    width: usize,
    size: usize,
}

impl<'a> Tiles<'a> {
    fn of(compute: &'a Compute, format: Format, rows: usize, size: usize) -> Self {
        let block_rows = rows.div_ceil(rows.div_ceil(tile::rows(compute.set, format)));
        let width = size.next_multiple_of(COLUMNS);
        Self { compute, format, rows, block_rows, query_words: format.words(size), width, size }
    }

    /// The rows of each block.
    fn blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (rows, block_rows) = (self.rows, self.block_rows);
        (0..rows).step_by(block_rows).map(move |first| first..rows.min(first + block_rows))
    }

    /// Packs the rows of `values`, `depth` values each, as a block of rows.
    fn pack(&self, (values, depth): (&[f32], usize), words: &mut Vec<u32>, block: &mut [u32]) {
        words.resize(self.format.words(depth), 0);
        let rows = values.len() / depth;
        for (index, row) in values.chunks_exact(depth).enumerate() {
            pack::row(self.compute.set, self.format, row, 0, words, &mut 1.0);
            pack::place(words, block, (index, rows));
        }
    }

    fn multiply(&self, a: &[u32], b: &[u32], rows: usize, sums: &mut Sums) {
        tile::multiply(self.compute.set, rows, (self.format, self.format), (a, b), sums);
    }

    fn start(&self, workspace: &mut Workspace) {
        workspace.blocks.resize(self.rows * self.query_words);
        let blocks = workspace.blocks.as_mut_slice();
        for rows in self.blocks() {
            let source = &workspace.rows[rows.start * self.size..rows.end * self.size];
            let block = &mut blocks[rows.start * self.query_words..rows.end * self.query_words];
            self.pack((source, self.size), &mut workspace.words, block);
        }
        workspace.softmax.clear();
        workspace.softmax.resize(self.rows, RunningSoftmax::default());
        workspace.sums.clear();
        workspace.sums.resize(self.rows * self.width, 0.0);
        workspace.scores.resize(self.block_rows * KEYS_PER_STEP, 0.0);
        workspace.weights.resize(self.block_rows * self.format.words(KEYS_PER_STEP));
    }

    /// Takes a segment's keys in. `own` is given for the queries' own segment: the first query's place in it and the
    /// rows per query; a query sees itself and what is before it.
    fn attend_segment(
        &self,
        workspace: &mut Workspace,
        (keys, values): (&[u32], &[u32]),
        size: PackedSize,
        tokens: usize,
        own: Option<(usize, usize)>,
    ) {
        for first_key in (0..tokens).step_by(KEYS_PER_STEP) {
            let step = KEYS_PER_STEP.min(size.tokens - first_key);
            let in_step = step.min(tokens - first_key);
            let visible = |row: usize| match own {
                Some((offset, group)) => (offset + row / group + 1).saturating_sub(first_key).min(in_step),
                None => in_step,
            };
            for rows in self.blocks() {
                // Rows see ever more keys: what the last one does not see, none does.
                let seen = visible(rows.end - 1).next_multiple_of(COLUMNS);
                if seen > 0 {
                    let keys = &keys[first_key * size.key..][..seen * size.key];
                    self.score(workspace, rows.clone(), keys, seen);
                    self.take_in(workspace, rows.clone(), seen, visible);
                    self.add_values(workspace, rows, (values, size.column), first_key..first_key + seen);
                }
            }
        }
    }

    /// Scores of a block's rows against a step's keys, `[row][step]`.
    fn score(&self, workspace: &mut Workspace, rows: Range<usize>, keys: &[u32], step: usize) {
        let words = rows.start * self.query_words..rows.end * self.query_words;
        let block = &workspace.blocks.as_slice()[words];
        let tile = &mut workspace.tile;
        for (panel, keys) in keys.chunks_exact(self.query_words * COLUMNS).enumerate() {
            self.multiply(block, keys, rows.len(), tile);
            for (scores, sums) in workspace.scores.chunks_exact_mut(step).zip(&tile.0[..rows.len()]) {
                scores[panel * COLUMNS..(panel + 1) * COLUMNS].copy_from_slice(sums);
            }
        }
    }

    /// Scores become weights, packed as a block; what was summed before is scaled to the new maximum.
    fn take_in(
        &self,
        workspace: &mut Workspace,
        rows: Range<usize>,
        step: usize,
        visible: impl Fn(usize) -> usize,
    ) {
        let scores = &mut workspace.scores[..rows.len() * step];
        for (row, scores) in rows.clone().zip(scores.chunks_exact_mut(step)) {
            let state = &mut workspace.softmax[row];
            elementwise::softmax_step(self.compute.set, scores, visible(row), state);
            if state.correction < 1.0 {
                let sums = &mut workspace.sums[row * self.width..(row + 1) * self.width];
                elementwise::scale(self.compute.set, sums, state.correction);
            }
        }
        let weights = &mut workspace.weights.as_mut_slice()[..rows.len() * self.format.words(step)];
        self.pack((scores, step), &mut workspace.words, weights);
    }

    fn add_values(
        &self,
        workspace: &mut Workspace,
        rows: Range<usize>,
        (values, column): (&[u32], usize),
        step: Range<usize>,
    ) {
        let weights = &workspace.weights.as_slice()[..rows.len() * self.format.words(step.len())];
        let words = step.start / self.format.per_word()..step.end / self.format.per_word();
        let tile = &mut workspace.tile;
        for (panel, values) in values.chunks_exact(column * COLUMNS).enumerate() {
            self.multiply(weights, &values[words.start * COLUMNS..words.end * COLUMNS], rows.len(), tile);
            let totals = workspace.sums[rows.start * self.width..].chunks_exact_mut(self.width);
            for (totals, sums) in totals.zip(&tile.0[..rows.len()]) {
                elementwise::add(self.compute.set, sums, &mut totals[panel * COLUMNS..(panel + 1) * COLUMNS]);
            }
        }
    }

    /// The weighted means of the values, `[row][size]`, in `Workspace::rows`.
    fn finish<'w>(&self, workspace: &'w mut Workspace, size: usize) -> &'w [f32] {
        let rows = workspace.rows.chunks_exact_mut(size).zip(workspace.sums.chunks_exact(self.width));
        for ((row, sums), softmax) in rows.zip(&workspace.softmax) {
            row.copy_from_slice(&sums[..size]);
            elementwise::scale(self.compute.set, row, 1.0 / softmax.sum);
        }
        &workspace.rows
    }
}

// A step's weights fill whole chunks in either format.
const _: () = assert!(COLUMNS.is_multiple_of(2 * WORDS));
