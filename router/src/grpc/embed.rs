//! `Embed`: texts to vectors.
//!
//! What must hold: a field means the same as over HTTP, except that `truncate` cannot be absent: the default
//! is `false`, as in TEI.

use futures_util::TryFutureExt;
use text_embeddings_backend_core::{SparseValue, Wanted};
use text_embeddings_core::service::{
    Answer, EmbedEncoding, EmbedInput, EmbedInputs, EmbedOutputs, EmbedRequest, Service,
};
use text_embeddings_proto::v1::{self, embed_server::Embed};
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::{
    Grpc,
    error::invalid,
    stream::{AnswerStream, without_headers},
    wire::{answered, direction},
};
use crate::vector_numbers::{NEEDS_UNIT_LENGTH, NumberType, VectorNumbers};

fn encoding(truncate: bool, side: i32, prompt_name: Option<String>) -> Result<EmbedEncoding, Status> {
    Ok(EmbedEncoding {
        truncate: Some(truncate),
        truncation_direction: direction(side)?,
        prompt_name,
        input_type: None,
    })
}

/// The answer to the only text of a message.
fn only<T: Default>(answers: Vec<T>) -> T {
    answers.into_iter().next().unwrap_or_default()
}

/// The type of numbers that a message names.
fn number_type(number: i32) -> Result<NumberType, Status> {
    match v1::NumberType::try_from(number) {
        Ok(v1::NumberType::Float) => Ok(NumberType::Float),
        Ok(v1::NumberType::Float16) => Ok(NumberType::Float16),
        Ok(v1::NumberType::Int8) => Ok(NumberType::Int8),
        Ok(v1::NumberType::Uint8) => Ok(NumberType::Uint8),
        Ok(v1::NumberType::Binary) => Ok(NumberType::Binary),
        Ok(v1::NumberType::Ubinary) => Ok(NumberType::Ubinary),
        Err(_) => Err(invalid(format!("`number_type` {number} is unknown: give a number from 0 to 5"))),
    }
}

/// A vector as a message has it: floats in a field of their own, other numbers as bytes.
struct WireVector {
    floats: Vec<f32>,
    bytes: Vec<u8>,
}

impl WireVector {
    fn new(vector: Vec<f32>, numbers: NumberType) -> Self {
        match numbers.convert_vector(vector) {
            VectorNumbers::Float(floats) => Self { floats, bytes: Vec::new() },
            others => Self { floats: Vec::new(), bytes: others.into_bytes() },
        }
    }
}

async fn embed(service: Service, message: v1::EmbedRequest) -> Result<Answer<v1::EmbedResponse>, Status> {
    let numbers = number_type(message.number_type)?;
    let normalize = message.normalize.unwrap_or(true);
    if numbers.needs_unit_length() && !normalize {
        return Err(invalid(format!("Input validation error: {NEEDS_UNIT_LENGTH}")));
    }
    let request = EmbedRequest {
        encoding: encoding(message.truncate, message.truncation_direction, message.prompt_name)?,
        inputs: EmbedInputs::single(EmbedInput::Text(message.inputs)),
        normalize,
        dimensions: message.dimensions.map(|dimensions| dimensions as usize),
    };
    answered("tei.v1.Embed/Embed", service.embed_vectors(request).await, |vectors, metadata| {
        let WireVector { floats, bytes } = WireVector::new(only(vectors), numbers);
        v1::EmbedResponse { embeddings: floats, metadata, encoded: bytes }
    })
}

/// The outputs that a message names, or the vectors of the tokens if it names none.
fn wanted(outputs: &[i32]) -> Result<Wanted, Status> {
    let mut wanted = if outputs.is_empty() { Wanted::TOKENS } else { Wanted::default() };
    for output in outputs {
        match v1::EmbedOutput::try_from(*output) {
            Ok(v1::EmbedOutput::Tokens) => wanted.tokens = true,
            Ok(v1::EmbedOutput::Dense) => wanted.whole = true,
            Ok(v1::EmbedOutput::Sparse) => wanted.sparse = true,
            Err(_) => {
                return Err(invalid(format!(
                    "`outputs` must be 0 (tokens), 1 (dense) or 2 (sparse). Given: {output}"
                )));
            }
        }
    }
    Ok(wanted)
}

async fn embed_all(
    service: Service,
    message: v1::EmbedAllRequest,
) -> Result<Answer<v1::EmbedAllResponse>, Status> {
    let numbers = number_type(message.number_type)?;
    let request = EmbedRequest {
        encoding: encoding(message.truncate, message.truncation_direction, message.prompt_name)?,
        inputs: EmbedInputs::single(EmbedInput::Text(message.inputs)),
        normalize: message.normalize || numbers.needs_unit_length(),
        dimensions: message.dimensions.map(|dimensions| dimensions as usize),
    };
    let outputs = wanted(&message.outputs)?;
    answered("tei.v1.Embed/EmbedAll", service.embed(request, outputs).await, |outputs, metadata| {
        let EmbedOutputs { dense, sparse, tokens } = only(outputs);
        let tokens = tokens.unwrap_or_default().into_iter().map(|vector| WireVector::new(vector, numbers));
        let WireVector { floats, bytes } = WireVector::new(dense.unwrap_or_default(), numbers);
        v1::EmbedAllResponse {
            token_embeddings: tokens
                .map(|WireVector { floats, bytes }| v1::TokenEmbedding { embeddings: floats, encoded: bytes })
                .collect(),
            metadata,
            embeddings: floats,
            encoded: bytes,
            sparse_embeddings: sparse.unwrap_or_default().into_iter().map(sparse_value).collect(),
        }
    })
}

fn sparse_value(SparseValue { index, value }: SparseValue) -> v1::SparseValue {
    v1::SparseValue { index, value }
}

async fn embed_sparse(
    service: Service,
    message: v1::EmbedSparseRequest,
) -> Result<Answer<v1::EmbedSparseResponse>, Status> {
    let request = EmbedRequest {
        encoding: encoding(message.truncate, message.truncation_direction, message.prompt_name)?,
        inputs: EmbedInputs::single(EmbedInput::Text(message.inputs)),
        normalize: false,
        dimensions: None,
    };
    answered("tei.v1.Embed/EmbedSparse", service.embed_sparse(request).await, |vectors, metadata| {
        let sparse_embeddings = only(vectors).into_iter().map(sparse_value).collect();
        v1::EmbedSparseResponse { sparse_embeddings, metadata }
    })
}

#[async_trait]
impl Embed for Grpc {
    type EmbedStreamStream = AnswerStream<v1::EmbedResponse>;
    type EmbedSparseStreamStream = AnswerStream<v1::EmbedSparseResponse>;
    type EmbedAllStreamStream = AnswerStream<v1::EmbedAllResponse>;

    async fn embed(&self, request: Request<v1::EmbedRequest>) -> Result<Response<v1::EmbedResponse>, Status> {
        Ok(self.respond(embed(self.0.served().service.clone(), request.into_inner()).await?))
    }

    async fn embed_stream(
        &self,
        requests: Request<Streaming<v1::EmbedRequest>>,
    ) -> Result<Response<Self::EmbedStreamStream>, Status> {
        Ok(self.stream(requests, |service, message| embed(service, message).map_ok(without_headers)))
    }

    async fn embed_sparse(
        &self,
        request: Request<v1::EmbedSparseRequest>,
    ) -> Result<Response<v1::EmbedSparseResponse>, Status> {
        Ok(self.respond(embed_sparse(self.0.served().service.clone(), request.into_inner()).await?))
    }

    async fn embed_sparse_stream(
        &self,
        requests: Request<Streaming<v1::EmbedSparseRequest>>,
    ) -> Result<Response<Self::EmbedSparseStreamStream>, Status> {
        Ok(self.stream(requests, |service, message| embed_sparse(service, message).map_ok(without_headers)))
    }

    async fn embed_all(
        &self,
        request: Request<v1::EmbedAllRequest>,
    ) -> Result<Response<v1::EmbedAllResponse>, Status> {
        Ok(self.respond(embed_all(self.0.served().service.clone(), request.into_inner()).await?))
    }

    async fn embed_all_stream(
        &self,
        requests: Request<Streaming<v1::EmbedAllRequest>>,
    ) -> Result<Response<Self::EmbedAllStreamStream>, Status> {
        Ok(self.stream(requests, |service, message| embed_all(service, message).map_ok(without_headers)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::testing::{Server, messages, read, refusal};
    use text_embeddings_proto::v1::embed_client::EmbedClient;
    use tonic::Code;

    fn text(inputs: &str) -> v1::EmbedRequest {
        v1::EmbedRequest { inputs: inputs.to_owned(), normalize: Some(false), ..v1::EmbedRequest::default() }
    }

    #[tokio::test]
    async fn a_stream_answers_in_order_up_to_the_first_error() {
        let server = Server::start_with("--model-type embedding").await;
        let mut client = EmbedClient::new(server.channel.clone());
        let sent: Vec<_> = (1..60).map(|count| text(&"Z".repeat(count))).collect();
        let (answers, end) = read(client.embed_stream(messages(sent)).await).await;
        let lengths: Vec<f32> = answers.iter().map(|answer| answer.embeddings[2]).collect();
        assert_eq!((lengths, end), ((1..60).map(|count| count as f32).collect(), None));

        // Texts that share a batch with a text that fails also fail.
        let failed =
            (Code::FailedPrecondition, "Backend error: inference failed: the test wants it".to_owned());
        assert_eq!(refusal(client.embed(text("#")).await), failed);
        let sent = vec![text("Z"), text("#"), text("Z")];
        assert_eq!(read(client.embed_stream(messages(sent)).await).await.1, Some(failed));
    }
}
