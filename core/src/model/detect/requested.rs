//! The values of `--model-type`.

use std::fmt;
use std::str::FromStr;

/// A value of `--model-type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestedType {
    /// `embedding`
    Embedding,
    /// `classifier`
    Classifier,
    /// `reranker`: with a classification head
    Reranker,
    /// `listwise-reranker`: a causal language model that answers yes or no, or that reads many documents at
    /// once
    ListwiseReranker,
    /// `decider`: an instruct model that answers questions with probabilities
    Decider,
}

impl RequestedType {
    /// Every value, in the order of the help text.
    pub const ALL: [Self; 5] =
        [Self::Embedding, Self::Classifier, Self::Reranker, Self::ListwiseReranker, Self::Decider];

    /// The value as the user types it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::Classifier => "classifier",
            Self::Reranker => "reranker",
            Self::ListwiseReranker => "listwise-reranker",
            Self::Decider => "decider",
        }
    }
}

impl fmt::Display for RequestedType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for RequestedType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = Self::ALL.map(Self::as_str).join(", ");
        let found = Self::ALL.into_iter().find(|kind| kind.as_str() == text);
        found.ok_or_else(|| format!("`{text}` is not one of {names}"))
    }
}
