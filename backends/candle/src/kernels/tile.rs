//! The inner loop of every matrix product: a tile of up to [`MAX_ROWS`] × [`COLUMNS`] sums kept in registers.
//!
//! Input: a block of rows and a panel of columns, which `pack` packed into words of four bytes. Output: the
//! sums of their products. What must hold: a sum depends only on its own row and column, not on the number of
//! rows in the tile. So a token's result is bit-identical in every batch.

#[cfg(target_arch = "x86_64")]
mod native;
#[cfg(target_arch = "aarch64")]
mod neon;
mod sums;

pub(crate) use sums::Sums;

#[cfg(target_arch = "x86_64")]
use super::{
    amx,
    simd::{Avx2, Avx512},
};
use super::{
    instruction_set::InstructionSet,
    layout::{COLUMNS, Origin, WORDS},
    pack::OperandFormat,
    simd::{Portable, Simd},
};
use std::arch::asm;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
#[cfg(test)]
use std::cell::Cell;

/// The most rows of a tile, over all instruction sets.
pub(crate) const MAX_ROWS: usize = 32;

/// The number of rows of a full tile, for rows in `format`. It leaves registers free for a column's values.
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(unused_variables, reason = "only AMX's tiles depend on the format")
)]
pub(crate) fn rows(set: InstructionSet, format: OperandFormat) -> usize {
    match set {
        InstructionSet::Portable => 2,
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 if format == OperandFormat::Int8 => 4,
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 | InstructionSet::Avx2Vnni => 6,
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512Amx if matches!(format, OperandFormat::Bf16 | OperandFormat::Int8) => amx::ROWS,
        #[cfg(target_arch = "x86_64")]
        _ => 14,
        #[cfg(target_arch = "aarch64")]
        _ => neon::rows(set),
    }
}

/// The initial values of a tile's sums.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Start<'a> {
    /// Zeros.
    Zeros,
    /// These values, for every row. Sums of integers are `i32` and start from zeros instead.
    Columns(&'a [f32; COLUMNS]),
    /// The existing sums, from earlier words. The result has the same bits as one call with all words.
    Sums,
}

/// The packed operands of a tile.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TileOperands<'a> {
    /// A block of rows: `[chunk][rows][WORDS]`.
    pub(crate) a: &'a [u32],
    /// A panel of columns: `[word][COLUMNS]`.
    pub(crate) b: &'a [u32],
}

#[cfg(test)]
thread_local! {
    /// The multiplications of two values in all tiles of this thread, padding included.
    pub(crate) static MULTIPLICATIONS: Cell<usize> = const { Cell::new(0) };
}

/// The inner loops for rows and columns in two formats, chosen once for many tiles. (The formats were passed
/// with each tile once, as bytes in a struct that was read as a word. The CPU waited until the sums of the
/// tile before were in the cache, for a tenth of the time of a small model in bytes.)
#[derive(Clone, Copy)]
pub(crate) struct TileKernel {
    /// The values in a word of `a`, and in a word of `b`.
    per_word: [usize; 2],
    of_integers: bool,
    body: Body,
}

#[derive(Clone, Copy)]
enum Body {
    /// For each number of rows from one on.
    ByRows(&'static [RowsBody]),
    /// For up to [`amx::ROWS`] rows.
    #[cfg(target_arch = "x86_64")]
    Amx(amx::AmxFunction),
}

/// The loop for a number of rows.
#[derive(Clone, Copy)]
struct RowsBody {
    function: Function,
    /// The number of columns that `function` computes at a time: all, or [`HALF`].
    columns: usize,
}

impl TileKernel {
    /// The loops for rows in the format `a` and columns in the format `b`. The formats are equal, or a word
    /// of a row has one value and a word of a column has two in bfloat16. In the latter case, a word of a
    /// column is multiplied with two words of a row.
    pub(crate) fn new(set: InstructionSet, a: OperandFormat, b: OperandFormat) -> Self {
        use OperandFormat::{Bf16, F32, Int8, Int16, WideBf16};
        // A widened value is an `f32`.
        let a = if a == WideBf16 { F32 } else { a };
        // For another pair, the function of `a` would read more words of `b` than `multiply` checks.
        let formats_are_known = match (a, b) {
            (F32, F32 | Bf16) | (Int16, Int16) | (Int8, Int8) => true,
            (Bf16, Bf16) => set.has_bf16(),
            _ => false,
        };
        assert!(formats_are_known);
        let body = match set {
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512Amx if a == Int8 => Body::Amx(amx::multiply_bytes),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512Amx if a == Bf16 => Body::Amx(amx::multiply_bf16),
            _ => Body::ByRows(bodies(set, a, b)),
        };
        Self { per_word: [a.per_word(), b.per_word()], of_integers: a.is_scaled(), body }
    }

    /// Computes one tile: `sums[row][column] = start + Σ a · b` over the words of a row. To the `i32` sums of
    /// bytes, each byte of a column adds its [`InstructionSet::byte_excess`].
    #[inline]
    pub(crate) fn multiply(
        self,
        rows: usize,
        TileOperands { a, b }: TileOperands<'_>,
        start: Start<'_>,
        ahead: Ahead,
        sums: &mut [[f32; COLUMNS]],
    ) {
        let chunks = a.len() / (rows * WORDS);
        assert!(a.len() == chunks * rows * WORDS && rows <= sums.len());
        let [of_a, of_b] = self.per_word;
        assert!(b.len() * of_b >= chunks * WORDS * of_a * COLUMNS);
        #[cfg(test)]
        MULTIPLICATIONS.set(MULTIPLICATIONS.get() + a.len() * of_a * COLUMNS);
        let (a, b, to) = (a.as_ptr(), b.as_ptr(), sums.as_mut_ptr().cast::<f32>());
        let start = match start {
            Start::Columns(columns) if !self.of_integers => Origin { first: columns.as_ptr(), stride: 0 },
            Start::Zeros | Start::Columns(_) => Origin { first: ZEROS.as_ptr(), stride: 0 },
            Start::Sums => Origin { first: to.cast_const(), stride: COLUMNS },
        };
        // SAFETY: every `InstructionSet` comes from `available`, which checked the CPU. The sizes were just
        // checked: a body is listed for the number of rows (otherwise the index panics); for its columns, it
        // reads `chunks · rows · WORDS` words of `a`, as many values in lines of `b`, and `rows` rows from
        // `start` on, and then writes `rows` rows of `sums`. `start` may be `sums` itself, because every body
        // reads a value there before it writes it. `ZEROS` are zeros as `i32`, too. `ahead` is only
        // prefetched.
        unsafe {
            match self.body {
                Body::ByRows(bodies) => {
                    let RowsBody { function, columns } = bodies[rows - 1];
                    if columns == COLUMNS {
                        function(chunks, a, b, start, ahead, to);
                    } else {
                        let [first, second] = ahead.split_in_halves(chunks);
                        function(chunks, a, b, start, first, to);
                        function(chunks, a, b.add(HALF), start.at_column(HALF), second, to.add(HALF));
                    }
                }
                #[cfg(target_arch = "x86_64")]
                Body::Amx(function) => {
                    assert!(rows <= amx::ROWS);
                    let mut places = Ahead { lines: 0, ..ahead };
                    (0..chunks).for_each(|_| places.step());
                    function(rows, chunks, a, b, start, to);
                }
            }
        }
    }
}

/// The initial sums if there is nothing to add to. The bits are also zeros as `i32`, the sums of integers.
pub(crate) static ZEROS: [f32; COLUMNS] = [0.0; COLUMNS];

/// Memory that will be needed soon. Each chunk prefetches a part of it. Only a hint: ARM ignores it, and AMX
/// the words.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ahead {
    /// Words that the next tiles read.
    words: *const u32,
    /// The number of cache lines of them to prefetch per chunk.
    lines: usize,
    /// The place of the first row's sums after this tile: two lines.
    place: *const f32,
    /// The distance between the places of two rows, in values.
    stride: usize,
    /// The number of rows whose places to prefetch per chunk.
    rows: usize,
}

impl Ahead {
    /// No memory to prefetch.
    pub(crate) const NOTHING: Self =
        Self { words: std::ptr::null(), lines: 0, place: std::ptr::null(), stride: 0, rows: 0 };

    /// The part of `words` that the first of `tiles` tiles of `chunks` chunks prefetches.
    pub(crate) fn of_tiles(words: &[u32], tiles: usize, chunks: usize) -> Self {
        let lines = words.len().div_ceil(WORDS * tiles.max(1) * chunks.max(1));
        Self { words: words.as_ptr(), lines, ..Self::NOTHING }
    }

    /// The part of the tile number `tile`.
    pub(crate) fn of_tile(self, tile: usize, chunks: usize) -> Self {
        Self { words: self.words.wrapping_add(tile * chunks * self.lines * WORDS), ..self }
    }

    /// Also the places of rows from `place` on, `per_chunk` in each chunk.
    pub(crate) fn with_places(self, place: *const f32, stride: usize, per_chunk: usize) -> Self {
        Self { place, stride, rows: per_chunk, ..self }
    }

    /// The parts of two equal calls of `chunks` chunks each. The first prefetches all places. If it
    /// prefetched all words, too, memory would be idle during the second: in BERT-base in `f32`, that took a
    /// quarter of a short text's time.
    fn split_in_halves(self, chunks: usize) -> [Self; 2] {
        let lines = self.lines.div_ceil(2);
        let words = self.words.wrapping_add(chunks * lines * WORDS);
        [Self { lines, ..self }, Self { words, lines: self.lines - lines, ..Self::NOTHING }]
    }

    /// Prefetches the next part.
    #[inline(always)]
    fn step(&mut self) {
        for _ in 0..self.lines {
            bring_near(self.words);
            self.words = self.words.wrapping_add(WORDS);
        }
        for _ in 0..self.rows {
            bring_near(self.place);
            bring_near(self.place.wrapping_add(WORDS));
            self.place = self.place.wrapping_add(self.stride);
        }
    }
}

/// Prefetches the cache line at any address. Only a hint, which ARM ignores.
#[inline(always)]
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "nothing is done there"))]
pub(crate) fn bring_near<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every CPU of this architecture has the instruction, and it has no visible effect.
    unsafe {
        _mm_prefetch::<_MM_HINT_T1>(address.cast());
    }
}

/// Prefetches the row `index` of `rows`, if it exists. Products write large results past the caches, so that
/// a row-wise reader would wait for memory at the start of each row.
pub(crate) fn bring_row_near(rows: &[f32], index: usize, width: usize) {
    bring_values_near(rows.chunks(width).nth(index).unwrap_or_default());
}

/// Prefetches values.
pub(crate) fn bring_values_near(values: &[f32]) {
    values.chunks(WORDS).for_each(|line| bring_near(line.as_ptr()));
}

/// A tile's body with the arguments `(chunks, a, b, start, ahead, sums)`.
///
/// # Safety
///
/// The CPU has the function's instruction set. `a`, `b`, `start` and `sums` satisfy the conditions of
/// [`TileKernel::multiply`]. For integers, `start` holds `i32`.
type Function = unsafe fn(usize, *const u32, *const u32, Origin, Ahead, *mut f32);

/// Lists a body for each number of rows, with the number of columns that it computes at a time.
macro_rules! by_rows {
    ($($name:ident, $columns:expr, $($rows:literal)*;)*) => {{
        const BODIES: &[RowsBody] = &[$($(RowsBody { function: $name::<$rows>, columns: $columns }),*),*];
        BODIES
    }};
    ($name:ident) => { by_rows!($name, COLUMNS, 1 2 3 4 5 6 7 8 9 10 11 12 13 14;) };
}

#[cfg(target_arch = "aarch64")]
use by_rows;

/// Half of a panel's columns. The sums of a full tile fill AVX2's sixteen registers with them. Fewer rows
/// need all columns for enough sums in flight.
const HALF: usize = COLUMNS / 2;

/// The bodies for each number of rows. AMX has its own for bfloat16 and bytes.
fn bodies(set: InstructionSet, a: OperandFormat, b: OperandFormat) -> &'static [RowsBody] {
    use OperandFormat::{Bf16, F32, Int8, Int16};
    let formats = (a, b);
    match set {
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512Bf16 if formats == (Bf16, Bf16) => by_rows!(native_bf16_avx512),
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512Bf16 | InstructionSet::Avx512Vnni if formats == (Int8, Int8) => {
            by_rows!(native_int8_avx512)
        }
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 if formats == (Int16, Int16) => by_rows!(native_int16_avx512),
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2Vnni if formats == (Int8, Int8) => {
            by_rows!(native_int8_low_avx2vnni, COLUMNS, 1 2 3; native_int8_avx2vnni, HALF, 4 5 6;)
        }
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2Vnni if formats == (Int16, Int16) => {
            by_rows!(native_int16_low_avx2vnni, COLUMNS, 1 2 3; native_int16_avx2vnni, HALF, 4 5 6;)
        }
        InstructionSet::Portable => match formats {
            (F32, Bf16) => by_rows!(f32_by_bf16_portable, COLUMNS, 1 2;),
            (Int16, _) => by_rows!(int16_portable, COLUMNS, 1 2;),
            (Int8, _) => by_rows!(int8_portable, COLUMNS, 1 2;),
            _ => by_rows!(f32_portable, COLUMNS, 1 2;),
        },
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 | InstructionSet::Avx2Vnni => match formats {
            (F32, Bf16) => by_rows!(f32_by_bf16_low_avx2, COLUMNS, 1 2 3; f32_by_bf16_avx2, HALF, 4 5 6;),
            (Int16, _) => by_rows!(native_int16_low_avx2, COLUMNS, 1 2 3; native_int16_avx2, HALF, 4 5 6;),
            (Int8, _) => by_rows!(native_int8_low_avx2, COLUMNS, 1 2; native_int8_avx2, HALF, 3 4;),
            _ => by_rows!(f32_low_avx2, COLUMNS, 1 2 3; f32_avx2, HALF, 4 5 6;),
        },
        #[cfg(target_arch = "x86_64")]
        _ => match formats {
            (F32, Bf16) => by_rows!(f32_by_bf16_avx512),
            (Int16, _) => by_rows!(native_int16_avx512vnni),
            (Int8, _) => by_rows!(int8_avx512),
            _ => by_rows!(f32_avx512),
        },
        #[cfg(target_arch = "aarch64")]
        _ => neon::bodies(set, a, b),
    }
}

/// Compiles a generic body for one instruction set.
macro_rules! compiled {
    ($($(#[$target:meta])* $name:ident = $body:ident($simd:ty $(, $registers:expr, $column_pairs:literal)?);)*) => {$(
        $(#[$target])*
        unsafe fn $name<const ROWS: usize>(
            chunks: usize,
            a: *const u32,
            b: *const u32,
            start: Origin,
            ahead: Ahead,
            sums: *mut f32,
        ) {
            // SAFETY: the caller upholds the same conditions.
            unsafe { $body::<ROWS, $simd $(, { $registers }, $column_pairs)?>(chunks, a, b, start, ahead, sums) }
        }
    )*};
}

compiled! {
    f32_portable = multiply_tile(Portable, COLUMNS / 4, false);
    f32_by_bf16_portable = multiply_tile(Portable, COLUMNS / 4, true);
    int16_portable = tile_of_integers(Int16Products);
    int8_portable = tile_of_integers(Int8Products);
}

#[cfg(target_arch = "x86_64")]
compiled! {
    #[target_feature(enable = "avx2,fma")]
    f32_avx2 = multiply_tile(Avx2, COLUMNS / 16, false);
    #[target_feature(enable = "avx2,fma")]
    f32_low_avx2 = multiply_tile(Avx2, COLUMNS / 8, false);
    #[target_feature(enable = "avx2,fma")]
    f32_by_bf16_avx2 = multiply_tile(Avx2, COLUMNS / 16, true);
    #[target_feature(enable = "avx2,fma")]
    f32_by_bf16_low_avx2 = multiply_tile(Avx2, COLUMNS / 8, true);
    #[target_feature(enable = "avx512f")]
    f32_avx512 = multiply_tile(Avx512, COLUMNS / 16, false);
    #[target_feature(enable = "avx512f")]
    f32_by_bf16_avx512 = multiply_tile(Avx512, COLUMNS / 16, true);
    #[target_feature(enable = "avx512f,avx512bw")]
    int8_avx512 = tile_of_integers(Int8Products);
}

// The bodies below use plain loops over indices. A closure would be compiled as a separate function, without
// the instruction set.

/// Rows of `f32`, and columns of `f32` or, with `COLUMN_PAIRS`, of pairs of bfloat16 that are widened here. A
/// pair of a column meets two words of a row.
#[expect(clippy::needless_range_loop, reason = "see above")]
#[inline(always)]
unsafe fn multiply_tile<const ROWS: usize, S: Simd, const REGISTERS: usize, const COLUMN_PAIRS: bool>(
    chunks: usize,
    mut a: *const u32,
    mut b: *const u32,
    start: Origin,
    mut ahead: Ahead,
    to: *mut f32,
) {
    // SAFETY: the caller guarantees the instruction set, `chunks` chunks from `a` on, and as many values in
    // `b`.
    unsafe {
        let mut sums = started::<ROWS, S, REGISTERS>(start);
        for _ in 0..chunks {
            ahead.step();
            for pair in 0..WORDS / 2 {
                for half in 0..2 {
                    let words = if COLUMN_PAIRS && half == 1 { hide_origin(b) } else { b };
                    let mut column = [S::splat(0.0); REGISTERS];
                    for r in 0..REGISTERS {
                        let words = words.add(r * S::LANES);
                        column[r] = match (COLUMN_PAIRS, half) {
                            (false, _) => S::load(words.cast()),
                            (true, 0) => S::low_halves(words),
                            (true, _) => S::high_halves(words),
                        };
                    }
                    if !COLUMN_PAIRS || half == 1 {
                        b = b.add(COLUMNS);
                    }
                    for row in 0..ROWS {
                        let factor = S::splat(*a.add(row * WORDS + 2 * pair + half).cast());
                        for r in 0..REGISTERS {
                            sums[row][r] = column[r].mul_add(factor, sums[row][r]);
                        }
                    }
                }
            }
            a = a.add(ROWS * WORDS);
        }
        store(&sums, to);
    }
}

/// The same address, which the compiler takes for another one. So it loads words again, where it would keep
/// them in registers that the sums need, and would move sums to memory.
#[expect(clippy::pointers_in_nomem_asm_block, reason = "there are no instructions that could use the memory")]
#[inline(always)]
fn hide_origin(mut address: *const u32) -> *const u32 {
    // SAFETY: there are no instructions.
    unsafe {
        asm!("/* {0} */", inout(reg) address, options(pure, nomem, nostack, preserves_flags));
    }
    address
}

/// The sum of the products of a row's word with a column's word.
trait WordProducts {
    fn sum_products(of_row: u32, of_column: u32) -> i32;
}

/// Two 16-bit integers.
struct Int16Products;

impl WordProducts for Int16Products {
    #[inline(always)]
    fn sum_products(of_row: u32, of_column: u32) -> i32 {
        [0, 16]
            .map(|shift| i32::from((of_row >> shift) as i16) * i32::from((of_column >> shift) as i16))
            .iter()
            .sum()
    }
}

/// Four bytes, unsigned in rows and signed in columns.
struct Int8Products;

impl WordProducts for Int8Products {
    #[inline(always)]
    fn sum_products(of_row: u32, of_column: u32) -> i32 {
        let mut sum = 0;
        for (factor, value) in of_row.to_le_bytes().into_iter().zip(of_column.to_le_bytes()) {
            sum += i32::from(factor) * i32::from(value.cast_signed());
        }
        sum
    }
}

/// Integers, for CPUs without an instruction for the products of a word.
#[inline(always)]
unsafe fn tile_of_integers<const ROWS: usize, P: WordProducts>(
    chunks: usize,
    mut a: *const u32,
    mut b: *const u32,
    start: Origin,
    mut ahead: Ahead,
    to: *mut f32,
) {
    let mut sums = [[0_i32; COLUMNS]; ROWS];
    for (row, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller guarantees the values of each row at `start`.
        *sums = unsafe { start.row(row).cast::<[i32; COLUMNS]>().read_unaligned() };
    }
    for _ in 0..chunks {
        ahead.step();
        for word in 0..WORDS {
            // SAFETY: the caller guarantees `chunks` chunks from `a` and from `b` on.
            let columns = unsafe { b.cast::<[u32; COLUMNS]>().read_unaligned() };
            for (row, sums) in sums.iter_mut().enumerate() {
                // SAFETY: as above.
                let factors = unsafe { *a.add(row * WORDS + word) };
                for (sum, column) in sums.iter_mut().zip(columns) {
                    *sum += P::sum_products(factors, column);
                }
            }
            // SAFETY: as above.
            b = unsafe { b.add(COLUMNS) };
        }
        // SAFETY: as above.
        a = unsafe { a.add(ROWS * WORDS) };
    }
    // SAFETY: the caller guarantees memory for `ROWS` rows of sums.
    unsafe { to.cast::<[[i32; COLUMNS]; ROWS]>().write_unaligned(sums) }
}

/// The initial sums.
#[expect(clippy::needless_range_loop, reason = "see above")]
#[inline(always)]
unsafe fn started<const ROWS: usize, S: Simd, const REGISTERS: usize>(
    start: Origin,
) -> [[S; REGISTERS]; ROWS] {
    // SAFETY: the caller guarantees the instruction set and the rows' values.
    unsafe {
        let mut sums = [[S::splat(0.0); REGISTERS]; ROWS];
        for row in 0..ROWS {
            for r in 0..REGISTERS {
                sums[row][r] = S::load(start.row(row).add(r * S::LANES));
            }
        }
        sums
    }
}

#[inline(always)]
unsafe fn store<const ROWS: usize, S: Simd, const REGISTERS: usize>(
    sums: &[[S; REGISTERS]; ROWS],
    to: *mut f32,
) {
    for (row, sums) in sums.iter().enumerate() {
        for (r, &sum) in sums.iter().enumerate() {
            // SAFETY: the caller guarantees the instruction set and memory for `ROWS` rows.
            unsafe { sum.store(to.add(row * COLUMNS + r * S::LANES)) }
        }
    }
}

#[cfg(target_arch = "x86_64")]
use native::{
    native_bf16_avx512, native_int8_avx2, native_int8_avx2vnni, native_int8_avx512, native_int8_low_avx2,
    native_int8_low_avx2vnni, native_int16_avx2, native_int16_avx2vnni, native_int16_avx512,
    native_int16_avx512vnni, native_int16_low_avx2, native_int16_low_avx2vnni,
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::pack::round_to_bf16;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use std::ops::RangeInclusive;

    /// The pairs of formats that are multiplied with this instruction set.
    fn formats(set: InstructionSet) -> [(OperandFormat, OperandFormat); 5] {
        let of_rows = OperandFormat::Bf16.of_rows(set);
        [
            (OperandFormat::F32, OperandFormat::F32),
            (OperandFormat::F32, OperandFormat::Bf16),
            (of_rows, OperandFormat::Bf16),
            (OperandFormat::Int16, OperandFormat::Int16),
            (OperandFormat::Int8, OperandFormat::Int8),
        ]
    }

    /// The values of a weight's bytes.
    const BYTES_OF_COLUMNS: RangeInclusive<i32> = -128..=127;

    /// The values of a row's bytes. A signed row has no -128.
    fn bytes_of_rows(set: InstructionSet) -> RangeInclusive<i32> {
        if set.byte_offset() == 0 { -127..=127 } else { 0..=255 }
    }

    /// A random word and its values. Bytes are from the range `bytes`, and often its ends.
    fn word(rng: &mut StdRng, format: OperandFormat, bytes: RangeInclusive<i32>) -> (u32, Vec<f64>) {
        match format {
            OperandFormat::F32 => {
                let value: f32 = rng.random_range(-1.0..1.0);
                (value.to_bits(), vec![f64::from(value)])
            }
            OperandFormat::WideBf16 => {
                let bits = u32::from(round_to_bf16(rng.random_range(-1.0..1.0))) << 16;
                (bits, vec![f64::from(f32::from_bits(bits))])
            }
            OperandFormat::Bf16 => {
                let halves = [0; 2].map(|_| round_to_bf16(rng.random_range(-1.0..1.0)));
                let value = |half| f64::from(f32::from_bits(u32::from(half) << 16));
                (u32::from(halves[0]) | u32::from(halves[1]) << 16, halves.map(value).to_vec())
            }
            OperandFormat::Int16 => {
                // Sums of such products are exact in `f64`, and less than 2³¹ in these tests.
                let halves = [0; 2].map(|_| rng.random_range(-4000..=4000_i16));
                let [low, high] = halves.map(i16::cast_unsigned).map(u32::from);
                (low | high << 16, halves.map(f64::from).to_vec())
            }
            OperandFormat::Int8 => {
                let values = [0; 4].map(|_| match rng.random_range(0..3) {
                    0 => *bytes.start(),
                    1 => *bytes.end(),
                    _ => rng.random_range(bytes.clone()),
                });
                (u32::from_le_bytes(values.map(|value| value as u8)), values.map(f64::from).to_vec())
            }
        }
    }

    /// Operands packed for `set`, and the sums of their products.
    fn operands(
        rng: &mut StdRng,
        set: InstructionSet,
        (left, right): (OperandFormat, OperandFormat),
        (rows, chunks): (usize, usize),
    ) -> (Vec<u32>, Vec<u32>, Vec<Vec<f64>>) {
        let words = chunks * WORDS;
        let mut a = vec![0; rows * words];
        let mut a_values = vec![Vec::new(); rows];
        for w in 0..words {
            for (row, values) in a_values.iter_mut().enumerate() {
                let (bits, of_word) = word(rng, left, bytes_of_rows(set));
                a[(w / WORDS * rows + row) * WORDS + w % WORDS] = bits;
                values.extend(of_word);
            }
        }
        let mut b = Vec::new();
        let mut b_values = vec![Vec::new(); COLUMNS];
        for _ in 0..words * left.per_word() / right.per_word() {
            for values in &mut b_values {
                let (bits, of_word) = word(rng, right, BYTES_OF_COLUMNS);
                b.push(bits);
                values.extend(of_word);
            }
        }
        let offset = if left == OperandFormat::Int8 { f64::from(set.byte_offset()) } else { 0.0 };
        let excess = |b: f64| match left {
            OperandFormat::Int8 => f64::from(set.byte_excess(b as i8)),
            _ => 0.0,
        };
        let dot =
            |a: &Vec<f64>, b: &Vec<f64>| a.iter().zip(b).map(|(a, b)| (a - offset) * b + excess(*b)).sum();
        let sums = a_values.iter().map(|a| b_values.iter().map(|b| dot(a, b)).collect()).collect();
        (a, b, sums)
    }

    #[test]
    fn every_tile_of_every_instruction_set_and_format_equals_plain_loops() {
        let mut rng = StdRng::seed_from_u64(7);
        for set in InstructionSet::available() {
            for formats in formats(set) {
                for rows in 1..=rows(set, formats.0) {
                    for chunks in [0, 2, 6] {
                        let (a, b, expected) = operands(&mut rng, set, formats, (rows, chunks));
                        let mut sums = Sums::of_tile();
                        sums.rows().fill([7.0; COLUMNS]);
                        let values: [f32; COLUMNS] = std::array::from_fn(|_| rng.random_range(-3.0..3.0));
                        let start = if chunks == 2 { Start::Zeros } else { Start::Columns(&values) };
                        TileKernel::new(set, formats.0, formats.1).multiply(
                            rows,
                            TileOperands { a: &a, b: &b },
                            start,
                            Ahead::NOTHING,
                            sums.rows(),
                        );
                        let counts = chunks != 2 && !formats.0.is_scaled();
                        let start = if counts { values } else { [0.0; COLUMNS] };
                        for (row, expected) in expected.iter().enumerate() {
                            for (column, (got, expected)) in sums.rows()[row].iter().zip(expected).enumerate()
                            {
                                let expected = expected + f64::from(start[column]);
                                let (got, tolerance) = match formats.0 {
                                    OperandFormat::Int16 | OperandFormat::Int8 => {
                                        (f64::from(got.to_bits().cast_signed()), 0.0)
                                    }
                                    _ => (f64::from(*got), 1e-5),
                                };
                                let what = format!("{set} {formats:?} {rows} rows, {chunks} chunks");
                                assert!((got - expected).abs() <= tolerance, "{what}: {got} for {expected}");
                            }
                        }
                        assert!(
                            sums.rows()[rows..]
                                .as_flattened()
                                .iter()
                                .all(|sum| sum.to_bits() == 7.0_f32.to_bits()),
                            "beyond {rows} rows"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_has_the_same_bits_in_a_tile_of_any_height() {
        let mut rng = StdRng::seed_from_u64(8);
        for set in InstructionSet::available() {
            for formats in formats(set) {
                let most = rows(set, formats.0);
                let (a, b, _) = operands(&mut rng, set, formats, (most, 4));
                let mut whole = Sums::of_tile();
                TileKernel::new(set, formats.0, formats.1).multiply(
                    most,
                    TileOperands { a: &a, b: &b },
                    Start::Zeros,
                    Ahead::NOTHING,
                    whole.rows(),
                );
                for row in 0..most {
                    let of_row = |chunk: &[u32]| chunk[row * WORDS..(row + 1) * WORDS].to_vec();
                    let alone: Vec<u32> = a.chunks_exact(most * WORDS).flat_map(of_row).collect();
                    let mut sums = Sums::of_tile();
                    TileKernel::new(set, formats.0, formats.1).multiply(
                        1,
                        TileOperands { a: &alone, b: &b },
                        Start::Zeros,
                        Ahead::NOTHING,
                        sums.rows(),
                    );
                    assert_eq!(
                        sums.rows()[0].map(f32::to_bits),
                        whole.rows()[row].map(f32::to_bits),
                        "{set} {formats:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn products_in_parts_have_the_bits_of_one_product() {
        let mut rng = StdRng::seed_from_u64(9);
        for set in InstructionSet::available() {
            for formats in formats(set) {
                for rows in 1..=rows(set, formats.0) {
                    let (a, b, _) = operands(&mut rng, set, formats, (rows, 6));
                    let (mut whole, mut parts) = (Sums::of_tile(), Sums::of_tile());
                    TileKernel::new(set, formats.0, formats.1).multiply(
                        rows,
                        TileOperands { a: &a, b: &b },
                        Start::Zeros,
                        Ahead::NOTHING,
                        whole.rows(),
                    );
                    for (from, to) in [(0, 2), (2, 2), (2, 6)] {
                        let a = &a[from * rows * WORDS..to * rows * WORDS];
                        let b = &b[b.len() / 6 * from..b.len() / 6 * to];
                        let start = if from == 0 { Start::Zeros } else { Start::Sums };
                        TileKernel::new(set, formats.0, formats.1).multiply(
                            rows,
                            TileOperands { a, b },
                            start,
                            Ahead::NOTHING,
                            parts.rows(),
                        );
                    }
                    let bits = |sums: &mut Sums| {
                        sums.rows()[..rows].as_flattened().iter().map(|sum| sum.to_bits()).collect::<Vec<_>>()
                    };
                    assert_eq!(bits(&mut whole), bits(&mut parts), "{set} {formats:?} {rows}");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "formats")]
    fn a_pair_of_formats_that_there_is_not_is_refused() {
        TileKernel::new(InstructionSet::Portable, OperandFormat::F32, OperandFormat::Int8);
    }
}
