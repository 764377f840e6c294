//! Re-ranking over HTTP: one query, many documents, best first, in the dialect that the body is in.
//!
//! Input: a body on one of the paths of re-ranking. Output: what that dialect's clients read. What must hold: the body's
//! fields say whose it is, and the path decides only between versions; all dialects are thin layers over one service,
//! so that a pair has the same score in each; an error is in the words of the body's dialect, or where that is unknown
//! in those of the path.

pub(crate) mod answers;
pub(crate) mod dialect;
mod documents;
pub(crate) mod options;
mod tei;

use axum::{extract::State, http::Uri, response::Response};
use serde::{Deserialize, Serialize};
use text_embeddings_core::error::Error;
use tokio::task::spawn_blocking;
use utoipa::ToSchema;

use super::{
    error::ApiError,
    extract::{Checked, Unread},
    format::Format,
    responses::RerankErrors,
    routes::COHERE_V2_PATH,
    schemas::TAG,
    shared::respond,
};
use crate::state::AppState;
use answers::{Answered, CohereAnswer, DocumentsAnswer, MixedbreadAnswer};
use dialect::{Dialect, note_misspelled_instruction};
use documents::{DocumentsBody, MixedbreadBody, Ranking};
use options::WithOptions;

pub(crate) use tei::{Ranks, RerankBody};

/// The route's name in the log.
const ROUTE: &str = "rerank";

/// What to rank, in the dialect that its fields tell.
#[derive(Deserialize, ToSchema)]
#[schema(as = AnyRerankRequest)]
#[serde(untagged)]
#[expect(dead_code, reason = "a description, not a value")]
pub(crate) enum AnyBody {
    Texts(RerankBody),
    Documents(DocumentsBody),
    Input(MixedbreadBody),
}

/// The places and scores, best first, in the dialect of the body; on `/v2/rerank` in Cohere's for `documents`.
#[derive(Serialize, ToSchema)]
#[schema(as = RerankAnswer)]
#[serde(untagged)]
#[expect(dead_code, reason = "a description, not a value")]
pub(crate) enum AnyAnswer {
    Texts(Ranks),
    Documents(DocumentsAnswer),
    Cohere(CohereAnswer),
    Input(MixedbreadAnswer),
}

/// Rank texts by how well each answers a query. Only with a re-ranker.
///
/// The fields of the body say whose client it is from, and so which answer it gets: `texts` that of
/// text-embeddings-inference, `documents` that of Cohere, Jina, `vLLM` and Voyage, `input` that of Mixedbread.
#[utoipa::path(post, path = "/rerank", tag = TAG, request_body = AnyBody,
    responses((status = 200, description = "The places and scores, best first", body = AnyAnswer), RerankErrors))]
pub(crate) async fn rerank(
    State(state): State<AppState>,
    uri: Uri,
    body: Unread,
) -> Result<Response, ApiError> {
    let Checked { found: dialect, body: read } = read(&body)?;
    let (format, shape) = (body.answer_format, dialect.error_shape(uri.path()));
    drop(body);
    let answer = async {
        match read? {
            ReadBody::Texts(body) => {
                let answer = state.service.rerank(body.into()).await?;
                Ok(respond(&state, format, ROUTE, answer, Ranks::from))
            }
            ReadBody::Documents(body) => rerank_documents(&state, body, dialect, uri.path(), format).await,
        }
    };
    answer.await.map_err(|error: ApiError| error.in_shape(shape))
}

/// A body of one of the dialects.
enum ReadBody {
    Texts(RerankBody),
    Documents(WithOptions<DocumentsBody>),
}

/// Reads a body once. The first field that holds texts decides how it is read; that no other field does is checked.
fn read(body: &Unread) -> Result<Checked<Dialect, ReadBody>, ApiError> {
    let dialect = |fields: &[String]| {
        let dialect = Dialect::of(fields)?;
        note_misspelled_instruction(fields);
        Ok(dialect)
    };
    if body.first_of(&Dialect::ALL.map(Dialect::texts_field)) == Some(Dialect::Texts.texts_field()) {
        Ok(body.check(dialect)?.map(ReadBody::Texts))
    } else {
        Ok(body.check(dialect)?.map(ReadBody::Documents))
    }
}

/// Reads a body, and builds the texts of its documents, as [`rerank`] would before it needs a model.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn read_and_build(body: &Unread) {
    let is_known = body.fields().is_ok_and(|fields| Dialect::of(&fields).is_ok());
    let read = read(body);
    assert_eq!(read.is_ok(), is_known, "the names of all fields tell the dialect");
    if let Ok(Checked { found: dialect, body: Ok(ReadBody::Documents(WithOptions { options, body })) }) = read
    {
        const LIMIT: usize = 100_000;
        let built = body.request(&options, dialect, LIMIT);
        let texts = built.map_or(0, |built| built.request.texts.iter().map(String::len).sum());
        assert!(texts <= LIMIT, "{texts} bytes of text were built");
    }
}

async fn rerank_documents(
    state: &AppState,
    body: WithOptions<DocumentsBody>,
    dialect: Dialect,
    path: &str,
    format: Format,
) -> Result<Response, ApiError> {
    let WithOptions { options, body } = body;
    options.note_model(&state.info.config.served_model_name);
    let limit = state.server.payload_limit;
    // Building texts of objects takes as long as reading the body did.
    let built = spawn_blocking(move || (body.request(&options, dialect, limit), options)).await;
    let (ranking, options) = built.map_err(|_| Error::Unhealthy)?;
    let Ranking { request, objects, has_data } = ranking.map_err(ApiError::invalid)?;
    let object = if options.is_infinitys() { "rerank" } else { "list" };
    let returns_documents = request.return_text;
    let names = ["query", dialect.texts_field()];
    let answer = state.service.rerank(request).await.map_err(|error| in_fields(error, names))?;
    let answered = Answered {
        id: options.request_id,
        model: state.info.config.served_model_name.clone(),
        tokens: answer.cost.tokens,
        is_listwise: answer.cost.lists > 0,
        objects,
        object,
        has_data,
    };
    Ok(match dialect {
        Dialect::Input => respond(state, format, ROUTE, answer, |ranks| {
            MixedbreadAnswer::new(answered, ranks, returns_documents)
        }),
        _ if path == COHERE_V2_PATH => {
            respond(state, format, ROUTE, answer, |ranks| CohereAnswer::new(answered, ranks))
        }
        _ => respond(state, format, ROUTE, answer, |ranks| DocumentsAnswer::new(answered, ranks)),
    })
}

/// The service's error with the names that a body has for queries and documents.
pub(crate) fn in_fields(error: Error, [queries, documents]: [&'static str; 2]) -> Error {
    match error {
        Error::Empty { field: "query" | "queries" } => Error::Empty { field: queries },
        Error::Empty { field: "texts" | "documents" } => Error::Empty { field: documents },
        Error::TooLong { got, max } => Error::Validation(format!(
            "`{documents}` is too long: a prompt has {got} tokens, and may have {max}; send less, or have it cut with `truncate`"
        )),
        other => other,
    }
}

#[cfg(test)]
mod tests;
