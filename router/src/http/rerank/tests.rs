//! Every dialect over a real socket: what its clients send, and what they read.
//!
//! The bodies are those that the clients' own code or documentation sends. A prompt's raw score is the number of `Z`s in
//! it less one, as `crate::testing` says.

#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
use serde_json::{Value, json};

use crate::http::testing::{Answer, Server};

/// The paths of the first version's dialects.
const FIRST: [&str; 6] = ["/rerank", "/v1/rerank", "/reranking", "/v1/reranking", "/", "/invocations"];
const ALL: [&str; 7] =
    ["/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking", "/", "/invocations"];

async fn ask(server: &Server, path: &str, body: &Value) -> Answer {
    server.post(path, &body.to_string(), &[]).await
}

fn read(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.body);
    serde_json::from_str(&answer.body).unwrap()
}

/// The answer without its id, which differs each time.
fn without_id(mut answer: Value) -> Value {
    let id = answer.as_object_mut().unwrap().remove("id");
    assert!(id.is_some_and(|id| id.as_str().is_some_and(|id| id.len() >= 32)), "{answer}");
    answer
}

#[tokio::test]
async fn documents_are_answered_as_cohere_jina_and_the_servers_of_their_kind_answer() {
    let server = Server::start_with("--served-model-name tiny").await;
    let body = json!({"model": "rerank-v3.5", "query": "q", "documents": ["", "ZZ", "Z"], "top_n": 2});
    for path in FIRST {
        let answer = ask(&server, path, &body).await;
        let tokens: u64 = answer.header("x-compute-tokens").unwrap().parse().unwrap();
        let expected = json!({
            "object": "list",
            "model": "tiny",
            "results": [{"index": 1, "relevance_score": 0.731_058_6}, {"index": 2, "relevance_score": 0.5}],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "meta": {
                "api_version": {"version": "1"}, "billed_units": {"search_units": 1},
                "tokens": {"input_tokens": tokens, "output_tokens": 0}
            }
        });
        assert_eq!(without_id(read(&answer)), expected, "{path}");
    }
    let answer = ask(&server, "/v2/rerank", &body).await;
    let tokens: u64 = answer.header("x-compute-tokens").unwrap().parse().unwrap();
    let expected = json!({
        "results": [{"index": 1, "relevance_score": 0.731_058_6}, {"index": 2, "relevance_score": 0.5}],
        "meta": {
            "api_version": {"version": "2"}, "billed_units": {"search_units": 1},
            "tokens": {"input_tokens": tokens, "output_tokens": 0}
        }
    });
    assert_eq!(without_id(read(&answer)), expected);
}

#[tokio::test]
async fn mixedbread_and_voyage_find_what_their_clients_read() {
    let server = Server::start_with("--served-model-name tiny").await;
    let body = json!({"model": "mxbai", "query": {"text": "q"}, "input": ["", {"text": "ZZ", "n": 1}, "Z"], "top_k": 2, "return_input": true});
    for path in ALL {
        let mut answer = read(&ask(&server, path, &body).await);
        assert!(answer["usage"].take()["prompt_tokens"].is_u64());
        let expected = json!({
            "object": "list", "model": "tiny", "usage": null, "top_k": 2, "return_input": true,
            "data": [
                {"index": 1, "score": 0.731_058_6, "input": {"text": "ZZ", "n": 1}, "object": "text_document"},
                {"index": 2, "score": 0.5, "input": "Z", "object": "text_document"},
            ],
        });
        assert_eq!(answer, expected, "{path}");
    }
    for more in [json!({"truncation": true}), json!({"top_k": 1}), json!({"truncation": false, "top_k": 1})] {
        let mut body =
            json!({"model": "rerank-2", "query": "q", "documents": ["ZZ"], "return_documents": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = read(&ask(&server, "/v1/rerank", &body).await);
        assert_eq!(answer["data"], json!([{"index": 0, "relevance_score": 0.731_058_6, "document": "ZZ"}]));
        assert_eq!(answer["results"][0]["document"], json!({"text": "ZZ"}));
        assert_eq!(answer["object"], "list");
    }
}

#[tokio::test]
async fn a_document_comes_back_as_it_was_sent_and_only_if_that_was_asked_for() {
    let server = Server::start().await;
    let documents = json!(["ZZ", {"text": "Z", "title": "t", "n": [1, null]}]);
    for path in ["/rerank", "/v2/rerank"] {
        for (asked, is_there) in [(json!(true), true), (json!(false), false), (json!(null), false)] {
            let body = json!({"query": "q", "documents": documents, "return_documents": asked});
            let answer = read(&ask(&server, path, &body).await);
            let echoed = |index: usize| answer["results"][index].get("document").cloned();
            let expected = [json!({"text": "ZZ"}), documents[1].clone()].map(|echo| is_there.then_some(echo));
            assert_eq!([echoed(0), echoed(1)], expected, "{path} {asked}");
        }
    }
}
