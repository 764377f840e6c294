//! A gated delta rule as the mixer of a layer: its weights, and its products.

use super::{
    layer_parts::{LayerRows, Precisions},
    weights::Weights,
};
use crate::{
    delta::DeltaRule,
    operations::{DeltaInput, Operations, Precision, Result},
    pass::Pass,
    plan,
};

/// A gated delta rule with its weights.
pub(super) struct DeltaMixer<O: Operations> {
    query_key_value: O::Matrix,
    rates: O::Matrix,
    gate: O::Matrix,
    rule: DeltaRule,
    context: Precision,
}

/// The products of all computed rows.
pub(super) struct DeltaProducts<O: Operations> {
    channels: O::Tensor,
    rates: O::Tensor,
}

impl<O: Operations> DeltaMixer<O> {
    /// The precision of the products for strengths and decays: an error of a decay counts for all later
    /// tokens.
    pub(super) const RATES: Precision = Precision::High;

    pub(super) fn load_weights(
        plan: &plan::DeltaPlan,
        precisions: Precisions,
        weights: &Weights<'_, O>,
    ) -> Result<Self> {
        Ok(Self {
            query_key_value: weights.matrix(&plan.query_key_value, precisions.input)?,
            rates: weights.matrix(&plan.rates, Self::RATES)?,
            gate: weights.matrix(&plan.gate, precisions.input)?,
            rule: load_rule(plan, weights)?,
            context: precisions.context,
        })
    }

    /// From two operands `[computed, hidden]` of the same values, the second of [`DeltaMixer::RATES`], to the
    /// products that later rows build on.
    pub(super) fn shared_products(
        &self,
        operations: &mut O,
        operand: &O::Operand,
        exact: &O::Operand,
    ) -> Result<DeltaProducts<O>> {
        Ok(DeltaProducts {
            channels: operations.linear(operand, &self.query_key_value)?, // [computed, channels]
            rates: operations.linear(exact, &self.rates)?,                // [computed, 2 · value heads]
        })
    }

    /// From `operand` `[rows, hidden]` to the context, `[rows, value heads · value size]`.
    pub(super) fn delta_context(
        &self,
        operations: &mut O,
        operand: &O::Operand,
        products: &DeltaProducts<O>,
        pass: &mut Pass<'_, O::Kept>,
        rows: &LayerRows<'_, '_, O>,
    ) -> Result<O::Operand> {
        let gate = operations.linear(operand, &self.gate)?; // [rows, values]
        let input = DeltaInput {
            channels: &products.channels,
            rates: &products.rates,
            gate,
            rows: rows.wanted.map(|wanted| wanted.places),
            walk: pass.recurrent_walk(),
            known: &pass.known_states(),
        };
        let (context, kept) = operations.delta_rule(input, &self.rule, self.context)?;
        pass.keep_states(kept);
        Ok(context)
    }
}

fn load_rule<O: Operations>(plan: &plan::DeltaPlan, weights: &Weights<'_, O>) -> Result<DeltaRule> {
    let (sizes, checkpoint) = (plan.sizes, weights.checkpoint);
    let shape = [sizes.channel_count(), 1, sizes.taps];
    let shape = if plan.is_converted { &[shape[0], shape[2]][..] } else { &shape };
    let stored = checkpoint.tensor(&plan.convolution, shape)?;
    let channels: Vec<Vec<f32>> = (0..sizes.channel_count()).map(|channel| stored.row(channel)).collect();
    let mut taps = Vec::with_capacity(sizes.value_heads);
    for head in 0..sizes.value_heads {
        let slices = sizes.head_slices(head).map(|(first, count)| &channels[first..first + count]);
        let channels = slices.concat();
        taps.push((0..sizes.taps).flat_map(|tap| channels.iter().map(move |channel| channel[tap])).collect());
    }
    let mut decays = checkpoint.vector(&plan.decays, sizes.value_heads)?;
    if !plan.is_converted {
        for decay in &mut decays {
            *decay = -decay.exp();
        }
    }
    Ok(DeltaRule {
        sizes,
        taps,
        decays,
        decay_bias: checkpoint.vector(&plan.decay_bias, sizes.value_heads)?,
        norm: checkpoint.vector(&format!("{}.weight", plan.norm.name), sizes.value_size)?,
        epsilon: plan.norm.epsilon,
    })
}
