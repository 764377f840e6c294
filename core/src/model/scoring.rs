//! How a re-ranker's prompts give raw scores. `service/scoring.rs` makes the prompts and reads their outputs.

/// A model's way from pairs to raw scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RerankScoring {
    /// Each pair has a prompt of its own, whose logits give the raw score.
    Logits {
        /// Of two classes, the one that means "relevant". The raw score is its logit minus the other's, so
        /// that its sigmoid equals the class's softmax. Without it, the raw score is the only logit.
        positive: Option<usize>,
    },
    /// The model reads the documents of a query together, and the raw score is the cosine of the document's
    /// vector and the query's. The pairs of a request with one query are one list; every other pair is a list
    /// of its own.
    Lists,
    /// Queries and documents are read apart. The raw score is the sum, over the query's vectors, of the
    /// largest cosine with a vector of the document (`MaxSim`).
    MaxSim,
}

impl Default for RerankScoring {
    fn default() -> Self {
        Self::Logits { positive: None }
    }
}

impl RerankScoring {
    /// The raw score of a pair from its prompt's logits, one for each class. It may be NaN.
    pub fn relevance_score(self, logits: &[f32]) -> f32 {
        match self {
            Self::Logits { positive: Some(class) } => logits[class] - logits[1 - class],
            Self::Logits { positive: None } | Self::Lists | Self::MaxSim => logits[0],
        }
    }
}
