//! `Tokenize`: texts to tokens and back.
//!
//! What must hold: `add_special_tokens` and `skip_special_tokens` cannot be absent: the default is `false`,
//! as in TEI.

use text_embeddings_core::service::{DecodeRequest, Service, Token, TokenizeRequest};
use text_embeddings_proto::v1::{self, tokenize_server::Tokenize};
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::{Grpc, error::status, stream::AnswerStream, wire::number};

async fn encode(service: Service, message: v1::EncodeRequest) -> Result<v1::EncodeResponse, Status> {
    let v1::EncodeRequest { inputs, add_special_tokens, prompt_name } = message;
    let request = TokenizeRequest { inputs: vec![inputs], is_batch: false, add_special_tokens, prompt_name };
    let texts = service.tokenize(request).await.map_err(status)?;
    // One text has one list of tokens.
    Ok(v1::EncodeResponse {
        tokens: texts
            .into_iter()
            .flatten()
            .map(|Token { id, text, special, start, stop }| v1::SimpleToken {
                id,
                text,
                special,
                start: start.map(number),
                stop: stop.map(number),
            })
            .collect(),
    })
}

async fn decode(service: Service, message: v1::DecodeRequest) -> Result<v1::DecodeResponse, Status> {
    let v1::DecodeRequest { ids, skip_special_tokens } = message;
    let request = DecodeRequest { ids: vec![ids], is_batch: false, skip_special_tokens };
    let texts = service.decode(request).await.map_err(status)?;
    Ok(v1::DecodeResponse { text: texts.concat() })
}

#[async_trait]
impl Tokenize for Grpc {
    type TokenizeStreamStream = AnswerStream<v1::EncodeResponse>;
    type DecodeStreamStream = AnswerStream<v1::DecodeResponse>;

    async fn tokenize(
        &self,
        request: Request<v1::EncodeRequest>,
    ) -> Result<Response<v1::EncodeResponse>, Status> {
        encode(self.0.served().service.clone(), request.into_inner()).await.map(Response::new)
    }

    async fn tokenize_stream(
        &self,
        requests: Request<Streaming<v1::EncodeRequest>>,
    ) -> Result<Response<Self::TokenizeStreamStream>, Status> {
        Ok(self.stream(requests, encode))
    }

    async fn decode(
        &self,
        request: Request<v1::DecodeRequest>,
    ) -> Result<Response<v1::DecodeResponse>, Status> {
        decode(self.0.served().service.clone(), request.into_inner()).await.map(Response::new)
    }

    async fn decode_stream(
        &self,
        requests: Request<Streaming<v1::DecodeRequest>>,
    ) -> Result<Response<Self::DecodeStreamStream>, Status> {
        Ok(self.stream(requests, decode))
    }
}
