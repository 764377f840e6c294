//! Shared by the files of several routes: fields of bodies, and the answer to a request that computed.

use axum::{
    Extension,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use text_embeddings_core::{
    service::{Answer, EmbedEncoding},
    tokenization::TruncationDirection,
};
use utoipa::ToSchema;

use super::format::BodyFormat;
use crate::{cost, state::AppState};

/// The default of fields that are on unless a request turns them off.
pub(crate) fn yes() -> bool {
    true
}

/// The end of a text that is cut, in TEI's two spellings.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[schema(as = TruncationDirection)]
pub(crate) enum TruncationSide {
    #[default]
    #[serde(alias = "right")]
    Right,
    #[serde(alias = "left")]
    Left,
}

impl From<TruncationSide> for TruncationDirection {
    fn from(side: TruncationSide) -> Self {
        match side {
            TruncationSide::Right => Self::Right,
            TruncationSide::Left => Self::Left,
        }
    }
}

/// The tokenization settings that a body's fields ask for.
pub(crate) fn encoding(
    truncate: Option<bool>,
    side: TruncationSide,
    prompt_name: Option<String>,
) -> EmbedEncoding {
    EmbedEncoding { truncate, truncation_direction: side.into(), prompt_name }
}

/// The answer of a route that computed: `body` makes its body from the value; the cost goes to the headers
/// and the log.
pub(crate) fn respond<T, B: Serialize>(
    state: &AppState,
    format: BodyFormat,
    route: &'static str,
    answer: Answer<T>,
    body: impl FnOnce(T) -> B,
) -> Response {
    let Answer { value, cost } = answer;
    cost::log(route, &cost);
    let headers: HeaderMap =
        cost::headers(&cost, state.served().info.computation.device).into_iter().collect();
    // The extension is for the request's span.
    (headers, Extension(cost), format.respond(StatusCode::OK, &body(value))).into_response()
}
