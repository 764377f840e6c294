//! Errors over gRPC: the one mapping from errors to a code and a message.
//!
//! Input: an [`Error`] of the engine, or a mistake that only gRPC can have. Output: a [`Status`]. What must
//! hold: the message is the one that HTTP gives; a client's mistake is logged as information.

use text_embeddings_core::error::{Cause, Error, ErrorKind, shorten_message};
use tonic::{Code, Status};

/// The status of an error of the engine.
#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
pub(super) fn status(error: Error) -> Status {
    let code = match error.kind() {
        ErrorKind::Unhealthy => Code::Unavailable,
        ErrorKind::Backend | ErrorKind::Tokenizer => Code::FailedPrecondition,
        ErrorKind::Overloaded => Code::ResourceExhausted,
        ErrorKind::DeadlineExceeded => Code::DeadlineExceeded,
        ErrorKind::Validation | ErrorKind::Empty => Code::InvalidArgument,
    };
    let message = shorten_message(error.to_string());
    match error.cause() {
        Cause::Request => tracing::info!(?code, "{message}"),
        Cause::Load => tracing::warn!(?code, "{message}"),
        Cause::Server => tracing::error!(?code, "{message}"),
    }
    Status::new(code, message)
}

/// The status of a message that its method does not take.
pub(super) fn invalid(message: impl Into<String>) -> Status {
    refuse(Status::invalid_argument(shorten_message(message.into())))
}

/// Logs a refusal that the engine does not know of.
pub(super) fn refuse(status: Status) -> Status {
    tracing::info!(code = ?status.code(), "{}", status.message());
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_its_code_and_message() {
        let nan = "Backend error: the model's answer is NaN or infinite: its weights or its arithmetic are broken; `--dtype float32` rules the latter out";
        let table = [
            (Error::Empty { field: "texts" }, Code::InvalidArgument, "`texts` cannot be empty"),
            (
                Error::EmptyInput { field: "inputs" },
                Code::InvalidArgument,
                "Input validation error: `inputs` cannot be empty",
            ),
            (Error::Validation("no".to_owned()), Code::InvalidArgument, "Input validation error: no"),
            (
                Error::BatchTooLarge { got: 33, max: 32 },
                Code::InvalidArgument,
                "batch size 33 > maximum allowed batch size 32; `--max-client-batch-size`, for re-ranking `--max-rerank-texts`, sets the maximum",
            ),
            (
                Error::TooLong { got: 9, max: 8 },
                Code::InvalidArgument,
                "Input validation error: `inputs` must have less than 8 tokens. Given: 9; 8 fit",
            ),
            (Error::Tokenizer("odd".to_owned()), Code::FailedPrecondition, "tokenizer error odd"),
            (
                Error::ModelType { problem: "model is not a re-ranker model", advice: "it is another" },
                Code::FailedPrecondition,
                "Backend error: model is not a re-ranker model; it is another",
            ),
            (Error::Inference("it broke".to_owned()), Code::FailedPrecondition, "Backend error: it broke"),
            (Error::MissingValues, Code::FailedPrecondition, nan),
            (Error::Overloaded { retry_after: 1 }, Code::ResourceExhausted, "Model is overloaded"),
            (Error::Unhealthy, Code::Unavailable, "Service is unhealthy"),
            (
                Error::DeviceLost,
                Code::Unavailable,
                "the device that computes is lost and this server ends: send the request again",
            ),
        ];
        for (error, code, message) in table {
            let status = status(error);
            assert_eq!((status.code(), status.message()), (code, message));
        }
    }
}
