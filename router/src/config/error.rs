//! Flags that cannot be served: errors of the start, each with what to give instead.

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
    /// A limit of descriptors at which no client could be served.
    #[error(
        "this process may open {descriptors} files, but the server needs at least {min}: raise the limit \
         (`ulimit -n`)"
    )]
    FewDescriptors {
        /// The limit.
        descriptors: usize,
        /// The fewest that do.
        min: usize,
    },
    /// Routes that shall require a key, but no key is given.
    #[error("`--api-key-everywhere` needs a key: give `--api-key` or `--api-key-file`")]
    NoKey,
}
