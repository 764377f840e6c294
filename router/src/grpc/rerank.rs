//! `Rerank`: one query, many texts, best first.
//!
//! Input: all texts in one message, or one in each message of a stream. Output: one answer. What must hold:
//! both ways give the same ranks; a stream keeps at most as much as a single message may hold; `truncate`
//! cannot be absent: the default is `false`, as in TEI.

use text_embeddings_backend_core::amount;
use text_embeddings_core::{
    service::{Chunking, Highlight, Passage, Rank, RerankRequest},
    tokenization::TokenLimits,
};
use text_embeddings_proto::v1::{self, rerank_server::Rerank};
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::{
    Grpc,
    error::{invalid, refuse},
    wire::{answered, direction, number},
};

impl Grpc {
    async fn rank(
        &self,
        method: &'static str,
        message: v1::RerankRequest,
    ) -> Result<Response<v1::RerankResponse>, Status> {
        let request = RerankRequest {
            query: message.query,
            texts: message.texts,
            instruction: message.instruction,
            truncate: Some(message.truncate),
            truncation_direction: direction(message.truncation_direction)?,
            limits: TokenLimits::NONE,
            raw_scores: message.raw_scores,
            return_text: message.return_text,
            top_n: message.top_n.map(|top_n| top_n as usize),
            min_score: message.min_score,
            chunking: message.chunking.map(|chunking| Chunking {
                max_chunks: chunking.max_chunks_per_doc.map_or(Chunking::MAX_CHUNKS, |count| count as usize),
                overlap: chunking.chunk_overlap as usize,
            }),
            highlight: message.highlight as usize,
        };
        let answer = self.0.served().service.rerank(request).await;
        let answer = answered(method, answer, |ranks: Vec<Rank>, metadata| v1::RerankResponse {
            ranks: ranks.into_iter().map(rank_message).collect(),
            metadata,
        })?;
        Ok(self.respond(answer))
    }

    /// All messages as one. Reading ends at the first text too many, and the service then refuses the
    /// request.
    async fn collect(
        &self,
        mut messages: Streaming<v1::RerankStreamRequest>,
    ) -> Result<v1::RerankRequest, Status> {
        let max_texts = self.0.served().service.config().max_rerank_texts;
        let limit = self.0.server.payload_limit;
        let Some(first) = messages.message().await? else {
            return Ok(v1::RerankRequest::default());
        };
        let mut left = take_bytes(limit, first.query.len() + first.text.len(), limit)?;
        let mut whole = v1::RerankRequest {
            query: first.query,
            texts: vec![first.text],
            truncate: first.truncate,
            raw_scores: first.raw_scores,
            return_text: first.return_text,
            truncation_direction: first.truncation_direction,
            instruction: first.instruction,
            top_n: first.top_n,
            min_score: first.min_score,
            chunking: first.chunking,
            highlight: first.highlight,
        };
        while whole.texts.len() <= max_texts {
            let Some(message) = messages.message().await? else { break };
            check_same(&whole, &message)?;
            left = take_bytes(left, message.text.len(), limit)?;
            whole.texts.push(message.text);
        }
        Ok(whole)
    }
}

fn rank_message(rank: Rank) -> v1::Rank {
    let highlights = rank.highlights.unwrap_or_default().into_iter();
    let highlights = highlights
        .map(|Highlight { passage, score }| v1::Highlight { passage: Some(passage_message(passage)), score });
    v1::Rank {
        index: number(rank.index),
        text: rank.text,
        score: rank.score,
        stage: rank.stage.map(u32::from),
        best_passage: rank.best_passage.map(passage_message),
        highlights: highlights.collect(),
    }
}

fn passage_message(Passage { start, end, text }: Passage) -> v1::Passage {
    v1::Passage { start: number(start), end: number(end), text }
}

/// Refuses a message whose query or direction differs from the messages before: they get one answer together.
fn check_same(whole: &v1::RerankRequest, message: &v1::RerankStreamRequest) -> Result<(), Status> {
    let place = whole.texts.len();
    let differs = |field| {
        invalid(format!(
            "`{field}` must be the same in every message of the stream: that of message {place} differs"
        ))
    };
    if message.query != whole.query {
        return Err(differs("query"));
    }
    if message.truncation_direction != whole.truncation_direction {
        return Err(differs("truncation_direction"));
    }
    Ok(())
}

/// The bytes of text that a stream may still bring after these, of `limit`.
fn take_bytes(left: usize, bytes: usize, limit: usize) -> Result<usize, Status> {
    left.checked_sub(bytes).ok_or_else(|| {
        refuse(Status::out_of_range(format!(
            "the messages of the stream have more than {} of text: send less, or raise `--payload-limit`",
            amount(limit, "byte")
        )))
    })
}

#[async_trait]
impl Rerank for Grpc {
    async fn rerank(
        &self,
        request: Request<v1::RerankRequest>,
    ) -> Result<Response<v1::RerankResponse>, Status> {
        self.rank("tei.v1.Rerank/Rerank", request.into_inner()).await
    }

    async fn rerank_stream(
        &self,
        requests: Request<Streaming<v1::RerankStreamRequest>>,
    ) -> Result<Response<v1::RerankResponse>, Status> {
        let message = self.collect(requests.into_inner()).await?;
        self.rank("tei.v1.Rerank/RerankStream", message).await
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::grpc::testing::{Server, refusal};
    use text_embeddings_proto::v1::rerank_client::RerankClient;
    use tonic::Code;

    fn message(texts: &[&str]) -> v1::RerankRequest {
        let texts = texts.iter().map(ToString::to_string).collect();
        v1::RerankRequest { query: "q".to_owned(), texts, truncate: true, ..v1::RerankRequest::default() }
    }

    #[tokio::test]
    async fn each_error_has_its_code_and_message_and_the_server_goes_on() {
        let server = Server::start().await;
        let mut client = RerankClient::new(server.channel.clone());
        let nan = "Backend error: the model's answer is NaN or infinite: its weights or its arithmetic are broken; `--dtype float32` rules the latter out";
        let table = [
            (
                message(&["a", "#"]),
                Code::FailedPrecondition,
                "Backend error: inference failed: the test wants it",
            ),
            (message(&["a", "%"]), Code::FailedPrecondition, nan),
        ];
        for (request, code, expected) in table {
            assert_eq!(refusal(client.rerank(request).await), (code, expected.to_owned()));
            assert_eq!(client.rerank(message(&["a"])).await.unwrap().into_inner().ranks.len(), 1);
        }
    }
}
