//! Every dialect over a real socket: what its clients send, and what they read.
//!
//! The bodies are those that the clients' own code or documentation sends. A prompt's raw score is the number
//! of `Z`s in it less one, as `crate::testing` says.

#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
use serde_json::{Map, Value, json};

use super::dialect::Dialect;
use crate::http::{
    extract::DecodedBody,
    format::BodyFormat,
    testing::{Server, WireAnswer},
};

/// The paths on which `documents` are answered as by the dialects' first versions.
const FIRST: [&str; 7] =
    ["/rerank", "/v1/rerank", "/reranking", "/v1/reranking", "/v1/ranking", "/", "/invocations"];
const ALL: [&str; 8] = [
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
    "/reranking",
    "/v1/reranking",
    "/v1/ranking",
    "/",
    "/invocations",
];

async fn ask(server: &Server, path: &str, body: &Value) -> WireAnswer {
    server.post(path, &body.to_string(), &[]).await
}

fn read(answer: &WireAnswer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.body);
    serde_json::from_str(&answer.body).unwrap()
}

/// `first` with the fields of `second`.
fn with(first: &Value, second: &Value) -> Value {
    let fields = |value: &Value| value.as_object().unwrap().clone();
    fields(first).into_iter().chain(fields(second)).collect::<Map<_, _>>().into()
}

/// The answer without its id, which differs each time.
fn without_id(mut answer: Value) -> Value {
    let id = answer.as_object_mut().unwrap().remove("id");
    assert!(id.is_some_and(|id| id.as_str().is_some_and(|id| id.len() >= 32)), "{answer}");
    answer
}

fn tokens(answer: &WireAnswer) -> u64 {
    answer.header("x-compute-tokens").unwrap().parse().unwrap()
}

#[tokio::test]
async fn documents_are_answered_as_cohere_jina_and_the_servers_of_their_kind_answer() {
    let server = Server::start_with("--served-model-name tiny").await;
    let body = json!({"model": "rerank-v3.5", "query": "q", "documents": ["", "ZZ", "Z"], "top_n": 2});
    let results = json!([{"index": 1, "relevance_score": 0.731_058_6}, {"index": 2, "relevance_score": 0.5}]);
    let meta = |version, tokens| {
        json!({
            "api_version": {"version": version}, "billed_units": {"search_units": 1},
            "tokens": {"input_tokens": tokens, "output_tokens": 0}
        })
    };
    for path in FIRST {
        let answer = ask(&server, path, &body).await;
        let tokens = tokens(&answer);
        let expected = json!({
            "object": "list", "model": "tiny", "results": results, "meta": meta("1", tokens),
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        });
        assert_eq!(without_id(read(&answer)), expected, "{path}");
    }
    let answer = ask(&server, "/v2/rerank", &body).await;
    let expected = json!({"results": results, "meta": meta("2", tokens(&answer))});
    assert_eq!(without_id(read(&answer)), expected);
}

#[tokio::test]
async fn every_dialect_leaves_out_texts_below_the_least_score() {
    let (server, strict) = (Server::start().await, Server::start_with("--min-score 0.6").await);
    let texts = json!(["", "ZZ", "Z"]);
    let indices = |answer: &Value| -> Vec<u64> {
        let names = ["results", "data", "rankings"];
        let ranks = names.iter().find_map(|name| answer.get(name)).unwrap_or(answer).as_array().unwrap();
        ranks.iter().map(|rank| rank["index"].as_u64().unwrap()).collect()
    };
    for field in Dialect::ALL.map(Dialect::texts_field) {
        for path in ALL {
            // NIM's scores would be raw by default.
            let body = json!({"query": "q", field: texts, "raw_scores": false});
            for (asked, expected, dropped) in [
                (json!({}), &[1, 2, 0][..], None),
                (json!({"min_score": null}), &[1, 2, 0], None),
                (json!({"min_score": 0.5}), &[1, 2], Some("1")),
                (json!({"min_score": 0.731_058_6, "top_n": 2}), &[1], Some("2")),
                (json!({"min_score": 0.4, "top_n": 1}), &[1], Some("1")),
                (json!({"min_score": 0, "raw_scores": true}), &[1, 2], Some("1")),
                (json!({"min_score": 9}), &[], Some("3")),
            ] {
                let answer = ask(&server, path, &with(&body, &asked)).await;
                assert_eq!(indices(&read(&answer)), expected, "{path} {field} {asked}");
                assert_eq!(answer.header("x-dropped-texts"), dropped, "{path} {field} {asked}");
            }
            let answer = ask(&strict, path, &body).await;
            assert_eq!((indices(&read(&answer)), answer.header("x-dropped-texts")), (vec![1], Some("2")));
            let answer = ask(&strict, path, &with(&body, &json!({"min_score": -1}))).await;
            assert_eq!(
                (indices(&read(&answer)), answer.header("x-dropped-texts")),
                (vec![1, 2, 0], Some("0"))
            );
            let refused = ask(&server, path, &with(&body, &json!({"min_score": 1e39}))).await;
            assert!(refused.status == 422 && refused.body.contains("`min_score` must be a finite number"));
        }
    }
    let body = json!({"text_1": "q", "text_2": ["a"], "min_score": 0.5});
    let refused = ask(&server, "/score", &body).await;
    assert!(
        refused.status == 422 && refused.body.contains("`min_score` is for re-ranking"),
        "{}",
        refused.body
    );
    let info: Value = serde_json::from_str(&strict.get("/info").await.body).unwrap();
    assert!((info["min_score"].as_f64().unwrap() - 0.6).abs() < 1e-6);
}

#[tokio::test]
async fn mixedbread_and_voyage_find_what_their_clients_read() {
    let server = Server::start_with("--served-model-name tiny").await;
    let body = json!({
        "model": "mxbai", "query": {"text": "q"}, "input": ["", {"text": "ZZ", "n": 1}, "Z"], "top_k": 2,
        "return_input": true
    });
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
    let body = json!({"model": "rerank-2", "query": "q", "documents": ["ZZ", "a"], "return_documents": true});
    for (more, count) in [
        (json!({"truncation": true, "top_k": null}), 2),
        (json!({"top_k": 1}), 1),
        (json!({"truncation": false, "top_k": 1}), 1),
    ] {
        let answer = read(&ask(&server, "/v1/rerank", &with(&body, &more)).await);
        let data = [(0, 0.731_058_6, "ZZ"), (1, 0.268_941_43, "a")];
        let data = data.map(|(index, score, document)| {
            json!({"index": index, "relevance_score": score, "document": document})
        });
        assert_eq!(answer["data"], json!(data[..count]), "{more}");
        assert_eq!(answer["results"][0]["document"], json!({"text": "ZZ"}));
        assert_eq!((&answer["object"], &answer["model"]), (&json!("list"), &json!("tiny")));
        assert!(answer["usage"]["total_tokens"].is_u64());
    }
    let answer = read(&ask(&server, "/v1/rerank", &with(&body, &json!({"top_k": 1, "top_n": 2}))).await);
    assert_eq!((answer["results"].as_array().unwrap().len(), answer.get("data")), (2, None));
}

#[tokio::test]
async fn nims_clients_get_logits_and_an_error_for_what_would_be_cut() {
    let server = Server::start().await;
    let body = json!({
        "model": "nvidia/any", "query": {"text": "q"}, "passages": [{"text": ""}, {"text": "ZZ"}, {"text": "Z"}]
    });
    for path in ALL {
        let answer = ask(&server, path, &body).await;
        let tokens = tokens(&answer);
        let rankings =
            [(1, 1.0), (2, 0.0), (0, -1.0)].map(|(index, logit)| json!({"index": index, "logit": logit}));
        let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
        assert_eq!(read(&answer), json!({"rankings": rankings, "usage": usage}), "{path}");
    }
    for (options, best) in [
        (json!({"top_n": 1}), json!([{"index": 1, "logit": 1.0}])),
        (json!({"top_k": 1}), json!([{"index": 1, "logit": 1.0}])),
        (json!({"top_n": 1, "raw_scores": false}), json!([{"index": 1, "logit": 0.731_058_6}])),
        (json!({"top_n": 1, "use_activation": true}), json!([{"index": 1, "logit": 0.731_058_6}])),
        (
            json!({"top_n": 1, "return_documents": true}),
            json!([{"index": 1, "logit": 1.0, "document": {"text": "ZZ"}}]),
        ),
    ] {
        let answer = ask(&server, "/v1/ranking", &with(&body, &options)).await;
        assert_eq!(read(&answer)["rankings"], best, "{options}");
    }
    let too_long = "`passages` is too long: a prompt has 920 tokens, and may have 600; send less, or have it cut with `truncate`";
    let image = "`passages[1]` has an `image`, which is not supported: only text is ranked";
    let long = json!([{"text": "Z".repeat(700)}]);
    for (options, refusal) in [
        (json!({"passages": long}), Some(too_long)),
        (json!({"passages": long, "truncate": "NONE"}), Some(too_long)),
        (json!({"passages": long, "truncate": "END"}), None),
        (json!({"passages": long, "truncation": true}), None),
        (json!({"passages": long, "truncate_prompt_tokens": -1}), None),
        (json!({"passages": long, "max_tokens_per_doc": 10}), None),
        (json!({"passages": long, "long_documents": "chunks"}), None),
        (json!({"passages": [{"text": "a"}, {"text": "a", "image": "data:image/png;base64,"}]}), Some(image)),
        (json!({"passages": [{"text": "a", "image": null, "content": "b"}]}), None),
    ] {
        let answer = ask(&server, "/v1/ranking", &with(&body, &options)).await;
        assert_eq!(answer.status, if refusal.is_some() { 422 } else { 200 }, "{options} {}", answer.body);
        if let Some(message) = refusal {
            assert_eq!(answer.body, format!(r#"{{"message":"{message}","detail":"{message}"}}"#));
        }
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
    let body = json!({"query": "q", "documents": "ZZ", "return_documents": true});
    let answer = read(&ask(&server, "/rerank", &body).await);
    assert_eq!(
        answer["results"],
        json!([{"index": 0, "relevance_score": 0.731_058_6, "document": {"text": "ZZ"}}])
    );
}

#[tokio::test]
async fn of_an_object_the_named_fields_are_ranked_as_lines_in_their_order() {
    let server = Server::start().await;
    let object = json!({"text": "tZ", "title": "a", "n": 2, "list": ["Z", null], "none": null, "Z": "b\nc"});
    for (fields, text) in [
        (json!(null), "tZ"),
        (json!([]), "tZ"),
        (json!(["text"]), "tZ"),
        (json!(["title"]), "title: a"),
        (json!(["title", "text"]), "title: a\ntext: tZ"),
        (json!(["text", "missing", "none", "title"]), "text: tZ\ntitle: a"),
        (json!(["n", "list", "Z"]), "n: 2\nlist: [\"Z\",null]\nZ: b\nc"),
    ] {
        let options = json!({"query": "q", "rank_fields": fields, "raw_scores": true});
        let of_object = ask(&server, "/rerank", &with(&options, &json!({"documents": [object]}))).await;
        let of_text = ask(&server, "/rerank", &with(&options, &json!({"documents": [text]}))).await;
        assert_eq!(read(&of_object)["results"], read(&of_text)["results"], "{fields}");
        // Each byte is a token, so both texts have the same length and number of `Z`s.
        assert_eq!(tokens(&of_object), tokens(&of_text), "{fields}");
    }
    let body = json!({"query": "q", "documents": [{"text": "t", "image": "x"}]});
    assert_eq!(ask(&server, "/rerank", &body).await.status, 200);
}

#[tokio::test]
async fn a_short_body_cannot_ask_for_a_long_text() {
    let server = Server::start().await;
    let ask = async |documents: Value, fields: Value| {
        let body = json!({"query": "q", "documents": documents, "rank_fields": fields});
        let answer = ask(&server, "/rerank", &body).await;
        (answer.status, answer.body)
    };
    let (status, message) = ask(json!([{"b": "y"}]), json!(vec!["b"; 10_000])).await;
    assert_eq!(status, 422);
    assert!(message.contains("`rank_fields[1]` names a field that it named before"), "{message}");
    // Each number is sent in 4 bytes and written in 18. The limit of the body is 100000 bytes.
    let numbers = |count: usize| json!([{"b": vec![json!(1e15); count], "c": ""}]);
    let body = numbers(7_000).to_string().replace("1000000000000000.0", "1e15");
    let text = format!(r#"{{"query": "q", "documents": {body}, "rank_fields": ["b", "c"]}}"#);
    assert!(text.len() < 100_000);
    let answer = server.post("/rerank", &text, &[]).await;
    assert_eq!(answer.status, 422, "{}", answer.body);
    assert!(
        answer.body.contains(
            "`documents[0]` is too much: the texts that are ranked of objects have more than 100000 bytes"
        ),
        "{}",
        answer.body
    );
    assert_eq!(ask(numbers(10), json!(["b"])).await.0, 200);
    // Many names cost no more than the documents' own fields.
    let names: Vec<String> = (0..5000).map(|name| name.to_string()).collect();
    assert_eq!(ask(json!(vec![json!({"7": "a", "b": "c"}); 8]), json!(names)).await.0, 200);
}

#[tokio::test]
async fn the_limits_of_each_dialect_cut_what_they_name() {
    let server = Server::start().await;
    let whole = read(&ask(&server, "/rerank", &json!({"query": "q", "documents": ["a"]})).await);
    // Template, instruction and the two letters.
    let frame = whole["usage"]["prompt_tokens"].as_u64().unwrap() - 2;
    let document = "ZaZZ";
    for (options, raw, cut) in [
        (json!({}), 4.0, 0),
        (json!({"max_tokens_per_doc": 0, "max_tokens_per_query": 0, "truncate_prompt_tokens": -1}), 4.0, 0),
        (json!({"max_tokens_per_doc": 2}), 2.0, 2),
        (json!({"max_tokens_per_doc": 2, "truncation_side": "left"}), 3.0, 2),
        (json!({"max_tokens_per_doc": 2, "truncation_direction": "Left"}), 3.0, 2),
        (json!({"max_tokens_per_doc": 2, "truncate": "START"}), 3.0, 2),
        (json!({"max_tokens_per_doc": 2, "truncate": "START", "truncation_side": "right"}), 2.0, 2),
        (json!({"max_tokens_per_doc": 2, "truncate": "NONE"}), 2.0, 2),
        (
            json!({"max_tokens_per_doc": 2, "truncation_side": "right", "truncation_direction": "Left"}),
            2.0,
            2,
        ),
        (json!({"max_tokens_per_doc": 4, "truncate": false}), 4.0, 0),
        (json!({"max_tokens_per_doc": 1, "truncate": false}), 2.0, 3),
        (json!({"max_tokens_per_query": 1}), 3.0, 1),
        (json!({"max_tokens_per_query": 1, "max_tokens_per_doc": 1}), 1.0, 4),
        (json!({"truncate_prompt_tokens": frame + 6}), 4.0, 0),
        (json!({"truncate_prompt_tokens": frame + 5}), 3.0, 1),
        (json!({"truncate_prompt_tokens": frame + 1, "truncate": false}), 0.0, 5),
    ] {
        let documents = with(&options, &json!({"query": "ZZ", "documents": [document], "raw_scores": true}));
        let pair = with(&options, &json!({"text_1": "ZZ", "text_2": document, "raw_scores": true}));
        for (path, body, score) in [
            ("/rerank", &documents, "/results/0/relevance_score"),
            ("/v2/rerank", &documents, "/results/0/relevance_score"),
            ("/score", &pair, "/data/0/score"),
        ] {
            let answer = ask(&server, path, body).await;
            // Both `Z`s of the query, one less.
            assert_eq!(read(&answer).pointer(score).unwrap().as_f64(), Some(raw), "{path} {body}");
            assert_eq!(tokens(&answer), frame + 6 - cut, "{path} {body}");
            assert_eq!(answer.header("x-truncated-texts"), Some(if cut == 0 { "0" } else { "1" }));
        }
    }
    let long = "Z".repeat(700);
    for (options, status) in [
        (json!({}), 200),
        (json!({"truncate": false}), 422),
        (json!({"truncation": false}), 422),
        (json!({"truncate": "NONE"}), 422),
        (json!({"truncate": "END"}), 200),
        (json!({"truncate": true, "truncation": false}), 200),
        (json!({"truncate_prompt_tokens": -1}), 200),
        (json!({"truncate_prompt_tokens": 100_000}), 200),
        (json!({"truncation": false, "max_tokens_per_doc": 10}), 200),
    ] {
        let body = with(&options, &json!({"query": "q", "documents": [long]}));
        let answer = ask(&server, "/v1/rerank", &body).await;
        assert_eq!(answer.status, status, "{options} {}", answer.body);
        if status == 422 {
            let message = "`documents` is too long: a prompt has 920 tokens, and may have 600; send less, or have it cut with `truncate`";
            assert_eq!(answer.body, format!(r#"{{"message":"{message}","detail":"{message}"}}"#));
        }
    }
}

#[tokio::test]
async fn a_null_field_of_another_dialect_is_as_if_it_were_absent() {
    let server = Server::start().await;
    for (path, body, nulls) in [
        ("/rerank", json!({"query": "q", "texts": ["a"]}), json!({"documents": null, "input": null})),
        ("/v2/rerank", json!({"query": "q", "documents": ["a"]}), json!({"input": null, "texts": null})),
        ("/rerank", json!({"query": "q", "input": ["a"], "top_k": null}), json!({"documents": null})),
        ("/v1/ranking", json!({"query": "q", "passages": ["a"]}), json!({"documents": null, "input": null})),
        ("/score", json!({"queries": "q", "documents": ["a"]}), json!({"items": null, "text_1": null})),
    ] {
        let mut padded = nulls.as_object().unwrap().clone();
        padded.extend(body.as_object().unwrap().clone());
        let [plain, padded] = [body.to_string(), Value::from(padded).to_string()];
        let (plain, padded) = (server.post(path, &plain, &[]).await, server.post(path, &padded, &[]).await);
        assert_eq!((plain.status, padded.status), (200, 200), "{}", padded.body);
        assert_eq!(plain.body.len(), padded.body.len(), "{}", padded.body);
    }
    // A field that is needed, and a mistake elsewhere, are still named.
    for (body, part) in [
        (json!({"query": "q", "documents": null}), "invalid type: null"),
        (json!({"query": "q", "documents": [3], "input": null}), "has both `documents` and `input`"),
    ] {
        let answer = ask(&server, "/rerank", &body).await;
        assert!(answer.status == 422 && answer.body.contains(part), "{}", answer.body);
    }
}

/// An error in a dialect's shape, with null for the id.
fn said(words: &str, message: &str, kind: &str, status: u16) -> Value {
    match words {
        "tei" => json!({"error": message, "error_type": kind}),
        "cohere" => json!({"id": null, "message": message}),
        "message" => json!({"message": message, "detail": message}),
        "nested" => {
            json!({"error": {"message": message, "type": kind, "param": null, "code": status}})
        }
        other => unreachable!("{other}"),
    }
}

#[tokio::test]
async fn each_error_is_said_in_the_words_of_its_dialect() {
    let server = Server::start_with("--max-concurrent-requests 1").await;
    let fields = [
        ("texts", ["tei"; 7]),
        ("documents", ["nested", "message", "cohere", "nested", "nested", "message", "nested"]),
        ("input", ["message"; 7]),
        ("passages", ["message"; 7]),
    ];
    let paths = ["/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking", "/v1/ranking", "/"];
    let nan = "the model's answer is NaN or infinite: its weights or its arithmetic are broken; `--dtype float32` rules the latter out";
    for (field, words) in fields {
        for (path, words) in paths.into_iter().zip(words) {
            let cases = [
                (json!({"query": "q", field: []}), 400, format!("`{field}` cannot be empty"), "Empty"),
                (json!({"query": " ", field: ["a"]}), 400, "`query` cannot be empty".to_owned(), "Empty"),
                (
                    json!({"query": "q", field: vec!["a"; 9]}),
                    422,
                    "batch size 9 > maximum allowed batch size 8; `--max-client-batch-size`, for re-ranking `--max-rerank-texts`, sets the maximum".to_owned(),
                    "Validation",
                ),
                (
                    json!({"query": "q", field: ["#"]}),
                    424,
                    "inference failed: the test wants it".to_owned(),
                    "Backend",
                ),
                (json!({"query": "q", field: ["%"]}), 424, nan.to_owned(), "Backend"),
            ];
            for (body, status, message, kind) in cases {
                let is_prefixed = words == "tei" && kind == "Backend";
                let message = if is_prefixed { format!("Backend error: {message}") } else { message };
                let answer = ask(&server, path, &body).await;
                let mut found: Value = serde_json::from_str(&answer.body).unwrap();
                if let Some(id) = found.get_mut("id") {
                    assert_eq!(id.take().as_str().unwrap().len(), 36);
                }
                assert_eq!(
                    (answer.status, found),
                    (status, said(words, &message, kind, status)),
                    "{path} {body}"
                );
            }
            let body = json!({"query": "q", field: ["a"]});
            server.control.hold(true);
            let batches = server.control.seen();
            let refused = async {
                server.control.batches(batches + 1).await;
                let refused = ask(&server, path, &body).await;
                server.control.hold(false);
                refused
            };
            let (first, refused) = tokio::join!(ask(&server, path, &body), refused);
            assert_eq!((first.status, refused.status, refused.header("retry-after")), (200, 429, Some("1")));
            let mut found: Value = serde_json::from_str(&refused.body).unwrap();
            if let Some(id) = found.get_mut("id") {
                id.take();
            }
            assert_eq!(found, said(words, "Model is overloaded", "Overloaded", 429));
        }
    }
}

#[tokio::test]
async fn what_is_refused_before_its_body_is_read_is_said_in_the_words_of_its_path() {
    let server = Server::start_with("--api-key k").await;
    let key = ("Authorization", "Bearer k");
    let long = vec![b' '; 200_000];
    for (path, words) in [
        ("/rerank", "tei"),
        ("/v1/rerank", "message"),
        ("/v2/rerank", "cohere"),
        ("/reranking", "nested"),
        ("/v1/reranking", "nested"),
        ("/v1/ranking", "message"),
        ("/score", "nested"),
        ("/v1/score", "nested"),
    ] {
        let cases = [
            ("POST", &b"{}"[..], &[][..], 401),
            ("GET", b"", &[key], 405),
            ("POST", &long, &[key], 413),
            ("POST", b"{}", &[key, ("Content-Type", "text/plain")], 415),
            ("POST", b"{\"query\":", &[key], 400),
        ];
        for (method, body, headers, status) in cases {
            let answer = server.send(method, path, body, headers).await;
            let body: Map<String, Value> = serde_json::from_str(&answer.body).unwrap();
            let names: Vec<&str> = body.keys().map(String::as_str).collect();
            let expected: &[&str] = match words {
                "tei" => &["error", "error_type"],
                "message" => &["detail", "message"],
                "cohere" => &["id", "message"],
                _ => &["error"],
            };
            assert_eq!((answer.status, &names[..]), (status, expected), "{path} {method}");
            assert_eq!(words == "nested", body.get("error").is_some_and(Value::is_object), "{path}");
            let has = |name| answer.header(name).is_some();
            assert_eq!((has("allow"), has("www-authenticate")), (status == 405, status == 401), "{path}");
        }
    }
}

#[test]
fn a_body_is_read_once() {
    let texts = json!({"query": "q", "texts": ["a"], "truncate": true});
    let documents = json!({"documents": ["a", {"text": "b"}], "query": {"text": "q"}, "instruction": "i"});
    let input = json!({"query": "q", "model": "m", "input": ["a"], "top_k": 1});
    let passages = json!({"query": {"text": "q"}, "passages": [{"text": "a"}], "truncate": "END"});
    for (body, dialect) in [
        (texts, Dialect::Texts),
        (documents, Dialect::Documents),
        (input, Dialect::Input),
        (passages, Dialect::Passages),
    ] {
        for format in [BodyFormat::Json, BodyFormat::MessagePack] {
            let bytes = match format {
                BodyFormat::Json => body.to_string().into_bytes(),
                BodyFormat::MessagePack => rmp_serde::to_vec_named(&body).unwrap(),
            };
            let unread = DecodedBody::new(bytes, format).ok().unwrap();
            let read = super::read_and_build(&unread, 100).ok().unwrap();
            assert_eq!((read.found, read.body.is_ok()), (dialect, true), "{body}");
            assert_eq!(unread.readings.into_inner(), 1, "{body}");
        }
    }
}

#[tokio::test]
async fn an_answers_id_is_the_requests_if_it_has_one() {
    let server = Server::start().await;
    for (path, body) in [
        ("/rerank", json!({"query": "q", "documents": ["a"], "request_id": "mine"})),
        ("/v2/rerank", json!({"query": "q", "documents": ["a"], "request_id": "mine"})),
        ("/score", json!({"queries": "q", "items": ["a"], "request_id": "mine"})),
    ] {
        assert_eq!(read(&ask(&server, path, &body).await)["id"], "mine", "{path}");
    }
    let body = json!({"query": "q", "documents": ["a"]});
    let [first, second] =
        [ask(&server, "/rerank", &body).await, ask(&server, "/rerank", &body).await].map(|it| read(&it));
    assert_ne!(first["id"], second["id"]);
}
