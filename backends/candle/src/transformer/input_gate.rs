//! The block of a layer in which the token's embedding gates the residual stream, with its weights.

use super::weights::Weights;
use crate::{
    operations::{Norm, Operations, Precision, Result},
    plan::InputGatePlan,
};
use text_embeddings_backend_core::Activation;

/// The block of a layer.
pub(super) struct InputGate<O: Operations> {
    projection: O::Matrix,
    projection_norm: Norm<O::Vector>,
    gate: O::Matrix,
    output: O::Matrix,
    norm: Norm<O::Vector>,
    activation: Activation,
    scalar: f32,
}

impl<O: Operations> InputGate<O> {
    pub(super) fn load(plan: &InputGatePlan, weights: &Weights<'_, O>) -> Result<Self> {
        let scalar = weights.checkpoint.vector(&plan.scalar, 1)?;
        Ok(Self {
            projection: weights.matrix(&plan.projection, Precision::High)?,
            projection_norm: weights.norm(&plan.projection_norm)?,
            gate: weights.matrix(&plan.gate, Precision::High)?,
            output: weights.matrix(&plan.output, Precision::High)?,
            norm: weights.norm(&plan.norm)?,
            activation: plan.activation,
            scalar: scalar[0],
        })
    }

    /// Changes `hidden`, `[rows, hidden]`. `embedded` has the embeddings of all computed rows; `rows` are the
    /// rows of `hidden` among them, if they are not all.
    pub(super) fn change_stream(
        &self,
        operations: &mut O,
        hidden: &mut O::Tensor,
        embedded: &O::Tensor,
        rows: Option<&[usize]>,
    ) -> Result<()> {
        let selected = rows.map(|rows| operations.select(embedded, rows)).transpose()?;
        let operand = operations.operand(selected.as_ref().unwrap_or(embedded), Precision::High)?;
        let projected = operations.linear(&operand, &self.projection)?; // [rows, inner]
        let projected = operations.norm(&projected, &self.projection_norm)?;
        let operand = operations.operand(hidden, Precision::High)?;
        let mut gated = operations.linear(&operand, &self.gate)?; // [rows, inner]
        operations.gate_rows(&mut gated, &projected, self.activation)?;
        let operand = operations.operand(&gated, Precision::High)?;
        let result = operations.linear(&operand, &self.output)?; // [rows, hidden]
        operations.add(&result, Some(&self.norm), hidden)?;
        operations.scale_values(hidden, self.scalar)
    }
}
