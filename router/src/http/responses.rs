//! The errors of each kind of route, for the `OpenAPI` description.
//!
//! What must hold: every status that a route can answer is in its list, with the body that it has.

use utoipa::IntoResponses;

use super::error_shapes::{
    CohereEmbedErrorBody, ErrorBody, NestedErrorBody, OpenAiErrorBody, RerankErrorBody,
};

/// The errors of routes that run the model, with bodies of one shape.
macro_rules! errors_of_the_model {
    ($(#[$doc:meta])* $name:ident, $body:ty) => {
        $(#[$doc])*
        #[derive(IntoResponses)]
        #[expect(dead_code, reason = "a description, not a value")]
        pub(crate) enum $name {
            /// A list or text that must not be empty is, or the body is not in its format
            #[response(status = 400)]
            Empty($body),
            /// The key is missing or wrong
            #[response(status = 401)]
            Unauthorized($body),
            /// The body has more bytes than `--payload-limit`
            #[response(status = 413)]
            TooLarge($body),
            /// The body says that it is neither JSON nor `MessagePack`
            #[response(status = 415)]
            MediaType($body),
            /// The request is not valid, or the tokenizer failed
            #[response(status = 422)]
            Invalid($body),
            /// The model is of another kind, or inference failed
            #[response(status = 424)]
            Backend($body),
            /// Too many requests at once: come back after `Retry-After` seconds
            #[response(status = 429)]
            Overloaded($body),
            /// The server cannot compute at present
            #[response(status = 503)]
            Unhealthy($body),
        }
    };
}

errors_of_the_model! {
    /// The errors of a route that runs the model.
    InferenceErrors, ErrorBody
}
errors_of_the_model! {
    /// The errors of a route that runs the model and is `OpenAI`'s.
    OpenAiErrors, OpenAiErrorBody
}
errors_of_the_model! {
    /// The errors of a route that runs the model and is Cohere's.
    CohereEmbedErrors, CohereEmbedErrorBody
}
errors_of_the_model! {
    /// The errors of a re-ranking route: the dialect of the body decides their shape.
    RerankErrors, RerankErrorBody
}
errors_of_the_model! {
    /// The errors of a route that runs the model and scores pairs or decides, in the shape of `vLLM`'s.
    NestedErrors, NestedErrorBody
}

/// The errors of a route that runs the tokenizer only.
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
