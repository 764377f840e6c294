//! The bodies of errors: one shape for each family of clients.
//!
//! Input: what went wrong, as a status, a kind and a message. Output: an answer with the body that these
//! clients read. What must hold: the status is the same in every shape.

use axum::{http::StatusCode, response::Response};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::format::BodyFormat;

/// The beginnings that text-embeddings-inference gives its messages. Other clients do not get them.
const TEIS_PREFIXES: [&str; 2] = ["Input validation error: ", "Backend error: "];

/// The fields of an error's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorShape {
    /// `{error, error_type}`: text-embeddings-inference.
    Tei,
    /// `{message, code, type, error, detail}`, on the routes of embeddings. text-embeddings-inference has the
    /// first three fields. `OpenAI`'s clients read `error`, Jina's and `LangChain`'s read `detail`.
    OpenAi,
    /// The same without `error`, on whose object Voyage's Python client fails up to version 0.3.7.
    Voyage,
    /// `{id, message}`: Cohere's second version.
    Cohere,
    /// `{message, detail}`: Cohere's first version, Mixedbread and NIM read `message`, Jina reads `detail`.
    MessageAndDetail,
    /// `{error: {message, type, param, code}}`: `vLLM`, `llama.cpp` and Infinity.
    Nested,
}

/// The kinds of errors that clients tell apart.
// Bodies and spans hold these names as they stand here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) enum ErrorType {
    /// The server cannot compute at present.
    Unhealthy,
    /// Inference failed, or the model is of another kind.
    Backend,
    /// Too many requests at once: come back later.
    Overloaded,
    /// The request is not valid.
    Validation,
    /// The tokenizer failed.
    Tokenizer,
    /// A list or text that must not be empty is.
    Empty,
    /// The key is missing or wrong.
    Unauthorized,
}

impl ErrorShape {
    /// An answer with an error of this shape.
    pub(crate) fn respond(
        self,
        status: StatusCode,
        kind: ErrorType,
        message: &str,
        format: BodyFormat,
    ) -> Response {
        let message = match self {
            Self::Tei | Self::OpenAi | Self::Voyage => message,
            Self::Cohere | Self::MessageAndDetail | Self::Nested => {
                TEIS_PREFIXES.iter().find_map(|prefix| message.strip_prefix(prefix)).unwrap_or(message)
            }
        };
        let (message, code) = (message.to_owned(), status.as_u16());
        match self {
            Self::Tei => format.respond(status, &ErrorBody { error: message, error_type: kind }),
            Self::OpenAi | Self::Voyage => {
                let nested = || NestedError { message: message.clone(), kind, param: None, code };
                let (error, detail) = ((self == Self::OpenAi).then(nested), message.clone());
                let body = OpenAiErrorBody { message, code, kind, error, detail, error_type: None };
                format.respond(status, &body)
            }
            Self::Cohere => {
                format.respond(status, &CohereErrorBody { id: Uuid::new_v4().to_string(), message })
            }
            Self::MessageAndDetail => {
                format.respond(status, &MessageErrorBody { detail: message.clone(), message })
            }
            Self::Nested => {
                let error = NestedError { message, kind, param: None, code };
                format.respond(status, &NestedErrorBody { error })
            }
        }
    }
}

/// An error.
#[derive(Serialize, ToSchema)]
#[schema(as = ErrorResponse)]
pub(crate) struct ErrorBody {
    /// The mistake, its place and the remedy.
    error: String,
    error_type: ErrorType,
}

/// An error in the format that text-embeddings-inference has for `OpenAI`'s clients, and in the formats that
/// these clients read.
#[derive(Serialize, ToSchema)]
#[schema(as = OpenAICompatErrorResponse)]
pub(crate) struct OpenAiErrorBody {
    /// The mistake, its place and the remedy.
    message: String,
    /// The status.
    #[schema(value_type = u32)]
    code: u16,
    #[serde(rename = "type")]
    kind: ErrorType,
    /// The same, where `OpenAI`'s clients look for it. Absent in answers to Voyage's clients.
    #[schema(value_type = NestedError, required = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<NestedError>,
    /// The message, where Jina's clients look for it.
    detail: String,
    /// Never sent. The description of text-embeddings-inference has this name for `type`, but it sends `type`
    /// too.
    #[schema(value_type = ErrorType, required = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    error_type: Option<ErrorType>,
}

/// An error in the format of the body's dialect, or of the path if the dialect is unknown.
#[derive(Serialize, ToSchema)]
#[schema(as = RerankErrorResponse)]
#[serde(untagged)]
#[expect(dead_code, reason = "a description, not a value")]
pub(crate) enum RerankErrorBody {
    /// On `/rerank` and wherever the body has `texts`.
    Tei(ErrorBody),
    /// On `/v2/rerank`.
    Cohere(CohereErrorBody),
    /// On `/v1/rerank` and `/v1/ranking`, and wherever the body has `input` or `passages`.
    Message(MessageErrorBody),
    /// On `/reranking` and `/v1/reranking`, and on `/rerank` where the body has `documents`.
    Nested(NestedErrorBody),
}

/// An error in the format of one of Cohere's versions, by the path.
#[derive(Serialize, ToSchema)]
#[schema(as = CohereEmbedErrorResponse)]
#[serde(untagged)]
#[expect(dead_code, reason = "a description, not a value")]
pub(crate) enum CohereEmbedErrorBody {
    /// On `/v2/embed`.
    Second(CohereErrorBody),
    /// On `/v1/embed`.
    First(MessageErrorBody),
}

/// An error in the format of Cohere's second version.
#[derive(Serialize, ToSchema)]
#[schema(as = CohereErrorResponse)]
pub(crate) struct CohereErrorBody {
    /// The id of this answer.
    id: String,
    /// The mistake, its place and the remedy.
    message: String,
}

/// An error in the format of Cohere's first version and of Jina.
#[derive(Serialize, ToSchema)]
#[schema(as = MessageErrorResponse)]
pub(crate) struct MessageErrorBody {
    /// The mistake, its place and the remedy.
    message: String,
    /// The same, where Jina's clients look for it.
    detail: String,
}

/// An error in the format of `vLLM`, `llama.cpp` and Infinity.
#[derive(Serialize, ToSchema)]
#[schema(as = NestedErrorResponse)]
pub(crate) struct NestedErrorBody {
    error: NestedError,
}

#[derive(Serialize, ToSchema)]
#[schema(as = NestedError)]
struct NestedError {
    /// The mistake, its place and the remedy.
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
