//! Which instruction a request gets.
//!
//! Input: the instruction that the request names, and the server's default. Output: the instruction that the
//! prompt is written with, or a refusal. What must hold: every kind of re-ranker decides it here.

use crate::{error::Error, templates::PromptTemplate};

/// Refuses an instruction for an embedding model, unless the model `ignores` those.
pub(super) fn refuse_instruction(requested: Option<&str>, ignores: bool) -> Result<(), Error> {
    if requested.is_none() || ignores {
        return Ok(());
    }
    Err(Error::Validation(
        "`instruction` cannot be given: this is an embedding model, which reads query and document apart, each \
         after its own prompt; leave it out, or start the server with `--ignore-instruction`"
            .to_owned(),
    ))
}

/// The instruction of a request that names `requested`; `None` for the form without one. Without a `template`
/// there is no place for an instruction. With `ignores`, one that has no place is left out instead of
/// refused.
pub(super) fn choose_instruction<'a>(
    requested: Option<&'a str>,
    default: Option<&'a str>,
    template: Option<&PromptTemplate>,
    ignores: bool,
) -> Result<Option<&'a str>, Error> {
    let Some(instruction) = requested else { return Ok(default) };
    let has_place = template.is_some_and(PromptTemplate::has_instruction);
    let refusal = match template {
        _ if !has_place && ignores => return Ok(None),
        None => {
            "given: this model reads the query and the document without a prompt; leave it out, or start the \
             server with `--ignore-instruction`"
        }
        Some(_) if !has_place => {
            "given: the prompt of this model has no place for one; leave it out, or start the server with \
             `--ignore-instruction`"
        }
        Some(template) if template.form(Some(instruction)).is_none() => {
            "empty: the chat template of this model has another form without one"
        }
        Some(_) => return Ok(Some(instruction)),
    };
    Err(Error::Validation(format!("`instruction` cannot be {refusal}")))
}
