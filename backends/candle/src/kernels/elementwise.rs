//! What happens to one row at a time between the products: norms, rotary positions, `SwiGLU`, the steps of a softmax.
//!
//! Safe loops over slices, vectorised by the compiler for each instruction set.

use super::simd::{dispatch, exp2, mul_add};
use std::f32::consts::LOG2_E;

/// The sum of `f` over the elements, in 16 interleaved partial sums, so that it vectorises.
#[inline(always)]
fn sum_of(x: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
    let (chunks, rest) = x.as_chunks::<16>();
    let mut sums = [0.0_f32; 16];
    for chunk in chunks {
        for (sum, &value) in sums.iter_mut().zip(chunk) {
            *sum = f(value, *sum);
        }
    }
    for (sum, &value) in sums.iter_mut().zip(rest) {
        *sum = f(value, *sum);
    }
    sums.iter().sum()
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
    /// Root-mean-square norm of each row of `x`, `[rows, weight.len()]`, into `out`.
    fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
        for (x, out) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
            rms_norm_row::<FUSED>(x, weight, epsilon, out);
        }
    }
}

dispatch! {
    /// In one token's row, normalises each of the heads in `row` like [`rms_norm`] and turns it by the token's
    /// position: `angles` are half a head's cosines and sines, element i is paired with element i + half.
    fn norm_and_rotate(row: &mut [f32], weight: &[f32], epsilon: f32, angles: (&[f32], &[f32])) {
        let (cosines, sines) = angles;
        let half = weight.len() / 2;
        for head in row.chunks_exact_mut(weight.len()) {
            let mean = sum_of(head, |value, sum| mul_add::<FUSED>(value, value, sum)) / head.len() as f32;
            let scale = 1.0 / (mean + epsilon).sqrt();
            let (first, second) = head.split_at_mut(half);
            let (first_weight, second_weight) = weight.split_at(half);
            for i in 0..half {
                let (a, b) = (first_weight[i] * (first[i] * scale), second_weight[i] * (second[i] * scale));
                first[i] = a * cosines[i] - b * sines[i];
                second[i] = b * cosines[i] + a * sines[i];
            }
        }
    }
}

dispatch! {
    /// In each row, whose first half are gates and whose second half what they gate, the first half becomes
    /// `gate / (1 + e^-gate) · up`.
    fn gate(rows: &mut [[f32; 32]]) {
        for row in rows {
            let (gates, ups) = row.split_at_mut(16);
            for (gate, &mut up) in gates.iter_mut().zip(ups) {
                let exponent = (*gate * -LOG2_E).min(127.0);
                *gate = *gate / (1.0 + exp2::<FUSED>(exponent)) * up;
            }
        }
    }
}

dispatch! {
    /// `out += x`.
    fn add(x: &[f32], out: &mut [f32]) {
        for (out, &x) in out.iter_mut().zip(x) {
            *out += x;
        }
    }
}

dispatch! {
    /// Turns the sums of products of bytes, `i32`s in place of the `f32`s they become, into the products' values: less
    /// what the offset of the rows' bytes added to each column, times the scales of the rows and of the columns.
    fn dequantise(rows: &mut [[f32; 32]], scales: &[f32], columns: &([f32; 32], [i32; 32])) {
        let (of_columns, corrections) = columns;
        for (sums, &scale) in rows.iter_mut().zip(scales) {
            for ((sum, &of_column), &correction) in sums.iter_mut().zip(of_columns).zip(corrections) {
                *sum = (sum.to_bits().cast_signed().wrapping_sub(correction)) as f32 * (scale * of_column);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::InstructionSet;
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};

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
                norm_and_rotate(set, &mut got, &weight, 1e-6, (&cosines, &sines));
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

    #[test]
    fn gates_and_sums_equal_their_formulas() {
        let mut rng = StdRng::seed_from_u64(8);
        for set in InstructionSet::available() {
            let mut rows = [(); 3].map(|()| std::array::from_fn(|_| rng.random_range(-9.0..9.0)));
            let wide = rows.map(|row: [f32; 32]| row.map(f64::from));
            gate(set, &mut rows);
            for (row, wide) in rows.iter().zip(wide) {
                let expected: Vec<f64> =
                    (0..16).map(|i| wide[i] / (1.0 + (-wide[i]).exp()) * wide[i + 16]).collect();
                assert_close(&row[..16], &expected, &format!("{set}"));
            }
            for columns in 1..=130 {
                let (x, mut out) = (random(&mut rng, columns), random(&mut rng, columns));
                let sum = |(&a, &b): (&f32, &f32)| f64::from(a) + f64::from(b);
                let expected: Vec<f64> = x.iter().zip(&out).map(sum).collect();
                add(set, &x, &mut out);
                assert_close(&out, &expected, &format!("{set} {columns}"));
            }
        }
    }

    #[test]
    fn sums_of_bytes_become_values() {
        let mut rng = StdRng::seed_from_u64(10);
        for set in InstructionSet::available() {
            let sums: [[i32; 32]; 3] =
                [(); 3].map(|()| std::array::from_fn(|_| rng.random_range(-40_000_000..40_000_000)));
            let corrections: [i32; 32] = std::array::from_fn(|_| rng.random_range(-9_000_000..9_000_000));
            let of_columns: [f32; 32] = std::array::from_fn(|_| rng.random_range(0.0..0.01));
            // Scales of more rows than there are.
            let scales = [0.03, 0.5, 2.0, 7.0];
            let mut out = sums.map(|row| row.map(|sum| f32::from_bits(sum.cast_unsigned())));
            dequantise(set, &mut out, &scales, &(of_columns, corrections));
            for ((row, sums), scale) in out.iter().zip(sums).zip(scales) {
                for (column, &got) in row.iter().enumerate() {
                    let expected =
                        f64::from(sums[column] - corrections[column]) * f64::from(scale * of_columns[column]);
                    assert!(
                        (f64::from(got) - expected).abs() <= 2e-7 * expected.abs(),
                        "{set}: {got} for {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn gates_of_any_size_are_finite() {
        for set in InstructionSet::available() {
            let mut row = [[1.0; 32]];
            row[0][..6].copy_from_slice(&[-1e30, -100.0, -88.0, 88.0, 100.0, 1e30]);
            gate(set, &mut row);
            let [lowest, lower, low, high, higher, highest] = row[0][..6] else { unreachable!() };
            for negative in [lowest, lower, low] {
                assert!(negative <= 0.0 && negative.abs() < 1e-6, "{set}: {negative}");
            }
            for (positive, expected) in [(high, 88.0), (higher, 100.0), (highest, 1e30)] {
                assert!((positive - expected).abs() <= 1e-6 * expected, "{set}: {positive}");
            }
        }
    }
}
