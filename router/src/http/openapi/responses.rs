//! The errors of the routes, for the description.
//!
//! What must hold: every status that a route can answer is in its list, with the body that it has.

use utoipa::IntoResponses;

use crate::http::{
    error::{ErrorBody, OpenAiErrorBody},
    words::{NestedErrorBody, RerankErrorBody},
};

/// Of a route that runs the model.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "a description, not a value")]
pub(crate) enum InferenceErrors {
    /// A list or text that must not be empty is, or the body is not in its format
    #[response(status = 400)]
    Empty(ErrorBody),
    /// The key is missing or wrong
    #[response(status = 401)]
    Unauthorized(ErrorBody),
    /// The body has more bytes than `--payload-limit`
    #[response(status = 413)]
    TooLarge(ErrorBody),
    /// The body says that it is neither JSON nor `MessagePack`
    #[response(status = 415)]
    MediaType(ErrorBody),
    /// The request is not valid, or the tokenizer failed
    #[response(status = 422)]
    Invalid(ErrorBody),
    /// The model is of another kind, or inference failed
    #[response(status = 424)]
    Backend(ErrorBody),
    /// Too many requests at once: come back after `Retry-After` seconds
    #[response(status = 429)]
    Overloaded(ErrorBody),
    /// The server cannot compute at present
    #[response(status = 503)]
    Unhealthy(ErrorBody),
}

/// Of a route that runs the tokenizer only.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "a description, not a value")]
pub(crate) enum TokenizerErrors {
    /// A list that must not be empty is
    #[response(status = 400)]
    Empty(ErrorBody),
    /// The key is missing or wrong
    #[response(status = 401)]
    Unauthorized(ErrorBody),
    /// The body has more bytes than `--payload-limit`
    #[response(status = 413)]
    TooLarge(ErrorBody),
    /// The body says that it is neither JSON nor `MessagePack`
    #[response(status = 415)]
    MediaType(ErrorBody),
    /// The request is not valid, or the tokenizer failed
    #[response(status = 422)]
    Invalid(ErrorBody),
    /// Too many requests at once: come back after `Retry-After` seconds
    #[response(status = 429)]
    Overloaded(ErrorBody),
}

/// Of a route that runs the model and words its errors as `OpenAI` does.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "a description, not a value")]
pub(crate) enum OpenAiErrors {
    /// A list or text that must not be empty is, or the body is not in its format
    #[response(status = 400)]
    Empty(OpenAiErrorBody),
    /// The key is missing or wrong
    #[response(status = 401)]
    Unauthorized(OpenAiErrorBody),
    /// The body has more bytes than `--payload-limit`
    #[response(status = 413)]
    TooLarge(OpenAiErrorBody),
    /// The body says that it is neither JSON nor `MessagePack`
    #[response(status = 415)]
    MediaType(OpenAiErrorBody),
    /// The request is not valid, or the tokenizer failed
    #[response(status = 422)]
    Invalid(OpenAiErrorBody),
    /// The model is of another kind, or inference failed
    #[response(status = 424)]
    Backend(OpenAiErrorBody),
    /// Too many requests at once: come back after `Retry-After` seconds
    #[response(status = 429)]
    Overloaded(OpenAiErrorBody),
    /// The server cannot compute at present
    #[response(status = 503)]
    Unhealthy(OpenAiErrorBody),
}

/// Of a route of re-ranking, which words its errors as the dialect of the body does.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "a description, not a value")]
pub(crate) enum RerankErrors {
    /// A list or text that must not be empty is, or the body is not in its format
    #[response(status = 400)]
    Empty(RerankErrorBody),
    /// The key is missing or wrong
    #[response(status = 401)]
    Unauthorized(RerankErrorBody),
    /// The body has more bytes than `--payload-limit`
    #[response(status = 413)]
    TooLarge(RerankErrorBody),
    /// The body says that it is neither JSON nor `MessagePack`
    #[response(status = 415)]
    MediaType(RerankErrorBody),
    /// The request is not valid, or the tokenizer failed
    #[response(status = 422)]
    Invalid(RerankErrorBody),
    /// The model is of another kind, or inference failed
    #[response(status = 424)]
    Backend(RerankErrorBody),
    /// Too many requests at once: come back after `Retry-After` seconds
    #[response(status = 429)]
    Overloaded(RerankErrorBody),
    /// The server cannot compute at present
    #[response(status = 503)]
    Unhealthy(RerankErrorBody),
}

/// Of a route that runs the model and words its errors as `vLLM` does.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "a description, not a value")]
pub(crate) enum ScoreErrors {
    /// A list or text that must not be empty is, or the body is not in its format
    #[response(status = 400)]
    Empty(NestedErrorBody),
    /// The key is missing or wrong
    #[response(status = 401)]
    Unauthorized(NestedErrorBody),
    /// The body has more bytes than `--payload-limit`
    #[response(status = 413)]
    TooLarge(NestedErrorBody),
    /// The body says that it is neither JSON nor `MessagePack`
    #[response(status = 415)]
    MediaType(NestedErrorBody),
    /// The request is not valid, or the tokenizer failed
    #[response(status = 422)]
    Invalid(NestedErrorBody),
    /// The model is of another kind, or inference failed
    #[response(status = 424)]
    Backend(NestedErrorBody),
    /// Too many requests at once: come back after `Retry-After` seconds
    #[response(status = 429)]
    Overloaded(NestedErrorBody),
    /// The server cannot compute at present
    #[response(status = 503)]
    Unhealthy(NestedErrorBody),
}
