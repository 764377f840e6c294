//! A re-ranker's prompt, answers and score, and the source of each.
//!
//! Input: flags, the model's files and its tokenizer. Output: [`Resolved`]. What must hold: flags take
//! precedence over the repository's files, and these over the model's family; a model is refused if its
//! prompt is not known or two sources contradict each other, because wrong scores come without an error.

use std::{fs, path::Path};

use anyhow::{Context, bail, ensure};
use text_embeddings_backend::{AnswerRule, AnswerTokens, ModelType};
use text_embeddings_core::{
    families::{Answers, Family, Limits, ScoreRule},
    files::{ModelFacts, ModelFolder},
    templates::{MessageStyle, PromptTemplate, template_has_roles},
    tokenization::{AnswerSource, EncoderError, answer_tokens},
};
use tokenizers::Tokenizer;

use crate::{
    args::{Args, ChatTemplateSource},
    config::Config,
    info::RerankerDetails,
};

/// The remedy for a model whose prompt is not known.
const REMEDY: &str = "give the model's own prompt with `--chat-template FILE`, or the name of its family \
                      with `--chat-template NAME`";

/// The decisions by a re-ranker's family, files and flags.
#[derive(Debug)]
pub(crate) struct Resolved {
    /// The family, and the reason for it.
    pub(crate) family: Option<(&'static Family, String)>,
    /// The prompt, and where it comes from.
    pub(crate) prompt: (Prompt, String),
    /// A generative re-ranker's answers, and where they come from.
    pub(crate) answers: Option<(AnswerTokens, String)>,
    /// The number of layers after which a layer-wise re-ranker scores.
    pub(crate) cutoff_layers: Option<usize>,
    /// The rule from raw scores to scores, and its source.
    pub(crate) score: (ScoreRule, String),
}

impl Resolved {
    /// The same in words.
    pub(crate) fn details(&self, tokenizer: &Tokenizer) -> RerankerDetails {
        let (family, family_reason) =
            self.family.as_ref().map(|(family, reason)| (family.name.to_owned(), reason.clone())).unzip();
        let answers = self.answers.as_ref();
        let answers =
            answers.map(|(answers, origin)| format!("{}, by {origin}", score_words(answers, tokenizer)));
        RerankerDetails {
            family,
            family_reason,
            prompt: self.prompt.1.clone(),
            answers,
            cutoff_layers: self.cutoff_layers,
            scores_depend_on_request: self.reads_lists(),
            score: self.score.0.to_string(),
            score_reason: self.score.1.clone(),
        }
    }

    /// Whether the model reads the documents of a request together.
    pub(crate) fn reads_lists(&self) -> bool {
        matches!(&self.prompt.0, Prompt::Template(template) if template.list().is_some())
    }
}

/// The raw score of a generative re-ranker, such as "`yes` (9693) less `no` (2152)".
fn score_words(answers: &AnswerTokens, tokenizer: &Tokenizer) -> String {
    let token = |id: u32| format!("`{}` ({id})", tokenizer.id_to_token(id).unwrap_or_default());
    let weighted = || {
        let terms = answers.tokens.iter().map(|answer| format!("{} of {}", answer.weight, token(answer.id)));
        terms.collect::<Vec<_>>().join(", ")
    };
    match answers.tokens.as_slice() {
        [yes] if *answers == AnswerTokens::difference(yes.id, None) => token(yes.id),
        [yes, no] if *answers == AnswerTokens::difference(yes.id, Some(no.id)) => {
            format!("{} less {}", token(yes.id), token(no.id))
        }
        _ if answers.rule == AnswerRule::ExpectedWeight => format!("the mean of the weights {}", weighted()),
        _ => format!("the sum of logits with the weights {}", weighted()),
    }
}

/// How a re-ranker reads query and document.
#[derive(Debug)]
pub(crate) enum Prompt {
    /// In a template, with one document or with many.
    Template(PromptTemplate),
    /// As the tokenizer joins them.
    Joined,
}

/// The prompt length that a re-ranker's family recommends, as far as it is known before the tokenizer is.
pub(crate) fn limits(args: &Args, folder: &ModelFolder, model_type: ModelType) -> Option<Limits> {
    let (facts, flag) = (ModelFacts::from(folder), args.model.chat_template.as_ref());
    let family = named_family(flag, &facts)
        .map(|(family, _)| family)
        .or_else(|| unnamed_family(&facts, folder, model_type))
        .map(|family| family.limits);
    match model_type {
        ModelType::ListwiseReranker => Some(family.unwrap_or(Limits::DEFAULT)),
        ModelType::Reranker => family,
        ModelType::Embedding(_) | ModelType::Classifier => None,
    }
}

/// Decides prompt, answers and score.
///
/// # Errors
///
/// If a prompt does not fit, if a re-ranker's prompt is not known, or if files and family contradict each
/// other.
pub(crate) fn resolve(
    config: &Config,
    folder: &ModelFolder,
    tokenizer: &Tokenizer,
) -> anyhow::Result<Resolved> {
    let facts = ModelFacts::from(folder);
    let mut family = named_family(config.chat_template.as_ref(), &facts);
    if let Some(resolved) = listwise(config, folder, &facts, tokenizer)? {
        return Ok(resolved);
    }
    let own = own_prompt(config, folder)?;
    if family.is_none() {
        family = match &own {
            Some((template, _)) => family_by_prompt(template, &facts),
            None => unnamed_family(&facts, folder, config.model_type).map(|family| {
                let reason = format!("config.json says {}, and its name says nothing else", facts.model_type);
                (family, reason)
            }),
        };
    }
    // A fine-tuned model with other answers than its family has another score, too.
    let agrees = family.as_ref().map_or(Ok(true), |(family, _)| agrees(family, folder, tokenizer))?;
    let prompt = match own {
        Some((template, origin)) => match &family {
            Some((family, _)) => Some((template.ending_in(family), origin)),
            None => Some((template, origin)),
        },
        None => family_prompt(config, folder, family.as_ref(), (agrees, tokenizer))?,
    };
    let joined = || (Prompt::Joined, "none: the model's tokenizer joins query and document".to_owned());
    let prompt = prompt.map_or_else(joined, |(template, origin)| (Prompt::Template(template), origin));
    let is_chosen = matches!(config.chat_template, Some(ChatTemplateSource::Builtin(_)));
    let family = family.filter(|_| agrees || is_chosen);
    Ok(Resolved {
        answers: answers(config, folder, family.as_ref().map(|(family, _)| *family), tokenizer)?,
        score: score_rule(config, family.as_ref().map(|(family, _)| *family)),
        cutoff_layers: folder.description.cutoff_layers,
        family,
        prompt,
    })
}

/// The decisions for a listwise re-ranker: its architecture makes all of them.
fn listwise(
    config: &Config,
    folder: &ModelFolder,
    facts: &ModelFacts,
    tokenizer: &Tokenizer,
) -> anyhow::Result<Option<Resolved>> {
    let own = facts.evidence().family().filter(|(family, _)| family.list.is_some());
    let chosen = match &config.chat_template {
        Some(ChatTemplateSource::Builtin(family)) => Some(*family),
        _ => None,
    };
    let Some((family, reason)) = own else {
        if let Some(family) = chosen.filter(|family| family.list.is_some()) {
            bail!(
                "`--chat-template {}` is the prompt of another architecture ({}), which has a head for it: \
                 leave it out",
                family.name,
                family.architectures.join(", ")
            );
        }
        return Ok(None);
    };
    ensure!(
        config.chat_template.is_none() || chosen == Some(family),
        "`--chat-template` has no effect on `{}`, which reads all documents of a request in one prompt: \
         leave it out",
        config.model_id
    );
    ensure!(
        config.rerank_true_token.is_none(),
        "`--rerank-true-token` is for re-rankers that answer with a token, but `{}` compares vectors: leave \
         it out",
        config.model_id
    );
    if let Some(token) = family.missing_token(tokenizer) {
        return Err(EncoderError::NoControlToken { family: family.name, token }.into());
    }
    Ok(Some(Resolved {
        prompt: (
            Prompt::Template(PromptTemplate::builtin(family)),
            format!("that of the family {}: {reason}", family.name),
        ),
        answers: None,
        cutoff_layers: folder.description.cutoff_layers,
        score: score_rule(config, Some(family)),
        family: Some((family, reason)),
    }))
}

/// The family by flag, by the model's architecture or by its name.
fn named_family(flag: Option<&ChatTemplateSource>, facts: &ModelFacts) -> Option<(&'static Family, String)> {
    match flag {
        Some(ChatTemplateSource::Builtin(family)) => Some((*family, "`--chat-template` names it".to_owned())),
        _ => facts.evidence().family(),
    }
}

/// The family of a re-ranker with this architecture if its name does not tell.
fn unnamed_family(facts: &ModelFacts, folder: &ModelFolder, kind: ModelType) -> Option<&'static Family> {
    let is_known =
        !folder.ends_in_scores && matches!(kind, ModelType::Reranker | ModelType::ListwiseReranker);
    let family = facts.evidence().unnamed_family().filter(|_| is_known)?;
    // A generative re-ranker that also sees later tokens does not belong to a causal family.
    (family.answers.is_none() || folder.description.is_causal).then_some(family)
}

/// The family with the same prompt as a template.
fn family_by_prompt(template: &PromptTemplate, facts: &ModelFacts) -> Option<(&'static Family, String)> {
    let families = text_embeddings_core::families::ALL.iter();
    let mut fitting = families
        .filter(|family| family.model_types.contains(&facts.model_type.as_str()) && family.list.is_none());
    let found = fitting.find(|family| PromptTemplate::builtin(family).reads_as(template))?;
    Some((found, "its chat template writes this family's prompt".to_owned()))
}

/// The prompt in a file that the user names, or in the repository.
fn own_prompt(config: &Config, folder: &ModelFolder) -> anyhow::Result<Option<(PromptTemplate, String)>> {
    match (&config.chat_template, &folder.chat_template) {
        (Some(ChatTemplateSource::File(path)), _) => {
            Ok(Some((template_file(path)?, format!("that of the file {}", path.display()))))
        }
        (None, Some(chosen)) if template_has_roles(&chosen.source) => {
            let template = PromptTemplate::from_chat_template(&chosen.source, &chosen.style)
                .with_context(|| format!("the repository's chat template ({})", chosen.place))?;
            Ok(Some((template, format!("the repository's chat template ({})", chosen.place))))
        }
        (Some(ChatTemplateSource::Builtin(_)) | None, _) => Ok(None),
    }
}

/// The prompt of the model's family; absent if the tokenizer joins query and document.
fn family_prompt(
    config: &Config,
    folder: &ModelFolder,
    family: Option<&(&'static Family, String)>,
    (agrees, tokenizer): (bool, &Tokenizer),
) -> anyhow::Result<Option<(PromptTemplate, String)>> {
    let generative = config.model_type == ModelType::ListwiseReranker;
    let facts = ModelFacts::from(folder);
    if let Some(reason) = facts.evidence().unserved().filter(|_| generative && config.chat_template.is_none())
    {
        bail!("`{}` cannot be served as a re-ranker: {reason}", config.model_id);
    }
    let Some((family, reason)) = family else {
        ensure!(
            !generative,
            "`{}` is a generative re-ranker of no family whose prompt is built in, and the repository has no \
             chat template with the roles query and document: {REMEDY}",
            config.model_id
        );
        return Ok(None);
    };
    let is_chosen = matches!(config.chat_template, Some(ChatTemplateSource::Builtin(_)));
    let name = family.name;
    ensure!(
        agrees || is_chosen,
        "1_LogitScore/config.json names other answers than the family {name} ({}), so the family's prompt \
         would be wrong, and the repository has no chat template with the roles query and document: {REMEDY}",
        answer_words(family.answers),
    );
    if let Some(token) = family.missing_token(tokenizer) {
        return Err(EncoderError::NoControlToken { family: name, token }.into());
    }
    Ok(Some((PromptTemplate::builtin(family), format!("that of the family {name}: {reason}"))))
}

/// The answers of a family, for messages.
fn answer_words(answers: Option<Answers>) -> String {
    match answers {
        Some(answers) => answers.to_string(),
        None => "a head of its own".to_owned(),
    }
}

/// Whether a family has the answers of `1_LogitScore/config.json`, if there is one.
fn agrees(family: &Family, folder: &ModelFolder, tokenizer: &Tokenizer) -> anyhow::Result<bool> {
    let Some(named) = folder.logit_score else { return Ok(true) };
    let named = answer_tokens(tokenizer, AnswerSource::LogitScore(named))?;
    let own = family.answers.map(|answers| answer_tokens(tokenizer, AnswerSource::Family(answers)));
    Ok(own.is_some_and(|own| own == Ok(named)))
}

/// The answers of a generative re-ranker: by flags, `1_LogitScore/config.json`, family, else `yes` and `no`.
fn answers(
    config: &Config,
    folder: &ModelFolder,
    family: Option<&Family>,
    tokenizer: &Tokenizer,
) -> anyhow::Result<Option<(AnswerTokens, String)>> {
    if config.model_type != ModelType::ListwiseReranker {
        return Ok(None);
    }
    let (source, origin) = match (&config.rerank_true_token, folder.logit_score) {
        (Some(yes), _) => {
            let no = config.rerank_false_token.as_ref();
            (AnswerSource::Flags(yes, no), "`--rerank-true-token`".to_owned())
        }
        (None, Some(named)) => (AnswerSource::LogitScore(named), "1_LogitScore/config.json".to_owned()),
        (None, None) => match family.and_then(|family| Some((family.answers?, family.name))) {
            Some((answers, name)) => (AnswerSource::Family(answers), format!("the family {name}")),
            None => (AnswerSource::Family(Answers::YES_NO), "the tokenizer".to_owned()),
        },
    };
    Ok(Some((answer_tokens(tokenizer, source)?, origin)))
}

/// The rule of default scores: by flag, family, else the sigmoid as in TEI.
fn score_rule(config: &Config, family: Option<&Family>) -> (ScoreRule, String) {
    match (config.rerank_activation, family) {
        (Some(rule), _) => (rule, "`--rerank-activation`".to_owned()),
        (None, Some(family)) => (family.score, format!("the family {}", family.name)),
        (None, None) => (ScoreRule::SIGMOID, "the rule for all re-rankers".to_owned()),
    }
}

/// Refuses `--default-instruction` for a model without a template.
pub(crate) fn refuse_instruction(config: &Config) -> anyhow::Result<()> {
    ensure!(
        config.default_instruction.as_ref().is_none_or(String::is_empty),
        "`--default-instruction` has no place in `{}`, which reads query and document without a prompt: \
         leave it out, or give `--chat-template FILE`",
        config.model_id
    );
    Ok(())
}

fn template_file(path: &Path) -> anyhow::Result<PromptTemplate> {
    let advice = || {
        let names: Vec<&str> = text_embeddings_core::families::ALL.iter().map(|family| family.name).collect();
        format!(
            "`--chat-template {}`: give a Jinja file, or one of builtin, {}",
            path.display(),
            names.join(", ")
        )
    };
    let source = fs::read_to_string(path).with_context(advice)?;
    PromptTemplate::from_chat_template(&source, &MessageStyle::plain()).with_context(advice)
}

/// The instruction of requests without one: by flag, else by the repository's default prompt, the template or
/// the family. Absent if the template has a form of its own for such requests, or no place for an
/// instruction.
pub(crate) fn default_instruction(
    config: &Config,
    folder: &ModelFolder,
    template: &PromptTemplate,
    family: Option<&Family>,
) -> anyhow::Result<Option<String>> {
    ensure!(
        config.default_instruction.as_ref().is_none_or(String::is_empty) || template.has_instruction(),
        "`--default-instruction` has no place in this model's prompt: leave it out, or choose another prompt \
         with `--chat-template`"
    );
    if !template.has_instruction() {
        return Ok(None);
    }
    let named = folder.default_prompt_name.as_ref().and_then(|name| folder.prompts.get(name));
    let instruction = config.default_instruction.as_deref().or(named.map(String::as_str));
    let instruction = instruction.or(template.default_instruction());
    let of_family = family.filter(|_| !template.has_bare_form());
    let instruction = instruction.or(of_family.and_then(|family| family.default_instruction));
    ensure!(
        instruction.is_some() || template.has_bare_form(),
        "the model's chat template wants an instruction, and neither it nor the repository has one: give \
         `--default-instruction`"
    );
    Ok(instruction.map(str::to_owned))
}
