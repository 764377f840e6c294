//! The span of a call over gRPC.
//!
//! Input: a call of one of the services of `tei.proto`, and its answer. Output: the span, with method, model,
//! status and, for a call with a single message, the cost. What must hold: it continues the trace that the
//! call's metadata names, and ends with the answer's last byte, or when the client goes away.

use axum::{
    extract::{Request, State},
    http::HeaderMap,
    middleware::Next,
    response::Response,
};
use http_body_util::BodyExt;
use text_embeddings_core::service::Cost;
use tonic::{Code, Status};

use super::dispatch::called_method;
use crate::{state::AppState, telemetry::traces::RequestSpan};

/// Answers a call within its span, if traces are sent.
pub(super) async fn trace(State(state): State<AppState>, request: Request, next: Next) -> Response {
    // Probes and reflection have no spans.
    let Some((service, name)) = called_method(&request) else {
        return next.run(request).await;
    };
    let span = state.traces.begin_span(request.headers(), || {
        let attributes = [
            ("rpc.system", "grpc".to_owned()),
            ("rpc.service", service.to_owned()),
            ("rpc.method", name.to_owned()),
            ("te.model", state.served().info.served_model_name.clone()),
        ];
        (format!("{service}/{name}"), attributes)
    });
    let Some(mut span) = span else {
        return next.run(request).await;
    };
    let response = next.run(request).await;
    if let Some(cost) = response.extensions().get::<Cost>() {
        span.set_cost(cost);
    }
    // An error before any answer is in the headers. Every other status is in the trailers.
    if let Some(status) = Status::from_header_map(response.headers()) {
        end(span, &status);
        return response;
    }
    let mut span = Some(span);
    response.map(|body| {
        axum::body::Body::new(body.map_frame(move |frame| {
            let status =
                frame.trailers_ref().and_then(|trailers: &HeaderMap| Status::from_header_map(trailers));
            if let Some((status, span)) = status.and_then(|status| Some((status, span.take()?))) {
                end(span, &status);
            }
            frame
        }))
    })
}

/// Ends the span of a call with its status.
fn end(mut span: RequestSpan, status: &Status) {
    let code = status.code();
    span.set_attribute("rpc.grpc.status_code", i64::from(i32::from(code)));
    let is_fault = !matches!(
        code,
        Code::InvalidArgument | Code::Unauthenticated | Code::OutOfRange | Code::Cancelled | Code::NotFound
    );
    if code != Code::Ok {
        span.set_failure(format!("{code:?}"), is_fault, status.message());
    }
    span.end_span();
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use crate::{
        grpc::testing::{Server, messages, read},
        telemetry::receiver::{Receiver, attribute, hex},
    };
    use opentelemetry_proto::tonic::trace::v1::{span::SpanKind, status::StatusCode};
    use text_embeddings_proto::v1::{
        PredictPairRequest, RerankRequest, predict_client::PredictClient, rerank_client::RerankClient,
    };
    use tonic::Request;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const PARENT: &str = "00f067aa0ba902b7";

    fn request(text: &str) -> Request<RerankRequest> {
        let message = RerankRequest {
            query: "q".to_owned(),
            texts: vec![text.to_owned(), "a".to_owned()],
            ..RerankRequest::default()
        };
        let mut request = Request::new(message);
        request.metadata_mut().insert("traceparent", format!("00-{TRACE}-{PARENT}-01").parse().unwrap());
        request
    }

    fn pair(text: &str) -> PredictPairRequest {
        PredictPairRequest { inputs: vec!["q".to_owned(), text.to_owned()], ..PredictPairRequest::default() }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_call_continues_the_callers_trace_and_holds_its_cost() {
        let (receiver, flag) = Receiver::start().await;
        let server = Server::start_with(&flag).await;
        let answer = RerankClient::new(server.channel.clone()).rerank(request("ZZ")).await.unwrap();
        let tokens = answer.metadata().get("x-compute-tokens").unwrap().to_str().unwrap();
        let spans = receiver.spans(&server.running.traces).await;
        let [span] = &spans[..] else { unreachable!("{spans:?}") };
        assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.to_owned(), PARENT.to_owned()));
        assert_eq!((span.name.as_str(), span.kind()), ("tei.v1.Rerank/Rerank", SpanKind::Server));
        for (name, expected) in [
            ("rpc.system", "grpc"),
            ("rpc.service", "tei.v1.Rerank"),
            ("rpc.method", "Rerank"),
            ("rpc.grpc.status_code", "0"),
            ("te.texts", "2"),
            ("te.tokens", tokens),
        ] {
            assert_eq!(attribute(&span.attributes, name).as_deref(), Some(expected), "{name}");
        }
        assert_eq!(attribute(&span.attributes, "error.type"), None);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_call_that_fails_ends_its_span_with_the_code() {
        let (receiver, flag) = Receiver::start().await;
        let server = Server::start_with(&flag).await;
        let channel = || server.channel.clone();
        RerankClient::new(channel()).rerank(request("#")).await.unwrap_err();
        let mut empty = request("");
        empty.get_mut().texts.clear();
        RerankClient::new(channel()).rerank(empty).await.unwrap_err();
        let stream =
            PredictClient::new(channel()).predict_pair_stream(messages(vec![pair("Z"), pair("#")])).await;
        assert!(read(stream).await.1.is_some());
        let spans = receiver.spans(&server.running.traces).await;
        let found: Vec<_> = spans
            .iter()
            .map(|span| {
                let code = span.status.clone().unwrap_or_default().code();
                (attribute(&span.attributes, "error.type").unwrap(), code == StatusCode::Error)
            })
            .collect();
        let expected =
            [("FailedPrecondition", true), ("InvalidArgument", false), ("FailedPrecondition", true)];
        assert_eq!(found, expected.map(|(code, is_error)| (code.to_owned(), is_error)));
    }
}
