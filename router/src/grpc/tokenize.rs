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

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::grpc::testing::{Server, messages, read, refusal};
    use text_embeddings_proto::v1::tokenize_client::TokenizeClient;
    use tonic::Code;

    fn text(inputs: &str) -> v1::EncodeRequest {
        v1::EncodeRequest { inputs: inputs.to_owned(), ..v1::EncodeRequest::default() }
    }

    fn ids(ids: &[u32]) -> v1::DecodeRequest {
        v1::DecodeRequest { ids: ids.to_vec(), skip_special_tokens: false }
    }

    fn token(id: u32, text: &str, start: u32, stop: u32) -> v1::SimpleToken {
        let (start, stop) = (Some(start), Some(stop));
        v1::SimpleToken { id, text: text.to_owned(), special: false, start, stop }
    }

    #[tokio::test]
    async fn texts_become_tokens() {
        let server = Server::start().await;
        let mut client = TokenizeClient::new(server.channel.clone());
        let expected = [vec![token(127, "é", 0, 2), token(102, "é", 0, 2), token(257, "<|im_end|>", 2, 12)]];
        let answer = client.tokenize(text("é<|im_end|>")).await.unwrap().into_inner();
        assert_eq!(answer.tokens, expected[0]);
        let (answers, end) =
            read(client.tokenize_stream(messages(vec![text("é<|im_end|>"), text("")])).await).await;
        assert_eq!(answers.into_iter().map(|answer| answer.tokens).collect::<Vec<_>>(), expected);
        let empty = (Code::InvalidArgument, "Input validation error: `inputs` cannot be empty".to_owned());
        assert_eq!(end, Some(empty.clone()));
        assert_eq!(refusal(client.tokenize(text("")).await), empty);
    }

    #[tokio::test]
    async fn ids_become_texts() {
        let server = Server::start().await;
        let mut client = TokenizeClient::new(server.channel.clone());
        assert_eq!(client.decode(ids(&[33, 256])).await.unwrap().into_inner().text, "B<|im_start|>");
        let plain = v1::DecodeRequest { skip_special_tokens: true, ..ids(&[33, 256]) };
        let (answers, end) =
            read(client.decode_stream(messages(vec![plain, ids(&[32]), ids(&[])])).await).await;
        assert_eq!(answers.into_iter().map(|answer| answer.text).collect::<Vec<_>>(), ["B", "A"]);
        let empty = (Code::InvalidArgument, "Input validation error: `input_ids` cannot be empty".to_owned());
        assert_eq!(end, Some(empty.clone()));
        assert_eq!(refusal(client.decode(ids(&[])).await), empty);
        let unknown = v1::EncodeRequest { prompt_name: Some("query".to_owned()), ..text("a") };
        let expected = "Input validation error: `default-prompt-name` is set to `query` but no prompts were found in the Sentence Transformers configuration. The name is the request's `prompt_name`";
        assert_eq!(refusal(client.tokenize(unknown).await), (Code::InvalidArgument, expected.to_owned()));
    }
}
