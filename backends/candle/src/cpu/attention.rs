//! Attention on the CPU: packed keys and values, tiles of scores, a softmax that runs along the keys.
//!
//! Input: queries `[query rows, heads · size]`, keys and values side by side `[tokens, 2 · key heads · size]`.
//! Output: an operand `[query rows, heads · size]`. Memory is linear in the tokens: scores exist for one block of queries and
//! [`KEYS_PER_STEP`] keys at a time. The queries of all heads that share a key head are rows of the same tile. What must hold: a
//! text's result has the same bits in every batch. So steps and panels begin at multiples of their sizes, counted in the text's
//! positions, and a step's keys are taken in one after the other, whatever segments they stand in.

use super::{
    disentangled::DisentangledScores,
    packed_keys::{PackedKeys, PackedSize, panels},
    workspace::{WORKSPACE, Workspace},
};
use crate::{
    attention::{Heads, QuerySpan, Scoring},
    kernels::{
        elementwise,
        matmul::Compute,
        operand::{Operand, OperandRows},
        pack::{self, Format, Words},
        softmax::{self, RunningSoftmax},
        tile::{self, Ahead, COLUMNS, MAX_ROWS, Start},
    },
};
use std::{f32::consts::LOG2_E, ops::Range};
use text_embeddings_backend_core::{Batch, Segment};

/// Keys whose scores are computed before the softmax takes them in: a multiple of a panel.
const KEYS_PER_STEP: usize = 16 * COLUMNS;
/// The most query tokens of one work item; their tiles share the keys in the cache.
const QUERIES_PER_ITEM: usize = 48;

/// Work of one thread: some queries of one span, and where their result goes.
struct Item<'a> {
    segment: usize,
    /// The first query's place in its segment.
    offset: usize,
    /// The first query's row among all.
    first_row: usize,
    queries: &'a [f32],
}

/// The queries of a layer.
pub(crate) struct Queries<'a, Turn> {
    /// `[rows, heads · size]`
    pub(crate) values: &'a [f32],
    /// Where they stand in the batch, in the order of their rows.
    pub(crate) spans: &'a [QuerySpan],
    /// Makes a row of heads ready, in place: its index, its values.
    pub(crate) turn: Turn,
}

/// What the queries attend to, and how.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    /// Keys and values.
    pub(crate) packed: &'a PackedKeys,
    /// Their batch.
    pub(crate) batch: &'a Batch,
    /// The layer's heads.
    pub(crate) heads: Heads,
    /// How scores become weights.
    pub(crate) scoring: Scoring<'a>,
    /// Scores with positions that are added.
    pub(crate) disentangled: Option<&'a DisentangledScores<'a>>,
}

/// Attends from `queries` to `keys`. The result is an operand of the given format, in the memory of the words.
pub(crate) fn attention(
    compute: &Compute,
    queries: &Queries<'_, impl Fn(usize, &mut [f32]) + Sync>,
    keys: Keys<'_>,
    (format, words): (Format, Words),
) -> Operand {
    let Queries { values: queries, spans, turn } = queries;
    let heads = keys.heads;
    let width = heads.queries * heads.size;
    let total = queries.len() / width;
    let most = total.div_ceil(4 * compute.threads.count()).clamp(1, QUERIES_PER_ITEM);
    let mut items = Vec::new();
    for span in *spans {
        let per_item = span.rows.len().div_ceil(span.rows.len().div_ceil(most));
        for from in (0..span.rows.len()).step_by(per_item) {
            let first_row = span.rows.start + from;
            let queries = &queries[first_row * width..][..per_item.min(span.rows.len() - from) * width];
            items.push(Item { segment: span.segment, offset: span.offset + from, first_row, queries });
        }
    }
    let counts: Vec<usize> = items.iter().map(|item| item.queries.len() / width).collect();
    compute.operand_of((total, width), format, words, counts.into_iter(), |rows| {
        // The longest paths first: the last items to run are then short, and the threads end together.
        let items = items.into_iter().zip(rows).rev();
        compute.threads.for_each(items, |(item, rows)| {
            WORKSPACE.with_borrow_mut(|workspace| {
                Attend { compute, keys }.run(&item, turn, workspace, rows);
            });
        });
    })
}

/// What all items have in common.
struct Attend<'a> {
    compute: &'a Compute,
    keys: Keys<'a>,
}

impl Attend<'_> {
    fn run(
        &self,
        item: &Item<'_>,
        turn: &impl Fn(usize, &mut [f32]),
        workspace: &mut Workspace,
        mut rows: OperandRows<'_>,
    ) {
        let Keys { packed, batch, heads, .. } = self.keys;
        let width = heads.queries * heads.size;
        let queries = item.queries.len() / width;
        let position = batch.segments()[item.segment].position + item.offset;
        let first_row = item.first_row;
        let tiles = |head| Tiles::of(self.compute, self.keys, Part { queries, first_row, position, head });
        tiles(0).reserve(workspace, queries * width);
        for (query, values) in item.queries.chunks_exact(width).enumerate() {
            workspace.values.clear();
            workspace.values.extend_from_slice(values);
            tile::bring_row_near(item.queries, query + 1, width);
            turn(item.first_row + query, &mut workspace.values);
            for head in 0..heads.keys {
                tiles(head).place_query(workspace, query);
            }
        }
        let pieces = pieces(batch, item.segment);
        let last = &batch.segments()[item.segment];
        let tokens = last.position + last.rows.len();
        for head in 0..heads.keys {
            let tiles = tiles(head);
            tiles.start(workspace);
            for first in (0..tokens).step_by(KEYS_PER_STEP) {
                let step = Step { first, tokens: KEYS_PER_STEP.min(tokens - first), packed, pieces: &pieces };
                tiles.attend(workspace, step, last);
            }
            tiles.finish(workspace);
        }
        for (index, values) in workspace.out.chunks_exact(width).enumerate() {
            rows.write(index, values);
        }
    }
}

/// Panels of a text that stand next to each other.
struct Piece {
    /// The segment that has them.
    segment: usize,
    /// All of that segment's panels, counted in the text.
    all: Range<usize>,
    /// Those of this piece: all but what the next segment's first panel holds as well.
    panels: Range<usize>,
}

/// The panels of a text that ends with a segment.
fn pieces(batch: &Batch, segment: usize) -> Vec<Piece> {
    let path = batch.path(segment);
    let all: Vec<Range<usize>> = path.iter().map(|&segment| panels(&batch.segments()[segment])).collect();
    let end = |index: usize| all.get(index + 1).map_or(all[index].end, |next| next.start);
    let piece = |(index, &segment): (usize, &usize)| {
        let panels = all[index].start..end(index);
        Piece { segment, all: all[index].clone(), panels }
    };
    path.iter().enumerate().map(piece).filter(|piece| !piece.panels.is_empty()).collect()
}

/// Keys of a text that are taken in together.
#[derive(Clone, Copy)]
struct Step<'a> {
    /// The first one's position.
    first: usize,
    /// How many there are.
    tokens: usize,
    packed: &'a PackedKeys,
    /// All of the text.
    pieces: &'a [Piece],
}

impl<'a> Step<'a> {
    /// Its panels, counted in the text.
    fn panels(self) -> Range<usize> {
        self.first / COLUMNS..(self.first + self.tokens).div_ceil(COLUMNS)
    }

    /// For each piece that holds some of its panels: the piece, and which of its segment's panels they are.
    fn pieces(self) -> impl Iterator<Item = (&'a Piece, Range<usize>)> {
        let panels = self.panels();
        self.pieces.iter().filter_map(move |piece| {
            let from = panels.start.max(piece.panels.start);
            let to = panels.end.min(piece.panels.end);
            (from < to).then(|| (piece, from - piece.all.start..to - piece.all.start))
        })
    }
}

/// Queries next to each other, and a key head.
#[derive(Clone, Copy)]
struct Part {
    queries: usize,
    /// The first query's row among all.
    first_row: usize,
    /// Of the first query, in its text.
    position: usize,
    /// The key head.
    head: usize,
}

/// The queries of one item and key head as rows `[query, group]` of tiles.
struct Tiles<'a> {
    compute: &'a Compute,
    format: Format,
    heads: Heads,
    scoring: Scoring<'a>,
    disentangled: Option<&'a DisentangledScores<'a>>,
    /// The key head.
    head: usize,
    /// The first query's row among all.
    first_row: usize,
    /// The first query's position in its text.
    position: usize,
    rows: usize,
    block_rows: usize,
    /// Words of a query.
    query_words: usize,
    /// Panels of a head's values.
    panels: usize,
}

impl<'a> Tiles<'a> {
    fn of(compute: &'a Compute, keys: Keys<'a>, part: Part) -> Self {
        let Part { queries, first_row, position, head } = part;
        let Keys { packed: &PackedKeys { format, .. }, heads, scoring, disentangled, .. } = keys;
        let rows = queries * (heads.queries / heads.keys);
        let block_rows = rows.div_ceil(rows.div_ceil(tile::rows(compute.set, format)));
        let (query_words, panels) = (format.words(heads.size), heads.size.div_ceil(COLUMNS));
        Self {
            compute,
            format,
            heads,
            scoring,
            disentangled,
            head,
            first_row,
            position,
            rows,
            block_rows,
            query_words,
            panels,
        }
    }

    /// Query heads that share the key head.
    fn group(&self) -> usize {
        self.heads.queries / self.heads.keys
    }

    /// The rows of each block.
    fn blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (rows, block_rows) = (self.rows, self.block_rows);
        (0..rows).step_by(block_rows).map(move |first| first..rows.min(first + block_rows))
    }

    /// Where a row's values stand in a query's heads.
    fn columns(&self, row: usize) -> Range<usize> {
        let start = (self.head * self.group() + row % self.group()) * self.heads.size;
        start..start + self.heads.size
    }

    /// Where the words of some rows stand among the packed queries of all heads.
    fn words(&self, rows: &Range<usize>) -> Range<usize> {
        let before = self.head * self.rows;
        (before + rows.start) * self.query_words..(before + rows.end) * self.query_words
    }

    fn multiply(&self, a: &[u32], b: &[u32], rows: usize, start: Start<'_>, sums: &mut [[f32; COLUMNS]]) {
        let formats = (self.format, self.format);
        tile::multiply(self.compute.set, rows, formats, (a, b), start, Ahead::NOTHING, sums);
    }

    /// A head's packed keys and values of a piece's segment.
    fn packed<'k>(&self, step: Step<'k>, piece: &Piece) -> (PackedSize, (&'k [u32], &'k [u32])) {
        let size = PackedSize::of(self.format, piece.all.len(), self.heads);
        (size, step.packed.head(piece.segment, self.head, size))
    }

    /// Makes room for the item's queries and result, for all heads.
    fn reserve(&self, workspace: &mut Workspace, values: usize) {
        workspace.queries.resize(self.heads.keys * self.rows * self.query_words);
        workspace.words.resize(self.query_words, 0);
        workspace.out.resize(values, 0.0);
        workspace.totals.reserve(self.rows * self.panels);
        workspace.scores.reserve(self.block_rows * KEYS_PER_STEP / COLUMNS);
        workspace.weights.resize(self.block_rows * self.format.words(KEYS_PER_STEP));
        workspace.tile.reserve(self.block_rows);
    }

    /// Packs the head's part of a query, whose heads are `Workspace::values`.
    fn place_query(&self, workspace: &mut Workspace, query: usize) {
        for row in query * self.group()..(query + 1) * self.group() {
            let first = row - row % self.block_rows;
            let block = first..self.rows.min(first + self.block_rows);
            let values = &workspace.values[self.columns(row)];
            pack::row(self.compute.set, self.format, values, 0, &mut workspace.words, &mut 1.0);
            let place = (row - first, block.len());
            pack::place(&workspace.words, &mut workspace.queries.as_mut_slice()[self.words(&block)], place);
        }
    }

    /// Nothing is seen yet.
    fn start(&self, workspace: &mut Workspace) {
        for (state, value) in [
            (&mut workspace.max, f32::NEG_INFINITY),
            (&mut workspace.sum, 0.0),
            (&mut workspace.correction, 0.0),
        ] {
            state.clear();
            state.resize(self.rows, value);
        }
        workspace.totals.rows()[..self.rows * self.panels].fill([0.0; COLUMNS]);
    }

    /// Takes in the keys of a step of a text that ends with the segment `last`.
    fn attend(&self, workspace: &mut Workspace, step: Step<'_>, last: &Segment) {
        let visible = |row: usize| {
            self.scoring.mask.visible(self.position + row / self.group(), step.first, step.tokens)
        };
        for rows in self.blocks() {
            // Windows move to the right with the rows: beyond the last row's end, and before the first row's start,
            // no row sees anything.
            let (from, to) = (visible(rows.start).start, visible(rows.end - 1).end);
            if from < to {
                let seen = from - from % COLUMNS..to.next_multiple_of(COLUMNS);
                let shifted = |row| {
                    let Range { start, end } = visible(row);
                    start.max(seen.start) - seen.start..end.max(seen.start) - seen.start
                };
                workspace.visible.clear();
                workspace.visible.extend(rows.clone().map(shifted));
                let first = step.first + seen.start;
                let step = Step { first, tokens: step.tokens.min(seen.end) - seen.start, ..step };
                self.weigh(workspace, rows.clone(), step, last);
                self.add_values(workspace, rows, step);
            }
        }
    }

    /// The weights of a step's keys for a block's rows, packed as a block.
    fn weigh(&self, workspace: &mut Workspace, rows: Range<usize>, step: Step<'_>, last: &Segment) {
        let set = self.compute.set;
        let block = &workspace.queries.as_slice()[self.words(&rows)];
        let panels = step.panels().len();
        let count = panels * COLUMNS;
        let scores = &mut workspace.scores.rows()[..panels * rows.len()];
        let mut of_panels = scores.chunks_exact_mut(rows.len());
        for (piece, panels) in step.pieces() {
            let (size, (keys, _)) = self.packed(step, piece);
            let keys = &keys[panels.start * COLUMNS * size.key..panels.end * COLUMNS * size.key];
            for (keys, scores) in keys.chunks_exact(COLUMNS * size.key).zip(&mut of_panels) {
                self.multiply(block, keys, rows.len(), Start::Zeros, scores);
            }
        }
        if let Some(cap) = self.scoring.soft_cap {
            elementwise::soft_cap(set, scores.as_flattened_mut(), cap * self.scoring.divisor);
        }
        if let Some(bias) = self.scoring.bias {
            let mut biases = [&[][..]; MAX_ROWS];
            for (biases, row) in biases.iter_mut().zip(rows.clone()) {
                let head = self.head * self.group() + row % self.group();
                *biases = bias.of(head, self.position + row / self.group(), step.first, count);
            }
            softmax::add_biases(set, scores, &biases[..rows.len()]);
        }
        if let Some(disentangled) = self.disentangled {
            // Models with such scores have texts of one segment.
            let first = (last.rows.start + step.first - last.position, step.first);
            workspace.biases.clear();
            workspace.biases.resize(rows.len() * count, 0.0);
            for (biases, row) in workspace.biases.chunks_exact_mut(count).zip(rows.clone()) {
                let query = (self.first_row + row, self.position + row);
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
        };
        softmax::step(set, scores, &workspace.visible, LOG2_E / self.scoring.divisor, &mut running);
        let words = &mut workspace.weights.as_mut_slice()[..scores.len() * self.format.words(COLUMNS)];
        pack::block(set, self.format, (scores, rows.len()), words);
    }

    /// Adds a step's values by their weights to what was summed before, which is scaled to the new maximum.
    fn add_values(&self, workspace: &mut Workspace, rows: Range<usize>, step: Step<'_>) {
        // Of a panel's keys: words of a column of values, and of the weights of a block.
        let words = COLUMNS / self.format.per_word();
        let block_words = rows.len() * self.format.words(COLUMNS);
        let totals = &mut workspace.totals.rows()[rows.start * self.panels..rows.end * self.panels];
        let (tile, factors) = (workspace.tile.rows(), &workspace.correction[rows.clone()]);
        for (panel, totals) in totals.chunks_exact_mut(rows.len()).enumerate() {
            let mut weights = workspace.weights.as_slice();
            let mut start = Start::Zeros;
            for (piece, keys) in step.pieces() {
                let (size, (_, values)) = self.packed(step, piece);
                let values = &values[panel * size.column * COLUMNS..]
                    [keys.start * words * COLUMNS..keys.end * words * COLUMNS];
                let (of_piece, rest) = weights.split_at(keys.len() * block_words);
                self.multiply(of_piece, values, rows.len(), start, tile);
                (weights, start) = (rest, Start::Sums);
            }
            softmax::scale_and_add(self.compute.set, tile, factors, totals);
        }
    }

    /// The weighted means of the values, in their places in `Workspace::out`.
    fn finish(&self, workspace: &mut Workspace) {
        let width = self.heads.queries * self.heads.size;
        for rows in self.blocks() {
            let totals = &workspace.totals.rows()[rows.start * self.panels..rows.end * self.panels];
            let count = rows.len();
            for (index, row) in rows.enumerate() {
                let out = &mut workspace.out[row / self.group() * width..][self.columns(row)];
                softmax::mean(self.compute.set, &totals[index..], count, 1.0 / workspace.sum[row], out);
            }
        }
    }
}
