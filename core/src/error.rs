//! All errors of requests, in the words that the client reads.
//!
//! A transport maps [`Error::kind`] to its own status codes, and sends the message unchanged. What must hold:
//! if text-embeddings-inference has the same error, the message equals or starts with its sentence, because
//! clients and alerts search for it.

use std::time::Duration;

/// The longest message in characters. Many messages repeat a client's text.
pub const MAX_MESSAGE: usize = 1000;

/// A message of at most [`MAX_MESSAGE`] characters: the start, which names the field, and the end, which
/// names the position or the remedy.
pub fn shorten_message(message: String) -> String {
    let length = message.chars().count();
    if length <= MAX_MESSAGE {
        return message;
    }
    let start: String = message.chars().take(MAX_MESSAGE / 2).collect();
    let end: String = message.chars().skip(length - MAX_MESSAGE / 2).collect();
    format!("{start} … {end}")
}

/// The reason why a request was not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each sentence explains its fields")]
pub enum Error {
    /// A list, or another field that must not be empty, is empty.
    #[error("`{field}` cannot be empty")]
    Empty { field: &'static str },
    /// One of a request's inputs is an empty text, or has no token ids.
    #[error("Input validation error: `{field}` cannot be empty")]
    EmptyInput { field: &'static str },
    /// A field's value, or a combination of fields, is not valid. The text says what and why.
    #[error("Input validation error: {0}")]
    Validation(String),
    /// The request has more inputs than are allowed.
    #[error(
        "batch size {got} > maximum allowed batch size {max}; `--max-client-batch-size`, for re-ranking \
         `--max-rerank-texts`, sets the maximum"
    )]
    BatchTooLarge { got: usize, max: usize },
    /// An input has too many tokens, the template's included, and must not be truncated.
    #[error("Input validation error: `inputs` must have less than {max} tokens. Given: {got}; {max} fit")]
    TooLong { got: usize, max: usize },
    /// An input has too many characters to be tokenized.
    #[error("Input validation error: `inputs` must have less than {max} characters. Given: {got}; {max} fit")]
    TooManyCharacters { got: usize, max: usize },
    /// One of a request's several inputs is not valid: [`Error::TooLong`], [`Error::TooManyCharacters`] or
    /// [`Error::EmptyInput`].
    #[error("{error}; the index of this input is {index}")]
    OfInput {
        /// The index of the input in the request. A re-ranker's inputs are its documents.
        index: usize,
        error: Box<Error>,
    },
    /// The tokenizer failed.
    #[error("tokenizer error {0}")]
    Tokenizer(String),
    /// The route needs another kind of model than the served one. `problem` is in the words of
    /// text-embeddings-inference, `advice` has the kind of the model and its main route.
    #[error("Backend error: {problem}; {advice}")]
    ModelType { problem: &'static str, advice: &'static str },
    /// The model is a SPLADE model, which does not support this.
    #[error("Backend error: {what} is not available for SPLADE models")]
    Splade { what: &'static str },
    /// The forward pass failed.
    #[error("Backend error: {0}")]
    Inference(String),
    /// A score is NaN, or a vector has a value that is not finite.
    #[error(
        "Backend error: the model's answer is NaN or infinite: its weights or its arithmetic are broken; \
         `--dtype float32` rules the latter out"
    )]
    MissingValues,
    /// Too many requests are in flight. The waiting texts are computed in about `retry_after` seconds.
    #[error("Model is overloaded")]
    Overloaded { retry_after: u64 },
    /// The request waited longer than `--queue-timeout`, and none of its texts was computed. `retry_after` is
    /// as for [`Error::Overloaded`].
    #[error(
        "Model is overloaded: the request waited {:.1} s, the limit of `--queue-timeout`, and none of its \
         texts was computed",
        waited.as_secs_f64()
    )]
    QueueTimeout { waited: Duration, retry_after: u64 },
    /// The client's own time limit for its request is over.
    #[error("the time limit of {} s that the request set for its answer is over: the rest of it is not \
        computed", allowed.as_secs_f64())]
    DeadlineExceeded { allowed: Duration },
    /// The server cannot compute at the moment.
    #[error("Service is unhealthy")]
    Unhealthy,
    /// The device is lost. Nothing is computed any more, and the process ends.
    #[error("the device that computes is lost and this server ends: send the request again")]
    DeviceLost,
}

/// The classes of errors that clients distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The server cannot compute at the moment.
    Unhealthy,
    /// Inference failed, or the model is of another kind.
    Backend,
    /// There are too many requests. The client may try again later.
    Overloaded,
    /// The client's time limit for its request is over.
    DeadlineExceeded,
    /// The request is not valid.
    Validation,
    /// The tokenizer failed.
    Tokenizer,
    /// A field that must not be empty is empty.
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

impl Error {
    /// The class of this error.
    pub fn kind(&self) -> ErrorKind {
        self.table_row().0
    }

    /// Who can do something about this error. A model of another kind than the route wants is the client's
    /// mistake, although clients see [`ErrorKind::Backend`] as in text-embeddings-inference.
    pub fn cause(&self) -> Cause {
        self.table_row().1
    }

    /// The value of the `err` label of `te_request_failure`.
    pub fn metric_label(&self) -> &'static str {
        self.table_row().2
    }

    fn table_row(&self) -> (ErrorKind, Cause, &'static str) {
        match self {
            Self::Empty { .. } => (ErrorKind::Empty, Cause::Request, "validation"),
            Self::EmptyInput { .. } => (ErrorKind::Empty, Cause::Request, "tokenization"),
            Self::Validation(_) => (ErrorKind::Validation, Cause::Request, "validation"),
            Self::BatchTooLarge { .. } => (ErrorKind::Validation, Cause::Request, "batch_size"),
            Self::TooLong { .. } | Self::TooManyCharacters { .. } => {
                (ErrorKind::Validation, Cause::Request, "tokenization")
            }
            Self::OfInput { error, .. } => error.table_row(),
            Self::Tokenizer(_) => (ErrorKind::Tokenizer, Cause::Server, "tokenization"),
            Self::ModelType { .. } | Self::Splade { .. } => {
                (ErrorKind::Backend, Cause::Request, "model_type")
            }
            Self::Inference(_) => (ErrorKind::Backend, Cause::Server, "inference"),
            Self::MissingValues => (ErrorKind::Backend, Cause::Server, "missing_values"),
            Self::Overloaded { .. } => (ErrorKind::Overloaded, Cause::Load, "overloaded"),
            Self::QueueTimeout { .. } => (ErrorKind::Overloaded, Cause::Load, "queue_timeout"),
            Self::DeadlineExceeded { .. } => (ErrorKind::DeadlineExceeded, Cause::Load, "dropped"),
            Self::Unhealthy | Self::DeviceLost => (ErrorKind::Unhealthy, Cause::Server, "unhealthy"),
        }
    }

    /// This error, which names the input at `index` if the input itself is not valid.
    pub(crate) fn of_input(self, index: usize) -> Self {
        match self {
            Self::TooLong { .. } | Self::TooManyCharacters { .. } | Self::EmptyInput { .. } => {
                Self::OfInput { index, error: Box::new(self) }
            }
            other => other,
        }
    }

    /// This error in other words. The name of the input stays.
    #[must_use]
    pub fn reworded(self, reword: impl Fn(Self) -> Self) -> Self {
        match self {
            Self::OfInput { index, error } => Self::OfInput { index, error: Box::new(reword(*error)) },
            other => reword(other),
        }
    }

    /// The time after which to try again, in seconds, if the server is overloaded.
    pub fn retry_after(&self) -> Option<u64> {
        match self {
            Self::Overloaded { retry_after } | Self::QueueTimeout { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }
}
