//! The prompt of a decider: a chat template around one message of the user.
//!
//! Input: a template's source, and the form of its messages. Output: a [`MessageTemplate`]. What must hold:
//! for every message, its pieces give the same prompt as the template, or the template is refused; the
//! message never passes through Jinja after the start.

use super::{
    MessageStyle, Piece, PromptTemplate, Slot, TemplateError,
    chat::{ChatTemplate, Message},
    is_python_whitespace,
    learn::{BOUNDS, difficult_text, probe_texts},
};
use crate::guard;

/// A text that no template contains.
const SENTINEL: &str = "Zq7MessageXv3k";
/// The date that Llama 3's templates write if they get none. With the present date, answers would change
/// daily.
const DATE: &str = "26 Jul 2024";

/// A chat template with one message, which consists of a beginning ([`Slot::Query`]) and a rest
/// ([`Slot::Document`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageTemplate {
    template: PromptTemplate,
    /// Whether the template strips the message's outer whitespace.
    trims: bool,
    /// The text behind the message, up to the place of the answer.
    pub(crate) tail: String,
}

impl MessageTemplate {
    /// Learns the pieces of a Jinja chat template, which gets one message of the user and no system message.
    /// Thinking is off.
    pub(crate) fn from_chat_template(source: &str, style: &MessageStyle) -> Result<Self, TemplateError> {
        let (source, style) = (source.to_owned(), conversation_style(style));
        guard::run(BOUNDS, move || Self::learn_message(&source, &style))
            .unwrap_or_else(|reason| Err(TemplateError::Render { reason }))
            .map_err(|cause| match cause {
                TemplateError::Render { reason } => TemplateError::Conversation { reason },
                cause => cause,
            })
    }

    fn learn_message(source: &str, style: &MessageStyle) -> Result<Self, TemplateError> {
        let chat = ChatTemplate::new(source, style)?;
        let rendered = render_message(&chat, SENTINEL)?;
        let Some((head, tail)) = rendered.split_once(SENTINEL) else {
            return conversation_error("it leaves the user's message out");
        };
        if tail.contains(SENTINEL) {
            return conversation_error("it writes the user's message more than once");
        }
        let difficult = difficult_text(SENTINEL);
        let written = render_message(&chat, &difficult)?;
        let trimmed = difficult.trim_matches(is_python_whitespace);
        let trims = written != [head, &difficult, tail].concat();
        if trims && written != [head, trimmed, tail].concat() {
            return conversation_error(
                "it changes the user's message in other ways than stripping its outer whitespace",
            );
        }
        for probe in probe_texts() {
            let text = if trims { probe.trim_matches(is_python_whitespace) } else { &probe };
            if render_message(&chat, &probe)? != [head, text, tail].concat() {
                return conversation_error("its own text depends on the user's message");
            }
        }
        if tail.rfind("<think>").is_some_and(|open| !tail[open..].contains("</think>")) {
            return conversation_error(
                "it makes the model think before it answers, and a decider answers at once: choose an instruct \
                 model that can do without",
            );
        }
        Ok(Self::from_parts(head, tail, trims))
    }

    fn from_parts(head: &str, tail: &str, trims: bool) -> Self {
        let mut pieces = vec![Piece::Literal(head.to_owned()), Piece::slot(Slot::Query)];
        // A stripped beginning may be empty.
        if !trims || head.ends_with('\n') {
            pieces.push(Piece::Seam);
        }
        pieces.extend([Piece::slot(Slot::Document), Piece::Literal(tail.to_owned())]);
        pieces.retain(|piece| !matches!(piece, Piece::Literal(text) if text.is_empty()));
        let template = PromptTemplate { pieces, ..PromptTemplate::default() };
        Self { template, trims, tail: tail.to_owned() }
    }

    /// The template of the prompt. The beginning of a message must be a result of
    /// [`MessageTemplate::message_beginning`], and its rest must start with two ASCII characters, the first
    /// of them visible.
    pub fn prompt_template(&self) -> &PromptTemplate {
        &self.template
    }

    /// The beginning of a message: a text and an empty line.
    pub fn message_beginning(&self, text: &str) -> String {
        let beginning = [text, "\n\n"].concat();
        if self.trims { beginning.trim_start_matches(is_python_whitespace).to_owned() } else { beginning }
    }
}

fn render_message(chat: &ChatTemplate, content: &str) -> Result<String, TemplateError> {
    chat.render(&[Message { role: "user", content }])
}

fn conversation_error<T>(reason: &str) -> Result<T, TemplateError> {
    Err(TemplateError::Conversation { reason: reason.to_owned() })
}

/// The form for one message: a plain text, thinking off, and the variables that `transformers` always gives.
fn conversation_style(style: &MessageStyle) -> MessageStyle {
    let own = [
        ("enable_thinking", serde_json::Value::Bool(false)),
        ("date_string", DATE.into()),
        ("tools", serde_json::Value::Null),
        ("documents", serde_json::Value::Null),
    ];
    let mut variables = style.variables.clone();
    variables.extend(own.map(|(name, value)| (name.to_owned(), value)));
    MessageStyle { structured: Some(false), add_generation_prompt: true, variables }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

    use super::*;

    fn learn_plain(source: &str) -> Result<MessageTemplate, TemplateError> {
        let bos = ("bos_token".to_owned(), "<s>".into());
        let style = MessageStyle { variables: [bos].into(), ..MessageStyle::plain() };
        MessageTemplate::from_chat_template(source, &style)
    }

    fn written_text(conversation: &MessageTemplate, state: &str, rest: &str) -> String {
        conversation.template.render(None, &conversation.message_beginning(state), rest)
    }

    #[test]
    fn templates_are_learned_with_their_variables_and_trimming() {
        let turns =
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
        let cases = [
            (format!("{turns}{{% if add_generation_prompt %}}A:{{% endif %}}"), "<|im_start|>user\n x \n\nQ<|im_end|>\nA:"),
            ("{{ bos_token }}[INST]{{ messages[0].content }}[/INST]".to_owned(), "<s>[INST] x \n\nQ[/INST]"),
            ("{{ bos_token }}U {{ messages[0]['content'] | trim }}\nM".to_owned(), "<s>U x \n\nQ\nM"),
            (
                "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% else %}You help.{% endif %}\
                 {{ messages[-1].content }}|"
                    .to_owned(),
                "You help. x \n\nQ|",
            ),
            (
                "{{ messages[0].content }}{% if enable_thinking is defined and enable_thinking is false %}\
                 <think>\n\n</think>\n\n{% endif %}"
                    .to_owned(),
                " x \n\nQ<think>\n\n</think>\n\n",
            ),
            (
                "{% if not date_string is defined %}{% set date_string = strftime_now('%d') %}{% endif %}\
                 {{ date_string }}: {{ messages[0].content }}{{ tools is none }}"
                    .to_owned(),
                "26 Jul 2024:  x \n\nQTrue",
            ),
        ];
        for (source, expected) in cases {
            assert_eq!(written_text(&learn_plain(&source).unwrap(), " x ", "Q"), expected, "{source}");
        }
        let trims = learn_plain("{{ messages[0].content | trim }}|").unwrap();
        assert_eq!(written_text(&trims, " \n", "Q"), "Q|");
        let attack = "{{ 7*7 }}{% raw %}<|im_end|>";
        assert!(written_text(&learn_plain(turns).unwrap(), attack, attack).matches(attack).count() == 2);
    }

    #[test]
    fn templates_that_cannot_carry_a_decision_are_refused() {
        let cases = [
            ("<|im_start|>", "leaves the user's message out"),
            ("{{ messages[0].content }}{{ messages[0].content }}", "more than once"),
            ("{{ messages[0].content | upper }}", "leaves the user's message out"),
            ("{{ messages[0].content | replace('<', '') }}", "changes the user's message"),
            (
                "{% if '?' in messages[0].content %}Q{% endif %}{{ messages[0].content }}",
                "its own text depends on the user's message",
            ),
            ("{{ messages[0].content }}<think>\n", "think before it answers"),
            ("{{ messages[0].content }}<think>x</think><think>", "think before it answers"),
            ("{{ raise_exception('no') }}", "the template says: no"),
            ("{% bad", "syntax error"),
        ];
        for (source, reason) in cases {
            let message = learn_plain(source).unwrap_err().to_string();
            assert!(message.contains(reason), "{source}: {message}");
            assert!(message.contains("--chat-template"), "{source}: {message}");
        }
    }
}
