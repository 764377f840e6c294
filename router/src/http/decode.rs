//! `POST /decode`: tokens to texts.
//!
//! Input: `ids` as one list of ids or a list of lists. Output: `[string]`, also for one list.

use axum::{extract::State, http::StatusCode, response::Response};
use serde::{Deserialize, Serialize};
use text_embeddings_core::service::DecodeRequest;
use utoipa::ToSchema;

use super::{error::ApiError, extract::ParsedBody, responses::TokenizerErrors, schemas::TAG, shared::yes};
use crate::state::AppState;

/// The token ids to decode.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = DecodeRequest, example = json!({"ids": [1, 2, 3]}))]
pub(crate) struct DecodeBody {
    ids: Ids,
    /// Whether control tokens are left out.
    #[serde(default = "yes")]
    #[schema(default = true)]
    skip_special_tokens: bool,
}

/// The token ids of one text or of several.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = InputIds)]
#[serde(untagged, expecting = "expected a list of ids or a list of lists of ids")]
enum Ids {
    One(Vec<u32>),
    Many(Vec<Vec<u32>>),
}

impl From<DecodeBody> for DecodeRequest {
    fn from(body: DecodeBody) -> Self {
        let (ids, is_batch) = match body.ids {
            Ids::One(ids) => (vec![ids], false),
            Ids::Many(lists) => (lists, true),
        };
        Self { ids, is_batch, skip_special_tokens: body.skip_special_tokens }
    }
}

/// The texts.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DecodeResponse)]
pub(crate) struct DecodedTexts(pub(crate) Vec<String>);

/// Turn token ids back into texts.
#[utoipa::path(post, path = "/decode", tag = TAG, request_body = DecodeBody,
    responses(
        (status = 200, description = "A text for each list of ids", body = DecodedTexts),
        TokenizerErrors
    ))]
pub(crate) async fn decode(
    State(state): State<AppState>,
    ParsedBody(body, format): ParsedBody<DecodeBody>,
) -> Result<Response, ApiError> {
    Ok(format.respond(StatusCode::OK, &DecodedTexts(state.served().service.decode(body.into()).await?)))
}
