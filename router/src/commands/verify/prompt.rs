//! The lines about a model's prompt, answers and score, and where they come from.

use std::io::{self, Write};

use sha2::{Digest, Sha256};
use text_embeddings_core::{
    files::ModelFolder,
    model::{Model, Reading, Reranker},
    templates::PromptTemplate,
};

use super::{Checks, NO_TEMPLATE};
use crate::startup;

/// Shows a model's prompt, answers and score, and where they come from.
pub(super) fn check_prompt(
    model: &Model,
    folder: &ModelFolder,
    verbose: bool,
    checks: &mut Checks,
) -> anyhow::Result<()> {
    let Some(reranker) = model.reranker() else { return Ok(checks.note("template", NO_TEMPLATE)?) };
    checks.check("template", Ok(((), reranker.prompt_source.clone())))?;
    match &reranker.reading {
        Reading::Template(template) => check_template(reranker, template, folder, verbose, checks)?,
        Reading::Joined => checks.note("template", "none: the tokenizer joins query and document")?,
    }
    if let Some(answers) = &reranker.answers {
        checks.check("answers", Ok(((), answers.clone())))?;
    }
    let family = match &reranker.family {
        Some(family) => format!("the family {} ({})", family.value.name, family.source),
        None => "no known family".to_owned(),
    };
    let score = &reranker.score;
    Ok(checks
        .note("score", &format!("{} of the raw score x, by {}; of {family}", score.value, score.source))?)
}

/// Shows a template's prompt and the ids of its control tokens.
fn check_template(
    reranker: &Reranker,
    template: &PromptTemplate,
    folder: &ModelFolder,
    verbose: bool,
    checks: &mut Checks,
) -> anyhow::Result<()> {
    if let Some(list) = template.list() {
        let sum = hexadecimal(&Sha256::digest(template.literal_texts().concat().as_bytes()));
        let text = format!("sha256 {sum} of its parts; up to {} documents in one prompt", list.max_documents);
        return Ok(checks.note("prompt", &text)?);
    }
    let instruction = reranker.instruction.as_deref();
    let prompt = template.render(instruction, "{query}", "{document}");
    let sum = hexadecimal(&Sha256::digest(prompt.as_bytes()));
    let default = instruction.map_or_else(|| "none".to_owned(), |text| format!("{text:?}"));
    let text =
        format!("sha256 {sum} of the texts {{query}} and {{document}} in it; default instruction {default}");
    checks.check("prompt", Ok(((), text)))?;
    if verbose {
        for line in prompt.lines() {
            writeln!(io::stdout(), "     | {line}")?;
        }
    }
    checks.check("tokenizer", control_tokens(template, folder))?;
    Ok(())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = std::fmt::Write::write_fmt(&mut text, format_args!("{byte:02x}"));
        text
    })
}

/// The control tokens of a template with their ids.
fn control_tokens(template: &PromptTemplate, folder: &ModelFolder) -> anyhow::Result<((), String)> {
    let tokenizer = startup::tokenizer(folder)?;
    let literals = template.literal_texts().concat();
    let mut controls: Vec<_> = tokenizer
        .get_added_tokens_decoder()
        .into_iter()
        .filter(|(_, token)| !token.content.is_empty() && literals.contains(&token.content))
        .map(|(id, token)| (id, token.content))
        .collect();
    controls.sort();
    let controls: Vec<_> = controls.into_iter().map(|(id, token)| format!("{token} is {id}")).collect();
    let controls = if controls.is_empty() {
        "the template has no control tokens".to_owned()
    } else {
        controls.join(", ")
    };
    Ok(((), format!("{} tokens; {controls}", tokenizer.get_vocab_size(true))))
}
