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
        let mut room = StreamBudget { left: self.0.server.payload_limit, limit: self.0.server.payload_limit };
        let Some(first) = messages.message().await? else {
            return Ok(v1::RerankRequest::default());
        };
        room.take(first.query.len() + first.text.len())?;
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
            room.take(message.text.len())?;
            whole.texts.push(message.text);
        }
        Ok(whole)
    }
}

fn rank_message(rank: Rank) -> v1::Rank {
    let highlights = rank.highlights.unwrap_or_default().into_iter();
    v1::Rank {
        index: number(rank.index),
        text: rank.text,
        score: rank.score,
        stage: rank.stage.map(u32::from),
        best_passage: rank.best_passage.map(passage_message),
        highlights: highlights.map(highlight_message).collect(),
    }
}

fn highlight_message(Highlight { passage, score }: Highlight) -> v1::Highlight {
    v1::Highlight { passage: Some(passage_message(passage)), score }
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

/// The bytes of text that a stream may still bring: `left` of `limit`.
struct StreamBudget {
    left: usize,
    limit: usize,
}

impl StreamBudget {
    fn take(&mut self, bytes: usize) -> Result<(), Status> {
        let limit = self.limit;
        self.left = self.left.checked_sub(bytes).ok_or_else(|| {
            refuse(Status::out_of_range(format!(
                "the messages of the stream have more than {} of text: send less, or raise \
                 `--payload-limit`",
                amount(limit, "byte")
            )))
        })?;
        Ok(())
    }
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
    use crate::grpc::testing::{Server, messages, refusal};
    use text_embeddings_proto::v1::rerank_client::RerankClient;
    use tonic::Code;

    fn message(texts: &[&str]) -> v1::RerankRequest {
        let texts = texts.iter().map(ToString::to_string).collect();
        v1::RerankRequest { query: "q".to_owned(), texts, truncate: true, ..v1::RerankRequest::default() }
    }

    fn part(text: &str) -> v1::RerankStreamRequest {
        let (query, text) = ("q".to_owned(), text.to_owned());
        v1::RerankStreamRequest { query, text, truncate: true, ..v1::RerankStreamRequest::default() }
    }

    fn ranks(answer: &v1::RerankResponse) -> Vec<(u32, f32, Option<&str>)> {
        answer.ranks.iter().map(|rank| (rank.index, rank.score, rank.text.as_deref())).collect()
    }

    #[tokio::test]
    async fn texts_come_back_best_first_in_one_message_or_many() {
        let server = Server::start().await;
        let mut client = RerankClient::new(server.channel.clone());
        let expected = [(1, 0.731_058_6, None), (2, 0.5, None), (0, 0.268_941_43, None)];
        assert_eq!(ranks(client.rerank(message(&["", "ZZ", "Z"])).await.unwrap().get_ref()), expected);
        let parts = ["", "ZZ", "Z"].map(part).to_vec();
        assert_eq!(ranks(client.rerank_stream(messages(parts)).await.unwrap().get_ref()), expected);

        let asked = v1::RerankRequest {
            raw_scores: true,
            return_text: true,
            instruction: Some("Z".to_owned()),
            top_n: Some(2),
            ..message(&["a", "ZZ", "Z"])
        };
        let expected = [(1, 2.0, Some("ZZ")), (2, 1.0, Some("Z"))];
        assert_eq!(ranks(client.rerank(asked).await.unwrap().get_ref()), expected);
        let first = v1::RerankStreamRequest {
            raw_scores: true,
            return_text: true,
            instruction: Some("Z".to_owned()),
            top_n: Some(2),
            ..part("a")
        };
        // Only the texts of later messages count.
        let parts = vec![first, part("ZZ"), v1::RerankStreamRequest { truncate: false, ..part("Z") }];
        assert_eq!(ranks(client.rerank_stream(messages(parts)).await.unwrap().get_ref()), expected);
    }

    #[tokio::test]
    async fn texts_below_the_least_score_are_left_out() {
        let server = Server::start().await;
        let mut client = RerankClient::new(server.channel.clone());
        let asked = v1::RerankRequest { min_score: Some(0.5), ..message(&["", "ZZ", "Z"]) };
        let first = v1::RerankStreamRequest { min_score: Some(0.5), ..part("") };
        let one = client.rerank(asked).await.unwrap();
        let many = client.rerank_stream(messages(vec![first, part("ZZ"), part("Z")])).await.unwrap();
        for answer in [one, many] {
            assert_eq!(ranks(answer.get_ref()), [(1, 0.731_058_6, None), (2, 0.5, None)]);
            assert_eq!(answer.metadata().get("x-dropped-texts").unwrap(), "1");
            assert_eq!(answer.get_ref().metadata.unwrap().dropped_texts, Some(1));
        }
        let plain = client.rerank(message(&["", "ZZ"])).await.unwrap();
        assert_eq!(plain.get_ref().metadata.unwrap().dropped_texts, None);
        let refused = client.rerank(v1::RerankRequest { min_score: Some(f32::NAN), ..message(&["a"]) }).await;
        let expected = "Input validation error: `min_score` must be a finite number. Given: NaN";
        assert_eq!(refusal(refused), (Code::InvalidArgument, expected.to_owned()));
    }

    #[tokio::test]
    async fn long_texts_are_divided_and_sentences_marked_in_one_message_or_many() {
        let server = Server::start().await;
        let mut client = RerankClient::new(server.channel.clone());
        // Each letter is a token; about 380 fit next to the query.
        let long = format!("{}. 😀 {}. Two ZZ.", "A".repeat(300), "B".repeat(300));
        let chunking = |max_chunks_per_doc| Some(v1::Chunking { max_chunks_per_doc, chunk_overlap: 0 });
        for (chunking, raw, place) in [
            (None, -1.0, None),
            (chunking(None), 1.0, Some((302, 613))),
            (chunking(Some(1)), -1.0, Some((0, 301))),
        ] {
            let asked =
                v1::RerankRequest { chunking, raw_scores: true, return_text: true, ..message(&[&long]) };
            let parts =
                v1::RerankStreamRequest { chunking, raw_scores: true, return_text: true, ..part(&long) };
            let one = client.rerank(asked).await.unwrap();
            let many = client.rerank_stream(messages(vec![parts])).await.unwrap();
            for answer in [one, many] {
                let cut = if place.is_some_and(|(start, _)| start > 0) { "0" } else { "1" };
                assert_eq!(answer.metadata().get("x-truncated-texts").unwrap(), cut);
                let rank = &answer.get_ref().ranks[0];
                let passage = rank.best_passage.clone();
                assert_eq!(
                    (rank.score, passage.as_ref().map(|it| (it.start as usize, it.end as usize))),
                    (raw, place)
                );
                let text = place.map(|(start, end)| long.chars().skip(start).take(end - start).collect());
                assert_eq!(passage.and_then(|passage| passage.text), text);
            }
        }
        let asked = v1::RerankRequest { highlight: 1, ..message(&["x", "One Z here. Two ZZ there!"]) };
        let first = v1::RerankStreamRequest { highlight: 1, ..part("x") };
        let one = client.rerank(asked).await.unwrap();
        let many =
            client.rerank_stream(messages(vec![first, part("One Z here. Two ZZ there!")])).await.unwrap();
        for answer in [one, many] {
            let [best, last] = answer.get_ref().ranks.as_slice() else { unreachable!("{answer:?}") };
            assert!(last.highlights.is_empty());
            let highlight = |start, end, score| {
                let passage = Some(v1::Passage { start, end, text: None });
                v1::Highlight { passage, score }
            };
            assert_eq!(best.highlights, [highlight(0, 11, 0.5), highlight(12, 25, 0.731_058_6)]);
        }
        let refused =
            client.rerank(v1::RerankRequest { chunking: chunking(Some(0)), ..message(&["a"]) }).await;
        let expected = "Input validation error: `max_chunks_per_doc` must be at least 1. Given: 0";
        assert_eq!(refusal(refused), (Code::InvalidArgument, expected.to_owned()));
    }

    #[tokio::test]
    async fn the_cost_is_in_the_answer_and_its_metadata() {
        let server = Server::start().await;
        let long = "b".repeat(1000);
        let mut client = RerankClient::new(server.channel.clone());
        let answer =
            client.rerank(v1::RerankRequest { query: "qq".to_owned(), ..message(&["a", &long]) }).await;
        let answer = answer.unwrap();
        let key = |name| answer.metadata().get(name).unwrap().to_str().unwrap();
        assert_eq!(
            (key("x-compute-type"), key("x-compute-characters"), key("x-truncated-texts")),
            ("cpu", "1005", "1")
        );
        let cost = answer.get_ref().metadata.unwrap();
        assert_eq!(
            (cost.compute_chars, cost.compute_tokens.to_string()),
            (1005, key("x-compute-tokens").to_owned())
        );
        assert!(cost.compute_tokens > 600, "{cost:?}");
        let times = [
            ("x-compute-time", cost.total_time_ns),
            ("x-total-time", cost.total_time_ns),
            ("x-tokenization-time", cost.tokenization_time_ns),
            ("x-queue-time", cost.queue_time_ns),
            ("x-inference-time", cost.inference_time_ns),
        ];
        for (name, nanoseconds) in times {
            assert_eq!(key(name), (nanoseconds / 1_000_000).to_string(), "{name}");
        }
        assert!(cost.total_time_ns >= cost.tokenization_time_ns.max(cost.inference_time_ns), "{cost:?}");
    }

    #[tokio::test]
    async fn each_error_has_its_code_and_message_and_the_server_goes_on() {
        let server = Server::start().await;
        let mut client = RerankClient::new(server.channel.clone());
        let nan = "Backend error: the model's answer is NaN or infinite: its weights or its arithmetic are broken; `--dtype float32` rules the latter out";
        let long = "a".repeat(700);
        let uncut = v1::RerankRequest { truncate: false, ..message(&[&long]) };
        let table = [
            (message(&[]), Code::InvalidArgument, "`texts` cannot be empty"),
            (
                v1::RerankRequest { query: String::new(), ..message(&["a"]) },
                Code::InvalidArgument,
                "`query` cannot be empty",
            ),
            (
                message(&["a"; 9]),
                Code::InvalidArgument,
                "batch size 9 > maximum allowed batch size 8; `--max-client-batch-size`, for re-ranking `--max-rerank-texts`, sets the maximum",
            ),
            (
                uncut,
                Code::InvalidArgument,
                "Input validation error: `inputs` must have less than 600 tokens. Given: 920; 600 fit",
            ),
            (
                v1::RerankRequest { truncation_direction: 2, ..message(&["a"]) },
                Code::InvalidArgument,
                "`truncation_direction` 2 is unknown: give 0 (right) or 1 (left)",
            ),
            (
                v1::RerankRequest { truncation_direction: -1, ..message(&["a"]) },
                Code::InvalidArgument,
                "`truncation_direction` -1 is unknown: give 0 (right) or 1 (left)",
            ),
            (
                message(&["a", "#"]),
                Code::FailedPrecondition,
                "Backend error: inference failed: the test wants it",
            ),
            (message(&["a", "%"]), Code::FailedPrecondition, nan),
        ];
        for (request, code, expected) in table {
            assert_eq!(
                refusal(client.rerank(request.clone()).await),
                (code, expected.to_owned()),
                "{request:?}"
            );
            assert_eq!(client.rerank(message(&["a"])).await.unwrap().into_inner().ranks.len(), 1);
        }
    }

    #[tokio::test]
    async fn streams_that_cannot_be_ranked_are_refused() {
        let server = Server::start().await;
        let mut client = RerankClient::new(server.channel.clone());
        let other = |change: fn(&mut v1::RerankStreamRequest)| {
            let mut changed = part("b");
            change(&mut changed);
            vec![part("a"), part("a"), changed, part("c")]
        };
        let table = [
            (vec![], Code::InvalidArgument, "`texts` cannot be empty"),
            (
                vec![v1::RerankStreamRequest { truncation_direction: 7, ..part("a") }],
                Code::InvalidArgument,
                "`truncation_direction` 7 is unknown: give 0 (right) or 1 (left)",
            ),
            (
                other(|message| message.query = "r".to_owned()),
                Code::InvalidArgument,
                "`query` must be the same in every message of the stream: that of message 2 differs",
            ),
            (
                other(|message| message.truncation_direction = 1),
                Code::InvalidArgument,
                "`truncation_direction` must be the same in every message of the stream: that of message 2 differs",
            ),
            (
                vec![part("a"); 9],
                Code::InvalidArgument,
                "batch size 9 > maximum allowed batch size 8; `--max-client-batch-size`, for re-ranking `--max-rerank-texts`, sets the maximum",
            ),
            (
                vec![part(&"a".repeat(50_000)); 2],
                Code::OutOfRange,
                "the messages of the stream have more than 100000 bytes of text: send less, or raise `--payload-limit`",
            ),
        ];
        for (parts, code, expected) in table {
            assert_eq!(refusal(client.rerank_stream(messages(parts)).await), (code, expected.to_owned()));
        }
        let parts = vec![part("a"), part("ZZ")];
        assert_eq!(client.rerank_stream(messages(parts)).await.unwrap().into_inner().ranks.len(), 2);
    }

    #[tokio::test]
    async fn a_stream_without_an_end_is_refused_at_the_first_text_too_many() {
        let server = Server::start().await;
        let endless = futures_util::stream::repeat(part("a"));
        let answer = RerankClient::new(server.channel.clone()).rerank_stream(endless).await;
        let expected = "batch size 9 > maximum allowed batch size 8; `--max-client-batch-size`, for re-ranking `--max-rerank-texts`, sets the maximum".to_owned();
        assert_eq!(refusal(answer), (Code::InvalidArgument, expected));
    }
}
