//! The errors of each kind of route, for the `OpenAPI` description.
//!
//! What must hold: every status that a route can answer is in its list, with the body that it has.

use std::{collections::BTreeMap, marker::PhantomData};

use utoipa::{
    IntoResponses, ToSchema,
    openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder},
};

use super::error_shapes::{
    CohereEmbedErrorBody, ErrorBody, NestedErrorBody, OpenAiErrorBody, RerankErrorBody,
};

/// The statuses of the errors of a route that runs the model.
const OF_MODEL: [(u16, &str); 8] = [
    (400, "A list or text that must not be empty is, or the body is not in its format"),
    (401, "The key is missing or wrong"),
    (413, "The body has more bytes than `--payload-limit`"),
    (415, "The body says that it is neither JSON nor `MessagePack`"),
    (422, "The request is not valid, or the tokenizer failed"),
    (424, "The model is of another kind, or inference failed"),
    (429, "Too many requests at once: come back after `Retry-After` seconds"),
    (503, "The server cannot compute at present"),
];

/// The errors of a route that runs the model, with bodies of one shape.
pub(crate) struct ModelErrors<B>(PhantomData<B>);

pub(crate) type InferenceErrors = ModelErrors<ErrorBody>;
pub(crate) type OpenAiErrors = ModelErrors<OpenAiErrorBody>;
pub(crate) type CohereEmbedErrors = ModelErrors<CohereEmbedErrorBody>;
pub(crate) type RerankErrors = ModelErrors<RerankErrorBody>;
pub(crate) type NestedErrors = ModelErrors<NestedErrorBody>;

/// The errors of a route that runs the tokenizer only.
pub(crate) struct TokenizerErrors;

impl<B: ToSchema> IntoResponses for ModelErrors<B> {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut responses = BTreeMap::new();
        for (status, description) in OF_MODEL {
            let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(B::name()))).build();
            let response =
                ResponseBuilder::new().description(description).content("application/json", content);
            responses.insert(status.to_string(), response.build().into());
        }
        responses
    }
}

impl IntoResponses for TokenizerErrors {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut responses = InferenceErrors::responses();
        responses.retain(|status, _| !["424", "503"].contains(&status.as_str()));
        if let Some(RefOr::T(empty)) = responses.get_mut("400") {
            "A list that must not be empty is".clone_into(&mut empty.description);
        }
        responses
    }
}
