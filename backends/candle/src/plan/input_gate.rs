//! A third block of a layer, in which the token's embedding gates the residual stream.

use super::{MatrixPlan, NormPlan};
use text_embeddings_backend_core::Activation;

/// The weights of such a block (transformers, `EmbeddingGemma2TextPLEBlock`). With the embedding `e` and the
/// layer's result `x`: `x = scalar · (x + norm(output(activation(gate(x)) ∘ p)))`, where
/// `p = projection_norm(projection(e))`
#[derive(Debug, Clone)]
pub(crate) struct InputGatePlan {
    /// `[inner, hidden]`
    pub(crate) projection: MatrixPlan,
    /// The norm of its product.
    pub(crate) projection_norm: NormPlan,
    /// `[inner, hidden]`
    pub(crate) gate: MatrixPlan,
    /// `[hidden, inner]`
    pub(crate) output: MatrixPlan,
    /// The norm of its product.
    pub(crate) norm: NormPlan,
    /// The activation.
    pub(crate) activation: Activation,
    /// The tensor of the scalar, `[1]`.
    pub(crate) scalar: String,
}
