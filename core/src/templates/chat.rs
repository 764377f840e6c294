//! Jinja as `transformers` sets it up for chat templates (`utils/chat_template_utils.py`).
//!
//! Input: a template's source, then messages. Output: the rendered prompt, or [`TemplateError::Render`] with Jinja's
//! words. What must hold: what comes out equals what `transformers` renders, else it is an error; only start-up
//! renders templates, and only with texts of our own.

use super::{Slot, TemplateError};
use minijinja::{Environment, Error as JinjaError, ErrorKind, Value, context, syntax::SyntaxConfig};

/// A Jinja template in the environment that `transformers` gives it.
pub(super) struct ChatTemplate {
    environment: Environment<'static>,
}

impl ChatTemplate {
    const NAME: &'static str = "chat_template";

    pub(super) fn new(source: &str) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .keep_trailing_newline(false)
            .build();
        environment.set_syntax(syntax.map_err(render_error)?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", to_json);
        // Jinja reads every kind of line break as `\n`.
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        environment.add_template_owned(Self::NAME, source).map_err(render_error)?;
        Ok(Self { environment })
    }

    /// Renders with all three messages; `texts` in the order of [`Slot`].
    pub(super) fn render(&self, texts: [&str; 3]) -> Result<String, TemplateError> {
        self.render_messages(&Slot::ALL.map(|slot| (slot, texts[slot as usize])))
    }

    pub(super) fn render_messages(&self, messages: &[(Slot, &str)]) -> Result<String, TemplateError> {
        let messages: Vec<Value> = messages
            .iter()
            .map(|(slot, content)| context! { role => slot.role(), content => *content })
            .collect();
        let template = self.environment.get_template(Self::NAME).map_err(render_error)?;
        template.render(context! { messages, add_generation_prompt => true }).map_err(render_error)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the form that `map_err` takes")]
fn render_error(error: JinjaError) -> TemplateError {
    TemplateError::Render { reason: error.to_string() }
}

fn refuse(reason: String) -> JinjaError {
    JinjaError::new(ErrorKind::InvalidOperation, reason)
}

#[expect(clippy::needless_pass_by_value, reason = "the form of a template's function")]
fn raise_exception(message: String) -> Result<Value, JinjaError> {
    Err(refuse(format!("the template says: {message}")))
}

/// The pieces are learned once, so that a date in them would be that of the start.
fn strftime_now(_format: Value) -> Result<Value, JinjaError> {
    Err(refuse(
        "it asks for the date (strftime_now), and a prompt that changes with the date is not supported"
            .to_owned(),
    ))
}

/// Python's `json.dumps` for the values on which it and Rust's agree: Jinja's own would escape HTML.
#[expect(clippy::needless_pass_by_value, reason = "the form of a template's filter")]
fn to_json(value: Value) -> Result<String, JinjaError> {
    let json = serde_json::to_value(&value).map_err(|error| refuse(error.to_string()))?;
    if json.is_array() || json.is_object() {
        return Err(refuse("`tojson` of a list or a map is not supported".to_owned()));
    }
    Ok(json.to_string())
}
