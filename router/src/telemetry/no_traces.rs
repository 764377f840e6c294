//! Takes the place of `traces.rs` in a build without the feature `traces`.

use std::convert::Infallible;

use axum::http::HeaderMap;
use text_embeddings_core::service::Cost;

use crate::collector::Collector;

/// Traces, which this build never sends.
#[derive(Debug, Clone)]
pub(crate) struct Traces {
    never: Option<Infallible>,
}

/// The span of a request, which this build never begins.
pub(crate) struct RequestSpan(Infallible);

impl Traces {
    /// Refuses the collector of `--otlp-endpoint`. Fails if there is one.
    pub(crate) fn start(collector: Option<&Collector>, _service_name: &str) -> anyhow::Result<Self> {
        if let Some(Collector { address, .. }) = collector {
            anyhow::bail!(
                "`--otlp-endpoint {address}` needs the feature `traces`, without which this server is built"
            );
        }
        Ok(Self { never: None })
    }

    pub(crate) fn begin_span<const N: usize>(
        &self,
        _headers: &HeaderMap,
        _describe: impl FnOnce() -> (String, [(&'static str, String); N]),
    ) -> Option<RequestSpan> {
        self.never.map(RequestSpan)
    }

    #[expect(clippy::unused_self, reason = "it has the signature of the other build")]
    pub(crate) fn finish(&self) {}
}

impl RequestSpan {
    pub(crate) fn set_attribute<T>(&mut self, _name: &'static str, _value: T) {
        match self.0 {}
    }

    pub(crate) fn set_cost(&mut self, _cost: &Cost) {
        match self.0 {}
    }

    pub(crate) fn set_failure<T>(&mut self, _kind: T, _is_fault: bool, _message: &str) {
        match self.0 {}
    }

    pub(crate) fn end_span(self) {
        match self.0 {}
    }
}
