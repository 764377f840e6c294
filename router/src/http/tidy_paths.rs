//! Paths with doubled slashes or a slash at the end, as clients make them of an address that ends in one.
//!
//! Input: a router and its routes. Output: a router that sends `//rerank` and `/rerank/` to `/rerank`. What
//! must hold: the path is changed before anything reads it, so that the key and all rules of the route
//! apply; a path that is a route as it is, such as `/docs/`, is left alone.

use std::sync::Arc;

use axum::{
    Router,
    extract::Request,
    http::{Uri, uri::PathAndQuery},
};
use tower_service::Service;

use super::routes::Route;

/// The same router, which also takes untidy paths.
pub(super) fn tidy_paths(router: Router, routes: &[Route]) -> Router {
    let kept: Arc<[String]> = routes
        .iter()
        .map(|route| route.path.to_string())
        .filter(|path| path.len() > 1 && (path.ends_with('/') || path.contains("//")))
        .collect();
    Router::new().fallback(async move |mut request: Request| {
        if let Some(uri) = tidy_uri(request.uri(), &kept) {
            *request.uri_mut() = uri;
        }
        let Ok(response) = router.clone().call(request).await;
        response
    })
}

/// The address with a tidy path, if its path is not tidy. A path that ends in one of `kept` keeps its end.
fn tidy_uri(uri: &Uri, kept: &[String]) -> Option<Uri> {
    let path = uri.path();
    let is_untidy = path.contains("//") || (path.len() > 1 && path.ends_with('/'));
    if !is_untidy || kept.iter().any(|kept| kept == path) {
        return None;
    }
    let mut tidy = String::with_capacity(path.len());
    for letter in path.chars() {
        if letter != '/' || !tidy.ends_with('/') {
            tidy.push(letter);
        }
    }
    if tidy.len() > 1 && tidy.ends_with('/') && !kept.iter().any(|kept| tidy.ends_with(kept)) {
        tidy.pop();
    }
    if tidy == path {
        return None;
    }
    let mut parts = uri.clone().into_parts();
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    parts.path_and_query = Some(PathAndQuery::try_from(tidy + &query).ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::http::testing::Server;

    #[test]
    fn a_path_is_tidied_unless_it_is_a_route() {
        let kept = ["/docs/".to_owned(), "/a//b".to_owned()];
        for (given, expected) in [
            ("/rerank", None),
            ("/", None),
            ("/docs/", None),
            ("/models/m/docs/", None),
            ("/a//b", None),
            ("//", Some("/")),
            ("//rerank", Some("/rerank")),
            ("/v1///rerank//", Some("/v1/rerank")),
            ("/rerank/?a=//b/", Some("/rerank?a=//b/")),
            ("//docs/", Some("/docs/")),
            ("/docs//", Some("/docs/")),
            ("http://h//embed/", Some("http://h/embed")),
            ("/%2F%2frerank/", Some("/%2F%2frerank")),
        ] {
            let found = tidy_uri(&given.parse().unwrap(), &kept).map(|uri| uri.to_string());
            assert_eq!(found.as_deref(), expected, "{given}");
        }
    }

    #[tokio::test]
    async fn an_untidy_path_has_the_rules_of_its_route() {
        let server = Server::start_with("--api-key k").await;
        let key = [("Authorization", "Bearer k")];
        let body = r#"{"query":"q","texts":["a"]}"#;
        for path in ["//rerank", "/rerank/", "/v1//rerank//", "//"] {
            assert_eq!(server.post(path, body, &[]).await.status, 401, "{path}");
            assert_eq!(server.post(path, body, &key).await.status, 200, "{path}");
        }
        for (path, status) in
            [("/info/", 401), ("//info", 401), ("/docs/", 200), ("//health", 200), ("/rerank/x/", 404)]
        {
            assert_eq!(server.get(path).await.status, status, "{path}");
        }
    }
}
