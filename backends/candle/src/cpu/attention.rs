//! Attention on the CPU: packed keys and values, tiles of scores, a softmax that runs along the keys.
//!
//! Input: queries `[query rows, heads · size]`, and keys and values next to each other `[tokens, 2 · key
//! heads · size]`. Output: an operand `[query rows, heads · size]`. Memory is linear in the tokens: scores
//! exist for one block of queries and `KEYS_PER_STEP` keys at a time. The queries of all heads that share a
//! key head are rows of the same tile. What must hold: a text's result has the same bits in every batch. So
//! steps and panels begin at multiples of their sizes, counted in the text's positions, and a step's keys are
//! taken in order, whatever segments they belong to.

mod keys;
mod tiles;

pub(crate) use keys::Keys;

use super::workspace::{WORKSPACE, Workspace};
use crate::{
    attention::QuerySpan,
    kernels::{
        activation, ahead,
        compute::Compute,
        operand::{Operand, OperandRows},
        pack::{OperandFormat, Words},
    },
};
use keys::{KEYS_PER_STEP, KeyStep, pieces};
use tiles::{QueryBlock, Tiles};

/// The most query tokens of a work item. Their tiles share the keys in the cache.
const QUERIES_PER_ITEM: usize = 48;
/// With fewer rows of queries in a work item, each key head takes most of its time to begin and to end.
const ROWS_PER_ITEM: usize = 7;

/// A work item of one thread: some queries of one span.
struct WorkItem<'a> {
    segment: usize,
    /// The first query's index in its segment.
    offset: usize,
    /// The first query's row among all queries.
    first_row: usize,
    queries: &'a [f32],
}

/// The queries of a layer.
pub(crate) struct Queries<'a, Turn> {
    /// `[rows, heads · size]`
    pub(crate) values: &'a [f32],
    /// The positions of the queries in the batch, in the order of their rows.
    pub(crate) spans: &'a [QuerySpan],
    /// Prepares one row of heads in place. Arguments: the row's index and its values.
    pub(crate) turn: Turn,
    /// `[rows, heads · size]`: the results are multiplied by its sigmoid.
    pub(crate) gate: Option<&'a [f32]>,
}

/// Attends from `queries` to `keys`. The result is an operand in the given format, in the memory of the given
/// words.
pub(crate) fn attention(
    compute: &Compute,
    queries: &Queries<'_, impl Fn(usize, &mut [f32]) + Sync>,
    keys: Keys<'_>,
    format: OperandFormat,
    words: Words,
) -> Operand {
    let Queries { values: queries, spans, turn, gate } = queries;
    let heads = keys.heads;
    let width = heads.queries * heads.size;
    let total = queries.len() / width;
    let threads = compute.threads.count();
    let min_queries = ROWS_PER_ITEM.div_ceil(heads.queries / heads.keys).min(total.div_ceil(threads));
    let max_queries = total.div_ceil(4 * threads).max(min_queries).clamp(1, QUERIES_PER_ITEM);
    let mut items = Vec::new();
    for span in *spans {
        let per_item = span.rows.len().div_ceil(span.rows.len().div_ceil(max_queries));
        for from in (0..span.rows.len()).step_by(per_item) {
            let first_row = span.rows.start + from;
            let queries = &queries[first_row * width..][..per_item.min(span.rows.len() - from) * width];
            items.push(WorkItem { segment: span.segment, offset: span.offset + from, first_row, queries });
        }
    }
    let counts: Vec<usize> = items.iter().map(|item| item.queries.len() / width).collect();
    compute.operand_of(&counts, width, format, words, |rows| {
        // The longest paths come first, so that the last items are short and the threads end together.
        let items = items.into_iter().zip(rows).rev();
        compute.threads.for_each(items, |(item, rows)| {
            WORKSPACE.with_borrow_mut(|workspace| {
                Attend { compute, keys, gate: *gate }.run(&item, turn, workspace, rows);
            });
        });
    })
}

/// The data that all items share.
struct Attend<'a> {
    compute: &'a Compute,
    keys: Keys<'a>,
    gate: Option<&'a [f32]>,
}

impl Attend<'_> {
    fn run(
        &self,
        item: &WorkItem<'_>,
        turn: &impl Fn(usize, &mut [f32]),
        workspace: &mut Workspace,
        mut rows: OperandRows<'_>,
    ) {
        let Keys { packed, batch, heads, .. } = self.keys;
        let width = heads.queries * heads.size;
        let queries = item.queries.len() / width;
        let position = batch.segments()[item.segment].position + item.offset;
        let first_row = item.first_row;
        let first_head = Tiles::new(self.compute, self.keys, QueryBlock { queries, first_row, position });
        first_head.reserve(workspace, queries * width);
        for (query, values) in item.queries.chunks_exact(width).enumerate() {
            workspace.values.clear();
            workspace.values.extend_from_slice(values);
            ahead::bring_row_near(item.queries, query + 1, width);
            turn(item.first_row + query, &mut workspace.values);
            first_head.place_query(workspace, query);
        }
        let pieces = pieces(batch, item.segment);
        let last = &batch.segments()[item.segment];
        let tokens = batch.attended_tokens(item.segment);
        for head in 0..heads.keys {
            let tiles = first_head.of_key_head(head);
            tiles.start(workspace);
            for first in (0..tokens).step_by(KEYS_PER_STEP) {
                let step =
                    KeyStep { first, tokens: KEYS_PER_STEP.min(tokens - first), packed, pieces: &pieces };
                tiles.attend(workspace, step, last);
            }
            tiles.finish(workspace);
        }
        if let Some(gate) = self.gate {
            let gate = &gate[first_row * width..][..workspace.out.len()];
            activation::multiply_by_sigmoid(self.compute.set, &mut workspace.out, gate);
        }
        for (index, values) in workspace.out.chunks_exact(width).enumerate() {
            rows.write(index, values);
        }
    }
}
