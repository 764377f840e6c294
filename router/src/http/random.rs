//! Random bodies on every route: whatever a client sends, the server answers with an error and goes on.
//!
//! What must hold: no answer blames the server; every refusal has an error body of a known shape; no
//! connection is closed without an answer.

#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use axum::http::Method;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::Value;

use super::{routes::tests::paths, testing::Server};

/// The fields, each with values that some route takes.
const FIELDS: [(&str, &[&str]); 54] = [
    (
        "inputs",
        &[
            r#""a""#,
            "[1,2]",
            r#"["q","ZZ"]"#,
            r#"[["q","a"],["b"]]"#,
            r#"{"source_sentence":"a","sentences":["b"]}"#,
        ],
    ),
    ("input", &[r#""a""#, "[64]", r#"["a",[1]]"#, "[]"]),
    ("query", &[r#""q""#, r#""""#, r#""\ud83d\ude00""#]),
    ("text", &[r#""a""#, r#""""#]),
    ("texts", &[r#"["a","ZZ"]"#, "[]", r##"["#"]"##, r#"["%",""]"#]),
    ("ids", &["[1]", "[[1],[2,999999]]", "[]"]),
    ("truncate", &["true", "false", "null"]),
    ("truncation_direction", &[r#""Left""#, r#""right""#]),
    ("normalize", &["true", "false"]),
    ("dimensions", &["1", "3", "0", "1000000000000", "null"]),
    ("prompt_name", &["null", r#""query""#]),
    ("raw_scores", &["true", "false"]),
    ("return_text", &["true", "false"]),
    ("add_special_tokens", &["true", "false"]),
    ("skip_special_tokens", &["true", "false"]),
    ("encoding_format", &[r#""float""#, r#""base64""#]),
    ("parameters", &["null", "{}", r#"{"truncate":true}"#]),
    ("top_n", &["1", "0", "null"]),
    ("instruction", &[r#""Judge.""#, "null"]),
    ("chat_template_kwargs", &[r#"{"instruction":"i"}"#, "{}"]),
    (
        "instances",
        &[r#"[{"query":"q","texts":["a"]}]"#, r#"[{"inputs":["q","a"]},{"ids":[1]}]"#, "[]", "[[]]"],
    ),
    ("documents", &[r#"["a","ZZ"]"#, r#"[{"text":"Z"},"a"]"#, "[]", r#""a""#, r##"["#"]"##]),
    ("top_k", &["1", "0", "null"]),
    ("return_documents", &["true", "false", "null"]),
    ("return_input", &["true"]),
    ("rank_fields", &[r#"["text"]"#, r#"["title","text"]"#, "[]", "null"]),
    ("max_tokens_per_doc", &["1", "0", "null"]),
    ("max_tokens_per_query", &["1", "0"]),
    ("truncate_prompt_tokens", &["-1", "400", "1", "null"]),
    ("truncation_side", &[r#""left""#, r#""right""#]),
    ("truncation", &["true", "false"]),
    ("use_activation", &["true", "false"]),
    ("request_id", &[r#""r""#]),
    ("priority", &["0", "-3"]),
    ("cache_salt", &[r#""s""#]),
    ("mm_processor_kwargs", &["null", "{}"]),
    ("relevant_spans", &["null", "{}"]),
    ("queries", &[r#""q""#, r#"["q","ZZ"]"#, "[]"]),
    ("items", &[r#""a""#, r#"["a","ZZ"]"#]),
    ("text_1", &[r#""q""#, r#"["q"]"#]),
    ("text_2", &[r#""a""#, r#"["a","ZZ"]"#]),
    ("data_1", &[r#""q""#]),
    ("data_2", &[r#""a""#]),
    ("label_token_ids", &["[1,2]"]),
    ("source_sentence", &[r#""a""#]),
    ("model", &[r#""m""#, "1"]),
    ("user", &[r#""u""#]),
    ("input_type", &[r#""search_query""#, r#""document""#, r#""image""#, "null"]),
    ("embedding_types", &[r#"["float","int8"]"#, r#"["ubinary"]"#, "[]", "null"]),
    ("output_dimension", &["1", "3", "0", "null"]),
    ("output_dtype", &[r#""int8""#, r#""base64""#, "null"]),
    ("embedding_type", &[r#""binary""#, r#""base64""#, "null"]),
    ("images", &["null", "[]"]),
    ("max_tokens", &["null", "1"]),
];
const SCALARS: [&str; 17] = [
    "null",
    "true",
    "0",
    "-1",
    "1",
    "0.5",
    "-0.0",
    "1e308",
    "1e999",
    "4294967295",
    "4294967296",
    "18446744073709551615",
    "-9223372036854775808",
    r#""""#,
    r#""a""#,
    r#""<|im_end|>\u0000""#,
    r#""\ud83d\ude00""#,
];

/// Any value, as text. Not every value is JSON.
fn value(random: &mut StdRng, depth: usize) -> String {
    match random.random_range(0..if depth == 0 { 1 } else { 3 }) {
        0 => (*SCALARS.choose(random).unwrap()).to_owned(),
        1 => {
            let elements: Vec<_> = (0..random.random_range(0..5)).map(|_| value(random, depth - 1)).collect();
            format!("[{}]", elements.join(","))
        }
        _ => object(random, depth - 1),
    }
}

/// An object with known fields, most of them with values that some route takes.
fn object(random: &mut StdRng, depth: usize) -> String {
    let fields = (0..random.random_range(0..6)).map(|_| {
        let (name, usual) = FIELDS.choose(random).unwrap();
        let value = if random.random_bool(0.7) {
            (*usual.choose(random).unwrap()).to_owned()
        } else {
            value(random, depth)
        };
        format!(r#""{name}":{value}"#)
    });
    format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
}

/// A body: an object, sometimes with the fields that the route needs, sometimes damaged.
fn body(random: &mut StdRng, route: &str) -> Vec<u8> {
    let wanted = match route {
        "/rerank" => r#""query":"q","texts":["a","Z"],"#,
        _ if route.contains("rerank") => r#""query":"q","documents":["a",{"text":"Z"}],"#,
        _ if route.ends_with("score") => r#""queries":"q","documents":["a","Z"],"#,
        "/decode" => r#""ids":[1,2],"#,
        "/playground/prompt" => r#""query":"q","text":"a","#,
        "/vertex" => r#""instances":[{"query":"q","texts":["a"]}],"#,
        _ if route.ends_with("embeddings") => r#""input":"a","#,
        _ => r#""inputs":["q","a"],"#,
    };
    let mut text = object(random, 3);
    if random.random_bool(0.4) {
        text = format!("{{{wanted}{}", &text[1..]).replace(",}", "}");
    }
    let mut bytes = text.into_bytes();
    if random.random_bool(0.2) {
        let place = random.random_range(0..bytes.len());
        match random.random_range(0..3) {
            0 => bytes[place] = random.random(),
            1 => bytes.truncate(place),
            _ => bytes.insert(place, random.random()),
        }
    }
    bytes
}

/// Whether a body is an error of one of the shapes.
fn is_error(body: &str) -> bool {
    let error: Value = serde_json::from_str(body).unwrap_or_default();
    let is_text =
        |pointer| error.pointer(pointer).and_then(Value::as_str).is_some_and(|text| !text.is_empty());
    let kinds = ["Backend", "Validation", "Tokenizer", "Empty"];
    let is_kind =
        |pointer| error.pointer(pointer).and_then(Value::as_str).is_some_and(|kind| kinds.contains(&kind));
    (is_text("/error") && is_kind("/error_type"))
        || (is_text("/message") && (is_kind("/type") || is_text("/id") || is_text("/detail")))
        || (is_text("/error/message") && is_kind("/error/type"))
}

#[tokio::test]
async fn random_bodies_are_answered_or_refused_by_name() {
    let mut random = StdRng::from_os_rng();
    for kind in ["listwise-reranker", "embedding", "classifier"] {
        let server = Server::start_with(&format!("--model-type {kind}")).await;
        refused_by_name(&server, &mut random).await;
        assert_eq!(server.get("/health").await.status, 200);
        let answer = server.post("/tokenize", r#"{"inputs":"a"}"#, &[]).await;
        assert_eq!(
            (answer.status, answer.body.as_str()),
            (200, r#"[[{"id":64,"text":"a","special":false,"start":0,"stop":1}]]"#)
        );
    }
}

async fn refused_by_name(server: &Server, random: &mut StdRng) {
    let (mut answered, mut refused) = (0, 0);
    for round in 0..60 {
        for route in paths(Method::POST) {
            let body = body(random, route);
            let sent = String::from_utf8_lossy(&body).into_owned();
            let answer = server.send("POST", route, &body, &[("Content-Type", "application/json")]).await;
            let place = format!("round {round}: {route} {sent}: {} {}", answer.status, answer.body);
            if answer.status == 200 {
                answered += 1;
                continue;
            }
            refused += 1;
            assert!([400, 422, 424].contains(&answer.status), "{place}");
            assert!(is_error(&answer.body), "{place}");
        }
    }
    assert!(answered > 20 && refused > 200, "{answered} answered, {refused} refused");
}
