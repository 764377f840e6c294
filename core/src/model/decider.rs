//! A decider: an instruct model that answers questions about a text with the probabilities of labels.
//!
//! Input: flags, the model's files and its tokenizer. Output: a [`Decider`] and its head. What must hold: a
//! model whose logits need a step that is not computed is refused by name.

use std::fmt;

use text_embeddings_backend_core::{AnswerTokens, Head, WholeHead, amount};
use tokenizers::Tokenizer;

use super::{Laya, Model, ModelFlags, ModelKind, Pointer, PromptFlag, Reading, Refusal, Reranker, Sourced};
use crate::files::ModelFolder;
use crate::templates::MessageTemplate;
use crate::tokenization::{LabelTokens, MAX_OPTIONS};

/// The values of `model_type` in config.json of architectures whose instruct models decide: their logits are
/// the product of the last state and the output embedding, bounded or not.
const MODEL_TYPES: [&str; 9] =
    ["qwen2", "qwen3", "qwen3_5", "qwen3_5_text", "llama", "mistral", "gemma", "gemma2", "gemma3_text"];

/// A model that reads all options of a question together.
#[derive(Debug, Clone, PartialEq)]
pub enum Decider {
    /// An instruct model, whose labels' logits answer.
    Labels(LabelDecider),
    /// A trained decider of the family Laya.
    Laya(Laya),
    /// A trained decider of the family any2jev.
    Pointer(Pointer),
}

/// An instruct model that decides.
#[derive(Debug, Clone, PartialEq)]
pub struct LabelDecider {
    /// The prompt.
    pub conversation: Sourced<MessageTemplate>,
    /// The tokens of all labels.
    pub labels: LabelTokens,
}

/// How a model decides.
#[derive(Debug, Clone, Copy)]
pub enum Deciding<'a> {
    /// It reads a question with all options.
    Together(&'a Decider),
    /// It reads a question with one option at a time, and says whether the option is right.
    Options(&'a Reranker),
}

impl Decider {
    /// Decides prompt and labels, or reads the settings of a trained decider.
    pub(super) fn resolve_decider(
        files: &ModelFolder,
        tokenizer: &Tokenizer,
        flags: &ModelFlags,
    ) -> Result<(Self, Head), Refusal> {
        if files.is_laya() {
            let (laya, head) = Laya::from_files(files, tokenizer)?;
            return Ok((Self::Laya(laya), head));
        }
        if files.is_pointer() {
            let (pointer, head) = Pointer::from_files(files, tokenizer)?;
            return Ok((Self::Pointer(pointer), head));
        }
        let (decider, head) = LabelDecider::resolve_labels(files, tokenizer, flags)?;
        Ok((Self::Labels(decider), head))
    }

    /// The most options of a question.
    pub fn max_options(&self) -> usize {
        match self {
            Self::Labels(decider) => decider.labels.max_options(),
            Self::Laya(_) | Self::Pointer(_) => MAX_OPTIONS,
        }
    }
}

impl LabelDecider {
    fn resolve_labels(
        files: &ModelFolder,
        tokenizer: &Tokenizer,
        flags: &ModelFlags,
    ) -> Result<(Self, Head), Refusal> {
        if let Some(family) = files.trained_decider {
            return Err(Refusal::Other(format!(
                "`{}` is a decider of the family {family}, whose head is not supported: choose an instruct model",
                files.model_id
            )));
        }
        let model_type = files.config.model_type.as_deref().unwrap_or_default();
        if !MODEL_TYPES.contains(&model_type) || !files.description.is_causal {
            let supported = MODEL_TYPES.join(", ");
            return Err(Refusal::Other(format!(
                "`--model-type decider` is for instruct models of {supported}, and config.json says {model_type:?}: \
                 choose one of those"
            )));
        }
        let conversation = find_conversation(files, flags)?;
        let labels = LabelTokens::find_behind(tokenizer, &conversation.value.tail)?;
        let head = Head::label_logits(labels.token_ids().to_vec());
        Ok((Self { conversation, labels }, head))
    }
}

impl fmt::Display for Decider {
    /// The sentence for the log.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = amount(self.max_options(), "option");
        let prompt = match self {
            Self::Labels(decider) => &decider.conversation.source,
            Self::Laya(_) => "Laya's own, with a marker before each option",
            Self::Pointer(_) => "any2jev's own, with tokens around each option",
        };
        write!(formatter, "Prompt: {prompt}; a question may have up to {options}")
    }
}

impl Model {
    /// The decider, if it is one.
    pub fn as_decider(&self) -> Option<&Decider> {
        if let ModelKind::Decider(model) = &self.kind { Some(model) } else { None }
    }

    /// How it decides; absent if it does not. Of the re-rankers, those do whose raw score is the log-odds of
    /// two answers to a prompt.
    pub fn how_it_decides(&self) -> Option<Deciding<'_>> {
        if let Some(decider) = self.as_decider() {
            return Some(Deciding::Together(decider));
        }
        let reranker = self.reranker()?;
        let Some(WholeHead::Answers(answers)) = &self.head.whole else { return None };
        let is_odds = match answers.tokens.as_slice() {
            [yes, no] => *answers == AnswerTokens::difference(yes.id, Some(no.id)),
            _ => false,
        };
        let has_prompt = matches!(reranker.reading, Reading::Template(_));
        if is_odds && has_prompt { Some(Deciding::Options(reranker)) } else { None }
    }
}

/// The prompt in a file that the user names, or in the repository.
fn find_conversation(files: &ModelFolder, flags: &ModelFlags) -> Result<Sourced<MessageTemplate>, Refusal> {
    let (source, place, from_flag) = match (&flags.chat_template, &files.chat_template) {
        (Some(PromptFlag::Builtin(family)), _) => {
            return Err(Refusal::Other(format!(
                "`--chat-template {}` is the prompt of re-rankers, and a decider reads a conversation: leave it out, \
                 or give the path of a chat template",
                family.name
            )));
        }
        (Some(PromptFlag::File { path, source }), _) => (source, path.display().to_string(), true),
        (None, Some(chosen)) => (&chosen.source, chosen.place.clone(), false),
        (None, None) => {
            return Err(Refusal::Other(format!(
                "`{}` has no chat template, which a decider's prompt is written with: choose an instruct model, or \
                 give the path of a template with `--chat-template`",
                files.model_id
            )));
        }
    };
    let style = files.chat_template.as_ref().map(|chosen| chosen.style.clone()).unwrap_or_default();
    let style = style.with_tokens(&files.special_tokens);
    let conversation = MessageTemplate::from_chat_template(source, &style)
        .map_err(|cause| Refusal::chat_template(&place, &cause))?;
    let owner = if from_flag { "that of the file" } else { "the repository's chat template" };
    Ok(Sourced::new(conversation, format!("{owner} ({place})")))
}
