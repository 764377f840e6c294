//! A collector for tests, which keeps the spans that it receives.

#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    trace::v1::Span,
};
use tokio::net::TcpListener;
use tonic::{
    Request, Response, Status,
    transport::{Server, server::TcpIncoming},
};

use super::traces::Traces;

/// A collector on a port of its own.
#[derive(Clone, Default)]
pub(crate) struct Receiver(pub(crate) Arc<Mutex<Vec<Request<ExportTraceServiceRequest>>>>);

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.lock().unwrap().push(request);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Receiver {
    /// Starts a collector, and gives the flag of a server that is to send to it.
    pub(crate) async fn start() -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let receiver = Self::default();
        let service = TraceServiceServer::new(receiver.clone());
        tokio::spawn(Server::builder().add_service(service).serve_with_incoming(TcpIncoming::from(listener)));
        (receiver, format!("--otlp-endpoint http://me:s3cret@127.0.0.1:{port}"))
    }

    /// The spans that arrived so far, all that have ended included. Wants a runtime of several threads.
    pub(crate) async fn spans(&self, traces: &Traces) -> Vec<Span> {
        let traces = traces.clone();
        tokio::task::spawn_blocking(move || traces.flush()).await.unwrap();
        let requests = self.0.lock().unwrap();
        let resources = requests.iter().flat_map(|request| &request.get_ref().resource_spans);
        resources.flat_map(|spans| &spans.scope_spans).flat_map(|spans| &spans.spans).cloned().collect()
    }
}

/// The text of an attribute.
pub(crate) fn attribute(attributes: &[KeyValue], name: &str) -> Option<String> {
    let value = attributes.iter().find(|attribute| attribute.key == name)?.value.clone()?.value?;
    Some(match value {
        Value::StringValue(text) => text,
        Value::IntValue(number) => number.to_string(),
        Value::DoubleValue(number) => number.to_string(),
        other => format!("{other:?}"),
    })
}

/// An id as `traceparent` has it.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}
