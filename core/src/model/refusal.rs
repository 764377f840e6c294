//! The reasons why a model is not served, at the start. Each names a file or flag, and the remedy.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use text_embeddings_backend_core::{BackendKind, ModelType, Pool, amount};

use super::DetectError;
use crate::families::{self, BUILTIN};
use crate::files::FilesError;
use crate::templates::TemplateError;
use crate::tokenization::EncoderError;

/// The remedy for a model whose prompt is not known.
const REMEDY: &str = "give the model's own prompt with `--chat-template FILE`, or the name of its family \
                      with `--chat-template NAME`";

/// A model that cannot be served, or not with these flags.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Its kind is unclear, or differs from the kind that the flags name.
    #[error(transparent)]
    Kind(#[from] DetectError),
    /// A file is not supported.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The tokenizer does not fit the prompt or the answers.
    #[error(transparent)]
    Encoder(#[from] EncoderError),
    /// A flag that another backend obeys.
    #[error("`{flag}` is for {}, but `--backend {backend}` is chosen: leave it out", backend_names(backends))]
    OtherBackend {
        /// The flag.
        flag: &'static str,
        /// The backends that obey it.
        backends: &'static [BackendKind],
        /// The chosen backend.
        backend: BackendKind,
    },
    /// A flag about the CPU, but another device computes.
    #[error("`{flag}` is for the CPU, but {device} computes: leave it out")]
    OtherDevice {
        /// The flag.
        flag: &'static str,
        /// The device.
        device: &'static str,
    },
    /// A flag that is about another kind of model.
    #[error(
        "`{flag}` is for {of}, but `{model_id}` is served as {model_type}: leave it out, or see \
         `--model-type`"
    )]
    OtherKind {
        /// The flag.
        flag: &'static str,
        /// The kinds of model that it is for.
        of: &'static str,
        /// The model.
        model_id: String,
        /// Its kind.
        model_type: ModelType,
    },
    /// A token of a late-interaction model that its tokenizer does not have.
    #[error(
        "the late-interaction model's {what} is `{token}`, which is not a token of tokenizer.json: its vectors \
         would be others; download the tokenizer again"
    )]
    NoLateToken {
        /// Its purpose.
        what: &'static str,
        /// The token.
        token: String,
    },
    /// Tokens to which no token attends, in a model that has no place for them.
    #[error(
        "the files fill queries up to {length} tokens that are not attended to, which is not supported for \
         Qwen3.5, for bidirectional LFM2, and beyond half a window of ModernBERT: give `attend_to_expansion_tokens` or \
         `do_query_expansion` of config_sentence_transformers.json another value only if the model was trained so"
    )]
    UnattendedTokens {
        /// The most tokens of a query.
        length: usize,
    },
    /// The flag is for models with a layer for the vectors of tokens.
    #[error(
        "`--maxsim-rerank` is for embedding models with a layer for the vectors of tokens, a file \
         `colbert_linear.pt` or `colbert_linear.safetensors` (bge-m3), which this one does not have: leave it out"
    )]
    NoTokenVectors,
    /// A pooling that a table of vectors does not have.
    #[error(
        "`--pooling {pool}` is not for static embeddings, which are the mean of their tokens' vectors: leave \
         it out"
    )]
    StaticPooling {
        /// The flag's value.
        pool: Pool,
    },
    /// The flag asks for more than the model's positions allow.
    #[error(
        "`--max-input-length {asked}` is more than the {positions} tokens that the model's positions allow: \
         give at most that"
    )]
    BeyondPositions {
        /// The flag's value.
        asked: usize,
        /// The tokens that the model described in config.json can tell apart by position.
        positions: usize,
    },
    /// An input that does not fit into a batch and may not be cut.
    #[error(
        "with `--auto-truncate false`, `--max-batch-tokens {budget}` must hold the longest input of {}: \
         raise it, or give `--max-input-length`",
        amount(max_length, "token")
    )]
    BudgetTooSmall {
        /// `--max-batch-tokens`.
        budget: usize,
        /// The longest input.
        max_length: usize,
    },
    /// A prompt that is not the model's default, but that the flag or a file names.
    #[error("{place} {reason}")]
    UnknownPrompt {
        /// The flag, or the field with its file.
        place: &'static str,
        /// The problem, and the known names.
        reason: String,
    },
    /// The tokenizer lacks the token that the model's authors put behind each text.
    #[error(
        "{model} puts `{token}` behind each text, which the tokenizer (tokenizer.json) does not have: check \
         that it belongs to the model"
    )]
    NoLastToken {
        /// The models with this token.
        model: &'static str,
        /// The token.
        token: &'static str,
    },
    /// The flag names the prompt of an architecture with a head for it.
    #[error(
        "`--chat-template {family}` is the prompt of another architecture ({}), which has a head for it: \
         leave it out",
        architectures.join(", ")
    )]
    OtherArchitecture {
        /// The family.
        family: &'static str,
        /// Its architectures.
        architectures: &'static [&'static str],
    },
    /// A template for a model with a prompt of its own for many documents.
    #[error(
        "`--chat-template` has no effect on `{model_id}`, which reads all documents of a request in one \
         prompt: leave it out"
    )]
    TemplateForLists {
        /// The model.
        model_id: String,
    },
    /// An answer for a model that compares vectors.
    #[error(
        "`--rerank-true-token` is for re-rankers that answer with a token, but `{model_id}` compares vectors: \
         leave it out"
    )]
    AnswerForLists {
        /// The model.
        model_id: String,
    },
    /// A re-ranker that does not score pairs in single forward passes.
    #[error("`{model_id}` cannot be served as a re-ranker: {reason}")]
    Unserved {
        /// The model.
        model_id: String,
        /// The reason and the remedy.
        reason: &'static str,
    },
    /// A generative re-ranker whose prompt nothing names.
    #[error(
        "`{model_id}` is a generative re-ranker of no family whose prompt is built in, and the repository has \
         no chat template with the roles query and document: {REMEDY}"
    )]
    NoPrompt {
        /// The model.
        model_id: String,
    },
    /// The files name other answers than the family.
    #[error(
        "1_LogitScore/config.json names other answers than the family {family} ({answers}), so the family's \
         prompt would be wrong, and the repository has no chat template with the roles query and document: \
         {REMEDY}"
    )]
    OtherAnswers {
        /// The family.
        family: &'static str,
        /// Its answers in words.
        answers: String,
    },
    /// An architecture whose instruct models do not decide.
    #[error(
        "`--model-type decider` is for instruct models of {supported}, and config.json says {model_type:?}: \
         choose one of those"
    )]
    NoDecider {
        /// `model_type` of config.json.
        model_type: String,
        /// The values that are supported.
        supported: String,
    },
    /// A trained decider with another head.
    #[error(
        "`{model_id}` is a decider of the family {family}, whose head is not supported: choose an instruct model"
    )]
    TrainedDecider {
        /// The model.
        model_id: String,
        /// The family.
        family: &'static str,
    },
    /// A setting of Laya's.
    #[error("rl_agent_config.json or tokenizer/tokenizer_config.json: {problem}: download the model again")]
    LayaSettings {
        /// The setting, and its mistake.
        problem: String,
    },
    /// A setting of any2jev's.
    #[error("any2jev.json or tokenizer/tokenizer.json: {problem}: download the model again")]
    PointerSettings {
        /// The setting, and its mistake.
        problem: String,
    },
    /// A calibration that cannot be applied.
    #[error("`--calibration {path}`: {problem}", path = path.display())]
    Calibration {
        /// Its file.
        path: PathBuf,
        /// The reason.
        problem: String,
    },
    /// The prompt of a family of re-rankers, for a decider.
    #[error(
        "`--chat-template {family}` is the prompt of re-rankers, and a decider reads a conversation: leave it \
         out, or give the path of a chat template"
    )]
    FamilyOfRerankers {
        /// The family.
        family: &'static str,
    },
    /// A decider without a chat template.
    #[error(
        "`{model_id}` has no chat template, which a decider's prompt is written with: choose an instruct model, \
         or give the path of a template with `--chat-template`"
    )]
    NoChatTemplate {
        /// The model.
        model_id: String,
    },
    /// The repository's chat template cannot be a prompt.
    #[error("the repository's chat template ({place}): {cause}")]
    ChatTemplate {
        /// The place of the template.
        place: String,
        /// The reason.
        cause: TemplateError,
    },
    /// `--chat-template` is neither a name nor a file that can be a prompt.
    #[error("`--chat-template {}`: give a Jinja file, or one of {}: {cause}", path.display(), family_names())]
    TemplateFile {
        /// The path.
        path: PathBuf,
        /// The reason.
        cause: String,
    },
    /// An instruction for a model that reads no prompt.
    #[error(
        "`--default-instruction` has no place in `{model_id}`, which reads query and document without a \
         prompt: leave it out, or give `--chat-template FILE`"
    )]
    InstructionWithoutPrompt {
        /// The model.
        model_id: String,
    },
    /// A prompt of the files for a model that reads pairs without one.
    #[error(
        "`default_prompt_name` of config_sentence_transformers.json puts `{prompt}` before each query, which is not \
         supported for a re-ranker that reads query and document without a prompt: remove it there, and put the \
         text into the queries"
    )]
    PromptOfPairs {
        /// The prompt.
        prompt: String,
    },
    /// An instruction for a prompt without a place for it.
    #[error(
        "`--default-instruction` has no place in this model's prompt: leave it out, or choose another prompt \
         with `--chat-template`"
    )]
    InstructionWithoutSlot,
    /// The prompt needs an instruction, and neither flags nor files give one.
    #[error(
        "the model's chat template wants an instruction, and neither it nor the repository has one: give \
         `--default-instruction`"
    )]
    NoInstruction,
}

impl Refusal {
    /// The refusal of the file that `--chat-template` names.
    #[must_use]
    pub fn template_file(path: &Path, cause: &impl Display) -> Self {
        Self::TemplateFile { path: path.to_owned(), cause: cause.to_string() }
    }

    /// The part of the model that is refused, in the words of `verify`: `kind`, `answers`, `template` or
    /// `prompt`.
    #[must_use]
    pub fn part(&self) -> &'static str {
        match self {
            Self::Encoder(
                EncoderError::AnswerId { .. }
                | EncoderError::AnswerToken { .. }
                | EncoderError::SameAnswers { .. },
            ) => "answers",
            Self::InstructionWithoutPrompt { .. }
            | Self::PromptOfPairs { .. }
            | Self::InstructionWithoutSlot
            | Self::NoInstruction => "prompt",
            Self::Kind(_)
            | Self::OtherBackend { .. }
            | Self::OtherDevice { .. }
            | Self::OtherKind { .. }
            | Self::BeyondPositions { .. }
            | Self::BudgetTooSmall { .. } => "kind",
            _ => "template",
        }
    }
}

fn backend_names(backends: &[BackendKind]) -> String {
    backends.iter().map(|kind| format!("`--backend {kind}`")).collect::<Vec<_>>().join(" or ")
}

/// The names that `--chat-template` takes.
fn family_names() -> String {
    let names = families::ALL.iter().map(|family| family.name);
    [BUILTIN].into_iter().chain(names).collect::<Vec<_>>().join(", ")
}
