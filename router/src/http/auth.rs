//! The API key: who does not send it gets no further.
//!
//! Input: the `Authorization` header. Output: the request goes on, or 401. What must hold: the time of the comparison
//! does not depend on how much of the key is right.

use axum::{
    extract::{FromRequest, Request, State},
    http::{HeaderMap, HeaderValue, header::AUTHORIZATION},
    middleware::Next,
    response::Response,
};
use subtle::ConstantTimeEq;

use super::{error::ApiError, extract::RawBody, state::AppState};

/// Lets a request pass that carries the key, or any request if the server has none.
///
/// # Errors
///
/// 401 for a missing or wrong key.
pub(crate) async fn require_key(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    match &state.server.api_key {
        Some(key) if !carries(request.headers(), key.expose()) => {
            // A body left unread would close the connection under the client's next request.
            let _ = RawBody::from_request(request, &state).await;
            Err(ApiError::unauthorized())
        }
        _ => Ok(next.run(request).await),
    }
}

fn carries(headers: &HeaderMap, key: &str) -> bool {
    let credentials = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
    let Some((scheme, token)) = credentials.and_then(|bytes| bytes.split_at_checked(b"Bearer ".len())) else {
        return false;
    };
    scheme.eq_ignore_ascii_case(b"Bearer ") && token.ct_eq(key.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    #[test]
    fn only_the_whole_key_as_a_bearer_token_counts() {
        let table = [
            ("Bearer key-1", true),
            ("bearer key-1", true),
            ("Bearer key-", false),
            ("Bearer key-12", false),
            ("Bearer  key-1", false),
            ("Bearer KEY-1", false),
            ("Bearer", false),
            ("Bearer ", false),
            ("key-1", false),
            ("Basic key-1", false),
            ("", false),
        ];
        for (value, expected) in table {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]);
            assert_eq!(carries(&headers, "key-1"), expected, "{value}");
        }
        assert!(!carries(&HeaderMap::new(), "key-1"));
    }
}
