//! Errors over HTTP: the one mapping from errors to a status and a kind, and the answer that the client
//! reads.
//!
//! Input: an [`Error`] of the engine, or a mistake that only HTTP can have. Output: a status, and a body in
//! the shape that the request's body or path asks for (`error_shapes.rs`). What must hold: every answer that
//! is not a success has such a body, whoever refused the request; 429 says when to come back; a client's
//! mistake is logged as information.

use axum::{
    extract::Request,
    http::{
        HeaderMap, HeaderValue, Method, StatusCode,
        header::{RETRY_AFTER, WWW_AUTHENTICATE},
    },
    middleware::Next,
    response::{IntoResponse, Response},
};
use text_embeddings_backend_core::amount;
use text_embeddings_core::error::{Cause, Error, ErrorKind, shorten_message};

use super::{
    error_shapes::{ErrorShape, ErrorType},
    format::BodyFormat,
    routes::{self, Route},
};
use crate::models::UnknownModel;
use text_embeddings_door::UploadError;

/// The message for a client without the key.
const UNAUTHORIZED: &str = "this server wants its key as `Authorization: Bearer KEY`";
/// A message repeats at most this many characters of a path.
const MAX_PATH: usize = 200;

/// An answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: ErrorType,
    cause: Cause,
    message: String,
    /// The shape of the body, if the request's body decides it.
    shape: Option<ErrorShape>,
    /// When to try again, in seconds.
    retry_after: Option<u64>,
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
        Self { retry_after, ..Self::new(status, kind, error.cause(), error.to_string()) }
    }
}

impl ApiError {
    fn new(status: StatusCode, kind: ErrorType, cause: Cause, message: String) -> Self {
        let message = shorten_message(message);
        Self { status, kind, cause, message, shape: None, retry_after: None }
    }

    fn validation(status: StatusCode, message: String) -> Self {
        Self::new(status, ErrorType::Validation, Cause::Request, message)
    }

    /// A body that is not in its format, such as JSON that ends too early.
    pub(crate) fn malformed(message: String) -> Self {
        Self::validation(StatusCode::BAD_REQUEST, message)
    }

    /// A well-formed body that the route does not take.
    pub(crate) fn invalid(message: String) -> Self {
        Self::validation(StatusCode::UNPROCESSABLE_ENTITY, message)
    }

    /// A body of more than `limit` bytes.
    pub(crate) fn too_large(limit: usize) -> Self {
        let limit = amount(limit, "byte");
        let message =
            format!("the request body has more than {limit}: send less, or raise `--payload-limit`");
        Self::validation(StatusCode::PAYLOAD_TOO_LARGE, message)
    }

    /// A body that the server stopped reading.
    pub(crate) fn cut(cut: UploadError) -> Self {
        let (status, kind, cause) = match cut {
            UploadError::TooSlow => (StatusCode::REQUEST_TIMEOUT, ErrorType::Validation, Cause::Request),
            UploadError::NoRoom => (StatusCode::SERVICE_UNAVAILABLE, ErrorType::Overloaded, Cause::Load),
        };
        Self::new(status, kind, cause, cut.to_string())
    }

    /// A body whose `Content-Type` is neither JSON nor `MessagePack`.
    pub(crate) fn media_type(given: &str) -> Self {
        let message = format!(
            "the request body must be JSON or MessagePack, with `Content-Type: application/json` or \
             `application/msgpack`, not `{given}`"
        );
        Self::validation(StatusCode::UNSUPPORTED_MEDIA_TYPE, message)
    }

    /// A compressed body.
    pub(crate) fn content_encoding(given: &str) -> Self {
        let message = format!(
            "the request body has `Content-Encoding: {given}`, which is not supported: send it uncompressed"
        );
        Self::validation(StatusCode::UNSUPPORTED_MEDIA_TYPE, message)
    }

    /// A body that was encoded for its transfer.
    pub(crate) fn transfer_encoding(given: &str) -> Self {
        let message = format!(
            "the request body has `Transfer-Encoding: {given}`, but only `chunked` is supported: send it \
             uncompressed"
        );
        Self::validation(StatusCode::NOT_IMPLEMENTED, message)
    }

    /// A request without the key, or with a wrong one.
    pub(crate) fn unauthorized() -> Self {
        let (status, kind) = (StatusCode::UNAUTHORIZED, ErrorType::Unauthorized);
        Self::new(status, kind, Cause::Request, UNAUTHORIZED.to_owned())
    }

    /// The readiness of a server that was asked to stop.
    pub(crate) fn stopping() -> Self {
        let message = "the server is stopping: send requests elsewhere".to_owned();
        // Someone asked for it: the log does not call it a failure.
        Self::new(StatusCode::SERVICE_UNAVAILABLE, ErrorType::Unhealthy, Cause::Request, message)
    }

    /// A path without a route. Names the nearest one of `routes`.
    pub(crate) fn not_found(routes: &[Route], path: &str) -> Self {
        let advice = match routes::nearest(routes, path) {
            Some(Route { method, path, .. }) => format!("did you mean `{method} {path}`?"),
            None => "`GET /docs` lists the routes".to_owned(),
        };
        let path: String = path.chars().take(MAX_PATH).collect();
        Self::validation(StatusCode::NOT_FOUND, format!("no such route `{path}`: {advice}"))
    }

    /// A model that is not there.
    pub(crate) fn unknown_model(error: &UnknownModel) -> Self {
        Self::validation(StatusCode::NOT_FOUND, error.to_string())
    }

    /// A path that has routes, but none of the request's method.
    pub(crate) fn method_not_allowed(path: &str, allowed: &[Method], given: &str) -> Self {
        let allowed: Vec<String> = allowed.iter().map(Method::to_string).collect();
        let message = format!("`{path}` takes {}, not {given}", allowed.join(" and "));
        Self::validation(StatusCode::METHOD_NOT_ALLOWED, message)
    }

    /// The name that the body has for the kind of error.
    pub(crate) fn kind(&self) -> String {
        format!("{:?}", self.kind)
    }

    /// The message that the client reads.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Whether the server, or its load, is at fault rather than the request.
    pub(crate) fn is_fault(&self) -> bool {
        self.cause != Cause::Request
    }

    /// The same error in this shape, whichever path it occurred on.
    pub(crate) fn in_shape(self, shape: ErrorShape) -> Self {
        Self { shape: Some(shape), ..self }
    }

    /// The same error in an element of a list: its message ends with the element's place.
    pub(crate) fn at(self, place: &str) -> Self {
        Self { message: format!("{} (in {place})", self.message), ..self }
    }

    fn respond(&self, shape: ErrorShape, format: BodyFormat) -> Response {
        shape.respond(self.status, self.kind, &self.message, format)
    }

    fn log(&self) {
        let Self { status, kind, cause, message, .. } = self;
        let status = status.as_u16();
        match cause {
            Cause::Request => tracing::info!(status, ?kind, "{message}"),
            Cause::Load => tracing::warn!(status, ?kind, "{message}"),
            Cause::Server => tracing::error!(status, ?kind, "{message}"),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.log();
        let mut response = self.respond(ErrorShape::Tei, BodyFormat::Json);
        let headers = response.headers_mut();
        match self.status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
                if self.kind == ErrorType::Overloaded =>
            {
                headers.insert(RETRY_AFTER, HeaderValue::from(self.retry_after.unwrap_or(1)));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        // For `rewrite` and the request's span.
        response.extensions_mut().insert(self);
        response
    }
}

/// Rewrites the body of an error in the form that the client reads.
pub(crate) async fn rewrite(request: Request, next: Next) -> Response {
    let form = ErrorForm::from_headers(request.uri().path(), request.headers());
    form.rewrite_error(next.run(request).await)
}

/// The form in which a client reads an error.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ErrorForm {
    shape_of_path: ErrorShape,
    format: BodyFormat,
}

impl ErrorForm {
    /// The form for a request on `path` with these headers.
    pub(crate) fn from_headers(path: &str, headers: &HeaderMap) -> Self {
        Self { shape_of_path: routes::error_shape(path), format: BodyFormat::of_answer(headers) }
    }

    /// The answer with an error before the request came to its handler.
    pub(crate) fn refused_answer(self, error: ApiError) -> Response {
        self.rewrite_error(error.into_response())
    }

    fn rewrite_error(self, mut response: Response) -> Response {
        if let Some(error) = response.extensions().get::<ApiError>() {
            let rewritten = error.respond(error.shape.unwrap_or(self.shape_of_path), self.format);
            let (head, body) = rewritten.into_parts();
            response.headers_mut().extend(head.headers);
            *response.body_mut() = body;
        }
        response
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::http::testing::openai_error;
    use http_body_util::BodyExt;

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
                "batch size 33 > maximum allowed batch size 32; `--max-client-batch-size`, for re-ranking `--max-rerank-texts`, sets the maximum",
                "Validation",
            ),
            (
                Error::TooLong { got: 9, max: 8 },
                422,
                "Input validation error: `inputs` must have less than 8 tokens. Given: 9; 8 fit",
                "Validation",
            ),
            (Error::Tokenizer("odd".to_owned()), 422, "tokenizer error odd", "Tokenizer"),
            (
                Error::ModelType { problem: "model is not a re-ranker model", advice: "it is another" },
                424,
                "Backend error: model is not a re-ranker model; it is another",
                "Backend",
            ),
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
            let body = openai_error(message, status, kind);
            let answer = ApiError::from(error).respond(ErrorShape::OpenAi, BodyFormat::Json);
            assert_eq!(wire(answer).await, (status, body));
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
