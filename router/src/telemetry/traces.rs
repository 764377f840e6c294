//! Traces: a span for each request, sent to a collector in OTLP over gRPC.
//!
//! Input: a [`Collector`], and for each request its headers or metadata. Output: spans that continue the
//! caller's trace (`traceparent`, `tracestate`). What must hold: each request that was begun becomes one
//! span, also if its client goes away; a collector that is down costs spans and one line of the log, but
//! never delays a request.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::Context as _;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::{
    Context, KeyValue, Value,
    propagation::{Extractor, TextMapPropagator},
    trace::{Span as _, SpanKind, Status, Tracer as _, TracerProvider},
};
use opentelemetry_otlp::{WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    propagation::TraceContextPropagator,
    trace::{SdkTracer, SdkTracerProvider, Span, SpanData, SpanExporter},
};
use text_embeddings_core::service::Cost;
use tonic::metadata::MetadataMap;

use crate::collector::Collector;

/// The time to send the last spans when the server ends.
const FLUSH: Duration = Duration::from_secs(2);

/// Sends the process's traces, if there is a collector. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Traces {
    sent: Option<(SdkTracerProvider, SdkTracer)>,
}

/// The span of a request that is not answered yet. If it is dropped, the span says that the client went away.
#[derive(Debug)]
pub(crate) struct RequestSpan {
    span: Option<Span>,
}

impl Traces {
    /// Starts to send to `collector`, if there is one, as the service `service_name`. Needs a tokio runtime.
    /// Fails if the exporter refuses the address.
    pub(crate) fn start(collector: Option<&Collector>, service_name: &str) -> anyhow::Result<Self> {
        let Some(Collector { address, authorization }) = collector else { return Ok(Self::default()) };
        let mut headers = HeaderMap::new();
        if let Some(secret) = authorization {
            let mut value = HeaderValue::from_str(secret.expose()).context("credentials of the collector")?;
            value.set_sensitive(true);
            headers.insert("authorization", value);
        }
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_tonic()
            .with_endpoint(address)
            .with_metadata(MetadataMap::from_headers(headers))
            .build()
            .with_context(|| format!("`--otlp-endpoint {address}`"))?;
        let resource = Resource::builder()
            .with_service_name(service_name.to_owned())
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        let exporter = Reported { exporter, failing: AtomicBool::new(false) };
        let provider =
            SdkTracerProvider::builder().with_resource(resource).with_batch_exporter(exporter).build();
        let tracer = provider.tracer(env!("CARGO_PKG_NAME"));
        tracing::info!("traces are sent to {address}");
        Ok(Self { sent: Some((provider, tracer)) })
    }

    /// Begins the span of a request with these `headers`, over gRPC its metadata. Absent if traces are not
    /// sent; then its name and attributes are not made.
    pub(crate) fn begin_span<const N: usize>(
        &self,
        headers: &HeaderMap,
        describe: impl FnOnce() -> (String, [(&'static str, String); N]),
    ) -> Option<RequestSpan> {
        let (_, tracer) = self.sent.as_ref()?;
        let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers));
        let (name, attributes) = describe();
        let attributes = attributes.map(|(key, value)| KeyValue::new(key, value));
        let builder = tracer.span_builder(name).with_kind(SpanKind::Server).with_attributes(attributes);
        Some(RequestSpan { span: Some(builder.start_with_context(tracer, &parent)) })
    }

    /// Sends the remaining spans, for at most [`FLUSH`]. It blocks, so it must not be called on the runtime.
    pub(crate) fn finish(&self) {
        if let Some((provider, _)) = &self.sent {
            // `Reported` has logged the failure, and the process ends anyway.
            let _ = provider.shutdown_with_timeout(FLUSH);
        }
    }

    /// Sends the spans so far, for tests.
    #[cfg(test)]
    pub(crate) fn flush(&self) {
        if let Some((provider, _)) = &self.sent {
            let _ = provider.force_flush();
        }
    }
}

impl RequestSpan {
    /// Adds an attribute.
    pub(crate) fn set_attribute(&mut self, name: &'static str, value: impl Into<Value>) {
        if let Some(span) = &mut self.span {
            span.set_attribute(KeyValue::new(name, value));
        }
    }

    /// Adds the cost of the request.
    pub(crate) fn set_cost(&mut self, cost: &Cost) {
        let amounts =
            [("te.texts", cost.texts), ("te.tokens", cost.tokens), ("te.truncated", cost.truncated)];
        for (name, amount) in amounts {
            self.set_attribute(name, amount as i64);
        }
        let seconds = [
            ("te.tokenization_seconds", cost.tokenization),
            ("te.queue_seconds", cost.queue),
            ("te.inference_seconds", cost.inference),
        ];
        for (name, duration) in seconds {
            self.set_attribute(name, duration.as_secs_f64());
        }
    }

    /// Adds the kind of failure. Only a failure of the server makes the span an error.
    pub(crate) fn set_failure(&mut self, kind: impl Into<Value>, is_fault: bool, message: &str) {
        self.set_attribute("error.type", kind);
        if let (Some(span), true) = (&mut self.span, is_fault) {
            span.set_status(Status::error(message.to_owned()));
        }
    }

    /// Ends the span: the request is answered.
    pub(crate) fn end_span(mut self) {
        // A span ends when it is dropped.
        self.span = None;
    }
}

impl Drop for RequestSpan {
    fn drop(&mut self) {
        self.set_failure("dropped", false, "");
    }
}

/// The headers, or metadata, of a request.
struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(|value| value.to_str().ok())
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

/// An exporter that logs when the collector goes away, and when it is back: once each.
#[derive(Debug)]
struct Reported {
    exporter: opentelemetry_otlp::SpanExporter,
    failing: AtomicBool,
}

impl SpanExporter for Reported {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let result = self.exporter.export(batch).await;
        let failed = self.failing.swap(result.is_err(), Ordering::Relaxed);
        match &result {
            Err(error) if !failed => {
                tracing::warn!(
                    %error,
                    "traces do not reach `--otlp-endpoint`: they are dropped until they do"
                );
            }
            Ok(()) if failed => tracing::info!("traces reach `--otlp-endpoint` again"),
            _ => {}
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
