//! The deadline of a call, from its metadata `grpc-timeout`.
//!
//! Input: a call. Output: its answer, or CANCELLED if no answer has begun in time. What must hold: when the
//! time is up, the call's work is cancelled.

use std::time::Duration;

use axum::{extract::Request, http::HeaderMap, middleware::Next, response::Response};
use tonic::Status;

/// Answers a call within its deadline, if it has one. A deadline that cannot be read is ignored, as in other
/// servers.
pub(super) async fn hold(request: Request, next: Next) -> Response {
    answer_within(limit_of(request.headers()), next.run(request)).await
}

/// The time that a call allows.
pub(super) fn limit_of(headers: &HeaderMap) -> Option<Duration> {
    parse(headers.get("grpc-timeout")?.to_str().ok()?)
}

/// The answer, or CANCELLED if it takes longer than `limit`.
pub(super) async fn answer_within(
    limit: Option<Duration>,
    answer: impl Future<Output = Response>,
) -> Response {
    let Some(limit) = limit else { return answer.await };
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => answer,
        Err(_) => Status::cancelled("Timeout expired").into_http(),
    }
}

/// At most eight digits and a unit.
fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use axum::{Router, body::Body, middleware, routing::post};
    use tonic::Code;
    use tower_service::Service;

    #[test]
    fn a_deadline_is_digits_and_a_unit() {
        let table = [
            ("3H", Some(Duration::from_hours(3))),
            ("99999999M", Some(Duration::from_mins(99_999_999))),
            ("0S", Some(Duration::ZERO)),
            ("20m", Some(Duration::from_millis(20))),
            ("7u", Some(Duration::from_micros(7))),
            ("7n", Some(Duration::from_nanos(7))),
            ("100000000S", None),
            ("S", None),
            ("", None),
            ("-1S", None),
            ("+1S", None),
            ("1é", None),
            ("1.5S", None),
            ("15", None),
        ];
        for (text, expected) in table {
            assert_eq!(parse(text), expected, "{text}");
        }
    }

    // Not over a connection, because tonic's client also keeps the deadline.
    #[tokio::test]
    async fn a_call_ends_at_its_deadline() {
        let slow = || async { tokio::time::sleep(Duration::from_hours(1)).await };
        let mut app = Router::new()
            .route("/slow", post(slow))
            .route("/quick", post(|| async { "done" }))
            .layer(middleware::from_fn(hold));
        for (path, timeout, expected) in
            [("/slow", "20m", Some(Code::Cancelled)), ("/quick", "20S", None), ("/quick", "soon", None)]
        {
            let request = Request::post(path).header("grpc-timeout", timeout).body(Body::empty()).unwrap();
            let answer = app.call(request).await.unwrap();
            let status = Status::from_header_map(answer.headers()).map(|status| status.code());
            assert_eq!(status, expected, "{path} {timeout}");
        }
    }
}
