//! A gated convolution over few tokens: its weights, and its results for a batch on every device.
//!
//! With a token's input x, the gate of its input b and the gate of its result c, all of them products of the
//! hidden state, and u = b ∘ x:
//!
//! ```text
//! result(t) = c(t) ∘ Σ taps(j) ∘ u(t + j − before)
//! ```
//!
//! What must hold: a text has zeros before its first and behind its last token; a segment begins with its
//! parent's last inputs; the result of a token to which no token attends is zero (transformers,
//! `apply_mask_to_padding_states`). Each sum has the same order wherever a segment or a run ends.

use crate::delta::{Tree, Walk};

/// The weights of a gated convolution, in main memory.
pub(crate) struct ShortConvolution {
    /// Values of a token.
    pub(crate) width: usize,
    /// `[taps, width]`
    pub(crate) taps: Vec<f32>,
    /// The number of tokens behind a token that its result depends on. Not 0 only where each text is one
    /// segment, all of whose rows are computed.
    pub(crate) after: usize,
}

/// The results of a batch before their gates, and states to keep.
pub(crate) struct Convolved {
    /// `[rows, width]`
    pub(crate) results: Vec<f32>,
    pub(crate) kept: Vec<Vec<f32>>,
}

impl ShortConvolution {
    /// The number of values of a state: the inputs of the tokens before.
    fn state_values(&self) -> usize {
        self.taps.len() - (1 + self.after) * self.width
    }

    /// The state of a text's beginning, or the known state of this index.
    fn state_at(&self, index: Option<usize>, known: &[&[f32]]) -> Vec<f32> {
        index.map_or_else(|| vec![0.0; self.state_values()], |index| known[index].to_vec())
    }

    /// The results of texts that begin with the same segment, `[rows of the tree, width]`, and the states
    /// that their runs keep. `values` `[rows, 2 · width]` has the products of all computed rows: b, then x.
    /// `results` holds zeros.
    pub(crate) fn convolve_tree(
        &self,
        tree: &Tree,
        values: &[f32],
        known: &[&[f32]],
        results: &mut [f32],
    ) -> Vec<Vec<f32>> {
        let width = self.width;
        let mut kept = Vec::with_capacity(tree.kept.len());
        tree.follow_runs(
            |index| self.state_at(index, known),
            |run, state: &mut Vec<f32>| {
                if run.is_unattended {
                    return;
                }
                // The inputs of the tokens before, of the run, and of the tokens behind.
                let mut inputs = std::mem::take(state);
                for row in
                    values[2 * width * run.rows.start..2 * width * run.rows.end].chunks_exact(2 * width)
                {
                    let (gate, input) = row.split_at(width);
                    inputs.extend(gate.iter().zip(input).map(|(gate, input)| gate * input));
                }
                let end = inputs.len();
                inputs.resize(end + self.after * width, 0.0);
                let first = run.rows.start - tree.rows.start;
                let rows = results[first * width..][..run.rows.len() * width].chunks_exact_mut(width);
                for (index, result) in rows.enumerate() {
                    let window = inputs[index * width..].chunks_exact(width);
                    for (input, taps) in window.zip(self.taps.chunks_exact(width)) {
                        let sums = result.iter_mut().zip(input).zip(taps);
                        sums.for_each(|((sum, input), tap)| *sum += input * tap);
                    }
                }
                inputs.truncate(end);
                *state = inputs.split_off(end - self.state_values());
                if let Some(index) = run.keeps {
                    kept.push((index, state.clone()));
                }
            },
        );
        kept.sort_unstable_by_key(|(index, _)| *index);
        kept.into_iter().map(|(_, state)| state).collect()
    }

    /// The results of a batch, tree after tree.
    pub(crate) fn convolve_batch(&self, values: &[f32], walk: &Walk, known: &[&[f32]]) -> Convolved {
        let mut results = vec![0.0; values.len() / 2];
        let mut kept = Vec::with_capacity(walk.kept);
        for tree in &walk.trees {
            let rows = self.width * tree.rows.start..self.width * tree.rows.end;
            kept.extend(self.convolve_tree(tree, values, known, &mut results[rows]));
        }
        Convolved { results, kept }
    }

    /// Multiplies each row of `gate`, `[rows, width]`, by the result of its row among the computed ones.
    pub(crate) fn gate_row(&self, results: &[f32], row: usize, gate: &mut [f32]) {
        let result = &results[row * self.width..][..self.width];
        gate.iter_mut().zip(result).for_each(|(gate, result)| *gate *= result);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delta::SegmentRows;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    /// The formula, for a text alone.
    fn expected_row(rule: &ShortConvolution, values: &[f32], row: usize, column: usize) -> f32 {
        let (width, count) = (rule.width, rule.taps.len() / rule.width);
        let rows = values.len() / (2 * width);
        (0..count)
            .filter_map(|tap| {
                let at = (row + tap + rule.after + 1).checked_sub(count)?;
                let values = (at < rows).then(|| &values[at * 2 * width..][..2 * width])?;
                Some(values[column] * values[width + column] * rule.taps[tap * width + column])
            })
            .sum()
    }

    #[test]
    fn results_are_the_formulas_wherever_a_text_is_cut_and_beyond_unattended_rows() {
        let mut rng = StdRng::seed_from_u64(61);
        for (taps, after) in [(1, 0), (3, 0), (4, 0), (3, 1), (5, 2)] {
            for rows in 1..9 {
                let width = 3;
                let mut values =
                    |count: usize| -> Vec<f32> { (0..count).map(|_| rng.random_range(-1.0..1.0)).collect() };
                let rule = ShortConvolution { width, taps: values(taps * width), after };
                let products = values(rows * 2 * width);
                let segment = |rows, parent| SegmentRows { parent, rows, ..SegmentRows::default() };
                let whole = Walk::from_segments(&[segment(0..rows, None)]);
                let convolved = rule.convolve_batch(&products, &whole, &[]);
                for row in 0..rows {
                    for column in 0..width {
                        let expected = expected_row(&rule, &products, row, column);
                        let found = convolved.results[row * width + column];
                        assert!((found - expected).abs() < 1e-5, "{taps} {after} {rows} {row}");
                    }
                }
                for cut in (1..rows).filter(|_| after == 0) {
                    let mut first = segment(0..cut, None);
                    first.kept_after = vec![cut];
                    let second = segment(cut..rows, Some(0));
                    let walk = Walk::from_segments(&[first, second.clone()]);
                    let parts = rule.convolve_batch(&products, &walk, &[]);
                    assert_eq!((&parts.results, parts.kept.len()), (&convolved.results, 1));
                    let known = SegmentRows { known: Some(0), rows: 0..rows - cut, ..segment(0..0, None) };
                    let rest = Walk::from_segments(&[known]);
                    let rest = rule.convolve_batch(&products[cut * 2 * width..], &rest, &[&parts.kept[0]]);
                    assert_eq!(rest.results, convolved.results[cut * width..]);
                    let blank = SegmentRows { is_unattended: true, ..second };
                    let walk = Walk::from_segments(&[segment(0..cut, None), blank]);
                    let parts = rule.convolve_batch(&products, &walk, &[]).results;
                    assert_eq!(parts[..cut * width], convolved.results[..cut * width]);
                    assert!(parts[cut * width..].iter().all(|&value| value == 0.0));
                }
            }
        }
    }
}
