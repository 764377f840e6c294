//! `OpenAI`'s dialect of decisions, `POST /v1/decisions`: an `input`, and a list of questions.
//!
//! Input: a body. Output: the service's request, and the forms of its answers. What must hold: as in the
//! other dialect (`system_one.rs`). Of `input`, one text is read as it is; several items are read as lines
//! that begin with their roles.

use serde::Deserialize;
use text_embeddings_core::service::{DecisionRequest, DecisionText, Question, QuestionKind, QuestionOption};
use utoipa::ToSchema;

use super::{
    BuiltDecisions, OptionsOrder,
    answers::{AnswerForm, ChoiceValue},
    texts::{any_text, invalid_at, optional_text, parse_at, parse_object},
};
use crate::http::json::JsonText;

/// The fewest answers of a choice or a scale in this dialect.
const MIN_ANSWERS: usize = 2;

/// `OpenAI`'s form: an input, and a list of questions.
#[derive(Deserialize, ToSchema)]
#[schema(as = OpenAiDecisionRequest, example = json!({
    "input": "I was charged twice.",
    "questions": [
        {"type": "predicate", "name": "billing", "instructions": "The message is about billing."},
        {"type": "choice", "instructions": "What is the tone?", "choices": [{"value": "calm"}, {"value": "angry"}]},
        {"type": "score", "instructions": "How urgent?", "levels": [{"label": "Can wait"}, {"label": "Today"}]}
    ]
}))]
pub(crate) struct ListedQuestionsBody {
    /// The text, or a list of messages.
    #[schema(value_type = serde_json::Value)]
    input: JsonText,
    /// The questions: `{type: "predicate", name, instructions}`, `{type: "choice", name, instructions,
    /// choices: [{value, description}]}` or `{type: "score", name, instructions, levels: [{label,
    /// description}]}`.
    #[schema(value_type = Vec<serde_json::Value>)]
    questions: Vec<JsonText>,
    /// The model's name.
    #[expect(dead_code, reason = "part of the interface; the dispatcher has read it")]
    model: Option<String>,
    #[serde(default)]
    #[schema(default = json!("given"))]
    options_order: OptionsOrder,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListedQuestion {
    r#type: String,
    name: Option<String>,
    instructions: Option<JsonText>,
    choices: Option<Vec<JsonText>>,
    levels: Option<Vec<JsonText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChoiceBody {
    value: ChoiceValue,
    description: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LevelBody {
    label: String,
    description: Option<String>,
}

/// A message, a call or an answer to one. Which fields it has depends on `type`.
#[derive(Deserialize)]
struct Item {
    r#type: Option<String>,
    role: Option<String>,
    content: Option<JsonText>,
    name: Option<String>,
    arguments: Option<JsonText>,
    input: Option<JsonText>,
    output: Option<JsonText>,
}

/// A part of a message.
#[derive(Deserialize)]
struct MessagePart {
    r#type: String,
    text: Option<String>,
    refusal: Option<String>,
    data: Option<JsonText>,
}

impl ListedQuestionsBody {
    /// The service's request for this body.
    pub(super) fn build_request(self) -> Result<BuiltDecisions, String> {
        let mut built = BuiltDecisions::from_request(DecisionRequest {
            state: input_text(&self.input)?.into(),
            questions: Vec::with_capacity(self.questions.len()),
            both_orders: self.options_order == OptionsOrder::Both,
        });
        for (index, json) in self.questions.iter().enumerate() {
            let place = format!("questions[{index}]");
            let body: ListedQuestion = parse_object(&place, json)?;
            let name = body.name.clone();
            let (question, form) = build_question(&place, body)?;
            built.push_question(name, question, form);
        }
        Ok(built)
    }
}

fn build_question(place: &str, body: ListedQuestion) -> Result<(Question, AnswerForm), String> {
    let ListedQuestion { r#type, instructions, choices, levels, .. } = body;
    let instructions = instructions.ok_or_else(|| missing_field(place, "instructions"))?;
    let instructions = content_text(&instructions, &format!("{place}.instructions"))?;
    let (field, kind, form) = match (r#type.as_str(), choices, levels) {
        ("predicate", None, None) => {
            ("instructions", QuestionKind::Noul { yes: None, no: None }, AnswerForm::YesNo)
        }
        ("choice", Some(choices), None) => {
            let (kind, form) = build_choices(&format!("{place}.choices"), &choices)?;
            ("choices", kind, form)
        }
        ("score", None, Some(levels)) => {
            let (kind, form) = build_levels(&format!("{place}.levels"), &levels)?;
            ("levels", kind, form)
        }
        ("choice", None, _) => return Err(missing_field(place, "choices")),
        ("score", _, None) => return Err(missing_field(place, "levels")),
        ("predicate" | "choice" | "score", ..) => {
            let problem = "`choices` is for a choice and `levels` for a score: leave the other out";
            return Err(invalid_at(place, problem));
        }
        (other, ..) => {
            let problem = format!("`{other}` is not supported: give `predicate`, `choice` or `score`");
            return Err(invalid_at(&format!("{place}.type"), &problem));
        }
    };
    Ok((Question { place: format!("{place}.{field}"), instructions: instructions.into(), kind }, form))
}

fn build_choices(place: &str, choices: &[JsonText]) -> Result<(QuestionKind, AnswerForm), String> {
    check_count(place, choices.len(), "choices")?;
    let (mut options, mut values) = (Vec::with_capacity(choices.len()), Vec::with_capacity(choices.len()));
    let mut seen = std::collections::HashSet::new();
    for (index, json) in choices.iter().enumerate() {
        let ChoiceBody { value, description } = parse_object(&format!("{place}[{index}]"), json)?;
        let name = value.clone().into_text();
        if name.trim().is_empty() {
            return Err(invalid_at(&format!("{place}[{index}].value"), "it is blank"));
        }
        if !seen.insert(value.clone()) {
            return Err(invalid_at(&format!("{place}[{index}].value"), "an earlier choice has this value"));
        }
        options.push(QuestionOption { name, description: description.map(Into::into) });
        values.push(value);
    }
    Ok((QuestionKind::Choice(options), AnswerForm::Options(values)))
}

fn build_levels(place: &str, levels: &[JsonText]) -> Result<(QuestionKind, AnswerForm), String> {
    check_count(place, levels.len(), "levels")?;
    let mut labels = Vec::with_capacity(levels.len());
    let mut texts = Vec::with_capacity(levels.len());
    for (index, json) in levels.iter().enumerate() {
        let LevelBody { label, description } = parse_object(&format!("{place}[{index}]"), json)?;
        texts.push(match description {
            Some(description) => format!("{label} - {description}").into(),
            None => label.as_str().into(),
        });
        labels.push(JsonText::from_string(&label));
    }
    Ok((QuestionKind::Score(texts), AnswerForm::Levels(labels)))
}

fn check_count(place: &str, count: usize, noun: &str) -> Result<(), String> {
    if count >= MIN_ANSWERS {
        return Ok(());
    }
    Err(invalid_at(place, &format!("there are {count} {noun}: give at least {MIN_ANSWERS}")))
}

/// The text that the questions are about.
fn input_text(input: &JsonText) -> Result<String, String> {
    if !input.as_str().starts_with('[') {
        return match optional_text(Some(input), "input")? {
            Some(text) if input.as_str().starts_with('"') => Ok(text.into_text()),
            _ => Err(invalid_at("input", "give a text or a list of messages")),
        };
    }
    let items: Vec<JsonText> = parse_at("input", input)?;
    let mut texts = Vec::with_capacity(items.len());
    for (index, json) in items.iter().enumerate() {
        texts.push(item_text(&format!("input[{index}]"), json)?);
    }
    Ok(match texts.as_slice() {
        [ItemText { speaker, text }] if speaker == "user" => text.clone(),
        texts => {
            let lines = texts.iter().map(|ItemText { speaker, text }| format!("{speaker}: {text}"));
            lines.collect::<Vec<_>>().join("\n\n")
        }
    })
}

/// An item of the input as text.
struct ItemText {
    speaker: String,
    text: String,
}

fn item_text(place: &str, json: &JsonText) -> Result<ItemText, String> {
    let item: Item = parse_object(place, json)?;
    match item.r#type.as_deref().unwrap_or("message") {
        "message" => {
            let speaker = item.role.clone().ok_or_else(|| missing_field(place, "role"))?;
            if !["user", "developer", "system", "assistant"].contains(&speaker.as_str()) {
                let problem =
                    format!("`{speaker}` is not supported: give user, developer, system or assistant");
                return Err(invalid_at(&format!("{place}.role"), &problem));
            }
            Ok(ItemText { speaker, text: item_field(place, "content", item.content.as_ref())? })
        }
        "function_call" => Ok(ItemText {
            speaker: call_words(item.name.as_deref()),
            text: item_field(place, "arguments", item.arguments.as_ref())?,
        }),
        "custom_tool_call" => Ok(ItemText {
            speaker: call_words(item.name.as_deref()),
            text: item_field(place, "input", item.input.as_ref())?,
        }),
        "function_call_output" | "custom_tool_call_output" => Ok(ItemText {
            speaker: "result of the call".to_owned(),
            text: item_field(place, "output", item.output.as_ref())?,
        }),
        other => Err(invalid_at(&format!("{place}.type"), &format!("`{other}` is not supported"))),
    }
}

/// A field that items of its type have.
fn item_field(place: &str, name: &str, value: Option<&JsonText>) -> Result<String, String> {
    content_text(value.ok_or_else(|| missing_field(place, name))?, &format!("{place}.{name}"))
}

fn call_words(name: Option<&str>) -> String {
    name.map_or_else(|| "call".to_owned(), |name| format!("call of {name}"))
}

fn missing_field(place: &str, name: &str) -> String {
    invalid_at(place, &format!("missing field `{name}`"))
}

/// A text, or a list of parts.
fn content_text(json: &JsonText, place: &str) -> Result<String, String> {
    if !json.as_str().starts_with('[') {
        return any_text(json, place).map(DecisionText::into_text);
    }
    let parts: Vec<JsonText> = parse_at(place, json)?;
    let mut texts = Vec::with_capacity(parts.len());
    for (index, json) in parts.iter().enumerate() {
        let place = format!("{place}[{index}]");
        let part: MessagePart = parse_object(&place, json)?;
        texts.push(match part.r#type.as_str() {
            "input_text" | "output_text" => part.text.ok_or_else(|| missing_field(&place, "text"))?,
            "refusal" => part.refusal.ok_or_else(|| missing_field(&place, "refusal"))?,
            "input_json" => {
                let data = part.data.ok_or_else(|| missing_field(&place, "data"))?;
                any_text(&data, &format!("{place}.data"))?.into_text()
            }
            other => {
                let problem = format!("`{other}` is not supported: decide about text");
                return Err(invalid_at(&format!("{place}.type"), &problem));
            }
        });
    }
    Ok(texts.join("\n"))
}
