//! Decisions over HTTP: one text, many questions, a probability for each answer, in the dialect of the body.
//!
//! Input: a body on one of the paths of decisions. Output: the answer that the dialect's clients read. What
//! must hold: the body's fields decide the dialect, and not the path; a question has the same probabilities
//! in both; a client's mistake is never a status from 500 up, which clients would repeat.

mod answers;
mod openai;
mod system_one;
mod texts;

use axum::{extract::State, response::Response};
use serde::{Deserialize, Serialize};
use text_embeddings_core::{
    error::Error,
    service::{Answer, DecisionRequest, Question},
};
use utoipa::ToSchema;

use super::{
    error::ApiError,
    extract::{Checked, DecodedBody, UnparsedBody},
    format::BodyFormat,
    responses::NestedErrors,
    schemas::TAG,
    shared::respond,
};
use crate::{models::Served, state::AppState};
use answers::{AnswerForm, DecisionsAnswer, NamedForm, SystemOneAnswer};
use openai::ListedQuestionsBody;
use system_one::SystemOneBody;

/// The route's name in the log.
const ROUTE: &str = "decide";

/// In which order the model reads the options of a choice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum OptionsOrder {
    /// As they are sent.
    #[default]
    Given,
    /// As they are sent, and last to first in a second prompt. The probabilities are the means of both.
    Both,
}

/// A text and the questions about it. The fields decide the dialect.
#[derive(Deserialize, ToSchema)]
#[schema(as = DecisionRequest)]
#[serde(untagged)]
#[expect(dead_code, reason = "a description, not a value")]
pub(crate) enum AnyDecisionBody {
    SystemOne(SystemOneBody),
    OpenAi(ListedQuestionsBody),
}

/// Answer questions about a text with probabilities. Only with a decider, or a re-ranker that answers yes or
/// no.
///
/// The fields of the body decide the format of the answer: a body with `state` is answered as by `TypeSafe`,
/// one with `input` as by `OpenAI`.
#[utoipa::path(post, path = "/v1/decisions", tag = TAG, request_body = AnyDecisionBody,
    responses((status = 200, description = "The decisions", body = AnswerBody), NestedErrors))]
pub(crate) async fn decide(State(state): State<AppState>, body: UnparsedBody) -> Result<Response, ApiError> {
    let format = body.answer_format;
    let Checked { found: dialect, body: built } = body.read_with(read_and_build).await??;
    let answer = compute_decisions(state.served(), dialect, built?).await?;
    Ok(respond(&state, format, ROUTE, answer, |body| body))
}

/// The decisions, in the dialect of the body.
#[derive(Serialize, ToSchema)]
#[schema(as = DecisionAnswer)]
#[serde(untagged)]
pub(crate) enum AnswerBody {
    SystemOne(SystemOneAnswer),
    OpenAi(DecisionsAnswer),
}

async fn compute_decisions(
    served: &Served,
    dialect: DecisionDialect,
    built: BuiltDecisions,
) -> Result<Answer<AnswerBody>, ApiError> {
    let BuiltDecisions { request, forms } = built;
    let answer = served.service.decide(request).await.map_err(|error| in_fields(error, dialect))?;
    let (model, tokens) = (served.info.served_model_name.clone(), answer.cost.tokens);
    Ok(answer.map(|decisions| match dialect {
        DecisionDialect::SystemOne => {
            AnswerBody::SystemOne(SystemOneAnswer::from_decisions(model, forms, tokens, &decisions))
        }
        DecisionDialect::OpenAi => {
            AnswerBody::OpenAi(DecisionsAnswer::from_decisions(model, forms, tokens, &decisions))
        }
    }))
}

/// The answer to a body in JSON, without a server. The error is the message that a client would read.
pub(crate) async fn answer_decisions(served: &Served, body: Vec<u8>) -> anyhow::Result<String> {
    let answer = async {
        let Checked { found, body } = read_and_build(&DecodedBody::new(body, BodyFormat::Json)?)?;
        compute_decisions(served, found, body?).await
    };
    let answer = answer.await.map_err(|error: ApiError| anyhow::anyhow!("{}", error.message()))?;
    Ok(serde_json::to_string(&answer.value)?)
}

/// The dialects, told apart by the field that holds the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DecisionDialect {
    SystemOne,
    OpenAi,
}

impl DecisionDialect {
    const ALL: [Self; 2] = [Self::SystemOne, Self::OpenAi];

    fn text_field(self) -> &'static str {
        match self {
            Self::SystemOne => "state",
            Self::OpenAi => "input",
        }
    }

    /// The dialect of a body with these fields.
    fn from_fields(fields: &[String]) -> Result<Self, String> {
        let found = Self::ALL.map(|dialect| fields.iter().any(|field| field == dialect.text_field()));
        match (found[0], found[1]) {
            (true, false) => Ok(Self::SystemOne),
            (false, true) => Ok(Self::OpenAi),
            (found, _) => Err(format!(
                "the request has {} `input`: give `state` with an object of questions, or `input` with \
                 a list of questions",
                if found { "both `state` and" } else { "neither `state` nor" }
            )),
        }
    }
}

/// The service's request, and the forms of its answers.
struct BuiltDecisions {
    request: DecisionRequest,
    /// One for each question.
    forms: Vec<NamedForm>,
}

impl BuiltDecisions {
    fn from_request(request: DecisionRequest) -> Self {
        Self { request, forms: Vec::new() }
    }

    fn push_question(&mut self, name: Option<String>, question: Question, form: AnswerForm) {
        self.request.questions.push(question);
        self.forms.push(NamedForm { name, form });
    }
}

fn read_and_build(body: &DecodedBody) -> Result<Checked<DecisionDialect, BuiltDecisions>, ApiError> {
    let first = body.first_of(&DecisionDialect::ALL.map(DecisionDialect::text_field));
    if first == Some(DecisionDialect::OpenAi.text_field()) {
        Ok(body.check(DecisionDialect::from_fields)?.build(ListedQuestionsBody::build_request))
    } else {
        Ok(body.check(DecisionDialect::from_fields)?.build(SystemOneBody::build_request))
    }
}

/// Does the part of [`decide`] that needs no model.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn check_reading(body: &DecodedBody) {
    let is_known = body.fields().is_ok_and(|fields| DecisionDialect::from_fields(&fields).is_ok());
    let read = read_and_build(body);
    assert_eq!(read.is_ok(), is_known, "the names of all fields tell the dialect");
    if let Ok(Checked { body: Ok(BuiltDecisions { request, forms }), .. }) = read {
        assert_eq!(request.questions.len(), forms.len());
    }
}

/// The service's error with the body's name for the text.
fn in_fields(error: Error, dialect: DecisionDialect) -> Error {
    let field = dialect.text_field();
    match error {
        // The text is the same for each question.
        Error::OfInput { error, .. } => in_fields(*error, dialect),
        Error::TooLong { got, max } => Error::Validation(format!(
            "`{field}` is too long: with a question it has {got} tokens, and {max} fit; nothing is cut: send less, \
             or raise `--max-input-length`"
        )),
        Error::TooManyCharacters { got, max } => Error::Validation(format!(
            "`{field}` is too long: with a question it has {got} characters, and {max} fit at most; nothing is \
             cut: send less, or raise `--max-input-length`"
        )),
        other => other,
    }
}

#[cfg(test)]
mod tests;
