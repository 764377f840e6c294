//! A re-ranker's family and prompt, and where both come from.
//!
//! Input: flags, the model's files and its tokenizer. Output: the family and the [`Reading`]. What must hold:
//! a flag takes precedence over the repository's template, and that over the family; a prompt that is not
//! known is an error.

use text_embeddings_backend_core::ModelType;
use tokenizers::Tokenizer;

use super::answers::{answers_agree, family_answers};
use crate::families::{self, Family, Limits};
use crate::files::ModelFolder;
use crate::model::{ModelFlags, PromptFlag, Refusal, Sourced};
use crate::templates::{MessageStyle, PromptTemplate, TemplateError, template_has_roles};

/// The remedy for a model whose prompt is not known.
const REMEDY: &str = "give the model's own prompt with `--chat-template FILE`, or the name of its family \
                      with `--chat-template NAME`";

/// How a re-ranker reads query and document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Reading {
    /// As the tokenizer joins them.
    #[default]
    Joined,
    /// In a template, with one document or with many.
    Template(PromptTemplate),
}

impl Reading {
    /// The family whose prompt this is up to the document, but with another end. The scores of such a prompt
    /// are far off, and the ends of files that other servers ship are easily lost.
    pub fn family_with_other_end(&self) -> Option<&'static Family> {
        let Self::Template(template) = self else { return None };
        let (start, end) = around_document(template)?;
        let mut near = None;
        for family in families::ALL.iter().copied().filter(|family| family.list.is_none()) {
            match around_document(&PromptTemplate::builtin(family)) {
                Some(own) if own.0 != start => {}
                Some(own) if own.1 == end => return None,
                Some(_) => near = near.or(Some(family)),
                None => {}
            }
        }
        near
    }
}

/// A prompt's text before and after its document.
fn around_document(template: &PromptTemplate) -> Option<(String, String)> {
    let written = template.render("\u{1}i", "\u{1}q", "\u{1}d");
    written.split_once("\u{1}d").map(|(start, end)| (start.to_owned(), end.to_owned()))
}

/// The prompt length that a re-ranker's family recommends.
pub(in crate::model) fn recommended_limits(
    files: &ModelFolder,
    flags: &ModelFlags,
    model_type: ModelType,
) -> Option<Limits> {
    let family = match named_family(files, flags) {
        Some(family) => Some(family.value),
        None => unnamed_family(files, model_type),
    };
    let limits = family.map(|family| family.limits);
    match model_type {
        ModelType::ListwiseReranker => Some(limits.unwrap_or(Limits::DEFAULT)),
        ModelType::Reranker => limits,
        ModelType::Embedding(_) | ModelType::Classifier | ModelType::Decider => None,
    }
}

/// The family of a model that reads many documents in one prompt: its architecture decides that.
pub(super) fn list_family(
    files: &ModelFolder,
    tokenizer: &Tokenizer,
    flags: &ModelFlags,
) -> Result<Option<Sourced<&'static Family>>, Refusal> {
    let chosen = flags.named_family();
    let (family, reason) = match (files.evidence().family(), chosen) {
        (Some((family, reason)), _) if family.list.is_some() => (family, reason),
        (_, Some(&Family { name: family, architectures, list: Some(_), .. })) => {
            return Err(Refusal::Other(format!(
                "`--chat-template {family}` is the prompt of another architecture ({}), which has a head for it: \
                 leave it out",
                architectures.join(", ")
            )));
        }
        _ => return Ok(None),
    };
    let model_id = &files.model_id;
    if flags.chat_template.is_some() && chosen != Some(family) {
        return Err(Refusal::Other(format!(
            "`--chat-template` has no effect on `{model_id}`, which reads all documents of a request in one prompt: \
             leave it out"
        )));
    }
    if flags.rerank_true_token.is_some() {
        return Err(Refusal::Other(format!(
            "`--rerank-true-token` is for re-rankers that answer with a token, but `{model_id}` compares vectors: \
             leave it out"
        )));
    }
    require_tokens(family, tokenizer)?;
    Ok(Some(Sourced::new(family, reason)))
}

/// Refuses flags about a prompt for a model that compares texts token by token.
pub(super) fn refuse_prompt_flags(files: &ModelFolder, flags: &ModelFlags) -> Result<(), Refusal> {
    let has_instruction = flags.default_instruction.as_ref().is_some_and(|text| !text.is_empty());
    let flag = match (&flags.chat_template, has_instruction) {
        (Some(_), _) => "--chat-template",
        (None, true) => "--default-instruction",
        (None, false) => return Ok(()),
    };
    Err(Refusal::Other(format!(
        "`{flag}` has no effect on `{}`, which compares texts token by token, without a prompt: leave it out",
        files.model_id
    )))
}

/// Refuses a tokenizer that lacks a control token of the family's prompt.
fn require_tokens(family: &Family, tokenizer: &Tokenizer) -> Result<(), Refusal> {
    match family.missing_token(tokenizer) {
        Some(token) => Err(Refusal::Other(format!(
            "the prompt `{}` needs the token `{token}`, which the tokenizer (tokenizer.json) does not have: choose the \
             model's own prompt with `--chat-template`",
            family.name
        ))),
        None => Ok(()),
    }
}

/// The prompt of a model that reads one document at a time.
pub(super) struct FoundPrompt {
    /// The family, and the reason for it.
    pub(super) family: Option<Sourced<&'static Family>>,
    /// Whether the family has the answers that the files name.
    pub(super) agrees: bool,
    /// How the model reads, and where the prompt comes from.
    pub(super) reading: Sourced<Reading>,
}

/// Finds family and prompt: by flag, else by the repository's template, else by the family.
pub(super) fn find_prompt(
    files: &ModelFolder,
    tokenizer: &Tokenizer,
    flags: &ModelFlags,
    is_generative: bool,
) -> Result<FoundPrompt, Refusal> {
    if files.joins_pairs && flags.chat_template.is_none() {
        let source = "none: sentence_bert_config.json has no `message` in `modality_config`, so that the tokenizer joins \
                      query and document";
        return Ok(FoundPrompt {
            family: None,
            agrees: true,
            reading: Sourced::new(Reading::Joined, source),
        });
    }
    let model_type = if is_generative { ModelType::ListwiseReranker } else { ModelType::Reranker };
    let mut family = named_family(files, flags);
    let own = own_prompt(files, flags)?;
    if family.is_none() {
        family = match &own {
            Some(template) => family_by_prompt(files, &template.value),
            None => unnamed_family(files, model_type).map(|family| {
                let model_type = files.config.model_type.as_deref().unwrap_or_default();
                Sourced::new(family, format!("config.json says {model_type}, and its name says nothing else"))
            }),
        };
    }
    // A fine-tuned model with other answers than its family has another score, too.
    let agrees = match &family {
        Some(family) => answers_agree(files, tokenizer, family.value)?,
        None => true,
    };
    let template = match (own, &family) {
        (Some(Sourced { value, source }), Some(family)) => {
            Some(Sourced::new(value.ending_in(family.value), source))
        }
        (Some(own), None) => Some(own),
        (None, family) => family_prompt(files, tokenizer, flags, is_generative, family.as_ref(), agrees)?,
    };
    let reading = match template {
        Some(Sourced { value, source }) => Sourced::new(Reading::Template(value), source),
        None => Sourced::new(Reading::Joined, "none: the model's tokenizer joins query and document"),
    };
    Ok(FoundPrompt { family, agrees, reading })
}

/// The family by flag, by the model's architecture or by its name.
fn named_family(files: &ModelFolder, flags: &ModelFlags) -> Option<Sourced<&'static Family>> {
    match flags.named_family() {
        Some(family) => Some(Sourced::new(family, "`--chat-template` names it")),
        None => files.evidence().family().map(|(family, reason)| Sourced::new(family, reason)),
    }
}

/// The family of a re-ranker with this architecture if its name does not tell.
fn unnamed_family(files: &ModelFolder, model_type: ModelType) -> Option<&'static Family> {
    let is_reranker = matches!(model_type, ModelType::Reranker | ModelType::ListwiseReranker);
    if files.ends_in_scores || !is_reranker {
        return None;
    }
    let family = files.evidence().unnamed_family()?;
    // A generative re-ranker that also sees later tokens does not belong to a causal family.
    if family.answers.is_none() || files.description.is_causal { Some(family) } else { None }
}

/// The family with the same prompt as a template.
fn family_by_prompt(files: &ModelFolder, template: &PromptTemplate) -> Option<Sourced<&'static Family>> {
    let model_type = files.config.model_type.as_deref().unwrap_or_default();
    let found = families::ALL.iter().find(|family| {
        family.model_types.contains(&model_type)
            && family.list.is_none()
            && PromptTemplate::builtin(family).reads_as(template)
    })?;
    Some(Sourced::new(*found, "its chat template writes this family's prompt"))
}

/// The prompt in a file that the user names, or in the repository.
fn own_prompt(files: &ModelFolder, flags: &ModelFlags) -> Result<Option<Sourced<PromptTemplate>>, Refusal> {
    match (&flags.chat_template, &files.chat_template) {
        (Some(PromptFlag::File { path, source }), _) => {
            // A general one may tell pairs apart by writing each role as it comes, but no re-ranker was
            // trained with such a prompt.
            let template = if template_has_roles(source) {
                learn_prompt(files, source, MessageStyle::plain())
            } else {
                Err(TemplateError::General)
            };
            let template = template.map_err(|cause| Refusal::template_file(path, &cause))?;
            Ok(Some(Sourced::new(template, format!("that of the file {}", path.display()))))
        }
        (None, Some(chosen)) if chosen.renders_pairs || template_has_roles(&chosen.source) => {
            let place = &chosen.place;
            match learn_prompt(files, &chosen.source, chosen.style.clone()) {
                Ok(template) => {
                    Ok(Some(Sourced::new(template, format!("the repository's chat template ({place})"))))
                }
                Err(cause) => Err(Refusal::chat_template(place, &cause)),
            }
        }
        (Some(PromptFlag::Builtin(_)) | None, _) => Ok(None),
    }
}

/// The prompt of a chat template that gets the tokenizer's special tokens.
fn learn_prompt(
    files: &ModelFolder,
    source: &str,
    style: MessageStyle,
) -> Result<PromptTemplate, TemplateError> {
    PromptTemplate::from_chat_template(source, &style.with_tokens(&files.special_tokens))
}

/// The refusal of a generative re-ranker whose prompt nothing names.
pub(super) fn no_prompt(files: &ModelFolder) -> Refusal {
    Refusal::Other(format!(
        "`{}` is a generative re-ranker of no family whose prompt is built in, and the repository has no chat template \
         with the roles query and document: {REMEDY}",
        files.model_id
    ))
}

/// The prompt of the model's family; absent if the tokenizer joins query and document.
fn family_prompt(
    files: &ModelFolder,
    tokenizer: &Tokenizer,
    flags: &ModelFlags,
    is_generative: bool,
    family: Option<&Sourced<&'static Family>>,
    agrees: bool,
) -> Result<Option<Sourced<PromptTemplate>>, Refusal> {
    if is_generative
        && flags.chat_template.is_none()
        && let Some(reason) = files.evidence().unserved()
    {
        let model_id = &files.model_id;
        return Err(Refusal::Other(format!("`{model_id}` cannot be served as a re-ranker: {reason}")));
    }
    let Some(Sourced { value: family, source }) = family else {
        return if is_generative { Err(no_prompt(files)) } else { Ok(None) };
    };
    if !agrees && !matches!(flags.chat_template, Some(PromptFlag::Builtin(_))) {
        let answers = family_answers(family.answers);
        return Err(Refusal::Other(format!(
            "1_LogitScore/config.json names other answers than the family {} ({answers}), so the family's prompt would \
             be wrong, and the repository has no chat template with the roles query and document: {REMEDY}",
            family.name
        )));
    }
    require_tokens(family, tokenizer)?;
    let source = format!("that of the family {}: {source}", family.name);
    Ok(Some(Sourced::new(PromptTemplate::builtin(family), source)))
}
