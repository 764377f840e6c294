//! The body's bytes.
//!
//! Input: a request. Output: [`RawBody`]. What must hold: at most `--payload-limit` bytes are kept; a client
//! that sends more can read the answer (if the connection closed in the middle of its upload, it would see a
//! reset instead).

use std::{
    borrow::Cow,
    sync::{Arc, Mutex, PoisonError},
};

use axum::{
    body::{Body, Bytes},
    extract::{FromRequest, Request},
    http::header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HeaderMap},
};
use futures_util::future::OptionFuture;
use http_body_util::BodyExt;
use serde::Deserialize;
use text_embeddings_core::error::Error;
use text_embeddings_door::{Account, KeptBody, UploadError};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    task::spawn_blocking,
};

use crate::{
    http::{compression::BodyEncoding, error::ApiError, format::BodyFormat},
    state::AppState,
};

/// The bytes of a body over the limit that are read and discarded before the answer is sent.
const MAX_DISCARDED: usize = 64 << 20;
/// The most bytes that are allocated for a body before any of it has arrived.
const MAX_RESERVED: usize = 64 << 10;
/// Longer bodies are parsed on threads of their own, because that takes longer than a thread of the runtime
/// may be held.
const MAX_INLINE: usize = 64 << 10;
/// The number of such bodies that are parsed at a time. Its types may take several times its bytes,
/// until a permit covers them.
static PARSERS: Semaphore = Semaphore::const_new(4);

/// The body's bytes, at most `--payload-limit` of them.
pub(crate) struct RawBody {
    pub(super) bytes: Vec<u8>,
    pub(super) encoding: BodyEncoding,
    /// Counts them until they are parsed.
    pub(super) kept: Option<KeptBody>,
}

/// A body that was read before the request came to its handler.
#[derive(Clone)]
struct ReadBefore(Arc<Mutex<Option<RawBody>>>);

impl RawBody {
    /// The value of the body's field `model`, if it is a text. A body that no route takes has none. Fails if
    /// the body had to make room for others.
    pub(crate) async fn named_model(self, headers: &HeaderMap) -> Result<(Self, Option<String>), ApiError> {
        let media_type = headers.get(CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()));
        let Some(format) = media_type.map_or(Some(BodyFormat::Json), |it| BodyFormat::of_media_type(&it))
        else {
            return Ok((self, None));
        };
        if self.is_read_inline() {
            let name = model_field(&self.bytes, format);
            return Ok((self, name));
        }
        let parser = free_parser(self.kept.as_ref()).await?;
        let empty = Self { bytes: Vec::new(), encoding: BodyEncoding::Plain, kept: None };
        let work = spawn_blocking(move || {
            let name = match self.encoding {
                BodyEncoding::Plain => model_field(&self.bytes, format),
                encoding @ BodyEncoding::Zstd { .. } => {
                    let decoded = encoding.decode_body(self.bytes.clone());
                    decoded.ok().and_then(|bytes| model_field(&bytes, format))
                }
            };
            drop(parser);
            (self, name)
        });
        Ok(work.await.unwrap_or((empty, None)))
    }

    /// Whether reading it takes no longer than a thread of the runtime may be held, and no more memory than
    /// its bytes tell.
    pub(super) fn is_read_inline(&self) -> bool {
        self.bytes.len() <= MAX_INLINE && self.encoding == BodyEncoding::Plain
    }

    /// Gives the request this body, which was read from it.
    pub(crate) fn put_back(self, request: &mut Request) {
        request.extensions_mut().insert(ReadBefore(Arc::new(Mutex::new(Some(self)))));
    }
}

/// Waits until one more body may be parsed.
pub(super) async fn free_parser(kept: Option<&KeptBody>) -> Result<SemaphorePermit<'static>, ApiError> {
    tokio::select! {
        parser = PARSERS.acquire() => parser.map_err(|_| Error::Unhealthy.into()),
        Some(cut) = OptionFuture::from(kept.map(KeptBody::until_evicted)) => Err(ApiError::cut(cut)),
    }
}

/// The field that names a model.
#[derive(Deserialize)]
struct ModelField<'a> {
    #[serde(borrow, default)]
    model: Option<Cow<'a, str>>,
}

fn model_field(bytes: &[u8], format: BodyFormat) -> Option<String> {
    let field: Option<ModelField> = match format {
        BodyFormat::Json => serde_json::from_slice(bytes).ok(),
        BodyFormat::MessagePack => rmp_serde::from_slice(bytes).ok(),
    };
    field?.model.map(Cow::into_owned)
}

impl FromRequest<AppState> for RawBody {
    type Rejection = ApiError;

    async fn from_request(mut request: Request, state: &AppState) -> Result<Self, ApiError> {
        if let Some(ReadBefore(body)) = request.extensions_mut().remove()
            && let Some(body) = body.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            return Ok(body);
        }
        let limit = state.server.payload_limit;
        let declared =
            request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let waits = request.headers().contains_key(EXPECT);
        if waits && declared.is_some_and(|length: usize| length > limit) {
            return Err(ApiError::too_large(limit));
        }
        // Without this, compressed bytes would be parsed, and the client would read that they are not UTF-8.
        let encoding = BodyEncoding::from_headers(request.headers(), request.uri().path(), limit);
        let encoding = match encoding {
            Ok(encoding) => encoding,
            Err(error) => {
                discard(request).await;
                return Err(error);
            }
        };
        let kept = request.extensions().get::<Account>().map(Account::keep_body);
        let bytes = read(request.into_body(), limit, declared.unwrap_or_default()).await?;
        Ok(Self { bytes, encoding, kept })
    }
}

async fn read(mut body: Body, limit: usize, declared: usize) -> Result<Vec<u8>, ApiError> {
    // A declared length is no reason to allocate: the buffer grows as bytes arrive.
    let mut kept = Vec::with_capacity(declared.min(limit).min(MAX_RESERVED));
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(broken_off)?.into_data() else { continue };
        if kept.len() + data.len() > limit {
            drop(kept);
            discard_rest(body).await;
            return Err(ApiError::too_large(limit));
        }
        kept.extend_from_slice(&data);
    }
    Ok(kept)
}

/// Reads and discards a request's body, so that a client that is still sending it can read the answer
/// afterwards. A client that sent `Expect: 100-continue` is not asked for the body.
pub(crate) async fn discard(request: Request) {
    if !request.headers().contains_key(EXPECT) {
        discard_rest(request.into_body()).await;
    }
}

async fn discard_rest(mut body: Body) {
    let mut discarded = 0;
    while let Some(Ok(frame)) = body.frame().await {
        discarded += frame.data_ref().map_or(0, Bytes::len);
        if discarded > MAX_DISCARDED {
            break;
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn broken_off(error: axum::Error) -> ApiError {
    match UploadError::find(&error) {
        Some(cut) => ApiError::cut(cut),
        None => ApiError::malformed(format!("the request body broke off: {error}")),
    }
}
