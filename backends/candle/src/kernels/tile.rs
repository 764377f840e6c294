//! The inner loop of every matrix product: a tile of up to [`MAX_ROWS`] × [`COLUMNS`] sums kept in registers.
//!
//! Input: a block of rows and a panel of columns, which `pack` packed into words of four bytes. Output: the
//! sums of their products. What must hold: a sum depends only on its own row and column, not on the number of
//! rows in the tile. So a token's result is bit-identical in every batch.

mod generic;
#[cfg(target_arch = "x86_64")]
mod native;
#[cfg(target_arch = "aarch64")]
mod neon;
mod sums;

pub(crate) use sums::Sums;

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::{
    ahead::Ahead,
    instruction_set::InstructionSet,
    layout::{COLUMNS, Origin, WORDS},
    pack::OperandFormat,
};
#[cfg(target_arch = "x86_64")]
use generic::{
    f32_avx2, f32_avx512, f32_by_bf16_avx2, f32_by_bf16_avx512, f32_by_bf16_low_avx2, f32_low_avx2,
    int8_avx512,
};
use generic::{f32_by_bf16_portable, f32_portable, int8_portable, int16_portable};
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
                    ahead.bring_places(chunks);
                    function(rows, chunks, a, b, start, to);
                }
            }
        }
    }
}

/// The initial sums if there is nothing to add to. The bits are also zeros as `i32`, the sums of integers.
pub(crate) static ZEROS: [f32; COLUMNS] = [0.0; COLUMNS];

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
