//! A convolution of the first hidden states that runs next to the first layer (DeBERTa-v2 xlarge).
//!
//! Input: the first hidden states. Output: for each row of the first layer's result, the vector to add to it.
//! The window of a row's neighbours is laid out as one vector in main memory, which a matrix multiplies. This
//! happens only once per forward pass. What must hold: a window has nothing of other texts, and texts share
//! no rows.

use super::Weights;
use crate::{
    load::{Part, Weight},
    operations::{Norm, Operations, Precision, Result},
    pass::Pass,
    plan,
};
use text_embeddings_backend_core::Activation;
use text_embeddings_backend_host::apply_activation;

/// A convolution with its weights.
pub(super) struct Convolution<O: Operations> {
    /// From a window to its result, before the activation.
    matrix: O::Matrix,
    activation: Activation,
    taps: usize,
    /// The norm of the sum with the first layer's result.
    pub(super) norm: Norm<O::Vector>,
}

impl<O: Operations> Convolution<O> {
    pub(super) fn load(
        plan: &plan::ConvolutionPlan,
        hidden: usize,
        weights: &Weights<'_, O>,
    ) -> Result<Self> {
        let &plan::ConvolutionPlan { name, taps, activation, ref norm } = plan;
        let stored = weights.checkpoint.tensor(&format!("{name}.weight"), &[hidden, hidden, taps])?;
        // [outputs, inputs, taps] to [outputs, taps · inputs]
        let mut values = vec![0.0; hidden * taps * hidden];
        for (row, values) in values.chunks_exact_mut(taps * hidden).enumerate() {
            for column in 0..hidden {
                for (tap, value) in stored.row(row * hidden + column).into_iter().enumerate() {
                    values[tap * hidden + column] = value;
                }
            }
        }
        let weight = Weight::from_values(&values, taps * hidden);
        let bias = Some(weights.checkpoint.vector(&format!("{name}.bias"), hidden)?);
        let matrix = weights.operations.matrix(vec![Part { weight, bias }], Precision::High)?;
        Ok(Self { matrix, activation, taps, norm: weights.norm(norm)? })
    }

    /// The convolution's results for `rows` of the batch, which are ascending: `[rows, hidden]`. `hidden`
    /// `[computed, hidden]` are the first hidden states.
    pub(super) fn forward(
        &self,
        operations: &mut O,
        hidden: &O::Tensor,
        pass: &Pass<'_, O::Kept>,
        rows: &[usize],
    ) -> Result<O::Tensor> {
        let values = operations.values(hidden)?.into_owned();
        let width = values.len() / pass.computed().len();
        let reach = self.taps / 2;
        let mut windows = vec![0.0; rows.len() * self.taps * width];
        for text in 0..pass.batch().leaves().len() {
            let rows_of_text: Vec<usize> = pass.batch().rows_of(text).collect();
            for (position, row) in rows_of_text.iter().enumerate() {
                let Ok(index) = rows.binary_search(row) else { continue };
                let window = windows.chunks_exact_mut(width).skip(index * self.taps).take(self.taps);
                for (tap, out) in window.enumerate() {
                    let neighbour = (position + tap).checked_sub(reach).and_then(|at| rows_of_text.get(at));
                    if let Some(&neighbour) = neighbour {
                        out.copy_from_slice(&values[pass.places()[neighbour] * width..][..width]);
                    }
                }
            }
        }
        let windows = operations.tensor(&windows, self.taps * width)?;
        let windows = operations.operand(&windows, Precision::High)?;
        let results = operations.linear(&windows, &self.matrix)?; // [rows, hidden]
        let mut results = operations.values(&results)?.into_owned();
        for value in &mut results {
            *value = apply_activation(self.activation, *value);
        }
        operations.tensor(&results, width)
    }
}
