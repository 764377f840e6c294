//! The id of each request: in every line of the log about it, and in its answer.
//!
//! Input: a request over either transport. Output: its answer with `x-request-id` (on the routes of decisions
//! under `TypeSafe`'s name, too), computed within a span of
//! the log that holds id and route. What must hold: the client's own id is used if it is a short printable
//! text, because it ends up in logs and headers; every other request gets a random one.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use axum::{
    body::{Body, Bytes},
    extract::Request,
    http::{HeaderName, HeaderValue, header::CONTENT_TYPE},
    middleware::Next,
    response::Response,
};
use http_body::{Frame, SizeHint};
use tracing::{Instrument, Span};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Where the package `typesafe-sdk` looks for the id. It raises an error if an answer lacks it.
const TYPESAFE_REQUEST_ID: HeaderName = HeaderName::from_static("x-typesafe-request-id");
/// The ends of the paths on which it does: a path may begin with `/models/NAME`.
const TYPESAFE_PATHS: [&str; 2] = ["/v1/systemone", "/v1/decisions"];
/// The longest id in bytes that is taken from a client.
const MAX_ID: usize = 128;
/// The longest route in bytes that is shown.
const MAX_ROUTE: usize = 100;

/// Answers a request within its span, and gives the answer the request's id.
pub(crate) async fn identified(request: Request, next: Next) -> Response {
    let id = request_id(request.headers().get(&REQUEST_ID));
    let is_grpc = request
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    // The path is the route of a request that has one, but for files of pages and names of models.
    let route: String = request.uri().path().chars().take(MAX_ROUTE).collect();
    // Of several models, the dispatcher fills in the one that answers.
    let model = tracing::field::Empty;
    let span = tracing::info_span!("request", request_id = id.to_str().unwrap_or_default(), route, model);
    let is_typesafes = TYPESAFE_PATHS.iter().any(|path| request.uri().path().ends_with(path));
    let mut waiting = Unanswered { span: &span, is_answered: false };
    let mut response = next.run(request).instrument(span.clone()).await;
    waiting.is_answered = true;
    drop(waiting);
    if is_typesafes {
        response.headers_mut().insert(TYPESAFE_REQUEST_ID, id.clone());
    }
    response.headers_mut().insert(REQUEST_ID, id);
    // The messages of a stream are computed while the answer is sent.
    if is_grpc { response.map(|body| Body::new(Within { body, span })) } else { response }
}

/// Says in the log that its request was dropped, if it is dropped before the answer.
struct Unanswered<'a> {
    span: &'a Span,
    is_answered: bool,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.span.in_scope(|| {
                tracing::info!("dropped: the client went away before the answer, or the server ended");
            });
        }
    }
}

/// The client's id if it may be used, else a random one.
fn request_id(given: Option<&HeaderValue>) -> HeaderValue {
    given
        .filter(|id| {
            (1..=MAX_ID).contains(&id.len()) && id.as_bytes().iter().all(|byte| (0x21..=0x7e).contains(byte))
        })
        .cloned()
        .unwrap_or_else(|| {
            let random = format!("{:032x}", rand::random::<u128>());
            HeaderValue::try_from(random).unwrap_or_else(|_| HeaderValue::from_static("-"))
        })
}

/// A body whose lines of the log belong to a span.
struct Within {
    body: Body,
    span: Span,
}

impl http_body::Body for Within {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Self { body, span } = &mut *self;
        let _entered = span.enter();
        Pin::new(body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use axum::{Router, middleware, routing::get};
    use tower_service::Service;

    #[test]
    fn an_id_is_the_clients_if_it_is_short_and_printable() {
        for (given, is_used) in [
            ("a", true),
            ("7f3c-…", false),
            ("{\"a\":1}", true),
            ("two words", false),
            ("", false),
            (&"x".repeat(128), true),
            (&"x".repeat(129), false),
        ] {
            let given = HeaderValue::from_bytes(given.as_bytes()).unwrap();
            assert_eq!(request_id(Some(&given)) == given, is_used, "{given:?}");
        }
        let random = request_id(None);
        assert!(random.len() == 32 && random != request_id(None), "{random:?}");
    }

    #[tokio::test]
    async fn an_answer_has_the_id_of_its_request_whatever_its_route() {
        let mut app: Router =
            Router::new().route("/a", get(async || "a")).layer(middleware::from_fn(identified));
        for path in ["/a", "/nowhere"] {
            let request =
                Request::builder().uri(path).header("x-request-id", "mine").body(Body::empty()).unwrap();
            let answer = app.call(request).await.unwrap();
            assert_eq!(answer.headers()["x-request-id"], "mine", "{path}");
        }
        let answer = app.call(Request::new(Body::empty())).await.unwrap();
        assert_eq!(answer.headers()["x-request-id"].len(), 32);
    }
}
