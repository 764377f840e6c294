//! Errors of a tokenizer and a template at the start, each with its remedy.

use text_embeddings_backend_core::amount;

/// A tokenizer, or a template together with it, that cannot give correct scores.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncoderError {
    /// The tokenizer library failed.
    #[error("the tokenizer (tokenizer.json) failed: {reason}; download the model's files again")]
    Tokenizer {
        /// The library's words.
        reason: String,
    },
    /// A rule of the tokenizer exceeds a bound on its work.
    #[error(
        "the {part} of tokenizer.json is refused: {reason}; take the tokenizer from a source that you trust"
    )]
    Bomb {
        /// The part of the file with the rule.
        part: &'static str,
        /// The excessive effect of the rule.
        reason: String,
    },
    /// The template uses a token that is recognised depending on the text around it.
    #[error(
        "the template's token `{token}` has `{setting}` set in tokenizer.json, which is not supported: unset \
         it there, or choose another template with `--chat-template`"
    )]
    ControlToken {
        /// The token.
        token: String,
        /// The setting.
        setting: &'static str,
    },
    /// The prompt ends with a token that the tokenizer does not have.
    #[error(
        "the prompt ends with the token {id}, which the tokenizer (tokenizer.json) does not have: check that \
         it belongs to the model"
    )]
    NoToken {
        /// Its id.
        id: u32,
    },
    /// The prompt uses a control token that the tokenizer does not have.
    #[error(
        "the prompt `{family}` needs the token `{token}`, which the tokenizer (tokenizer.json) does not \
         have: choose the model's own prompt with `--chat-template`"
    )]
    NoControlToken {
        /// The family.
        family: &'static str,
        /// The token.
        token: &'static str,
    },
    /// The prompt of queries or documents of a late-interaction model gets other tokens than in its library.
    #[error(
        "the prompt `{prompt}` before a query or document becomes other tokens here than in \
         sentence-transformers, so that scores would differ: this tokenizer is not supported for it"
    )]
    LatePrompt {
        /// The prompt.
        prompt: String,
    },
    /// Plain text can become a control token.
    #[error(
        "text of a request that reads `{token}` would become that control token with this tokenizer (it is \
         in the model's vocabulary, too), so that a document could speak in the template's name; if that is \
         acceptable start with `--parse-special-tokens`"
    )]
    Leak {
        /// The token.
        token: String,
    },
    /// The template alone fills the longest input.
    #[error(
        "the template and the default instruction take {frame} tokens of a longest input of {max}: raise \
         `--max-input-length`"
    )]
    NoRoom {
        /// The number of tokens of the template and the default instruction.
        frame: usize,
        /// The longest input.
        max: usize,
    },
    /// The prompt for all texts fills the longest input.
    #[error(
        "the prompt and the tokenizer's special tokens take {} of a longest input of {max}: raise \
         `--max-input-length`, or choose a shorter prompt (of an embedding model, with `--default-prompt`)",
        amount(frame, "token")
    )]
    NoRoomForText {
        /// The number of tokens of the prompt and special tokens.
        frame: usize,
        /// The longest input.
        max: usize,
    },
    /// Two different texts give the same ids.
    #[error(
        "the tokenizer (tokenizer.json) reads two different texts alike, so their vectors or labels would \
         mean nothing: check that it belongs to the model"
    )]
    Texts,
    /// Two different pairs give the same ids.
    #[error(
        "the tokenizer (tokenizer.json) reads two different pairs of texts alike, so their scores would mean \
         nothing: check that it belongs to the model"
    )]
    PairTexts,
    /// The types of a pair's tokens are not 0 for the first text and 1 for the second.
    #[error(
        "the tokenizer (tokenizer.json) gives the tokens of a pair other types than 0 and then 1, which is \
         not supported: check that it belongs to the model"
    )]
    TokenTypes,
    /// The template leaves out the line of an empty instruction, and the default instruction is empty.
    #[error(
        "the default instruction is empty, and the model's chat template then leaves the instruction's line \
         out, which is not supported: pass `--default-instruction`"
    )]
    EmptyInstruction,
    /// The pieces of a prompt, encoded separately, give other ids than the whole prompt.
    #[error(
        "this tokenizer gives other ids for the pieces of the prompt than for the whole prompt, which is not \
         supported: check that tokenizer.json and the template belong to the same model"
    )]
    Pieces,
    /// Two different pairs give the same prompt, or different frames.
    #[error(
        "two different pairs do not give two different prompts within the same frame, so their scores would \
         mean nothing: check that tokenizer.json and the template belong to the same model"
    )]
    Pairs,
    /// A label of a decider is not exactly one token, or the same as another one.
    #[error(
        "the label `{label}` is not one token of its own behind this model's prompt (tokenizer.json and the \
         chat template), so its probability cannot be read, and the model cannot decide: choose another \
         instruct model"
    )]
    Label {
        /// The label, such as `A`.
        label: String,
    },
    /// A decider's prompt has no control token between the question and the answer.
    #[error(
        "the chat template writes no control token between a message and its answer, so that a text could \
         merge with the answer: choose a model whose template does, or name such a template with \
         `--chat-template`"
    )]
    NoControlBeforeLabel,
    /// An answer is not exactly one token.
    #[error(
        "the answer `{answer}` is not one single token of the tokenizer (tokenizer.json), but a generative \
         re-ranker answers with it: check that this is a re-ranker with its own tokenizer, or name its \
         answers with `--rerank-true-token` and `--rerank-false-token`"
    )]
    AnswerToken {
        /// The answer, such as `yes`.
        answer: String,
    },
    /// A file or flag names a token id that the tokenizer does not have.
    #[error(
        "{field} is {id}, but the tokenizer (tokenizer.json) has no token of that id: check that it belongs \
         to the same model"
    )]
    AnswerId {
        /// The field or flag that names it.
        field: &'static str,
        /// Its value.
        id: u32,
    },
    /// Both answers are the same token.
    #[error(
        "the answers yes and no are the same token {id}, so every score would be the same: correct \
         1_LogitScore/config.json, tokenizer.json or the flags that name them"
    )]
    SameAnswers {
        /// The token.
        id: u32,
    },
}

impl EncoderError {
    #[expect(clippy::needless_pass_by_value, reason = "the form that `map_err` takes")]
    pub(super) fn tokenizer(error: impl ToString) -> Self {
        Self::Tokenizer { reason: error.to_string() }
    }
}
