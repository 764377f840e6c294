//! The head turns a model's last hidden states into scores, vectors or sparse weights. This is its
//! description; a backend loads the weights by it.

use crate::{Activation, Pool};
use std::path::PathBuf;

/// All computation after the last hidden states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Head {
    /// A generative re-ranker: after a text's last token, the logit of one token minus the logit of another.
    Answers(AnswerTokens),
    /// The architecture's own classification head, stored in the checkpoint: one logit for each label.
    Classification {
        /// The number of labels; at least one.
        labels: usize,
    },
    /// A modular cross-encoder of sentence-transformers: the pooled state goes through modules that end in
    /// raw scores.
    Scores {
        /// How the states of a text's tokens become one vector.
        pool: Pool,
        /// The modules, applied in turn to the pooled vector.
        modules: Vec<HeadModule>,
    },
    /// The pooled state goes through modules and becomes a vector, which is not normalised.
    Embedding {
        /// How the states of a text's tokens become one vector.
        pool: Pool,
        /// The modules, applied in turn to the pooled vector. Most models have none.
        modules: Vec<HeadModule>,
        /// The modules, applied in turn to each token's vector if token vectors are wanted. Most models have
        /// none.
        token_modules: Vec<HeadModule>,
        /// A module with one output. Its positive part is the weight of each token of a text, as in bge-m3's
        /// `sparse_linear`.
        lexical: Option<DenseModule>,
    },
    /// A listwise re-ranker: the states of a text's marked tokens go through the architecture's own
    /// projector, stored in the checkpoint, and become vectors. The caller compares the query's vector with
    /// the documents' vectors.
    Marks,
    /// SPLADE: the masked-language-model head of the checkpoint, then for each vocabulary entry the largest
    /// `log(1 + max(logit, 0))` over a text's tokens.
    Splade,
}

impl Head {
    /// The files of its modules. They are separate from the checkpoint's files.
    #[must_use]
    pub fn files(&self) -> Vec<&PathBuf> {
        let (modules, token_modules, lexical): (&[HeadModule], &[HeadModule], _) = match self {
            Self::Embedding { modules, token_modules, lexical, .. } => {
                (modules, token_modules, lexical.as_ref())
            }
            Self::Scores { modules, .. } => (modules, &[], None),
            Self::Answers(_) | Self::Classification { .. } | Self::Marks | Self::Splade => (&[], &[], None),
        };
        let files = modules.iter().chain(token_modules).map(|module| match module {
            HeadModule::Dense(DenseModule { weights, .. })
            | HeadModule::LayerNorm(LayerNormModule { weights, .. }) => weights,
        });
        files.chain(lexical.map(|module| &module.weights)).collect()
    }
}

/// The two tokens between which a generative re-ranker chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerTokens {
    /// The token for "relevant" (`yes`).
    pub true_id: u32,
    /// The token for "not relevant" (`no`). Without it, the raw score is the logit of `true_id` alone.
    pub false_id: Option<u32>,
}

/// A step of a head, with weights in a file of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeadModule {
    /// A matrix, a bias and an activation.
    Dense(DenseModule),
    /// A layer norm.
    LayerNorm(LayerNormModule),
}

/// A dense module of sentence-transformers, a folder such as `2_Dense`: `activation(weight · x + bias)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DenseModule {
    /// The file with `linear.weight` `[out_features, in_features]` and, if there is a bias, `linear.bias`.
    /// bge-m3's `sparse_linear` and `colbert_linear` (a torch pickle if the name ends in `.pt`) call them
    /// `weight` and `bias`.
    pub weights: PathBuf,
    /// The length of the input vector.
    pub in_features: usize,
    /// The length of the output vector.
    pub out_features: usize,
    /// Whether there is a bias.
    pub bias: bool,
    /// The activation.
    pub activation: Activation,
}

/// A layer norm of sentence-transformers, a folder such as `3_LayerNorm`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerNormModule {
    /// The file with `norm.weight` and `norm.bias`, `[size]` each.
    pub weights: PathBuf,
    /// The length of the vector.
    pub size: usize,
}
