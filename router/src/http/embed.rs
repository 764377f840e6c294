//! `POST /embed`, `/embed_all` and `/embed_sparse`: inputs to vectors.
//!
//! Input: `inputs` as a text, token ids or a list of texts and token ids, and how they become vectors.
//! Output: a list with one element for each input, also for one input: `[float]`, or `[[float]]` with a
//! vector for each token, or `[{index, value}]`, or an object with the requested outputs. What must hold:
//! vectors are written as `vector_encoding.rs` says.

use axum::{extract::State, response::Response};
use serde::{Deserialize, Serialize};
use text_embeddings_backend_core::{SparseValue, Wanted};
use text_embeddings_core::{
    error::Error,
    service::{Answer, EmbedOutputs, EmbedRequest, Service},
};
use utoipa::ToSchema;

use super::{
    error::ApiError,
    extract::ParsedBody,
    inputs::{EmbedInputsBody, EmbedInputsSchema},
    named_fields::ObjectOnly,
    responses::InferenceErrors,
    schemas::TAG,
    shared::{InferenceParameters, TruncationSide, encoding, respond, yes},
    vector_encoding::{EncodedVector, EncodingFormat, VectorEncoding},
};
use crate::{state::AppState, vector_numbers::NEEDS_UNIT_LENGTH};

/// The inputs to embed.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = EmbedRequest, example = json!({"inputs": "What is deep learning?"}))]
pub(crate) struct EmbedBody {
    #[schema(value_type = EmbedInputsSchema)]
    inputs: EmbedInputsBody,
    /// Whether an input that is too long is cut. Absent or null: as `--auto-truncate` of the server says.
    #[schema(default = false)]
    truncate: Option<bool>,
    #[serde(default)]
    #[schema(default = "right")]
    truncation_direction: TruncationSide,
    /// The name of the model's prompt that goes before each text.
    prompt_name: Option<String>,
    /// Whether vectors are scaled to length one.
    #[serde(default = "yes")]
    #[schema(default = true)]
    normalize: bool,
    /// The number of a vector's first values to return (Matryoshka).
    dimensions: Option<usize>,
    /// The outputs to compute in one forward pass. The answer then has an object for each input. Absent or
    /// null: the vector of each input.
    #[schema(min_items = 1)]
    outputs: Option<Vec<OutputName>>,
    /// The notation of vectors, or the type of their numbers.
    #[serde(default)]
    #[schema(default = "float")]
    encoding_format: EncodingFormat,
    /// The type of the numbers. With `encoding_format` `base64`, their bytes. vLLM's name is `embed_dtype`.
    #[serde(alias = "embed_dtype")]
    output_dtype: Option<EncodingFormat>,
    /// The other fields, as the clients of Hugging Face's inference API send them.
    #[schema(value_type = Option<InferenceParameters>)]
    parameters: Option<ObjectOnly<InferenceParameters>>,
}

impl EmbedBody {
    /// The vectors of the inputs, or the outputs that the body names.
    pub(crate) async fn embed_inputs(self, service: &Service) -> Result<Answer<EmbedAnswer>, Error> {
        let vectors = VectorEncoding::from_fields(self.encoding_format, self.output_dtype, None)
            .map_err(Error::Validation)?;
        let parameters = self.parameters.map(|parameters| parameters.body).unwrap_or_default();
        let normalize = self.normalize && parameters.normalize.unwrap_or(true);
        check_scaling(vectors, normalize)?;
        let request = EmbedRequest {
            inputs: self.inputs.0,
            encoding: encoding(
                self.truncate.or(parameters.truncate),
                parameters.truncation_direction.unwrap_or(self.truncation_direction),
                self.prompt_name.or(parameters.prompt_name),
            ),
            normalize,
            dimensions: self.dimensions,
        };
        let Some(outputs) = self.outputs else {
            let answer = service.embed_vectors(request).await?;
            return Ok(answer.map(|values| EmbedAnswer::Vectors(vectors.encode_all(values))));
        };
        let answer = service.embed(request, OutputName::wanted(&outputs)).await?;
        Ok(answer.map(|outputs| EmbedAnswer::from_outputs(outputs, vectors)))
    }
}

/// Refuses numbers whose scale is made for vectors of length one for vectors that keep their length.
pub(crate) fn check_scaling(vectors: VectorEncoding, normalize: bool) -> Result<(), Error> {
    if vectors.numbers.needs_unit_length() && !normalize {
        return Err(Error::Validation(NEEDS_UNIT_LENGTH.to_owned()));
    }
    Ok(())
}

/// The inputs to embed token by token.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = EmbedAllRequest, example = json!({"inputs": "What is deep learning?"}))]
pub(crate) struct EmbedAllBody {
    #[schema(value_type = EmbedInputsSchema)]
    inputs: EmbedInputsBody,
    /// Whether an input that is too long is cut. Absent or null: as `--auto-truncate` of the server says.
    #[schema(default = false)]
    truncate: Option<bool>,
    #[serde(default)]
    #[schema(default = "right")]
    truncation_direction: TruncationSide,
    /// The name of the model's prompt that goes before each text.
    prompt_name: Option<String>,
    /// Whether vectors are scaled to length one. int8 and uint8 values are always of such vectors.
    #[schema(default = false)]
    normalize: Option<bool>,
    /// The number of each vector's first values to return (Matryoshka).
    dimensions: Option<usize>,
    /// The outputs to compute in one forward pass. The answer then has an object for each input. Absent or
    /// null: the vectors of the tokens.
    #[schema(min_items = 1)]
    outputs: Option<Vec<OutputName>>,
    /// The notation of vectors, or the type of their numbers.
    #[serde(default)]
    #[schema(default = "float")]
    encoding_format: EncodingFormat,
    /// The type of the numbers. With `encoding_format` `base64`, their bytes. vLLM's name is `embed_dtype`.
    #[serde(alias = "embed_dtype")]
    output_dtype: Option<EncodingFormat>,
}

/// An output of an embedding model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[schema(as = EmbedOutput)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OutputName {
    /// The vector of the input.
    Dense,
    /// The weights of vocabulary entries.
    Sparse,
    /// The vectors of the tokens.
    Tokens,
}

impl OutputName {
    fn wanted(names: &[Self]) -> Wanted {
        let [whole, tokens, sparse] =
            [Self::Dense, Self::Tokens, Self::Sparse].map(|name| names.contains(&name));
        Wanted { whole, tokens, sparse }
    }
}

impl EmbedAllBody {
    /// The vectors of the tokens, or the outputs that the body names.
    async fn embed_inputs(self, service: &Service) -> Result<Answer<EmbedAnswer>, Error> {
        let vectors = VectorEncoding::from_fields(self.encoding_format, self.output_dtype, None)
            .map_err(Error::Validation)?;
        let normalize = self.normalize.unwrap_or(vectors.numbers.needs_unit_length());
        check_scaling(vectors, normalize)?;
        let request = EmbedRequest {
            inputs: self.inputs.0,
            encoding: encoding(self.truncate, self.truncation_direction, self.prompt_name),
            normalize,
            dimensions: self.dimensions,
        };
        let wanted = self.outputs.as_deref().map(OutputName::wanted);
        let answer = service.embed(request, wanted.unwrap_or(Wanted::TOKENS)).await?;
        Ok(answer.map(|outputs| match wanted {
            None => EmbedAnswer::from_tokens(outputs, vectors),
            Some(_) => EmbedAnswer::from_outputs(outputs, vectors),
        }))
    }
}

/// The inputs to embed sparsely.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = EmbedSparseRequest, example = json!({"inputs": "What is deep learning?"}))]
pub(crate) struct EmbedSparseBody {
    #[schema(value_type = EmbedInputsSchema)]
    inputs: EmbedInputsBody,
    /// Whether an input that is too long is cut. Absent or null: as `--auto-truncate` of the server says.
    #[schema(default = false)]
    truncate: Option<bool>,
    #[serde(default)]
    #[schema(default = "right")]
    truncation_direction: TruncationSide,
    /// The name of the model's prompt that goes before each text.
    prompt_name: Option<String>,
}

impl From<EmbedSparseBody> for EmbedRequest {
    fn from(body: EmbedSparseBody) -> Self {
        Self {
            inputs: body.inputs.0,
            encoding: encoding(body.truncate, body.truncation_direction, body.prompt_name),
            normalize: false,
            dimensions: None,
        }
    }
}

/// A value of a sparse vector that is not zero.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SparseValue)]
pub(crate) struct SparseValueBody {
    index: u32,
    value: f32,
}

/// The answer of `/embed` and `/embed_all`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum EmbedAnswer {
    Vectors(Vec<EncodedVector>),
    Tokens(Vec<Vec<EncodedVector>>),
    Outputs(Vec<OutputsBody>),
}

impl EmbedAnswer {
    /// The values of all vectors.
    pub(crate) fn count_values(&self) -> usize {
        match self {
            Self::Vectors(vectors) => vectors.iter().map(EncodedVector::count_values).sum(),
            Self::Tokens(texts) => texts.iter().flatten().map(EncodedVector::count_values).sum(),
            Self::Outputs(texts) => texts.iter().map(OutputsBody::count_values).sum(),
        }
    }

    fn from_tokens(outputs: Vec<EmbedOutputs>, vectors: VectorEncoding) -> Self {
        let tokens = outputs.into_iter().filter_map(|output| output.tokens);
        Self::Tokens(tokens.map(|tokens| vectors.encode_all(tokens)).collect())
    }

    fn from_outputs(outputs: Vec<EmbedOutputs>, vectors: VectorEncoding) -> Self {
        let bodies = outputs.into_iter().map(|EmbedOutputs { dense, sparse, tokens }| OutputsBody {
            dense: dense.map(|vector| vectors.encode_vector(vector)),
            sparse: sparse.map(sparse_body),
            tokens: tokens.map(|tokens| vectors.encode_all(tokens)),
        });
        Self::Outputs(bodies.collect())
    }
}

/// The requested outputs of an input.
#[derive(Debug, Serialize, ToSchema)]
// Without it, the API's description would take any object for these outputs.
#[serde(deny_unknown_fields)]
#[schema(as = EmbedOutputs)]
pub(crate) struct OutputsBody {
    /// The vector of the input.
    #[serde(skip_serializing_if = "Option::is_none")]
    dense: Option<EncodedVector>,
    /// The weights of vocabulary entries, by ascending index.
    #[serde(skip_serializing_if = "Option::is_none")]
    sparse: Option<Vec<SparseValueBody>>,
    /// The vectors of the tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<Vec<EncodedVector>>,
}

impl OutputsBody {
    fn count_values(&self) -> usize {
        let vectors = self.dense.iter().chain(self.tokens.iter().flatten());
        let sparse = self.sparse.as_ref().map_or(0, Vec::len);
        vectors.map(EncodedVector::count_values).sum::<usize>() + 2 * sparse
    }
}

/// A vector for each input.
#[derive(Serialize, ToSchema)]
#[schema(as = EmbedResponse)]
pub(crate) struct VectorsBody(Vec<Vec<f32>>);

/// A vector for each token of each input.
#[derive(Serialize, ToSchema)]
#[schema(as = EmbedAllResponse)]
pub(crate) struct TokenVectorsBody(Vec<Vec<Vec<f32>>>);

/// The answer of `/embed`: numbers of any type, or their bytes in base64. If the request has `outputs`, an
/// object for each input.
#[derive(Serialize, ToSchema)]
#[schema(as = EmbedAnswer)]
#[serde(untagged)]
#[expect(dead_code, reason = "a description, not a value")]
pub(crate) enum DescribedEmbedAnswer {
    Vectors(VectorsBody),
    Encoded(Vec<String>),
    Outputs(Vec<OutputsBody>),
}

/// The answer of `/embed_all`: numbers of any type, or their bytes in base64. If the request has `outputs`,
/// an object for each input.
#[derive(Serialize, ToSchema)]
#[schema(as = EmbedAllAnswer)]
#[serde(untagged)]
#[expect(dead_code, reason = "a description, not a value")]
enum DescribedTokensAnswer {
    Tokens(TokenVectorsBody),
    Encoded(Vec<Vec<String>>),
    Outputs(Vec<OutputsBody>),
}

/// A sparse vector for each input.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = EmbedSparseResponse)]
pub(crate) struct SparseVectorsBody(pub(crate) Vec<Vec<SparseValueBody>>);

impl From<Vec<Vec<SparseValue>>> for SparseVectorsBody {
    fn from(vectors: Vec<Vec<SparseValue>>) -> Self {
        Self(vectors.into_iter().map(sparse_body).collect())
    }
}

fn sparse_body(vector: Vec<SparseValue>) -> Vec<SparseValueBody> {
    vector.into_iter().map(|SparseValue { index, value }| SparseValueBody { index, value }).collect()
}

/// Embed texts or token ids: a vector for each, or several outputs at once.
///
/// Only with an embedding model.
#[utoipa::path(post, path = "/embed", tag = TAG, request_body = EmbedBody,
    responses(
        (
            status = 200,
            description = "The vectors, or the requested outputs, in the order of the inputs",
            body = DescribedEmbedAnswer
        ),
        InferenceErrors
    ))]
pub(crate) async fn embed(
    State(state): State<AppState>,
    ParsedBody(body, format): ParsedBody<EmbedBody>,
) -> Result<Response, ApiError> {
    let answer = body.embed_inputs(&state.served().service).await?;
    Ok(respond(&state, format, "embed", answer, |body| body))
}

/// Embed texts or token ids: a vector for each token, or several outputs at once.
///
/// Only with an embedding model.
#[utoipa::path(post, path = "/embed_all", tag = TAG, request_body = EmbedAllBody,
    responses(
        (
            status = 200,
            description = "The vectors of each input's tokens, or the requested outputs",
            body = DescribedTokensAnswer
        ),
        InferenceErrors
    ))]
pub(crate) async fn embed_all(
    State(state): State<AppState>,
    ParsedBody(body, format): ParsedBody<EmbedAllBody>,
) -> Result<Response, ApiError> {
    let answer = body.embed_inputs(&state.served().service).await?;
    Ok(respond(&state, format, "embed_all", answer, |body| body))
}

/// Embed texts or token ids: a sparse vector for each.
///
/// Only with a SPLADE model, or a model with a lexical head such as bge-m3.
#[utoipa::path(post, path = "/embed_sparse", tag = TAG, request_body = EmbedSparseBody,
    responses(
        (status = 200, description = "The values that are not zero", body = SparseVectorsBody),
        InferenceErrors
    ))]
pub(crate) async fn embed_sparse(
    State(state): State<AppState>,
    ParsedBody(body, format): ParsedBody<EmbedSparseBody>,
) -> Result<Response, ApiError> {
    let answer = state.served().service.embed_sparse(body.into()).await?;
    Ok(respond(&state, format, "embed_sparse", answer, SparseVectorsBody::from))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::http::{
        inputs::{self, tests::Mistake},
        testing::Server,
    };
    use serde_json::{Value, json};
    use text_embeddings_core::{
        service::{EmbedEncoding, EmbedInput, EmbedInputs},
        tokenization::TruncationDirection,
    };

    #[test]
    fn the_values_of_an_answer_are_those_of_all_its_vectors() {
        let outputs = || EmbedOutputs {
            dense: Some(vec![1.0; 3]),
            sparse: Some(vec![SparseValue { index: 7, value: 1.0 }; 5]),
            tokens: Some(vec![vec![1.0; 4]; 2]),
        };
        // A sparse value has an index, too.
        for (outputs, values) in [
            (outputs(), 3 + 10 + 8),
            (EmbedOutputs { tokens: None, ..outputs() }, 13),
            (EmbedOutputs { dense: None, sparse: None, ..outputs() }, 8),
        ] {
            let answer = EmbedAnswer::from_outputs(vec![outputs; 2], VectorEncoding::default());
            assert_eq!(answer.count_values(), 2 * values);
        }
        let tokens = EmbedAnswer::from_tokens(vec![outputs(); 3], VectorEncoding::default());
        assert_eq!(tokens.count_values(), 24);
    }

    #[test]
    fn a_sparse_body_has_teis_defaults_and_each_field_arrives() {
        let body = r#"{"inputs":"a","unknown":{"x":1}}"#;
        let inputs = EmbedInputs::single(EmbedInput::Text("a".to_owned()));
        let request = EmbedRequest::from(serde_json::from_str::<EmbedSparseBody>(body).unwrap());
        let expected =
            EmbedRequest { inputs, encoding: EmbedEncoding::default(), normalize: false, dimensions: None };
        assert_eq!(request, expected);
        let fields = json!({
            "inputs": [1, 2], "truncate": false, "truncation_direction": "left", "prompt_name": "query"
        });
        let encoding = EmbedEncoding {
            truncate: Some(false),
            truncation_direction: TruncationDirection::Left,
            prompt_name: Some("query".to_owned()),
            input_type: None,
        };
        let inputs = EmbedInputs::single(EmbedInput::Ids(vec![1, 2]));
        let request = EmbedRequest::from(serde_json::from_value::<EmbedSparseBody>(fields).unwrap());
        assert_eq!(request, EmbedRequest { inputs, encoding, ..expected });
    }

    #[test]
    fn sparse_vectors_are_written_as_lists_of_index_and_value() {
        let vectors = vec![vec![SparseValue { index: 7, value: 0.5 }], vec![]];
        let written = serde_json::to_string(&SparseVectorsBody::from(vectors)).unwrap();
        assert_eq!(written, r#"[[{"index":7,"value":0.5}],[]]"#);
    }

    #[tokio::test]
    async fn hugging_faces_parameters_are_fields() {
        let server = Server::start_with("--model-type embedding").await;
        for (parameters, status, part) in [
            (json!({"normalize": false}), 200, "[[3.0,0.0,4.0]]"),
            (json!({"normalize": null, "truncate": true, "unknown": 1}), 200, "[[0.6,0.0,0.8]]"),
            (json!({"prompt_name": "query"}), 422, "`default-prompt-name` is set to `query`"),
            (Value::Null, 200, "[[0.6,0.0,0.8]]"),
            (json!(["query"]), 422, "`parameters`: invalid type: sequence, expected an object"),
        ] {
            for path in ["/embed", "/"] {
                let body = json!({"inputs": "ZZZb", "parameters": parameters}).to_string();
                let answer = server.post(path, &body, &[]).await;
                assert!(answer.status == status && answer.body.contains(part), "{body}: {}", answer.body);
            }
        }
        // The letters that the model counts are at either end of a text that is too long.
        let long = format!("{}{}", "Z".repeat(600), "a".repeat(600));
        for direction in ["left", "right"] {
            let parameters = json!({"truncation_direction": direction});
            let body = json!({"inputs": long, "parameters": parameters, "normalize": false});
            let answer = server.post("/embed", &body.to_string(), &[]).await;
            assert_eq!(
                answer.body.starts_with("[[0.0,"),
                direction == "left",
                "{direction}: {}",
                answer.body
            );
        }
    }

    #[tokio::test]
    async fn a_mistake_is_named_with_field_and_position() {
        let server = Server::start().await;
        for path in ["/embed", "/embed_all", "/embed_sparse"] {
            for Mistake { inputs, place, message } in inputs::tests::mistakes() {
                let answer = server.post(path, &format!(r#"{{"inputs":{inputs}}}"#), &[]).await;
                assert_eq!(answer.status, 422, "{path} {inputs}");
                let body: Value = serde_json::from_str(&answer.body).unwrap();
                let message = message.replace("expected u32", "expected a whole number from 0");
                let start = format!("invalid request: `inputs{place}`: {message} at line 1 column ");
                assert!(body["error"].as_str().unwrap().starts_with(&start), "{path} {}", answer.body);
                assert_eq!(body["error_type"], "Validation");
            }
        }
    }

    #[tokio::test]
    async fn vectors_have_the_type_and_the_notation_that_the_body_names() {
        let server = Server::start_with("--model-type embedding").await;
        let table = [
            ("/embed", json!({"inputs": "ZZZb", "output_dtype": "int8"}), "[[76,0,102]]"),
            ("/embed", json!({"inputs": "ZZZb", "embed_dtype": "float16"}), "[[0.60009766,0.0,0.7998047]]"),
            ("/embed", json!({"inputs": "ZZZb", "encoding_format": "ubinary"}), "[[160]]"),
            ("/embed", json!({"inputs": "ZZZb", "outputs": ["dense"]}), r#"[{"dense":[0.6,0.0,0.8]}]"#),
            (
                "/embed",
                json!({"inputs": "ZZZb", "normalize": false, "output_dtype": "float16", "encoding_format": "base64"}),
                r#"["AEIAAABE"]"#,
            ),
            (
                "/embed_all",
                json!({"inputs": "Zb", "output_dtype": "uint8"}),
                "[[[218,128,218],[185,128,242]]]",
            ),
            ("/embed_all", json!({"inputs": "Zb", "output_dtype": "binary"}), "[[[32],[32]]]"),
            (
                "/embed_all",
                json!({"inputs": "Zb", "normalize": false, "output_dtype": "ubinary", "encoding_format": "base64"}),
                r#"[["oA==","oA=="]]"#,
            ),
            (
                "/embed_all",
                json!({"inputs": "ZZZb", "normalize": true, "outputs": ["tokens", "dense"], "output_dtype": "int8", "dimensions": 1}),
                r#"[{"dense":[127],"tokens":[[127],[127],[127],[127]]}]"#,
            ),
        ];
        for (path, fields, expected) in table {
            let answer = server.post(path, &fields.to_string(), &[]).await;
            assert_eq!((answer.status, answer.body.as_str()), (200, expected), "{path} {fields}");
        }
        for path in ["/embed", "/embed_all"] {
            for (fields, part) in [
                (json!({"normalize": false, "output_dtype": "int8"}), NEEDS_UNIT_LENGTH),
                (json!({"encoding_format": "int8", "output_dtype": "uint8"}), "contradicts another field"),
                (json!({"output_dtype": "base64"}), "send base64 as `encoding_format`"),
                (json!({"output_dtype": "int4"}), "unknown variant `int4`"),
            ] {
                let mut body = fields.clone();
                body["inputs"] = json!("a");
                let answer = server.post(path, &body.to_string(), &[]).await;
                assert!(
                    answer.status == 422 && answer.body.contains(part),
                    "{path} {fields} {}",
                    answer.body
                );
            }
        }
    }

    #[tokio::test]
    async fn a_length_that_the_model_was_not_trained_for_has_a_header() {
        let server = Server::start_with("--model-type embedding").await;
        for (dimensions, expected) in [(1, Some("1")), (2, None), (3, None)] {
            for (path, field, inputs) in [
                ("/embed", "dimensions", "inputs"),
                ("/v1/embeddings", "dimensions", "input"),
                ("/v1/embeddings", "output_dimension", "input"),
                ("/v2/embed", "output_dimension", "texts"),
            ] {
                let body = json!({inputs: ["ZZ"], field: dimensions});
                let answer = server.post(path, &body.to_string(), &[]).await;
                assert_eq!(answer.status, 200, "{}", answer.body);
                assert_eq!(answer.header("x-untrained-dimensions"), expected, "{path} {dimensions}");
            }
        }
    }

    #[tokio::test]
    async fn a_model_that_fails_is_named_and_the_server_goes_on() {
        let server = Server::start_with("--model-type embedding").await;
        let nan = "Backend error: the model's answer is NaN or infinite: its weights or its arithmetic are broken; `--dtype float32` rules the latter out";
        let table = [("#", "Backend error: inference failed: the test wants it"), ("%", nan)];
        for path in ["/embed", "/embed_all"] {
            for (text, message) in table {
                let answer = server.post(path, &json!({"inputs": ["a", text]}).to_string(), &[]).await;
                let expected = format!(r#"{{"error":"{message}","error_type":"Backend"}}"#);
                assert_eq!((answer.status, answer.body), (424, expected), "{path} {text}");
                assert_eq!(server.post(path, r#"{"inputs":"a"}"#, &[]).await.status, 200);
            }
        }
    }
}
