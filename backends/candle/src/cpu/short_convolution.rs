//! A gated convolution on the CPU: a work item is the texts that share a beginning.
//!
//! Input: products of the computed rows. Output: an operand. What must hold: as in
//! [`crate::short_convolution`], whose results are these on any threads.

use super::{CpuOperations, PackedActivations};
use crate::{
    operations::{ConvolutionInput, Operations, Precision, Result},
    short_convolution::ShortConvolution,
};

impl CpuOperations {
    /// See [`Operations::short_convolution`].
    pub(super) fn convolution_steps(
        &mut self,
        input: ConvolutionInput<'_, Self>,
        rule: &ShortConvolution,
        precision: Precision,
    ) -> Result<(PackedActivations, Vec<Vec<f32>>)> {
        let ConvolutionInput { values, mut gate, rows, walk, known } = input;
        let mut results = self.activations(values.rows(), rule.width);
        results.values_mut().fill(0.0);
        let mut kept = vec![Vec::new(); walk.trees.len()];
        let mut items = Vec::with_capacity(walk.trees.len());
        let mut rest = results.values_mut();
        for (tree, kept) in walk.trees.iter().zip(&mut kept) {
            let (own, after) = rest.split_at_mut(tree.rows.len() * rule.width);
            items.push((tree, own, kept));
            rest = after;
        }
        self.compute.threads.for_each(items.into_iter(), |(tree, results, kept)| {
            *kept = rule.convolve_tree(tree, values.values(), known, results);
        });
        self.each_rows(&mut gate, |from, gates| {
            for (index, gate) in gates.chunks_exact_mut(rule.width).enumerate() {
                let row = from + index;
                rule.gate_row(results.values(), rows.map_or(row, |rows| rows[row]), gate);
            }
        });
        Ok((self.operand(&gate, precision)?, kept.concat()))
    }
}
