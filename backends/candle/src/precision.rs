//! The precision of products in 8-bit arithmetic. `Precisions` in `transformer/layer.rs` chooses it.

/// The precision of a product in 8-bit arithmetic. Both operands must be made for the same precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Precision {
    /// Bytes.
    Low,
    /// Bytes after a rotation that spreads a few large values over many. The residual stream and an MLP's
    /// activations need it: a few values are many times larger than the rest, and steps of one size that
    /// reach the large ones would lose the rest. Both operands get the same rotation, so their product stays
    /// the same.
    Spread,
    /// More than bytes, for results that everything later builds on.
    High,
}
