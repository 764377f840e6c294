//! Bodies with `documents`, or `input` or `passages` instead.
//!
//! Input: the body of Cohere, Jina, `vLLM`, `llama.cpp`, Infinity, Voyage, Mixedbread or NIM. Output: a
//! [`BuiltRequest`]. What must hold: only the text of a document is ranked; a document without text is
//! refused with its place.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::{self, Write},
};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error, IgnoredAny, MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::{Map, Value};
use text_embeddings_backend_core::amount;
use text_embeddings_core::service::RerankRequest;
use utoipa::ToSchema;

use super::{
    dialect::Dialect,
    lenient::{lenient_bool, lenient_count},
    options::Options,
};
use crate::http::{inputs::NOT_TEXT, json::JsonText, one_or_many::one_or_many, schemas::only_null};

/// The field of a document that is ranked if the request names no fields.
const TEXT: &str = "text";

/// A query and the documents to rank. [`Options`] has the other fields.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = RerankDocumentsRequest, example = json!({
    "query": "What is deep learning?",
    "documents": ["Bread is baked from flour.", "Machine learning with many layers."]
}))]
pub(crate) struct DocumentsBody {
    #[schema(value_type = QuerySchema)]
    query: Query,
    #[serde(alias = "input", alias = "passages", deserialize_with = "documents")]
    #[schema(value_type = DocumentListSchema)]
    documents: DocumentList,
    /// The number of results, best first; all if it is absent, null or 0.
    #[serde(default, deserialize_with = "lenient_count")]
    top_n: Option<usize>,
    /// Voyage's and Mixedbread's name for `top_n`. If it is there without `top_n`, the answer has Voyage's
    /// `data` too.
    #[serde(default, deserialize_with = "lenient_count")]
    top_k: Option<usize>,
    /// Whether the answer repeats the documents.
    #[serde(alias = "return_input", alias = "return_text", default, deserialize_with = "lenient_bool")]
    return_documents: Option<bool>,
    /// The fields of documents that are ranked, as lines of `field: value` in this order, for documents that
    /// are objects. Absent, null or empty: `text`.
    rank_fields: Option<Vec<String>>,
    /// Refused unless null: spans are not computed.
    #[schema(schema_with = only_null)]
    relevant_spans: Option<IgnoredAny>,
}

/// A query and the inputs to rank, in Mixedbread's format. This type is for the description; bodies are read
/// as [`DocumentsBody`].
#[derive(Deserialize, ToSchema)]
#[schema(as = MixedbreadRerankRequest, example = json!({
    "query": "What is deep learning?",
    "input": ["Bread is baked from flour.", "Machine learning with many layers."]
}))]
#[expect(dead_code, reason = "a description, not a value")]
pub(crate) struct MixedbreadBody {
    #[schema(value_type = QuerySchema)]
    query: Query,
    #[schema(value_type = DocumentListSchema)]
    input: DocumentList,
    /// The number of results, best first; all if it is absent, null or 0.
    top_k: Option<usize>,
    /// Whether the answer repeats the inputs.
    return_input: Option<bool>,
    /// The fields of inputs that are ranked, as lines of `field: value` in this order, for inputs that are
    /// objects. Absent, null or empty: `text`.
    rank_fields: Option<Vec<String>>,
}

/// A query and the passages to rank, in the format of `NVIDIA`'s NIM. This type is for the description;
/// bodies are read as [`DocumentsBody`].
#[derive(Deserialize, ToSchema)]
#[schema(as = NimRankingRequest, example = json!({
    "query": {"text": "What is deep learning?"},
    "passages": [{"text": "Bread is baked from flour."}, {"text": "Machine learning with many layers."}]
}))]
#[expect(dead_code, reason = "a description, not a value")]
pub(crate) struct NimBody {
    #[schema(value_type = QuerySchema)]
    query: Query,
    #[schema(value_type = DocumentListSchema)]
    passages: DocumentList,
    /// The number of results, best first; all if it is absent, null or 0.
    top_n: Option<usize>,
}

/// The query: a text, or an object that holds it.
#[derive(Debug)]
struct Query(String);

/// The schema of [`Query`].
#[derive(Serialize, ToSchema)]
#[schema(as = RerankQuery)]
#[serde(untagged)]
#[expect(dead_code, reason = "a description, not a value")]
pub(crate) enum QuerySchema {
    Text(String),
    Object { text: String },
}

/// The schema of [`DocumentList`].
#[derive(Serialize, ToSchema)]
#[schema(as = RerankDocuments)]
#[serde(untagged)]
#[expect(dead_code, reason = "a description, not a value")]
pub(crate) enum DocumentListSchema {
    One(String),
    Many(Vec<DocumentSchema>),
}

/// A document: a text, or an object with `text` or the fields in `rank_fields`.
#[derive(Serialize, ToSchema)]
#[schema(as = RerankDocument)]
#[serde(untagged)]
#[expect(dead_code, reason = "a description, not a value")]
pub(crate) enum DocumentSchema {
    Text(String),
    #[schema(value_type = Object)]
    Object(Map<String, Value>),
}

/// The documents in their order. A single text is a list of one.
type DocumentList = Vec<DocumentBody>;

#[derive(Debug)]
enum DocumentBody {
    Text(String),
    Object(JsonText),
}

/// The service's request, and the values that the answer needs in addition.
pub(super) struct BuiltRequest {
    pub(super) request: RerankRequest,
    /// The options of the body.
    pub(super) options: Options,
    /// For each document the object it was sent as, if it was one. Empty unless the answer repeats the
    /// documents.
    pub(super) objects: Vec<Option<JsonText>>,
    /// Whether the answer has Voyage's `data` too.
    pub(super) has_data: bool,
}

impl DocumentsBody {
    /// The service's request for this body. The texts that are built from objects have at most `limit` bytes
    /// in all. The error names the field or document that cannot be ranked, and says why.
    pub(super) fn request(
        self,
        mut options: Options,
        dialect: Dialect,
        limit: usize,
    ) -> Result<BuiltRequest, String> {
        options.check()?;
        if dialect == Dialect::Passages {
            options.take_nims_defaults();
        }
        if self.relevant_spans.is_some() {
            return Err("`relevant_spans` is not supported: documents get a score and no spans".to_owned());
        }
        let fields = RankFields::new(self.rank_fields.as_deref().unwrap_or_default())?;
        let mut left = limit;
        let return_text = self.return_documents.unwrap_or(false);
        let mut texts = Vec::with_capacity(self.documents.len());
        let mut objects = Vec::new();
        for (index, document) in self.documents.into_iter().enumerate() {
            let (text, object) = match document {
                DocumentBody::Text(text) => (text, None),
                DocumentBody::Object(object) => {
                    let place = format!("`{}[{index}]`", dialect.texts_field());
                    let text =
                        fields.text_of(&object, dialect).map_err(|problem| format!("{place} {problem}"))?;
                    left = left.checked_sub(text.len()).ok_or_else(|| {
                        format!(
                            "{place} is too much: the texts that are ranked of objects have more than {}",
                            amount(limit, "byte")
                        )
                    })?;
                    (text, Some(object))
                }
            };
            texts.push(text);
            if return_text {
                objects.push(object);
            }
        }
        let request = RerankRequest {
            return_text,
            top_n: self.top_n.or(self.top_k),
            ..options.request(self.query.0, texts)
        };
        // Voyage's client always sends `truncation`.
        let has_data = options.truncation.is_some() || (self.top_k.is_some() && self.top_n.is_none());
        Ok(BuiltRequest { request, options, objects, has_data })
    }
}

/// The fields of an object that are ranked, each with its place in the order. Empty if that is `text` alone.
struct RankFields<'a>(HashMap<&'a str, usize>);

impl<'a> RankFields<'a> {
    /// Refuses a field that is named twice, because a short body could otherwise ask for a text of any
    /// length.
    fn new(names: &'a [String]) -> Result<Self, String> {
        let mut places = HashMap::with_capacity(names.len());
        for (place, name) in names.iter().enumerate() {
            if places.insert(name.as_str(), place).is_some() {
                return Err(format!("`rank_fields[{place}]` names a field that it named before"));
            }
        }
        let is_text_alone = places.len() == 1 && places.contains_key(TEXT);
        Ok(Self(if is_text_alone { HashMap::new() } else { places }))
    }

    /// The text to rank of an object: its `text`, or lines of the named fields, as in YAML. The work is
    /// proportional to the object's size, however many fields are named. Nulls are left out.
    fn text_of(&self, object: &JsonText, dialect: Dialect) -> Result<String, String> {
        if self.0.is_empty() {
            return own_text(object, dialect);
        }
        let mut deserializer = serde_json::Deserializer::from_str(object.as_str());
        let named = deserializer.deserialize_map(NamedFields(&self.0)).map_err(|error| error.to_string())?;
        let mut lines = String::new();
        for (name, value) in named.into_values() {
            let separator = if lines.is_empty() { "" } else { "\n" };
            match value {
                FieldText::Text(text) => write!(lines, "{separator}{name}: {text}"),
                FieldText::Other(json) => write!(lines, "{separator}{name}: {}", json.as_str()),
                FieldText::Null => Ok(()),
            }
            .map_err(|error| error.to_string())?;
        }
        if lines.is_empty() {
            Err("has none of the fields that `rank_fields` names".to_owned())
        } else {
            Ok(lines)
        }
    }
}

/// An object's own text. Cohere's clients send documents with all their fields. So an image next to the text
/// is ignored, like other fields. NIM's clients send an image only to have it ranked.
fn own_text(object: &JsonText, dialect: Dialect) -> Result<String, String> {
    let places = [TEXT, "content", "image", "image_url", "video", "audio"].into_iter().zip(0..).collect();
    let mut deserializer = serde_json::Deserializer::from_str(object.as_str());
    let mut found = deserializer.deserialize_map(NamedFields(&places)).map_err(|error| error.to_string())?;
    let text = found.remove(&0).map(|(_, value)| value);
    let has_image = found.values().any(|(name, value)| name == "image" && !matches!(value, FieldText::Null));
    match text {
        Some(_) if has_image && dialect == Dialect::Passages => {
            Err("has an `image`, which is not supported: only text is ranked".to_owned())
        }
        Some(FieldText::Text(text)) => Ok(text),
        Some(_) => Err("has a `text` that is not a string".to_owned()),
        None if !found.is_empty() => {
            Err("has no `text`: only text is ranked, as a string or in a field `text`".to_owned())
        }
        None => Err("is an object without `text`: give it one, or name the fields to rank in `rank_fields`"
            .to_owned()),
    }
}

/// Reads the fields with these names, each to its place, and nothing else. Of a repeated field the last
/// counts.
struct NamedFields<'a>(&'a HashMap<&'a str, usize>);

/// The value of a field that is ranked.
enum FieldText {
    Text(String),
    /// Any other value, as JSON.
    Other(JsonText),
    Null,
}

impl<'de> Visitor<'de> for NamedFields<'_> {
    type Value = BTreeMap<usize, (String, FieldText)>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let mut found = BTreeMap::new();
        while let Some(name) = fields.next_key::<String>()? {
            match self.0.get(name.as_str()) {
                Some(place) => {
                    let value = FieldText::from_json(fields.next_value()?).map_err(Error::custom)?;
                    found.insert(*place, (name, value));
                }
                None => drop(fields.next_value::<IgnoredAny>()?),
            }
        }
        Ok(found)
    }
}

impl FieldText {
    fn from_json(json: JsonText) -> Result<Self, serde_json::Error> {
        Ok(match json.as_str() {
            "null" => Self::Null,
            text if text.starts_with('"') => Self::Text(serde_json::from_str(text)?),
            _ => Self::Other(json),
        })
    }
}

impl<'de> Deserialize<'de> for Query {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// The object that may hold the query.
        #[derive(Deserialize)]
        struct QueryObject {
            text: String,
            #[serde(alias = "image_url", alias = "video", alias = "audio")]
            image: Option<IgnoredAny>,
        }
        struct QueryVisitor;
        impl<'de> Visitor<'de> for QueryVisitor {
            type Value = Query;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a string")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Query, E> {
                Ok(Query(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Query, A::Error> {
                match QueryObject::deserialize(MapAccessDeserializer::new(fields))? {
                    QueryObject { image: Some(IgnoredAny), .. } => Err(A::Error::custom(NOT_TEXT)),
                    QueryObject { text, image: None } => Ok(Query(text)),
                }
            }
        }
        deserializer.deserialize_any(QueryVisitor)
    }
}

fn documents<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DocumentList, D::Error> {
    one_or_many(deserializer, "a list of strings or of objects with `text`")
}

impl From<String> for DocumentBody {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl<'de> Deserialize<'de> for DocumentBody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DocumentVisitor)
    }
}

struct DocumentVisitor;

impl<'de> Visitor<'de> for DocumentVisitor {
    type Value = DocumentBody;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string or an object with `text`")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<DocumentBody, E> {
        Ok(DocumentBody::Text(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<DocumentBody, A::Error> {
        JsonText::from_fields(fields).map(DocumentBody::Object)
    }
}
