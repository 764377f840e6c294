//! A client's own deadline: the header `x-request-timeout`, in seconds.
//!
//! Input: a request. Output: its answer, or 504 once its time is up. What must hold: the rest of such a
//! request is not computed; a deadline that cannot be read is an error and not ignored.

use std::time::Duration;

use axum::{extract::Request, http::HeaderMap, middleware::Next, response::Response};
use text_embeddings_core::error::Error;

use super::error::ApiError;
use crate::args::seconds;

const HEADER: &str = "x-request-timeout";

/// Answers a request within the time that it allows, or with an error. The error is 422 if the time is not a
/// positive number of seconds, 504 once it is up.
pub(super) async fn keep(request: Request, next: Next) -> Result<Response, ApiError> {
    let limit = limit_of(request.headers())?;
    answer_within(limit, next.run(request)).await
}

/// The time that a request allows.
pub(super) fn limit_of(headers: &HeaderMap) -> Result<Option<Duration>, ApiError> {
    let Some(header) = headers.get(HEADER) else { return Ok(None) };
    let given = String::from_utf8_lossy(header.as_bytes()).into_owned();
    let allowed = seconds(&given);
    allowed.map(Some).map_err(|problem| ApiError::invalid(format!("`{HEADER}: {given}` {problem}")))
}

/// The answer, unless it takes longer than `limit`.
pub(super) async fn answer_within<T>(
    limit: Option<Duration>,
    answer: impl Future<Output = T>,
) -> Result<T, ApiError> {
    let Some(allowed) = limit else { return Ok(answer.await) };
    // On a timeout the future is dropped, which cancels the request's work.
    let answer = tokio::time::timeout(allowed, answer).await;
    answer.map_err(|_| ApiError::from(Error::DeadlineExceeded { allowed }))
}

#[cfg(test)]
mod tests {
    use super::super::testing::Server;

    #[tokio::test]
    async fn a_request_is_answered_in_its_own_time_or_not_at_all() {
        let server = Server::start().await;
        let body = r#"{"query":"q","texts":["ZZ","a"]}"#;
        for (time, wanted) in
            [("20", 200), ("20.5", 200), ("0", 422), ("-1", 422), ("soon", 422), ("1e99", 422)]
        {
            let answer = server.post("/rerank", body, &[("x-request-timeout", time)]).await;
            assert_eq!(answer.status, wanted, "{time}: {}", answer.body);
        }
        let before = server.control.seen();
        server.control.hold(true);
        for (path, body) in [("/rerank", body), ("/score", r#"{"text_1":"q","text_2":["ZZ"]}"#)] {
            let answer = server.post(path, body, &[("x-request-timeout", "0.05")]).await;
            assert_eq!(answer.status, 504, "{path}: {}", answer.body);
            assert!(
                answer.body.contains("the time limit of 0.05 s that the request set"),
                "{path}: {}",
                answer.body
            );
        }
        server.control.hold(false);
        let answer = server.post("/rerank", body, &[]).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        // The device had begun the first request when its time was up; nothing of the second was computed.
        assert_eq!(server.control.seen(), before + 2);
    }
}
