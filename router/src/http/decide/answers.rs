//! The answers of decisions, in two dialects.
//!
//! Input: decisions in the order of their questions, and the form of each. Output: bodies. What must hold:
//! answers and options keep the order of the request; numbers are not rounded; a level of a scale comes back
//! as it was sent.

use serde::{Deserialize, Serialize, Serializer};
use text_embeddings_core::service::Decision;
use utoipa::ToSchema;

use crate::http::json::JsonText;

/// The value of a choice. The text `"true"` is another one than the boolean.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[schema(as = DecisionChoiceValue)]
#[serde(untagged)]
pub(crate) enum ChoiceValue {
    Text(String),
    Boolean(bool),
}

impl ChoiceValue {
    pub(super) fn into_text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Boolean(value) => value.to_string(),
        }
    }
}

/// The names of a question's answers.
pub(super) enum AnswerForm {
    YesNo,
    Options(Vec<ChoiceValue>),
    Levels(Vec<JsonText>),
}

/// A question's name in the answer, and the names of its answers.
pub(super) struct NamedForm {
    pub(super) name: Option<String>,
    pub(super) form: AnswerForm,
}

/// The decisions by the ids of their questions.
#[derive(Serialize, ToSchema)]
#[schema(as = SystemOneAnswer)]
pub(crate) struct SystemOneAnswer {
    model: String,
    /// An answer for each question, by its id.
    #[schema(value_type = std::collections::BTreeMap<String, SystemOneDecision>)]
    answers: Ordered<SystemOneDecision>,
    usage: SystemOneUsage,
}

#[derive(Serialize, ToSchema)]
#[schema(as = SystemOneDecision)]
#[serde(tag = "type", rename_all = "lowercase")]
enum SystemOneDecision {
    Noul {
        /// The probability of yes.
        noul: f64,
    },
    Choice {
        choice: String,
        #[schema(value_type = std::collections::BTreeMap<String, f64>)]
        probabilities: Ordered<f64>,
        confidence: f64,
    },
    Score {
        /// The expected index of a level.
        score: f64,
        /// The levels by index, as they were sent.
        #[schema(value_type = std::collections::BTreeMap<String, serde_json::Value>)]
        legend: Ordered<JsonText>,
        #[schema(value_type = std::collections::BTreeMap<String, f64>)]
        probabilities: Ordered<f64>,
        confidence: f64,
    },
}

#[derive(Serialize, ToSchema)]
#[schema(as = SystemOneUsage)]
struct SystemOneUsage {
    /// The tokens of all prompts. The state counts once for each question.
    input_tokens: usize,
    /// Always 0: nothing is generated.
    output_tokens: usize,
}

/// The decisions in the order of their questions.
#[derive(Serialize, ToSchema)]
#[schema(as = DecisionsAnswer)]
pub(crate) struct DecisionsAnswer {
    model: String,
    answers: Vec<OpenAiDecision>,
    usage: DecisionUsage,
}

#[derive(Serialize, ToSchema)]
#[schema(as = OpenAiDecision)]
#[serde(tag = "type", rename_all = "lowercase")]
enum OpenAiDecision {
    Predicate {
        name: Option<String>,
        probability: f64,
    },
    Choice {
        name: Option<String>,
        choice: ChoiceValue,
        confidence: f64,
        probabilities: Vec<OptionProbability>,
    },
    Score {
        name: Option<String>,
        /// The expected index of a level.
        score: f64,
        confidence: f64,
        probabilities: Vec<LevelProbability>,
    },
}

#[derive(Serialize, ToSchema)]
#[schema(as = OptionProbability)]
struct OptionProbability {
    value: ChoiceValue,
    probability: f64,
}

#[derive(Serialize, ToSchema)]
#[schema(as = LevelProbability)]
struct LevelProbability {
    value: usize,
    #[schema(value_type = String)]
    label: JsonText,
    probability: f64,
}

#[derive(Serialize, ToSchema)]
#[schema(as = DecisionUsage)]
struct DecisionUsage {
    input_tokens: usize,
    input_tokens_details: InputTokensDetails,
    /// Always 0: nothing is generated.
    output_tokens: usize,
    output_tokens_details: OutputTokensDetails,
    total_tokens: usize,
}

#[derive(Serialize, ToSchema)]
#[schema(as = DecisionInputTokens)]
struct InputTokensDetails {
    /// Always 0: the prefix cache is not counted for each request.
    cached_tokens: usize,
    cache_write_tokens: usize,
}

#[derive(Serialize, ToSchema)]
#[schema(as = DecisionOutputTokens)]
struct OutputTokensDetails {
    reasoning_tokens: usize,
}

impl SystemOneAnswer {
    pub(super) fn from_decisions(
        model: String,
        forms: Vec<NamedForm>,
        tokens: usize,
        decisions: &[Decision],
    ) -> Self {
        let answers = forms.into_iter().zip(decisions).map(|(NamedForm { name, form }, decision)| {
            let answer = match form {
                AnswerForm::YesNo => SystemOneDecision::Noul { noul: decision.probabilities[0] },
                AnswerForm::Options(values) => {
                    let names: Vec<String> = values.into_iter().map(ChoiceValue::into_text).collect();
                    SystemOneDecision::Choice {
                        choice: names[decision.best_index()].clone(),
                        confidence: decision.choice_confidence(),
                        probabilities: Ordered(
                            names.into_iter().zip(decision.probabilities.clone()).collect(),
                        ),
                    }
                }
                AnswerForm::Levels(levels) => SystemOneDecision::Score {
                    score: decision.expected_level(),
                    legend: Ordered::by_index(levels),
                    probabilities: Ordered::by_index(decision.probabilities.clone()),
                    confidence: decision.score_confidence(),
                },
            };
            (name.unwrap_or_default(), answer)
        });
        Self {
            model,
            answers: Ordered(answers.collect()),
            usage: SystemOneUsage { input_tokens: tokens, output_tokens: 0 },
        }
    }
}

impl DecisionsAnswer {
    pub(super) fn from_decisions(
        model: String,
        forms: Vec<NamedForm>,
        tokens: usize,
        decisions: &[Decision],
    ) -> Self {
        let answers =
            forms.into_iter().zip(decisions).map(|(NamedForm { name, form }, decision)| match form {
                AnswerForm::YesNo => {
                    OpenAiDecision::Predicate { name, probability: decision.probabilities[0] }
                }
                AnswerForm::Options(values) => OpenAiDecision::Choice {
                    name,
                    choice: values[decision.best_index()].clone(),
                    confidence: decision.choice_confidence(),
                    probabilities: values
                        .into_iter()
                        .zip(&decision.probabilities)
                        .map(|(value, &probability)| OptionProbability { value, probability })
                        .collect(),
                },
                AnswerForm::Levels(labels) => OpenAiDecision::Score {
                    name,
                    score: decision.expected_level(),
                    confidence: decision.score_confidence(),
                    probabilities: labels
                        .into_iter()
                        .zip(&decision.probabilities)
                        .enumerate()
                        .map(|(value, (label, &probability))| LevelProbability { value, label, probability })
                        .collect(),
                },
            });
        Self {
            model,
            answers: answers.collect(),
            usage: DecisionUsage {
                input_tokens: tokens,
                input_tokens_details: InputTokensDetails { cached_tokens: 0, cache_write_tokens: 0 },
                output_tokens: 0,
                output_tokens_details: OutputTokensDetails { reasoning_tokens: 0 },
                total_tokens: tokens,
            },
        }
    }
}

/// An object whose fields have an order.
struct Ordered<T>(Vec<(String, T)>);

impl<T> Ordered<T> {
    fn by_index(values: Vec<T>) -> Self {
        Self((0..).map(|index: usize| index.to_string()).zip(values).collect())
    }
}

impl<T: Serialize> Serialize for Ordered<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}
