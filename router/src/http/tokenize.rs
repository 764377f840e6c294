//! `POST /tokenize` and `/decode`: texts to tokens and back.
//!
//! Input: `inputs` as a string or a list; `ids` as one list of ids or a list of lists. Output: a list for
//! each text, also for one text: `[[{id, text, special, start, stop}]]`, with offsets in bytes of the text,
//! null for special tokens. A text for each list of ids, also for one list: `[string]`.

use axum::{extract::State, http::StatusCode, response::Response};
use serde::{Deserialize, Serialize};
use text_embeddings_core::service::{DecodeRequest, Token, TokenizeRequest};
use utoipa::ToSchema;

use super::{error::ApiError, extract::ParsedBody, responses::TokenizerErrors, schemas::TAG, shared::yes};
use crate::state::AppState;

/// The texts to tokenize.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = TokenizeRequest, example = json!({"inputs": "What is deep learning?"}))]
pub(crate) struct TokenizeBody {
    inputs: TokenizeInputsBody,
    /// Whether the tokenizer adds its own tokens, such as a token for the end of a text.
    #[serde(default = "yes")]
    #[schema(default = true)]
    add_special_tokens: bool,
    /// The name of the model's prompt that goes before each text.
    prompt_name: Option<String>,
}

/// One text or several.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = TokenizeInput)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
enum TokenizeInputsBody {
    One(String),
    Many(Vec<String>),
}

/// A token of a text.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SimpleToken)]
struct TokenBody {
    id: u32,
    /// The text of the token.
    text: String,
    /// Whether it is one of the tokenizer's control tokens.
    special: bool,
    /// The offset in bytes of its first character; null if it has no characters.
    start: Option<usize>,
    /// The offset in bytes after its last character.
    stop: Option<usize>,
}

impl From<TokenizeBody> for TokenizeRequest {
    fn from(body: TokenizeBody) -> Self {
        let TokenizeBody { inputs, add_special_tokens, prompt_name } = body;
        let (inputs, is_batch) = match inputs {
            TokenizeInputsBody::One(text) => (vec![text], false),
            TokenizeInputsBody::Many(texts) => (texts, true),
        };
        Self { inputs, is_batch, add_special_tokens, prompt_name }
    }
}

/// The tokens of each text.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TokenizeResponse)]
pub(crate) struct TokensBody(Vec<Vec<TokenBody>>);

impl From<Vec<Vec<Token>>> for TokensBody {
    fn from(texts: Vec<Vec<Token>>) -> Self {
        let lists = texts.into_iter().map(|tokens| {
            tokens
                .into_iter()
                .map(|Token { id, text, special, start, stop }| TokenBody { id, text, special, start, stop })
                .collect()
        });
        Self(lists.collect())
    }
}

/// Show the tokens of texts.
#[utoipa::path(post, path = "/tokenize", tag = TAG, request_body = TokenizeBody,
    responses((status = 200, description = "The tokens of each text", body = TokensBody), TokenizerErrors))]
pub(crate) async fn tokenize(
    State(state): State<AppState>,
    ParsedBody(body, format): ParsedBody<TokenizeBody>,
) -> Result<Response, ApiError> {
    let texts = state.served().service.tokenize(body.into()).await?;
    Ok(format.respond(StatusCode::OK, &TokensBody::from(texts)))
}

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

#[cfg(test)]
mod tests {
    use crate::http::testing::Server;

    #[tokio::test]
    async fn texts_come_back_as_lists_of_tokens() {
        let server = Server::start().await;
        let answer = server.post("/tokenize", r#"{"inputs":"é<think>"}"#, &[]).await;
        insta::assert_snapshot!(answer.body, @r#"[[{"id":127,"text":"é","special":false,"start":0,"stop":2},{"id":102,"text":"é","special":false,"start":0,"stop":2},{"id":258,"text":"<think>","special":false,"start":2,"stop":9}]]"#);
        let answer =
            server.post("/tokenize", r#"{"inputs":["a","b"],"add_special_tokens":false}"#, &[]).await;
        insta::assert_snapshot!(answer.body, @r#"[[{"id":64,"text":"a","special":false,"start":0,"stop":1}],[{"id":65,"text":"b","special":false,"start":0,"stop":1}]]"#);
    }
}
