//! Flags that cannot be served: errors of the start, each with what to give instead.

use text_embeddings_backend_core::{ModelType, amount};

/// A flag, or a combination of flags and files, that cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConfigError {
    /// A flag whose value makes no sense.
    #[error("`{flag} {value}` {problem}")]
    Value {
        /// The flag.
        flag: &'static str,
        /// Its value.
        value: String,
        /// The problem, and what to give instead.
        problem: String,
    },
    /// A key that is given but empty: it would look like protection, and would not be.
    #[error("`--api-key` is empty: give a key, or leave the flag and the variable API_KEY out")]
    EmptyKey,
    /// Routes that shall require a key, but no key is given.
    #[error("`--api-key-everywhere` needs a key: give `--api-key` or `--api-key-file`")]
    NoKey,
    /// A flag that is about another kind of model.
    #[error(
        "`{flag}` is for {of}, but `{model_id}` is served as {model_type}: leave it out, or see \
         `--model-type`"
    )]
    OtherKind {
        /// The flag.
        flag: &'static str,
        /// The kinds of model that it is for.
        of: &'static str,
        /// The model.
        model_id: String,
        /// Its kind.
        model_type: ModelType,
    },
    /// The flag asks for more than the model's positions allow.
    #[error(
        "`--max-input-length {asked}` is more than the {positions} tokens that the model's positions allow: \
         give at most that"
    )]
    BeyondPositions {
        /// The flag's value.
        asked: usize,
        /// The tokens that the model described in config.json can tell apart by position.
        positions: usize,
    },
    /// An input that does not fit into a batch and may not be cut.
    #[error(
        "with `--auto-truncate false`, `--max-batch-tokens {budget}` must hold the longest input of {}: \
         raise it, or give `--max-input-length`",
        amount(longest, "token")
    )]
    BudgetTooSmall {
        /// `--max-batch-tokens`.
        budget: usize,
        /// The longest input.
        longest: usize,
    },
}
