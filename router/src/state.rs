//! What every handler of every transport may use.

use std::sync::Arc;

use text_embeddings_core::service::Service;

use crate::{config::ServerConfig, info::Info, serve::Stop, telemetry::metrics::Metrics};

/// The server's parts, shared by all requests. Cheap to clone.
#[derive(Clone)]
pub(crate) struct AppState {
    /// What answers requests.
    pub(crate) service: Service,
    /// What is served, and within which limits.
    pub(crate) info: Arc<Info>,
    /// Limits, key and origins.
    pub(crate) server: Arc<ServerConfig>,
    /// What `GET /metrics` says.
    pub(crate) metrics: Metrics,
    /// The device that computes, for `x-compute-type`: `cpu`, `cuda` or `metal`.
    pub(crate) compute_type: &'static str,
    /// Whether the server was asked to stop.
    pub(crate) stop: Stop,
}
