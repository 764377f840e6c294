//! The request's body: read up to the limit, then parsed as JSON.
//!
//! Input: a request. Output: [`JsonBody`], or an [`ApiError`] that says where in the body the mistake is. What must
//! hold: at most `--payload-limit` bytes are kept; a client that sends more gets to read the answer (a connection
//! closed in the middle of its upload would show it a reset instead); text is UTF-8 throughout.

use std::str;

use axum::{
    body::Body,
    extract::{FromRequest, Request},
    http::header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT},
};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use super::error::ApiError;
use crate::state::AppState;

/// How much of a body over the limit is read and thrown away before the answer goes out.
const MAX_DISCARDED: usize = 64 << 20;
/// The longest message in characters: the parser's words repeat a client's text in full.
const MAX_MESSAGE: usize = 400;

/// The body's bytes, at most `--payload-limit` of them.
pub(crate) struct RawBody(Vec<u8>);

impl FromRequest<AppState> for RawBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let limit = state.server.payload_limit;
        let declared =
            request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let waits = request.headers().contains_key(EXPECT);
        if waits && declared.is_some_and(|length: usize| length > limit) {
            return Err(ApiError::too_large(limit));
        }
        read(request.into_body(), limit, declared.unwrap_or_default()).await.map(Self)
    }
}

async fn read(mut body: Body, limit: usize, expected: usize) -> Result<Vec<u8>, ApiError> {
    let mut kept = Vec::with_capacity(expected.min(limit));
    let mut received = 0;
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| ApiError::malformed(format!("the request body broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        received += data.len();
        if received <= limit {
            kept.extend_from_slice(&data);
        } else if received > limit.saturating_add(MAX_DISCARDED) {
            break;
        }
    }
    if received > limit { Err(ApiError::too_large(limit)) } else { Ok(kept) }
}

/// A JSON body as `T`. Unknown fields are ignored.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<AppState> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let media_type = request.headers().get(CONTENT_TYPE).cloned();
        let RawBody(bytes) = RawBody::from_request(request, state).await?;
        if let Some(given) = media_type.filter(|value| !is_json(value.as_bytes())) {
            return Err(ApiError::media_type(&String::from_utf8_lossy(given.as_bytes())));
        }
        parse(&bytes).map(Self).map_err(|message| ApiError::malformed(shorten(&message)))
    }
}

/// `application/json` or `application/…+json`, whatever its parameters.
fn is_json(media_type: &[u8]) -> bool {
    let essence =
        String::from_utf8_lossy(media_type).split(';').next().unwrap_or_default().trim().to_lowercase();
    essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let text = str::from_utf8(bytes)
        .map_err(|error| format!("the request body is not UTF-8: byte {} is wrong", error.valid_up_to()))?;
    // A list would be taken for the fields' values in their order.
    if text.trim_start().starts_with(|first| first != '{') {
        return Err("the request body is not a JSON object".to_owned());
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        match inner.classify() {
            Category::Data if path == "." => format!("invalid request: {inner}"),
            Category::Data => format!("invalid request: `{path}`: {inner}"),
            _ => format!("the request body is not JSON: {inner}"),
        }
    })?;
    deserializer.end().map_err(|error| format!("the request body is not JSON: {error}"))?;
    Ok(value)
}

/// Keeps the start, which names the field, and the end, which names the position.
fn shorten(message: &str) -> String {
    let length = message.chars().count();
    if length <= MAX_MESSAGE {
        return message.to_owned();
    }
    let start: String = message.chars().take(MAX_MESSAGE / 2).collect();
    let end: String = message.chars().skip(length - MAX_MESSAGE / 2).collect();
    format!("{start} … {end}")
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::http::{rerank::RerankBody, testing};
    use axum::body::Bytes;

    #[test]
    fn a_mistake_is_named_with_field_and_position() {
        let table: [(&[u8], &str); 12] = [
            (b"", "the request body is not JSON: EOF while parsing a value at line 1 column 0"),
            (b"{\"query\": ", "the request body is not JSON: EOF while parsing a value at line 1 column 10"),
            (b"{query: 1}", "the request body is not JSON: key must be a string at line 1 column 2"),
            (b"[]{", "the request body is not a JSON object"),
            (b"{\"texts\":[]}", "invalid request: missing field `query` at line 1 column 12"),
            (b"{\"query\":\"q\"}", "invalid request: missing field `texts` at line 1 column 13"),
            (
                b"{\"query\":\"q\",\"texts\":[\"a\",3]}",
                "invalid request: `texts[1]`: invalid type: integer `3`, expected a string at line 1 column 27",
            ),
            (
                b"{\"query\":\"q\",\"texts\":\"a\"}",
                "invalid request: `texts`: invalid type: string \"a\", expected a sequence at line 1 column 24",
            ),
            (
                b"{\"query\":\"q\",\"texts\":[],\"raw_scores\":1}",
                "invalid request: `raw_scores`: invalid type: integer `1`, expected a boolean at line 1 column 38",
            ),
            (
                b"{\"query\":\"q\",\"texts\":[]}x",
                "the request body is not JSON: trailing characters at line 1 column 25",
            ),
            (
                b"{\"query\":\"\\ud800\",\"texts\":[]}",
                "the request body is not JSON: unexpected end of hex escape at line 1 column 17",
            ),
            (b"{\"query\":\"\xff\",\"texts\":[]}", "the request body is not UTF-8: byte 10 is wrong"),
        ];
        for (body, expected) in table {
            let message = parse::<RerankBody>(body).err().unwrap();
            assert_eq!(message, expected, "{}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn a_long_message_keeps_both_ends() {
        let body = format!(r#"{{"query":"q","texts":"{}"}}"#, "é".repeat(5000));
        let message = shorten(&parse::<RerankBody>(body.as_bytes()).err().unwrap());
        assert!(
            message.starts_with("invalid request: `texts`") && message.ends_with("line 1 column 10023"),
            "{message}"
        );
        assert!(message.chars().count() <= MAX_MESSAGE + 3);
    }

    #[test]
    fn json_has_several_media_types() {
        let table = [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("application/vnd.api+json", true),
            ("text/plain", false),
            ("application/x-www-form-urlencoded", false),
            ("", false),
        ];
        for (media_type, expected) in table {
            assert_eq!(is_json(media_type.as_bytes()), expected, "{media_type}");
        }
    }

    #[tokio::test]
    async fn a_body_may_have_as_many_bytes_as_the_limit_says() {
        for (length, fits) in [(0, true), (99, true), (100, true), (101, false), (5000, false)] {
            let found = read(Body::from(Bytes::from(vec![b'a'; length])), 100, length).await;
            assert_eq!(
                found,
                if fits { Ok(vec![b'a'; length]) } else { Err(ApiError::too_large(100)) },
                "{length}"
            );
        }
    }

    #[tokio::test]
    async fn a_client_that_sends_ten_megabytes_reads_the_answer() {
        let server = testing::Server::start().await;
        let answer = server.post("/rerank", &"a".repeat(10_000_000), &[]).await;
        assert_eq!(answer.status, 413);
        insta::assert_snapshot!(answer.body, @r#"{"error":"the request body has more than 100000 bytes: send less, or raise `--payload-limit`","error_type":"Validation"}"#);
        assert_eq!(server.rerank("q", &["a"]).await.status, 200);
    }

    #[tokio::test]
    async fn a_client_that_asks_first_is_refused_before_it_sends() {
        let server = testing::Server::start().await;
        let head =
            "POST /rerank HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000\r\nExpect: 100-continue\r\n\r\n";
        let answer = server.raw(head.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    }
}
