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
use text_embeddings_core::{error::Error, service::RerankRequest};
use tokio::task::spawn_blocking;
use utoipa::ToSchema;

use super::{
    error::ApiError,
    extract::Unread,
    openapi::{RerankErrors, TAG},
    respond,
};
use crate::state::AppState;
use answers::{Answered, CohereAnswer, DocumentsAnswer, MixedbreadAnswer};
use dialect::{Dialect, note_misspelled_instruction};
use documents::{DocumentsBody, MixedbreadBody, Ranking};
use options::Options;

pub(crate) use tei::{Ranks, RerankBody};

/// The path whose answers are those of Cohere's second version.
const COHERE_V2: &str = "/v2/rerank";

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
    let fields = body.fields()?;
    let dialect = Dialect::of(&fields).map_err(ApiError::invalid)?;
    note_misspelled_instruction(&fields);
    let words = dialect.words(uri.path());
    let answer = match dialect {
        Dialect::Texts => rerank_texts(&state, &body).await,
        Dialect::Documents | Dialect::Input => rerank_documents(&state, &body, dialect, uri.path()).await,
    };
    answer.map_err(|error| error.in_words(words))
}

/// Reads a body as far as a model is not needed, as [`rerank`] would.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn read(body: &Unread) {
    let Ok(Ok(dialect)) = body.fields().map(|fields| Dialect::of(&fields)) else { return };
    if let (Ok(options), Ok(ranking)) = (body.parse::<Options>(), body.parse::<DocumentsBody>()) {
        const LIMIT: usize = 100_000;
        let built = ranking.request(&options, dialect, LIMIT);
        let texts = built.map_or(0, |built| built.request.texts.iter().map(String::len).sum());
        assert!(texts <= LIMIT, "{texts} bytes of text were built");
    }
}

async fn rerank_texts(state: &AppState, body: &Unread) -> Result<Response, ApiError> {
    let request: RerankRequest = body.parse::<RerankBody>()?.into();
    let answer = state.service.rerank(request).await?;
    Ok(respond(state, body.answer_format, "rerank", answer, Ranks::from))
}

async fn rerank_documents(
    state: &AppState,
    body: &Unread,
    dialect: Dialect,
    path: &str,
) -> Result<Response, ApiError> {
    let options: Options = body.parse()?;
    let ranking: DocumentsBody = body.parse()?;
    options.note_model(&state.info.config.served_model_name);
    let limit = state.server.payload_limit;
    // Texts are built of objects, which takes as long as reading the body did.
    let built = spawn_blocking(move || (ranking.request(&options, dialect, limit), options)).await;
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
    let (format, route) = (body.answer_format, "rerank");
    Ok(match dialect {
        Dialect::Input => respond(state, format, route, answer, |ranks| {
            MixedbreadAnswer::new(answered, ranks, returns_documents)
        }),
        _ if path == COHERE_V2 => {
            respond(state, format, route, answer, |ranks| CohereAnswer::new(answered, ranks))
        }
        _ => respond(state, format, route, answer, |ranks| DocumentsAnswer::new(answered, ranks)),
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
