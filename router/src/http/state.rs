//! What every handler may use.

use std::sync::Arc;

use metrics_exporter_prometheus::PrometheusHandle;
use text_embeddings_core::service::Service;

use super::info::Info;
use crate::config::ServerConfig;

/// The server's parts, shared by all requests. Cheap to clone.
#[derive(Clone)]
pub(crate) struct AppState {
    /// What answers requests.
    pub(crate) service: Service,
    /// What `GET /info` says.
    pub(crate) info: Arc<Info>,
    /// Limits, key and origins.
    pub(crate) server: Arc<ServerConfig>,
    /// What `GET /metrics` says.
    pub(crate) metrics: PrometheusHandle,
    /// The device that computes, for `x-compute-type`: `cpu`, `cuda` or `metal`.
    pub(crate) compute_type: &'static str,
}
