//! What a model's last hidden states become: the description of its head, from which a backend loads it.

use std::path::PathBuf;

use crate::Pool;

/// All that happens after the last hidden state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Head {
    /// A generative re-ranker: the logit of one token less that of another after a text's last token.
    Answers(AnswerTokens),
    /// A classification head (`score.weight`) on the hidden state of a text's last token: one logit for each label.
    Classification {
        /// The number of labels; at least one.
        labels: usize,
    },
    /// The hidden states after the final norm, pooled, then through dense modules in turn. Not normalised.
    Embedding {
        /// How the states of a text's tokens become one vector.
        pool: Pool,
        /// What the pooled vector goes through; for most models nothing.
        dense: Vec<DenseModule>,
    },
}

/// The two tokens between which a generative re-ranker decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerTokens {
    /// The token that says the document is relevant (`yes`).
    pub true_id: u32,
    /// The token that says it is not (`no`); without it the raw score is the true token's logit alone.
    pub false_id: Option<u32>,
}

/// A dense module of sentence-transformers, a folder such as `2_Dense`: `activation(weight · x + bias)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DenseModule {
    /// The folder's `model.safetensors`: `linear.weight` `[out_features, in_features]` and perhaps `linear.bias`.
    pub weights: PathBuf,
    /// Values that go in.
    pub in_features: usize,
    /// Values that come out.
    pub out_features: usize,
    /// Whether there is a bias.
    pub bias: bool,
    /// What each value goes through last.
    pub activation: Activation,
}

/// The activation function of a [`DenseModule`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// None (`torch.nn.modules.linear.Identity`).
    Identity,
    /// The hyperbolic tangent (`torch.nn.modules.activation.Tanh`).
    Tanh,
}
