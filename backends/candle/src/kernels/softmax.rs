//! The softmax of attention. It runs along the keys, for a block of rows and some keys at a time.
//!
//! Input: the sums of tiles, which are scores of rows with keys as `[panel][row]`. Output: the weights of the
//! keys, relative to the largest score of the row so far, and the factor by which sums with earlier weights
//! must be scaled. What must hold: keys that are invisible to a row have weight zero; a row's bits do not
//! depend on other rows.

use super::{
    layout::{COLUMNS, WORDS},
    simd::{dispatch, exp2},
};
use std::ops::Range;

/// The state of the running softmaxes of some rows.
pub(crate) struct RunningSoftmax<'a> {
    /// The largest exponent of each row.
    pub(crate) max: &'a mut [f32],
    /// The sum of each row's weights, Σ 2^(exponent - max).
    pub(crate) sum: &'a mut [f32],
    /// The factor by which the last step scaled the earlier sums of each row.
    pub(crate) correction: &'a mut [f32],
    /// The sum of the last step's weights of each row, each times its factor.
    pub(crate) step_sum: &'a mut [f32],
}

/// The factors of a step.
#[derive(Clone, Copy)]
pub(crate) struct StepFactors<'a> {
    /// Every score is multiplied by it.
    pub(crate) of_scores: f32,
    /// A factor for each score of a row, by which its weight is multiplied before it is written; or none.
    pub(crate) of_weights: &'a [f32],
}

dispatch! {
    /// Takes scores into the running softmaxes of `visible.len()` rows, and writes the weight 2^(score ·
    /// factor - max) of each. `scores` are `[panel][row]`, and `weights` are the same rows in lines, `[panel]
    /// [half][row]`: the bits of `f32`. A row sees the scores in its range of `visible`, counted in the
    /// panels' order; the weights of the others become zero, and the scores are lost. A row that sees no
    /// score keeps its state.
    fn step(
        scores: &mut [[f32; COLUMNS]],
        visible: &[Range<usize>],
        factors: StepFactors<'_>,
        softmax: &mut RunningSoftmax<'_>,
        weights: &mut [[u32; WORDS]],
    ) {
        let StepFactors { of_scores: factor, of_weights: factors } = factors;
        let rows = visible.len();
        let panels = scores.len() / rows;
        assert!(scores.len() == panels * rows && weights.len() == 2 * scores.len());
        assert!(factors.is_empty() || factors.len() >= panels * COLUMNS);
        let registers = COLUMNS / S::LANES;
        // SAFETY (all below): `S` is the register type of the instruction set that this body is compiled for,
        // and the CPU has it. A row of scores consists of whole registers, and so does a line of weights.
        // `scores` has `panels · rows` rows, `weights` twice as many lines, and `factors` a value for each
        // column of all panels, if any (asserted).
        let scores = scores.as_mut_ptr().cast::<f32>();
        let weights = weights.as_mut_ptr().cast::<f32>();
        for (row, visible) in visible.iter().enumerate() {
            if visible.is_empty() {
                softmax.correction[row] = 1.0;
                continue;
            }
            let hidden = unsafe { S::splat(f32::NEG_INFINITY) };
            let mut largest = hidden;
            let sees_all = visible.start == 0 && visible.end >= panels * COLUMNS;
            for panel in 0..panels {
                for register in 0..registers {
                    let lanes = unsafe { scores.add((panel * rows + row) * COLUMNS + register * S::LANES) };
                    let mut score = unsafe { S::load(lanes) };
                    if !sees_all {
                        let first = panel * COLUMNS + register * S::LANES;
                        score = unsafe { score.first(visible.end.saturating_sub(first), hidden) };
                        score = unsafe { hidden.first(visible.start.saturating_sub(first), score) };
                        unsafe { score.store(lanes) };
                    }
                    largest = unsafe { score.max(largest) };
                }
            }
            let before = softmax.max[row];
            let max = unsafe { largest.largest() } * factor;
            let max = if max > before { max } else { before };
            softmax.max[row] = max;
            softmax.correction[row] = exp2::<FUSED>(before - max);
        }
        let factor = unsafe { S::splat(factor) };
        for (row, visible) in visible.iter().enumerate() {
            let mut sum = unsafe { S::splat(0.0) };
            let mut step_sum = sum;
            let offset = unsafe { S::splat(-softmax.max[row]) };
            for panel in 0..panels {
                for register in 0..registers {
                    let (half, at) = (register * S::LANES / WORDS, register * S::LANES % WORDS);
                    let line = unsafe { weights.add(((2 * panel + half) * rows + row) * WORDS + at) };
                    if visible.is_empty() {
                        unsafe { S::splat(0.0).store(line) };
                        continue;
                    }
                    let lanes = unsafe { scores.add((panel * rows + row) * COLUMNS + register * S::LANES) };
                    let weight = unsafe { S::load(lanes).mul_add(factor, offset).exp2() };
                    sum = unsafe { sum.add(weight) };
                    if factors.is_empty() {
                        unsafe { weight.store(line) };
                        continue;
                    }
                    let factors = unsafe { factors.as_ptr().add(panel * COLUMNS + register * S::LANES) };
                    let weight = unsafe { weight.mul_add(S::load(factors), S::splat(0.0)) };
                    unsafe { weight.store(line) };
                    step_sum = unsafe { step_sum.add(weight) };
                }
            }
            softmax.step_sum[row] = unsafe { step_sum.sum() };
            softmax.sum[row] = softmax.sum[row] * softmax.correction[row] + unsafe { sum.sum() };
        }
    }
}

dispatch! {
    /// Adds biases to the scores `[panel][row]`. Each row has as many biases as scores.
    fn add_biases(scores: &mut [[f32; COLUMNS]], biases: &[&[f32]]) {
        for (panel, scores) in scores.chunks_exact_mut(biases.len()).enumerate() {
            for (scores, biases) in scores.iter_mut().zip(biases) {
                for (score, bias) in scores.iter_mut().zip(&biases[panel * COLUMNS..]) {
                    *score += bias;
                }
            }
        }
    }
}

dispatch! {
    /// `totals = totals · factor + x`, with one factor per row.
    fn scale_and_add(x: &[[f32; COLUMNS]], factors: &[f32], totals: &mut [[f32; COLUMNS]]) {
        for ((totals, x), &factor) in totals.iter_mut().zip(x).zip(factors) {
            // SAFETY: as in `step`.
            let factor = unsafe { S::splat(factor) };
            for (total, x) in totals.chunks_exact_mut(S::LANES).zip(x.chunks_exact(S::LANES)) {
                // SAFETY: as in `step`.
                unsafe { S::load(total.as_ptr()).mul_add(factor, S::load(x.as_ptr())).store(total.as_mut_ptr()) };
            }
        }
    }
}

dispatch! {
    /// `out = total · factor`. The row's total is every `rows`th element of `totals`. The last one may be
    /// longer than the rest of `out`.
    fn mean(totals: &[[f32; COLUMNS]], rows: usize, factor: f32, out: &mut [f32]) {
        for (total, out) in totals.iter().step_by(rows).zip(out.chunks_mut(COLUMNS)) {
            for (out, &total) in out.iter_mut().zip(total) {
                *out = total * factor;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::InstructionSet, *};
    use rand::{Rng, SeedableRng, rngs::StdRng};

    fn rows_of(rng: &mut StdRng) -> [f32; COLUMNS] {
        std::array::from_fn(|_| rng.random_range(-3.0..3.0))
    }

    /// Compares the weights of three steps, and the softmaxes' final state, with plain loops, for random
    /// scores.
    fn weights_of_steps(set: InstructionSet, rng: &mut StdRng, rows: usize) -> Result<(), String> {
        let factor = rng.random_range(0.1..3.0_f32);
        let (mut max, mut sum, mut correction) =
            (vec![f32::NEG_INFINITY; rows], vec![0.0; rows], vec![f32::NAN; rows]);
        let mut step_sum = vec![f32::NAN; rows];
        // For each row, the weights so far and their exponents.
        let (mut weights, mut exponents) = (vec![Vec::new(); rows], vec![Vec::new(); rows]);
        for _ in 0..3 {
            let panels = rng.random_range(1..5);
            let range = |_| {
                let [a, b] = [(); 2].map(|()| rng.random_range(0..=32 * panels));
                // Nothing, as beyond a window; a window; or everything up to an end, as without a window.
                match rng.random_range(0..3) {
                    0 => a..a,
                    1 => a.min(b)..a.max(b),
                    _ => 0..b,
                }
            };
            let visible: Vec<Range<usize>> = (0..rows).map(range).collect();
            let before: Vec<[f32; 32]> =
                (0..panels * rows).map(|_| rows_of(rng).map(|score| 10.0 * score)).collect();
            let mut state = RunningSoftmax {
                max: &mut max,
                sum: &mut sum,
                correction: &mut correction,
                step_sum: &mut step_sum,
            };
            let mut lines = vec![[u32::MAX; WORDS]; 2 * panels * rows];
            // Every second case has factors: powers of two, which change no bits.
            let factors: Vec<f32> = (0..32 * panels).map(|key| 0.5_f32.powi((key % 7) as i32)).collect();
            let factors = if rows.is_multiple_of(2) { &factors[..] } else { &[] };
            let step_factors = StepFactors { of_scores: factor, of_weights: factors };
            step(set, &mut before.clone(), &visible, step_factors, &mut state, &mut lines);
            for row in 0..rows {
                weights[row].iter_mut().for_each(|weight| *weight *= f64::from(correction[row]));
                let mut written = 0.0;
                for key in 0..32 * panels {
                    let weight = f32::from_bits(lines[key / WORDS * rows + row][key % WORDS]);
                    written += weight;
                    let weight = weight / factors.get(key).unwrap_or(&1.0);
                    if visible[row].contains(&key) {
                        let score = before[key / COLUMNS * rows + row][key % COLUMNS];
                        exponents[row].push(f64::from(score) * f64::from(factor));
                        weights[row].push(f64::from(weight));
                    } else if weight != 0.0 {
                        return Err(format!("a hidden key weighs {weight}"));
                    }
                }
                let sum = step_sum[row];
                if !factors.is_empty() && (sum - written).abs() > 1e-5 * written {
                    return Err(format!("the step's weights are {written}, not {sum}"));
                }
            }
        }
        for row in 0..rows {
            if exponents[row].is_empty() {
                if sum[row] > 0.0 || max[row] > f32::NEG_INFINITY {
                    return Err("a row that saw nothing has weights".to_owned());
                }
                continue;
            }
            let most = exponents[row].iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
            let total: f64 = exponents[row].iter().map(|exponent| (exponent - most).exp2()).sum();
            for (weight, exponent) in weights[row].iter().zip(&exponents[row]) {
                let (got, expected) = (weight / f64::from(sum[row]), (exponent - most).exp2() / total);
                if (got - expected).abs() > 1e-5 * expected + 1e-30 {
                    return Err(format!("{got} for {expected}"));
                }
            }
        }
        Ok(())
    }

    #[test]
    fn softmax_steps_add_up_to_a_softmax() {
        let mut rng = StdRng::seed_from_u64(9);
        for set in InstructionSet::available() {
            for rows in (1..=33).flat_map(|rows| [rows; 4]) {
                assert_eq!(weights_of_steps(set, &mut rng, rows), Ok(()), "{set} {rows}");
            }
        }
    }

    #[test]
    fn a_score_that_is_no_number_is_not_lost() {
        for set in InstructionSet::available() {
            for broken in [f32::NAN, f32::INFINITY] {
                let mut scores = [[1.0; 32]; 3];
                scores[1][7] = broken;
                let (mut max, mut sum, mut correction) = ([f32::NEG_INFINITY; 3], [0.0; 3], [0.0; 3]);
                let mut state = RunningSoftmax {
                    max: &mut max,
                    sum: &mut sum,
                    correction: &mut correction,
                    step_sum: &mut [0.0; 3],
                };
                let mut lines = [[0; WORDS]; 6];
                let factors = StepFactors { of_scores: 1.0, of_weights: &[] };
                step(set, &mut scores, &[0..32, 0..32, 0..32], factors, &mut state, &mut lines);
                assert_eq!((sum[0], sum[2]), (32.0, 32.0), "{set}");
                assert!(!sum[1].is_finite(), "{set} {broken}: {}", sum[1]);
            }
        }
    }

    #[test]
    fn biases_are_added_to_the_scores_of_their_row() {
        let mut rng = StdRng::seed_from_u64(16);
        for set in InstructionSet::available() {
            for (rows, panels) in (1..=14).map(|rows| (rows, 1 + rows % 3)) {
                let before: Vec<_> = (0..rows * panels).map(|_| rows_of(&mut rng)).collect();
                let biases: Vec<Vec<f32>> =
                    (0..rows).map(|_| (0..panels).flat_map(|_| rows_of(&mut rng)).collect()).collect();
                let mut after = before.clone();
                add_biases(set, &mut after, &biases.iter().map(Vec::as_slice).collect::<Vec<_>>());
                for (index, (before, after)) in before.iter().zip(&after).enumerate() {
                    let (panel, row) = (index / rows, index % rows);
                    for column in 0..COLUMNS {
                        let expected = before[column] + biases[row][panel * COLUMNS + column];
                        assert!((after[column] - expected).abs() <= 0.0, "{set} {rows} {index}");
                    }
                }
            }
        }
    }

    #[test]
    fn sums_are_scaled_row_by_row() {
        let mut rng = StdRng::seed_from_u64(14);
        for set in InstructionSet::available() {
            for rows in 1..=33 {
                let [x, before] = [(); 2].map(|()| (0..rows).map(|_| rows_of(&mut rng)).collect::<Vec<_>>());
                let factors: Vec<f32> = (0..rows).map(|row| [0.0, 1.0, 0.3][row % 3]).collect();
                let mut totals = before.clone();
                scale_and_add(set, &x, &factors, &mut totals);
                for (at, &got) in totals.as_flattened().iter().enumerate() {
                    let (row, column) = (at / COLUMNS, at % COLUMNS);
                    let expected =
                        f64::from(before[row][column]) * f64::from(factors[row]) + f64::from(x[row][column]);
                    assert!((f64::from(got) - expected).abs() < 1e-6, "{set} {at}: {got} for {expected}");
                }
            }
        }
    }

    #[test]
    fn a_mean_is_a_row_of_each_panel() {
        let mut rng = StdRng::seed_from_u64(15);
        for set in InstructionSet::available() {
            for (rows, size) in (1..=14).flat_map(|rows| [(rows, 128), (rows, 33), (rows, 7)]) {
                let totals: Vec<_> = (0..rows * 4).map(|_| rows_of(&mut rng)).collect();
                let mut out = vec![f32::NAN; size];
                mean(set, &totals[rows - 1..], rows, 0.5, &mut out);
                for (at, got) in out.into_iter().enumerate() {
                    let expected = totals[at / COLUMNS * rows + rows - 1][at % COLUMNS] * 0.5;
                    assert!((got - expected).abs() <= 0.0, "{set} {rows} {at}");
                }
            }
        }
    }
}
