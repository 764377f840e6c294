//! The API key over HTTP: who does not send it gets no further.
//!
//! Input: a request. Output: it goes on, or 401. What must hold: the body of a refused request is read, so that the
//! client gets to read the answer, but no byte of it is kept.

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};

use super::{error::ApiError, extract::discard};
use crate::state::AppState;

/// Lets a request pass that carries the key, or any request if the server has none.
///
/// # Errors
///
/// 401 for a missing or wrong key.
pub(crate) async fn require_key(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if state.keys.may_pass(request.headers()) {
        return Ok(next.run(request).await);
    }
    // A body left unread would close the connection under the client's next request.
    discard(request).await;
    Err(ApiError::unauthorized())
}
