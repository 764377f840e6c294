//! The heads that belong to an architecture.

use super::{MatrixPart, MatrixPlan, NormPlan};
use text_embeddings_backend_core::Activation;

/// A classification head.
#[derive(Debug, Clone)]
pub(crate) struct Classification {
    pub(crate) reads: Reads,
    /// The steps from that state to the last matrix.
    pub(crate) steps: Vec<StepPlan>,
    /// The name of the last matrix, whose number of rows comes from the labels: `NAME.weight` `[labels,
    /// width]`, and `NAME.bias` if `logits_bias`.
    pub(crate) logits: String,
    pub(crate) logits_bias: bool,
    /// Values that the last matrix takes.
    pub(crate) width: usize,
    /// The divisor of logits.
    pub(crate) divisor: f32,
}

/// The state of a text that a head reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reads {
    First,
    /// The mean of all tokens' states.
    Mean,
    /// Each token's state: the scores are the mean of the tokens' own scores.
    EachToken,
    Last,
    /// The state of the last token that is not padding. If the tokenizer ends each text with the padding
    /// token, a classifier was trained on the token before it (transformers,
    /// `GenericForSequenceClassification`).
    LastUnpadded,
}

/// A step of a head.
#[derive(Debug, Clone)]
pub(crate) enum StepPlan {
    Dense(MatrixPlan, Activation),
    Norm(NormPlan),
}

impl StepPlan {
    /// All of a matrix with its bias, then an activation.
    pub(crate) fn dense(name: &str, shape: [usize; 2], activation: Activation) -> Self {
        Self::Dense(MatrixPart::new(name, shape).into(), activation)
    }
}

/// A masked-language-model head: dense, activation, norm, then the product with each vocabulary entry's
/// vector.
#[derive(Debug, Clone)]
pub(crate) struct MaskedLm {
    /// The steps before the decoder.
    pub(crate) steps: Vec<StepPlan>,
    /// The names that the decoder `[vocabulary, width]` may have. The first one in the checkpoint is used.
    pub(crate) decoder: Vec<String>,
    /// The names that the bias `[vocabulary]` may have. The first one in the checkpoint is used; no bias if
    /// the list is empty.
    pub(crate) bias: Vec<String>,
    /// Values that the decoder takes.
    pub(crate) width: usize,
}
