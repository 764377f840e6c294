//! The softmax of attention. It runs along the keys, for a block of rows and some keys at a time.
//!
//! Input: the sums of tiles, which are scores of rows with keys as `[panel][row]`. Output: the weights of the
//! keys, relative to the largest score of the row so far, and the factor by which sums with earlier weights
//! must be scaled. What must hold: keys that are invisible to a row have weight zero; a row's bits do not
//! depend on other rows.

use super::{
    layout::{COLUMNS, WORDS},
    simd::{Simd, dispatch},
    tile::ZEROS,
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
    /// The sum of the last step's weights of each row, each times its factor, if they have factors.
    pub(crate) step_sum: &'a mut [f32],
}

/// The factors of a step.
#[derive(Clone, Copy)]
pub(crate) struct StepFactors<'a> {
    /// Every score is multiplied by it.
    pub(crate) of_scores: f32,
    /// If the scores are sums of products of integers: their scales.
    pub(crate) sum_scales: Option<SumScales<'a>>,
    /// A factor for each score of a row, by which its weight is multiplied before it is written; or none.
    pub(crate) of_weights: &'a [f32],
}

impl StepFactors<'_> {
    /// The factor of a row's scores.
    fn of_row(&self, row: usize) -> f32 {
        self.sum_scales.map_or(self.of_scores, |scales| scales.of_rows[row] * self.of_scores)
    }
}

/// The scales of integers whose products were summed.
#[derive(Clone, Copy)]
pub(crate) struct SumScales<'a> {
    /// One for each row.
    pub(crate) of_rows: &'a [f32],
    /// One for each key of all panels.
    pub(crate) of_keys: &'a [f32],
}

/// The bits of the lanes as integers, times their scales.
///
/// # Safety
///
/// The CPU has the registers' instruction set.
#[inline(always)]
unsafe fn scale_integers<S: Simd>(integers: S, scales: S) -> S {
    // SAFETY: the caller guarantees the instruction set. A register has at most as many lanes as `ZEROS`.
    unsafe { integers.less_integers(ZEROS.as_ptr().cast()).mul_add(scales, S::splat(0.0)) }
}

/// The largest score that a row sees. In place, sums of integers become scores without their row's scale, if
/// there are scales of keys, and scores that the row does not see become negative infinity.
///
/// # Safety
///
/// The CPU has the registers' instruction set. `scores` are `[panel][row]`, and `key_scales` has a value for
/// each column of all panels, or none.
#[inline(always)]
unsafe fn largest_score<S: Simd>(
    scores: &mut [[f32; COLUMNS]],
    row: usize,
    visible: &Range<usize>,
    rows: usize,
    key_scales: &[f32],
) -> f32 {
    let panels = scores.len() / rows;
    let sees_all = visible.start == 0 && visible.end >= panels * COLUMNS;
    // SAFETY: the caller upholds the same conditions. A row of scores consists of whole registers.
    unsafe {
        let scores = scores.as_mut_ptr().cast::<f32>();
        let hidden = S::splat(f32::NEG_INFINITY);
        let mut largest = hidden;
        for panel in 0..panels {
            for at in (0..COLUMNS).step_by(S::LANES) {
                let (lanes, first) = (scores.add((panel * rows + row) * COLUMNS + at), panel * COLUMNS + at);
                let mut score = S::load(lanes);
                if !key_scales.is_empty() {
                    let scales = S::load(key_scales.as_ptr().add(first));
                    score = scale_integers(score, scales);
                    score.store(lanes);
                }
                if !sees_all {
                    score = score.first(visible.end.saturating_sub(first), hidden);
                    score = hidden.first(visible.start.saturating_sub(first), score);
                    score.store(lanes);
                }
                largest = score.max(largest);
            }
        }
        largest.largest()
    }
}

/// `value = 2^value`
///
/// # Safety
///
/// The CPU has the registers' instruction set.
#[inline(always)]
unsafe fn raise_two<S: Simd>(values: &mut [f32]) {
    for values in values.chunks_mut(S::LANES) {
        let (first, count) = (values.as_mut_ptr(), values.len());
        // SAFETY: the caller guarantees the instruction set. There are `count` values.
        unsafe {
            if count < S::LANES {
                S::load_first(first, count).exp2().store_first(first, count);
            } else {
                S::load(first).exp2().store(first);
            }
        }
    }
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
        let rows = visible.len();
        let panels = scores.len() / rows;
        assert!(scores.len() == panels * rows && weights.len() == 2 * scores.len());
        let key_scales = factors.sum_scales.map_or(&[][..], |scales| scales.of_keys);
        for factors in [factors.of_weights, key_scales] {
            assert!(factors.is_empty() || factors.len() >= panels * COLUMNS);
        }
        // SAFETY (all below): `S` is the register type of the instruction set that this body is compiled for,
        // and the CPU has it. A row of scores consists of whole registers, and so does a line of weights.
        // `scores` has `panels · rows` rows, `weights` twice as many lines, and each list of factors a value
        // for each column of all panels, if any (asserted).
        for (row, visible) in visible.iter().enumerate() {
            let before = softmax.max[row];
            if !visible.is_empty() {
                let largest = unsafe { largest_score::<S>(scores, row, visible, rows, key_scales) };
                let max = largest * factors.of_row(row);
                softmax.max[row] = if max > before { max } else { before };
            }
            softmax.correction[row] = if visible.is_empty() { 0.0 } else { before - softmax.max[row] };
        }
        // All rows at once: one after the other, they took 3 % of a short text's attention.
        unsafe { raise_two::<S>(&mut softmax.correction[..rows]) };
        let registers = COLUMNS / S::LANES;
        let scores = scores.as_ptr().cast::<f32>();
        let weights = weights.as_mut_ptr().cast::<f32>();
        let key_factors = factors.of_weights;
        for (row, visible) in visible.iter().enumerate() {
            let factor = unsafe { S::splat(factors.of_row(row)) };
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
                    if key_factors.is_empty() {
                        unsafe { weight.store(line) };
                        continue;
                    }
                    let factors = unsafe { key_factors.as_ptr().add(panel * COLUMNS + register * S::LANES) };
                    let weight = unsafe { weight.mul_add(S::load(factors), S::splat(0.0)) };
                    unsafe { weight.store(line) };
                    step_sum = unsafe { step_sum.add(weight) };
                }
            }
            if !key_factors.is_empty() {
                softmax.step_sum[row] = unsafe { step_sum.sum() };
            }
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
    /// `totals = totals · factor + x`, with one factor per row. If there are scales of rows, the bits of `x`
    /// are integers, and are multiplied by them.
    fn scale_and_add(x: &[[f32; COLUMNS]], scales: &[f32], factors: &[f32], totals: &mut [[f32; COLUMNS]]) {
        for (row, ((totals, x), &factor)) in totals.iter_mut().zip(x).zip(factors).enumerate() {
            let scale = scales.get(row);
            for (total, x) in totals.chunks_exact_mut(S::LANES).zip(x.chunks_exact(S::LANES)) {
                // SAFETY: as in `step`.
                unsafe {
                    let mut added = S::load(x.as_ptr());
                    if let Some(&scale) = scale {
                        added = scale_integers(added, S::splat(scale));
                    }
                    S::load(total.as_ptr()).mul_add(S::splat(factor), added).store(total.as_mut_ptr());
                }
            }
        }
    }
}

dispatch! {
    /// Writes the means of some rows, `total / sum`, to `out`, each from its index in `starts` on. `totals`
    /// are `[panel][row]`. The last panel may be wider than the rest of a mean, which has `size` values.
    fn write_means(totals: &[[f32; COLUMNS]], sums: &[f32], starts: &[usize], size: usize, out: &mut [f32]) {
        for (row, (&sum, &start)) in sums.iter().zip(starts).enumerate() {
            let factor = 1.0 / sum;
            for (panel, out) in out[start..start + size].chunks_mut(COLUMNS).enumerate() {
                let total = &totals[panel * sums.len() + row];
                match out.as_chunks_mut().0 {
                    // The compiler knows the size of this loop.
                    [out] => *out = total.map(|value| value * factor),
                    _ => out.iter_mut().zip(total).for_each(|(out, value)| *out = value * factor),
                }
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

    /// Random scores of panels of rows as `step` takes them, and their values.
    fn scores(
        rng: &mut StdRng,
        [panels, rows]: [usize; 2],
        scales: Option<SumScales<'_>>,
    ) -> (Vec<[f32; COLUMNS]>, Vec<[f64; COLUMNS]>) {
        let of_index = |index| {
            let Some(SumScales { of_rows, of_keys }) = scales else {
                let scores = rows_of(rng).map(|score| 10.0 * score);
                return (scores, scores.map(f64::from));
            };
            let sums: [i32; COLUMNS] = std::array::from_fn(|_| rng.random_range(-1_500_000..1_500_000));
            let (panel, of_row) = (index / rows, f64::from(of_rows[index % rows]));
            let of_key = |at: usize| f64::from(of_keys[panel * COLUMNS + at]);
            let values = std::array::from_fn(|at| f64::from(sums[at]) * of_row * of_key(at));
            (sums.map(|sum| f32::from_bits(sum.cast_unsigned())), values)
        };
        (0..panels * rows).map(of_index).unzip()
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
            let [of_rows, of_keys] = [rows, 32 * panels]
                .map(|count| (0..count).map(|_| rng.random_range(1e-3..4e-3)).collect::<Vec<_>>());
            // Every third case has sums of integers.
            let sum_scales =
                rows.is_multiple_of(3).then_some(SumScales { of_rows: &of_rows, of_keys: &of_keys });
            let (before, scores) = scores(rng, [panels, rows], sum_scales);
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
            let step_factors = StepFactors { of_scores: factor, sum_scales, of_weights: factors };
            step(set, &mut before.clone(), &visible, step_factors, &mut state, &mut lines);
            for row in 0..rows {
                weights[row].iter_mut().for_each(|weight| *weight *= f64::from(correction[row]));
                let mut written = 0.0;
                for key in 0..32 * panels {
                    let weight = f32::from_bits(lines[key / WORDS * rows + row][key % WORDS]);
                    written += weight;
                    let weight = weight / factors.get(key).unwrap_or(&1.0);
                    if visible[row].contains(&key) {
                        let score = scores[key / COLUMNS * rows + row][key % COLUMNS];
                        exponents[row].push(score * f64::from(factor));
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
                let factors = StepFactors { of_scores: 1.0, sum_scales: None, of_weights: &[] };
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
                // Alone, and as sums of integers.
                let scales: Vec<f32> = (0..rows).map(|_| rng.random_range(1e-7..1e-6)).collect();
                let integers: Vec<_> = x.iter().map(|row| row.map(|value| (1e6 * value) as i32)).collect();
                let bits: Vec<_> =
                    integers.iter().map(|row| row.map(|sum| f32::from_bits(sum.cast_unsigned()))).collect();
                for (x, scales) in [(&x, &[][..]), (&bits, &scales)] {
                    let mut totals = before.clone();
                    scale_and_add(set, x, scales, &factors, &mut totals);
                    for (at, &got) in totals.as_flattened().iter().enumerate() {
                        let (row, column) = (at / COLUMNS, at % COLUMNS);
                        let added = match scales.get(row) {
                            Some(&scale) => f64::from(scale) * f64::from(integers[row][column]),
                            None => f64::from(x[row][column]),
                        };
                        let expected = f64::from(before[row][column]) * f64::from(factors[row]) + added;
                        assert!((f64::from(got) - expected).abs() < 1e-6, "{set} {at}: {got} for {expected}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_mean_is_a_row_of_each_panel_by_its_sum() {
        let mut rng = StdRng::seed_from_u64(15);
        for set in InstructionSet::available() {
            for (rows, size) in (1..=14).flat_map(|rows| [(rows, 128), (rows, 33), (rows, 7)]) {
                let totals: Vec<_> = (0..rows * 4).map(|_| rows_of(&mut rng)).collect();
                let sums: Vec<f32> = (0..rows).map(|row| 0.5_f32.powi(row as i32)).collect();
                // In any order, with a gap after each.
                let starts: Vec<usize> = (0..rows).map(|row| (5 * row + 3) % 14 * (size + 1)).collect();
                let mut out = vec![0.0; 14 * (size + 1)];
                let mut expected = out.clone();
                for (row, &start) in starts.iter().enumerate() {
                    for at in 0..size {
                        expected[start + at] = totals[at / COLUMNS * rows + row][at % COLUMNS] / sums[row];
                    }
                }
                write_means(set, &totals, &sums, &starts, size, &mut out);
                assert_eq!(out, expected, "{set} {rows} {size}");
            }
        }
    }
}
