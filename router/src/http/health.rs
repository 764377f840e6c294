//! `GET /health`, `/` and `/ping`, as TEI has them: whether the server can compute. `GET /health/live`:
//! whether its process runs. `GET /health/ready`: whether it should get requests. `GET /` of a browser goes
//! to the playground. `GET /metrics`: the metrics.
//!
//! Output of a probe: 200 with an empty body, or 503 with the error's body. No key is needed, because load
//! balancers have none.

use axum::{
    extract::State,
    http::{
        HeaderMap, StatusCode, Uri,
        header::{ACCEPT, LOCATION},
    },
    response::{IntoResponse, Response},
};
use text_embeddings_core::error::Error;

use super::{error::ApiError, error_shapes::ErrorBody, schemas::TAG};
use crate::state::AppState;

/// Whether the server can compute.
#[utoipa::path(get, path = "/health", tag = TAG, security(()), responses(
    (status = 200, description = "The server can compute"),
    (status = 503, description = "The last batch failed, and so did a probe of one token", body = ErrorBody)
))]
pub(crate) async fn health(
    State(state): State<AppState>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    if uri.path() == "/" && is_browser(&headers) {
        // The address is relative, because a proxy may add a prefix to the path.
        return Ok((StatusCode::SEE_OTHER, [(LOCATION, "playground")]).into_response());
    }
    if state.models.are_healthy().await {
        Ok(StatusCode::OK.into_response())
    } else {
        Err(Error::Unhealthy.into())
    }
}

/// Whether a person wants to see a page. Probes accept anything.
fn is_browser(headers: &HeaderMap) -> bool {
    headers.get_all(ACCEPT).iter().any(|value| value.to_str().is_ok_and(|types| types.contains("text/html")))
}

/// Whether the process runs.
///
/// It is for a probe that restarts the process, so it fails only if a restart would help.
#[utoipa::path(get, path = "/health/live", operation_id = "health_live", tag = TAG, security(()),
    responses((status = 200, description = "The process runs")))]
pub(crate) async fn live() -> StatusCode {
    StatusCode::OK
}

/// Whether the server should get requests: it can compute and was not asked to stop.
#[utoipa::path(get, path = "/health/ready", operation_id = "health_ready", tag = TAG, security(()), responses(
    (status = 200, description = "The server should get requests"),
    (status = 503, description = "The server cannot compute, or it is stopping", body = ErrorBody)
))]
pub(crate) async fn ready(State(state): State<AppState>) -> Result<StatusCode, ApiError> {
    // A server that is still loading has no open port.
    if state.stop.is_asked() {
        Err(ApiError::stopping())
    } else if state.models.are_healthy().await {
        Ok(StatusCode::OK)
    } else {
        Err(Error::Unhealthy.into())
    }
}

/// Prometheus metrics.
#[utoipa::path(get, path = "/metrics", tag = TAG, security(()),
    responses((status = 200, description = "Prometheus text", body = String, content_type = "text/plain")))]
pub(crate) async fn metrics(State(state): State<AppState>) -> impl IntoResponse {
    state.metrics.answer()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use crate::http::testing::Server;
    use std::time::Duration;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
    };

    #[tokio::test]
    async fn health_follows_the_engine() {
        let server = Server::start_with("--api-key k").await;
        for path in ["/health", "/", "/ping", "/health/live", "/health/ready"] {
            for accept in ["*/*", "application/json"] {
                let answer = server.send("GET", path, b"", &[("Accept", accept)]).await;
                assert_eq!((answer.status, answer.body.as_str()), (200, ""), "{path}");
            }
            let accept = [("Accept", "text/html,application/xhtml+xml,*/*;q=0.8")];
            let answer = server.send("GET", path, b"", &accept).await;
            let expected = if path == "/" { (303, Some("playground")) } else { (200, None) };
            assert_eq!((answer.status, answer.header("location")), expected, "{path}");
        }
        server.control.break_all(true);
        let body = r#"{"query":"q","texts":["a"]}"#;
        assert_eq!(server.post("/rerank", body, &[("Authorization", "Bearer k")]).await.status, 424);
        assert_eq!(server.get("/health/live").await.status, 200);
        for path in ["/health", "/", "/ping", "/health/ready"] {
            let answer = server.get(path).await;
            let expected = r#"{"error":"Service is unhealthy","error_type":"Unhealthy"}"#;
            assert_eq!((answer.status, answer.body.as_str()), (503, expected), "{path}");
        }
        server.control.break_all(false);
        assert_eq!(server.get("/health").await.status, 200);
        assert_eq!(server.get("/health/ready").await.status, 200);
    }

    #[tokio::test]
    async fn a_server_that_stops_is_not_ready_but_live() {
        let mut server = Server::start().await;
        server.control.hold(true);
        let body = r#"{"query":"q","texts":["a"]}"#;
        let request = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\n");
        // Connections that are open, and a request in flight that keeps the server from ending.
        let mut in_flight = TcpStream::connect(server.address).await.unwrap();
        let head =
            format!("POST /rerank HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        in_flight.write_all(head.as_bytes()).await.unwrap();
        server.control.clone().batches(1).await;
        let paths = ["/health/ready", "/health/live", "/health"];
        let mut open = Vec::new();
        for path in paths {
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            stream.write_all(request(path).as_bytes()).await.unwrap();
            open.push(stream);
        }
        // A later connection was answered, so the server has accepted all of them.
        assert_eq!(server.get("/health/ready").await.status, 200);
        server.stop();
        while TcpStream::connect(server.address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut answers = Vec::new();
        for mut stream in open {
            stream.write_all(b"\r\n").await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answers.push(answer);
        }
        let expected =
            r#"{"error":"the server is stopping: send requests elsewhere","error_type":"Unhealthy"}"#;
        assert!(answers[0].starts_with("HTTP/1.1 503") && answers[0].ends_with(expected), "{}", answers[0]);
        assert!(answers[1..].iter().all(|answer| answer.starts_with("HTTP/1.1 200")), "{answers:?}");
        server.control.hold(false);
        server.ended().await;
    }
}
