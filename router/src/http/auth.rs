//! The API key over HTTP: who does not send it gets no further.
//!
//! Input: a request. Output: it goes on, or 401. What must hold: the body of a refused request is read, so that the
//! client gets to read the answer.

use axum::{
    extract::{FromRequest, Request, State},
    middleware::Next,
    response::Response,
};

use super::{error::ApiError, extract::RawBody};
use crate::{auth::may_pass, state::AppState};

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
    if may_pass(request.headers(), state.server.api_key.as_ref()) {
        return Ok(next.run(request).await);
    }
    // A body left unread would close the connection under the client's next request.
    let _ = RawBody::from_request(request, &state).await;
    Err(ApiError::unauthorized())
}
