//! Attention on the CPU: packed keys and values, tiles of scores, a softmax that runs along the keys.
//!
//! Input: queries `[query rows, heads · size]`, keys and values side by side `[tokens, 2 · key heads · size]`.
//! Output: `[query rows, heads · size]`. Memory is linear in the tokens: scores exist for one block of queries and
//! [`KEYS_PER_STEP`] keys at a time. The queries of all heads that share a key head are rows of the same tile.

use super::{Heads, QuerySpan};
use crate::kernels::{
    elementwise::{self, RunningSoftmax},
    matmul::Compute,
    pack,
    tile::{self, CHUNK, COLUMNS},
};
use std::{cell::RefCell, ops::Range};
use text_embeddings_backend_core::Batch;

/// Keys whose scores are computed before the softmax takes them in: a multiple of a panel.
const KEYS_PER_STEP: usize = 4 * COLUMNS;
/// The most query tokens of one work item; their tiles share the keys in the cache.
const QUERIES_PER_ITEM: usize = 64;

/// Keys and values of a batch, packed per segment and key head.
#[derive(Default)]
pub(crate) struct PackedKeys {
    keys: Vec<f32>,
    values: Vec<f32>,
    /// Where each segment starts in `keys` and in `values`.
    starts: Vec<(usize, usize)>,
}

/// Sizes of what one segment's keys take for one head.
#[derive(Clone, Copy)]
struct PackedSize {
    tokens: usize,
    depth: usize,
    value_panels: usize,
}

impl PackedSize {
    fn of(tokens: usize, heads: Heads) -> Self {
        Self {
            tokens: tokens.next_multiple_of(COLUMNS),
            depth: pack::padded(heads.size),
            value_panels: heads.size.div_ceil(COLUMNS),
        }
    }

    fn keys(self) -> usize {
        self.tokens * self.depth
    }

    fn values(self) -> usize {
        self.value_panels * COLUMNS * self.tokens
    }
}

impl PackedKeys {
    /// Packs `keys_values`, `[tokens, 2 · key heads · size]`, in place of what was here before.
    pub(crate) fn pack(&mut self, compute: &Compute, keys_values: &[f32], heads: Heads, batch: &Batch) {
        let (mut keys_len, mut values_len) = (0, 0);
        self.starts.clear();
        for segment in batch.segments() {
            self.starts.push((keys_len, values_len));
            let size = PackedSize::of(segment.rows.len(), heads);
            keys_len += heads.keys * size.keys();
            values_len += heads.keys * size.values();
        }
        self.keys.resize(keys_len, 0.0);
        self.values.resize(values_len, 0.0);
        let (mut keys, mut values) = (self.keys.as_mut_slice(), self.values.as_mut_slice());
        let mut items = Vec::new();
        for segment in batch.segments() {
            let size = PackedSize::of(segment.rows.len(), heads);
            for head in 0..heads.keys {
                let (head_keys, head_values);
                (head_keys, keys) = keys.split_at_mut(size.keys());
                (head_values, values) = values.split_at_mut(size.values());
                items.push((segment.rows.clone(), head, head_keys, head_values));
            }
        }
        compute.threads.for_each(items.into_iter(), |(rows, head, keys, values)| {
            pack_head(compute, keys_values, heads, (rows, head), (keys, values));
        });
    }

    /// One head's packed keys and values of a segment.
    fn head(&self, segment: usize, head: usize, size: PackedSize) -> (&[f32], &[f32]) {
        let (keys, values) = self.starts[segment];
        (
            &self.keys[keys + head * size.keys()..][..size.keys()],
            &self.values[values + head * size.values()..][..size.values()],
        )
    }
}

/// Keys become panels `[panel][depth][COLUMNS]`, values `[panel of the head][token][COLUMNS]`, both padded with zeros.
fn pack_head(
    compute: &Compute,
    keys_values: &[f32],
    heads: Heads,
    (rows, head): (Range<usize>, usize),
    (keys, values): (&mut [f32], &mut [f32]),
) {
    let stride = 2 * heads.keys * heads.size;
    let size = PackedSize::of(rows.len(), heads);
    let row = |token: usize, from: usize| &keys_values[(rows.start + token) * stride + from..][..heads.size];
    let mut panel_rows = vec![0.0; COLUMNS * heads.size];
    for (panel, out) in keys.chunks_exact_mut(size.depth * COLUMNS).enumerate() {
        let tokens = panel * COLUMNS..rows.len().min((panel + 1) * COLUMNS);
        let used = &mut panel_rows[..tokens.len() * heads.size];
        for (token, out) in tokens.zip(used.chunks_exact_mut(heads.size)) {
            out.copy_from_slice(row(token, head * heads.size));
        }
        pack::panel_of_values(compute.set, used, heads.size, out);
    }
    for (panel, out) in values.chunks_exact_mut(size.tokens * COLUMNS).enumerate() {
        let columns = panel * COLUMNS..heads.size.min((panel + 1) * COLUMNS);
        let (used, padding) = out.split_at_mut(rows.len() * COLUMNS);
        for (token, out) in used.chunks_exact_mut(COLUMNS).enumerate() {
            out[..columns.len()]
                .copy_from_slice(&row(token, (heads.keys + head) * heads.size)[columns.clone()]);
            out[columns.len()..].fill(0.0);
        }
        padding.fill(0.0);
    }
}

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
    /// The queries of one key head, as rows `[query, group]`, scaled, then packed as blocks.
    rows: Vec<f32>,
    blocks: Vec<f32>,
    scores: Vec<f32>,
    weights: Vec<f32>,
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
        let tiles = Tiles::of(compute, item.queries.len() / width * group, heads.size);
        tiles.start(workspace);
        for &segment in &path {
            let tokens = batch.segments()[segment].rows.len();
            let size = PackedSize::of(tokens, heads);
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
    rows: usize,
    block_rows: usize,
    depth: usize,
    /// A head's size padded to whole panels: the width of `Workspace::sums`.
    width: usize,
    size: usize,
}

impl<'a> Tiles<'a> {
    fn of(compute: &'a Compute, rows: usize, size: usize) -> Self {
        let block_rows = rows.div_ceil(rows.div_ceil(tile::rows(compute.set)));
        let width = size.next_multiple_of(COLUMNS);
        Self { compute, rows, block_rows, depth: pack::padded(size), width, size }
    }

    /// The rows of each block.
    fn blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (rows, block_rows) = (self.rows, self.block_rows);
        (0..rows).step_by(block_rows).map(move |first| first..rows.min(first + block_rows))
    }

    fn start(&self, workspace: &mut Workspace) {
        workspace.blocks.resize(self.rows * self.depth, 0.0);
        for rows in self.blocks() {
            let source = &workspace.rows[rows.start * self.size..rows.end * self.size];
            pack::block(
                source,
                self.size,
                &mut workspace.blocks[rows.start * self.depth..rows.end * self.depth],
            );
        }
        workspace.softmax.clear();
        workspace.softmax.resize(self.rows, RunningSoftmax::default());
        workspace.sums.clear();
        workspace.sums.resize(self.rows * self.width, 0.0);
        workspace.scores.resize(self.block_rows * KEYS_PER_STEP, 0.0);
        workspace.weights.resize(self.block_rows * KEYS_PER_STEP, 0.0);
    }

    /// Takes a segment's keys in. `own` is given for the queries' own segment: the first query's place in it and the
    /// rows per query; a query sees itself and what is before it.
    fn attend_segment(
        &self,
        workspace: &mut Workspace,
        (keys, values): (&[f32], &[f32]),
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
                if visible(rows.end - 1) > 0 {
                    let keys = &keys[first_key * self.depth..][..step * self.depth];
                    self.score(workspace, rows.clone(), keys, step);
                    self.take_in(workspace, rows.clone(), step, visible);
                    self.add_values(workspace, rows, (values, size.tokens), first_key..first_key + step);
                }
            }
        }
    }

    /// Scores of a block's rows against a step's keys, `[row][step]`.
    fn score(&self, workspace: &mut Workspace, rows: Range<usize>, keys: &[f32], step: usize) {
        let block = &workspace.blocks[rows.start * self.depth..rows.end * self.depth];
        for (panel, keys) in keys.chunks_exact(self.depth * COLUMNS).enumerate() {
            let scores = &mut workspace.scores[panel * COLUMNS..];
            tile::multiply(self.compute.set, rows.len(), (block, keys), scores, (step, false));
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
        pack::block(scores, step, &mut workspace.weights[..rows.len() * step]);
    }

    fn add_values(
        &self,
        workspace: &mut Workspace,
        rows: Range<usize>,
        (values, tokens): (&[f32], usize),
        step: Range<usize>,
    ) {
        let weights = &workspace.weights[..rows.len() * step.len()];
        let sums = &mut workspace.sums[rows.start * self.width..rows.end * self.width];
        for (panel, values) in values.chunks_exact(tokens * COLUMNS).enumerate() {
            let values = &values[step.start * COLUMNS..step.end * COLUMNS];
            let sums = &mut sums[panel * COLUMNS..];
            tile::multiply(self.compute.set, rows.len(), (weights, values), sums, (self.width, true));
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
const _: () = assert!(KEYS_PER_STEP.is_multiple_of(CHUNK));
