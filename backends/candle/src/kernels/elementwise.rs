//! Work on one row at a time between products: norms, rotary positions, means, and the mixing of rows before
//! they become bytes. [`super::activation`] has the activations.
//!
//! The compiler vectorises loops over slices for each instruction set. Only `spread` uses registers
//! explicitly.

use super::simd::{Simd, dispatch, mul_add};

/// The sum of `f` over the elements, in 64 interleaved partial sums: four of the widest registers, so that an
/// addition waits for the fourth one before it.
#[inline(always)]
pub(super) fn sum_of(x: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
    let (chunks, rest) = x.as_chunks::<64>();
    let mut sums = [0.0_f32; 64];
    for chunk in chunks {
        for (sum, &value) in sums.iter_mut().zip(chunk) {
            *sum = f(value, *sum);
        }
    }
    for (sum, &value) in sums.iter_mut().zip(rest) {
        *sum = f(value, *sum);
    }
    for half in [32, 16, 8, 4, 2, 1] {
        for index in 0..half {
            sums[index] += sums[index + half];
        }
    }
    sums[0]
}

/// `out = x / √(mean(x²) + epsilon) · weight`.
#[inline(always)]
fn rms_norm_row<const FUSED: bool>(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let mean = sum_of(x, |value, sum| mul_add::<FUSED>(value, value, sum)) / x.len() as f32;
    let scale = 1.0 / (mean + epsilon).sqrt();
    for ((out, &value), &weight) in out.iter_mut().zip(x).zip(weight) {
        *out = weight * (value * scale);
    }
}

dispatch! {
    /// Writes the root-mean-square norm of each row of `x`, `[rows, weight.len()]`, to `out`.
    fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
        for (x, out) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
            rms_norm_row::<FUSED>(x, weight, epsilon, out);
        }
    }
}

dispatch! {
    /// Writes the layer norm of each row of `x`, `[rows, weight.len()]`, to `out`: `(x - mean) / √(variance +
    /// epsilon) · weight + bias`.
    fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], epsilon: f32, out: &mut [f32]) {
        let width = weight.len();
        for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            let mean = sum_of(x, |value, sum| sum + value) / width as f32;
            let squares = sum_of(x, |value, sum| mul_add::<FUSED>(value - mean, value - mean, sum));
            let scale = 1.0 / (squares / width as f32 + epsilon).sqrt();
            for (((out, &value), &weight), &bias) in out.iter_mut().zip(x).zip(weight).zip(bias) {
                *out = mul_add::<FUSED>((value - mean) * scale, weight, bias);
            }
        }
    }
}

dispatch! {
    /// Writes the mean of some rows of `x`, `[rows, out.len()]`, to `out`. Summed in double precision, as by
    /// [`mean_state`](text_embeddings_backend_host::mean_state).
    fn mean_rows(x: &[f32], rows: &[usize], out: &mut [f32]) {
        const BLOCK: usize = 16;
        let (columns, count) = (out.len(), rows.len() as f64);
        let (blocks, rest) = out.as_chunks_mut::<BLOCK>();
        for (block, out) in blocks.iter_mut().enumerate() {
            let mut sums = [0.0_f64; BLOCK];
            for &row in rows {
                let values = &x[row * columns + block * BLOCK..][..BLOCK];
                sums.iter_mut().zip(values).for_each(|(sum, &value)| *sum += f64::from(value));
            }
            *out = sums.map(|sum| (sum / count) as f32);
        }
        for (column, out) in (columns - rest.len()..).zip(rest) {
            let sum = rows.iter().fold(0.0, |sum, &row| sum + f64::from(x[row * columns + column]));
            *out = (sum / count) as f32;
        }
    }
}

dispatch! {
    /// Rotates each head of one token's row by the token's position. Heads have `size` values, and there are
    /// cosines and sines for half a head. Element i is paired with element i + half.
    fn rotate(row: &mut [f32], size: usize, cosines: &[f32], sines: &[f32]) {
        let half = size / 2;
        let (cosines, sines) = (&cosines[..half], &sines[..half]);
        for head in row.chunks_exact_mut(size) {
            let (first, second) = head.split_at_mut(half);
            let second = &mut second[..half];
            for i in 0..half {
                let (a, b) = (first[i], second[i]);
                first[i] = a * cosines[i] - b * sines[i];
                second[i] = b * cosines[i] + a * sines[i];
            }
        }
    }
}

dispatch! {
    /// Normalises each head of one token's row like [`rms_norm`], and rotates it by the token's position.
    /// There are cosines and sines for half a head. Element i is paired with element i + half.
    fn norm_and_rotate(row: &mut [f32], weight: &[f32], epsilon: f32, cosines: &[f32], sines: &[f32]) {
        let half = weight.len() / 2;
        // The compiler must see equal lengths. Otherwise it finishes each head value by value.
        let (cosines, sines) = (&cosines[..half], &sines[..half]);
        let (first_weight, second_weight) = (&weight[..half], &weight[half..][..half]);
        for head in row.chunks_exact_mut(weight.len()) {
            let mean = sum_of(head, |value, sum| mul_add::<FUSED>(value, value, sum)) / head.len() as f32;
            let scale = 1.0 / (mean + epsilon).sqrt();
            let (first, second) = head.split_at_mut(half);
            let second = &mut second[..half];
            for i in 0..half {
                let (a, b) = (first_weight[i] * (first[i] * scale), second_weight[i] * (second[i] * scale));
                first[i] = a * cosines[i] - b * sines[i];
                second[i] = b * cosines[i] + a * sines[i];
            }
        }
    }
}

dispatch! {
    /// `values += other`
    fn add(values: &mut [f32], other: &[f32]) {
        for (value, other) in values.iter_mut().zip(other) {
            *value += other;
        }
    }
}

/// The smallest distance of values that [`spread`] combines. It is the size of the widest register, so that
/// no step moves values within a register.
const UNMIXED: usize = 16;

/// The number of halving steps of [`spread`] for a row of `len` values. Each step doubles the row's squared
/// length.
pub(crate) fn stages(len: usize) -> u32 {
    len.trailing_zeros().min((len / UNMIXED).checked_ilog2().unwrap_or(0))
}

/// A halving step of [`spread`]: replaces registers `HALF` apart by their sum and their difference.
///
/// # Safety
///
/// The CPU has the registers' instruction set.
#[inline(always)]
unsafe fn halve_once<S: Simd, const N: usize, const HALF: usize>(registers: &mut [S; N]) {
    for at in 0..N {
        if at + HALF < N && at & HALF == 0 {
            let (first, second) = (registers[at], registers[at + HALF]);
            // SAFETY: the caller upholds the same conditions.
            unsafe {
                registers[at] = first.add(second);
                registers[at + HALF] = second.mul_add(S::splat(-1.0), first);
            }
        }
    }
}

/// All halving steps of `N` registers, from those farthest apart on.
///
/// # Safety
///
/// As [`halve_once`].
#[inline(always)]
unsafe fn halve_all<S: Simd, const N: usize>(registers: &mut [S; N]) {
    const { assert!(N <= 16 && N.is_power_of_two()) };
    // SAFETY: the caller upholds the same conditions.
    unsafe {
        halve_once::<S, N, 8>(registers);
        halve_once::<S, N, 4>(registers);
        halve_once::<S, N, 2>(registers);
        halve_once::<S, N, 1>(registers);
    }
}

/// log₂(N) halving steps of [`spread`]. The last one combines values `stride` apart. Between the steps the
/// values stay in registers, so that the row is read and written once.
///
/// # Safety
///
/// The CPU has the registers' instruction set.
#[inline(always)]
unsafe fn halve_parts<S: Simd, const N: usize>(row: &mut [f32], stride: usize) {
    for parts in row.chunks_exact_mut(N * stride) {
        let first = parts.as_mut_ptr();
        let whole = stride - stride % S::LANES;
        // SAFETY: the caller guarantees the instruction set. `parts` consists of `N` parts of `stride`
        // values. Of each part, registers from `at` on and then the first of the rest are accessed.
        unsafe {
            for at in (0..whole).step_by(S::LANES) {
                let mut registers: [S; N] =
                    std::array::from_fn(|part| S::load(first.add(part * stride + at)));
                halve_all(&mut registers);
                for (part, register) in registers.into_iter().enumerate() {
                    register.store(first.add(part * stride + at));
                }
            }
            if whole < stride {
                let (first, rest) = (first.add(whole), stride - whole);
                let mut registers: [S; N] =
                    std::array::from_fn(|part| S::load_first(first.add(part * stride), rest));
                halve_all(&mut registers);
                for (part, register) in registers.into_iter().enumerate() {
                    register.store_first(first.add(part * stride), rest);
                }
            }
        }
    }
}

/// [`halve_parts`] for up to four steps.
///
/// # Safety
///
/// As [`halve_parts`].
#[inline(always)]
unsafe fn halve_row<S: Simd>(row: &mut [f32], stride: usize, steps: u32) {
    // SAFETY: the caller upholds the same conditions.
    unsafe {
        match steps {
            1 => halve_parts::<S, 2>(row, stride),
            2 => halve_parts::<S, 4>(row, stride),
            3 => halve_parts::<S, 8>(row, stride),
            _ => halve_parts::<S, 16>(row, stride),
        }
    }
}

dispatch! {
    /// Mixes the values of a row, so that a value many times larger than the others becomes many values of
    /// moderate size. It is a Walsh-Hadamard transform over values `len >> stages(len)` apart. The product of
    /// two spread rows is 2ⁿ times the product of the rows, where n is [`stages`] of their length. With n =
    /// 0, as for odd lengths, a row stays unchanged. The bits are the same on every instruction set.
    fn spread(row: &mut [f32]) {
        // AVX-512 has registers for four steps at a time, others for three.
        let most = if WIDE { 4 } else { 3 };
        let (mut stride, mut stages) = (row.len(), stages(row.len()));
        while stages > 0 {
            let steps = stages.div_ceil(stages.div_ceil(most));
            (stride, stages) = (stride >> steps, stages - steps);
            // SAFETY: `dispatch` chooses registers of an instruction set that this CPU has. It has narrower
            // ones, too.
            unsafe {
                if stride.is_multiple_of(S::LANES) {
                    halve_row::<S>(row, stride, steps);
                } else {
                    // 24 values are three registers of eight. Wider ones would straddle cache lines.
                    halve_row::<S::Half>(row, stride, steps);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::InstructionSet;
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use text_embeddings_backend_host::mean_state;

    fn random(rng: &mut StdRng, len: usize) -> Vec<f32> {
        (0..len).map(|_| rng.random_range(-3.0..3.0)).collect()
    }

    fn assert_close(got: &[f32], expected: &[f64], what: &str) {
        assert_eq!(got.len(), expected.len());
        for (&got, &expected) in got.iter().zip(expected) {
            let tolerance = 2e-6 * expected.abs().max(1.0);
            assert!((f64::from(got) - expected).abs() <= tolerance, "{what}: {got} for {expected}");
        }
    }

    fn norm_reference(x: &[f32], weight: &[f32], epsilon: f64) -> Vec<f64> {
        let mean = x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / x.len() as f64;
        x.iter().zip(weight).map(|(&v, &w)| f64::from(v) * f64::from(w) / (mean + epsilon).sqrt()).collect()
    }

    #[test]
    fn norms_of_odd_widths_equal_the_formula() {
        let mut rng = StdRng::seed_from_u64(5);
        for set in InstructionSet::available() {
            let odd: Vec<_> = (1..=130).map(|rows| (rows, 2 * rng.random_range(0..70) + 1)).collect();
            for (rows, width) in [(3, 16), (5, 128)].into_iter().chain(odd) {
                let (x, weight) = (random(&mut rng, rows * width), random(&mut rng, width));
                let mut out = vec![0.0; rows * width];
                rms_norm(set, &x, &weight, 1e-6, &mut out);
                let expected: Vec<f64> =
                    x.chunks(width).flat_map(|x| norm_reference(x, &weight, 1e-6)).collect();
                assert_close(&out, &expected, &format!("{set} {rows}x{width}"));
            }
        }
    }

    #[test]
    fn means_have_the_bits_of_the_plain_ones_at_every_width() {
        let mut rng = StdRng::seed_from_u64(16);
        for set in InstructionSet::available() {
            for width in 1..=70 {
                let x = random(&mut rng, 9 * width);
                let rows: Vec<usize> = (0..rng.random_range(1..20)).map(|_| rng.random_range(0..9)).collect();
                let mut out = vec![f32::NAN; width];
                mean_rows(set, &x, &rows, &mut out);
                let expected = mean_state(rows.iter().map(|&row| &x[row * width..][..width]), width);
                assert_eq!(out, expected, "{set} {width}");
            }
        }
    }

    #[test]
    fn layer_norms_of_odd_widths_equal_the_formula() {
        let mut rng = StdRng::seed_from_u64(15);
        for set in InstructionSet::available() {
            let odd: Vec<_> = (1..=130).map(|rows| (rows, 2 * rng.random_range(0..70) + 1)).collect();
            for (rows, width) in [(3, 16), (5, 384)].into_iter().chain(odd) {
                let x: Vec<f32> = random(&mut rng, rows * width).iter().map(|value| 5.0 + value).collect();
                let (weight, bias) = (random(&mut rng, width), random(&mut rng, width));
                let mut out = vec![f32::NAN; rows * width];
                layer_norm(set, &x, &weight, &bias, 1e-5, &mut out);
                let row = |x: &[f32]| -> Vec<f64> {
                    let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / width as f64;
                    let variance =
                        x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / width as f64;
                    let value = |(&v, (&w, &b)): (&f32, (&f32, &f32))| {
                        (f64::from(v) - mean) / (variance + 1e-5).sqrt() * f64::from(w) + f64::from(b)
                    };
                    x.iter().zip(weight.iter().zip(&bias)).map(value).collect()
                };
                let expected: Vec<f64> = x.chunks(width).flat_map(row).collect();
                for (&got, &expected) in out.iter().zip(&expected) {
                    // The mean of values around 5 is rounded, which one value alone does not have.
                    let tolerance = if width == 1 { 1e-2 } else { 2e-5 * expected.abs().max(1.0) };
                    assert!(
                        (f64::from(got) - expected).abs() <= tolerance,
                        "{set} {rows}x{width}: {got} for {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn sums_have_the_bits_of_their_definition() {
        let mut rng = StdRng::seed_from_u64(17);
        for set in InstructionSet::available() {
            for length in 1..=70 {
                let (values, other) = (random(&mut rng, length), random(&mut rng, length));
                let mut sums = values.clone();
                add(set, &mut sums, &other);
                assert!(
                    sums.iter()
                        .zip(values.iter().zip(&other))
                        .all(|(sum, (a, b))| sum.to_bits() == (a + b).to_bits())
                );
            }
        }
    }

    #[test]
    fn rotation_pairs_the_halves_of_a_head() {
        let mut rng = StdRng::seed_from_u64(6);
        for set in InstructionSet::available() {
            for (heads, width) in [(1, 2), (3, 6), (2, 24), (4, 128)] {
                let half = width / 2;
                let (row, weight) = (random(&mut rng, heads * width), random(&mut rng, width));
                let angles = random(&mut rng, half);
                let (cosines, sines): (Vec<f32>, Vec<f32>) =
                    angles.iter().map(|a| (a.cos(), a.sin())).unzip();
                let mut got = row.clone();
                norm_and_rotate(set, &mut got, &weight, 1e-6, &cosines, &sines);
                let expected: Vec<f64> = row
                    .chunks(width)
                    .flat_map(|head| {
                        let x = norm_reference(head, &weight, 1e-6);
                        let turn = |i: usize| {
                            let (c, s) = (f64::from(cosines[i % half]), f64::from(sines[i % half]));
                            if i < half { x[i] * c - x[i + half] * s } else { x[i] * c + x[i - half] * s }
                        };
                        (0..width).map(turn).collect::<Vec<_>>()
                    })
                    .collect();
                assert_close(&got, &expected, &format!("{set} {heads}x{width}"));
            }
        }
    }

    /// A row times the transform's matrix. Its values are ±1, by the bits that two indices have in common.
    fn spread_reference(row: &[f32]) -> Vec<f64> {
        let apart = row.len() >> stages(row.len());
        let sign = |i: usize, j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
        let value = |at: usize| -> f64 {
            let met = row.iter().skip(at % apart).step_by(apart).enumerate();
            met.map(|(i, &value)| sign(i, at / apart) * f64::from(value)).sum()
        };
        (0..row.len()).map(value).collect()
    }

    #[test]
    fn spread_rows_equal_the_transform_and_keep_their_products() {
        let seed = rand::random();
        let mut rng = StdRng::seed_from_u64(seed);
        let even: Vec<_> = (0..40).map(|_| rng.random_range(1..40) << rng.random_range(0..8)).collect();
        for len in (1..=130).chain([3072, 4864, 12288]).chain(even) {
            let (x, y) = (random(&mut rng, len), random(&mut rng, len));
            let spread_by = |set: InstructionSet, row: &[f32]| {
                let mut row = row.to_vec();
                spread(set, &mut row);
                row
            };
            let portable = spread_by(InstructionSet::Portable, &x);
            // Each value is the sum of 2ⁿ values of at most 3.
            let sums = f64::from(2_u32.pow(stages(len)));
            for (&got, expected) in portable.iter().zip(spread_reference(&x)) {
                assert!(
                    (f64::from(got) - expected).abs() <= 3e-6 * sums.sqrt(),
                    "{len}, seed {seed}: {got} for {expected}"
                );
            }
            let dot = |x: &[f32], y: &[f32]| -> f64 {
                x.iter().zip(y).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum()
            };
            let product = dot(&portable, &spread_by(InstructionSet::Portable, &y)) / sums;
            assert!((product - dot(&x, &y)).abs() <= 3e-6 * len as f64, "{len}, seed {seed}");
            assert!(len.is_multiple_of(2) || portable == x, "{len}, seed {seed}");
            for set in InstructionSet::available() {
                assert_eq!(spread_by(set, &x), portable, "{set} {len}, seed {seed}");
            }
        }
    }

    #[test]
    fn a_row_is_halved_while_its_parts_are_whole_and_wide() {
        let lengths = [0, 1, 15, 16, 31, 32, 33, 34, 70, 96, 128, 3072, 9728, 12288];
        let expected = [0, 0, 0, 0, 0, 1, 0, 1, 1, 2, 3, 7, 9, 9];
        assert_eq!(lengths.map(stages), expected);
    }
}
