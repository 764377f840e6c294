//! Products of packed activations with packed weights: `out = x · Wᵀ`, `out += x · Wᵀ`, and the products of
//! an MLP with its activation. A product includes the weight's bias.
//!
//! Input: an [`Operand`], whose rows are packed once for all products that they go into, and a [`Matrix`],
//! packed once when the model is loaded. Output: `f32` rows, or the next product's operand. What must hold: a
//! row's result does not depend on the other rows.

use super::{
    ahead::{self, Ahead},
    compute::Compute,
    epilogue::Epilogue,
    instruction_set::InstructionSet,
    layout::{COLUMNS, WORDS},
    matrix::Matrix,
    operand::{CACHED_BYTES, Operand, OperandBlocks, OperandRows},
    pack::{self, OperandFormat, Words},
    places::{SharedPointer, SpacedRows},
    results::{self, Placing, SumScaling},
    tile::{self, Start, Sums, TileKernel, TileOperands},
    tile_order::{PanelSlice, TileOrder},
};
use std::{
    cell::Cell,
    sync::{Mutex, PoisonError},
};

thread_local! {
    /// The memory in which a panel of nibbles is expanded to bytes.
    static BYTES: Cell<Words> = Cell::default();
    /// The memory of sums.
    static SUMS: Cell<Sums> = Cell::default();
}

/// Memory for the results of a product.
struct Results<'a> {
    /// `[rows, columns]`
    values: &'a mut [f32],
    /// The number of results for a panel's columns. The last panel may have fewer.
    width: usize,
    /// Whether to bring the places of a tile's sums near while it is computed.
    prefetches: bool,
}

/// An operand that [`Compute::next_integers`] writes.
pub(crate) struct NextIntegers<'a> {
    pub(crate) format: OperandFormat,
    /// Memory for the operand.
    pub(crate) words: Words,
    /// Memory for rows before they become integers: as many blocks at a time as it holds, at least one.
    pub(crate) values: &'a mut [f32],
}

/// Where the sums of tiles go, for prefetching.
#[derive(Clone, Copy)]
struct SumPlaces {
    /// `[rows, columns]`
    first: *const f32,
    columns: usize,
    /// The number of columns of a panel's sums.
    width: usize,
}

// SAFETY: the memory is not accessed through the pointer.
unsafe impl Sync for SumPlaces {}

/// The complete sums of a tile.
struct Tile<'a> {
    /// The index of its first row among the rows that are multiplied.
    first_row: usize,
    panel: usize,
    sums: &'a mut [[f32; COLUMNS]],
    /// For sums of integers.
    scaling: Option<SumScaling<'a>>,
}

impl Tile<'_> {
    /// The values of the sums.
    fn scaled_values(&mut self, set: InstructionSet) -> &mut [[f32; COLUMNS]] {
        if let Some(scaling) = self.scaling.take() {
            results::scale_sums(set, self.sums, &scaling);
        }
        self.sums
    }

    /// Brings the values to their places.
    fn place_rows(&self, set: InstructionSet, out: &mut SpacedRows<'_>, placing: Placing) {
        results::place_rows(set, self.sums, self.scaling.as_ref(), out, placing);
    }
}

impl Compute {
    /// Packs the rows of `x`, `depth` values each. `prepare` gets a row and a buffer of the same size, and
    /// returns the values to pack in either of them.
    pub(crate) fn operand(
        &self,
        x: &[f32],
        depth: usize,
        format: OperandFormat,
        words: Words,
        prepare: impl for<'a> Fn(&'a [f32], &'a mut [f32]) -> &'a [f32] + Sync,
    ) -> Operand {
        let items = x.chunks(self.rows_per_item(x.len() / depth) * depth);
        let counts: Vec<usize> = items.clone().map(|x| x.len() / depth).collect();
        self.operand_of(&counts, depth, format, words, |parts| {
            self.threads.for_each(items.zip(parts), |(x, mut rows)| {
                let mut buffer = vec![0.0; depth];
                for (index, row) in x.chunks_exact(depth).enumerate() {
                    ahead::bring_row_near(x, index + 1, depth);
                    rows.write(index, prepare(row, &mut buffer));
                }
            });
        })
    }

    /// Packs rows of `depth` values. `write` gets a part for each of `counts`, with as many rows, and writes
    /// all of them.
    pub(crate) fn operand_of(
        &self,
        counts: &[usize],
        depth: usize,
        format: OperandFormat,
        words: Words,
        write: impl FnOnce(Vec<OperandRows<'_>>),
    ) -> Operand {
        let mut operand = Operand::new(self.set, format, counts.iter().sum(), depth, words);
        write(operand.split(self.set, counts));
        operand
    }

    /// `out = x · Wᵀ`.
    pub(crate) fn product(&self, x: &Operand, weight: &Matrix, out: &mut [f32]) {
        let stream = size_of_val(out) > CACHED_BYTES;
        let placing = if stream { Placing::Stream } else { Placing::Replace };
        let results = Results { values: out, width: COLUMNS, prefetches: !stream };
        self.write_rows(&x.whole(), weight, results, |tile, out| tile.place_rows(self.set, out, placing));
    }

    /// `out += x · Wᵀ`.
    pub(crate) fn add_product(&self, x: &Operand, weight: &Matrix, out: &mut [f32]) {
        let results = Results { values: out, width: COLUMNS, prefetches: true };
        self.write_rows(&x.whole(), weight, results, |tile, out| {
            tile.place_rows(self.set, out, Placing::Add);
        });
    }

    /// Calls `write` with each tile and the places of its rows among the results.
    fn write_rows(
        &self,
        x: &OperandBlocks<'_>,
        weight: &Matrix,
        Results { values: out, width, prefetches }: Results<'_>,
        write: impl Fn(&mut Tile<'_>, &mut SpacedRows<'_>) + Sync,
    ) {
        let columns = weight.outputs() * width / COLUMNS;
        // Every panel must begin within the rows. That is not so if a step is used with a weight that was
        // packed in another order.
        assert!(weight.panels == columns.div_ceil(width) && x.rows() * columns == out.len());
        let places = prefetches.then_some(SumPlaces { first: out.as_ptr(), columns, width });
        let out = SharedPointer(out.as_mut_ptr());
        self.tiles(x, weight, places, |tile| {
            let first = tile.panel * width;
            let start = tile.first_row * columns + first;
            // SAFETY: the rows and the panel's columns are in `out`, whose size was checked: rows are below
            // `x.rows()`, and `first` and the width are together at most `columns`, because every panel
            // begins within them (asserted). Each pair of row and panel belongs to one item, so only this
            // tile writes there.
            let mut places = unsafe { out.rows(start, columns, width.min(columns - first), tile.sums.len()) };
            write(tile, &mut places);
        });
    }

    /// Packs `epilogue` of `x · Wᵀ` as an operand in `format`. The format must not be one of integers,
    /// because their scales need whole rows.
    pub(crate) fn next_operand(
        &self,
        x: &Operand,
        weight: &Matrix,
        epilogue: Epilogue,
        format: OperandFormat,
        words: Words,
    ) -> Operand {
        let (width, inner) = (epilogue.width(), epilogue.outputs(weight));
        assert!(!format.is_scaled() && weight.panels == inner.div_ceil(width));
        let mut out = Operand::new(self.set, format, x.rows, inner, words);
        let Operand { format, rows, block_rows, row_words, .. } = out;
        let per_word = format.per_word();
        let words = out.words.as_mut_slice();
        // The words of each row from its last value on.
        let first_chunk = inner / per_word / WORDS;
        for (index, block) in words.chunks_mut(block_rows * row_words).enumerate() {
            let rows = block_rows.min(rows - index * block_rows);
            block[first_chunk * rows * WORDS..].fill(0);
        }
        let words = SharedPointer(words.as_mut_ptr());
        self.tiles(&x.whole(), weight, None, |tile| {
            let (first_row, panel) = (tile.first_row, tile.panel);
            let first = panel * width / per_word;
            let values = tile.scaled_values(self.set);
            epilogue.run(self.set, values, format);
            // The last panel may be wider than the rest of the row. The values beyond the row must stay zero.
            let columns = width.min(inner - panel * width);
            for (row, activated) in values.iter_mut().enumerate() {
                if columns < width {
                    activated[columns..].fill(0.0);
                }
                let mut packed = [0; COLUMNS];
                let packed = &mut packed[..width / per_word];
                pack::row(self.set, format, &activated[..width], 0, packed, &mut 0.0);
                let row = first_row + row;
                // The blocks of `x` may have another height.
                let first_row = row - row % block_rows;
                let in_block = block_rows.min(rows - first_row);
                for (part, packed) in packed.chunks(WORDS).enumerate() {
                    let (chunk, word) = ((first + part * WORDS) / WORDS, (first + part * WORDS) % WORDS);
                    let used = packed.len().min(row_words.saturating_sub(first + part * WORDS));
                    let start = first_row * row_words + (chunk * in_block + row - first_row) * WORDS + word;
                    // SAFETY: the words are in the row's line, and each tile writes a part of its own: a
                    // panel begins below `inner` (asserted), so that all of its words are below `row_words`,
                    // which pads `inner` to 32 values; a part that begins in a line ends in it, because
                    // widths are 16 or 32 values.
                    let line = unsafe { words.part(start, used) };
                    match (line.as_chunks_mut::<WORDS>().0, packed.as_chunks::<WORDS>().0) {
                        // The compiler knows the size of this copy.
                        ([line], [packed]) => *line = *packed,
                        _ => line.copy_from_slice(&packed[..used]),
                    }
                }
            }
        });
        out
    }

    /// Like `next_operand`, for a format of integers. `prepare` may change a row before it is packed.
    pub(crate) fn next_integers(
        &self,
        x: &Operand,
        weight: &Matrix,
        epilogue: Epilogue,
        NextIntegers { format, words, values }: NextIntegers<'_>,
        prepare: impl Fn(&mut [f32]) + Sync,
    ) -> Operand {
        let inner = epilogue.outputs(weight);
        let blocks = x.block_count();
        let blocks_per_step = (values.len() / (x.block_rows * inner)).max(1);
        let steps: Vec<OperandBlocks<'_>> = (0..blocks)
            .step_by(blocks_per_step)
            .map(|first| x.part(first..blocks.min(first + blocks_per_step)))
            .collect();
        let counts: Vec<usize> = steps.iter().flat_map(|step| self.rows_of_items(step.rows())).collect();
        self.operand_of(&counts, inner, format, words, |parts| {
            let mut parts = parts.into_iter();
            for step in steps {
                let values = &mut values[..step.rows() * inner];
                let per_item = self.rows_per_item(step.rows()) * inner;
                let results = Results { values: &mut *values, width: epilogue.width(), prefetches: true };
                self.write_rows(&step, weight, results, |tile, out| {
                    epilogue.run(self.set, tile.scaled_values(self.set), format);
                    tile.place_rows(self.set, out, Placing::Replace);
                });
                let rows = values.chunks_mut(per_item);
                self.threads.for_each(rows.zip(parts.by_ref()), |(values, mut rows)| {
                    for (index, row) in values.chunks_exact_mut(inner).enumerate() {
                        prepare(row);
                        rows.write(index, row);
                    }
                });
            }
        })
    }

    /// The largest product of each of the weight's rows with a row of `x`.
    pub(crate) fn max_products(&self, x: &Operand, weight: &Matrix) -> Vec<f32> {
        let maxima = Mutex::new(vec![[f32::NEG_INFINITY; COLUMNS]; weight.panels]);
        self.tiles(&x.whole(), weight, None, |tile| {
            let mut best = [f32::NEG_INFINITY; COLUMNS];
            for row in tile.scaled_values(self.set).iter() {
                best.iter_mut().zip(row).for_each(|(best, product)| *best = best.max(*product));
            }
            let mut maxima = maxima.lock().unwrap_or_else(PoisonError::into_inner);
            maxima[tile.panel].iter_mut().zip(best).for_each(|(maximum, best)| *maximum = maximum.max(best));
        });
        let maxima = maxima.into_inner().unwrap_or_else(PoisonError::into_inner);
        maxima.as_flattened()[..weight.outputs()].to_vec()
    }

    /// Computes every tile of `x · Wᵀ`, and prefetches the `places` of its sums meanwhile.
    fn tiles(
        &self,
        x: &OperandBlocks<'_>,
        weight: &Matrix,
        places: Option<SumPlaces>,
        finish: impl Fn(&mut Tile<'_>) + Sync,
    ) {
        let before = x.first_row();
        let threads = self.threads.count();
        let order = TileOrder::new(x, weight, threads);
        let x = x.operand;
        assert!(x.depth == weight.depth && x.format.padded(x.depth) == weight.format.padded(x.depth));
        let kernel = TileKernel::new(self.set, x.format, weight.format);
        let shares: Vec<_> = order.shares(threads).collect();
        self.threads.for_each(shares.iter().enumerate(), |(share, items)| {
            let steps = items.clone().flat_map(|item| order.steps(item));
            // The other threads take the shares between this one and its next one.
            let later = shares.get(share + threads).and_then(|items| order.steps(items.start).next());
            let next = steps.clone().skip(1).chain(later).map(Some).chain([None]);
            let (mut sums, mut bytes) = (SUMS.take(), BYTES.take());
            sums.reserve(order.sums);
            for (step, next) in steps.zip(next) {
                let PanelSlice { panel, slice, .. } = step;
                let next = next.map(|next| order.words(weight.stored_panel(next.panel), next.slice));
                let bias = weight.biases.get(panel);
                let columns = order.words(weight.panel(self.set, panel, &mut bytes), slice);
                let lines = order.lines_of(slice);
                let ahead = Ahead::of_tiles(next.unwrap_or_default(), step.blocks.len(), lines.len());
                let places_per_chunk = x.block_rows.div_ceil(lines.len().max(1));
                for (tile, (first_row, rows, block)) in x.blocks(step.blocks.clone()).enumerate() {
                    let mut ahead = ahead.of_tile(tile, lines.len());
                    if let Some(SumPlaces { first, columns, width }) = places {
                        let place = first.wrapping_add((first_row - before) * columns + panel * width);
                        ahead = ahead.with_places(place, columns, places_per_chunk);
                    }
                    let block = &block[lines.start * rows * WORDS..lines.end * rows * WORDS];
                    let start = match slice {
                        0 => bias.map_or(Start::Zeros, Start::Columns),
                        _ => Start::Sums,
                    };
                    let at = order.place_of_sums(&step, tile, x.block_rows);
                    let sums = &mut sums.rows()[at..at + rows];
                    kernel.multiply(rows, TileOperands { a: block, b: columns }, start, ahead, sums);
                    if slice + 1 < order.slices {
                        continue;
                    }
                    let scaling = weight.scales.get(panel).map(|(of_columns, corrections)| {
                        let (of_rows, biases) = (&x.scales[first_row..], bias.unwrap_or(&tile::ZEROS));
                        SumScaling { of_rows, of_columns, corrections, biases }
                    });
                    finish(&mut Tile { first_row: first_row - before, panel, sums, scaling });
                }
            }
            SUMS.set(sums);
            BYTES.set(bytes);
            // Once for all tiles: each fence waits for memory.
            results::fence_stores(self.set);
        });
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::{
        super::{
            matrix::{ColumnOrder, WeightFormat},
            nibbles::{self, GROUP, NibbleGroup},
            pack::Stored,
            stored::StoredMatrix,
            threads::Threads,
        },
        *,
    };
    use half::bf16;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use text_embeddings_backend_core::Activation;
    use text_embeddings_checkpoint::Encoding;

    const FORMATS: [(OperandFormat, WeightFormat); 6] = [
        (OperandFormat::F32, WeightFormat::AsRows(OperandFormat::F32)),
        (OperandFormat::F32, WeightFormat::AsRows(OperandFormat::Bf16)),
        (OperandFormat::Bf16, WeightFormat::AsRows(OperandFormat::Bf16)),
        (OperandFormat::Int16, WeightFormat::AsRows(OperandFormat::Int16)),
        (OperandFormat::Int8, WeightFormat::AsRows(OperandFormat::Int8)),
        (OperandFormat::Int8, WeightFormat::Int4),
    ];

    fn random(rng: &mut StdRng, len: usize) -> Vec<f32> {
        (0..len).map(|_| rng.random_range(-1.0..1.0)).collect()
    }

    /// The values that `format` keeps of a row.
    fn kept(format: OperandFormat, row: &[f32]) -> Vec<f64> {
        let largest = row.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
        let scale = if format == OperandFormat::Int16 {
            row.iter().map(|value| value * value).sum::<f32>().sqrt() / 32_767.0
        } else {
            largest / 127.0
        };
        let keep = |&value: &f32| match format {
            OperandFormat::F32 => f64::from(value),
            OperandFormat::Bf16 | OperandFormat::WideBf16 => bf16::from_f32(value).to_f64(),
            OperandFormat::Int16 | OperandFormat::Int8 => {
                f64::from((value / scale).round_ties_even()) * f64::from(scale)
            }
        };
        row.iter().map(keep).collect()
    }

    /// The values that `format` keeps of a weight's row.
    fn kept_of_weight(format: WeightFormat, row: &[f32]) -> Vec<f64> {
        let WeightFormat::AsRows(format) = format else {
            let padded = row.len().next_multiple_of(2 * GROUP);
            let (mut nibbles, mut groups, mut scale) =
                (vec![0; padded], vec![NibbleGroup::default(); padded / GROUP], 0.0);
            nibbles::quantise(InstructionSet::Portable, row, &mut nibbles, &mut groups, &mut scale);
            let value = |(index, &nibble): (usize, &u8)| {
                f64::from(groups[index / GROUP].byte(nibble)) * f64::from(scale)
            };
            return nibbles[..row.len()].iter().enumerate().map(value).collect();
        };
        kept(format, row)
    }

    fn product(x: &[Vec<f64>], weight: &[Vec<f64>]) -> Vec<f64> {
        let dot = |x: &[f64], row: &[f64]| x.iter().zip(row).map(|(a, b)| a * b).sum();
        x.iter().flat_map(|x| weight.iter().map(move |row| dot(x, row))).collect()
    }

    /// The allowed error of a sum: from rounding to `f32` at each step, and for integers from values near the
    /// middle of two steps, which may round either way.
    fn tolerance(format: OperandFormat, depth: usize) -> f64 {
        match format {
            OperandFormat::Int8 => 2e-2,
            OperandFormat::Int16 => 1e-3,
            _ => 1e-6 + 1e-7 * depth as f64,
        }
    }

    /// Threads, rows, depth and columns: for every number of rows up to 130, with odd depths and columns.
    fn every_number_of_rows(rng: &mut StdRng) -> Vec<(usize, usize, usize, usize)> {
        let mut odd = || 2 * rng.random_range(0..35) + 1;
        (1..=130).map(|rows| (1 + rows % 3, rows, odd(), odd())).collect()
    }

    fn pack(compute: &Compute, format: OperandFormat, x: &[f32], depth: usize) -> Operand {
        compute.operand(x, depth, format, Words::default(), |row, _| row)
    }

    #[test]
    fn products_of_odd_sizes_and_any_number_of_rows_equal_plain_loops() {
        let mut rng = StdRng::seed_from_u64(11);
        for set in InstructionSet::available() {
            let mut cases = vec![
                (1, 1, 1, vec![1]),
                (2, 2, 15, vec![31, 33]),
                (2, 13, 16, vec![32, 32, 5]),
                (1, 14, 17, vec![64]),
                (2, 15, 40, vec![7]),
                (3, 29, 64, vec![100, 28]),
                (2, 57, 130, vec![65]),
                (2, 300, 513, vec![34]),
            ];
            let columns = |(threads, rows, depth, columns)| (threads, rows, depth, vec![columns]);
            cases.extend(every_number_of_rows(&mut rng).into_iter().map(columns));
            for (threads, rows, depth, parts) in cases {
                let compute = Compute { set, threads: Threads::start(threads).unwrap() };
                let weights: Vec<Vec<f32>> = parts.iter().map(|&n| random(&mut rng, n * depth)).collect();
                let parts: Vec<StoredMatrix> =
                    weights.iter().map(|values| StoredMatrix::from_values(values, depth)).collect();
                let x = random(&mut rng, rows * depth);
                for (left, right) in FORMATS {
                    let matrix = Matrix::pack(&compute, &parts, right, ColumnOrder::Plain);
                    let weight: Vec<_> = weights
                        .iter()
                        .flat_map(|part| part.chunks(depth))
                        .map(|row| kept_of_weight(right, row))
                        .collect();
                    let expected =
                        product(&x.chunks(depth).map(|row| kept(left, row)).collect::<Vec<_>>(), &weight);
                    let operand = pack(&compute, left, &x, depth);
                    let before = random(&mut rng, expected.len());
                    let (mut out, mut sum) = (vec![f32::NAN; expected.len()], before.clone());
                    compute.product(&operand, &matrix, &mut out);
                    compute.add_product(&operand, &matrix, &mut sum);
                    for (index, expected) in expected.iter().enumerate() {
                        let what = format!("{set} {left:?} {right:?} {rows}x{depth} at {index}");
                        let error = f64::from(out[index]) - expected;
                        assert!(error.abs() <= tolerance(left, depth), "{what}: off by {error}");
                        let error = f64::from(sum[index]) - expected - f64::from(before[index]);
                        assert!(error.abs() <= tolerance(left, depth), "{what}, added: off by {error}");
                    }
                }
            }
        }
    }

    #[test]
    fn rows_that_are_multiplied_in_slices_of_their_depth_have_the_same_bits_as_rows_alone() {
        let mut rng = StdRng::seed_from_u64(17);
        for set in InstructionSet::available() {
            // Threads, rows, depth, columns, and whether bytes are multiplied in slices, too.
            for (threads, rows, depth, columns, all) in
                [(1, 29, 3457, 262, false), (2, 15, 27_001, 33, true), (3, 31, 3600, 300, false)]
            {
                let compute = Compute { set, threads: Threads::start(threads).unwrap() };
                let weight = random(&mut rng, columns * depth);
                let parts = [StoredMatrix::from_values(&weight, depth)];
                let x = random(&mut rng, rows * depth);
                for (left, right) in FORMATS {
                    let matrix = Matrix::pack(&compute, &parts, right, ColumnOrder::Plain);
                    let operand = pack(&compute, left, &x, depth);
                    let order = TileOrder::new(&operand.whole(), &matrix, threads);
                    let is_sliced = !matrix.has_nibbles() && (all || left == OperandFormat::F32);
                    assert!(order.slices > 1 || !is_sliced, "{set} {left:?} {right:?} {rows}x{depth}");
                    let mut out = vec![f32::NAN; rows * columns];
                    compute.product(&operand, &matrix, &mut out);
                    for (row, (x, out)) in x.chunks(depth).zip(out.chunks(columns)).enumerate() {
                        let mut alone = vec![f32::NAN; columns];
                        compute.product(&pack(&compute, left, x, depth), &matrix, &mut alone);
                        assert!(*out == alone[..], "{set} {left:?} {right:?} {rows}x{depth}, row {row}");
                    }
                }
            }
        }
    }

    #[test]
    fn products_and_their_next_step_of_odd_sizes_and_any_number_of_rows_equal_the_formula() {
        let mut rng = StdRng::seed_from_u64(13);
        let silu = |x: f64| x / (1.0 + (-x).exp());
        for set in InstructionSet::available() {
            let some = [(1, 1, 3, 1), (2, 13, 16, 16), (2, 15, 33, 17), (1, 29, 40, 50), (3, 31, 64, 96)];
            let cases = some.into_iter().chain(every_number_of_rows(&mut rng)).enumerate();
            for (number, (threads, rows, depth, inner)) in cases {
                let gated = number % 2 == 0;
                let compute = Compute { set, threads: Threads::start(threads).unwrap() };
                let values = [(); 2].map(|()| random(&mut rng, inner * depth));
                let parts = [
                    StoredMatrix::from_values(&values[0], depth),
                    StoredMatrix::from_values(&values[1], depth),
                ];
                let x = random(&mut rng, rows * depth);
                for (left, right) in FORMATS {
                    let (order, epilogue, parts) = if gated {
                        (ColumnOrder::Gated, Epilogue::Gate(Activation::Silu), &parts[..])
                    } else {
                        (ColumnOrder::Plain, Epilogue::Activate(Activation::Silu), &parts[..1])
                    };
                    let bias = random(&mut rng, parts.len() * inner);
                    let matrix = Matrix::pack(&compute, parts, right, order).with_bias(&bias, order);
                    let x_kept: Vec<_> = x.chunks(depth).map(|row| kept(left, row)).collect();
                    let [gates, ups] = values.each_ref().map(|values| {
                        product(
                            &x_kept,
                            &values.chunks(depth).map(|row| kept_of_weight(right, row)).collect::<Vec<_>>(),
                        )
                    });
                    let expected = gates.iter().zip(&ups).enumerate().map(|(index, (gate, up))| {
                        let activated = silu(gate + f64::from(bias[index % inner]));
                        if gated {
                            activated * (up + f64::from(bias[inner + index % inner]))
                        } else {
                            activated
                        }
                    });
                    let expected: Vec<f64> = expected.collect();
                    let operand = pack(&compute, left, &x, depth);
                    for format in [OperandFormat::F32, OperandFormat::Bf16] {
                        // The memory still holds values of an earlier product.
                        let mut used = Words::default();
                        used.resize(rows * format.words(inner));
                        used.as_mut_slice().fill(u32::MAX);
                        let out = compute.next_operand(&operand, &matrix, epilogue, format, used);
                        let rounding = if format == OperandFormat::Bf16 { 1.0 / 256.0 } else { 0.0 };
                        let out = out.padded_values();
                        assert_eq!(out.len(), rows * format.padded(inner));
                        for (index, got) in out.into_iter().enumerate() {
                            let (row, column) = (index / format.padded(inner), index % format.padded(inner));
                            let expected = if column < inner { expected[row * inner + column] } else { 0.0 };
                            let error = (f64::from(got) - expected).abs();
                            let allowed = if column < inner { 10.0 * tolerance(left, depth) } else { 0.0 };
                            assert!(
                                error <= allowed + rounding * expected.abs(),
                                "{set} {left:?} {format:?} {rows}x{depth}x{inner} at {row},{column}: off by {error}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn integers_of_the_next_operand_are_those_of_its_values_however_many_steps_they_take() {
        let mut rng = StdRng::seed_from_u64(17);
        let sizes = [(1, 3, 1), (2, 16, 32), (14, 33, 17), (29, 40, 50), (131, 64, 97)];
        for set in InstructionSet::available() {
            for (number, (rows, depth, inner)) in sizes.into_iter().enumerate() {
                let compute = Compute { set, threads: Threads::start(1 + number % 3).unwrap() };
                let parts =
                    [(); 2].map(|()| StoredMatrix::from_values(&random(&mut rng, inner * depth), depth));
                let (order, epilogue, parts) = if number % 2 == 0 {
                    (ColumnOrder::Gated, Epilogue::Gate(Activation::Silu), &parts[..])
                } else {
                    (ColumnOrder::Plain, Epilogue::Activate(Activation::GeluTanh), &parts[..1])
                };
                let format = [OperandFormat::Int8, OperandFormat::Int16][number / 2 % 2];
                let matrix = Matrix::pack(&compute, parts, OperandFormat::Int8, order);
                let x = pack(&compute, OperandFormat::Int8, &random(&mut rng, rows * depth), depth);
                let next = |format| compute.next_operand(&x, &matrix, epilogue, format, Words::default());
                let values = next(OperandFormat::F32).values();
                let reversed = |row: &mut [f32]| row.reverse();
                let expected = compute.operand(&values, inner, format, Words::default(), |row, out| {
                    out.copy_from_slice(row);
                    reversed(out);
                    out
                });
                // All rows at once, and one block at a time.
                for step in [rows.max(x.block_rows), x.block_rows] {
                    let mut memory = vec![f32::NAN; step * inner];
                    let next = NextIntegers { format, words: Words::default(), values: &mut memory };
                    let got = compute.next_integers(&x, &matrix, epilogue, next, reversed);
                    assert_eq!(got.scales, expected.scales, "{set} {rows}x{depth}x{inner}");
                    assert_eq!(
                        got.words.as_slice(),
                        expected.words.as_slice(),
                        "{set} {rows}x{depth}x{inner}"
                    );
                }
            }
        }
    }

    #[test]
    fn rows_of_known_steps_become_bytes_without_an_error() {
        let mut rng = StdRng::seed_from_u64(14);
        for set in InstructionSet::available() {
            for (rows, depth, columns) in [(3, 37, 40), (15, 130, 33)] {
                let compute = Compute { set, threads: Threads::start(2).unwrap() };
                let steps: Vec<f32> = (0..columns).map(|_| rng.random_range(1e-4..1e-2)).collect();
                let bytes: Vec<i8> = (0..columns * depth).map(|_| rng.random()).collect();
                let values: Vec<f32> = bytes
                    .iter()
                    .enumerate()
                    .map(|(index, &byte)| f32::from(byte) * steps[index / depth])
                    .collect();
                let weight = StoredMatrix::from_values(&values, depth).with_steps(steps.clone());
                // Some of its rows and the others, as two parts.
                let parts = [weight.narrow(0..7), weight.narrow(7..columns)];
                let matrix = Matrix::pack(&compute, &parts, OperandFormat::Int8, ColumnOrder::Plain);
                // The rows consist of bytes, so their scale is 1.
                let of_x = |index: usize| {
                    if index.is_multiple_of(depth) {
                        127.0
                    } else {
                        f32::from(rng.random_range(-127..=127_i8))
                    }
                };
                let x: Vec<f32> = (0..rows * depth).map(of_x).collect();
                let x_kept: Vec<Vec<f64>> =
                    x.chunks(depth).map(|row| row.iter().map(|&value| f64::from(value)).collect()).collect();
                let weight: Vec<Vec<f64>> = values
                    .chunks(depth)
                    .map(|row| row.iter().map(|&value| f64::from(value)).collect())
                    .collect();
                let expected = product(&x_kept, &weight);
                let mut out = vec![0.0; rows * columns];
                compute.product(&pack(&compute, OperandFormat::Int8, &x, depth), &matrix, &mut out);
                for (got, expected) in out.iter().zip(expected) {
                    assert!((f64::from(*got) - expected).abs() < 1e-2, "{set}: {got} for {expected}");
                }
            }
        }
    }

    /// Blocks of a type with random bytes, and factors from 2⁻³ to 2⁻⁶ at these offsets of each block.
    fn blocks(rng: &mut StdRng, encoding: &Encoding, factors: &[usize], count: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..count * encoding.bytes).map(|_| rng.random()).collect();
        for block in bytes.chunks_exact_mut(encoding.bytes) {
            for &factor in factors {
                // The upper byte of a half-precision number: its sign, and an exponent.
                block[factor + 1] = rng.random_range(0x24..0x30) | rng.random_range(0..2) << 7;
            }
        }
        bytes
    }

    #[test]
    fn four_bits_of_a_file_multiply_like_the_bytes_of_their_values() {
        let mut rng = StdRng::seed_from_u64(15);
        let types: [(&str, &[usize]); 3] = [("Q4_0", &[0]), ("Q4_1", &[0, 2]), ("Q4_K", &[0, 2])];
        for set in InstructionSet::available() {
            for (name, factors) in types {
                let encoding = Encoding::named(name).unwrap();
                let (rows, depth, columns) = (5, 768, 45);
                let compute = Compute { set, threads: Threads::start(2).unwrap() };
                let stored = blocks(&mut rng, encoding, factors, columns * depth / encoding.values);
                let stored = StoredMatrix::new(stored, Stored::Blocks(encoding), depth);
                // Rows of four bits above others, as two parts.
                let other = random(&mut rng, 3 * depth);
                let parts = [stored.clone(), StoredMatrix::from_values(&other, depth)];
                let matrix = Matrix::pack(&compute, &parts, WeightFormat::Int4, ColumnOrder::Plain);
                let x = random(&mut rng, rows * depth);
                let x_kept: Vec<_> = x.chunks(depth).map(|row| kept(OperandFormat::Int8, row)).collect();
                let operand = pack(&compute, OperandFormat::Int8, &x, depth);
                let mut out = vec![0.0; rows * (columns + 3)];
                compute.product(&operand, &matrix, &mut out);
                for (row, x) in x_kept.iter().enumerate() {
                    let norm = x.iter().map(|value| value * value).sum::<f64>().sqrt();
                    for column in 0..columns {
                        let weight = stored.row(column);
                        let step = weight.iter().fold(0.0_f32, |most, value| most.max(value.abs())) / 127.0;
                        let expected: f64 =
                            x.iter().zip(&weight).map(|(x, &weight)| x * f64::from(weight)).sum();
                        let off = f64::from(out[row * (columns + 3) + column]) - expected;
                        // The bytes' errors are spread evenly over one step: their deviation is 0.29 steps.
                        let allowed = 6.0 * 0.3 * f64::from(step) * norm;
                        assert!(off.abs() <= allowed, "{set} {name}: {off}, allowed {allowed}");
                    }
                    for column in 0..3 {
                        let weight = kept_of_weight(WeightFormat::Int4, &other[column * depth..][..depth]);
                        let expected: f64 = x.iter().zip(&weight).map(|(x, weight)| x * weight).sum();
                        let off = f64::from(out[row * (columns + 3) + columns + column]) - expected;
                        assert!(off.abs() <= tolerance(OperandFormat::Int8, depth), "{set} {name}: {off}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_has_the_same_bits_in_every_batch_and_on_any_number_of_threads() {
        let mut rng = StdRng::seed_from_u64(12);
        let (depth, columns) = (48, 70);
        let weights = [StoredMatrix::from_values(&random(&mut rng, columns * depth), depth)];
        let x = random(&mut rng, 130 * depth);
        for set in InstructionSet::available() {
            for (left, right) in FORMATS {
                let product = |threads: usize, rows: usize| {
                    let compute = Compute { set, threads: Threads::start(threads).unwrap() };
                    let matrix = Matrix::pack(&compute, &weights, right, ColumnOrder::Plain);
                    let mut out = vec![0.0; rows * columns];
                    compute.product(&pack(&compute, left, &x[..rows * depth], depth), &matrix, &mut out);
                    out
                };
                let whole = product(1, 130);
                for rows in 1..=130 {
                    assert_eq!(product(1 + rows % 2, rows), whole[..rows * columns], "{set} {rows}");
                }
            }
        }
    }
}
