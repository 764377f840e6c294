//! `POST /predict`: labels with scores; for a re-ranker, a pair's score.
//!
//! Input: `inputs` as a string, a pair `[a, b]` or a batch `[[a], [a, b], …]`. Output: `[{score, label}]`, or
//! a list of such lists for a batch. What must hold: `["a", "b"]` is one pair, as in TEI, not two texts.

use std::borrow::Cow;

use axum::{extract::State, response::Response};
use serde::{Deserialize, Serialize};
use text_embeddings_core::service::{PredictInput, PredictRequest, Prediction};
use utoipa::{
    ToSchema,
    openapi::{Object, RefOr, Schema, Type, schema::ArrayBuilder},
};

use super::{
    error::ApiError,
    extract::ParsedBody,
    named_fields::ObjectOnly,
    responses::InferenceErrors,
    schemas::TAG,
    shared::{AppliedFunction, InferenceParameters, TruncationSide, respond},
};
use crate::state::AppState;

/// The inputs to classify.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = PredictRequest, example = json!({
    "inputs": ["What is deep learning?", "Machine learning with many layers."]
}))]
pub(crate) struct PredictBody {
    #[schema(value_type = PredictInputsSchema)]
    inputs: PredictInputsBody,
    /// Whether an input that is too long is cut. Absent or null: as `--auto-truncate` of the server says.
    #[schema(default = false)]
    truncate: Option<bool>,
    #[serde(default)]
    #[schema(default = "right")]
    truncation_direction: TruncationSide,
    /// Scores before the sigmoid or softmax.
    #[serde(default)]
    #[schema(default = false)]
    raw_scores: bool,
    /// The other fields, as the clients of Hugging Face's inference API send them.
    #[schema(value_type = Option<InferenceParameters>)]
    parameters: Option<ObjectOnly<InferenceParameters>>,
}

/// The schema of [`PredictInputsBody`]: one text, one pair, or a batch of texts and pairs.
struct PredictInputsSchema;

impl ToSchema for PredictInputsSchema {
    fn name() -> Cow<'static, str> {
        "PredictInput".into()
    }
}

impl utoipa::PartialSchema for PredictInputsSchema {
    fn schema() -> RefOr<Schema> {
        // Imported above, it makes a qualification of the macros needless, which is a warning.
        use utoipa::openapi::schema::OneOfBuilder;
        let text = || Object::with_type(Type::String);
        let texts =
            |count| ArrayBuilder::new().items(text()).min_items(Some(count)).max_items(Some(count)).build();
        let batch = ArrayBuilder::new().items(OneOfBuilder::new().item(texts(1)).item(texts(2)));
        let description = "A text, a pair (for a re-ranker: query and document), or a batch of both.";
        OneOfBuilder::new().item(text()).item(texts(2)).item(batch).description(Some(description)).into()
    }
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(try_from = "UncheckedInputs")]
enum PredictInputsBody {
    One(PredictInput),
    Batch(Vec<PredictInput>),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string, a pair of strings or a batch of those")]
enum UncheckedInputs {
    Text(String),
    List(Vec<PredictElement>),
}

/// An element of the list: a text of a pair, or an input of a batch.
#[derive(Deserialize)]
#[serde(untagged)]
enum PredictElement {
    Text(String),
    List(Vec<String>),
}

impl TryFrom<UncheckedInputs> for PredictInputsBody {
    type Error = String;

    fn try_from(raw: UncheckedInputs) -> Result<Self, String> {
        match raw {
            UncheckedInputs::Text(text) => Ok(Self::One(PredictInput::Single(text))),
            UncheckedInputs::List(elements) => classify(elements),
        }
    }
}

/// A list of texts is one input, a list of lists is a batch.
fn classify(elements: Vec<PredictElement>) -> Result<PredictInputsBody, String> {
    let (mut texts, mut batch) = (Vec::new(), Vec::new());
    for element in elements {
        match element {
            PredictElement::Text(text) => texts.push(text),
            PredictElement::List(texts) => batch.push(single_or_pair(texts)?),
        }
    }
    match (texts.is_empty(), batch.is_empty()) {
        (true, true) => Err("an empty list, which is neither an input nor a batch".to_owned()),
        (true, false) => Ok(PredictInputsBody::Batch(batch)),
        (false, true) => single_or_pair(texts).map(PredictInputsBody::One),
        (false, false) => Err("a text next to a list; a batch is a list of lists: [[a], [a, b]]".to_owned()),
    }
}

fn single_or_pair(texts: Vec<String>) -> Result<PredictInput, String> {
    let count = texts.len();
    let mut texts = texts.into_iter();
    match (texts.next(), texts.next(), texts.next()) {
        (Some(text), None, None) => Ok(PredictInput::Single(text)),
        (Some(first), Some(second), None) => Ok(PredictInput::Pair(first, second)),
        _ => Err(format!(
            "an input is one string or a pair, not {count} strings; a batch is a list of lists: [[a], [a, b]]"
        )),
    }
}

impl PredictBody {
    /// The request, and whether its answer is a list of lists.
    pub(crate) fn split(self) -> (PredictRequest, bool) {
        let (inputs, is_batch) = match self.inputs {
            PredictInputsBody::One(input) => (vec![input], false),
            PredictInputsBody::Batch(inputs) => (inputs, true),
        };
        let parameters = self.parameters.map(|parameters| parameters.body).unwrap_or_default();
        let request = PredictRequest {
            inputs,
            is_batch,
            truncate: self.truncate.or(parameters.truncate),
            truncation_direction: parameters.truncation_direction.unwrap_or(self.truncation_direction).into(),
            raw_scores: self.raw_scores || parameters.function_to_apply == Some(AppliedFunction::None),
        };
        (request, is_batch)
    }
}

/// A label and its score.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Prediction)]
pub(crate) struct PredictionBody {
    score: f32,
    label: String,
}

/// The labels with their scores, best first; for a batch, a list of such lists.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PredictResponse)]
#[serde(untagged)]
pub(crate) enum PredictionsBody {
    One(Vec<PredictionBody>),
    Batch(Vec<Vec<PredictionBody>>),
}

impl PredictionsBody {
    /// The answer for the predictions of each input.
    pub(crate) fn new(predictions: Vec<Vec<Prediction>>, is_batch: bool) -> Self {
        let mut lists = predictions.into_iter().map(|list| {
            list.into_iter().map(|Prediction { score, label }| PredictionBody { score, label }).collect()
        });
        if is_batch { Self::Batch(lists.collect()) } else { Self::One(lists.next().unwrap_or_default()) }
    }
}

/// Label texts or pairs. Only with a classifier or a re-ranker, which gives a pair's score.
#[utoipa::path(post, path = "/predict", tag = TAG, request_body = PredictBody,
    responses(
        (status = 200, description = "The labels with their scores", body = PredictionsBody),
        InferenceErrors
    ))]
pub(crate) async fn predict(
    State(state): State<AppState>,
    ParsedBody(body, format): ParsedBody<PredictBody>,
) -> Result<Response, ApiError> {
    let (request, is_batch) = body.split();
    let answer = state.served().service.predict(request).await?;
    Ok(respond(&state, format, "predict", answer, |predictions| PredictionsBody::new(predictions, is_batch)))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use serde_json::json;

    fn single(text: &str) -> PredictInput {
        PredictInput::Single(text.to_owned())
    }

    fn pair(first: &str, second: &str) -> PredictInput {
        PredictInput::Pair(first.to_owned(), second.to_owned())
    }

    #[test]
    fn inputs_come_in_all_shapes() {
        let table = [
            (json!("a"), PredictInputsBody::One(single("a"))),
            (json!(["a"]), PredictInputsBody::One(single("a"))),
            (json!(["a", "b"]), PredictInputsBody::One(pair("a", "b"))),
            (json!([["a"]]), PredictInputsBody::Batch(vec![single("a")])),
            (json!([["a", "b"]]), PredictInputsBody::Batch(vec![pair("a", "b")])),
            (json!([["a"], ["b", "c"]]), PredictInputsBody::Batch(vec![single("a"), pair("b", "c")])),
        ];
        for (inputs, expected) in table {
            let body: PredictBody = serde_json::from_str(&json!({ "inputs": inputs }).to_string()).unwrap();
            assert_eq!(body.inputs, expected, "{inputs}");
            assert!(!body.raw_scores && body.truncate.is_none());
        }
    }

    #[test]
    fn other_shapes_are_refused() {
        let table = [
            (json!([]), "an empty list, which is neither an input nor a batch"),
            (json!(["a", "b", "c"]), "an input is one string or a pair, not 3 strings"),
            (json!([["a"], ["b", "c"], "d"]), "a text next to a list; a batch is a list of lists"),
            (json!(["a", ["b"]]), "a text next to a list; a batch is a list of lists"),
            (json!([["a"], []]), "an input is one string or a pair, not 0 strings"),
            (json!([["a", "b", "c"]]), "an input is one string or a pair, not 3 strings"),
            (json!(3), "expected a string, a pair of strings or a batch of those"),
            (json!(["a", 3]), "expected a string, a pair of strings or a batch of those"),
            (json!([["a", 3]]), "expected a string, a pair of strings or a batch of those"),
        ];
        for (inputs, expected) in table {
            let error =
                serde_json::from_str::<PredictBody>(&json!({ "inputs": inputs }).to_string()).unwrap_err();
            assert!(error.to_string().starts_with(expected), "{inputs}: {error}");
        }
    }
}
