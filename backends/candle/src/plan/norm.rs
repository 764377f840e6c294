//! Norms, and where they stand around a block.

use std::ops::Range;

/// The divisor of a norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NormKind {
    /// The root of the mean square.
    Rms,
    /// The standard deviation, after the mean has been subtracted. A layer norm always has a bias.
    Layer,
}

/// A norm in the checkpoint.
#[derive(Debug, Clone)]
pub(crate) struct NormPlan {
    /// The tensors are `NAME.weight` and, if `bias`, `NAME.bias`.
    pub(crate) name: String,
    /// The norm's divisor.
    pub(crate) kind: NormKind,
    /// Values per row.
    pub(crate) size: usize,
    /// Whether there is a bias.
    pub(crate) bias: bool,
    /// Whether 1 is added to the stored weight (Gemma).
    pub(crate) add_one: bool,
    /// The stored weights in the order in which they are used, as ranges. Empty: as they are stored.
    pub(crate) order: Vec<Range<usize>>,
    /// Added to the mean square, or to the variance.
    pub(crate) epsilon: f32,
}

impl NormPlan {
    /// A layer norm with a bias.
    pub(crate) fn layer(name: impl Into<String>, size: usize, epsilon: f32) -> Self {
        Self { bias: true, kind: NormKind::Layer, ..Self::rms(name, size, epsilon) }
    }

    /// A root-mean-square norm.
    pub(crate) fn rms(name: impl Into<String>, size: usize, epsilon: f32) -> Self {
        let (name, order) = (name.into(), Vec::new());
        Self { name, kind: NormKind::Rms, size, bias: false, add_one: false, order, epsilon }
    }
}

/// Where a block is normalised: `x = sum_norm(x + output_norm(block(input_norm(x))))`.
#[derive(Debug, Clone, Default)]
pub(crate) struct NormsPlan {
    /// The norm of its input (pre-norm).
    pub(crate) input: Option<NormPlan>,
    /// The norm of its result before it is added.
    pub(crate) output: Option<NormPlan>,
    /// The norm of the sum (post-norm).
    pub(crate) sum: Option<NormPlan>,
    /// The norm after the block's input has been added to that a second time.
    pub(crate) second_sum: Option<NormPlan>,
}

impl NormsPlan {
    /// Only the norm of the input.
    pub(crate) fn before(norm: NormPlan) -> Self {
        Self { input: Some(norm), ..Self::default() }
    }

    /// Only the norm of the sum.
    pub(crate) fn after(norm: NormPlan) -> Self {
        Self { sum: Some(norm), ..Self::default() }
    }
}
