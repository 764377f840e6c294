//! Jinja with the settings of `transformers` for chat templates (`utils/chat_template_utils.py`).
//!
//! Input: a template's source, then messages. Output: the rendered prompt, or [`TemplateError::Render`] with
//! Jinja's message. What must hold: the result equals the one of `transformers`, or is an error; templates
//! are only rendered at the start, and only with the server's own texts. A template may come from anyone. Its
//! steps, its output and its format widths are bounded here, its time and its memory in `learn.rs`.

use super::TemplateError;
use minijinja::{
    Environment, Error as JinjaError, ErrorKind, State, Value, context,
    formatting::{self, FormatStyle},
    syntax::SyntaxConfig,
    value::Rest,
};
use minijinja_contrib::pycompat;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// The most steps of a rendering. Official templates take some hundred.
const MAX_STEPS: u64 = 1_000_000;
/// The longest prompt in bytes, with the server's own texts.
const MAX_PROMPT: usize = 4 << 20;
/// The most digits of a width in a format string.
const WIDTH_DIGITS: usize = 4;

/// The form of a template's messages, which sentence-transformers stores in `sentence_bert_config.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageStyle {
    /// Whether a message's content is a list of parts (`[{"type": "text", "text": …}]`) instead of a text. If
    /// absent, the template's source decides, by the rule of sentence-transformers.
    pub structured: Option<bool>,
    /// Whether the template should write the beginning of an answer.
    pub add_generation_prompt: bool,
    /// Additional variables of the template.
    pub variables: BTreeMap<String, serde_json::Value>,
}

impl MessageStyle {
    /// The form for templates without settings.
    pub fn plain() -> Self {
        Self { structured: None, add_generation_prompt: true, variables: BTreeMap::new() }
    }

    /// This form with the texts of special tokens as variables. As in `transformers`, variables that the form
    /// has under the same names take precedence.
    #[must_use]
    pub fn with_tokens(mut self, special_tokens: &BTreeMap<String, String>) -> Self {
        for (name, text) in special_tokens {
            self.variables.entry(name.clone()).or_insert_with(|| text.as_str().into());
        }
        self
    }
}

/// Strings in templates that read a list of parts (sentence-transformers 6, `base/modality.py`).
const STRUCTURED: [&str; 5] = ["content[0]", ".type", "'type'", "\"type\"", "message.content["];

pub(super) struct Message<'a> {
    pub(super) role: &'static str,
    pub(super) content: &'a str,
}

/// A Jinja template in the environment of `transformers`.
pub(super) struct ChatTemplate {
    environment: Environment<'static>,
    style: MessageStyle,
    is_structured: bool,
}

impl ChatTemplate {
    const NAME: &'static str = "chat_template";

    pub(super) fn new(source: &str, style: &MessageStyle) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .keep_trailing_newline(false)
            .build();
        environment.set_syntax(syntax.map_err(render_error)?);
        environment.set_fuel(Some(MAX_STEPS));
        environment.set_unknown_method_callback(method);
        environment.add_filter("format", format);
        // Its width would allocate memory of any size at once.
        environment.remove_filter("indent");
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", to_json);
        // Jinja reads every kind of line break as `\n`.
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        let is_structured =
            style.structured.unwrap_or_else(|| STRUCTURED.iter().any(|word| source.contains(word)));
        environment.add_template_owned(Self::NAME, source).map_err(render_error)?;
        Ok(Self { environment, style: style.clone(), is_structured })
    }

    pub(super) fn render(&self, messages: &[Message<'_>]) -> Result<String, TemplateError> {
        let content = |text: &str| {
            if self.is_structured {
                Value::from(vec![context! { type => "text", text }])
            } else {
                text.into()
            }
        };
        let messages: Vec<Value> = messages
            .iter()
            .map(|message| context! { role => message.role, content => content(message.content) })
            .collect();
        let template = self.environment.get_template(Self::NAME).map_err(render_error)?;
        let mut variables: BTreeMap<String, Value> =
            self.style.variables.iter().map(|(name, value)| (name.clone(), of_json(value))).collect();
        variables.insert("messages".to_owned(), messages.into());
        variables.insert("add_generation_prompt".to_owned(), self.style.add_generation_prompt.into());
        let mut prompt = PromptBytes(Vec::new());
        template.render_captured_to(Value::from(variables), &mut prompt).map_err(render_error)?;
        String::from_utf8(prompt.0).map_err(|error| TemplateError::Render { reason: error.to_string() })
    }
}

/// A prompt under construction.
struct PromptBytes(Vec<u8>);

impl Write for PromptBytes {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if self.0.len() + text.len() > MAX_PROMPT {
            return Err(io::Error::other(format!("it writes more than {MAX_PROMPT} bytes")));
        }
        self.0.write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A variable's value. Lists and maps become none.
fn of_json(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Bool(value) => (*value).into(),
        serde_json::Value::Number(value) => value.as_i64().map_or_else(|| value.as_f64().into(), Value::from),
        serde_json::Value::String(value) => value.as_str().into(),
        _ => Value::from(()),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the form that `map_err` takes")]
fn render_error(error: JinjaError) -> TemplateError {
    let reason = match error.kind() {
        ErrorKind::OutOfFuel => format!("it takes more than {MAX_STEPS} steps"),
        _ => std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string),
    };
    TemplateError::Render { reason }
}

fn refuse(reason: String) -> JinjaError {
    JinjaError::new(ErrorKind::InvalidOperation, reason)
}

/// Python's methods of strings, lists and maps.
fn method(state: &mut State, value: &Value, method: &str, given: &[Value]) -> Result<Value, JinjaError> {
    if method == "format"
        && let Some(format) = value.as_str()
    {
        check_widths(format.split('{').skip(1).filter_map(|field| field.split('}').next()))?;
    }
    pycompat::unknown_method_callback(state, value, method, given)
}

/// Python's `%` operator.
#[expect(clippy::needless_pass_by_value, reason = "the form of a template's filter")]
fn format(format: String, values: Rest<Value>) -> Result<String, JinjaError> {
    check_widths(format.split('%').skip(1).filter_map(|field| field.split(char::is_alphabetic).next()))?;
    formatting::format(FormatStyle::Printf, &format, &values)
}

/// Refuses a format with large widths, which would allocate memory of any size at once. Each of
/// `specifications` begins at a field of the format.
fn check_widths<'a>(mut specifications: impl Iterator<Item = &'a str>) -> Result<(), JinjaError> {
    let wide = specifications.find(|specification| {
        let mut numbers = specification.split(|character: char| !character.is_ascii_digit());
        specification.contains('*') || numbers.any(|digits| digits.len() > WIDTH_DIGITS)
    });
    match wide {
        Some(_) => {
            Err(refuse(format!("a format has a width of more than {WIDTH_DIGITS} digits, or one by `*`")))
        }
        None => Ok(()),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the form of a template's function")]
fn raise_exception(message: String) -> Result<Value, JinjaError> {
    Err(refuse(format!("the template says: {message}")))
}

/// The pieces are learned once, so a date in them would stay the date of the start.
fn strftime_now(_format: Value) -> Result<Value, JinjaError> {
    Err(refuse(
        "it asks for the date (strftime_now), and a prompt that changes with the date is not supported"
            .to_owned(),
    ))
}

/// Python's `json.dumps`, for the values on which it and Rust agree. Jinja's own filter would escape HTML.
#[expect(clippy::needless_pass_by_value, reason = "the form of a template's filter")]
fn to_json(value: Value) -> Result<String, JinjaError> {
    let json = serde_json::to_value(&value).map_err(|error| refuse(error.to_string()))?;
    if json.is_array() || json.is_object() {
        return Err(refuse("`tojson` of a list or a map is not supported".to_owned()));
    }
    Ok(json.to_string())
}
