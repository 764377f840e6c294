//! Shared by the files of several routes: fields of bodies, and the answer to a request that computed.

use axum::{
    Extension,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Deserializer, Serialize};
use text_embeddings_core::{
    model::InputType,
    service::{Answer, EmbedEncoding},
    tokenization::TruncationDirection,
};
use utoipa::ToSchema;

use super::format::BodyFormat;
use crate::{cost, state::AppState};

/// The default of fields that are on unless a request turns them off.
pub(crate) fn yes() -> bool {
    true
}

/// A field's value, or the default if the field is null: clients that are made from a schema send every
/// field.
pub(crate) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// The end of a text that is cut, in TEI's two spellings.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[schema(as = TruncationDirection)]
pub(crate) enum TruncationSide {
    #[default]
    #[serde(alias = "right")]
    Right,
    #[serde(alias = "left")]
    Left,
}

impl From<TruncationSide> for TruncationDirection {
    fn from(side: TruncationSide) -> Self {
        match side {
            TruncationSide::Right => Self::Right,
            TruncationSide::Left => Self::Left,
        }
    }
}

/// The end at which a text that is too long is cut, in the words of Cohere and `NVIDIA`'s NIM.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum CohereTruncation {
    /// It is refused.
    None,
    Start,
    #[default]
    End,
}

impl CohereTruncation {
    /// Whether a text may be cut.
    pub(crate) fn is_allowed(self) -> bool {
        self != Self::None
    }

    /// The end at which a text is cut.
    pub(crate) fn cut_side(self) -> TruncationDirection {
        match self {
            Self::Start => TruncationDirection::Left,
            Self::None | Self::End => TruncationDirection::Right,
        }
    }
}

/// Whether a text that is too long is cut, and at which end.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[schema(as = Truncation)]
#[serde(untagged, expecting = "expected true, false, `NONE`, `START` or `END`")]
pub(crate) enum TruncateChoice {
    Cut(bool),
    End(CohereTruncation),
}

impl TruncateChoice {
    /// The end at which a text is cut, if it may be.
    pub(crate) fn cut_end(self) -> CohereTruncation {
        match self {
            Self::Cut(true) => CohereTruncation::End,
            Self::Cut(false) => CohereTruncation::None,
            Self::End(end) => end,
        }
    }
}

/// The use of a vector, by the names of Cohere and Voyage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[schema(as = EmbedInputType)]
#[serde(rename_all = "snake_case")]
pub(crate) enum InputTypeName {
    #[serde(alias = "document", alias = "passage")]
    SearchDocument,
    #[serde(alias = "query")]
    SearchQuery,
    Classification,
    Clustering,
    /// Refused: only text is embedded.
    Image,
}

impl InputTypeName {
    /// The type for the service.
    pub(crate) fn input_type(self) -> Result<InputType, String> {
        match self {
            Self::SearchDocument => Ok(InputType::Document),
            Self::SearchQuery => Ok(InputType::Query),
            Self::Classification => Ok(InputType::Classification),
            Self::Clustering => Ok(InputType::Clustering),
            Self::Image => {
                Err("`input_type` `image` is not supported: this model reads text only".to_owned())
            }
        }
    }
}

/// `parameters`, in which the clients of Hugging Face's inference API put the fields of a body. A field of
/// the body itself has priority.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = InferenceParameters)]
pub(crate) struct InferenceParameters {
    /// For embeddings.
    pub(crate) prompt_name: Option<String>,
    /// For embeddings: false leaves vectors as long as they are.
    pub(crate) normalize: Option<bool>,
    pub(crate) truncate: Option<bool>,
    pub(crate) truncation_direction: Option<TruncationSide>,
    /// For predictions: `none` is `raw_scores`. The others are the function that the model has.
    pub(crate) function_to_apply: Option<AppliedFunction>,
}

/// The function that makes scores of a model's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AppliedFunction {
    Sigmoid,
    Softmax,
    None,
}

/// The tokenization settings that a body's fields ask for.
pub(crate) fn encoding(
    truncate: Option<bool>,
    side: TruncationSide,
    prompt_name: Option<String>,
) -> EmbedEncoding {
    EmbedEncoding { truncate, truncation_direction: side.into(), prompt_name, input_type: None }
}

/// The answer of a route that computed: `body` makes its body from the value; the cost goes to the headers
/// and the log.
pub(crate) fn respond<T, B: Serialize>(
    state: &AppState,
    format: BodyFormat,
    route: &'static str,
    answer: Answer<T>,
    body: impl FnOnce(T) -> B,
) -> Response {
    let Answer { value, cost } = answer;
    cost::log(route, &cost);
    let headers: HeaderMap =
        cost::headers(&cost, state.served().info.computation.device).into_iter().collect();
    // The extension is for the request's span.
    (headers, Extension(cost), format.respond(StatusCode::OK, &body(value))).into_response()
}
