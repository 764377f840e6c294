//! Tests of both dialects: prompts against the reference, answers byte for byte, and each refusal.

#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use text_embeddings_backend_core::{BackendKind, WeightChoices};
use text_embeddings_core::{
    files::{HubOptions, ModelFolder, ModelSource, Reader, load},
    model::{Decider, LengthFlags, Model, ModelFlags, RequestedType},
    service::{Decision, DecisionText, QuestionKind},
    tokenization::{Input, PairText, TokenLimits, Truncation, TruncationDirection},
};
use tokenizers::Tokenizer;

use super::{
    BuiltDecisions, Checked, DecisionDialect, DecodedBody,
    answers::{DecisionsAnswer, SystemOneAnswer},
    read_and_build,
};
use crate::http::{error::ApiError, format::BodyFormat, json::JsonText, testing::Server};

fn read_json(body: &str) -> Result<Checked<DecisionDialect, BuiltDecisions>, ApiError> {
    read_and_build(&DecodedBody::new(body.as_bytes().to_vec(), BodyFormat::Json).unwrap())
}

fn built_request(body: &Value) -> BuiltDecisions {
    read_json(&body.to_string()).unwrap().body.unwrap()
}

fn mistake_in(body: &str) -> String {
    match read_json(body) {
        Ok(Checked { body: Ok(_), .. }) => unreachable!("it is a request: {body}"),
        Ok(Checked { body: Err(error), .. }) | Err(error) => error.message().to_owned(),
    }
}

fn decider_fixtures() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../integration_tests/reference/fixtures/deciders"))
}

/// Bytes as a number in hexadecimal digits.
struct BigEndian<'a>(&'a [u8]);

impl fmt::LowerHex for BigEndian<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

/// A file with the answers of the reference.
#[derive(Deserialize)]
struct Expected {
    #[serde(default)]
    options: usize,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    /// As text: a map would sort the questions and options.
    body: JsonText,
    answers: BTreeMap<String, Value>,
}

const UNCUT: Truncation =
    Truncation { truncate: false, direction: TruncationDirection::Right, limits: TokenLimits::NONE };

/// The prompts of all kinds of instruct models equal the ones of `transformers`, id for id.
#[test]
fn prompts_are_those_of_the_reference() {
    let names = fs::read_dir(decider_fixtures())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: BTreeSet<String> = names.filter(|name| !name.contains('.')).collect();
    assert_eq!(names.len(), 7);
    for name in names {
        let describe = |config: &Value| {
            text_embeddings_backend::describe(config, &WeightChoices::default(), BackendKind::default())
        };
        let files =
            ModelFolder::open(&decider_fixtures().join(&name), &Reader::default(), &describe).unwrap();
        let tokenizer = Tokenizer::from_file(decider_fixtures().join(&name).join("tokenizer.json")).unwrap();
        let lengths = LengthFlags { auto_truncate: true, ..LengthFlags::default() };
        let flags = ModelFlags { model_type: Some(RequestedType::Decider), lengths, ..ModelFlags::default() };
        let model = Model::resolve(&files, &tokenizer, &flags).unwrap();
        let encoder = model.encoder(&files, tokenizer, &flags).unwrap();
        let Some(Decider::Labels(decider)) = model.as_decider() else { unreachable!("{name}") };
        let expected = fs::read(decider_fixtures().join(format!("{name}.expected.json"))).unwrap();
        let expected: Expected = serde_json::from_slice(&expected).unwrap();
        assert_eq!(decider.labels.max_options(), expected.options, "{name}");
        for row in expected.rows {
            let BuiltDecisions { request, forms } = read_json(row.body.as_str()).unwrap().body.unwrap();
            let beginning = decider.conversation.value.message_beginning(&request.state);
            for (question, form) in request.questions.iter().zip(forms) {
                let id = form.name.unwrap();
                let prompt = question.prompt_text(&decider.labels, false);
                let pair = PairText { instruction: None, query: &beginning, document: &prompt };
                let ids = encoder.encode(&Input::Pair(pair), UNCUT, None).unwrap().ids;
                assert_ids(&ids, &row.answers[&id], &format!("{name} {id}: {prompt}"));
            }
        }
    }
}

/// Compares ids with a file, which has a hash of many ids.
fn assert_ids(ids: &[u32], expected: &Value, place: &str) {
    if let Some(expected) = expected["ids"].as_array() {
        assert_eq!(json!(ids), json!(expected), "{place}");
    } else {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let hash = format!("{:x}", BigEndian(&Sha256::digest(bytes)));
        let expected = (expected["length"].clone(), expected["sha256"].clone());
        assert_eq!((json!(ids.len()), json!(hash)), expected, "{place}");
    }
}

/// The authors of trained deciders make the same sequences, id for id.
#[tokio::test]
async fn sequences_with_marked_options_are_those_of_the_authors() {
    assert!(cut_sequences("laya").await > 10, "long options and questions are among the cases");
    assert_eq!(cut_sequences("any2jev").await, 0);
}

/// Compares all sequences of a family, and counts those from which something was cut.
async fn cut_sequences(family: &str) -> usize {
    let folder = decider_fixtures().with_file_name(family);
    let describe = |config: &Value| {
        text_embeddings_backend::describe(config, &WeightChoices::default(), BackendKind::default())
    };
    let source = ModelSource {
        model_id: folder.join("small").display().to_string(),
        revision: "main".to_owned(),
        token: None,
        cache_dir: None,
        reader: Reader::default(),
    };
    let options = HubOptions { offline: true, ..HubOptions::default() };
    let files = load(&source, &options, &describe).await.unwrap();
    let tokenizer = Tokenizer::from_file(folder.join("small/tokenizer/tokenizer.json")).unwrap();
    let model = Model::resolve(&files, &tokenizer, &ModelFlags::default()).unwrap();
    let encoder = model.encoder(&files, tokenizer, &ModelFlags::default()).unwrap();
    let expected: Expected =
        serde_json::from_slice(&fs::read(folder.join("small.expected.json")).unwrap()).unwrap();
    let mut cut = 0;
    for row in expected.rows {
        let BuiltDecisions { request, forms } = read_json(row.body.as_str()).unwrap().body.unwrap();
        let is_pointer = matches!(model.as_decider(), Some(Decider::Pointer(_)));
        let state = if is_pointer { request.state.flat_text() } else { request.state.spaced_text() };
        for (question, form) in request.questions.iter().zip(forms) {
            let id = form.name.unwrap();
            let marked =
                if is_pointer { question.pointed_question(false) } else { question.marked_question(false) };
            let input = Input::Question { state: &state, question: &marked };
            let encoded = encoder.encode(&input, UNCUT, None).unwrap();
            assert_ids(&encoded.ids, &row.answers[&id], &format!("{id}: {marked:?}"));
            assert_eq!(encoded.marks.len(), marked.options.len() + usize::from(is_pointer));
            cut += usize::from(encoded.truncated > 0);
        }
    }
    cut
}

fn three_decisions() -> [Decision; 3] {
    [vec![0.75, 0.25], vec![0.125, 0.875], vec![0.125, 0.125, 0.75]]
        .map(|probabilities| Decision { probabilities })
}

#[test]
fn a_body_with_a_state_is_answered_as_by_typesafe() {
    let body = r#"{"state":{"b":1,"a":[null]},"model":"jev-latest","extra":1,"questions":{
        "z":{"type":"noul","instructions":"Is it?","criteria":{"true":"yes, it is","false":null}},
        "a":{"type":"choice","instructions":{"k":1},"criteria":{"calm":null,"angry":"An upset message"}},
        "m":{"type":"score","criteria":["Can wait",{"x": 1},"Today"]}}}"#;
    let BuiltDecisions { request, forms } = read_json(body).unwrap().body.unwrap();
    assert_eq!(request.state.spaced_text(), r#"{"b": 1, "a": [null]}"#);
    assert_eq!(request.questions[1].instructions, DecisionText::from_json(r#"{"k":1}"#.to_owned()));
    assert_eq!(request.questions[2].place, "questions.m.criteria");
    assert_eq!(
        request.questions[2].kind,
        QuestionKind::Score(vec![
            "Can wait".into(),
            DecisionText::from_json(r#"{"x":1}"#.to_owned()),
            "Today".into()
        ])
    );
    let answer = SystemOneAnswer::from_decisions("m".to_owned(), forms, 120, &three_decisions());
    assert_eq!(
        serde_json::to_string(&answer).unwrap(),
        r#"{"model":"m","answers":{"z":{"type":"noul","noul":0.75},"a":{"type":"choice","choice":"angry","probabilities":{"calm":0.125,"angry":0.875},"confidence":0.75},"m":{"type":"score","score":1.625,"legend":{"0":"Can wait","1":{"x":1},"2":"Today"},"probabilities":{"0":0.125,"1":0.125,"2":0.75},"confidence":0.4375}},"usage":{"input_tokens":120,"output_tokens":0}}"#
    );
}

#[test]
fn a_body_with_an_input_is_answered_as_by_openai() {
    let body = r#"{"model":"gpt-6-luna","input":"I was charged twice.","options_order":"both","questions":[
        {"type":"predicate","name":"billing","instructions":"The message is about billing."},
        {"type":"choice","name":"tone","instructions":"Tone?","choices":[{"value":"true"},{"value":true,"description":"upset"}]},
        {"type":"score","instructions":[{"type":"input_text","text":"How urgent?"}],"levels":[{"label":"Can wait"},{"label":"Soon"},{"label":"Today","description":"d"}]}]}"#;
    let BuiltDecisions { request, forms } = read_json(body).unwrap().body.unwrap();
    assert!(request.both_orders);
    assert_eq!(request.questions[2].instructions, "How urgent?".into());
    assert_eq!(
        request.questions[2].kind,
        QuestionKind::Score(["Can wait", "Soon", "Today - d"].map(DecisionText::from).into())
    );
    let answer = DecisionsAnswer::from_decisions("m".to_owned(), forms, 120, &three_decisions());
    assert_eq!(
        serde_json::to_string(&answer).unwrap(),
        r#"{"model":"m","answers":[{"type":"predicate","name":"billing","probability":0.75},{"type":"choice","name":"tone","choice":true,"confidence":0.75,"probabilities":[{"value":"true","probability":0.125},{"value":true,"probability":0.875}]},{"type":"score","name":null,"score":1.625,"confidence":0.4375,"probabilities":[{"value":0,"label":"Can wait","probability":0.125},{"value":1,"label":"Soon","probability":0.125},{"value":2,"label":"Today","probability":0.75}]}],"usage":{"input_tokens":120,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0},"output_tokens":0,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":120}}"#
    );
}

#[test]
fn messages_become_one_text() {
    let part = |kind: &str, field: &str, value: Value| json!({"type": kind, field: value});
    let user = json!({"role": "user", "content": [part("input_text", "text", json!("a")), part("input_json", "data", json!({"k": [1]}))]});
    let answer =
        json!({"type": "message", "role": "assistant", "content": [part("refusal", "refusal", json!("no"))]});
    let call = json!({"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"});
    let result = json!({"type": "function_call_output", "call_id": "c", "output": "1"});
    let question = json!({"type": "predicate", "instructions": "x"});
    let state = |input: Value| {
        built_request(&json!({"input": input, "questions": [question]})).request.state.into_text()
    };
    assert_eq!(state(json!([user])), "a\n{\"k\":[1]}");
    assert_eq!(
        state(json!([{"role": "system", "content": "s"}, user, answer, call, result])),
        "system: s\n\nuser: a\n{\"k\":[1]}\n\nassistant: no\n\ncall of f: {}\n\nresult of the call: 1"
    );
    assert_eq!(state(json!("")), "");
}

#[test]
fn each_mistake_names_its_field() {
    let nested = "[".repeat(33) + &"]".repeat(33);
    let typesafe = |question: &str| format!(r#"{{"state":"s","questions":{{"q":{question}}}}}"#);
    let cases = [
        (r#"{"questions":{}}"#.to_owned(), "neither `state` nor `input`"),
        (r#"{"state":"s","input":"s","questions":{}}"#.to_owned(), "both `state` and `input`"),
        (r#"{"state":"s"}"#.to_owned(), "missing field `questions`"),
        (r#"{"state":null,"questions":{}}"#.to_owned(), "`state`: it is null"),
        (format!(r#"{{"state":{nested},"questions":{{}}}}"#), "`state`: it is nested more than 32 deep"),
        (
            r#"{"state":"s","questions":[]}"#.to_owned(),
            "`questions`: invalid type: sequence, expected an object",
        ),
        (r#"{"state":"s","assets":{},"questions":{}}"#.to_owned(), "images are not supported"),
        (
            r#"{"state":"s","options_order":"x","questions":{}}"#.to_owned(),
            "`options_order`: unknown variant",
        ),
        (
            r#"{"state":"s","questions":{"q":{"type":"noul"},"q":{"type":"noul"}}}"#.to_owned(),
            "`q` is there twice",
        ),
        (typesafe(r#"{"type":"box"}"#), "`questions.q.type`: `box` is not supported"),
        (typesafe(r#"{"instructions":"x"}"#), "`questions.q`: missing field `type`"),
        (
            typesafe(r#"{"type":"noul","instruction":"x"}"#),
            "`questions.q.instruction`: unknown field `instruction`",
        ),
        (
            typesafe(r#"{"type":"noul","criteria":{"yes":"x"}}"#),
            "`questions.q.criteria.yes`: unknown field `yes`",
        ),
        (typesafe(r#"{"type":"noul","criteria":["x"]}"#), "`questions.q.criteria`: it must be an object"),
        (typesafe(r#"["noul","x"]"#), "`questions.q`: it must be an object"),
        (typesafe(r#"{"type":"choice"}"#), "`questions.q`: missing field `criteria`"),
        (typesafe(r#"{"type":"choice","criteria":["a"]}"#), "`questions.q.criteria`: invalid type: sequence"),
        (
            typesafe(r#"{"type":"choice","criteria":{" ":null}}"#),
            "`questions.q.criteria`: an option has a blank name",
        ),
        (typesafe(r#"{"type":"choice","criteria":{"a":null,"a":null}}"#), "`a` is there twice"),
        (typesafe(r#"{"type":"score","criteria":{"a":1}}"#), "`questions.q.criteria`: invalid type: map"),
        (typesafe(r#"{"type":"score","criteria":["a",null]}"#), "`questions.q.criteria[1]`: it is null"),
        (
            typesafe(&format!(r#"{{"type":"noul","instructions":{nested}}}"#)),
            "`questions.q.instructions`: it is nested",
        ),
    ];
    check_mistakes(&cases);
}

#[test]
fn each_mistake_of_openais_dialect_names_its_field() {
    let openai = |question: &str| format!(r#"{{"input":"s","questions":[{question}]}}"#);
    let cases = [
        (openai(r#"["noul","x"]"#), "`questions[0]`: it must be an object"),
        (
            openai(r#"{"type":"predicate","instructions":[["input_text","x"]]}"#),
            "`questions[0].instructions[0]`: it must",
        ),
        (openai(r#"{"type":"predicate"}"#), "`questions[0]`: missing field `instructions`"),
        (openai(r#"{"type":"noul","instructions":"x"}"#), "`questions[0].type`: `noul` is not supported"),
        (openai(r#"{"type":"choice","instructions":"x"}"#), "`questions[0]`: missing field `choices`"),
        (
            openai(r#"{"type":"choice","instructions":"x","choices":[{"value":"a"}]}"#),
            "`questions[0].choices`: there are 1 choices: give at least 2",
        ),
        (
            openai(r#"{"type":"choice","instructions":"x","choices":[{"value":"a"},{"value":"a"}]}"#),
            "`questions[0].choices[1].value`: an earlier choice",
        ),
        (
            openai(r#"{"type":"choice","instructions":"x","choices":[{"value":1},{"value":"a"}]}"#),
            "`questions[0].choices[0].value`",
        ),
        (
            openai(r#"{"type":"score","instructions":"x","levels":[{"label":"a"}]}"#),
            "`questions[0].levels`: there are 1 levels",
        ),
        (
            openai(r#"{"type":"score","instructions":"x","levels":[{"label":"a"},{}]}"#),
            "`questions[0].levels[1]`: missing field `label`",
        ),
        (openai(r#"{"type":"predicate","instructions":"x","levels":[]}"#), "leave the other out"),
        (
            openai(r#"{"type":"predicate","instructions":[{"type":"input_image"}]}"#),
            "`questions[0].instructions[0].type`: `input_image` is not supported",
        ),
        (r#"{"input":{"a":1},"questions":[]}"#.to_owned(), "`input`: give a text or a list of messages"),
        (
            r#"{"input":[{"role":"robot","content":"x"}],"questions":[]}"#.to_owned(),
            "`input[0].role`: `robot` is not supported",
        ),
        (r#"{"input":[{"type":"x"}],"questions":[]}"#.to_owned(), "`input[0].type`: `x` is not supported"),
        (r#"{"input":[{"role":"user"}],"questions":[]}"#.to_owned(), "`input[0]`: missing field `content`"),
        (r#"{"state""#.to_owned(), "not JSON"),
    ];
    check_mistakes(&cases);
}

fn check_mistakes(cases: &[(String, &str)]) {
    for (body, expected) in cases {
        let message = mistake_in(body);
        assert!(message.contains(expected), "{body}: {message}");
    }
}

/// `test_decisions.py` has the answers of real models.
#[tokio::test]
async fn a_model_that_does_not_decide_says_so_with_a_status_that_no_client_repeats() {
    let server = Server::start().await;
    let question = json!({"type": "noul", "instructions": "x"});
    let body = json!({"state": "s", "questions": {"q": question}}).to_string();
    for path in ["/v1/systemone", "/v1/decisions"] {
        let answer = server.post(path, &body, &[]).await;
        assert_eq!(answer.status, 424);
        assert_eq!(
            answer.body,
            r#"{"error":{"message":"model is not a decider; it is a re-ranker: POST /rerank","type":"Backend","param":null,"code":424}}"#
        );
        let id = answer.header("x-request-id");
        assert!(id.is_some() && answer.header("x-typesafe-request-id") == id);
    }
    let malformed = server.post("/v1/systemone", "{", &[]).await;
    assert_eq!((malformed.status, malformed.header("x-typesafe-request-id").is_some()), (400, true));
    let wrong = server.post("/v1/decisions", "{}", &[]).await;
    assert_eq!(wrong.status, 422);
    let multipart =
        server.send("POST", "/v1/systemone", b"x", &[("Content-Type", "multipart/form-data")]).await;
    assert_eq!(multipart.status, 415);
    let gzip = [("Content-Encoding", "gzip")];
    assert_eq!(server.post("/v1/systemone", &body, &gzip).await.status, 415);
}

#[test]
fn a_long_name_costs_its_length_once_and_is_cut_in_messages() {
    let id = "i".repeat(500_000);
    let options: BTreeMap<String, Value> =
        (0..50_000).map(|index| (format!("o{index}"), Value::Null)).collect();
    let choice = json!({ "type": "choice", "criteria": options });
    let start = Instant::now();
    let built = built_request(&json!({ "state": "", "questions": { id.as_str(): choice } }));
    // Once for each option, it would be 25 GB.
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    assert_eq!(built.forms[0].name.as_ref(), Some(&id));
    for question in [
        json!({ "type": id }),
        json!({ "type": "choice", "criteria": { id.as_str(): [1], "": null } }),
        json!({ "type": "choice", "criteria": { id.as_str(): { id.as_str(): 1 } }, "instructions": nested(40) }),
    ] {
        let message = mistake_in(&json!({ "state": "", "questions": { id.as_str(): question } }).to_string());
        assert!(message.len() < 1010, "{}", message.len());
    }
    assert!(built.request.questions[0].place.len() < 200);
}

/// Lists in each other.
fn nested(depth: usize) -> Value {
    (0..depth).fold(Value::Null, |inner, _| json!([inner]))
}
