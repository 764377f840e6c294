//! `GET /playground`: a web page for trying the model, embedded in the binary. `prompt.rs` has the route that
//! only this page uses.
//!
//! Output: the files of `page/`. They are served without an API key; the page's API requests need the key.
//! What must hold: the page loads nothing from other hosts, and no text can become markup or script in it
//! (`POLICY` forbids both). A new binary's page shows at once, because browsers revalidate each file by its
//! `ETag`.

mod prompt;

use std::hash::{DefaultHasher, Hash, Hasher};

use axum::{
    extract::Path,
    http::{
        HeaderMap, StatusCode, Uri,
        header::{
            CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, LOCATION,
            REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
        },
    },
    response::{IntoResponse, Response},
};

use super::{error::ApiError, routes::ROUTES};
pub(crate) use prompt::{__path_prompt, prompt};

/// Allows the page's own files only, and no markup or script made from text, whatever the page's code does.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

struct PageFile {
    /// The last segment of its path; empty for the page itself, which is the first.
    name: &'static str,
    media_type: &'static str,
    content: &'static str,
}

const FILES: [PageFile; 22] = [
    PageFile::new("", "text/html; charset=utf-8", include_str!("page/index.html")),
    PageFile::new("style.css", "text/css; charset=utf-8", include_str!("page/style.css")),
    PageFile::new("results.css", "text/css; charset=utf-8", include_str!("page/results.css")),
    PageFile::new("icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
    PageFile::new("main.js", SCRIPT, include_str!("page/main.js")),
    PageFile::new("api.js", SCRIPT, include_str!("page/api.js")),
    PageFile::new("classifier.js", SCRIPT, include_str!("page/classifier.js")),
    PageFile::new("code.js", SCRIPT, include_str!("page/code.js")),
    PageFile::new("cost.js", SCRIPT, include_str!("page/cost.js")),
    PageFile::new("cut.js", SCRIPT, include_str!("page/cut.js")),
    PageFile::new("decisions.js", SCRIPT, include_str!("page/decisions.js")),
    PageFile::new("documents.js", SCRIPT, include_str!("page/documents.js")),
    PageFile::new("elements.js", SCRIPT, include_str!("page/elements.js")),
    PageFile::new("embedding.js", SCRIPT, include_str!("page/embedding.js")),
    PageFile::new("evaluation.js", SCRIPT, include_str!("page/evaluation.js")),
    PageFile::new("export.js", SCRIPT, include_str!("page/export.js")),
    PageFile::new("files.js", SCRIPT, include_str!("page/files.js")),
    PageFile::new("judged.js", SCRIPT, include_str!("page/judged.js")),
    PageFile::new("metrics.js", SCRIPT, include_str!("page/metrics.js")),
    PageFile::new("prompt.js", SCRIPT, include_str!("page/prompt.js")),
    PageFile::new("ranking.js", SCRIPT, include_str!("page/ranking.js")),
    PageFile::new("score.js", SCRIPT, include_str!("page/score.js")),
];
const SCRIPT: &str = "text/javascript; charset=utf-8";

impl PageFile {
    const fn new(name: &'static str, media_type: &'static str, content: &'static str) -> Self {
        Self { name, media_type, content }
    }
}

pub(crate) async fn page(headers: HeaderMap) -> Response {
    answer_file(&FILES[0], &headers)
}

/// Redirects to the page. The address is relative, because a proxy may add a prefix to the path.
pub(crate) async fn redirect() -> Response {
    (StatusCode::SEE_OTHER, [(LOCATION, "../playground")]).into_response()
}

/// A file that the page loads.
pub(crate) async fn named_file(Path(name): Path<String>, uri: Uri, headers: HeaderMap) -> Response {
    match FILES[1..].iter().find(|file| file.name == name) {
        Some(file) => answer_file(file, &headers),
        None => ApiError::not_found(&ROUTES, uri.path()).into_response(),
    }
}

/// A file, or 304 if the browser has it already.
fn answer_file(PageFile { media_type, content, .. }: &PageFile, headers: &HeaderMap) -> Response {
    let tag = tag(content);
    let fixed = [
        (CACHE_CONTROL, "no-cache"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    let mut known = headers.get_all(IF_NONE_MATCH).iter();
    if known.any(|value| value.to_str().is_ok_and(|tags| tags.contains(&tag))) {
        return (StatusCode::NOT_MODIFIED, fixed, [(ETAG, tag)]).into_response();
    }
    (fixed, [(ETAG, tag)], [(CONTENT_TYPE, *media_type)], *content).into_response()
}

fn tag(content: &str) -> String {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::http::{routes::PLAYGROUND_PATH, testing::Server};

    #[tokio::test]
    async fn the_page_needs_no_key_and_tells_browsers_to_load_nothing_else() {
        let server = Server::start_with("--api-key k").await;
        for PageFile { name, media_type, content } in FILES {
            let path = if name.is_empty() {
                PLAYGROUND_PATH.to_owned()
            } else {
                format!("{PLAYGROUND_PATH}/{name}")
            };
            let answer = server.get(&path).await;
            assert_eq!((answer.status, answer.body.as_str()), (200, content), "{path}");
            for (header, expected) in [
                ("content-type", media_type),
                ("cache-control", "no-cache"),
                ("x-content-type-options", "nosniff"),
                ("referrer-policy", "no-referrer"),
                ("content-security-policy", POLICY),
            ] {
                assert_eq!(answer.header(header), Some(expected), "{path}: {header}");
            }
            let head = server.send("HEAD", &path, b"", &[]).await;
            assert_eq!((head.status, head.body.as_str()), (200, ""), "{path}");
            assert_eq!(head.header("etag"), answer.header("etag"), "{path}");
            assert_eq!(server.post(&path, "{}", &[]).await.status, 405, "{path}");
        }
        let metrics = server.get("/metrics").await.body;
        assert!(!metrics.contains("te_request_count{"), "{metrics}");
    }

    #[tokio::test]
    async fn a_browser_that_has_a_file_is_told_so_and_gets_a_new_one() {
        let server = Server::start().await;
        let path = "/playground/main.js";
        let tag = server.get(path).await.header("etag").unwrap().to_owned();
        for (known, status) in
            [(tag.clone(), 304), (format!("\"a\", W/{tag}"), 304), ("\"0123456789abcdef\"".to_owned(), 200)]
        {
            let answer = server.send("GET", path, b"", &[("If-None-Match", &known)]).await;
            assert_eq!((answer.status, answer.header("etag")), (status, Some(tag.as_str())), "{known}");
            assert_eq!(answer.body.is_empty(), status == 304, "{known}");
        }
        let tags: std::collections::BTreeSet<_> = FILES.iter().map(|file| super::tag(file.content)).collect();
        assert_eq!(tags.len(), FILES.len());
    }

    #[tokio::test]
    async fn other_paths_beside_the_page_lead_to_it_or_nowhere() {
        let server = Server::start().await;
        let answer = server.get("/playground/").await;
        assert_eq!((answer.status, answer.header("location")), (303, Some("../playground")));
        for path in
            ["/playground/index.html", "/playground/none.js", "/playground/%2e%2e", "/playground/..%2fmod.rs"]
        {
            let answer = server.get(path).await;
            assert_eq!(answer.status, 404, "{path}");
            let expected = format!(
                r#"{{"error":"no such route `{path}`: `GET /docs` lists the routes","error_type":"Validation"}}"#
            );
            assert_eq!(answer.body, expected);
        }
        assert_eq!(server.get("/playground/prompt").await.status, 405);
    }

    #[test]
    fn the_files_name_no_other_host_and_make_no_markup_of_text() {
        for PageFile { name, content, .. } in FILES {
            let addresses =
                content.matches("://").count() - content.matches("http://www.w3.org/2000/svg").count();
            assert_eq!(addresses, 0, "{name}");
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                " style=",
                "onclick=",
            ] {
                assert!(!content.contains(word), "{name}: {word}");
            }
            assert!(content.lines().count() < 800, "{name}");
        }
    }
}
