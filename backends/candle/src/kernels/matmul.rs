//! `out (+)= x · Wᵀ` in f32, with weights as they are stored.
//!
//! Input: `x` `[rows, depth]` and weights `[columns, depth]` in one or more parts that stand one below the other.
//! Output: `[rows, columns]`. Weights are widened and packed panel by panel inside the call, into the second-level
//! cache, and each panel serves up to [`ROWS_PER_PASS`] rows, so that this costs a few percent of the product and no
//! memory. What must hold: a row's result does not depend on the other rows.

use super::{
    pack::{self, Stored},
    simd::InstructionSet,
    threads::Threads,
    tile::{self, COLUMNS, Destination, MAX_ROWS},
};
use memmap2::Mmap;
use std::{cell::RefCell, ops::Range, sync::Arc};

/// Rows for which a panel is packed once.
const ROWS_PER_PASS: usize = 768;
/// Panels that a thread packs before it multiplies: about this many bytes, half of a second-level cache.
const PANEL_BYTES: usize = 512 * 1024;

/// A weight `[rows, columns]`, row after row, in a mapped checkpoint.
#[derive(Clone)]
pub(crate) struct MappedMatrix {
    file: Arc<Mmap>,
    bytes: Range<usize>,
    stored: Stored,
    columns: usize,
}

impl MappedMatrix {
    /// The matrix whose values lie at `bytes` of `file`; their number must be a multiple of `columns`.
    pub(crate) fn new(file: Arc<Mmap>, bytes: Range<usize>, stored: Stored, columns: usize) -> Self {
        assert!(
            columns > 0 && bytes.end <= file.len() && bytes.len().is_multiple_of(columns * stored.size())
        );
        Self { file, bytes, stored, columns }
    }

    /// Rows (outputs).
    pub(crate) fn rows(&self) -> usize {
        self.bytes.len() / (self.columns * self.stored.size())
    }

    /// Columns (inputs).
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// One row, widened into `out`, which holds [`MappedMatrix::columns`] values.
    pub(crate) fn widen_row(&self, row: usize, out: &mut [f32]) {
        let size = self.columns * self.stored.size();
        pack::widen(self.stored, &self.bytes_from(row)[..size], out);
    }

    /// The stored bytes from `row` to the end.
    fn bytes_from(&self, row: usize) -> &[u8] {
        &self.file[self.bytes.clone()][row * self.columns * self.stored.size()..]
    }
}

/// A panel's place: which part it is of, its first row there, and its first column in the output.
#[derive(Clone, Copy)]
struct Panel {
    part: usize,
    row: usize,
    column: usize,
    columns: usize,
}

fn panels(parts: &[MappedMatrix]) -> Vec<Panel> {
    let mut panels = Vec::new();
    let mut before = 0;
    for (part, matrix) in parts.iter().enumerate() {
        for row in (0..matrix.rows()).step_by(COLUMNS) {
            let columns = COLUMNS.min(matrix.rows() - row);
            panels.push(Panel { part, row, column: before + row, columns });
        }
        before += matrix.rows();
    }
    panels
}

thread_local! {
    /// Packed panels of the thread's current group.
    static PANELS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// The shared output: threads write disjoint columns of it.
#[derive(Clone, Copy)]
struct Output {
    pointer: *mut f32,
    stride: usize,
    add: bool,
}

// SAFETY: each panel belongs to one item of `for_each`, so no two threads write the same columns.
unsafe impl Send for Output {}
// SAFETY: as above.
unsafe impl Sync for Output {}

/// How and with what to compute.
pub(crate) struct Compute {
    /// The vector instructions to use.
    pub(crate) set: InstructionSet,
    /// The threads to use.
    pub(crate) threads: Threads,
}

impl Compute {
    /// `out = x · Wᵀ`, or `out += x · Wᵀ` with `add`. `parts` are the parts of `W`, all with the same columns;
    /// `packed` is scratch memory that is kept between calls.
    pub(crate) fn matmul(
        &self,
        x: &[f32],
        parts: &[MappedMatrix],
        out: &mut [f32],
        add: bool,
        packed: &mut Vec<f32>,
    ) {
        let depth = parts[0].columns();
        let columns: usize = parts.iter().map(MappedMatrix::rows).sum();
        assert!(x.len() / depth * columns == out.len() && parts.iter().all(|part| part.columns() == depth));
        let panels = panels(parts);
        let group = (PANEL_BYTES / (pack::padded(depth) * COLUMNS * size_of::<f32>()))
            .min(panels.len() / (4 * self.threads.count()))
            .max(1);
        for (x, out) in x.chunks(ROWS_PER_PASS * depth).zip(out.chunks_mut(ROWS_PER_PASS * columns)) {
            let block_rows = self.pack_rows(x, depth, packed);
            let blocks =
                Blocks { values: packed, rows: x.len() / depth, block_rows, depth: pack::padded(depth) };
            let output = Output { pointer: out.as_mut_ptr(), stride: columns, add };
            self.threads.for_each(panels.chunks(group), |group| {
                PANELS.with_borrow_mut(|buffer| self.multiply_group(&blocks, parts, group, output, buffer));
            });
        }
    }

    /// Packs all rows as blocks, one behind the other; returns the rows of a full block.
    fn pack_rows(&self, x: &[f32], depth: usize, packed: &mut Vec<f32>) -> usize {
        let rows = x.len() / depth;
        let block_rows = rows.div_ceil(rows.div_ceil(tile::rows(self.set)));
        packed.resize(rows * pack::padded(depth), 0.0);
        let blocks = packed.chunks_mut(block_rows * pack::padded(depth));
        self.threads
            .for_each(x.chunks(block_rows * depth).zip(blocks), |(x, block)| pack::block(x, depth, block));
        block_rows
    }

    fn multiply_group(
        &self,
        blocks: &Blocks<'_>,
        parts: &[MappedMatrix],
        group: &[Panel],
        output: Output,
        buffer: &mut Vec<f32>,
    ) {
        let size = blocks.depth * COLUMNS;
        buffer.resize(group.len() * size, 0.0);
        for (panel, packed) in group.iter().zip(buffer.chunks_exact_mut(size)) {
            let part = &parts[panel.part];
            pack::panel(self.set, part.stored, part.bytes_from(panel.row), part.columns, packed);
        }
        for (first_row, rows, block) in blocks.iter() {
            let function = tile::function(self.set, rows);
            for (panel, packed) in group.iter().zip(buffer.chunks_exact(size)) {
                // SAFETY: rows `first_row..first_row + rows` and the panel's columns lie inside the output, whose size
                // `matmul` checked, and belong to this thread; a panel with fewer columns goes through `narrow`.
                unsafe {
                    let pointer = output.pointer.add(first_row * output.stride + panel.column);
                    let whole = Destination { pointer, stride: output.stride, add: output.add };
                    let mut narrow = [0.0; MAX_ROWS * COLUMNS];
                    let part = panel.columns < COLUMNS;
                    let to = if part {
                        Destination { pointer: narrow.as_mut_ptr(), stride: COLUMNS, add: false }
                    } else {
                        whole
                    };
                    function(blocks.depth / tile::CHUNK, block.as_ptr(), packed.as_ptr(), to);
                    if part {
                        store_narrow(&narrow, rows, panel.columns, whole);
                    }
                }
            }
        }
    }
}

/// Copies the first `columns` of a tile's rows to where they belong.
///
/// # Safety
///
/// `to` has room for `rows` rows of `columns` values, and nobody else accesses them meanwhile.
unsafe fn store_narrow(tile: &[f32], rows: usize, columns: usize, to: Destination) {
    for (row, values) in tile.chunks_exact(COLUMNS).enumerate().take(rows) {
        for (column, &value) in values[..columns].iter().enumerate() {
            // SAFETY: passed on to the caller.
            unsafe {
                let pointer = to.pointer.add(row * to.stride + column);
                *pointer = if to.add { *pointer + value } else { value };
            }
        }
    }
}

/// The packed rows of a product.
struct Blocks<'a> {
    values: &'a [f32],
    rows: usize,
    block_rows: usize,
    depth: usize,
}

impl Blocks<'_> {
    /// Each block with its first row and its number of rows.
    fn iter(&self) -> impl Iterator<Item = (usize, usize, &[f32])> {
        (0..self.rows).step_by(self.block_rows).map(|first| {
            let rows = self.block_rows.min(self.rows - first);
            (first, rows, &self.values[first * self.depth..(first + rows) * self.depth])
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use std::io::Write;

    /// A matrix in a temporary file, and its values as `f32`.
    pub(crate) fn mapped(values: &[f32], columns: usize, stored: Stored) -> MappedMatrix {
        let bytes: Vec<u8> = match stored {
            Stored::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Stored::F16 => values.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()).collect(),
            Stored::Bf16 => values.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect(),
        };
        let mut file = tempfile::NamedTempFile::new().unwrap();
        // Checkpoints may start their values at any byte: an odd offset must work too.
        file.write_all(&[0; 3]).unwrap();
        file.write_all(&bytes).unwrap();
        let map = super::super::mapped::map(file.path()).unwrap();
        MappedMatrix::new(Arc::new(map), 3..3 + bytes.len(), stored, columns)
    }

    /// Plain loops in f64 over the widened values.
    fn reference(x: &[f32], parts: &[MappedMatrix]) -> Vec<f64> {
        let depth = parts[0].columns();
        let rows: Vec<Vec<f32>> = parts
            .iter()
            .flat_map(|part| {
                (0..part.rows()).map(|row| {
                    let mut out = vec![0.0; depth];
                    part.widen_row(row, &mut out);
                    out
                })
            })
            .collect();
        let dot =
            |x: &[f32], row: &[f32]| x.iter().zip(row).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
        x.chunks(depth).flat_map(|x| rows.iter().map(move |row| dot(x, row))).collect()
    }

    fn random(rng: &mut StdRng, len: usize) -> Vec<f32> {
        (0..len).map(|_| rng.random_range(-1.0..1.0)).collect()
    }

    #[test]
    fn products_of_odd_sizes_equal_plain_loops() {
        let mut rng = StdRng::seed_from_u64(11);
        for set in InstructionSet::available() {
            for (threads, rows, depth, columns) in [
                (1, 1, 1, vec![1]),
                (2, 2, 15, vec![31, 33]),
                (2, 13, 16, vec![32, 32, 5]),
                (1, 14, 17, vec![64]),
                (2, 15, 40, vec![7]),
                (3, 29, 64, vec![100, 28]),
                (2, ROWS_PER_PASS + 1, 24, vec![65]),
            ] {
                let compute = Compute { set, threads: Threads::start(threads).unwrap() };
                for stored in [Stored::F32, Stored::F16, Stored::Bf16] {
                    let parts: Vec<MappedMatrix> = columns
                        .iter()
                        .map(|&n| mapped(&random(&mut rng, n * depth), depth, stored))
                        .collect();
                    let x = random(&mut rng, rows * depth);
                    let before = random(&mut rng, rows * columns.iter().sum::<usize>());
                    let expected = reference(&x, &parts);
                    for add in [false, true] {
                        let mut out = before.clone();
                        compute.matmul(&x, &parts, &mut out, add, &mut Vec::new());
                        for ((&got, &product), &before) in out.iter().zip(&expected).zip(&before) {
                            let expected = product + if add { f64::from(before) } else { 0.0 };
                            assert!(
                                (f64::from(got) - expected).abs() < 2e-5,
                                "{set} {rows}x{depth}x{columns:?}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_has_the_same_bits_in_every_batch_and_on_any_number_of_threads() {
        let mut rng = StdRng::seed_from_u64(12);
        let (depth, columns) = (48, 70);
        let weights = [mapped(&random(&mut rng, columns * depth), depth, Stored::Bf16)];
        let x = random(&mut rng, 130 * depth);
        for set in InstructionSet::available() {
            let product = |threads: usize, rows: usize| {
                let compute = Compute { set, threads: Threads::start(threads).unwrap() };
                let mut out = vec![0.0; rows * columns];
                compute.matmul(&x[..rows * depth], &weights, &mut out, false, &mut Vec::new());
                out
            };
            let whole = product(1, 130);
            for rows in 1..=130 {
                assert_eq!(product(1 + rows % 2, rows), whole[..rows * columns], "{set} {rows}");
            }
        }
    }
}
