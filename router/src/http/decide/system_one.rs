//! `TypeSafe`'s dialect of decisions, `POST /v1/systemone`: a `state`, and an object of questions by id.
//!
//! Input: a body. Output: the service's request, and the forms of its answers. What must hold: questions and
//! options keep their order; a key that no question has is refused, because a misspelled one would ask
//! something else.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, Visitor},
};
use text_embeddings_core::service::{DecisionRequest, Question, QuestionKind, QuestionOption};
use utoipa::ToSchema;

use super::{
    BuiltDecisions, OptionsOrder,
    answers::{AnswerForm, ChoiceValue},
    texts::{any_text, invalid_at, optional_text, parse_at, parse_object},
};
use crate::http::json::JsonText;

/// The most bytes of a question's id in messages. The place of each of its options begins with the id.
const MAX_SHOWN_ID: usize = 100;

/// `TypeSafe`'s form: a state, and questions by id.
#[derive(Deserialize, ToSchema)]
#[schema(as = SystemOneRequest, example = json!({
    "state": "I was charged twice.",
    "questions": {
        "billing": {"type": "noul", "instructions": "Is this about billing?"},
        "tone": {"type": "choice", "criteria": {"calm": null, "angry": "An upset message"}},
        "urgency": {"type": "score", "criteria": ["Can wait", "This week", "Today"]}
    }
}))]
pub(crate) struct SystemOneBody {
    /// The text: a string as it is, any other value as JSON.
    #[schema(value_type = serde_json::Value)]
    state: JsonText,
    /// The questions by id: `{type: "noul", instructions, criteria: {"true", "false"}}`, `{type: "choice",
    /// instructions, criteria: {option: description}}` or `{type: "score", instructions, criteria: [level]}`.
    #[schema(value_type = serde_json::Map<String, serde_json::Value>)]
    questions: Entries,
    #[schema(ignore)]
    assets: Option<IgnoredAny>,
    #[schema(ignore)]
    images: Option<IgnoredAny>,
    /// The model's name.
    #[expect(dead_code, reason = "part of the interface; the dispatcher has read it")]
    model: Option<String>,
    #[serde(default)]
    #[schema(default = json!("given"))]
    options_order: OptionsOrder,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SystemOneQuestion {
    r#type: String,
    instructions: Option<JsonText>,
    criteria: Option<JsonText>,
}

/// The descriptions of a yes-or-no question's answers.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct NoulCriteria {
    #[serde(rename = "true")]
    yes: Option<JsonText>,
    #[serde(rename = "false")]
    no: Option<JsonText>,
}

impl SystemOneBody {
    /// The service's request for this body.
    pub(super) fn build_request(self) -> Result<BuiltDecisions, String> {
        if self.assets.is_some() || self.images.is_some() {
            return Err("invalid request: `assets`: images are not supported: decide about text".to_owned());
        }
        let state = optional_text(Some(&self.state), "state")?;
        let state =
            state.ok_or_else(|| invalid_at("state", "it is null: give a text, an object or a list"))?;
        let mut built = BuiltDecisions::from_request(DecisionRequest {
            state,
            questions: Vec::with_capacity(self.questions.0.len()),
            both_orders: self.options_order == OptionsOrder::Both,
        });
        for (id, question) in self.questions.0 {
            let shown_id = &id[..id.floor_char_boundary(MAX_SHOWN_ID)];
            let (question, form) = build_question(&format!("questions.{shown_id}"), &question)?;
            built.push_question(Some(id), question, form);
        }
        Ok(built)
    }
}

fn build_question(place: &str, json: &JsonText) -> Result<(Question, AnswerForm), String> {
    let body: SystemOneQuestion = parse_object(place, json)?;
    let instructions = optional_text(body.instructions.as_ref(), &format!("{place}.instructions"))?;
    let criteria_place = format!("{place}.criteria");
    let criteria = body.criteria.as_ref();
    let required = criteria.ok_or_else(|| invalid_at(place, "missing field `criteria`"));
    let (kind, form) = match body.r#type.as_str() {
        "noul" => {
            let criteria: NoulCriteria =
                criteria.map(|json| parse_object(&criteria_place, json)).transpose()?.unwrap_or_default();
            let yes = optional_text(criteria.yes.as_ref(), &format!("{criteria_place}.true"))?;
            let no = optional_text(criteria.no.as_ref(), &format!("{criteria_place}.false"))?;
            (QuestionKind::Noul { yes, no }, AnswerForm::YesNo)
        }
        "choice" => {
            let Entries(entries) = parse_at(&criteria_place, required?)?;
            let mut options = Vec::with_capacity(entries.len());
            for (name, description) in entries {
                if name.trim().is_empty() {
                    return Err(invalid_at(&criteria_place, "an option has a blank name"));
                }
                let description = optional_text(Some(&description), &format!("{criteria_place}.{name}"))?;
                options.push(QuestionOption { name, description });
            }
            let names = options.iter().map(|option| ChoiceValue::Text(option.name.clone())).collect();
            (QuestionKind::Choice(options), AnswerForm::Options(names))
        }
        "score" => {
            let levels: Vec<JsonText> = parse_at(&criteria_place, required?)?;
            let mut texts = Vec::with_capacity(levels.len());
            for (index, level) in levels.iter().enumerate() {
                texts.push(any_text(level, &format!("{criteria_place}[{index}]"))?);
            }
            (QuestionKind::Score(texts), AnswerForm::Levels(levels))
        }
        other => {
            let problem = format!("`{other}` is not supported: give `noul`, `choice` or `score`");
            return Err(invalid_at(&format!("{place}.type"), &problem));
        }
    };
    let place = if criteria.is_some() { criteria_place } else { place.to_owned() };
    Ok((Question { place, instructions: instructions.unwrap_or_default(), kind }, form))
}

/// The fields of an object in their order. A repeated field is refused.
struct Entries(Vec<(String, JsonText)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor;
        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = Entries;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Entries, A::Error> {
                let mut names = std::collections::HashSet::new();
                let mut entries = Vec::new();
                while let Some((name, value)) = fields.next_entry::<String, JsonText>()? {
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format!("`{name}` is there twice")));
                    }
                    entries.push((name, value));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(EntriesVisitor)
    }
}
