//! A mixture of experts as the MLP of a layer, with its weights.

use super::weights::Weights;
use crate::{
    operations::{Lookup, Operations, Precision, Result},
    plan,
};
use text_embeddings_backend_core::Activation;

/// Experts with their weights.
pub(super) struct Experts<O: Operations> {
    router: O::Matrix,
    /// Up and down.
    mlps: Vec<[O::Matrix; 2]>,
    /// One row, if there is a bias.
    bias: Option<O::Table>,
    top: usize,
    activation: Activation,
    inner: Precision,
}

impl<O: Operations> Experts<O> {
    /// `inner` is the precision of the second products.
    pub(super) fn load_weights(
        plan: &plan::ExpertsPlan,
        inner: Precision,
        weights: &Weights<'_, O>,
    ) -> Result<Self> {
        Ok(Self {
            router: weights.matrix(&plan.router, Precision::High)?,
            mlps: plan
                .mlps
                .iter()
                .map(|[up, down]| Ok([weights.matrix(up, Precision::High)?, weights.matrix(down, inner)?]))
                .collect::<Result<_>>()?,
            bias: plan.bias.as_ref().map(|bias| weights.row(bias, plan.hidden)).transpose()?,
            top: plan.top,
            activation: plan.activation,
            inner,
        })
    }

    /// Adds the MLPs of each row's experts to `hidden`. `operand` is `hidden` as an operand of products.
    pub(super) fn add_results(
        &self,
        operations: &mut O,
        operand: &O::Operand,
        hidden: &mut O::Tensor,
    ) -> Result<()> {
        // A rounded logit would choose another expert.
        let logits = operations.linear_exact(operand, &self.router)?; // [rows, experts]
        let logits = operations.values(&logits)?.into_owned();
        let mut chosen = vec![(Vec::new(), Vec::new()); self.mlps.len()];
        for (row, logits) in logits.chunks_exact(self.mlps.len()).enumerate() {
            for (expert, share) in shares(logits, self.top) {
                chosen[expert].0.push(row);
                chosen[expert].1.push(share);
            }
        }
        // Collects all inputs before the first sum changes `hidden`.
        let inputs = chosen.iter().map(|(rows, _)| {
            if rows.is_empty() { Ok(None) } else { operations.select(hidden, rows).map(Some) }
        });
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        for (([up, down], input), (rows, factors)) in self.mlps.iter().zip(inputs).zip(&chosen) {
            let Some(input) = input else { continue };
            let operand = operations.operand(&input, Precision::High)?;
            let activated = operations.activated(&operand, up, self.activation, self.inner)?;
            let result = operations.linear(&activated, down)?;
            operations.add_rows(&result, rows, factors, hidden)?;
        }
        let Some(bias) = &self.bias else { return Ok(()) };
        let zeros = vec![0; logits.len() / self.mlps.len()];
        let bias = operations.embed(&[Lookup { table: bias, ids: &zeros }], 1.0, None)?;
        operations.add(&bias, None, hidden)
    }
}

/// The `top` largest values of a softmax over `logits`, with their indices. Of equal values, the first ones
/// count.
fn shares(logits: &[f32], top: usize) -> Vec<(usize, f32)> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exponentials: Vec<f32> = logits.iter().map(|logit| (logit - largest).exp()).collect();
    let sum: f32 = exponentials.iter().sum();
    let mut shares: Vec<(usize, f32)> = exponentials.iter().map(|value| value / sum).enumerate().collect();
    shares.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    shares.truncate(top);
    shares
}
