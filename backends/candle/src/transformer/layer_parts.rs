//! The rows that a layer gives to its mixer of tokens, and the precision of the products.

use crate::{
    operations::{Operations, Precision},
    plan,
};

/// The rows of a batch, as a layer sees them.
pub(super) struct LayerRows<'a, 'r, O: Operations> {
    /// All computed rows, for each kind of attention.
    pub(super) all: &'a [O::Rows<'r>],
    /// The rows of the layer's result, if not all computed rows are needed.
    pub(super) wanted: Option<&'a LastRows<'a, 'r, O>>,
}

/// The rows of the last layer's result.
pub(super) struct LastRows<'a, 'r, O: Operations> {
    /// Their indices among the computed rows.
    pub(super) places: &'a [usize],
    /// The rows, if the layer has attention.
    pub(super) rows: Option<&'a O::Rows<'r>>,
}

/// The precision of a layer's products in 8-bit arithmetic.
#[derive(Debug, Clone, Copy)]
pub(super) struct Precisions {
    /// For products with the residual stream.
    pub(super) input: Precision,
    /// For the mixer's output projection.
    pub(super) context: Precision,
    /// For the MLP's second product.
    pub(super) inner: Precision,
}

impl Precisions {
    /// `keeps_four_bits`: see [`Weights::keeps_four_bits`](super::weights::Weights::keeps_four_bits).
    pub(super) fn for_layer(layer: &plan::LayerPlan, index: usize, keeps_four_bits: bool) -> Self {
        match (index, &layer.mlp_norms.sum) {
            // A norm of the residual stream itself keeps a few columns large in every layer. It also keeps
            // the first layer's errors no larger than other layers' errors.
            (_, Some(_)) => {
                Self { input: Precision::Spread, context: Precision::Low, inner: Precision::Spread }
            }
            // In other architectures, all layers build on the first, so its errors are the ones that grow.
            (0, None) => Self { input: Precision::High, context: Precision::High, inner: Precision::High },
            // Trained models have large values in a few columns of the residual stream, which a norm before
            // the products keeps. Rotated weights lose their four bits.
            (_, None) => Self {
                input: if keeps_four_bits { Precision::Low } else { Precision::Spread },
                context: Precision::Low,
                inner: Precision::Spread,
            },
        }
    }
}
