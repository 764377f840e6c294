//! The API key: does a request carry it?
//!
//! Input: a request's headers, which are gRPC's metadata too. Output: yes or no. What must hold: the time of the
//! comparison does not depend on how much of the key is right.

use axum::http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use subtle::ConstantTimeEq;

use crate::secret::Secret;

/// Whether a request with these headers may pass: it carries the key, or the server has none.
pub(crate) fn may_pass(headers: &HeaderMap, key: Option<&Secret>) -> bool {
    key.is_none_or(|key| carries(headers, key.expose()))
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
