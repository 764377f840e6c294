//! Random bodies on every route: whatever a client sends, the server says what is wrong and goes on.
//!
//! What must hold: no answer is a fault of the server's; every refusal has an error body of its route's kind; no
//! connection is closed without an answer.

#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Map, Value};

use super::{POST_ROUTES, testing::Server};

/// Each field with values that some route takes for it.
const FIELDS: [(&str, &[&str]); 23] = [
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
    ("input", &[r#""a""#, "[3]", r#"["a",[1]]"#, "[]"]),
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
    ("model", &[r#""m""#, "1"]),
    ("user", &[r#""u""#]),
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

/// Any value, as text: not all of them are JSON.
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

/// An object with known fields, most of which hold what they should.
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

/// A body: an object, sometimes with the field that the route wants, sometimes damaged.
fn body(random: &mut StdRng, route: &str) -> Vec<u8> {
    let wanted = match route {
        "/rerank" => r#""query":"q","texts":["a","Z"],"#,
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
        for route in POST_ROUTES {
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
            let error: Map<String, Value> = serde_json::from_str(&answer.body).unwrap_or_default();
            let (text, kind) =
                if route.ends_with("embeddings") { ("message", "type") } else { ("error", "error_type") };
            assert!(error.get(text).and_then(Value::as_str).is_some_and(|text| !text.is_empty()), "{place}");
            let kinds = ["Backend", "Validation", "Tokenizer", "Empty"];
            assert!(error[kind].as_str().is_some_and(|kind| kinds.contains(&kind)), "{place}");
        }
    }
    assert!(answered > 20 && refused > 200, "{answered} answered, {refused} refused");
}
