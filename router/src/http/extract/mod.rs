//! The request's body: read up to the limit (`raw.rs`), then parsed as JSON or `MessagePack` (`decoded.rs`),
//! off the runtime if large.
//!
//! Input: a request. Output: [`ParsedBody`], or [`UnparsedBody`] where the body's fields decide its type, or
//! an [`ApiError`]. What must hold: without a `Content-Type` the body is JSON.

mod decoded;
mod raw;

use axum::{
    extract::{FromRequest, Request},
    http::header::CONTENT_TYPE,
};
use serde::de::DeserializeOwned;
use text_embeddings_core::error::Error;
use tokio::task::spawn_blocking;
use tracing::Span;

use super::{error::ApiError, format::BodyFormat, unknown_fields::UnknownFields};
use crate::state::AppState;
use raw::free_parser;

pub(crate) use {
    decoded::{Checked, DecodedBody},
    raw::{RawBody, discard},
};

/// A body as `T`, and the format of the answer. Unknown fields are ignored.
pub(crate) struct ParsedBody<T>(pub(crate) T, pub(crate) BodyFormat);

impl<T: DeserializeOwned + Send + 'static> FromRequest<AppState> for ParsedBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let body = UnparsedBody::from_request(request, state).await?;
        let answer_format = body.answer_format;
        Ok(Self(body.read_with(DecodedBody::parse).await??, answer_format))
    }
}

/// A body that is not parsed yet.
pub(crate) struct UnparsedBody {
    raw: RawBody,
    unknown: UnknownFields,
    format: BodyFormat,
    pub(crate) answer_format: BodyFormat,
}

impl FromRequest<AppState> for UnparsedBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let media_type = request.headers().get(CONTENT_TYPE).cloned();
        let answer_format = BodyFormat::of_answer(request.headers());
        let unknown = request.extensions().get::<UnknownFields>().cloned().unwrap_or_default();
        let raw = RawBody::from_request(request, state).await?;
        let given = media_type.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        match given.as_deref().map_or(Some(BodyFormat::Json), BodyFormat::of_media_type) {
            Some(format) => Ok(Self { raw, unknown, format, answer_format }),
            None => Err(ApiError::media_type(&given.unwrap_or_default())),
        }
    }
}

impl UnparsedBody {
    /// Decodes the body and has `reader` take from it whatever the request needs. The body counts until then.
    /// Fails if the body is not in its format, or had to make room for others.
    pub(crate) async fn read_with<R: Send + 'static>(
        self,
        reader: impl FnOnce(&DecodedBody) -> R + Send + 'static,
    ) -> Result<R, ApiError> {
        if self.raw.is_read_inline() {
            let body = DecodedBody::new(self.raw.bytes, self.format)?;
            return Ok(reader(&body.noting_unknown(self.unknown)));
        }
        let RawBody { bytes, encoding, kept } = self.raw;
        let parser = free_parser(kept.as_ref()).await?;
        let (format, unknown, span) = (self.format, self.unknown, Span::current());
        let work = spawn_blocking(move || {
            let _entered = span.enter();
            let body = encoding.decode_body(bytes).and_then(|bytes| DecodedBody::new(bytes, format));
            let read = body.map(|body| reader(&body.noting_unknown(unknown)));
            drop((kept, parser));
            read
        });
        work.await.map_err(|_| Error::Unhealthy)?
    }
}

#[cfg(test)]
mod tests {
    use crate::http::testing;

    #[tokio::test]
    async fn a_byte_order_mark_before_the_body_is_skipped() {
        let server = testing::Server::start().await;
        let body = r#"{"query":"q","texts":["a"]}"#;
        let plain = server.post("/rerank", body, &[]).await;
        let marked = server.post("/rerank", &format!("\u{feff}{body}"), &[]).await;
        assert_eq!((marked.status, marked.body), (200, plain.body));
        assert_eq!(server.post("/rerank", &format!("\u{feff}\u{feff}{body}"), &[]).await.status, 400);
    }

    #[tokio::test]
    async fn a_missing_field_comes_with_the_field_that_may_be_meant() {
        let server = testing::Server::start_with("--model-type embedding").await;
        let table = [
            ("/embed", r#"{"input":"a"}"#, Some("is `input` meant as `inputs`?")),
            ("/embed", r#"{"inputz":"a"}"#, Some("is `inputz` meant as `inputs`?")),
            ("/embed", r#"{"model":"a"}"#, None),
            ("/embed_all", r#"{"texts":["a"]}"#, Some("is `texts` meant as `inputs`?")),
            ("/embed_sparse", r#"{"text":"a"}"#, Some("is `text` meant as `inputs`?")),
            ("/similarity", r#"{"Inputz":{}}"#, Some("is `Inputz` meant as `inputs`?")),
            ("/predict", r#"{"text":"a"}"#, Some("is `text` meant as `inputs`?")),
            ("/tokenize", r#"{"text":"a"}"#, Some("is `text` meant as `inputs`?")),
            ("/decode", r#"{"token_ids":[1]}"#, Some("is `token_ids` meant as `ids`?")),
            ("/v1/embeddings", r#"{"inputs":"a"}"#, Some("is `inputs` meant as `input`?")),
            ("/vertex", r#"{"inputs":"a"}"#, Some("is `inputs` meant as `instances`?")),
        ];
        for (path, body, expected) in table {
            let answer = server.post(path, body, &[]).await;
            assert_eq!(answer.status, 422, "{path} {body}");
            let question = answer.body.split_once(": is ").map(|(_, rest)| format!("is {rest}"));
            let question = question.and_then(|text| text.split('"').next().map(str::to_owned));
            assert_eq!(question.as_deref(), expected, "{path} {body}: {}", answer.body);
        }
    }
}
