//! The reasons why a chat template is not served, each with its remedy.

use super::Slot;

/// The reason why a chat template cannot be a re-ranker's prompt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each sentence explains its fields")]
pub enum TemplateError {
    /// The template has no roles for a query and a document.
    #[error(
        "the chat template is a general one: it does not know the roles `query` and `document`, so every \
         pair would get a wrong prompt; pass `--chat-template` with the name of a built-in prompt, or the \
         path of a re-ranker's template"
    )]
    General,
    /// Jinja cannot render the template.
    #[error(
        "the chat template cannot be rendered: {reason}; pass `--chat-template` with the name of a built-in \
         prompt, or the path of a template that can"
    )]
    Render { reason: String },
    /// The template leaves out a text.
    #[error(
        "the chat template leaves the {slot} out, so pairs that differ in it would get the same prompt; pass \
         `--chat-template` with the name of a built-in prompt, or the path of a re-ranker's template"
    )]
    Missing { slot: Slot },
    /// The template writes a text more than once.
    #[error(
        "the chat template writes the {slot} {times} times instead of once, which is not supported; pass \
         `--chat-template` with the name of a built-in prompt, or the path of a template that writes it once"
    )]
    Repeated { slot: Slot, times: usize },
    /// The template cannot carry a decider's question.
    #[error(
        "the chat template cannot carry a decision: {reason}; pass `--chat-template` with the path of a \
         template that can, or choose another instruct model"
    )]
    Conversation { reason: String },
    /// The template changes a text.
    #[error(
        "the chat template changes the {slot} in other ways than stripping its outer whitespace, or its own \
         text depends on the {slot}, which is not supported; pass `--chat-template` with the name of a \
         built-in prompt, or the path of a template that writes it as it is"
    )]
    Altered { slot: Slot },
}
