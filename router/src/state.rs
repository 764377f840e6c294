//! The state that the handlers of both transports share.

use std::sync::Arc;

use text_embeddings_door::Stop;

use crate::{
    auth::ApiKeys,
    config::ServerConfig,
    current::CurrentModels,
    models::{Models, Served},
    telemetry::{metrics::Metrics, traces::Traces},
};

/// The server's parts, shared by all requests. Cheap to clone.
#[derive(Clone)]
pub(crate) struct AppState {
    /// The models that answer requests which reach these handlers.
    pub(crate) models: Models,
    /// The models that answer later requests.
    pub(crate) current: CurrentModels,
    /// Limits and origins.
    pub(crate) server: Arc<ServerConfig>,
    /// The keys of clients that may pass.
    pub(crate) keys: ApiKeys,
    /// The source of `GET /metrics`.
    pub(crate) metrics: Metrics,
    /// The exporter of the requests' spans.
    pub(crate) traces: Traces,
    /// Whether the server was asked to stop.
    pub(crate) stop: Stop,
}

impl AppState {
    /// The model of requests that reach these handlers. If there are several models, each has handlers of its
    /// own, and the first model answers requests that concern no model.
    pub(crate) fn served(&self) -> &Served {
        &self.models.all_models()[0]
    }
}
