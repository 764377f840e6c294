//! `GET /health`, `/` and `/ping`: can the server compute?
//!
//! Output: 200 and nothing, or 503 with the error's body. Needs no key, as load balancers have none.

use axum::{extract::State, http::StatusCode};
use text_embeddings_core::error::Error;

use super::error::ApiError;
use crate::state::AppState;

/// Answers a probe.
///
/// # Errors
///
/// 503 if the last batch failed and a probe of one token fails too.
pub(crate) async fn health(State(state): State<AppState>) -> Result<StatusCode, ApiError> {
    if state.service.healthy().await { Ok(StatusCode::OK) } else { Err(Error::Unhealthy.into()) }
}

#[cfg(test)]
mod tests {
    use crate::http::testing::Server;

    #[tokio::test]
    async fn health_follows_the_engine() {
        let server = Server::start_with("--api-key k").await;
        for path in ["/health", "/", "/ping"] {
            let answer = server.get(path).await;
            assert_eq!((answer.status, answer.body.as_str()), (200, ""), "{path}");
        }
        server.control.break_all(true);
        let body = r#"{"query":"q","texts":["a"]}"#;
        assert_eq!(server.post("/rerank", body, &[("Authorization", "Bearer k")]).await.status, 424);
        for path in ["/health", "/", "/ping"] {
            let answer = server.get(path).await;
            let expected = r#"{"error":"Service is unhealthy","error_type":"Unhealthy"}"#;
            assert_eq!((answer.status, answer.body.as_str()), (503, expected), "{path}");
        }
        server.control.break_all(false);
        assert_eq!(server.get("/health").await.status, 200);
    }
}
