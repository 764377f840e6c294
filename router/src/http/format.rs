//! The formats of bodies: JSON and `MessagePack`.
//!
//! Input: a media type, the bytes of a body, or an answer. Output: the format, the content, or the answer's
//! bytes. What must hold: requests and answers mean the same in both formats; the memory and stack that a
//! body takes are bounded by its own bytes, whatever lengths and depths it claims.

use axum::{
    Json,
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{ACCEPT, CONTENT_TYPE},
    },
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use text_embeddings_backend_core::amount;

use super::json::JsonText;

/// The media type of answers in `MessagePack`.
pub(crate) const MESSAGE_PACK: &str = "application/msgpack";
/// The deepest nesting of values, as in serde's JSON.
const MAX_DEPTH: usize = 128;

/// The format of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyFormat {
    /// `application/json`, and the format of a body without a `Content-Type`.
    Json,
    /// `application/msgpack`, with objects as maps with names as keys.
    MessagePack,
}

impl BodyFormat {
    /// The format of a media type, whatever its parameters. The names that `MessagePack` had before its
    /// registration count too.
    pub(crate) fn of_media_type(media_type: &str) -> Option<Self> {
        let essence = media_type.split(';').next().unwrap_or_default().trim().to_lowercase();
        match essence.as_str() {
            MESSAGE_PACK | "application/x-msgpack" | "application/vnd.msgpack" => Some(Self::MessagePack),
            "application/json" => Some(Self::Json),
            other if other.starts_with("application/") && other.ends_with("+json") => Some(Self::Json),
            _ => None,
        }
    }

    /// The format of the answer to a request: the one that its `Accept` prefers, else the request's own.
    pub(crate) fn of_answer(headers: &HeaderMap) -> Self {
        let own = headers.get(CONTENT_TYPE).and_then(|value| Self::of_media_type(value.to_str().ok()?));
        let own = own.unwrap_or(Self::Json);
        let (mut json, mut message_pack) = (None, None);
        let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        for range in values.flat_map(|value| value.split(',')) {
            match Self::of_media_type(range) {
                Some(Self::Json) => json = Some(quality(range)),
                Some(Self::MessagePack) => message_pack = Some(quality(range)),
                None => {}
            }
        }
        let (json, message_pack) = (json.unwrap_or(0.0), message_pack.unwrap_or(0.0));
        if json > message_pack {
            Self::Json
        } else if message_pack > json {
            Self::MessagePack
        } else {
            own
        }
    }

    /// An answer with this body.
    pub(crate) fn respond<T: Serialize>(self, status: StatusCode, body: &T) -> Response {
        match self {
            Self::Json => (status, Json(body)).into_response(),
            Self::MessagePack => match rmp_serde::to_vec_named(body) {
                Ok(bytes) => {
                    let media_type = HeaderValue::from_static(MESSAGE_PACK);
                    (status, [(CONTENT_TYPE, media_type)], bytes).into_response()
                }
                Err(error) => {
                    tracing::error!("an answer could not be written as MessagePack: {error}");
                    StatusCode::INTERNAL_SERVER_ERROR.into_response()
                }
            },
        }
    }
}

/// The `q` of a media range; 1 where it has none.
fn quality(range: &str) -> f32 {
    let parameter = range.split(';').skip(1).find_map(|parameter| parameter.trim().strip_prefix("q="));
    parameter.map_or(1.0, |quality| quality.trim().parse().unwrap_or(0.0))
}

/// The content of `MessagePack` as JSON, so that every route reads both formats alike. JSON has no
/// counterpart of binary data, extensions, NaN and keys that are not text.
pub(crate) fn read_message_pack(bytes: &[u8]) -> Result<JsonText, String> {
    let mut deserializer = rmp_serde::Deserializer::new(bytes);
    deserializer.set_max_depth(MAX_DEPTH);
    let value = JsonText::deserialize(&mut deserializer)
        .map_err(|error| format!("the request body is not MessagePack that JSON could say, too: {error}"))?;
    let rest = deserializer.get_ref().len();
    if rest > 0 {
        return Err(format!(
            "the request body is not MessagePack: it goes on for {} after its end",
            amount(rest, "byte")
        ));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::http::{
        routes::tests::paths,
        testing::{Server, WireAnswer},
    };
    use axum::http::{HeaderName, Method};
    use serde_json::{Value, json};

    const TYPE: (&str, &str) = ("Content-Type", MESSAGE_PACK);

    #[test]
    fn both_formats_have_several_media_types() {
        let table = [
            ("application/json", Some(BodyFormat::Json)),
            ("Application/JSON; charset=utf-8", Some(BodyFormat::Json)),
            ("application/vnd.api+json", Some(BodyFormat::Json)),
            ("application/msgpack", Some(BodyFormat::MessagePack)),
            ("Application/X-MsgPack;v=5", Some(BodyFormat::MessagePack)),
            ("application/vnd.msgpack", Some(BodyFormat::MessagePack)),
            ("text/plain", None),
            ("application/x-www-form-urlencoded", None),
            ("application/octet-stream", None),
            ("", None),
        ];
        for (media_type, expected) in table {
            assert_eq!(BodyFormat::of_media_type(media_type), expected, "{media_type}");
        }
    }

    #[test]
    fn an_answer_is_written_as_the_client_prefers_or_else_as_the_request_is() {
        let (json, pack) = (BodyFormat::Json, BodyFormat::MessagePack);
        let table = [
            (None, None, json),
            (Some("application/json"), None, json),
            (Some(MESSAGE_PACK), None, pack),
            (Some(MESSAGE_PACK), Some("*/*"), pack),
            (None, Some("*/*"), json),
            (None, Some(MESSAGE_PACK), pack),
            (Some(MESSAGE_PACK), Some("application/json"), json),
            (Some("text/plain"), Some("application/x-msgpack"), pack),
            (None, Some("application/json, application/msgpack"), json),
            (Some(MESSAGE_PACK), Some("application/json, application/msgpack"), pack),
            (None, Some("application/json;q=0.5, application/msgpack"), pack),
            (Some(MESSAGE_PACK), Some("application/json ; q=0.9,application/msgpack; q=0.8"), json),
            (None, Some("application/msgpack;q=0"), json),
            (Some(MESSAGE_PACK), Some("text/html;q=nonsense"), pack),
        ];
        for (content_type, accept, expected) in table {
            let given = [(CONTENT_TYPE, content_type), (ACCEPT, accept)];
            let headers: HeaderMap = given
                .into_iter()
                .filter_map(|(name, value): (HeaderName, _)| Some((name, value?.parse().unwrap())))
                .collect();
            assert_eq!(BodyFormat::of_answer(&headers), expected, "{content_type:?} {accept:?}");
        }
    }

    /// The content of a body, which may be in either format.
    fn content(answer: &WireAnswer) -> Value {
        if answer.header("content-type") == Some(MESSAGE_PACK) {
            return rmp_serde::from_slice(&answer.bytes).unwrap();
        }
        assert_eq!(answer.header("content-type"), Some("application/json"), "{answer:?}");
        serde_json::from_slice(&answer.bytes).unwrap()
    }

    /// Whether two answers are equal, scores to the last bit of float32. Ids and times may differ.
    fn same(left: &Value, right: &Value) -> bool {
        match (left, right) {
            (Value::Object(left), Value::Object(right)) => {
                left.len() == right.len()
                    && left.iter().all(|(name, value)| {
                        right.get(name).is_some_and(|other| {
                            matches!(name.as_str(), "id" | "created") || same(value, other)
                        })
                    })
            }
            (Value::Array(left), Value::Array(right)) => {
                left.len() == right.len() && left.iter().zip(right).all(|(left, right)| same(left, right))
            }
            (Value::Number(left), Value::Number(right)) => {
                let bits = |number: &serde_json::Number| (number.as_f64().unwrap() as f32).to_bits();
                bits(left) == bits(right)
            }
            _ => left == right,
        }
    }

    /// The message of an error of any shape; empty for an answer.
    fn message(answer: &Value) -> &str {
        let places = ["/error", "/message", "/error/message"];
        places.iter().find_map(|place| answer.pointer(place)?.as_str()).unwrap_or_default()
    }

    /// A body that the route takes with some kind of model, and a body that it refuses.
    fn bodies(route: &str) -> [Value; 2] {
        let texts = json!({"query": "q", "texts": ["a", "ZZ", "\u{1f600}"], "return_text": true});
        let documents = json!({"query": "q", "documents": [{"text": "Z", "n": [1, -2.5, null]}, "a"], "return_documents": true});
        match route {
            "/rerank" | "/" | "/invocations" => [texts, json!({"query": "q", "texts": []})],
            _ if route.contains("rerank") => [documents, json!({"query": "q", "documents": [3]})],
            _ if route.ends_with("score") => {
                [json!({"text_1": "q", "text_2": ["a", "Z"]}), json!({"text_1": ["q", "q"], "text_2": "a"})]
            }
            "/vertex" => [json!({"instances": [texts]}), json!({"instances": [{"query": 1}]})],
            "/decode" => [json!({"ids": [[1, 2], [57]]}), json!({"ids": "a"})],
            "/similarity" => {
                let sentences = json!({"source_sentence": "aZ", "sentences": ["b", "Z"]});
                [json!({"inputs": sentences, "parameters": {"truncate": true}}), json!({"inputs": "a"})]
            }
            "/playground/prompt" => [json!({"query": "q", "text": "a"}), json!({"query": "q"})],
            "/predict" => {
                [json!({"inputs": [["q", "ZZ"], ["q", "a"]]}), json!({"inputs": [["a", "b", "c"]]})]
            }
            "/embeddings" => [json!({"input": "ab", "encoding_format": "float16"}), json!({"input": [[-1]]})],
            "/v1/embeddings" => [json!({"input": ["Za", [57, 65]]}), json!({"input": null})],
            "/v1/embed" | "/v2/embed" => {
                // Base64 stands for the bytes, which MessagePack has.
                let types = ["float", "float16", "int8", "uint8", "binary", "ubinary"];
                [json!({"texts": ["Za"], "embedding_types": types}), json!({"texts": "Za"})]
            }
            _ => [json!({"inputs": ["Za", "b"]}), json!({"inputs": {"a": 1}})],
        }
    }

    #[tokio::test]
    async fn every_route_says_the_same_in_both_formats() {
        let servers = [Server::start().await, Server::start_with("--model-type embedding").await];
        for route in paths(Method::POST) {
            let mut answered = 0;
            for server in &servers {
                for body in bodies(route) {
                    let packed = rmp_serde::to_vec_named(&body).unwrap();
                    let json = server.post(route, &body.to_string(), &[]).await;
                    let pack = server.send("POST", route, &packed, &[TYPE]).await;
                    let place = format!("{route} {body}: {json:?} {pack:?}");
                    assert_eq!(pack.header("content-type"), Some(MESSAGE_PACK), "{place}");
                    assert_eq!(json.status, pack.status, "{place}");
                    assert_eq!(json.header("x-compute-tokens"), pack.header("x-compute-tokens"), "{place}");
                    let (json, pack) = (content(&json), content(&pack));
                    if let Some((start, end)) = message(&json).split_once(" at line ") {
                        // MessagePack has neither lines nor columns.
                        let question = end.find(':').map_or("", |at| &end[at..]);
                        assert_eq!(message(&pack), format!("{start}{question}"), "{place}");
                    } else {
                        assert!(same(&json, &pack), "{place}");
                        answered += 1;
                    }
                    let mixed = [("Content-Type", "application/json"), ("Accept", MESSAGE_PACK)];
                    let mixed = server.send("POST", route, body.to_string().as_bytes(), &mixed).await;
                    assert!(same(&json, &content(&mixed)), "{place}");
                    assert_eq!(mixed.header("content-type"), Some(MESSAGE_PACK), "{place}");
                    let mixed = [TYPE, ("Accept", "application/json")];
                    let mixed = server.send("POST", route, &packed, &mixed).await;
                    assert!(same(&pack, &content(&mixed)), "{place}");
                    assert_eq!(mixed.header("content-type"), Some("application/json"), "{place}");
                }
            }
            assert!(answered >= 1, "{route}");
        }
    }

    #[tokio::test]
    async fn every_refusal_is_written_as_the_client_reads() {
        let server = Server::start_with("--api-key k").await;
        let key = ("Authorization", "Bearer k");
        for route in paths(Method::POST) {
            for (body, headers, status) in [
                (&b"\x80"[..], &[TYPE][..], 401),
                (b"\xc1", &[TYPE, key], 400),
                (&vec![0; 200_000], &[TYPE, key], 413),
                (b"{}", &[("Content-Type", "text/plain"), ("Accept", MESSAGE_PACK), key], 415),
            ] {
                let answer = server.send("POST", route, body, headers).await;
                assert_eq!(
                    (answer.status, answer.header("content-type")),
                    (status, Some(MESSAGE_PACK)),
                    "{route}"
                );
                assert!(content(&answer).is_object(), "{route}");
                assert_eq!(answer.head.matches("content-length").count(), 1);
            }
        }
        let answer = server.send("GET", "/rerank", b"", &[("Accept", MESSAGE_PACK), key]).await;
        assert_eq!((answer.status, answer.header("allow")), (405, Some("post")));
        assert_eq!(content(&answer)["error_type"], "Validation");
    }

    #[test]
    fn hostile_bytes_are_refused_in_words_without_more_memory_or_stack_than_they_have() {
        let deep = |count: usize, byte: u8| vec![byte; count];
        let table: Vec<(&str, Vec<u8>)> = vec![
            ("nothing", vec![]),
            ("a reserved byte", vec![0xc1]),
            ("an array of 2^32 - 1", vec![0xdd, 0xff, 0xff, 0xff, 0xff]),
            ("a map of 2^32 - 1", vec![0xdf, 0xff, 0xff, 0xff, 0xff]),
            ("a text of 2^32 - 1", vec![0xdb, 0xff, 0xff, 0xff, 0xff, b'a']),
            ("binary", vec![0xc4, 1, b'a']),
            ("an extension", vec![0xd4, 1, 2]),
            ("NaN", vec![0x91, 0xca, 0x7f, 0xc0, 0, 0]),
            ("infinity", vec![0x91, 0xcb, 0xff, 0xf0, 0, 0, 0, 0, 0, 0]),
            ("a number as key", vec![0x81, 1, 1]),
            ("nil as key", vec![0x81, 0xc0, 1]),
            ("a text that is not UTF-8", vec![0x81, 0xa1, 0xff, 1]),
            ("more behind the end", vec![0x80, 0x80]),
            ("arrays in arrays", deep(100_000, 0x91)),
            ("maps in maps", deep(100_000, 0x81)),
            ("maps in maps under names", [0x81, 0xa1, b'a'].repeat(10_000)),
            ("a level more than JSON may have", [deep(MAX_DEPTH, 0x91), vec![0xc0]].concat()),
        ];
        for (name, bytes) in table {
            let error = read_message_pack(&bytes).unwrap_err();
            assert!(error.starts_with("the request body is not MessagePack"), "{name}: {error}");
        }
        let fits = [deep(MAX_DEPTH - 1, 0x91), vec![0xc0]].concat();
        let text = format!("{}null{}", "[".repeat(MAX_DEPTH - 1), "]".repeat(MAX_DEPTH - 1));
        assert_eq!(read_message_pack(&fits).unwrap().as_str(), text);
        assert!(serde_json::from_str::<Value>(&text).is_ok());
        assert!(serde_json::from_str::<Value>(&format!("[{text}]")).is_err());
    }
}
