//! Everything that can be wrong with a request, in the words the client reads.
//!
//! A transport maps [`Error::kind`] to its own status codes and sends the message as it is. What must hold: where
//! text-embeddings-inference has the same error, the message is its own, or starts with its sentence, because clients
//! and alerts search for it.

use std::time::Duration;

/// Why a request was not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A list, or another field that must hold something, is empty.
    #[error("`{field}` cannot be empty")]
    Empty {
        /// The request's field.
        field: &'static str,
    },
    /// One of a request's inputs is an empty text, or has no token ids.
    #[error("Input validation error: `{field}` cannot be empty")]
    EmptyInput {
        /// The request's field.
        field: &'static str,
    },
    /// A field's value, or a combination of fields, that cannot be served; the text says what and why.
    #[error("Input validation error: {0}")]
    Validation(String),
    /// More inputs than one request may hold.
    #[error("batch size {got} > maximum allowed batch size {max}")]
    BatchTooLarge {
        /// Inputs in the request.
        got: usize,
        /// The most that are allowed.
        max: usize,
    },
    /// An input has too many tokens and may not be truncated.
    #[error("Input validation error: `inputs` must have less than {max} tokens. Given: {got}")]
    TooLong {
        /// Tokens of the whole input, the template's included.
        got: usize,
        /// The longest input that is served.
        max: usize,
    },
    /// An input has too many characters to be tokenized.
    #[error("Input validation error: `inputs` must have less than {max} characters. Given: {got}")]
    TooManyCharacters {
        /// Characters of the input.
        got: usize,
        /// The most that are tokenized.
        max: usize,
    },
    /// The tokenizer failed.
    #[error("tokenizer error {0}")]
    Tokenizer(String),
    /// The route wants another kind of model than the one that is served.
    #[error("Backend error: {0}")]
    ModelType(&'static str),
    /// The model is a SPLADE model, which does not do this.
    #[error("Backend error: {what} is not available for SPLADE models")]
    Splade {
        /// A field or route of the request.
        what: &'static str,
    },
    /// The forward pass failed.
    #[error("Backend error: {0}")]
    Inference(String),
    /// A score came out as NaN, or a vector holds a value that is no number.
    #[error(
        "Backend error: the model's answer is NaN or infinite: its weights or its arithmetic are broken; `--dtype float32` rules the latter out"
    )]
    MissingValues,
    /// Too much is in flight.
    #[error("Model is overloaded")]
    Overloaded {
        /// When what waits now will be computed, in seconds.
        retry_after: u64,
    },
    /// None of the request's texts left the queue in time.
    #[error(
        "Model is overloaded: the request waited {:.1} s and nothing of it was computed, which is the most that `--queue-timeout` allows",
        waited.as_secs_f64()
    )]
    QueueTimeout {
        /// How long it waited.
        waited: Duration,
        /// When what waits now will be computed, in seconds.
        retry_after: u64,
    },
    /// The client's own time for its request is up.
    #[error("the {} s that the request allowed for its answer are over: what is left of it is not computed", allowed.as_secs_f64())]
    DeadlineExceeded {
        /// The time that the request allowed.
        allowed: Duration,
    },
    /// The server cannot compute at present.
    #[error("Service is unhealthy")]
    Unhealthy,
}

/// The classes of errors that clients tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The server cannot compute at present.
    Unhealthy,
    /// Inference failed, or the model is of another kind.
    Backend,
    /// Too many requests at once: try again later.
    Overloaded,
    /// The client's time for its request is up.
    DeadlineExceeded,
    /// The request is not valid.
    Validation,
    /// The tokenizer failed.
    Tokenizer,
    /// A field that must hold something is empty.
    Empty,
}

/// Who can do something about an error. It decides the level in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The client: its request cannot be answered by this server.
    Request,
    /// Too many requests at once, or too little time for this one.
    Load,
    /// The operator: the server failed.
    Server,
}

/// The route is for classifiers and re-rankers.
pub const NOT_A_CLASSIFIER: Error = Error::ModelType("Model is not a classifier model");
/// The route is for embedding models.
pub const NOT_AN_EMBEDDING_MODEL: Error = Error::ModelType("Model is not an embedding model");
/// The route is for embedding models with sparse vectors.
pub const NOT_A_SPARSE_MODEL: Error = Error::ModelType("Model is not an embedding model with SPLADE pooling");
/// The route is for re-rankers.
pub const NOT_A_RERANKER: Error = Error::ModelType("model is not a re-ranker model");

impl Error {
    /// The class of this error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Empty { .. } | Self::EmptyInput { .. } => ErrorKind::Empty,
            Self::Validation(_)
            | Self::BatchTooLarge { .. }
            | Self::TooLong { .. }
            | Self::TooManyCharacters { .. } => ErrorKind::Validation,
            Self::Tokenizer(_) => ErrorKind::Tokenizer,
            Self::ModelType(_) | Self::Splade { .. } | Self::Inference(_) | Self::MissingValues => {
                ErrorKind::Backend
            }
            Self::Overloaded { .. } | Self::QueueTimeout { .. } => ErrorKind::Overloaded,
            Self::DeadlineExceeded { .. } => ErrorKind::DeadlineExceeded,
            Self::Unhealthy => ErrorKind::Unhealthy,
        }
    }

    /// Who can do something about this error. A model of another kind than the route wants is the client's mistake,
    /// although clients see [`ErrorKind::Backend`] as in text-embeddings-inference.
    #[must_use]
    pub fn cause(&self) -> Cause {
        match self {
            Self::Empty { .. }
            | Self::EmptyInput { .. }
            | Self::Validation(_)
            | Self::BatchTooLarge { .. }
            | Self::TooLong { .. }
            | Self::TooManyCharacters { .. }
            | Self::ModelType(_)
            | Self::Splade { .. } => Cause::Request,
            Self::Overloaded { .. } | Self::QueueTimeout { .. } | Self::DeadlineExceeded { .. } => {
                Cause::Load
            }
            Self::Tokenizer(_) | Self::Inference(_) | Self::MissingValues | Self::Unhealthy => Cause::Server,
        }
    }

    /// When to try again, in seconds, if the server is overloaded.
    #[must_use]
    pub fn retry_after(&self) -> Option<u64> {
        match self {
            Self::Overloaded { retry_after } | Self::QueueTimeout { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }

    /// The value of the `err` label of `te_request_failure`.
    #[must_use]
    pub fn metric_label(&self) -> &'static str {
        match self {
            Self::Empty { .. } | Self::Validation(_) => "validation",
            Self::BatchTooLarge { .. } => "batch_size",
            Self::EmptyInput { .. }
            | Self::TooLong { .. }
            | Self::TooManyCharacters { .. }
            | Self::Tokenizer(_) => "tokenization",
            Self::ModelType(_) | Self::Splade { .. } => "model_type",
            Self::Inference(_) => "inference",
            Self::MissingValues => "missing_values",
            Self::Overloaded { .. } => "overloaded",
            Self::QueueTimeout { .. } => "queue_timeout",
            Self::DeadlineExceeded { .. } => "dropped",
            Self::Unhealthy => "unhealthy",
        }
    }
}
