//! Flags that cannot be served.

/// A flag, or flags together, that cannot be served: the sentence says what to give instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ConfigError(pub(crate) String);
