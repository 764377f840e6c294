//! The heads that belong to an architecture.

use super::{Matrix, Norm};
use text_embeddings_backend_core::Activation;

/// A classification head.
#[derive(Debug, Clone)]
pub(crate) struct Classification {
    /// Which state it reads.
    pub(crate) reads: Reads,
    /// What that goes through before the last matrix.
    pub(crate) steps: Vec<Step>,
    /// The last matrix without its rows: `NAME.weight` `[labels, width]`, and `NAME.bias` if `logits_bias`.
    pub(crate) logits: String,
    /// Whether the last matrix has a bias.
    pub(crate) logits_bias: bool,
    /// Values that it takes.
    pub(crate) width: usize,
    /// What logits are divided by.
    pub(crate) divisor: f32,
}

/// Which state of a text a head reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reads {
    /// The first token's.
    First,
    /// The mean over all tokens.
    Mean,
    /// Each token's: the scores are the mean of those that the tokens would have on their own.
    EachToken,
    /// The last token's.
    Last,
    /// That of the last token which is not padding: where the tokenizer ends each text with the padding
    /// token, a classifier was trained on the token before (transformers,
    /// `GenericForSequenceClassification`).
    LastUnpadded,
}

/// A step of a head.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// A matrix and an activation.
    Dense(Matrix, Activation),
    /// A norm.
    Norm(Norm),
}

/// A masked-language-model head: dense, activation, norm, then the product with each vocabulary entry's
/// vector.
#[derive(Debug, Clone)]
pub(crate) struct MaskedLm {
    /// What hidden states go through first.
    pub(crate) steps: Vec<Step>,
    /// The vectors, `[vocabulary, width]`: a tensor's name, or of those the first that is in the checkpoint.
    pub(crate) decoder: Vec<String>,
    /// The bias, `[vocabulary]`: of these the first that is in the checkpoint; none if the list is empty.
    pub(crate) bias: Vec<String>,
    /// Values that the decoder takes.
    pub(crate) width: usize,
}
