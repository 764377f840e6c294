//! What stands around the texts of requests: a re-ranker's template and instruction, an embedding model's prompts.
//!
//! Input: flags and the model's files. Output: a [`PromptTemplate`] with its default instruction, or [`Prompts`]. What
//! must hold: a flag goes before the model's files, and a name that the files lack is an error that lists those they have.

use std::{fs, path::Path};

use anyhow::{Context, ensure};
use text_embeddings_core::{
    files::{self, ModelFolder},
    service::Prompts,
    templates::{BuiltinTemplate, PromptTemplate, Qwen3RerankerTemplate},
};

use crate::{args::ChatTemplate, config::Config};

/// The template, and where it comes from: by flag, else the repository's if it has query and document roles, else the
/// built-in one.
pub(crate) fn template(config: &Config, folder: &ModelFolder) -> anyhow::Result<(PromptTemplate, String)> {
    match (&config.chat_template, &folder.chat_template) {
        (Some(ChatTemplate::Builtin(name)), _) => {
            Ok((PromptTemplate::builtin(*name), format!("`{name}`, which `--chat-template` names")))
        }
        (Some(ChatTemplate::File(path)), _) => {
            Ok((template_file(path)?, format!("that of the file {}", path.display())))
        }
        (None, Some(source)) if files::template_has_roles(source) => {
            let template =
                PromptTemplate::from_chat_template(source).context("the repository's chat template")?;
            Ok((template, "the repository's chat template".to_owned()))
        }
        (None, _) => {
            let origin = "Qwen3-Reranker's, as the repository has no template for queries and documents";
            Ok((PromptTemplate::builtin(BuiltinTemplate::Qwen3Reranker), origin.to_owned()))
        }
    }
}

fn template_file(path: &Path) -> anyhow::Result<PromptTemplate> {
    let advice = || {
        format!(
            "`--chat-template {}`: give `builtin`, `qwen3-reranker-evaluation` or a Jinja file",
            path.display()
        )
    };
    let source = fs::read_to_string(path).with_context(advice)?;
    PromptTemplate::from_chat_template(&source).with_context(advice)
}

/// The instruction of requests without one: by flag, by the repository's default prompt, by the template.
pub(crate) fn default_instruction(
    config: &Config,
    folder: &ModelFolder,
    template: &PromptTemplate,
) -> anyhow::Result<String> {
    ensure!(
        config.default_instruction.is_none() || template.has_instruction(),
        "`--default-instruction` has no place in this model's chat template: leave it out, or give `--chat-template builtin`"
    );
    let named = folder.default_prompt_name.as_ref().and_then(|name| folder.prompts.get(name));
    let instruction = config.default_instruction.as_deref().or(named.map(String::as_str));
    let instruction = instruction.or(template.default_instruction());
    Ok(instruction.unwrap_or(Qwen3RerankerTemplate::DEFAULT_INSTRUCTION).to_owned())
}

/// The prompts of an embedding model. The one of requests that name none: by flag, else the model's own default.
pub(super) fn prompts(config: &Config, folder: &ModelFolder) -> anyhow::Result<Prompts> {
    let mut prompts = Prompts { named: folder.prompts.clone(), default: String::new() };
    let find = |place: &str, name: &str| {
        let found = prompts.find(name).map(str::to_owned);
        found.map_err(|reason| anyhow::anyhow!("{place} {reason}"))
    };
    prompts.default = match (&config.default_prompt, &config.default_prompt_name, &folder.default_prompt_name)
    {
        (Some(prompt), _, _) => prompt.clone(),
        (None, Some(name), _) => find("`--default-prompt-name`", name)?,
        (None, None, Some(name)) => find("`default_prompt_name` of config_sentence_transformers.json", name)?,
        (None, None, None) => String::new(),
    };
    Ok(prompts)
}
