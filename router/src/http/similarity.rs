//! `POST /similarity`: how close one sentence is to others.
//!
//! Input: `inputs` with `source_sentence` and `sentences`, and optionally `parameters`. Output: `[float]`,
//! the cosine of each sentence with the source, in their order.

use axum::{extract::State, response::Response};
use serde::{Deserialize, Serialize};
use text_embeddings_core::service::SimilarityRequest;
use utoipa::ToSchema;

use super::{
    error::ApiError,
    extract::ParsedBody,
    named_fields::{FieldNotes, Noted, ObjectOnly},
    responses::InferenceErrors,
    schemas::TAG,
    shared::{TruncationSide, encoding, respond},
};
use crate::state::AppState;

/// The sentences to compare.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = SimilarityRequest, example = json!({"inputs": {
    "source_sentence": "What is deep learning?", "sentences": ["Machine learning with many layers."]
}}))]
pub(crate) struct SimilarityBody {
    #[schema(value_type = Sentences)]
    inputs: Noted<FieldsOfSentences, Sentences>,
    /// How the sentences become tokens.
    #[schema(value_type = Option<SimilarityParameters>)]
    parameters: Option<ObjectOnly<SimilarityParameters>>,
}

/// One sentence and the sentences to compare with it.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = SimilarityInput)]
struct Sentences {
    /// The sentence that the others are compared with.
    source_sentence: String,
    /// The other sentences.
    sentences: Vec<String>,
}

/// Says which fields the object has to have.
#[derive(Debug, Default)]
struct FieldsOfSentences;

impl FieldNotes for FieldsOfSentences {
    const EXPECTED: &'static str = "an object with `source_sentence` and `sentences`";
}

/// How sentences become tokens.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = SimilarityParameters)]
struct SimilarityParameters {
    /// Whether an input that is too long is cut. Absent or null: as `--auto-truncate` of the server says.
    #[schema(default = false)]
    truncate: Option<bool>,
    #[serde(default)]
    #[schema(default = "right")]
    truncation_direction: TruncationSide,
    /// The name of the model's prompt that goes before each text.
    prompt_name: Option<String>,
}

impl From<SimilarityBody> for SimilarityRequest {
    fn from(body: SimilarityBody) -> Self {
        let parameters = body.parameters.map(|parameters| parameters.body).unwrap_or_default();
        Self {
            source_sentence: body.inputs.body.source_sentence,
            sentences: body.inputs.body.sentences,
            encoding: encoding(parameters.truncate, parameters.truncation_direction, parameters.prompt_name),
        }
    }
}

/// The cosine of each sentence with the source sentence, in their order.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SimilarityResponse)]
pub(crate) struct Cosines(pub(crate) Vec<f32>);

/// Compare one sentence with others. Only with an embedding model.
#[utoipa::path(post, path = "/similarity", tag = TAG, request_body = SimilarityBody,
    responses(
        (status = 200, description = "The cosines, in the order of the sentences", body = Cosines),
        InferenceErrors
    ))]
pub(crate) async fn similarity(
    State(state): State<AppState>,
    ParsedBody(body, format): ParsedBody<SimilarityBody>,
) -> Result<Response, ApiError> {
    let answer = state.served().service.similarity(body.into()).await?;
    Ok(respond(&state, format, "similarity", answer, Cosines))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use serde_json::json;
    use text_embeddings_core::{service::EmbedEncoding, tokenization::TruncationDirection};

    #[test]
    fn a_body_has_teis_fields_and_defaults() {
        let sentences = json!({"source_sentence": "a", "sentences": ["b", "c"]});
        let none = EmbedEncoding::default();
        let given = EmbedEncoding {
            truncate: Some(true),
            truncation_direction: TruncationDirection::Left,
            prompt_name: Some("query".to_owned()),
            input_type: None,
        };
        let table = [
            (json!({"inputs": sentences}), none.clone()),
            (json!({"inputs": sentences, "parameters": null}), none.clone()),
            (json!({"inputs": sentences, "parameters": {}}), none),
            (
                json!({"inputs": sentences, "parameters": {
                    "truncate": true, "truncation_direction": "Left", "prompt_name": "query", "unknown": 1
                }}),
                given,
            ),
        ];
        for (fields, encoding) in table {
            let request =
                SimilarityRequest::from(serde_json::from_value::<SimilarityBody>(fields.clone()).unwrap());
            let expected = SimilarityRequest {
                source_sentence: "a".to_owned(),
                sentences: vec!["b".to_owned(), "c".to_owned()],
                encoding,
            };
            assert_eq!(request, expected, "{fields}");
        }
    }
}
