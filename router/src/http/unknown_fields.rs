//! Fields of a body that no route reads: named in a header of the answer, or refused with `--strict-fields`.
//!
//! Input: a request, then the paths of fields that its reader passed over. Output: the header
//! `x-ignored-fields`, or a message with the known field that may be meant. What must hold: header and
//! message are short and printable, whatever the client's names are; `model`, which chooses among several
//! models, is known on every route.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    iter,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use axum::{
    extract::{Request, State},
    http::HeaderValue,
    middleware::Next,
    response::Response,
};
use serde_ignored::Path;
use text_embeddings_backend_core::amount;
use utoipa::openapi::OpenApi;

const HEADER: &str = "x-ignored-fields";
/// The most names in a header or message, and the most characters of a name.
const MAX_NAMES: usize = 10;
const MAX_NAME: usize = 40;
/// The field that the dispatcher reads.
const MODEL: &str = "model";

/// Paths of fields, the first ones of a body.
#[derive(Debug, Default)]
pub(crate) struct IgnoredPaths {
    shown: Vec<String>,
    /// The number of all.
    count: usize,
}

/// The unknown fields of a request. The reader of its body and the layer that answers it share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnknownFields {
    paths: Arc<Mutex<IgnoredPaths>>,
    rules: Option<FieldRules>,
}

/// How unknown fields are treated.
#[derive(Debug, Clone, Copy)]
pub(super) struct FieldRules {
    /// Whether they are refused.
    pub(super) is_strict: bool,
    /// The description of all routes, which has the names of known fields.
    pub(super) describe: fn() -> OpenApi,
}

impl IgnoredPaths {
    /// Adds a path that was passed over.
    pub(crate) fn add_path(&mut self, path: &Path<'_>) {
        match path {
            Path::Map { parent: Path::Root, key } if key == MODEL => return,
            // The value of a field that the route knows and refuses.
            Path::Some { .. } | Path::NewtypeStruct { .. } | Path::NewtypeVariant { .. } => return,
            Path::Root | Path::Seq { .. } | Path::Map { .. } => {}
        }
        self.count += 1;
        if self.count <= MAX_NAMES {
            let mut shown = String::new();
            write_path(path, &mut shown);
            let shown = shown.chars().take(MAX_NAME);
            self.shown.push(shown.map(|it| if it.is_ascii_graphic() { it } else { '?' }).collect());
        }
    }

    fn join_names(&self) -> String {
        let more = self.count - self.shown.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        self.shown.join(", ") + &more
    }
}

/// Writes names and indices with points between them.
fn write_path(path: &Path<'_>, out: &mut String) {
    let (parent, name) = match path {
        Path::Root => return,
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => {
            return write_path(parent, out);
        }
        Path::Seq { parent, index } => (parent, Cow::Owned(index.to_string())),
        Path::Map { parent, key } => (parent, Cow::Borrowed(&**key)),
    };
    write_path(parent, out);
    if !out.is_empty() {
        out.push('.');
    }
    out.push_str(&name);
}

impl UnknownFields {
    /// Takes the paths that the reader of a body passed over. With `--strict-fields`, the error names the
    /// first one, if there are any.
    pub(crate) fn take_paths(&self, paths: IgnoredPaths) -> Result<(), String> {
        let Some(first) = paths.shown.first() else { return Ok(()) };
        let Some(rules) = self.rules.filter(|rules| rules.is_strict) else {
            *self.paths.lock().unwrap_or_else(PoisonError::into_inner) = paths;
            return Ok(());
        };
        let question = near_name(first, rules.describe).map(|name| format!(": is it meant as `{name}`?"));
        let others = paths.count - 1;
        let others = if others > 0 { format!(" ({} more)", amount(others, "field")) } else { String::new() };
        Err(format!(
            "invalid request: unknown field `{first}`{others}, which `--strict-fields` refuses{}",
            question.unwrap_or_default()
        ))
    }
}

/// Answers a request. An answer that is not an error names the fields of the body that were ignored.
pub(super) async fn name_ignored(
    State(rules): State<FieldRules>,
    mut request: Request,
    next: Next,
) -> Response {
    let fields = UnknownFields { rules: Some(rules), ..UnknownFields::default() };
    request.extensions_mut().insert(fields.clone());
    let mut answer = next.run(request).await;
    let paths = fields.paths.lock().unwrap_or_else(PoisonError::into_inner);
    if paths.count > 0
        && answer.status().is_success()
        && let Ok(names) = HeaderValue::from_str(&paths.join_names())
    {
        answer.headers_mut().insert(HEADER, names);
    }
    drop(paths);
    answer
}

/// The known field whose name is nearest to this one, if it is near.
fn near_name(given: &str, describe: fn() -> OpenApi) -> Option<&'static str> {
    let plain = given.to_lowercase().replace(['_', '-'], "");
    let mut nearest: Option<(usize, &'static str)> = None;
    for name in known_names(describe) {
        let distance = strsim::osa_distance(&name.replace('_', ""), &plain);
        if distance * 3 <= name.len().max(3) && nearest.is_none_or(|(least, _)| distance < least) {
            nearest = Some((distance, name));
        }
    }
    // A field of another route is not meant as itself.
    nearest.map(|(_, name)| name).filter(|name| *name != given)
}

/// The names of all fields in the description of the routes.
fn known_names(describe: fn() -> OpenApi) -> &'static BTreeSet<String> {
    static NAMES: OnceLock<BTreeSet<String>> = OnceLock::new();
    NAMES.get_or_init(|| {
        let mut names = BTreeSet::new();
        let description = serde_json::to_value(describe()).unwrap_or_default();
        for (name, schema) in description["components"]["schemas"].as_object().into_iter().flatten() {
            if name.contains("Request") || name.contains("Options") {
                let parts = schema["allOf"].as_array().into_iter().flatten();
                let properties =
                    iter::once(schema).chain(parts).filter_map(|part| part["properties"].as_object());
                names.extend(properties.flat_map(|properties| properties.keys().cloned()));
            }
        }
        names
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use crate::http::testing::Server;
    use serde_json::{Value, json};

    #[tokio::test]
    async fn the_answer_names_the_fields_that_were_ignored() {
        let reranker = Server::start().await;
        let embedder = Server::start_with("--model-type embedding").await;
        let many: Value = (0..500).map(|index| (format!("f{index}"), json!(1))).collect();
        let long = json!({"é\r\n, ".repeat(100): 1});
        let documents = json!({"query": {"text": "q", "lang": "en"}, "documents": [{"text": "a", "x": 1}]});
        let cases: [(&Server, &str, Value, Value, Option<String>); 9] = [
            (&reranker, "/rerank", json!({"query": "q", "texts": ["a"]}), json!({}), None),
            (&reranker, "/rerank", json!({"query": "q", "texts": ["a"]}), json!({"model": "m"}), None),
            (
                &reranker,
                "/rerank",
                json!({"query": "q", "texts": ["a"]}),
                json!({"topn": 1, "user": {"top_n": 2}, "chat_template_kwargs": {"enable_thinking": false}}),
                Some("chat_template_kwargs.enable_thinking, topn, user".to_owned()),
            ),
            (
                &reranker,
                "/v2/rerank",
                documents,
                json!({"priority": 0}),
                Some("priority, query.lang".to_owned()),
            ),
            (
                &reranker,
                "/score",
                json!({"text_1": "q", "text_2": "a"}),
                json!({"labelz": 1}),
                Some("labelz".to_owned()),
            ),
            (
                &embedder,
                "/embed",
                json!({"inputs": "a"}),
                json!({"normalise": true}),
                Some("normalise".to_owned()),
            ),
            (
                &embedder,
                "/v1/embeddings",
                json!({"input": "a"}),
                json!({"dimension": null}),
                Some("dimension".to_owned()),
            ),
            (
                &embedder,
                "/tokenize",
                json!({"inputs": "a"}),
                many,
                Some("f0, f1, f10, f100, f101, f102, f103, f104, f105, f106 and 490 more".to_owned()),
            ),
            (&embedder, "/embed", json!({"inputs": "a"}), long, Some("???,?".repeat(8))),
        ];
        for (server, path, mut body, further, expected) in cases {
            body.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
            let answer = server.post(path, &body.to_string(), &[]).await;
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
            let found = answer.header(super::HEADER).map(|names| {
                let mut names: Vec<_> = names.split(", ").collect();
                names.sort_unstable();
                names.join(", ")
            });
            assert_eq!(found, expected, "{path}");
            let packed = rmp_serde::to_vec_named(&body).unwrap();
            let answer = server.send("POST", path, &packed, &[("Content-Type", "application/msgpack")]).await;
            assert_eq!((answer.status, answer.header(super::HEADER).is_some()), (200, expected.is_some()));
        }
    }

    #[tokio::test]
    async fn strict_fields_are_refused_with_the_field_that_may_be_meant() {
        let server = Server::start_with("--strict-fields").await;
        for (path, fields, expected) in [
            (
                "/rerank",
                json!({"topn": 1}),
                Some("`topn`, which `--strict-fields` refuses: is it meant as `top_n`?"),
            ),
            ("/rerank", json!({"rawScores": true}), Some("is it meant as `raw_scores`?")),
            ("/rerank", json!({"xyzzy": 1}), Some("`xyzzy`, which `--strict-fields` refuses")),
            ("/rerank", json!({"a": 1, "b": 2}), Some("(1 field more)")),
            // A field of other routes.
            (
                "/rerank",
                json!({"user": "u"}),
                Some("unknown field `user`, which `--strict-fields` refuses\""),
            ),
            ("/rerank", json!({"model": "m", "top_n": 1}), None),
        ] {
            for texts in ["texts", "documents"] {
                let mut body = json!({"query": "q", texts: ["a"]});
                body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
                let answer = server.post(path, &body.to_string(), &[]).await;
                assert_eq!(answer.status, if expected.is_some() { 422 } else { 200 }, "{body}");
                assert!(answer.body.contains(expected.unwrap_or_default()), "{}", answer.body);
                assert_eq!(answer.header(super::HEADER), None);
            }
        }
    }
}
