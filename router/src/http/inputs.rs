//! The inputs of an embedding model: a text, token ids, or a list of texts and token ids.
//!
//! Input: `inputs` of TEI's routes, `input` of `OpenAI`'s. Output: [`EmbedInputsBody`], one [`EmbedInput`]
//! for each vector. What must hold: a list of numbers is one input, an empty list is one input without ids,
//! and a list with texts or lists in it is a batch; a mistake is found while its element is read, so that the
//! message can name its place.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{
        Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor,
        value::{MapAccessDeserializer, SeqAccessDeserializer},
    },
};
use text_embeddings_core::service::{EmbedInput, EmbedInputs};
use utoipa::ToSchema;

/// The schema of [`EmbedInputsBody`].
#[derive(Serialize, ToSchema)]
#[schema(as = Input)]
#[serde(untagged)]
#[expect(dead_code, reason = "a description, not a value")]
pub(crate) enum EmbedInputsSchema {
    One(EmbedInputSchema),
    Many(Vec<EmbedInputSchema>),
}

/// The schema of an input that becomes one vector.
#[derive(Serialize, ToSchema)]
#[schema(as = InputType)]
#[serde(untagged)]
#[expect(dead_code, reason = "a description, not a value")]
pub(crate) enum EmbedInputSchema {
    Text(String),
    Ids(Vec<u32>),
    /// As Jina's clients send it. Only in a list.
    Object {
        text: String,
    },
}

/// The message about an object with content that no model here reads.
pub(crate) const NOT_TEXT: &str = "images, videos and sounds are not supported: only `text` is read";

/// The inputs in their order.
#[derive(Debug, PartialEq)]
pub(crate) struct EmbedInputsBody(pub(crate) EmbedInputs);

impl<'de> Deserialize<'de> for EmbedInputsBody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EmbedInputsVisitor)
    }
}

struct EmbedInputsVisitor;

impl<'de> Visitor<'de> for EmbedInputsVisitor {
    type Value = EmbedInputsBody;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a text, token ids or a list of those")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<EmbedInputsBody, E> {
        Ok(EmbedInputsBody(EmbedInputs::single(EmbedInput::Text(text.to_owned()))))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<EmbedInputsBody, A::Error> {
        let (mut ids, mut inputs) = (Vec::new(), Vec::new());
        while let Some(element) = list.next_element()? {
            match element {
                EmbedElement::Id(id) => ids.push(id),
                EmbedElement::Input(input) => inputs.push(input),
            }
            if !ids.is_empty() && !inputs.is_empty() {
                return Err(Error::custom(
                    "a list holds either token ids, which are one input, or texts and lists of token ids",
                ));
            }
        }
        let is_batch = !inputs.is_empty();
        Ok(EmbedInputsBody(if is_batch {
            EmbedInputs::batch(inputs)
        } else {
            EmbedInputs::single(EmbedInput::Ids(ids))
        }))
    }
}

/// An element of the list.
enum EmbedElement {
    Id(u32),
    Input(EmbedInput),
}

impl<'de> Deserialize<'de> for EmbedElement {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EmbedElementVisitor)
    }
}

struct EmbedElementVisitor;

impl<'de> Visitor<'de> for EmbedElementVisitor {
    type Value = EmbedElement;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a text, a token id or a list of token ids")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<EmbedElement, E> {
        Ok(EmbedElement::Input(EmbedInput::Text(text.to_owned())))
    }

    fn visit_u64<E: Error>(self, id: u64) -> Result<EmbedElement, E> {
        u32::try_from(id)
            .map(EmbedElement::Id)
            .map_err(|_| E::invalid_value(Unexpected::Unsigned(id), &"u32"))
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<EmbedElement, A::Error> {
        /// An input of Jina's clients.
        #[derive(Deserialize)]
        struct InputObject {
            text: Option<String>,
            #[serde(alias = "image_url", alias = "video", alias = "audio")]
            image: Option<IgnoredAny>,
        }
        match InputObject::deserialize(MapAccessDeserializer::new(fields))? {
            InputObject { image: Some(IgnoredAny), .. } => Err(A::Error::custom(NOT_TEXT)),
            InputObject { text: Some(text), .. } => Ok(EmbedElement::Input(EmbedInput::Text(text))),
            InputObject { text: None, .. } => {
                Err(A::Error::custom("an input that is an object must have a `text`"))
            }
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<EmbedElement, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list))
            .map(|ids| EmbedElement::Input(EmbedInput::Ids(ids)))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use serde_json::{Value, json};

    fn text(text: &str) -> EmbedInput {
        EmbedInput::Text(text.to_owned())
    }

    /// Each way to write inputs, and the inputs that it means.
    pub(crate) fn shapes() -> Vec<(Value, EmbedInputs)> {
        let ids = |ids: &[u32]| EmbedInput::Ids(ids.to_vec());
        let (single, batch) = (EmbedInputs::single, EmbedInputs::batch);
        vec![
            (json!("a"), single(text("a"))),
            (json!(""), single(text(""))),
            (json!("\u{1F600}\u{0}"), single(text("\u{1F600}\u{0}"))),
            (json!(["a"]), batch(vec![text("a")])),
            (
                json!([{"text": "a"}, "b", {"text": "", "image": null}]),
                batch(vec![text("a"), text("b"), text("")]),
            ),
            (json!(["a", "b", "a"]), batch(vec![text("a"), text("b"), text("a")])),
            (json!([1, 2, 3]), single(ids(&[1, 2, 3]))),
            (json!([0]), single(ids(&[0]))),
            (json!([u32::MAX]), single(ids(&[u32::MAX]))),
            (json!([[1, 2], [3]]), batch(vec![ids(&[1, 2]), ids(&[3])])),
            (json!(["a", [1, 2], "b"]), batch(vec![text("a"), ids(&[1, 2]), text("b")])),
            (json!([[1], "a", []]), batch(vec![ids(&[1]), text("a"), ids(&[])])),
            (json!([[]]), batch(vec![ids(&[])])),
            (json!([]), single(ids(&[]))),
        ]
    }

    /// Inputs that are refused.
    pub(crate) struct Mistake {
        pub(crate) inputs: &'static str,
        /// The part of the place that follows the field's name.
        pub(crate) place: &'static str,
        /// The beginning of the message that follows the place.
        pub(crate) message: &'static str,
    }

    /// Wrong inputs.
    pub(crate) fn mistakes() -> Vec<Mistake> {
        let mixed = "a list holds either token ids, which are one input, or texts and lists of token ids";
        [
            ("null", "", "invalid type: null, expected a text, token ids or a list of those"),
            ("3", "", "invalid type: integer `3`, expected a text, token ids or a list of those"),
            ("{}", "", "invalid type: map, expected a text, token ids or a list of those"),
            (
                "[true]",
                "[0]",
                "invalid type: boolean `true`, expected a text, a token id or a list of token ids",
            ),
            (
                "[1,-1]",
                "[1]",
                "invalid type: integer `-1`, expected a text, a token id or a list of token ids",
            ),
            (
                "[1,2.5]",
                "[1]",
                "invalid type: floating point `2.5`, expected a text, a token id or a list of token ids",
            ),
            ("[4294967296]", "[0]", "invalid value: integer `4294967296`, expected u32"),
            ("[\"a\",null]", "[1]", "invalid type: null, expected a text, a token id or a list of token ids"),
            ("[\"a\",[1,-2]]", "[1][1]", "invalid value: integer `-2`, expected u32"),
            ("[[1,[2]]]", "[0][1]", "invalid type: sequence, expected u32"),
            ("[[\"a\"]]", "[0][0]", "invalid type: string \"a\", expected u32"),
            ("[{}]", "[0]", "an input that is an object must have a `text`"),
            ("[\"a\",{\"text\":\"b\",\"image\":\"c\"}]", "[1]", NOT_TEXT),
            ("[{\"text\":\"b\",\"video\":\"c\"}]", "[0]", NOT_TEXT),
            ("[{\"text\":3}]", "[0].text", "invalid type: integer `3`, expected a string"),
            ("[1,\"a\"]", "", mixed),
            ("[\"a\",1]", "", mixed),
            ("[[1],1]", "", mixed),
        ]
        .map(|(inputs, place, message)| Mistake { inputs, place, message })
        .into()
    }

    #[test]
    fn inputs_come_in_all_shapes() {
        for (inputs, expected) in shapes() {
            assert_eq!(
                EmbedInputsBody::deserialize(&inputs).unwrap(),
                EmbedInputsBody(expected.clone()),
                "{inputs}"
            );
            let read: EmbedInputsBody = serde_json::from_str(&inputs.to_string()).unwrap();
            assert_eq!(read, EmbedInputsBody(expected), "{inputs}");
        }
    }

    #[test]
    fn a_mistake_is_found_where_it_stands() {
        for Mistake { inputs, place, message } in mistakes() {
            let mut deserializer = serde_json::Deserializer::from_str(inputs);
            let error =
                serde_path_to_error::deserialize::<_, EmbedInputsBody>(&mut deserializer).unwrap_err();
            let path = if place.is_empty() { "." } else { place };
            assert_eq!(error.path().to_string(), path, "{inputs}");
            assert!(error.inner().to_string().starts_with(message), "{inputs}: {error}");
        }
    }
}
