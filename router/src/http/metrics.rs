//! `GET /metrics`: the metrics in Prometheus's text format.

use axum::{extract::State, response::IntoResponse};

use super::schemas::TAG;
use crate::state::AppState;

/// Prometheus metrics.
#[utoipa::path(get, path = "/metrics", tag = TAG, security(()),
    responses((status = 200, description = "Prometheus text", body = String, content_type = "text/plain")))]
pub(crate) async fn metrics(State(state): State<AppState>) -> impl IntoResponse {
    state.metrics.answer()
}
