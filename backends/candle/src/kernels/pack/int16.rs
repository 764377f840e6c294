//! Rows of 16-bit integers, instead of bfloat16 on CPUs that do not multiply it.
//!
//! Input: rows of `f32`. Output: words of two integers, and the scale that turns them into values. What must
//! hold: the sum of the products of two packed rows is less than 2³¹, whatever their length and values; a
//! row's integers do not depend on other rows.

use super::values_from;
#[cfg(target_arch = "x86_64")]
use super::wide;
use crate::kernels::{
    layout::{COLUMNS, WORDS},
    simd::{ROUND, Simd, dispatch, mul_add},
};

/// The largest norm of a row of 16-bit integers, before rounding adds at most half of the square root of the
/// row's length to it. So each integer fits, and the sum of the products of two rows is less than 2³¹.
const LARGEST_NORM: f32 = 32_767.0;
/// The least scale of 16-bit integers. The squares of smaller values are no longer normal.
const LEAST_SCALE: f32 = 1e-20;
/// The least sum of weights that count.
const LEAST_SUM: f32 = 1e-30;

/// The sum of a row's squares.
#[inline(always)]
fn sum_of_squares<S: Simd>(values: &[f32]) -> f32 {
    let registers = values.chunks_exact(S::LANES);
    let rest: f32 = registers.remainder().iter().map(|value| value * value).sum();
    // SAFETY: the caller is compiled for the instruction set of `S`, and the CPU has it. Each chunk fills a
    // register.
    let sum = unsafe {
        let mut sum = S::splat(0.0);
        for register in registers {
            let register = S::load(register.as_ptr());
            sum = register.mul_add(register, sum);
        }
        sum.sum()
    };
    sum + rest
}

dispatch! {
    /// Writes the scales of rows. A scale is NaN if a value is not finite, or so large that its square is
    /// not.
    fn write_scales(rows: &[&[f32]], scales: &mut [f32]) {
        for (scale, row) in scales.iter_mut().zip(rows) {
            *scale = sum_of_squares::<S>(row);
        }
        // A loop of its own: a row's square root would be waited for before its values are read.
        for scale in scales.iter_mut().take(rows.len()) {
            let norm = scale.sqrt();
            *scale = if norm.is_finite() { (norm / LARGEST_NORM).max(LEAST_SCALE) } else { f32::NAN };
        }
    }
}

/// A value's nearest 16-bit integer, in the lower half of a word.
#[inline(always)]
fn nearest_integer<const FUSED: bool>(value: f32, inverse: f32) -> u32 {
    mul_add::<FUSED>(value, inverse, ROUND).to_bits() & 0xffff
}

/// Packs the integers nearest to `values · inverse`, and zeros behind them.
#[inline(always)]
fn round_values<const FUSED: bool, const WIDE: bool>(values: &[f32], inverse: f32, words: &mut [u32]) {
    #[cfg(target_arch = "x86_64")]
    let (values, words) = if WIDE {
        let (whole, rest) = values.as_chunks::<WORDS>();
        let (of_whole, of_rest) = words.split_at_mut(whole.len() * WORDS / 2);
        // SAFETY: `WIDE` bodies only run if `InstructionSet::available` found AVX-512.
        unsafe { wide::round_to_int16(whole, inverse, of_whole) };
        (rest, of_rest)
    } else {
        (values, words)
    };
    if words.is_empty() {
        return;
    }
    let (pairs, rest) = values.as_chunks::<2>();
    for (word, &[first, second]) in words.iter_mut().zip(pairs) {
        *word = nearest_integer::<FUSED>(first, inverse) | nearest_integer::<FUSED>(second, inverse) << 16;
    }
    words[pairs.len()..].fill(0);
    if let [last] = rest {
        words[pairs.len()] = nearest_integer::<FUSED>(*last, inverse);
    }
}

dispatch! {
    /// Packs rows that have these scales, each as an equal part of `words`, which it pads with zeros.
    fn round_rows(rows: &[&[f32]], scales: &[f32], words: &mut [u32]) {
        let row_words = words.len() / rows.len();
        for ((row, scale), words) in rows.iter().zip(scales).zip(words.chunks_exact_mut(row_words)) {
            round_values::<FUSED, WIDE>(row, 1.0 / scale, words);
        }
    }
}

dispatch! {
    /// [`pack_lines`](super::pack_lines) for a panel whose columns begin with `first`.
    fn interleave(rows: &[&[f32]], scales: &[f32], first: usize, lines: &mut [[u32; COLUMNS]]) {
        let inverse = |row: usize| scales.get(row).map_or(0.0, |scale| 1.0 / scale);
        for (word, line) in lines.iter_mut().enumerate() {
            let [first_row, second_row] = [2 * word, 2 * word + 1];
            let a = values_from(rows, first_row, first);
            let b = values_from(rows, second_row, first);
            let [of_a, of_b] = [inverse(first_row), inverse(second_row)];
            for ((word, a), b) in line.iter_mut().zip(a).zip(b) {
                *word = nearest_integer::<FUSED>(a, of_a) | nearest_integer::<FUSED>(b, of_b) << 16;
            }
        }
    }
}

dispatch! {
    /// Turns lines of weights, the bits of `f32` in `[panel][half][row]`, into a block of 16-bit integers,
    /// which begins at the first line. `sums` has the sum of each row's weights, which are not negative, and
    /// becomes the factor that turns the integers into weights. Their sum is less than 2¹⁶, so that a sum of
    /// products with any 16-bit integers is less than 2³¹.
    fn round_block(lines: &mut [[u32; WORDS]], sums: &mut [f32]) {
        let rows = sums.len();
        for (row, sum) in sums.iter_mut().enumerate() {
            let inverse = if *sum > LEAST_SUM { LARGEST_NORM / *sum } else { 0.0 };
            *sum /= LARGEST_NORM;
            // A panel has as many words as a chunk. So its block ends before the next panel's first line.
            for panel in 0..lines.len() / (2 * rows) {
                let halves = [0, 1].map(|half| lines[(2 * panel + half) * rows + row].map(f32::from_bits));
                let line = &mut lines[panel * rows + row];
                round_values::<FUSED, WIDE>(halves.as_flattened(), inverse, line);
            }
        }
    }
}

/// The integers in a word.
#[cfg(test)]
pub(super) fn integers_of_word(word: u32) -> [i32; 2] {
    [word, word >> 16].map(|half| i32::from(half as i16))
}

#[cfg(test)]
mod tests {
    use super::super::{COLUMNS, InstructionSet, OperandFormat, row};
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    fn random_values(rng: &mut StdRng, len: usize) -> Vec<f32> {
        (0..len).map(|_| rng.random_range(-2.0..2.0)).collect()
    }

    /// Rows as bad as can be: one value, equal values, few large ones.
    #[test]
    fn sums_of_products_of_16_bit_integers_fit_32_bits() {
        let mut rng = StdRng::seed_from_u64(13);
        for set in InstructionSet::available() {
            for depth in [1, 2, 3, 31, 128, 3072, 20_001] {
                let mut spiky = vec![1e-3; depth];
                spiky[depth / 2] = -7.0;
                for values in [vec![3.0; depth], vec![-1e15; depth], spiky, random_values(&mut rng, depth)] {
                    let (mut words, mut scale) = (vec![0; OperandFormat::Int16.words(depth)], 0.0);
                    row(set, OperandFormat::Int16, &values, 0, &mut words, &mut scale);
                    let ints: Vec<i64> =
                        words.iter().flat_map(|&word| integers_of_word(word)).map(i64::from).collect();
                    let sum: i64 = ints.iter().map(|int| int * int).sum();
                    assert!(sum < 1 << 31 && scale > 0.0, "{set} {depth}: {sum}");
                    let largest = ints.iter().map(|int| int.abs()).max().unwrap_or_default();
                    assert!(sum > 32_600 * 32_600 && largest <= 32_767, "{set} {depth}: {sum} {largest}");
                }
            }
            let (mut words, mut scale) = (vec![1; 16], 0.0);
            for small in [0.0, 1e-21, 1e-30] {
                row(set, OperandFormat::Int16, &[small; 9], 0, &mut words, &mut scale);
                assert!(words.iter().all(|&word| word == 0) && scale > 0.0, "{set} {small}");
            }
            for broken in [f32::NAN, f32::INFINITY] {
                row(set, OperandFormat::Int16, &[1.0, broken, 2.0], 0, &mut words, &mut scale);
                assert!(scale.is_nan(), "{set}");
            }
        }
    }

    #[test]
    fn weights_become_integers_whose_sum_is_bounded() {
        let mut rng = StdRng::seed_from_u64(17);
        for set in InstructionSet::available() {
            for (rows, panels) in (1..=14).map(|rows| (rows, 1 + rows % 5)) {
                let weights: Vec<Vec<f32>> = (0..rows)
                    .map(|row| {
                        let scale = [1.0, 1e-18, 0.0][row % 3];
                        (0..panels * COLUMNS)
                            .map(|_| rng.random_range(0.0..1.0_f32).powi(9) * scale)
                            .collect()
                    })
                    .collect();
                let line = |half: usize, row: &Vec<f32>| -> [u32; WORDS] {
                    std::array::from_fn(|at| row[half * WORDS + at].to_bits())
                };
                let mut lines: Vec<[u32; WORDS]> =
                    (0..2 * panels).flat_map(|half| weights.iter().map(move |row| line(half, row))).collect();
                let mut factors: Vec<f32> = weights.iter().map(|row| row.iter().sum()).collect();
                round_block(set, &mut lines, &mut factors);
                for (row, weights) in weights.iter().enumerate() {
                    let of_row =
                        (0..panels).flat_map(|panel| lines[panel * rows + row]).flat_map(integers_of_word);
                    let mut sum = 0;
                    for (got, &weight) in of_row.zip(weights) {
                        sum += got;
                        let error = (got as f32 * factors[row] - weight).abs();
                        assert!(got >= 0 && error <= 0.51 * factors[row], "{set} {rows}: {got} {weight}");
                    }
                    assert!(sum < 1 << 16, "{set} {rows}: {sum}");
                }
            }
            let mut lines = [[1.0_f32.to_bits(); WORDS]; 2];
            let mut factor = [f32::NAN];
            round_block(set, &mut lines, &mut factor);
            assert!(factor[0].is_nan());
        }
    }
}
