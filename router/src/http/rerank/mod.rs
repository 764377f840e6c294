//! Re-ranking over HTTP: one query, many documents, best first, in the dialect of the body.
//!
//! Input: a body on one of the paths of re-ranking. Output: the answer that the dialect's clients read. What
//! must hold: the body's fields decide the dialect, and the path only its version; all dialects are thin
//! layers over one service, so that a pair has the same score in each; an error has the shape of the body's
//! dialect, or of the path if the dialect is unknown.

pub(crate) mod answers;
pub(crate) mod dialect;
mod documents;
mod lenient;
pub(crate) mod options;
pub(crate) mod parts;
mod tei;

use axum::{extract::State, http::Uri, response::Response};
use serde::{Deserialize, Serialize};
use text_embeddings_core::{error::Error, service::RerankRequest};
use utoipa::ToSchema;

use super::{
    error::ApiError,
    extract::{Checked, DecodedBody, UnparsedBody},
    format::BodyFormat,
    responses::RerankErrors,
    routes::COHERE_V2_PATH,
    schemas::TAG,
    shared::respond,
};
use crate::state::AppState;
use answers::{Answered, CohereAnswer, DocumentsAnswer, MixedbreadAnswer, NimAnswer};
use dialect::{Dialect, note_misspelled_instruction};
use documents::{BuiltRequest, DocumentsBody, MixedbreadBody, NimBody};
use options::{ReadOptions, WithOptions};

pub(crate) use tei::{Ranks, RerankBody};

/// The route's name in the log.
const ROUTE: &str = "rerank";

/// A query and the texts to rank. The fields decide the dialect.
#[derive(Deserialize, ToSchema)]
#[schema(as = AnyRerankRequest)]
#[serde(untagged)]
#[expect(dead_code, reason = "a description, not a value")]
pub(crate) enum AnyBody {
    Texts(RerankBody),
    Documents(DocumentsBody),
    Input(MixedbreadBody),
    Passages(NimBody),
}

/// The places and scores, best first, in the dialect of the body. On `/v2/rerank` a body with `documents` is
/// answered as by Cohere.
#[derive(Serialize, ToSchema)]
#[schema(as = RerankAnswer)]
#[serde(untagged)]
#[expect(dead_code, reason = "a description, not a value")]
pub(crate) enum AnyAnswer {
    Texts(Ranks),
    Documents(DocumentsAnswer),
    Cohere(CohereAnswer),
    Input(MixedbreadAnswer),
    Passages(NimAnswer),
}

/// Rank texts by how well each answers a query. Only with a re-ranker.
///
/// The fields of the body decide the format of the answer: a body with `texts` is answered as by
/// text-embeddings-inference, with `documents` as by Cohere, Jina, `vLLM` and Voyage, with `input` as by
/// Mixedbread, with `passages` as by `NVIDIA`'s NIM.
#[utoipa::path(post, path = "/rerank", tag = TAG, request_body = AnyBody,
    responses(
        (status = 200, description = "The places and scores, best first", body = AnyAnswer),
        RerankErrors
    ))]
pub(crate) async fn rerank(
    State(state): State<AppState>,
    uri: Uri,
    body: UnparsedBody,
) -> Result<Response, ApiError> {
    let (format, limit) = (body.answer_format, state.server.payload_limit);
    let names = Dialect::ALL.map(Dialect::texts_field);
    let Checked { found: dialect, body: built } = body
        .read_with(move |body| body.read_without_nulls(&names, |body| read_and_build(body, limit)))
        .await??;
    let shape = dialect.error_shape(uri.path());
    let answer = async {
        match built? {
            ReadRequest::Texts(request) => {
                let answer = state.served().service.rerank(request).await?;
                Ok(respond(&state, format, ROUTE, answer, Ranks::from))
            }
            ReadRequest::Documents(built) => {
                rerank_documents(&state, *built, dialect, uri.path(), format).await
            }
        }
    };
    answer.await.map_err(|error: ApiError| error.in_shape(shape))
}

/// The service's request for a body of one of the dialects.
enum ReadRequest {
    Texts(RerankRequest),
    Documents(Box<BuiltRequest>),
}

/// Reads a body once, and builds its texts, which have at most `limit` bytes where they are built from
/// objects. The first field that holds texts decides its type. The check refuses a body with a second such
/// field.
fn read_and_build(body: &DecodedBody, limit: usize) -> Result<Checked<Dialect, ReadRequest>, ApiError> {
    let check = |fields: &[String]| {
        let dialect = Dialect::from_fields(fields)?;
        note_misspelled_instruction(fields);
        Ok(dialect)
    };
    if body.first_of(&Dialect::ALL.map(Dialect::texts_field)) == Some(Dialect::Texts.texts_field()) {
        return Ok(body.check(check)?.build(|body: RerankBody| Ok(ReadRequest::Texts(body.into()))));
    }
    let checked: Checked<Dialect, WithOptions<DocumentsBody>> = body.check(check)?;
    let dialect = checked.found;
    Ok(checked.build(|WithOptions { notes: ReadOptions { options, .. }, body }| {
        Ok(ReadRequest::Documents(Box::new(body.request(options, dialect, limit)?)))
    }))
}

/// Does the part of [`rerank`] that needs no model: reads a body and builds the texts of its documents.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn check_reading(body: &DecodedBody) {
    const LIMIT: usize = 100_000;
    let is_known = body.fields().is_ok_and(|fields| Dialect::from_fields(&fields).is_ok());
    let read = read_and_build(body, LIMIT);
    assert_eq!(read.is_ok(), is_known, "the names of all fields tell the dialect");
    if let Ok(Checked { body: Ok(ReadRequest::Documents(built)), .. }) = read {
        let texts: usize = built.request.texts.iter().map(String::len).sum();
        assert!(texts <= LIMIT, "{texts} bytes of text were built");
    }
}

async fn rerank_documents(
    state: &AppState,
    built: BuiltRequest,
    dialect: Dialect,
    path: &str,
    format: BodyFormat,
) -> Result<Response, ApiError> {
    let BuiltRequest { request, options, objects, has_data } = built;
    options.note_model(state.served());
    // Infinity's client always sends it.
    let object = if options.raw_scores.is_some() { "rerank" } else { "list" };
    let returns_documents = request.return_text;
    let names = ["query", dialect.texts_field()];
    let answer = state.served().service.rerank(request).await.map_err(|error| in_fields(error, names))?;
    let answered = Answered {
        id: options.request_id,
        model: state.served().info.served_model_name.clone(),
        tokens: answer.cost.tokens,
        is_listwise: state.served().service.reads_lists(),
        objects,
        object,
        has_data,
    };
    Ok(match dialect {
        Dialect::Input => respond(state, format, ROUTE, answer, |ranks| {
            MixedbreadAnswer::new(answered, ranks, returns_documents)
        }),
        Dialect::Passages => {
            respond(state, format, ROUTE, answer, |ranks| NimAnswer::from_ranks(answered, ranks))
        }
        _ if path == COHERE_V2_PATH => {
            respond(state, format, ROUTE, answer, |ranks| CohereAnswer::new(answered, ranks))
        }
        _ => respond(state, format, ROUTE, answer, |ranks| DocumentsAnswer::new(answered, ranks)),
    })
}

/// The service's error with the body's names for queries and documents.
pub(crate) fn in_fields(error: Error, [queries, documents]: [&'static str; 2]) -> Error {
    error.reworded(|error| match error {
        Error::Empty { field: "query" | "queries" } => Error::Empty { field: queries },
        Error::Empty { field: "texts" | "documents" } => Error::Empty { field: documents },
        Error::TooLong { got, max } => Error::Validation(format!(
            "`{documents}` is too long: a prompt has {got} tokens, and may have {max}; send less, or have it \
             cut with `truncate`"
        )),
        other => other,
    })
}

#[cfg(test)]
mod tests;
