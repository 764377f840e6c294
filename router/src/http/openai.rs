//! `POST /v1/embeddings` and `/embeddings`: vectors, in `OpenAI`'s format.
//!
//! Input: `input`, as `/embed` takes `inputs`, and the fields of Voyage and Jina for prompts and the form of
//! vectors. Output: `{object, data, model, usage}`, with each vector as `vector_encoding.rs` writes it. What
//! must hold: the numbers equal those that `/embed` gives; every error has `OpenAI`'s error body, also one of
//! the key or the body's format, unless Voyage's client asks.

use std::sync::atomic::{AtomicBool, Ordering};

use axum::{extract::State, http::HeaderMap, response::Response};
use serde::{Deserialize, Serialize, de::IgnoredAny};
use text_embeddings_core::{
    model::{InputType, Prompts},
    service::{EmbedEncoding, EmbedInputs, EmbedRequest},
};
use utoipa::ToSchema;

use super::{
    embed::check_scaling,
    error::ApiError,
    error_shapes::ErrorShape,
    extract::ParsedBody,
    format::BodyFormat,
    inputs::{EmbedInputsBody, EmbedInputsSchema},
    responses::OpenAiErrors,
    schemas::{TAG, only_null, prompt_tokens},
    shared::{CohereTruncation, InputTypeName, TruncateChoice, null_as_default, respond},
    vector_encoding::{EncodedVector, EncodingFormat, VectorEncoding},
};
use crate::state::AppState;

/// The inputs to embed, in `OpenAI`'s format.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OpenAICompatRequest, example = json!({"input": "What is deep learning?"}))]
pub(crate) struct OpenAiBody {
    #[schema(value_type = EmbedInputsSchema)]
    input: EmbedInputsBody,
    #[serde(default, deserialize_with = "null_as_default")]
    #[schema(default = "float")]
    encoding_format: EncodingFormat,
    /// Voyage's name for the type of a vector's numbers. With `encoding_format` `base64`, their bytes. vLLM's
    /// name is `embed_dtype`.
    #[serde(alias = "embed_dtype")]
    output_dtype: Option<EncodingFormat>,
    /// Jina's name for `encoding_format`. `LlamaIndex`'s client for Jina says `encoding_type`.
    #[serde(alias = "encoding_type")]
    embedding_type: Option<EncodingFormat>,
    /// The number of a vector's first values to return (Matryoshka). Voyage's name is `output_dimension`.
    #[serde(alias = "output_dimension")]
    dimensions: Option<usize>,
    /// Voyage: the use of the vectors, which chooses the model's prompt where `prompt_name` does not.
    input_type: Option<InputTypeName>,
    /// Voyage: whether an input that is too long is cut. Absent or null: as `--auto-truncate` of the server
    /// says.
    truncation: Option<bool>,
    /// The same as a boolean, or with the end at which an input is cut.
    truncate: Option<TruncateChoice>,
    /// `vLLM`: the most tokens of an input. Refused if it is below the model's own limit; -1 stands for that.
    #[schema(schema_with = prompt_tokens)]
    truncate_prompt_tokens: Option<i64>,
    /// Whether vectors are scaled to length one. Another name is `normalize`. Absent or null: they are.
    #[serde(alias = "normalize")]
    normalized: Option<bool>,
    /// The name of the model's prompt that goes before each text.
    prompt_name: Option<String>,
    /// Jina: the use of the vectors, where neither `prompt_name` nor `input_type` is there. The name of one
    /// of the model's prompts chooses it. Else its last part, such as `query` in `retrieval.query`, is as the
    /// `input_type`: `query`, `passage`, `classification` or `clustering`. Other tasks have no effect.
    task: Option<String>,
    /// Refused if true: each input is embedded by itself.
    late_chunking: Option<bool>,
    /// Refused unless null: the model's prompts have names.
    #[schema(schema_with = only_null)]
    prompt: Option<IgnoredAny>,
    /// The name of one of several models. Without effect if the server has one.
    #[expect(dead_code, reason = "part of the interface; the dispatcher has read it")]
    model: Option<String>,
    /// Without effect.
    #[expect(dead_code, reason = "part of the interface; nothing depends on who asks")]
    user: Option<String>,
}

impl OpenAiBody {
    /// The request to a model with these prompts, which reads at most `max_tokens` tokens, and the encoding
    /// of its vectors. Refuses fields that contradict each other, or that would change the vectors and are
    /// not supported.
    pub(crate) fn split(
        self,
        prompts: &Prompts,
        max_tokens: usize,
    ) -> Result<(EmbedRequest, VectorEncoding), ApiError> {
        self.refuse_unsupported(max_tokens).map_err(ApiError::invalid)?;
        let vectors =
            VectorEncoding::from_fields(self.encoding_format, self.output_dtype, self.embedding_type)
                .map_err(ApiError::invalid)?;
        let normalize = self.normalized.unwrap_or(true);
        check_scaling(vectors, normalize)?;
        let end = self.truncate.map(TruncateChoice::cut_end);
        let input_type = self.input_type.map(InputTypeName::input_type).transpose();
        let mut encoding = EmbedEncoding {
            truncate: (self.truncation.or(end.map(CohereTruncation::is_allowed)))
                .or(self.truncate_prompt_tokens.map(|_| true)),
            truncation_direction: end.unwrap_or_default().cut_side(),
            prompt_name: self.prompt_name,
            input_type: input_type.map_err(ApiError::invalid)?,
        };
        if let (Some(task), None, None) = (self.task, &encoding.prompt_name, encoding.input_type) {
            if prompts.named.contains_key(&task) {
                encoding.prompt_name = Some(task);
            } else {
                encoding.input_type = task_type(&task);
            }
        }
        let request = EmbedRequest { inputs: self.input.0, encoding, normalize, dimensions: self.dimensions };
        Ok((request, vectors))
    }

    /// Refuses fields that would change the vectors and are not supported.
    fn refuse_unsupported(&self, max_tokens: usize) -> Result<(), String> {
        if self.late_chunking == Some(true) {
            return Err(
                "`late_chunking` is not supported: each input is embedded by itself; send false, or \
                        leave it out"
                    .to_owned(),
            );
        }
        if self.prompt.is_some() {
            return Err(
                "`prompt` is not supported: name one of the model's prompts in `prompt_name`, or put \
                        the prompt before each text of `input`"
                    .to_owned(),
            );
        }
        match self.truncate_prompt_tokens {
            None | Some(-1) => Ok(()),
            Some(tokens) if usize::try_from(tokens).is_ok_and(|tokens| tokens >= max_tokens) => Ok(()),
            Some(tokens) => Err(format!(
                "`truncate_prompt_tokens` must be -1 or at least the {max_tokens} tokens that this model reads, \
                 because inputs are cut there only. Given: {tokens}"
            )),
        }
    }
}

/// The use of vectors that a task of Jina's names, also by its last part: `retrieval.query`, `code.query`.
fn task_type(task: &str) -> Option<InputType> {
    match task.rsplit('.').next()? {
        "query" => Some(InputType::Query),
        "passage" | "document" => Some(InputType::Document),
        "classification" => Some(InputType::Classification),
        "clustering" | "separation" => Some(InputType::Clustering),
        _ => None,
    }
}

/// A vector for each input, and the tokens of all inputs.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OpenAICompatResponse)]
pub(crate) struct EmbeddingsBody {
    #[schema(example = "list")]
    object: &'static str,
    data: Vec<EmbeddingBody>,
    /// `--served-model-name`.
    #[schema(example = "Qwen/Qwen3-Embedding-0.6B")]
    model: String,
    usage: OpenAiUsage,
}

/// A vector and the index of its input.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OpenAICompatEmbedding)]
struct EmbeddingBody {
    #[schema(example = "embedding")]
    object: &'static str,
    embedding: EncodedVector,
    index: usize,
}

/// The tokens of the inputs.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OpenAICompatUsage)]
struct OpenAiUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

impl EmbeddingsBody {
    /// The body for the vectors of a request that took `tokens` tokens.
    pub(crate) fn new(vectors: Vec<Vec<f32>>, encoding: VectorEncoding, model: &str, tokens: usize) -> Self {
        let data = vectors.into_iter().enumerate().map(|(index, vector)| EmbeddingBody {
            object: "embedding",
            embedding: encoding.encode_vector(vector),
            index,
        });
        Self {
            object: "list",
            data: data.collect(),
            model: model.to_owned(),
            usage: OpenAiUsage { prompt_tokens: tokens, total_tokens: tokens },
        }
    }
}

/// The start of the names of the headers that `OpenAI`'s SDK sends, which is made by Stainless.
const SDK_HEADERS: &str = "x-stainless-";

/// Whether `OpenAI`'s SDK sends the request.
fn is_sdks(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| name.as_str().starts_with(SDK_HEADERS))
}

/// Refuses base64 of other numbers to `OpenAI`'s SDK, which asks for base64 unless it is told otherwise, and
/// reads float32 values from it.
fn check_base64(encoding: VectorEncoding, headers: &HeaderMap) -> Result<(), ApiError> {
    if encoding.is_base64_of_others() && is_sdks(headers) {
        return Err(ApiError::invalid(
            "OpenAI's client would read these numbers as float32: send `encoding_format` `float` in addition"
                .to_owned(),
        ));
    }
    Ok(())
}

/// Refuses token ids that `OpenAI`'s SDK sends, unless `accepted`: they are ids of `OpenAI`'s vocabulary, and
/// this model would answer them with vectors of other texts. Says once in the log that a client sends ids.
fn check_token_ids(inputs: &EmbedInputs, headers: &HeaderMap, accepted: bool) -> Result<(), ApiError> {
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    if !inputs.has_ids() {
        return Ok(());
    }
    if !accepted && is_sdks(headers) {
        return Err(ApiError::invalid(
            "`input` holds token ids of OpenAI's vocabulary, which this model does not have: send texts, in \
             LangChain's `OpenAIEmbeddings` with `check_embedding_ctx_length=False`; if the ids are this \
             model's, start the server with `--accept-openai-token-ids`"
                .to_owned(),
        ));
    }
    if !IS_SAID.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "a request on OpenAI's route sends token ids instead of texts; they are taken as ids of this \
             model's vocabulary (said once)"
        );
    }
    Ok(())
}

/// Embed texts or token ids, in `OpenAI`'s format. Only with an embedding model.
#[utoipa::path(post, path = "/v1/embeddings", operation_id = "openai_embed",
    tag = TAG, request_body = OpenAiBody,
    responses(
        (status = 200, description = "The vectors, in the order of the inputs", body = EmbeddingsBody),
        OpenAiErrors
    ))]
pub(crate) async fn embeddings(
    State(state): State<AppState>,
    headers: HeaderMap,
    ParsedBody(body, format): ParsedBody<OpenAiBody>,
) -> Result<Response, ApiError> {
    // Voyage's clients always send it.
    let is_voyages = body.truncation.is_some();
    let answer = answer_embeddings(&state, &headers, body, format).await;
    answer.map_err(|error| if is_voyages { error.in_shape(ErrorShape::Voyage) } else { error })
}

async fn answer_embeddings(
    state: &AppState,
    headers: &HeaderMap,
    body: OpenAiBody,
    format: BodyFormat,
) -> Result<Response, ApiError> {
    let model = &state.served().service.config().model;
    let (request, encoding) = body.split(model.prompts(), model.limits.max_input_length)?;
    check_base64(encoding, headers)?;
    check_token_ids(&request.inputs, headers, state.server.accept_openai_token_ids)?;
    let answer = state.served().service.embed_openai(request).await?;
    let tokens = answer.cost.tokens;
    let model = &state.served().info.served_model_name;
    Ok(respond(state, format, "v1/embeddings", answer, |vectors| {
        EmbeddingsBody::new(vectors, encoding, model, tokens)
    }))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::http::{inputs, testing::Server};
    use serde_json::{Value, json};
    use text_embeddings_core::tokenization::TruncationDirection;

    fn split(fields: Value) -> (EmbedRequest, VectorEncoding) {
        serde_json::from_value::<OpenAiBody>(fields).unwrap().split(Prompts::NONE, 600).unwrap()
    }

    #[test]
    fn a_task_is_a_prompt_or_a_use_of_the_vectors() {
        let prompts = ["code.query", "separation"].map(|name| (name.to_owned(), "p: ".to_owned()));
        let prompts = Prompts { named: prompts.into(), default: String::new() };
        for (fields, name, input_type) in [
            (json!({"task": "retrieval.query"}), None, Some(InputType::Query)),
            (json!({"task": "retrieval.passage"}), None, Some(InputType::Document)),
            (json!({"task": "nl2code.query"}), None, Some(InputType::Query)),
            (json!({"task": "code.query"}), Some("code.query"), None),
            (json!({"task": "separation"}), Some("separation"), None),
            (json!({"task": "classification"}), None, Some(InputType::Classification)),
            (json!({"task": "text-matching"}), None, None),
            (json!({"task": null}), None, None),
            (json!({"task": "retrieval.query", "prompt_name": "a"}), Some("a"), None),
            (json!({"task": "retrieval.query", "input_type": "document"}), None, Some(InputType::Document)),
        ] {
            let mut body = fields.clone();
            body["input"] = json!("a");
            let body: OpenAiBody = serde_json::from_value(body).unwrap();
            let (EmbedRequest { encoding, .. }, _) = body.split(&prompts, 600).unwrap();
            assert_eq!(
                (encoding.prompt_name.as_deref(), encoding.input_type),
                (name, input_type),
                "{fields}"
            );
        }
    }

    #[test]
    fn the_end_that_is_cut_has_the_words_of_several_servers() {
        let (left, right) = (TruncationDirection::Left, TruncationDirection::Right);
        for (fields, truncate, direction) in [
            (json!({"truncate": true}), Some(true), right),
            (json!({"truncate": false}), Some(false), right),
            (json!({"truncate": "NONE"}), Some(false), right),
            (json!({"truncate": "START"}), Some(true), left),
            (json!({"truncate": "END"}), Some(true), right),
            (json!({"truncate": null, "truncation": false}), Some(false), right),
            (json!({"truncate_prompt_tokens": -1}), Some(true), right),
            (json!({"truncate_prompt_tokens": 600, "truncate": false}), Some(false), right),
            (json!({"truncate_prompt_tokens": null, "late_chunking": false, "prompt": null}), None, right),
        ] {
            let mut body = fields.clone();
            body["input"] = json!("a");
            let (EmbedRequest { encoding, .. }, _) = split(body);
            assert_eq!((encoding.truncate, encoding.truncation_direction), (truncate, direction), "{fields}");
        }
    }

    #[test]
    fn a_body_has_openais_fields_and_defaults() {
        for (input, inputs) in inputs::tests::shapes() {
            let expected = EmbedRequest {
                inputs,
                encoding: EmbedEncoding::default(),
                normalize: true,
                dimensions: None,
            };
            assert_eq!(split(json!({ "input": input })), (expected, VectorEncoding::default()), "{input}");
        }
        let (request, format) = split(json!({
            "input": "a", "encoding_format": "base64", "dimensions": 3, "prompt_name": "query", "model": "m",
            "user": "u"
        }));
        assert_eq!(
            (request.dimensions, format),
            (Some(3), VectorEncoding::from_format(EncodingFormat::Base64))
        );
        assert_eq!(request.encoding.prompt_name.as_deref(), Some("query"));
        let (request, format) = split(
            json!({"input": "a", "encoding_format": "float", "dimensions": null, "model": null, "user": null}),
        );
        assert_eq!((request.dimensions, format), (None, VectorEncoding::from_format(EncodingFormat::Float)));
    }

    #[test]
    fn a_body_has_voyages_and_jinas_fields() {
        let (request, encoding) = split(json!({
            "input": ["a"], "output_dtype": "int8", "output_dimension": 2, "input_type": "document",
            "truncation": false, "encoding_format": "base64"
        }));
        assert_eq!((request.dimensions, request.encoding.truncate), (Some(2), Some(false)));
        assert_eq!(request.encoding.input_type, Some(InputType::Document));
        assert!(encoding.is_base64_of_others());
        let (request, encoding) = split(json!({
            "input": ["a"], "output_dtype": null, "input_type": null, "truncation": null,
            "encoding_format": null, "encoding_type": "ubinary"
        }));
        let expected = EmbedEncoding::default();
        assert_eq!(
            (request.encoding, encoding),
            (expected, VectorEncoding::from_format(EncodingFormat::Ubinary))
        );
    }

    #[tokio::test]
    async fn voyages_client_finds_its_sentence_and_no_object() {
        let server = Server::start_with("--model-type embedding").await;
        for body in [r#"{"input":[],"truncation":true}"#, r#"{"input":[],"truncation":false}"#] {
            let answer = server.post("/v1/embeddings", body, &[]).await;
            let body: Value = serde_json::from_str(&answer.body).unwrap();
            assert_eq!((answer.status, body.get("error")), (400, None), "{body}");
            assert!(body["detail"].as_str().unwrap().contains("empty"), "{body}");
            assert_eq!(body["detail"], body["message"]);
        }
    }

    #[tokio::test]
    async fn token_ids_from_openais_sdk_are_refused_unless_a_flag_accepts_them() {
        let sdk = [("X-Stainless-Lang", "python"), ("User-Agent", "OpenAI/Python 3.54.0")];
        let (server, accepting) = tokio::join!(
            Server::start_with("--model-type embedding"),
            Server::start_with("--model-type embedding --accept-openai-token-ids")
        );
        for input in [json!([57, 65]), json!([[57], [65]]), json!(["a", [57]])] {
            let body = json!({ "input": input }).to_string();
            let refused = server.post("/v1/embeddings", &body, &sdk).await;
            assert_eq!(refused.status, 422, "{body}");
            assert!(refused.body.contains("`check_embedding_ctx_length=False`"), "{}", refused.body);
            assert_eq!(server.post("/v1/embeddings", &body, &[]).await.status, 200, "{body}");
            assert_eq!(accepting.post("/v1/embeddings", &body, &sdk).await.status, 200, "{body}");
        }
        assert_eq!(server.post("/v1/embeddings", r#"{"input":"a"}"#, &sdk).await.status, 200);
    }
}
