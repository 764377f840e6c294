//! The head turns a model's last hidden states into scores, vectors or sparse weights. This is its
//! description; a backend loads the weights by it.

use crate::{Activation, Pooling, Wanted};
use text_embeddings_checkpoint::ModelFile;

/// All computation after the last hidden states: the outputs of a text that a model has, and how each is made
/// of the states. An output that the model does not have is absent; at least one is there.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Head {
    /// One row of values: the text's raw scores, or its vector.
    pub whole: Option<WholeHead>,
    /// A vector for each token.
    pub tokens: Option<TokenHead>,
    /// Weights of vocabulary entries.
    pub sparse: Option<SparseHead>,
}

/// How the states of a text's tokens become one row of values.
#[derive(Debug, Clone, PartialEq)]
pub enum WholeHead {
    /// A generative re-ranker: the logits of its answers after a text's last token become one raw score.
    Answers(AnswerTokens),
    /// A decider: the logits of these tokens after a text's last token, in their order. Each is there once.
    Labels(Vec<u32>),
    /// The architecture's own classification head, stored in the checkpoint: one logit for each label.
    Classification {
        /// The number of labels; at least one.
        labels: usize,
    },
    /// A modular cross-encoder of sentence-transformers: the pooled state goes through modules that end in
    /// raw scores.
    Scores {
        /// The tokens whose states are pooled.
        pooling: Pooling,
        /// The modules, applied in turn to the pooled vector.
        modules: Vec<HeadModule>,
    },
    /// The pooled state goes through modules and becomes a vector, which is not normalised.
    Vector {
        /// The tokens whose states are pooled.
        pooling: Pooling,
        /// The modules, applied in turn to the pooled vector. Most models have none.
        modules: Vec<HeadModule>,
    },
}

/// How a token's state becomes the token's vector.
#[derive(Debug, Clone, PartialEq)]
pub enum TokenHead {
    /// Through these modules in turn. Most models have none.
    Modules(Vec<HeadModule>),
    /// Through the architecture's own projector, stored in the checkpoint. A re-ranker that reads many
    /// documents in one prompt has such vectors at its marked tokens; the caller compares the query's vector
    /// with the documents' vectors.
    Projector,
}

/// How the states of a text's tokens become weights of vocabulary entries.
#[derive(Debug, Clone, PartialEq)]
pub enum SparseHead {
    /// A module with one output. Its positive part is the weight of each token of the text, as in bge-m3's
    /// `sparse_linear`.
    Lexical(DenseModule),
    /// SPLADE: the masked-language-model head of the checkpoint, then for each vocabulary entry the largest
    /// `log(1 + max(logit, 0))` over the text's tokens.
    MaskedLm,
}

impl Head {
    /// The head of a SPLADE model.
    pub const SPLADE: Self = Self { whole: None, tokens: None, sparse: Some(SparseHead::MaskedLm) };
    /// The head of a re-ranker that reads many documents in one prompt.
    pub const PROJECTOR: Self = Self { whole: None, tokens: Some(TokenHead::Projector), sparse: None };

    /// The head of a generative re-ranker.
    pub fn answers(answers: AnswerTokens) -> Self {
        Self { whole: Some(WholeHead::Answers(answers)), ..Self::default() }
    }

    /// The head of a decider, whose answers are among these tokens.
    pub fn label_logits(tokens: Vec<u32>) -> Self {
        Self { whole: Some(WholeHead::Labels(tokens)), ..Self::default() }
    }

    /// The architecture's own head for this number of labels.
    pub fn classification(labels: usize) -> Self {
        Self { whole: Some(WholeHead::Classification { labels }), ..Self::default() }
    }

    /// The head of a modular cross-encoder.
    pub fn scores(pooling: Pooling, modules: Vec<HeadModule>) -> Self {
        Self { whole: Some(WholeHead::Scores { pooling, modules }), ..Self::default() }
    }

    /// The head of an embedding model: pooled vectors, through these modules, and the states of tokens.
    pub fn embedding(pooling: Pooling, modules: Vec<HeadModule>) -> Self {
        Self {
            whole: Some(WholeHead::Vector { pooling, modules }),
            tokens: Some(TokenHead::Modules(Vec::new())),
            sparse: None,
        }
    }

    /// The outputs that it gives.
    pub fn outputs(&self) -> Wanted {
        Wanted { whole: self.whole.is_some(), tokens: self.tokens.is_some(), sparse: self.sparse.is_some() }
    }

    /// Its modules. Each has a file of its own, separate from the checkpoint's files.
    fn modules(&self) -> impl Iterator<Item = &HeadModule> {
        let whole = match &self.whole {
            Some(WholeHead::Vector { modules, .. } | WholeHead::Scores { modules, .. }) => modules.as_slice(),
            Some(WholeHead::Answers(_) | WholeHead::Labels(_) | WholeHead::Classification { .. }) | None => {
                &[]
            }
        };
        let tokens = match &self.tokens {
            Some(TokenHead::Modules(modules)) => modules.as_slice(),
            Some(TokenHead::Projector) | None => &[],
        };
        whole.iter().chain(tokens)
    }

    /// The files of its modules.
    pub fn files(&self) -> Vec<&ModelFile> {
        let lexical = match &self.sparse {
            Some(SparseHead::Lexical(module)) => Some(&module.weights),
            Some(SparseHead::MaskedLm) | None => None,
        };
        let files = self.modules().map(|module| match module {
            HeadModule::Dense(DenseModule { weights, .. })
            | HeadModule::LayerNorm(LayerNormModule { weights, .. }) => weights,
        });
        files.chain(lexical).collect()
    }
}

/// The tokens with which a generative re-ranker answers, and how their logits become its raw score.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerTokens {
    /// The tokens; at least one, each once.
    pub tokens: Vec<AnswerToken>,
    /// How weights and logits become the score.
    pub rule: AnswerRule,
}

/// A token with which a generative re-ranker may answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AnswerToken {
    /// Its id.
    pub id: u32,
    /// Its part in the raw score; finite.
    pub weight: f32,
}

/// How the logits of answer tokens become a raw score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerRule {
    /// The sum of the logits, each times its token's weight. For the weights 1 and -1, the sigmoid of the raw
    /// score is the probability of the first token against the second.
    WeightedLogits,
    /// The mean of the weights, each as likely as the softmax of the logits says: the expected rating, if the
    /// tokens are `0` to `9` and the weights 0 to 9. The raw score is no logit, but lies between the smallest
    /// and the largest weight.
    ExpectedWeight,
}

impl AnswerTokens {
    /// The logit of `yes` minus the logit of `no`, or the logit of `yes` alone.
    pub fn difference(yes: u32, no: Option<u32>) -> Self {
        let yes = AnswerToken { id: yes, weight: 1.0 };
        let no = no.map(|id| AnswerToken { id, weight: -1.0 });
        Self { tokens: [yes].into_iter().chain(no).collect(), rule: AnswerRule::WeightedLogits }
    }

    /// The raw score of a text. `logits` has one value for each of the tokens, in their order.
    pub fn raw_score(&self, logits: &[f64]) -> f32 {
        let weighted = |factors: &[f64]| -> f64 {
            self.tokens.iter().zip(factors).map(|(token, factor)| f64::from(token.weight) * factor).sum()
        };
        match self.rule {
            AnswerRule::WeightedLogits => weighted(logits) as f32,
            AnswerRule::ExpectedWeight => {
                let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let powers: Vec<f64> = logits.iter().map(|logit| (logit - largest).exp()).collect();
                (weighted(&powers) / powers.iter().sum::<f64>()) as f32
            }
        }
    }
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
    pub weights: ModelFile,
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
    pub weights: ModelFile,
    /// The length of the vector.
    pub size: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(weights: &[f32], rule: AnswerRule) -> AnswerTokens {
        let tokens = weights.iter().zip(7..).map(|(&weight, id)| AnswerToken { id, weight });
        AnswerTokens { tokens: tokens.collect(), rule }
    }

    #[test]
    fn a_raw_score_is_a_weighted_sum_of_logits_or_an_expected_weight() {
        let (weighted, expected) = (AnswerRule::WeightedLogits, AnswerRule::ExpectedWeight);
        assert_eq!(AnswerTokens::difference(7, Some(8)), answers(&[1.0, -1.0], weighted));
        assert_eq!(AnswerTokens::difference(7, None), answers(&[1.0], weighted));
        for (weights, rule, logits, score) in [
            (&[1.0, -1.0][..], weighted, &[2.5, 4.0][..], -1.5),
            (&[1.0], weighted, &[2.5], 2.5),
            (&[1.0, 0.5, 0.25], weighted, &[2.0, 4.0, -8.0], 2.0),
            // Probabilities 1/6, 2/6 and 3/6.
            (&[0.0, 3.0, 9.0], expected, &[0.0, 2.0_f64.ln(), 3.0_f64.ln()], 5.5),
            (&[3.0], expected, &[-9.0], 3.0),
            // The powers of these logits are infinite, or all zero.
            (&[0.0, 1.0], expected, &[9000.0, 9000.0], 0.5),
            (&[0.0, 1.0], expected, &[-9000.0, -9000.0], 0.5),
        ] {
            let found = answers(weights, rule).raw_score(logits);
            assert!((found - score).abs() < 1e-6, "{weights:?} {rule:?} {logits:?}: {found}");
        }
        for rule in [weighted, expected] {
            assert!(answers(&[1.0, -1.0], rule).raw_score(&[0.0, f64::NAN]).is_nan());
        }
    }
}
