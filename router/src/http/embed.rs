//! The routes of embedding models, which no served model is: they say so.
//!
//! What must hold: the body is read first, so that the client gets to read the answer; the `OpenAI` routes word the
//! error their own way.

use axum::response::Response;
use text_embeddings_core::error::Error;

use super::{error::ApiError, extract::RawBody};

const NOT_AN_EMBEDDING_MODEL: Error = Error::ModelType { wanted: "an embedding" };

/// Refuses a request on a route of TEI's own.
pub(crate) async fn refuse(_body: RawBody) -> ApiError {
    NOT_AN_EMBEDDING_MODEL.into()
}

/// Refuses a request on a route of `OpenAI`'s.
pub(crate) async fn refuse_openai(_body: RawBody) -> Response {
    ApiError::from(NOT_AN_EMBEDDING_MODEL).into_openai_response()
}
