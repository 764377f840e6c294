//! What goes wrong, on the wire: the one mapping from errors to a status and a body.
//!
//! Input: an [`Error`] of the engine, or a mistake that only HTTP can have. Output: a status, and `{"error",
//! "error_type"}`, which `words.rs` puts into other words where a client reads others. What must hold: every answer that
//! is not a success has such a body; 429 says when to come back.

use axum::{
    http::{
        HeaderValue, StatusCode,
        header::{RETRY_AFTER, WWW_AUTHENTICATE},
    },
    response::{IntoResponse, Response},
};
use serde::Serialize;
use text_embeddings_core::error::{Error, ErrorKind};
use utoipa::ToSchema;

use super::{format::Format, words::Words};
use crate::door::Cut;

/// What a client without the key is told.
const UNAUTHORIZED: &str = "this server wants its key as `Authorization: Bearer KEY`";

/// An answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: ErrorType,
    message: String,
    /// Whose, if the body of the request said so.
    words: Option<Words>,
    /// When to try again, in seconds.
    retry_after: Option<u64>,
}

/// The kinds of errors that clients tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) enum ErrorType {
    /// The server cannot compute at present.
    Unhealthy,
    /// Inference failed, or the model is of another kind.
    Backend,
    /// Too many requests at once: come back later.
    Overloaded,
    /// The request is not valid.
    Validation,
    /// The tokenizer failed.
    Tokenizer,
    /// A list or text that must not be empty is.
    Empty,
    /// The key is missing or wrong.
    Unauthorized,
}

/// What went wrong.
#[derive(Serialize, ToSchema)]
#[schema(as = ErrorResponse)]
pub(crate) struct ErrorBody {
    /// What, where, and what to do.
    error: String,
    error_type: ErrorType,
}

impl ErrorBody {
    pub(crate) fn new(error: String, error_type: ErrorType) -> Self {
        Self { error, error_type }
    }
}

/// What went wrong, in `OpenAI`'s words.
#[derive(Serialize, ToSchema)]
#[schema(as = OpenAICompatErrorResponse)]
pub(crate) struct OpenAiErrorBody {
    /// What, where, and what to do.
    message: String,
    /// The status.
    #[schema(value_type = u32)]
    code: u16,
    #[serde(rename = "type")]
    kind: ErrorType,
    /// Never there: the name of `type` in the description of text-embeddings-inference, which sends `type`, too.
    #[schema(value_type = ErrorType, required = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    error_type: Option<ErrorType>,
}

impl OpenAiErrorBody {
    pub(crate) fn new(message: String, code: u16, kind: ErrorType) -> Self {
        Self { message, code, kind, error_type: None }
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let (status, kind) = match error.kind() {
            ErrorKind::Unhealthy => (StatusCode::SERVICE_UNAVAILABLE, ErrorType::Unhealthy),
            ErrorKind::Backend => (StatusCode::FAILED_DEPENDENCY, ErrorType::Backend),
            ErrorKind::Overloaded => (StatusCode::TOO_MANY_REQUESTS, ErrorType::Overloaded),
            ErrorKind::DeadlineExceeded => (StatusCode::GATEWAY_TIMEOUT, ErrorType::Overloaded),
            ErrorKind::Validation => (StatusCode::UNPROCESSABLE_ENTITY, ErrorType::Validation),
            ErrorKind::Tokenizer => (StatusCode::UNPROCESSABLE_ENTITY, ErrorType::Tokenizer),
            ErrorKind::Empty => (StatusCode::BAD_REQUEST, ErrorType::Empty),
        };
        let retry_after = error.retry_after();
        Self { status, kind, message: error.to_string(), words: None, retry_after }
    }
}

impl ApiError {
    /// A body that is not in its format, such as JSON that ends too early.
    pub(crate) fn malformed(message: String) -> Self {
        Self::validation(StatusCode::BAD_REQUEST, message)
    }

    /// A body that is well formed and not what the route wants.
    pub(crate) fn invalid(message: String) -> Self {
        Self::validation(StatusCode::UNPROCESSABLE_ENTITY, message)
    }

    /// A body of more than `limit` bytes.
    pub(crate) fn too_large(limit: usize) -> Self {
        let message =
            format!("the request body has more than {limit} bytes: send less, or raise `--payload-limit`");
        Self::validation(StatusCode::PAYLOAD_TOO_LARGE, message)
    }

    /// A body that ended too early by the server's own decision.
    pub(crate) fn cut(cut: Cut) -> Self {
        let (status, kind) = match cut {
            Cut::TooSlow => (StatusCode::REQUEST_TIMEOUT, ErrorType::Validation),
            Cut::NoRoom => (StatusCode::SERVICE_UNAVAILABLE, ErrorType::Overloaded),
        };
        Self { status, kind, message: cut.to_string(), words: None, retry_after: None }
    }

    /// A body that says it is not JSON.
    pub(crate) fn media_type(given: &str) -> Self {
        let message = format!(
            "the request body must be JSON or MessagePack, with `Content-Type: application/json` or `application/msgpack`, not `{given}`"
        );
        Self::validation(StatusCode::UNSUPPORTED_MEDIA_TYPE, message)
    }

    /// A key that is missing or wrong.
    pub(crate) fn unauthorized() -> Self {
        let message = UNAUTHORIZED.to_owned();
        Self {
            status: StatusCode::UNAUTHORIZED,
            kind: ErrorType::Unauthorized,
            message,
            words: None,
            retry_after: None,
        }
    }

    /// A server that answers what it has begun and no more.
    pub(crate) fn stopping() -> Self {
        let message = "the server is stopping: send requests elsewhere".to_owned();
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            kind: ErrorType::Unhealthy,
            message,
            words: None,
            retry_after: None,
        }
    }

    /// What the body calls the kind of error.
    pub(crate) fn kind(&self) -> &'static str {
        match self.kind {
            ErrorType::Unhealthy => "Unhealthy",
            ErrorType::Backend => "Backend",
            ErrorType::Overloaded => "Overloaded",
            ErrorType::Validation => "Validation",
            ErrorType::Tokenizer => "Tokenizer",
            ErrorType::Empty => "Empty",
            ErrorType::Unauthorized => "Unauthorized",
        }
    }

    /// The kind of error.
    pub(crate) fn error_type(&self) -> ErrorType {
        self.kind
    }

    /// The status of the answer.
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// In whose words it is to be said, if the request's body decided that.
    pub(crate) fn words(&self) -> Option<Words> {
        self.words
    }

    /// The same error, to be said in these words wherever it was met.
    pub(crate) fn in_words(self, words: Words) -> Self {
        Self { words: Some(words), ..self }
    }

    /// What the client reads.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Whether the server, or its load, is at fault rather than the request.
    pub(crate) fn is_fault(&self) -> bool {
        matches!(self.kind, ErrorType::Backend | ErrorType::Unhealthy | ErrorType::Overloaded)
    }

    /// A path that is none of the server's.
    pub(crate) fn not_found(path: &str, routes: &str) -> Self {
        Self::validation(StatusCode::NOT_FOUND, format!("there is no route `{path}`; there are {routes}"))
    }

    /// A route called with a method that it does not have.
    pub(crate) fn method_not_allowed(method: &str, path: &str) -> Self {
        let message = format!("`{path}` does not take {method}: see the answer's `Allow` header");
        Self::validation(StatusCode::METHOD_NOT_ALLOWED, message)
    }

    /// The same error in an element of a list: its message ends with the place.
    pub(crate) fn at(self, place: &str) -> Self {
        Self { message: format!("{} (in {place})", self.message), ..self }
    }

    fn validation(status: StatusCode, message: String) -> Self {
        Self { status, kind: ErrorType::Validation, message, words: None, retry_after: None }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Self { status, kind, message, .. } = &self;
        if matches!(kind, ErrorType::Backend | ErrorType::Unhealthy) {
            tracing::error!(status = status.as_u16(), ?kind, "{message}");
        } else {
            tracing::warn!(status = status.as_u16(), ?kind, "{message}");
        }
        let mut response = Words::Tei.say(&self, Format::Json);
        let headers = response.headers_mut();
        match *status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
                if *kind == ErrorType::Overloaded =>
            {
                headers.insert(RETRY_AFTER, HeaderValue::from(self.retry_after.unwrap_or(1)));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        // For `words::in_the_clients_words` and the request's span.
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use http_body_util::BodyExt;
    use text_embeddings_core::error::NOT_A_RERANKER;

    async fn wire(response: Response) -> (u16, String) {
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn every_error_has_its_status_and_body() {
        let nan = "Backend error: the model's answer is NaN or infinite: its weights or its arithmetic are broken; `--dtype float32` rules the latter out";
        let table = [
            (Error::Empty { field: "texts" }, 400, "`texts` cannot be empty", "Empty"),
            (
                Error::EmptyInput { field: "inputs" },
                400,
                "Input validation error: `inputs` cannot be empty",
                "Empty",
            ),
            (Error::Validation("no".to_owned()), 422, "Input validation error: no", "Validation"),
            (
                Error::BatchTooLarge { got: 33, max: 32 },
                422,
                "batch size 33 > maximum allowed batch size 32",
                "Validation",
            ),
            (
                Error::TooLong { got: 9, max: 8 },
                422,
                "Input validation error: `inputs` must have less than 8 tokens. Given: 9",
                "Validation",
            ),
            (Error::Tokenizer("odd".to_owned()), 422, "tokenizer error odd", "Tokenizer"),
            (NOT_A_RERANKER, 424, "Backend error: model is not a re-ranker model", "Backend"),
            (Error::Inference("it broke".to_owned()), 424, "Backend error: it broke", "Backend"),
            (Error::MissingValues, 424, nan, "Backend"),
            (Error::Overloaded { retry_after: 1 }, 429, "Model is overloaded", "Overloaded"),
            (Error::Unhealthy, 503, "Service is unhealthy", "Unhealthy"),
            (
                Error::DeviceLost,
                503,
                "the device that computes is lost and this server ends: send the request again",
                "Unhealthy",
            ),
        ];
        for (error, status, message, kind) in table {
            let body = format!(r#"{{"error":"{message}","error_type":"{kind}"}}"#);
            assert_eq!(wire(ApiError::from(error.clone()).into_response()).await, (status, body));
            let body = format!(r#"{{"message":"{message}","code":{status},"type":"{kind}"}}"#);
            let said = Words::OpenAi.say(&ApiError::from(error), Format::Json);
            assert_eq!(wire(said).await, (status, body));
        }
    }

    #[test]
    fn some_errors_have_a_header_too() {
        let response = ApiError::from(Error::Overloaded { retry_after: 1 }).into_response();
        assert_eq!(response.headers()[RETRY_AFTER], "1");
        let response = ApiError::unauthorized().into_response();
        assert_eq!(response.headers()[WWW_AUTHENTICATE], "Bearer");
        let response = ApiError::from(Error::Unhealthy).into_response();
        assert!(!response.headers().contains_key(RETRY_AFTER));
    }
}
