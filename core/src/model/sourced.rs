//! A decision with its source, for messages.

/// A decision, and where it comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sourced<T> {
    /// The decision.
    pub value: T,
    /// Its source in words.
    pub source: String,
}

impl<T> Sourced<T> {
    pub(super) fn new(value: T, source: impl Into<String>) -> Self {
        Self { value, source: source.into() }
    }
}
