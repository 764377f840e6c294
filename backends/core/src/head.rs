//! The head: how a model's last hidden states become scores, vectors or sparse weights. A description, from which a
//! backend loads the weights.

use crate::{Activation, Pool};
use std::path::PathBuf;

/// Everything that happens after the last hidden state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Head {
    /// A generative re-ranker: the logit of one token less the logit of another after a text's last token.
    Answers(AnswerTokens),
    /// The architecture's own classification head, in the checkpoint: one logit for each label.
    Classification {
        /// The number of labels; at least one.
        labels: usize,
    },
    /// The pooled state through modules that end in raw scores: a modular cross-encoder of sentence-transformers.
    Scores {
        /// How the states of a text's tokens become one vector.
        pool: Pool,
        /// The modules, applied in turn to the pooled vector.
        modules: Vec<Module>,
    },
    /// The pooled state through modules: a vector. Not normalised.
    Embedding {
        /// How the states of a text's tokens become one vector.
        pool: Pool,
        /// The modules, applied in turn to the pooled vector; for most models none.
        modules: Vec<Module>,
        /// The modules, applied in turn to the vector of each token where these are wanted; for most models none.
        token_modules: Vec<Module>,
        /// The module (one output) whose positive part weighs each token of a text, as bge-m3's `sparse_linear` does.
        lexical: Option<DenseModule>,
    },
    /// A listwise re-ranker: the states of a text's marked tokens through the architecture's own projector, in the
    /// checkpoint: vectors, of which the caller compares the query's with the documents'.
    Marks,
    /// SPLADE: the masked-language-model head in the checkpoint, then for each vocabulary entry the largest
    /// `log(1 + max(logit, 0))` over a text's tokens.
    Splade,
}

impl Head {
    /// The files of its modules, in addition to the checkpoint's.
    #[must_use]
    pub fn files(&self) -> Vec<&PathBuf> {
        let (modules, token_modules, lexical): (&[Module], &[Module], _) = match self {
            Self::Embedding { modules, token_modules, lexical, .. } => {
                (modules, token_modules, lexical.as_ref())
            }
            Self::Scores { modules, .. } => (modules, &[], None),
            Self::Answers(_) | Self::Classification { .. } | Self::Marks | Self::Splade => (&[], &[], None),
        };
        let files = modules.iter().chain(token_modules).map(|module| match module {
            Module::Dense(DenseModule { weights, .. })
            | Module::LayerNorm(LayerNormModule { weights, .. }) => weights,
        });
        files.chain(lexical.map(|module| &module.weights)).collect()
    }
}

/// The two tokens between which a generative re-ranker decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerTokens {
    /// The token that says the document is relevant (`yes`).
    pub true_id: u32,
    /// The token that says it is not (`no`); without it the raw score is the true token's logit alone.
    pub false_id: Option<u32>,
}

/// A step of a head, with weights in a file of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Module {
    /// A matrix, a bias and an activation.
    Dense(DenseModule),
    /// A layer norm.
    LayerNorm(LayerNormModule),
}

/// A dense module of sentence-transformers, a folder such as `2_Dense`: `activation(weight · x + bias)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DenseModule {
    /// The file that holds `linear.weight` `[out_features, in_features]` and perhaps `linear.bias`; bge-m3's
    /// `sparse_linear` and `colbert_linear` (a torch pickle where the name ends in `.pt`) call them `weight` and `bias`.
    pub weights: PathBuf,
    /// Values that go in.
    pub in_features: usize,
    /// Values that come out.
    pub out_features: usize,
    /// Whether there is a bias.
    pub bias: bool,
    /// The activation.
    pub activation: Activation,
}

/// A layer norm of sentence-transformers, a folder such as `3_LayerNorm`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerNormModule {
    /// The file that holds `norm.weight` and `norm.bias`, `[size]` each.
    pub weights: PathBuf,
    /// Values of a vector.
    pub size: usize,
}
