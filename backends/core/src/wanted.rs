//! Sets of outputs.

/// A set of outputs of a text: those that a caller wants, at least one, or those that a model has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Wanted {
    /// One row of values: the text's raw scores, or its pooled vector.
    pub whole: bool,
    /// One vector for each of its tokens, or only for the marked ones
    /// ([`Text::marks`](crate::Text::marks)). Models that give scores do not have this output.
    pub tokens: bool,
    /// Weights of vocabulary entries (SPLADE, and models with a lexical head such as bge-m3).
    pub sparse: bool,
}

impl Wanted {
    /// Only the text's raw scores or its vector.
    pub const WHOLE: Self = Self { whole: true, tokens: false, sparse: false };
    /// Only the vectors of its tokens.
    pub const TOKENS: Self = Self { whole: false, tokens: true, sparse: false };
    /// Only the weights of vocabulary entries.
    pub const SPARSE: Self = Self { whole: false, tokens: false, sparse: true };

    /// The outputs of this set that are not in `given`.
    #[must_use]
    pub fn without(self, given: Self) -> Self {
        Self {
            whole: self.whole && !given.whole,
            tokens: self.tokens && !given.tokens,
            sparse: self.sparse && !given.sparse,
        }
    }
}
