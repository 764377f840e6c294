//! The description against TEI's, and against the checked-in copy; the page.
//!
//! `tei.json` holds the facts of TEI 1.9.3's own description: paths, methods, bodies, types, required
//! properties and defaults, without its texts, in the form of `OpenAPI` 3.1.

#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
use super::*;
use crate::{
    http::{
        routes::{Listed, ROUTES},
        testing::Server,
    },
    testing,
};
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

fn tei() -> Value {
    serde_json::from_str(include_str!("tei.json")).unwrap()
}

fn ours() -> Value {
    let description = serde_json::to_value(ApiDescription::openapi()).unwrap();
    json!({ "paths": description["paths"], "schemas": description["components"]["schemas"] })
}

/// Whether a schema of ours is the one that `theirs` refers to, or has it among its alternatives.
fn leads_to(ours: &Value, theirs: &str) -> bool {
    static DESCRIBED: LazyLock<Value> =
        LazyLock::new(|| serde_json::to_value(ApiDescription::openapi()).unwrap());
    let Some(reference) = ours["$ref"].as_str() else { return false };
    let schema = DESCRIBED.pointer(reference.trim_start_matches('#')).unwrap();
    let alternatives = schema.get("oneOf").or(schema.get("anyOf")).and_then(Value::as_array);
    reference == theirs || alternatives.is_some_and(|all| all.iter().any(|one| one["$ref"] == theirs))
}

/// The places of everything in `theirs` that is not in `ours`.
fn missing(ours: &Value, theirs: &Value, place: &str, found: &mut Vec<String>) {
    match theirs {
        Value::Object(fields) => fields.iter().for_each(|(key, theirs)| {
            let place = format!("{place}/{key}");
            if key == "$ref" && leads_to(ours, theirs.as_str().unwrap()) {
                return;
            }
            match (key.as_str(), ours.get(key)) {
                (_, None) => found.push(place),
                ("oneOf" | "enum" | "required" | "type", Some(ours)) => {
                    missing_elements(ours, theirs, &place, found);
                }
                (_, Some(ours)) => missing(ours, theirs, &place, found),
            }
        }),
        _ if ours == theirs => {}
        _ => found.push(format!("{place}: {theirs}")),
    }
}

/// As [`missing`], for lists whose order has no meaning, and for types, which may be single or a list.
fn missing_elements(ours: &Value, theirs: &Value, place: &str, found: &mut Vec<String>) {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
    let ours = list(ours);
    for element in list(theirs) {
        let holds = |ours: &Value| {
            let mut found = Vec::new();
            missing(ours, &element, "", &mut found);
            found.is_empty()
        };
        if !ours.iter().any(holds) {
            found.push(format!("{place}: {element}"));
        }
    }
}

/// A mistake in TEI's description: it requires a field that TEI sends under another name. If ours required
/// it, a client that checks answers against it would refuse all errors of these routes.
const NOT_SO: &str = "/schemas/OpenAICompatErrorResponse/required: \"error_type\"";

fn missing_in(ours: &Value) -> Vec<String> {
    let mut found = Vec::new();
    missing(ours, &tei(), "", &mut found);
    let all = found.len();
    found.retain(|place| place != NOT_SO);
    assert_eq!(found.len(), all - 1, "{NOT_SO}");
    found
}

#[test]
fn everything_in_teis_description_is_in_ours() {
    assert_eq!(missing_in(&ours()), Vec::<String>::new());
}

#[test]
fn a_body_that_teis_description_allows_is_allowed_by_ours() {
    let (ours, theirs) = (ours(), tei());
    let requests = ["Request", "Input", "Parameters", "InputIds", "InputType"];
    for (name, theirs) in theirs["schemas"].as_object().unwrap() {
        if requests.iter().any(|end| name.ends_with(end)) {
            assert_eq!(ours["schemas"][name]["required"], theirs["required"], "{name}");
        }
    }
}

#[test]
fn the_comparison_sees_what_is_taken_away() {
    let places = [
        "/paths/~1embed_all",
        "/paths/~1rerank/post",
        "/paths/~1rerank/post/requestBody",
        "/paths/~1health/get/responses/503",
        "/paths/~1v1~1embeddings/post/responses/424/content/application~1json/schema/$ref",
        "/schemas/SparseValue",
        "/schemas/EmbedRequest/properties/dimensions",
        "/schemas/EmbedRequest/properties/dimensions/type",
        "/schemas/EmbedRequest/properties/dimensions/default",
        "/schemas/EmbedRequest/properties/truncation_direction/default",
        "/schemas/Info/properties/model_type/$ref",
        "/schemas/PredictInput/oneOf/1/minItems",
        "/schemas/PredictInput/oneOf/2/items/oneOf/0",
        "/schemas/InputIds/oneOf/1/items/items/format",
        "/schemas/ModelType/oneOf/0/required/0",
        "/schemas/RerankRequest/required/1",
        "/schemas/ErrorType/enum/5",
        "/schemas/SimilarityRequest/properties/parameters/oneOf/1/type",
    ];
    for place in places {
        // The part of TEI's description that this one would lack.
        let mut ours = ours();
        let (parent, key) = place.rsplit_once('/').unwrap();
        match ours.pointer_mut(parent).unwrap() {
            Value::Object(fields) => drop(fields.remove(&key.replace("~1", "/")).unwrap()),
            Value::Array(elements) => drop(elements.remove(key.parse().unwrap())),
            other => unreachable!("{other}"),
        }
        assert_eq!(missing_in(&ours).len(), 1, "{place}");
    }
    let mut changed = ours();
    changed["schemas"]["EmbedRequest"]["properties"]["normalize"]["default"] = json!(false);
    assert_eq!(missing_in(&changed), ["/schemas/EmbedRequest/properties/normalize/default: true"]);
}

#[test]
fn every_route_is_described_and_every_reference_leads_somewhere() {
    let description = serde_json::to_value(ApiDescription::openapi()).unwrap();
    let described = ROUTES.iter().filter(|route| route.listed == Listed::Described);
    for route in described.clone() {
        let method = route.method.to_string().to_lowercase();
        assert!(description["paths"][route.path.as_ref()][&method].is_object(), "{method} {}", route.path);
    }
    let paths = description["paths"].as_object().unwrap().values();
    let operations: usize = paths.map(|path| path.as_object().unwrap().len()).sum();
    assert_eq!(operations, described.count(), "an operation has no route");
    let mut ids: Vec<&Value> = Vec::new();
    for operation in
        description["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap().values())
    {
        ids.push(&operation["operationId"]);
    }
    let count = ids.len();
    ids.sort_by_key(|id| id.as_str().unwrap());
    ids.dedup();
    assert_eq!(ids.len(), count, "two operations have one id");
    let text = description.to_string();
    for reference in text.split(r##""$ref":"#"##).skip(1) {
        let pointer = reference.split('"').next().unwrap();
        assert!(description.pointer(pointer).is_some(), "{pointer}");
    }
}

#[test]
fn the_headers_of_costs_are_described() {
    let paths = ours()["paths"].take();
    for (route, expected) in [
        ("/rerank", true),
        ("/embeddings", true),
        ("/vertex", false),
        ("/tokenize", false),
        ("/playground/prompt", false),
    ] {
        let responses = &paths[route]["post"]["responses"];
        let headers = &responses["200"]["headers"];
        assert_eq!(headers["x-inference-time"]["schema"]["type"] == "integer", expected, "{route}");
        assert_eq!(headers["x-compute-type"]["schema"]["type"] == "string", expected, "{route}");
        assert!(responses["429"]["headers"]["retry-after"].is_object(), "{route}");
    }
}

#[test]
fn the_checked_in_description_is_this_one() {
    let text = ApiDescription::openapi().to_pretty_json().unwrap();
    testing::check_document("docs/openapi.json", &format!("{text}\n"));
}

#[tokio::test]
async fn the_description_is_open_and_whole() {
    let server = Server::start_with("--api-key k").await;
    let answer = server.get("/api-doc/openapi.json").await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(body, serde_json::to_value(ApiDescription::openapi()).unwrap());
}

/// The values of attributes that make a browser load something.
fn loaded(html: &str) -> Vec<&str> {
    let after = |name: &'static str| html.split(name).skip(1).map(|rest| rest.split('"').next().unwrap());
    after("src=\"").chain(after("<link href=\"")).collect()
}

#[tokio::test]
async fn the_page_is_open_and_loads_nothing_from_elsewhere() {
    let server = Server::start_with("--api-key k").await;
    let answer = server.get("/docs").await;
    assert_eq!((answer.status, answer.header("location")), (303, Some("docs/")));
    let page = server.get("/docs/").await;
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let files = loaded(&page.body);
    assert!(files.len() >= 5, "{files:?}");
    // Without it, a phone shows the page as wide as a screen.
    assert!(page.body.contains(r#"<meta name="viewport" content="width=device-width"#));
    assert!(page.body.contains(r#"<a href="../playground">"#));
    for file in files {
        let name = file.trim_start_matches("./");
        assert!(!name.contains('/'), "{file} is not beside the page");
        let head = server.send("HEAD", &format!("/docs/{name}"), b"", &[]).await;
        let kind = head.header("content-type").unwrap_or_default().to_owned();
        assert_eq!(head.status, 200, "{file}");
        if kind.starts_with("text/css") {
            let style = server.get(&format!("/docs/{name}")).await.body;
            let imported = style
                .split("url(")
                .skip(1)
                .filter(|url| !url.trim_start_matches(['"', '\'']).starts_with("data:"));
            assert_eq!((imported.count(), style.contains("@import")), (0, false), "{file}");
        }
    }
    let script = server.get("/docs/swagger-initializer.js").await;
    assert_eq!((script.status, script.header("content-type")), (200, Some("text/javascript")));
    assert!(!script.body.contains("//petstore") && !script.body.contains("://"), "{}", script.body);
    assert!(script.body.contains(r#""url": "routes.json""#), "{}", script.body);
    assert!(script.body.contains(r#""validatorUrl": "none""#), "{}", script.body);
}

#[tokio::test]
async fn a_file_that_the_page_does_not_have_is_not_found() {
    let server = Server::start().await;
    for path in ["/docs/none.js", "/docs/%ff", "/docs/..", "/docs/a/b"] {
        let answer = server.get(path).await;
        assert_eq!(answer.status, 404, "{path}");
        let body: Map<String, Value> = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(body["error_type"], "Validation", "{path}");
    }
}

#[tokio::test]
async fn the_page_has_each_route_under_its_task_and_re_ranking_first() {
    let server = Server::start().await;
    let grouped: Value = serde_json::from_str(&server.get("/docs/routes.json").await.body).unwrap();
    let groups: Vec<&str> =
        grouped["tags"].as_array().unwrap().iter().map(|tag| tag["name"].as_str().unwrap()).collect();
    assert_eq!(groups, ["Re-rank", "Embed", "Classify", "Decide", "Tokens", "Server", "Platforms"]);
    let ours = ours();
    for (path, methods) in ours["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let tags = grouped["paths"][path][method]["tags"].as_array().unwrap();
            assert!(tags.len() == 1 && groups.contains(&tags[0].as_str().unwrap()), "{method} {path}");
        }
    }
    for (path, method, group) in [
        ("/rerank", "post", "Re-rank"),
        ("/", "post", "Platforms"),
        ("/", "get", "Server"),
        ("/v1/embeddings", "post", "Embed"),
    ] {
        assert_eq!(grouped["paths"][path][method]["tags"][0], group, "{method} {path}");
    }
}
