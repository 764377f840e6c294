//! Compressed bodies, which only the routes of decisions take.
//!
//! Input: a request's headers and path, then the bytes of its body. Output: the bytes as they were before.
//! What must hold: decoding takes at most `--payload-limit` bytes for the result, and a window that is no
//! larger or of 8 MiB; whatever the body claims, nothing is allocated before that is checked.

use std::io::Read;

use axum::http::header::{CONTENT_ENCODING, HeaderMap, HeaderName, TRANSFER_ENCODING};
use ruzstd::decoding::StreamingDecoder;

use super::{
    error::ApiError,
    routes::{self, Action, ROUTES},
};

/// The window that every decoder should have room for (RFC 8878).
const MIN_MAX_WINDOW: usize = 8 << 20;

/// How a body is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyEncoding {
    /// As it is.
    Plain,
    /// By zstd. The package `typesafe-sdk` compresses bodies from 1,024 bytes up.
    Zstd {
        /// The most bytes of the result.
        limit: usize,
    },
}

impl BodyEncoding {
    /// The encoding of a request's body on this path. Fails if the path does not take it, or if the body was
    /// encoded for its transfer, too: the HTTP library takes every coding before `chunked`, and decodes none.
    pub(super) fn from_headers(headers: &HeaderMap, path: &str, limit: usize) -> Result<Self, ApiError> {
        let transfer = all_values(headers, &TRANSFER_ENCODING);
        if !["", "chunked"].contains(&transfer.trim().to_lowercase().as_str()) {
            return Err(ApiError::transfer_encoding(&transfer));
        }
        let given = all_values(headers, &CONTENT_ENCODING);
        let applied = given.split(',').map(str::trim);
        let mut applied =
            applied.filter(|encoding| !encoding.is_empty() && !encoding.eq_ignore_ascii_case("identity"));
        match (applied.next(), applied.next()) {
            (None, _) => Ok(Self::Plain),
            (Some("zstd"), None) if takes_zstd(path) => Ok(Self::Zstd { limit }),
            _ => Err(ApiError::content_encoding(&given)),
        }
    }

    /// The body before it was encoded. Fails if it is not in this encoding, or too large.
    pub(super) fn decode_body(self, bytes: Vec<u8>) -> Result<Vec<u8>, ApiError> {
        let Self::Zstd { limit } = self else { return Ok(bytes) };
        let max_window = limit.max(MIN_MAX_WINDOW) as u64;
        let mut decoder = StreamingDecoder::new_with_max_window_size(bytes.as_slice(), max_window)
            .map_err(|error| broken_frame(&error))?;
        let mut decoded = Vec::new();
        let max_bytes = (limit as u64).saturating_add(1);
        decoder.by_ref().take(max_bytes).read_to_end(&mut decoded).map_err(|error| broken_frame(&error))?;
        if decoded.len() > limit {
            return Err(ApiError::too_large(limit));
        }
        if !decoder.get_ref().is_empty() {
            return Err(broken_frame(&"it goes on after the end of its frame"));
        }
        Ok(decoded)
    }
}

/// The values of a header that is a list.
fn all_values(headers: &HeaderMap, name: &HeaderName) -> String {
    let values = headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
    values.collect::<Vec<_>>().join(", ")
}

fn takes_zstd(path: &str) -> bool {
    routes::of_path(&ROUTES, path).iter().any(|route| route.action == Action::Decide)
}

fn broken_frame(reason: &impl std::fmt::Display) -> ApiError {
    ApiError::malformed(format!("the request body is not zstd that this server reads: {reason}"))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn encoding_of(given: &[&str], path: &str) -> Result<BodyEncoding, ApiError> {
        let mut headers = HeaderMap::new();
        for value in given {
            headers.append(CONTENT_ENCODING, value.parse().unwrap());
        }
        BodyEncoding::from_headers(&headers, path, 9)
    }

    #[test]
    fn only_decisions_take_zstd_and_nothing_else() {
        let zstd = Ok(BodyEncoding::Zstd { limit: 9 });
        let refused = |given| Err(ApiError::content_encoding(given));
        for path in ["/v1/systemone", "/v1/decisions"] {
            assert_eq!(encoding_of(&["zstd"], path), zstd);
            assert_eq!(encoding_of(&["identity, zstd"], path), zstd);
            assert_eq!(encoding_of(&["zstd", "zstd"], path), refused("zstd, zstd"));
            assert_eq!(encoding_of(&["gzip"], path), refused("gzip"));
            assert_eq!(encoding_of(&[], path), Ok(BodyEncoding::Plain));
        }
        assert_eq!(encoding_of(&["zstd"], "/rerank"), refused("zstd"));
        assert_eq!(encoding_of(&["identity", ""], "/rerank"), Ok(BodyEncoding::Plain));
    }

    #[test]
    fn a_body_is_decoded_up_to_the_limit_and_broken_ones_are_refused() {
        let text = "state ".repeat(1000).into_bytes();
        let compressed = compress_to_vec(text.as_slice(), CompressionLevel::Fastest);
        assert!(compressed.len() < 1000);
        let decode = |bytes: &[u8], limit| BodyEncoding::Zstd { limit }.decode_body(bytes.to_vec());
        assert_eq!(decode(&compressed, text.len()).unwrap(), text);
        assert_eq!(decode(&compressed, text.len() - 1).unwrap_err(), ApiError::too_large(text.len() - 1));
        for broken in [&b""[..], b"{}", &compressed[..20], &[&compressed[..], &[0]].concat()] {
            let error = decode(broken, text.len()).unwrap_err();
            assert!(error.message().starts_with("the request body is not zstd"), "{error:?}");
        }
        // A frame of a few bytes that claims a window of 2 GiB, and one that claims 2 GiB of content.
        let window = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8, 0x01, 0x00, 0x00];
        let content = [0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0x00, 0x00, 0x00, 0x80, 0x01, 0x00, 0x00];
        for claims in [&window[..], &content[..]] {
            assert!(decode(claims, 1 << 20).is_err());
        }
    }
}
