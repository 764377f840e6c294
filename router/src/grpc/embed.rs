//! `Embed`: texts to vectors.
//!
//! What must hold: a message means what the same fields mean over HTTP, except that `truncate` has no third state here:
//! absent is `false`, as in TEI.

use futures_util::TryFutureExt;
use text_embeddings_core::service::{
    Answer, EmbedAllRequest, EmbedEncoding, EmbedInput, EmbedRequest, EmbedSparseRequest, Service,
    SparseValue,
};
use text_embeddings_proto::v1::{self, embed_server::Embed};
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::{
    Grpc,
    error::status,
    stream::{Answers, without_headers},
    wire::{direction, metadata, number},
};
use crate::cost;

fn encoding(truncate: bool, side: i32, prompt_name: Option<String>) -> Result<EmbedEncoding, Status> {
    Ok(EmbedEncoding { truncate: Some(truncate), truncation_direction: direction(side)?, prompt_name })
}

/// The only one of a message's answers: a message holds one text.
fn only<T: Default>(answers: Vec<T>) -> T {
    answers.into_iter().next().unwrap_or_default()
}

async fn embed(service: Service, message: v1::EmbedRequest) -> Result<Answer<v1::EmbedResponse>, Status> {
    let request = EmbedRequest {
        encoding: encoding(message.truncate, message.truncation_direction, message.prompt_name)?,
        inputs: vec![EmbedInput::Text(message.inputs)],
        normalize: message.normalize.unwrap_or(true),
        dimensions: message.dimensions.map(|dimensions| dimensions as usize),
    };
    let Answer { value, cost } = service.embed(request).await.map_err(status)?;
    cost::log("tei.v1.Embed/Embed", &cost);
    let value = v1::EmbedResponse { embeddings: only(value), metadata: Some(metadata(&cost)) };
    Ok(Answer { value, cost })
}

async fn embed_all(
    service: Service,
    message: v1::EmbedAllRequest,
) -> Result<Answer<v1::EmbedAllResponse>, Status> {
    let request = EmbedAllRequest {
        encoding: encoding(message.truncate, message.truncation_direction, message.prompt_name)?,
        inputs: vec![EmbedInput::Text(message.inputs)],
    };
    let Answer { value, cost } = service.embed_all(request).await.map_err(status)?;
    cost::log("tei.v1.Embed/EmbedAll", &cost);
    let token = |embeddings| v1::TokenEmbedding { embeddings };
    let token_embeddings = only(value).into_iter().map(token).collect();
    Ok(Answer { value: v1::EmbedAllResponse { token_embeddings, metadata: Some(metadata(&cost)) }, cost })
}

async fn embed_sparse(
    service: Service,
    message: v1::EmbedSparseRequest,
) -> Result<Answer<v1::EmbedSparseResponse>, Status> {
    let request = EmbedSparseRequest {
        encoding: encoding(message.truncate, message.truncation_direction, message.prompt_name)?,
        inputs: vec![EmbedInput::Text(message.inputs)],
    };
    let Answer { value, cost } = service.embed_sparse(request).await.map_err(status)?;
    cost::log("tei.v1.Embed/EmbedSparse", &cost);
    let entry = |SparseValue { index, value }| v1::SparseValue { index: number(index), value };
    let sparse_embeddings = only(value).into_iter().map(entry).collect();
    Ok(Answer { value: v1::EmbedSparseResponse { sparse_embeddings, metadata: Some(metadata(&cost)) }, cost })
}

#[async_trait]
impl Embed for Grpc {
    type EmbedStreamStream = Answers<v1::EmbedResponse>;
    type EmbedSparseStreamStream = Answers<v1::EmbedSparseResponse>;
    type EmbedAllStreamStream = Answers<v1::EmbedAllResponse>;

    async fn embed(&self, request: Request<v1::EmbedRequest>) -> Result<Response<v1::EmbedResponse>, Status> {
        Ok(self.respond(embed(self.0.service.clone(), request.into_inner()).await?))
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
        Ok(self.respond(embed_sparse(self.0.service.clone(), request.into_inner()).await?))
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
        Ok(self.respond(embed_all(self.0.service.clone(), request.into_inner()).await?))
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

    #[tokio::test]
    async fn another_kind_of_model_says_so() {
        let server = Server::start().await;
        let mut client = EmbedClient::new(server.channel.clone());
        let expected = (Code::FailedPrecondition, "model is not an embedding model".to_owned());
        let (one, all, sparse) =
            (v1::EmbedRequest::default(), v1::EmbedAllRequest::default(), v1::EmbedSparseRequest::default());
        assert_eq!(refusal(client.embed(one.clone()).await), expected);
        assert_eq!(refusal(client.embed_all(all.clone()).await), expected);
        assert_eq!(refusal(client.embed_sparse(sparse.clone()).await), expected);
        let expected = Some(expected);
        assert_eq!(read(client.embed_stream(messages(vec![one; 3])).await).await.1, expected);
        assert_eq!(read(client.embed_all_stream(messages(vec![all; 3])).await).await.1, expected);
        assert_eq!(read(client.embed_sparse_stream(messages(vec![sparse; 3])).await).await.1, expected);
    }
}
