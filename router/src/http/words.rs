//! Errors in the words of each dialect.
//!
//! Input: an [`ApiError`] and where it was met. Output: the body that the clients of that place read. What must hold: the
//! status is the same in all words; every refusal of a path is in the words of that path, whoever refused it, unless
//! the body said whose it is; it is written in what the client reads.

use axum::{extract::Request, middleware::Next, response::Response};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::{
    error::{ApiError, ErrorBody, ErrorType, OpenAiErrorBody},
    format::Format,
};

/// What text-embeddings-inference puts before the message of an error.
const TEIS_PREFIXES: [&str; 2] = ["Input validation error: ", "Backend error: "];

/// In whose words an error is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Words {
    /// `{error, error_type}`.
    Tei,
    /// `{message, code, type}`, of the routes of embeddings.
    OpenAi,
    /// `{id, message}`, of Cohere's second version.
    Cohere,
    /// `{message, detail}`: Cohere's first version and Mixedbread read the one, Jina the other.
    Message,
    /// `{error: {message, type, param, code}}`, of `vLLM`, `llama.cpp` and Infinity.
    Nested,
}

impl Words {
    /// Those of a path, where the body does not say whose it is.
    pub(crate) fn of_path(path: &str) -> Self {
        match path {
            "/embeddings" | "/v1/embeddings" => Self::OpenAi,
            "/v1/rerank" => Self::Message,
            "/v2/rerank" => Self::Cohere,
            "/reranking" | "/v1/reranking" | "/score" | "/v1/score" => Self::Nested,
            _ => Self::Tei,
        }
    }

    /// The body of an error.
    pub(crate) fn say(self, error: &ApiError, format: Format) -> Response {
        let status = error.status();
        let message = match self {
            Self::Tei | Self::OpenAi => error.message(),
            // The prefixes are text-embeddings-inference's.
            Self::Cohere | Self::Message | Self::Nested => TEIS_PREFIXES
                .iter()
                .find_map(|prefix| error.message().strip_prefix(prefix))
                .unwrap_or(error.message()),
        };
        let message = message.to_owned();
        let (code, kind) = (status.as_u16(), error.error_type());
        match self {
            Self::Tei => format.respond(status, &ErrorBody::new(message, kind)),
            Self::OpenAi => format.respond(status, &OpenAiErrorBody::new(message, code, kind)),
            Self::Cohere => {
                format.respond(status, &CohereErrorBody { id: Uuid::new_v4().to_string(), message })
            }
            Self::Message => format.respond(status, &MessageErrorBody { detail: message.clone(), message }),
            Self::Nested => {
                let error = NestedError { message, kind, param: None, code };
                format.respond(status, &NestedErrorBody { error })
            }
        }
    }
}

/// What went wrong, in the words of the body's dialect, or where that is unknown of the path.
#[derive(Serialize, ToSchema)]
#[schema(as = RerankErrorResponse)]
#[serde(untagged)]
#[expect(dead_code, reason = "a description, not a value")]
pub(crate) enum RerankErrorBody {
    /// On `/rerank` and wherever the body has `texts`.
    Tei(ErrorBody),
    /// On `/v2/rerank`.
    Cohere(CohereErrorBody),
    /// On `/v1/rerank`, and wherever the body has `input`.
    Message(MessageErrorBody),
    /// On `/reranking` and `/v1/reranking`, and on `/rerank` where the body has `documents`.
    Nested(NestedErrorBody),
}

/// What went wrong, in the words of Cohere's second version.
#[derive(Serialize, ToSchema)]
#[schema(as = CohereErrorResponse)]
pub(crate) struct CohereErrorBody {
    /// Of this answer.
    id: String,
    /// What, where, and what to do.
    message: String,
}

/// What went wrong, in the words of Cohere's first version and of Jina.
#[derive(Serialize, ToSchema)]
#[schema(as = MessageErrorResponse)]
pub(crate) struct MessageErrorBody {
    /// What, where, and what to do.
    message: String,
    /// The same, where Jina's clients look for it.
    detail: String,
}

/// What went wrong, in the words of `vLLM`, `llama.cpp` and Infinity.
#[derive(Serialize, ToSchema)]
#[schema(as = NestedErrorResponse)]
pub(crate) struct NestedErrorBody {
    error: NestedError,
}

#[derive(Serialize, ToSchema)]
#[schema(as = NestedError)]
struct NestedError {
    /// What, where, and what to do.
    message: String,
    #[serde(rename = "type")]
    kind: ErrorType,
    /// Always null: the message names the field.
    #[schema(required = true)]
    param: Option<String>,
    /// The status.
    #[schema(value_type = u32)]
    code: u16,
}

/// Says an error in the words that its path, or the request's body, asks for, written in what the client reads.
pub(crate) async fn in_the_clients_words(request: Request, next: Next) -> Response {
    let words = Words::of_path(request.uri().path());
    let format = Format::of_answer(request.headers());
    let mut response = next.run(request).await;
    if let Some(error) = response.extensions().get::<ApiError>() {
        let said = error.words().unwrap_or(words).say(error, format);
        let (head, body) = said.into_parts();
        response.headers_mut().extend(head.headers);
        *response.body_mut() = body;
    }
    response
}
