//! Errors of a tokenizer and a template at the start, each with its remedy.

use text_embeddings_backend_core::amount;

/// A tokenizer, or a template together with it, that cannot give correct scores.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each sentence explains its fields")]
pub enum EncoderError {
    /// Any other reason.
    #[error("{0}")]
    Refused(String),
    /// The tokenizer library failed.
    #[error("the tokenizer (tokenizer.json) failed: {reason}; download the model's files again")]
    Tokenizer { reason: String },
    /// The prompt for all texts fills the longest input.
    #[error(
        "the prompt and the tokenizer's special tokens take {} of a longest input of {max}: raise \
         `--max-input-length`, or choose a shorter prompt (of an embedding model, with `--default-prompt`)",
        amount(frame, "token")
    )]
    NoRoomForText { frame: usize, max: usize },
    /// Two different pairs give the same prompt, or different frames.
    #[error(
        "two different pairs do not give two different prompts within the same frame, so their scores would \
         mean nothing: check that tokenizer.json and the template belong to the same model"
    )]
    Pairs,
    /// An answer is not exactly one token.
    #[error(
        "the answer `{answer}` is not one single token of the tokenizer (tokenizer.json), but a generative \
         re-ranker answers with it: check that this is a re-ranker with its own tokenizer, or name its \
         answers with `--rerank-true-token` and `--rerank-false-token`"
    )]
    AnswerToken { answer: String },
    /// A file or flag names a token id that the tokenizer does not have.
    #[error(
        "{field} is {id}, but the tokenizer (tokenizer.json) has no token of that id: check that it belongs \
         to the same model"
    )]
    AnswerId { field: &'static str, id: u32 },
    /// Both answers are the same token.
    #[error(
        "the answers yes and no are the same token {id}, so every score would be the same: correct \
         1_LogitScore/config.json, tokenizer.json or the flags that name them"
    )]
    SameAnswers { id: u32 },
}

impl EncoderError {
    #[expect(clippy::needless_pass_by_value, reason = "the form that `map_err` takes")]
    pub(super) fn tokenizer(error: impl ToString) -> Self {
        Self::Tokenizer { reason: error.to_string() }
    }
}
