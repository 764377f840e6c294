//! A gated convolution as the mixer of a layer: its weights, and its products.

use super::{
    layer_parts::{LayerRows, Precisions},
    weights::Weights,
};
use crate::{
    operations::{ConvolutionInput, Operations, Precision, Result},
    pass::Pass,
    plan,
    short_convolution::ShortConvolution,
};

/// A gated convolution with its weights.
pub(super) struct ConvolutionMixer<O: Operations> {
    input: O::Matrix,
    gate: O::Matrix,
    rule: ShortConvolution,
    context: Precision,
}

impl<O: Operations> ConvolutionMixer<O> {
    pub(super) fn load_weights(
        plan: &plan::ShortConvolutionPlan,
        precisions: Precisions,
        weights: &Weights<'_, O>,
    ) -> Result<Self> {
        Ok(Self {
            input: weights.matrix(&plan.input, precisions.input)?,
            gate: weights.matrix(&plan.gate, precisions.input)?,
            rule: load_rule(plan, weights)?,
            context: precisions.context,
        })
    }

    /// From `operand` `[computed, hidden]` to the inputs and their gates, `[computed, 2 · hidden]`.
    pub(super) fn gated_inputs(&self, operations: &mut O, operand: &O::Operand) -> Result<O::Tensor> {
        operations.linear(operand, &self.input)
    }

    /// From `operand` `[rows, hidden]` to the context, `[rows, hidden]`.
    pub(super) fn convolution_context(
        &self,
        operations: &mut O,
        operand: &O::Operand,
        values: &O::Tensor,
        pass: &mut Pass<'_, O::Kept>,
        rows: &LayerRows<'_, '_, O>,
    ) -> Result<O::Operand> {
        let gate = operations.linear(operand, &self.gate)?; // [rows, hidden]
        let input = ConvolutionInput {
            values,
            gate,
            rows: rows.wanted.map(|wanted| wanted.places),
            walk: pass.recurrent_walk(),
            known: &pass.known_states(),
        };
        let (context, kept) = operations.short_convolution(input, &self.rule, self.context)?;
        pass.keep_states(kept);
        Ok(context)
    }
}

fn load_rule<O: Operations>(
    plan: &plan::ShortConvolutionPlan,
    weights: &Weights<'_, O>,
) -> Result<ShortConvolution> {
    let &plan::ShortConvolutionPlan { ref taps_tensor, taps: count, width, is_centred, is_converted, .. } =
        plan;
    let shape = if is_converted { &[width, count][..] } else { &[width, 1, count] };
    let stored = weights.checkpoint.tensor(taps_tensor, shape)?;
    let mut taps = vec![0.0; count * width];
    for channel in 0..width {
        for (tap, value) in stored.row(channel).into_iter().enumerate() {
            taps[tap * width + channel] = value;
        }
    }
    Ok(ShortConvolution { width, taps, after: if is_centred { count / 2 } else { 0 } })
}
