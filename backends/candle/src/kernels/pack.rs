//! The operands of a product in the layout that the inner loop reads, made of words of four bytes.
//!
//! Blocks of rows: `[chunk][row][WORDS]`. Panels of columns: `[word][COLUMNS]`, made from a matrix that
//! stores its columns as rows (a weight `[out, in]`, or keys `[token, head_dim]`). Rows are padded to whole
//! chunks with zeros, panels with columns of zeros.

use super::{
    instruction_set::InstructionSet,
    layout::{COLUMNS, WORDS},
    lines::CacheLines,
    simd::{ROUND, dispatch},
};
use half::f16;
use text_embeddings_checkpoint::Encoding;

pub(crate) mod int16;
#[cfg(target_arch = "x86_64")]
pub(super) mod wide;

/// The type in which a checkpoint stores a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    /// 32-bit floating point.
    F32,
    /// 16-bit floating point (IEEE half).
    F16,
    /// 16-bit floating point with the range of 32-bit.
    Bf16,
    /// Blocks of quantised values.
    Blocks(&'static Encoding),
}

impl Stored {
    /// The size of a row in bytes. A row of blocks consists of whole blocks.
    pub(crate) fn row_bytes(self, columns: usize) -> usize {
        match self {
            Self::F32 => columns * 4,
            Self::F16 | Self::Bf16 => columns * 2,
            Self::Blocks(encoding) => columns / encoding.values * encoding.bytes,
        }
    }
}

/// The content of a word of a packed operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OperandFormat {
    /// One `f32`.
    F32,
    /// Two bfloat16 values, the first in the lower half.
    Bf16,
    /// One bfloat16 value, widened to `f32`: rows for products with columns in [`Self::Bf16`] where the CPU
    /// cannot multiply bfloat16.
    WideBf16,
    /// Two 16-bit integers, the first in the lower half: values divided by their row's scale and rounded.
    /// CPUs that cannot multiply bfloat16 multiply them faster than `f32`, and they round less than
    /// bfloat16.
    Int16,
    /// Four bytes: values divided by their row's scale and rounded. In blocks of rows,
    /// [`InstructionSet::byte_offset`](super::InstructionSet::byte_offset) is added to each.
    Int8,
}

impl OperandFormat {
    /// The format of rows for products with columns in this format.
    pub(crate) fn of_rows(self, set: InstructionSet) -> Self {
        if self == Self::Bf16 && !set.has_bf16() { Self::WideBf16 } else { self }
    }

    /// The number of values in a word.
    pub(crate) fn per_word(self) -> usize {
        match self {
            Self::F32 | Self::WideBf16 => 1,
            Self::Bf16 | Self::Int16 => 2,
            Self::Int8 => 4,
        }
    }

    /// Whether the values are integers, which each row's scale turns into values. Their products are summed
    /// as `i32`.
    pub(crate) fn is_scaled(self) -> bool {
        matches!(self, Self::Int16 | Self::Int8)
    }

    /// The length of a row of `depth` values after padding, in values. It is the same for `f32` and bfloat16,
    /// because they can be multiplied with each other.
    pub(crate) fn padded(self, depth: usize) -> usize {
        depth.next_multiple_of(match self {
            Self::F32 | Self::Bf16 | Self::WideBf16 | Self::Int16 => 2 * WORDS,
            Self::Int8 => 4 * WORDS,
        })
    }

    /// The length of a row of `depth` values after padding, in words.
    pub(crate) fn words(self, depth: usize) -> usize {
        self.padded(depth) / self.per_word()
    }
}

/// Packed values in cache lines.
pub(crate) type Words = CacheLines<u32>;

/// Rounds to the nearest bfloat16, ties to even. NaN stays NaN.
#[inline(always)]
pub(crate) fn round_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    if value.is_nan() { (bits >> 16) as u16 | 0x40 } else { rounded as u16 }
}

/// Two values as a word of [`OperandFormat::Bf16`].
#[inline(always)]
fn pair(first: f32, second: f32) -> u32 {
    u32::from(round_to_bf16(first)) | u32::from(round_to_bf16(second)) << 16
}

/// The bits of the largest magnitude among `values`. The bits have the order of magnitudes, with NaN above
/// infinity.
#[inline(always)]
fn largest(values: &[f32]) -> u32 {
    values.iter().fold(0, |largest, value| largest.max(value.abs().to_bits()))
}

/// Packs a row's values as words of `format`, padded with values of zero. `words` consists of whole lines
/// with at least `format.words(values.len())` elements. For integers, `scale` becomes the factor that turns
/// them into values, or NaN if a value is not finite, so that the fault is not lost. `offset` is added to
/// bytes.
pub(crate) fn row(
    set: InstructionSet,
    format: OperandFormat,
    values: &[f32],
    offset: i32,
    words: &mut [u32],
    scale: &mut f32,
) {
    match format {
        OperandFormat::F32 => {
            let (lines, _) = words.as_chunks_mut::<WORDS>();
            let (whole, rest) = values.as_chunks::<WORDS>();
            let (of_whole, others) = lines.split_at_mut(whole.len());
            for (line, values) in of_whole.iter_mut().zip(whole) {
                // A copy whose size the compiler knows.
                *line = values.map(f32::to_bits);
            }
            for (index, line) in others.iter_mut().enumerate() {
                let rest = if index == 0 { rest } else { &[] };
                *line = std::array::from_fn(|at| rest.get(at).map_or(0, |value| value.to_bits()));
            }
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every `InstructionSet` except `Portable` comes from `available`, which checked the CPU.
        OperandFormat::Bf16 if set.has_bf16() => unsafe { wide::round(values, words) },
        OperandFormat::Bf16 => round(set, values, words),
        OperandFormat::WideBf16 => round_wide(set, values, words),
        OperandFormat::Int16 => {
            int16::write_scales(set, &[values], std::slice::from_mut(scale));
            int16::round_rows(set, &[values], std::slice::from_ref(scale), words);
        }
        OperandFormat::Int8 => quantise(set, values, offset, words, scale),
    }
}

/// Packs rows as [`row`] does, without an offset, each as an equal part of `words`. `scales` has a value for
/// each row of integers.
pub(crate) fn rows(
    set: InstructionSet,
    format: OperandFormat,
    rows: &[&[f32]],
    words: &mut [u32],
    scales: &mut [f32],
) {
    if format == OperandFormat::Int16 {
        int16::write_scales(set, rows, scales);
        return int16::round_rows(set, rows, scales, words);
    }
    let mut scales = scales.iter_mut();
    for (words, values) in words.chunks_exact_mut(words.len() / rows.len()).zip(rows) {
        row(set, format, values, 0, words, scales.next().unwrap_or(&mut 1.0));
    }
}

dispatch! {
    /// [`row`] for bfloat16.
    fn round(values: &[f32], words: &mut [u32]) {
        let (pairs, rest) = values.as_chunks::<2>();
        for (word, [first, second]) in words.iter_mut().zip(pairs) {
            *word = pair(*first, *second);
        }
        words[pairs.len()..].fill(0);
        if let [last] = rest {
            words[pairs.len()] = pair(*last, 0.0);
        }
    }
}

dispatch! {
    /// [`row`] for widened bfloat16.
    fn round_wide(values: &[f32], words: &mut [u32]) {
        for (word, value) in words.iter_mut().zip(values) {
            *word = u32::from(round_to_bf16(*value)) << 16;
        }
        words[values.len()..].fill(0);
    }
}

dispatch! {
    /// [`row`] for bytes.
    fn quantise(values: &[f32], offset: i32, words: &mut [u32], scale: &mut f32) {
        let largest = f32::from_bits(largest(values));
        if !largest.is_finite() {
            words.fill(0);
            *scale = f32::NAN;
            return;
        }
        *scale = largest.max(f32::MIN_POSITIVE * 128.0) / 127.0;
        let inverse = 1.0 / *scale;
        let byte = |value: f32| {
            let shifted = if FUSED { value.mul_add(inverse, ROUND) } else { value * inverse + ROUND };
            (shifted.to_bits().cast_signed().wrapping_add(offset) & 0xff).cast_unsigned()
        };
        #[cfg(target_arch = "x86_64")]
        let (values, words) = if WIDE {
            let (whole, rest) = values.as_chunks::<WORDS>();
            let (of_whole, of_rest) = words.split_at_mut(whole.len() * WORDS / 4);
            // SAFETY: `WIDE` bodies only run if `InstructionSet::available` found AVX-512.
            unsafe { wide::bytes(whole, inverse, offset, of_whole) };
            (rest, of_rest)
        } else {
            (values, words)
        };
        let (quads, rest) = values.as_chunks::<4>();
        for (word, &[a, b, c, d]) in words.iter_mut().zip(quads) {
            *word = byte(a) | byte(b) << 8 | byte(c) << 16 | byte(d) << 24;
        }
        let zero = byte(0.0);
        words[quads.len()..].fill(zero * 0x0101_0101);
        for (index, &value) in rest.iter().enumerate() {
            words[quads.len()] ^= (zero ^ byte(value)) << (8 * index);
        }
    }
}

/// Packs a row of multiples of `step`, with factors from -128 to 127, as words of [`OperandFormat::Int8`]
/// without an offset.
pub(crate) fn multiples(values: &[f32], step: f32, words: &mut [u32]) {
    words.fill(0);
    for (word, values) in words.iter_mut().zip(values.chunks(4)) {
        let mut bytes = [0; 4];
        for (byte, value) in bytes.iter_mut().zip(values) {
            *byte = ((value / step).round_ties_even() as i8).cast_unsigned();
        }
        *word = u32::from_le_bytes(bytes);
    }
}

/// Packs up to [`COLUMNS`] rows of equal length for products that sum over rows: as panels of [`COLUMNS`]
/// columns, whose first lines are `stride` words apart. A word of a line holds a column's values in as many
/// rows as there are values in a word. Missing rows and columns are zeros. For integers, there is a scale for
/// each row.
pub(crate) fn pack_lines(
    set: InstructionSet,
    format: OperandFormat,
    rows: &[&[f32]],
    scales: &[f32],
    panels: &mut [u32],
    stride: usize,
) {
    for (panel, lines) in panels.chunks_mut(stride).enumerate() {
        let lines = &mut lines.as_chunks_mut::<COLUMNS>().0[..COLUMNS / format.per_word()];
        let first = panel * COLUMNS;
        match format {
            OperandFormat::Int16 => int16::interleave(set, rows, scales, first, lines),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: every `InstructionSet` except `Portable` comes from `available`, which checked the CPU.
            OperandFormat::Bf16 if set.has_bf16() => unsafe { wide::interleave(rows, first, lines) },
            OperandFormat::Bf16 => interleave(set, rows, first, lines),
            OperandFormat::F32 | OperandFormat::WideBf16 | OperandFormat::Int8 => {
                assert!(format == OperandFormat::F32);
                for (row, line) in lines.iter_mut().enumerate() {
                    *line = values_from(rows, row, first).map(f32::to_bits);
                }
            }
        }
    }
}

/// The values of a row in the columns from `first` on. Missing ones are zeros.
#[inline(always)]
fn values_from(rows: &[&[f32]], row: usize, first: usize) -> [f32; COLUMNS] {
    let values = rows.get(row).map_or(&[][..], |row| &row[first..row.len().min(first + COLUMNS)]);
    // A copy whose size the compiler knows.
    values.try_into().unwrap_or_else(|_| std::array::from_fn(|at| values.get(at).copied().unwrap_or(0.0)))
}

dispatch! {
    /// [`pack_lines`] for a panel of bfloat16 whose columns begin with `first`, without special instructions.
    fn interleave(rows: &[&[f32]], first: usize, lines: &mut [[u32; COLUMNS]]) {
        for (word, line) in lines.iter_mut().enumerate() {
            let [a, b] = [2 * word, 2 * word + 1].map(|row| values_from(rows, row, first));
            for ((word, a), b) in line.iter_mut().zip(a).zip(b) {
                *word = pair(a, b);
            }
        }
    }
}

/// Turns lines of `f32` bits, `[panel][half][row]`, into a block of `rows` rows in `format`, which has no
/// scales. The block begins at the first line.
pub(crate) fn block(set: InstructionSet, format: OperandFormat, lines: &mut [[u32; WORDS]], rows: usize) {
    match format {
        // Each line is a row of a chunk already.
        OperandFormat::F32 => {}
        OperandFormat::WideBf16 => round_words(set, lines.as_flattened_mut()),
        OperandFormat::Bf16 | OperandFormat::Int16 | OperandFormat::Int8 => {
            assert!(!format.is_scaled());
            // A panel has as many words as a chunk. So its block ends before the next panel's first line.
            for panel in 0..lines.len() / (2 * rows) {
                for row in 0..rows {
                    let mut values = [0.0; COLUMNS];
                    for (half, values) in values.as_chunks_mut::<WORDS>().0.iter_mut().enumerate() {
                        *values = lines[(2 * panel + half) * rows + row].map(f32::from_bits);
                    }
                    self::row(set, format, &values, 0, &mut lines[panel * rows + row], &mut 1.0);
                }
            }
        }
    }
}

dispatch! {
    /// Rounds the bits of `f32` to the nearest bfloat16, widened.
    fn round_words(words: &mut [u32]) {
        for word in words {
            *word = u32::from(round_to_bf16(f32::from_bits(*word))) << 16;
        }
    }
}

const _: () = assert!(COLUMNS == 2 * WORDS);

/// Copies the words of the row `index` to its place in a block of `rows` rows.
pub(crate) fn place(words: &[u32], block: &mut [u32], index: usize, rows: usize) {
    let (lines, _) = block.as_chunks_mut::<WORDS>();
    for (chunk, words) in words.as_chunks().0.iter().enumerate() {
        // The compiler knows the size of this copy.
        lines[chunk * rows + index] = *words;
    }
}

/// Widens stored values to `f32`. `bytes` holds `out.len()` values.
pub(crate) fn widen(stored: Stored, bytes: &[u8], out: &mut [f32]) {
    match stored {
        Stored::F32 => widen_with::<4>(bytes, out, f32::from_le_bytes),
        Stored::F16 => widen_with::<2>(bytes, out, |bytes| f16::from_le_bytes(bytes).to_f32()),
        Stored::Bf16 => {
            widen_with::<2>(bytes, out, |bytes| f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16));
        }
        Stored::Blocks(encoding) => encoding.widen(bytes, out),
    }
}

#[inline(always)]
fn widen_with<const SIZE: usize>(bytes: &[u8], out: &mut [f32], convert: impl Fn([u8; SIZE]) -> f32) {
    let (values, _) = bytes.as_chunks::<SIZE>();
    for (out, value) in out.iter_mut().zip(values) {
        *out = convert(*value);
    }
}

dispatch! {
    /// Transposes up to [`COLUMNS`] rows of words, `[row][words]`, into one panel `[words][COLUMNS]`. `words`
    /// is a multiple of [`WORDS`].
    fn panel(rows: &[u32], words: usize, panel: &mut [u32]) {
        let (lines, _) = panel.as_chunks_mut::<COLUMNS>();
        for (chunk, lines) in lines.as_chunks_mut::<WORDS>().0.iter_mut().enumerate() {
            let mut square = [[0_u32; WORDS]; COLUMNS];
            for (square, row) in square.iter_mut().zip(rows.chunks_exact(words)) {
                *square = row.as_chunks().0[chunk];
            }
            #[cfg(target_arch = "x86_64")]
            if WIDE {
                // SAFETY: `WIDE` bodies only run if `InstructionSet::available` found AVX-512.
                unsafe { wide::transpose(&square, lines) };
                continue;
            }
            for (k, line) in lines.iter_mut().enumerate() {
                *line = std::array::from_fn(|column| square[column][k]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::InstructionSet;
    use super::*;
    use half::bf16;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    const FORMATS: [OperandFormat; 5] = [
        OperandFormat::F32,
        OperandFormat::Bf16,
        OperandFormat::WideBf16,
        OperandFormat::Int16,
        OperandFormat::Int8,
    ];

    fn halves(word: u32) -> [f32; 2] {
        [f32::from_bits(word << 16), f32::from_bits(word & 0xffff_0000)]
    }

    fn random(rng: &mut StdRng, len: usize) -> Vec<f32> {
        (0..len).map(|_| rng.random_range(-2.0..2.0)).collect()
    }

    #[test]
    fn rounding_is_that_of_a_well_known_library() {
        let mut rng = StdRng::seed_from_u64(1);
        let special = [0.0, -0.0, 1.0, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN_POSITIVE, 1e-45];
        let ties = [0x3f80_8000, 0x3f81_8000, 0x3f80_7fff, 0x3f80_8001].map(f32::from_bits);
        let random = (0..10_000).map(|_| f32::from_bits(rng.random())).filter(|value| !value.is_nan());
        let values: Vec<f32> = special.into_iter().chain(ties).chain(random).collect();
        for &value in &values {
            assert_eq!(round_to_bf16(value), bf16::from_f32(value).to_bits(), "{value}");
        }
        // The CPU's own conversion flushes subnormal values to zeros of the same sign.
        let flushed = |bits: u16| if bits & 0x7f80 == 0 { bits & 0x8000 } else { bits };
        for set in InstructionSet::available() {
            let packed = |format: OperandFormat| {
                let mut words = vec![0; format.words(values.len())];
                row(set, format, &values, 0, &mut words, &mut 1.0);
                words
            };
            let (rounded, wide) = (packed(OperandFormat::Bf16), packed(OperandFormat::WideBf16));
            let stride = COLUMNS * COLUMNS / 2;
            let mut panels = vec![0; values.len().div_ceil(COLUMNS) * stride];
            pack_lines(set, OperandFormat::Bf16, &[&values, &values], &[], &mut panels, stride);
            let pairs = panels.chunks(stride).flat_map(|lines| &lines[..COLUMNS]);
            let rounded = rounded.iter().flat_map(|&word| [word as u16, (word >> 16) as u16]);
            for (((&value, rounded), wide), pair) in values.iter().zip(rounded).zip(wide).zip(pairs.copied())
            {
                let expected = flushed(bf16::from_f32(value).to_bits());
                assert_eq!(wide, u32::from(bf16::from_f32(value).to_bits()) << 16, "{set}: {value}");
                for got in [rounded, pair as u16, (pair >> 16) as u16] {
                    assert_eq!(flushed(got), expected, "{set}: {value}");
                }
            }
        }
        for nan in [f32::NAN, f32::from_bits(0x7fff_ffff), f32::from_bits(0x7f80_0001)] {
            assert!(bf16::from_bits(round_to_bf16(nan)).is_nan());
        }
    }

    #[test]
    fn stored_values_are_widened_exactly() {
        let mut rng = StdRng::seed_from_u64(2);
        let values = random(&mut rng, 37);
        let halves: Vec<f16> = values.iter().map(|&value| f16::from_f32(value)).collect();
        let brains: Vec<bf16> = values.iter().map(|&value| bf16::from_f32(value)).collect();
        let bytes_of_halves: Vec<u8> = halves.iter().flat_map(|value| value.to_le_bytes()).collect();
        let bytes_of_brains: Vec<u8> = brains.iter().flat_map(|value| value.to_le_bytes()).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        for (stored, bytes, expected) in [
            (Stored::F32, bytes, values),
            (Stored::F16, bytes_of_halves, halves.iter().map(|value| value.to_f32()).collect()),
            (Stored::Bf16, bytes_of_brains, brains.iter().map(|value| value.to_f32()).collect()),
        ] {
            let mut wide = vec![0.0; 37];
            widen(stored, &bytes, &mut wide);
            assert_eq!(wide, expected, "{stored:?}");
        }
    }

    /// The values of words in `format`, before they are multiplied by scales.
    fn values_of_words(format: OperandFormat, words: &[u32]) -> Vec<f32> {
        match format {
            OperandFormat::F32 | OperandFormat::WideBf16 => {
                words.iter().map(|&word| f32::from_bits(word)).collect()
            }
            OperandFormat::Bf16 => words.iter().flat_map(|&word| halves(word)).collect(),
            OperandFormat::Int16 => {
                words.iter().flat_map(|&word| int16::integers_of_word(word)).map(|int| int as f32).collect()
            }
            OperandFormat::Int8 => {
                let bytes = words.iter().flat_map(|word| word.to_le_bytes());
                bytes.map(|byte| f32::from(byte.cast_signed())).collect()
            }
        }
    }

    /// How far a packed value may be from a value of at most 2.
    fn tolerance(format: OperandFormat, scale: f32) -> f32 {
        match format {
            OperandFormat::F32 => 0.0,
            OperandFormat::Bf16 | OperandFormat::WideBf16 => 2.0 / 256.0,
            OperandFormat::Int16 => 0.51 * scale,
            OperandFormat::Int8 => 0.5001 * scale,
        }
    }

    #[test]
    fn rows_hold_their_values_and_zeros() {
        let mut rng = StdRng::seed_from_u64(3);
        for set in InstructionSet::available() {
            for depth in 1..=130 {
                let values = random(&mut rng, depth);
                for format in FORMATS {
                    let mut words = vec![u32::MAX; format.words(depth)];
                    let mut scale = 1.0;
                    row(set, format, &values, 0, &mut words, &mut scale);
                    let got = values_of_words(format, &words);
                    assert_eq!(got.len(), format.padded(depth));
                    for (index, got) in got.into_iter().map(|value| value * scale).enumerate() {
                        let expected = values.get(index).copied().unwrap_or_default();
                        assert!(
                            (got - expected).abs() <= tolerance(format, scale),
                            "{set} {format:?} {depth} at {index}: {got} for {expected}"
                        );
                        assert!(index < depth || got == 0.0, "padding");
                    }
                }
            }
        }
    }

    #[test]
    fn lines_hold_a_column_of_one_or_two_rows_in_each_word_and_zeros() {
        let mut rng = StdRng::seed_from_u64(18);
        for set in InstructionSet::available() {
            for (count, width) in (1..=COLUMNS).map(|count| (count, 1 + (count * 29) % 100)) {
                let mut rows: Vec<Vec<f32>> = (0..count).map(|_| random(&mut rng, width)).collect();
                // Small rows between others, so that each needs its own scale.
                rows.iter_mut().skip(1).step_by(2).flatten().for_each(|value| *value *= 1e-6);
                let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
                for format in [OperandFormat::F32, OperandFormat::Bf16, OperandFormat::Int16] {
                    let mut scales = vec![1.0; count];
                    if format.is_scaled() {
                        int16::write_scales(set, &rows, &mut scales);
                    }
                    let (per_word, panels) = (format.per_word(), width.div_ceil(COLUMNS));
                    // Panels have other lines between them. The last one may end with its own lines.
                    let (used, stride) = (COLUMNS / per_word * COLUMNS, 3 * COLUMNS * COLUMNS);
                    let mut words = vec![7; (panels - 1) * stride + used];
                    pack_lines(set, format, &rows, &scales, &mut words, stride);
                    for (panel, words) in words.chunks(stride).enumerate() {
                        assert!(words[used..].iter().all(|&word| word == 7), "{set} {format:?}");
                        let got = values_of_words(format, &words[..used]);
                        for (at, got) in got.into_iter().enumerate() {
                            let row = at / (per_word * COLUMNS) * per_word + at % per_word;
                            let column = panel * COLUMNS + at / per_word % COLUMNS;
                            let scale = scales.get(row).copied().unwrap_or(1.0);
                            let expected = rows.get(row).and_then(|row| row.get(column)).unwrap_or(&0.0);
                            let error = (got * scale - expected).abs();
                            assert!(
                                error <= tolerance(format, scale),
                                "{set} {format:?} {count}x{width} at {row},{column}: {got} for {expected}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn bytes_keep_the_largest_value_and_tell_what_is_not_finite() {
        for set in InstructionSet::available() {
            let (mut words, mut scale) = (vec![0; 16], 0.0);
            row(set, OperandFormat::Int8, &[1.0, -2.0, 0.0, 0.5, 2.0], 128, &mut words, &mut scale);
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).take(5).collect();
            assert_eq!((bytes, scale), (vec![192, 1, 128, 160, 255], 2.0 / 127.0), "{set}");
            row(set, OperandFormat::Int8, &[0.0; 7], 128, &mut words, &mut scale);
            assert!(scale > 0.0 && scale < 1e-30, "{set}");
            for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut values = [1.0; 40];
                values[33] = broken;
                row(set, OperandFormat::Int8, &values, 0, &mut words, &mut scale);
                assert!(scale.is_nan(), "{set} {broken}");
            }
        }
    }

    #[test]
    fn panels_are_the_transpose_padded_with_columns_of_zeros() {
        let mut rng = StdRng::seed_from_u64(4);
        for set in InstructionSet::available() {
            for (rows, words) in (1..=COLUMNS).flat_map(|rows| [(rows, 16), (rows, 48)]) {
                let values: Vec<u32> = (0..rows * words).map(|_| rng.random()).collect();
                let mut out = vec![u32::MAX; words * COLUMNS];
                panel(set, &values, words, &mut out);
                for (at, &got) in out.iter().enumerate() {
                    let (word, column) = (at / COLUMNS, at % COLUMNS);
                    let expected = if column < rows { values[column * words + word] } else { 0 };
                    assert_eq!(got, expected, "{set} {rows}x{words} at {word},{column}");
                }
            }
        }
    }

    #[test]
    fn lines_of_rows_become_blocks() {
        let mut rng = StdRng::seed_from_u64(5);
        for set in InstructionSet::available() {
            for (rows, panels) in (1..=14).map(|rows| (rows, 1 + rows % 3)) {
                let depth = panels * COLUMNS;
                let values: Vec<Vec<f32>> = (0..rows).map(|_| random(&mut rng, depth)).collect();
                let line = |half: usize, row: &Vec<f32>| -> [u32; WORDS] {
                    std::array::from_fn(|at| row[half * WORDS + at].to_bits())
                };
                let lines: Vec<[u32; WORDS]> =
                    (0..2 * panels).flat_map(|half| values.iter().map(move |row| line(half, row))).collect();
                for format in [OperandFormat::F32, OperandFormat::Bf16, OperandFormat::WideBf16] {
                    let words = format.words(depth);
                    let (mut got, mut expected) = (lines.clone(), vec![0; rows * words]);
                    block(set, format, &mut got, rows);
                    for (index, values) in values.iter().enumerate() {
                        let mut of_row = vec![0; words];
                        row(set, format, values, 0, &mut of_row, &mut 1.0);
                        place(&of_row, &mut expected, index, rows);
                    }
                    assert_eq!(
                        got.as_flattened()[..rows * words],
                        expected,
                        "{set} {format:?} {rows}x{depth}"
                    );
                }
            }
        }
    }

    #[test]
    fn blocks_hold_their_rows_chunk_by_chunk() {
        for (rows, chunks) in (1..=32).map(|rows| (rows, 1 + rows % 3)) {
            let mut block = vec![0; rows * chunks * WORDS];
            let word = |row: usize, at: usize| (row * 1000 + at) as u32 + 1;
            for row in 0..rows {
                let words: Vec<u32> = (0..chunks * WORDS).map(|at| word(row, at)).collect();
                place(&words, &mut block, row, rows);
            }
            for (at, &got) in block.iter().enumerate() {
                let (chunk, row) = (at / (rows * WORDS), at / WORDS % rows);
                assert_eq!(got, word(row, chunk * WORDS + at % WORDS));
            }
        }
    }
}
