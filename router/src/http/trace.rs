//! The span of a request over HTTP.
//!
//! Input: a request on one of the routes that need the key, and its answer. Output: the span, with route,
//! model, status and cost. What must hold: it continues the trace that the request's headers name.

use axum::{
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::Response,
};
use text_embeddings_core::service::Cost;

use super::error::ApiError;
use crate::state::AppState;

/// Answers a request within its span, if traces are sent.
pub(crate) async fn trace(
    State(state): State<AppState>,
    route: MatchedPath,
    request: Request,
    next: Next,
) -> Response {
    let (method, route) = (request.method(), route.as_str());
    let span = state.traces.begin_span(request.headers(), || {
        let attributes = [
            ("http.request.method", method.to_string()),
            ("http.route", route.to_owned()),
            ("te.model", state.served().info.served_model_name.clone()),
        ];
        (format!("{method} {route}"), attributes)
    });
    let Some(mut span) = span else {
        return next.run(request).await;
    };
    let response = next.run(request).await;
    span.set_attribute("http.response.status_code", i64::from(response.status().as_u16()));
    if let Some(cost) = response.extensions().get::<Cost>() {
        span.set_cost(cost);
    }
    if let Some(error) = response.extensions().get::<ApiError>() {
        span.set_failure(error.kind(), error.is_fault(), error.message());
    }
    span.end_span();
    response
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use crate::{
        http::testing::Server,
        telemetry::receiver::{Receiver, attribute, hex},
    };
    use opentelemetry_proto::tonic::trace::v1::{span::SpanKind, status::StatusCode};
    use std::time::Duration;
    use tokio::{io::AsyncWriteExt, net::TcpStream};

    const BODY: &str = r#"{"query":"q","texts":["ZZ","a"]}"#;
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const PARENT: &str = "00f067aa0ba902b7";

    /// A collector, and a server that sends to it.
    async fn start(flags: &str) -> (Receiver, Server) {
        let (receiver, flag) = Receiver::start().await;
        (receiver, Server::start_with(&format!("{flag} {flags}")).await)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_span_continues_the_callers_trace_and_holds_the_cost() {
        let (receiver, server) = start("--otlp-service-name ranker --served-model-name tiny").await;
        let traceparent = format!("00-{TRACE}-{PARENT}-01");
        let headers = [("traceparent", traceparent.as_str()), ("tracestate", "a=1,b=2")];
        let answer = server.post("/rerank", BODY, &headers).await;
        assert_eq!(answer.status, 200);
        for path in ["/health", "/metrics", "/health/ready", "/"] {
            assert_eq!(server.get(path).await.status, 200);
        }
        let spans = receiver.spans(&server.traces()).await;
        let [span] = &spans[..] else { unreachable!("probes have no spans: {spans:?}") };
        assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.to_owned(), PARENT.to_owned()));
        assert_eq!((span.trace_state.as_str(), span.name.as_str()), ("a=1,b=2", "POST /rerank"));
        assert_eq!(span.kind(), SpanKind::Server);
        let tokens = answer.header("x-compute-tokens").unwrap();
        for (name, expected) in [
            ("http.request.method", "POST"),
            ("http.route", "/rerank"),
            ("http.response.status_code", "200"),
            ("te.model", "tiny"),
            ("te.texts", "2"),
            ("te.tokens", tokens),
            ("te.truncated", "0"),
        ] {
            assert_eq!(attribute(&span.attributes, name).as_deref(), Some(expected), "{name}");
        }
        let seconds = ["te.tokenization_seconds", "te.queue_seconds", "te.inference_seconds"]
            .map(|name| attribute(&span.attributes, name).unwrap().parse::<f64>().unwrap());
        let all = (span.end_time_unix_nano - span.start_time_unix_nano) as f64 / 1e9;
        assert!(seconds.iter().all(|&step| step > 0.0 && step <= all), "{seconds:?} of {all}");

        let requests = receiver.0.lock().unwrap();
        let resource = requests[0].get_ref().resource_spans[0].resource.as_ref().unwrap();
        assert_eq!(attribute(&resource.attributes, "service.name").as_deref(), Some("ranker"));
        // "me:s3cret" in base64.
        assert_eq!(requests[0].metadata().get("authorization").unwrap(), "Basic bWU6czNjcmV0");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_request_that_fails_ends_its_span_with_the_status() {
        let (receiver, server) = start("--api-key k").await;
        let key = ("Authorization", "Bearer k");
        let failing = r##"{"query":"q","texts":["#"]}"##;
        for (path, body, headers, status, kind, is_error) in [
            ("/rerank", failing, &[key][..], "424", "Backend", true),
            ("/rerank", "{", &[key], "400", "Validation", false),
            ("/v1/embeddings", r#"{"input":"a"}"#, &[key], "424", "Backend", false),
            ("/rerank", BODY, &[], "401", "Unauthorized", false),
        ] {
            receiver.0.lock().unwrap().clear();
            assert_eq!(server.post(path, body, headers).await.status.to_string(), status);
            let spans = receiver.spans(&server.traces()).await;
            let [span] = &spans[..] else { unreachable!("one span for {path}: {spans:?}") };
            assert_eq!(attribute(&span.attributes, "http.response.status_code").as_deref(), Some(status));
            assert_eq!(attribute(&span.attributes, "error.type").as_deref(), Some(kind));
            let code = span.status.clone().unwrap_or_default().code();
            assert_eq!(code == StatusCode::Error, is_error, "{path} {status}");
            assert!(span.parent_span_id.is_empty(), "a request without a trace begins one");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_client_that_goes_away_ends_its_span() {
        let (receiver, server) = start("").await;
        server.control.hold(true);
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let head =
            format!("POST /rerank HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{BODY}", BODY.len());
        stream.write_all(head.as_bytes()).await.unwrap();
        server.control.batches(1).await;
        drop(stream);
        let spans = loop {
            let spans = receiver.spans(&server.traces()).await;
            if !spans.is_empty() {
                break spans;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        assert_eq!(attribute(&spans[0].attributes, "error.type").as_deref(), Some("dropped"));
        server.control.hold(false);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_trace_that_is_not_sampled_stays_unsampled() {
        let (receiver, server) = start("").await;
        let traceparent = format!("00-{TRACE}-{PARENT}-00");
        assert_eq!(server.post("/rerank", BODY, &[("traceparent", &traceparent)]).await.status, 200);
        // A header that is not a trace is ignored.
        assert_eq!(server.post("/rerank", BODY, &[("traceparent", "nonsense")]).await.status, 200);
        let spans = receiver.spans(&server.traces()).await;
        assert_eq!(spans.len(), 1);
        assert_ne!(hex(&spans[0].trace_id), TRACE);
    }
}
