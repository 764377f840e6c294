//! A client's own deadline: the header `x-request-timeout`, in seconds.
//!
//! Input: a request. Output: its answer, or 504 once its time is up. What must hold: what is left of the request then is
//! not computed; a deadline that cannot be read is an error, not ignored.

use std::time::Duration;

use axum::{extract::Request, middleware::Next, response::Response};
use text_embeddings_core::error::Error;

use super::error::ApiError;
use crate::args::seconds;

const HEADER: &str = "x-request-timeout";

/// Answers a request within the time that it allows, or says that this is over.
///
/// # Errors
///
/// 422 for a time that is no positive number of seconds, 504 once it is up.
pub(super) async fn keep(request: Request, next: Next) -> Result<Response, ApiError> {
    let Some(header) = request.headers().get(HEADER) else { return Ok(next.run(request).await) };
    let given = String::from_utf8_lossy(header.as_bytes()).into_owned();
    let allowed: Duration =
        seconds(&given).map_err(|problem| ApiError::invalid(format!("`{HEADER}: {given}` {problem}")))?;
    // Dropped, the request's work is not done.
    let answer = tokio::time::timeout(allowed, next.run(request)).await;
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
            assert!(answer.body.contains("the 0.05 s that the request allowed"), "{path}: {}", answer.body);
        }
        server.control.hold(false);
        let answer = server.post("/rerank", body, &[]).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        // The first was on the device when its time was up; of the second nothing was computed.
        assert_eq!(server.control.seen(), before + 2);
    }
}
