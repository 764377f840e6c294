//! The check of the API key over HTTP.
//!
//! Input: a request. Output: the request's answer, or 401. What must hold: the body of a refused request is
//! read, so that the client can read the answer, but no byte of it is kept.

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};

use super::{error::ApiError, extract::discard};
use crate::state::AppState;

/// Passes requests on that carry the key. Without a key on the server, all requests pass.
pub(crate) async fn require_key(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if state.keys.may_pass(request.headers()) {
        return Ok(next.run(request).await);
    }
    // If the body were left unread, the connection would close during the client's next request.
    discard(request).await;
    Err(ApiError::unauthorized())
}
