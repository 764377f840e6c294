//! `POST /v2/embed` and `/v1/embed`: vectors, in Cohere's format.
//!
//! Input: `texts` or `inputs`, and how they become vectors. Output: `{id, embeddings, texts, meta}`, with an
//! object that has a list of vectors for each of `embedding_types`; without that field `/v1/embed` has a list
//! of vectors instead. What must hold: the numbers are the ones that `/embed` gives; a field that would
//! change them and is not supported is refused by name; every error has Cohere's body.

use std::sync::atomic::{AtomicBool, Ordering};

use axum::{extract::State, http::Uri, response::Response};
use serde::{Deserialize, Serialize, de::IgnoredAny};
use text_embeddings_core::{
    error::Error,
    service::{EmbedEncoding, EmbedInput, EmbedInputs, EmbedRequest},
};
use utoipa::ToSchema;
use uuid::Uuid;

use super::{
    error::ApiError,
    extract::ParsedBody,
    named_fields::ObjectOnly,
    rerank::answers::ApiVersion,
    responses::CohereEmbedErrors,
    routes::COHERE_V2_EMBED_PATH,
    schemas::{TAG, only_null},
    shared::{CohereTruncation, InputTypeName, null_as_default, respond},
    vector_encoding::{EncodedVector, EncodingFormat, VectorEncoding},
};
use crate::state::AppState;

/// The warning about a model whose files name no prompts.
const NO_PROMPTS: &str = "the files of this model name no prompts, so that `input_type` has no effect";

/// The texts to embed, in Cohere's format.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = CohereEmbedRequest, example = json!({
    "texts": ["What is deep learning?"], "input_type": "search_query", "embedding_types": ["float"]
}))]
pub(crate) struct CohereEmbedBody {
    /// The texts to embed.
    texts: Option<Vec<String>>,
    /// The same as objects. Each has one part, which is a text.
    #[schema(value_type = Option<Vec<CohereInput>>)]
    inputs: Option<Vec<ObjectOnly<CohereInput>>>,
    /// Refused unless null: only text is embedded.
    #[schema(schema_with = only_null)]
    images: Option<IgnoredAny>,
    /// The use of the vectors, which decides the model's prompt before each text.
    input_type: Option<InputTypeName>,
    /// The types of vectors in the answer. Absent: `float`.
    #[schema(min_items = 1)]
    embedding_types: Option<Vec<EncodingFormat>>,
    /// The number of a vector's first values to return (Matryoshka).
    output_dimension: Option<usize>,
    /// The end at which a text that is too long is cut; with `NONE` it is refused.
    #[serde(default, deserialize_with = "null_as_default")]
    #[schema(value_type = Option<CohereTruncation>, default = "END")]
    truncate: CohereTruncation,
    /// Refused unless null: a text is cut where it is too long for the model.
    #[schema(schema_with = only_null)]
    max_tokens: Option<IgnoredAny>,
    /// The name of one of several models. Without effect if the server has one.
    #[expect(dead_code, reason = "part of the interface; the dispatcher has read it")]
    model: Option<String>,
}

/// An input with its parts.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = CohereEmbedInput)]
struct CohereInput {
    #[schema(value_type = Vec<CohereContent>)]
    content: Vec<ObjectOnly<CohereContent>>,
}

/// A part of an input.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = CohereEmbedContent)]
struct CohereContent {
    /// `text`; other parts are refused.
    #[serde(rename = "type")]
    #[schema(example = "text")]
    kind: String,
    text: Option<String>,
}

/// The service's request for a body, and the types of vectors that its answer has.
#[derive(Debug, PartialEq)]
pub(crate) struct CohereEmbedRequest {
    request: EmbedRequest,
    /// The texts again, for the answer.
    texts: Vec<String>,
    types: Option<Vec<EncodingFormat>>,
}

impl CohereEmbedBody {
    /// The request. The error names the field that is not supported, or the lack of texts.
    pub(crate) fn build_request(self) -> Result<CohereEmbedRequest, ApiError> {
        if self.images.is_some() {
            let message = "`images` is not supported: this model reads text only; send `texts`";
            return Err(ApiError::invalid(message.to_owned()));
        }
        if self.max_tokens.is_some() {
            let message = "`max_tokens` is not supported: a text is cut where it is too long for the model, \
                           as `truncate` says";
            return Err(ApiError::invalid(message.to_owned()));
        }
        if self.embedding_types.as_ref().is_some_and(Vec::is_empty) {
            return Err(Error::Empty { field: "embedding_types" }.into());
        }
        let input_type = self.input_type.map(InputTypeName::input_type).transpose();
        let texts = read_texts(self.texts, self.inputs).map_err(ApiError::invalid)?;
        if texts.is_empty() {
            return Err(Error::Empty { field: "texts" }.into());
        }
        let encoding = EmbedEncoding {
            truncate: Some(self.truncate.is_allowed()),
            truncation_direction: self.truncate.cut_side(),
            input_type: input_type.map_err(ApiError::invalid)?,
            ..EmbedEncoding::default()
        };
        let inputs = EmbedInputs::batch(texts.iter().cloned().map(EmbedInput::Text).collect());
        let request = EmbedRequest { inputs, encoding, normalize: true, dimensions: self.output_dimension };
        Ok(CohereEmbedRequest { request, texts, types: self.embedding_types })
    }
}

/// The texts of a body.
fn read_texts(
    texts: Option<Vec<String>>,
    inputs: Option<Vec<ObjectOnly<CohereInput>>>,
) -> Result<Vec<String>, String> {
    let inputs = match (texts, inputs) {
        (Some(texts), None) => return Ok(texts),
        (None, Some(inputs)) => inputs,
        (None, None) => {
            return Err("the request does not say what to embed: send `texts`, a list of texts".to_owned());
        }
        (Some(_), Some(_)) => {
            return Err("the request has both `texts` and `inputs`: send one of them".to_owned());
        }
    };
    inputs.into_iter().enumerate().map(|(index, input)| input.body.only_text(index)).collect()
}

impl CohereInput {
    /// Its only part, which is a text.
    fn only_text(self, index: usize) -> Result<String, String> {
        let parts = self.content.len();
        match self.content.into_iter().next().map(|part| part.body) {
            Some(CohereContent { kind, text: Some(text) }) if parts == 1 && kind == "text" => Ok(text),
            _ => Err(format!("`inputs[{index}].content` must be one part of the type `text`")),
        }
    }
}

/// The vectors, in the order of the texts.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CohereEmbedResponse)]
pub(crate) struct CohereEmbedAnswer {
    /// `embeddings_by_type`, or `embeddings_floats` where `embeddings` is a list.
    #[schema(example = "embeddings_by_type")]
    response_type: &'static str,
    id: String,
    embeddings: CohereEmbeddings,
    /// The texts as they were sent.
    texts: Vec<String>,
    meta: EmbedMeta,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
enum CohereEmbeddings {
    ByType(Box<VectorsByType>),
    Floats(Vec<EncodedVector>),
}

/// The vectors in each of the types that the request asks for.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = CohereEmbeddingsByType)]
struct VectorsByType {
    #[serde(skip_serializing_if = "Option::is_none")]
    float: Option<Vec<EncodedVector>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    float16: Option<Vec<EncodedVector>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    int8: Option<Vec<EncodedVector>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uint8: Option<Vec<EncodedVector>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    binary: Option<Vec<EncodedVector>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ubinary: Option<Vec<EncodedVector>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<Vec<EncodedVector>>,
}

impl VectorsByType {
    fn encode_types(vectors: &[Vec<f32>], types: &[EncodingFormat]) -> Self {
        let mut by_type = Self::default();
        for format in types {
            let place = match format {
                EncodingFormat::Float => &mut by_type.float,
                EncodingFormat::Base64 => &mut by_type.base64,
                EncodingFormat::Float16 => &mut by_type.float16,
                EncodingFormat::Int8 => &mut by_type.int8,
                EncodingFormat::Uint8 => &mut by_type.uint8,
                EncodingFormat::Binary => &mut by_type.binary,
                EncodingFormat::Ubinary => &mut by_type.ubinary,
            };
            // A type that is named twice is encoded once.
            place.get_or_insert_with(|| encode_all(vectors, *format));
        }
        by_type
    }
}

fn encode_all(vectors: &[Vec<f32>], format: EncodingFormat) -> Vec<EncodedVector> {
    VectorEncoding::from_format(format).encode_all(vectors.iter().cloned())
}

/// The metadata of an answer, as Cohere has them.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CohereEmbedMeta)]
struct EmbedMeta {
    api_version: ApiVersion,
    billed_units: EmbedUnits,
    /// A warning about a field that has no effect on this model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<&'static str>,
}

#[derive(Debug, Serialize, ToSchema)]
struct EmbedUnits {
    input_tokens: usize,
}

impl CohereEmbedAnswer {
    /// The answer with these vectors of `texts`.
    fn new(
        vectors: &[Vec<f32>],
        texts: Vec<String>,
        types: Option<&[EncodingFormat]>,
        is_v2: bool,
        tokens: usize,
        warnings: Vec<&'static str>,
    ) -> Self {
        let floats = [EncodingFormat::Float];
        let types = types.or(is_v2.then_some(&floats));
        let embeddings = match types {
            Some(types) => CohereEmbeddings::ByType(Box::new(VectorsByType::encode_types(vectors, types))),
            None => CohereEmbeddings::Floats(encode_all(vectors, EncodingFormat::Float)),
        };
        Self {
            response_type: if types.is_some() { "embeddings_by_type" } else { "embeddings_floats" },
            id: Uuid::new_v4().to_string(),
            embeddings,
            texts,
            meta: EmbedMeta {
                api_version: ApiVersion { version: if is_v2 { "2" } else { "1" } },
                billed_units: EmbedUnits { input_tokens: tokens },
                warnings,
            },
        }
    }
}

/// The warnings for a request. The first one of a process is a line of the log, too.
fn prompt_warnings(state: &AppState, request: &EmbedRequest) -> Vec<&'static str> {
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    let has_prompts = !state.served().service.config().model.prompts().named.is_empty();
    if request.encoding.input_type.is_none() || has_prompts {
        return Vec::new();
    }
    if !IS_SAID.swap(true, Ordering::Relaxed) {
        tracing::warn!("a request has an `input_type`: {NO_PROMPTS} (said once)");
    }
    vec![NO_PROMPTS]
}

/// The service's error with Cohere's names of the fields.
fn in_coheres_fields(error: Error) -> Error {
    error.reworded(|error| match error {
        Error::EmptyInput { .. } => Error::EmptyInput { field: "texts" },
        Error::TooLong { got, max } => Error::Validation(format!(
            "a text of `texts` is too long: it has {got} tokens, and may have {max}; send less, or have it \
             cut with `truncate`"
        )),
        Error::Validation(message) => {
            Error::Validation(message.replace("`dimensions`", "`output_dimension`"))
        }
        other => other,
    })
}

/// Embed texts, in Cohere's format. Only with an embedding model.
#[utoipa::path(post, path = "/v2/embed", operation_id = "cohere_embed",
    tag = TAG, request_body = CohereEmbedBody,
    responses(
        (status = 200, description = "The vectors, in the order of the texts", body = CohereEmbedAnswer),
        CohereEmbedErrors
    ))]
pub(crate) async fn embed_texts(
    State(state): State<AppState>,
    uri: Uri,
    ParsedBody(body, format): ParsedBody<CohereEmbedBody>,
) -> Result<Response, ApiError> {
    let CohereEmbedRequest { request, texts, types } = body.build_request()?;
    let warnings = prompt_warnings(&state, &request);
    let answer = state.served().service.embed_openai(request).await.map_err(in_coheres_fields)?;
    let is_v2 = uri.path() == COHERE_V2_EMBED_PATH;
    let tokens = answer.cost.tokens;
    Ok(respond(&state, format, "cohere/embed", answer, |vectors| {
        CohereEmbedAnswer::new(&vectors, texts, types.as_deref(), is_v2, tokens, warnings)
    }))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use serde_json::{Value, json};
    use text_embeddings_core::{model::InputType, tokenization::TruncationDirection};

    fn request(fields: Value) -> CohereEmbedRequest {
        serde_json::from_value::<CohereEmbedBody>(fields).unwrap().build_request().unwrap()
    }

    #[test]
    fn a_body_has_coheres_fields_and_defaults() {
        let expected = CohereEmbedRequest {
            request: EmbedRequest {
                inputs: EmbedInputs::batch(vec![
                    EmbedInput::Text("a".to_owned()),
                    EmbedInput::Text("b".to_owned()),
                ]),
                encoding: EmbedEncoding { truncate: Some(true), ..EmbedEncoding::default() },
                normalize: true,
                dimensions: None,
            },
            texts: vec!["a".to_owned(), "b".to_owned()],
            types: None,
        };
        assert_eq!(request(json!({"texts": ["a", "b"], "model": "m", "priority": 3})), expected);
        let part = |text| json!({"content": [{"type": "text", "text": text}]});
        let nulls = json!({
            "inputs": [part("a"), part("b")], "texts": null, "images": null, "max_tokens": null,
            "truncate": null, "input_type": null, "embedding_types": null, "output_dimension": null, "model": null
        });
        assert_eq!(request(nulls), expected);
        for (name, input_type) in [
            ("search_query", InputType::Query),
            ("search_document", InputType::Document),
            ("classification", InputType::Classification),
            ("clustering", InputType::Clustering),
            ("query", InputType::Query),
            ("passage", InputType::Document),
        ] {
            let found = request(json!({"texts": ["a"], "input_type": name})).request.encoding.input_type;
            assert_eq!(found, Some(input_type), "{name}");
        }
        for (name, truncate, direction) in [
            ("NONE", false, TruncationDirection::Right),
            ("START", true, TruncationDirection::Left),
            ("END", true, TruncationDirection::Right),
        ] {
            let encoding = request(json!({"texts": ["a"], "truncate": name})).request.encoding;
            assert_eq!(
                (encoding.truncate, encoding.truncation_direction),
                (Some(truncate), direction),
                "{name}"
            );
        }
        let short =
            request(json!({"texts": ["a"], "output_dimension": 7, "embedding_types": ["int8", "float"]}));
        assert_eq!(short.request.dimensions, Some(7));
        assert_eq!(short.types, Some(vec![EncodingFormat::Int8, EncodingFormat::Float]));
    }
}
