//! `POST /playground/prompt`: the prompt that the model reads for a query and a document, which the page
//! shows.
//!
//! Input: the fields of `/rerank` for a single text. Output: `{pieces, tokens, shared_tokens,
//! truncated_tokens, max_input_length}`. What must hold: `/rerank` scores exactly the ids of the pieces that
//! are not cut.

use axum::{extract::State, http::StatusCode, response::Response};
use serde::{Deserialize, Serialize};
use text_embeddings_core::{
    service::ShowRequest,
    templates::Slot,
    tokenization::{PromptPiece, ShownPrompt},
};
use utoipa::ToSchema;

use crate::{
    http::{
        error::ApiError, error_shapes::ErrorBody, extract::ParsedBody, responses::TokenizerErrors,
        schemas::TAG, shared::TruncationSide,
    },
    state::AppState,
};

/// A query and a document.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = PromptRequest, example = json!({
    "query": "What is deep learning?", "text": "Machine learning with many layers."
}))]
pub(crate) struct PromptBody {
    query: String,
    /// The document.
    text: String,
    /// What "relevant" means. Absent: as `--default-instruction` of the server says.
    instruction: Option<String>,
    /// Whether a prompt that is too long is cut. Absent or null: as `--auto-truncate` of the server says.
    truncate: Option<bool>,
    #[serde(default)]
    #[schema(default = "right")]
    truncation_direction: TruncationSide,
}

impl From<PromptBody> for ShowRequest {
    fn from(body: PromptBody) -> Self {
        Self {
            query: body.query,
            text: body.text,
            instruction: body.instruction,
            truncate: body.truncate,
            truncation_direction: body.truncation_direction.into(),
        }
    }
}

/// The prompt of a query and a document, as the model reads it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PromptResponse)]
pub(crate) struct ShownBody {
    /// The texts of all pieces together are the prompt before it was cut.
    pieces: Vec<PieceBody>,
    /// Tokens that the model reads.
    tokens: usize,
    /// Tokens before the document's first token. All documents of the query share them.
    shared_tokens: usize,
    /// Tokens that were cut.
    truncated_tokens: usize,
    /// The most tokens that a prompt may have.
    max_input_length: usize,
}

/// A part of the prompt.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PromptPiece)]
struct PieceBody {
    /// Where its text comes from.
    kind: PieceKind,
    text: String,
    /// The number of its tokens: those whose last character it holds.
    tokens: usize,
    /// Their ids.
    ids: Vec<u32>,
    /// Whether it was cut, so that the model does not read it.
    cut: bool,
}

/// Where a part of the prompt comes from.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(as = PromptPieceKind)]
#[serde(rename_all = "lowercase")]
enum PieceKind {
    Template,
    Instruction,
    Query,
    Document,
}

impl From<Option<Slot>> for PieceKind {
    fn from(slot: Option<Slot>) -> Self {
        match slot {
            None => Self::Template,
            Some(Slot::Instruction) => Self::Instruction,
            Some(Slot::Query) => Self::Query,
            Some(Slot::Document) => Self::Document,
        }
    }
}

impl From<PromptPiece> for PieceBody {
    fn from(PromptPiece { slot, text, ids, cut }: PromptPiece) -> Self {
        Self { kind: slot.into(), text, tokens: ids.len(), ids, cut }
    }
}

impl From<ShownPrompt> for ShownBody {
    fn from(shown: ShownPrompt) -> Self {
        Self {
            tokens: shown.tokens(),
            shared_tokens: shown.shared,
            truncated_tokens: shown.truncated(),
            max_input_length: shown.max_input_length,
            pieces: shown.pieces.into_iter().map(PieceBody::from).collect(),
        }
    }
}

/// Show the prompt of a query and a document, piece by piece. Only with a re-ranker.
#[utoipa::path(post, path = "/playground/prompt", operation_id = "show_prompt",
    tag = TAG, request_body = PromptBody,
    responses(
        (status = 200, description = "The prompt, with what was cut of it", body = ShownBody),
        (status = 424, description = "The model is not a re-ranker", body = ErrorBody),
        TokenizerErrors
    ))]
pub(crate) async fn prompt(
    State(state): State<AppState>,
    ParsedBody(body, format): ParsedBody<PromptBody>,
) -> Result<Response, ApiError> {
    let shown = state.served().service.show_prompt(body.into()).await?;
    Ok(format.respond(StatusCode::OK, &ShownBody::from(shown)))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use crate::http::testing::Server;
    use serde_json::{Value, json};

    #[derive(Debug, Clone, PartialEq)]
    struct ReadPiece {
        kind: String,
        text: String,
        tokens: u64,
        cut: bool,
    }

    fn piece(kind: &str, text: &str, tokens: u64, cut: bool) -> ReadPiece {
        ReadPiece { kind: kind.to_owned(), text: text.to_owned(), tokens, cut }
    }

    /// The pieces from the instruction on.
    fn pieces(body: &Value) -> Vec<ReadPiece> {
        let read = |read: &Value| {
            let text = |name: &str| read[name].as_str().unwrap();
            let tokens = read["tokens"].as_u64().unwrap();
            assert_eq!(read["ids"].as_array().unwrap().len() as u64, tokens);
            piece(text("kind"), text("text"), tokens, read["cut"].as_bool().unwrap())
        };
        body["pieces"].as_array().unwrap()[1..].iter().map(read).collect()
    }

    async fn show(server: &Server, fields: &Value) -> Value {
        let answer = server.post("/playground/prompt", &fields.to_string(), &[]).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        serde_json::from_str(&answer.body).unwrap()
    }

    #[tokio::test]
    async fn the_prompt_comes_in_pieces_with_their_tokens() {
        let server = Server::start().await;
        let body = show(&server, &json!({"query": "é", "text": "ab"})).await;
        let suffix = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
        let suffix = piece("template", suffix, 19, false);
        assert_eq!(
            pieces(&body),
            [
                piece("instruction", "Judge.", 6, false),
                piece("template", "\n<Query>: ", 10, false),
                piece("query", "é", 2, false),
                piece("template", "\n<Document>: ", 13, false),
                piece("document", "ab", 2, false),
                suffix.clone(),
            ]
        );
        let tokens = body["tokens"].as_u64().unwrap();
        assert_eq!(body["shared_tokens"], tokens - 2 - 19);
        assert_eq!((&body["truncated_tokens"], &body["max_input_length"]), (&json!(0), &json!(600)));
        let header = server.rerank("é", &["ab"]).await;
        assert_eq!(header.header("x-compute-tokens"), Some(tokens.to_string().as_str()));

        let long = format!("{}{}", "a".repeat(600), "b".repeat(10));
        let room = 600 - (tokens - 2) as usize;
        for (direction, expected) in [
            ("right", [(false, &long[..room]), (true, &long[room..])]),
            ("Left", [(true, &long[..610 - room]), (false, &long[610 - room..])]),
        ] {
            let fields = json!({"query": "é", "text": long, "truncation_direction": direction});
            let body = show(&server, &fields).await;
            let document = expected.map(|(cut, text)| piece("document", text, text.len() as u64, cut));
            assert_eq!(pieces(&body)[4..], [&document[..], std::slice::from_ref(&suffix)].concat());
            assert_eq!((&body["tokens"], &body["truncated_tokens"]), (&json!(600), &json!(610 - room)));
        }
    }
}
