//! The step after a product in an MLP, applied to its sums.

use super::{
    activation::{self, Nearness},
    instruction_set::InstructionSet,
    layout::COLUMNS,
    matrix::{GATES, Matrix},
    pack::OperandFormat,
};
use text_embeddings_backend_core::Activation;

/// The operation that follows a product in an MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Epilogue {
    /// `activation(x)`
    Activate(Activation),
    /// `activation(gate) ∘ up`. The weight must be packed in the order
    /// [`Gated`](super::matrix::ColumnOrder::Gated).
    Gate(Activation),
}

impl Epilogue {
    /// The number of values that the step makes of a row of products with `weight`.
    pub(crate) fn outputs(self, weight: &Matrix) -> usize {
        weight.outputs() * self.width() / COLUMNS
    }

    /// The number of values that the step makes of a panel's columns.
    pub(super) fn width(self) -> usize {
        match self {
            Self::Activate(_) => COLUMNS,
            Self::Gate(_) => GATES,
        }
    }

    /// Takes the step for values that become words of `format`. Gates are exact in every format: a factor
    /// would multiply their error.
    pub(super) fn run(self, set: InstructionSet, sums: &mut [[f32; COLUMNS]], format: OperandFormat) {
        let nearness = if format == OperandFormat::F32 { Nearness::Exact } else { Nearness::Rounded };
        match self {
            Self::Activate(activation) => activation::activate(set, sums, activation, nearness),
            Self::Gate(activation) => activation::gate(set, sums, activation),
        }
    }
}
