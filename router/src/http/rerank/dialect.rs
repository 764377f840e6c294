//! The dialect of a body, by the names of its fields.
//!
//! Input: the names. Output: a [`Dialect`], or a message with the fields that were there and the fields that
//! would be understood. What must hold: only the field that holds the texts decides; a body with none or
//! several of these fields is refused.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::http::{
    error_shapes::ErrorShape,
    near_misses::{has_field, hint},
    routes,
};

/// The most names of fields, and the most characters of a name, that a message repeats.
const MAX_NAMES: usize = 12;
const MAX_NAME: usize = 40;

/// The dialects, told apart by the field that holds the texts to rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// TEI.
    Texts,
    /// Cohere, Jina, `vLLM`, `llama.cpp`, Infinity, Voyage.
    Documents,
    /// Mixedbread.
    Input,
    /// `NVIDIA`'s NIM.
    Passages,
}

impl Dialect {
    /// All dialects.
    pub(crate) const ALL: [Self; 4] = [Self::Texts, Self::Documents, Self::Input, Self::Passages];

    /// The dialect of a body with these fields. Fails if none or several of the fields that hold texts are
    /// there, or `query` is misspelled. The message has the fields that were there and the ones that would be
    /// understood.
    pub(crate) fn from_fields(fields: &[String]) -> Result<Self, String> {
        let mut found = Self::ALL.to_vec();
        found.retain(|dialect| has_field(fields, dialect.texts_field()));
        match found[..] {
            [dialect] if has_field(fields, "query") || hint(fields, &["query"]).is_none() => Ok(dialect),
            [_] => Err(format!(
                "invalid request: missing field `query`{}",
                hint(fields, &["query"]).unwrap_or_default()
            )),
            [] => {
                let hint = hint(fields, &["query", "documents", "texts", "instruction"]).unwrap_or_default();
                Err(format!(
                    "the request does not say what to rank: {}. {}{hint}",
                    seen(fields),
                    Self::choices()
                ))
            }
            [first, second, ..] => {
                let (first, second) = (first.texts_field(), second.texts_field());
                Err(format!(
                    "the request has both `{first}` and `{second}`, which belong to two dialects. {}",
                    Self::choices()
                ))
            }
        }
    }

    /// The field that holds the texts to rank.
    pub(crate) fn texts_field(self) -> &'static str {
        match self {
            Self::Texts => "texts",
            Self::Documents => "documents",
            Self::Input => "input",
            Self::Passages => "passages",
        }
    }

    /// The shape of an error that occurs on `path`.
    pub(crate) fn error_shape(self, path: &str) -> ErrorShape {
        match (self, routes::error_shape(path)) {
            (Self::Texts, _) => ErrorShape::Tei,
            (Self::Documents, ErrorShape::Tei) => ErrorShape::Nested,
            (Self::Documents, shape) => shape,
            (Self::Input | Self::Passages, _) => ErrorShape::MessageAndDetail,
        }
    }

    fn choices() -> &'static str {
        "Send `query` and one of `texts` (answered as by text-embeddings-inference), `documents` (as by \
         Cohere, Jina, vLLM and Voyage), `input` (as by Mixedbread) or `passages` (as by NVIDIA's NIM)"
    }
}

/// The names of a request's fields, for a message.
pub(crate) fn seen(fields: &[String]) -> String {
    if fields.is_empty() {
        return "it has no fields".to_owned();
    }
    let names: Vec<String> = fields
        .iter()
        .take(MAX_NAMES)
        .map(|field| format!("`{}`", field.chars().take(MAX_NAME).collect::<String>()))
        .collect();
    let more = if fields.len() > MAX_NAMES { ", …" } else { "" };
    format!("its fields are {}{more}", names.join(", "))
}

/// Says once in the log that a request has a field that looks like a misspelled `instruction`. It would
/// otherwise be ignored silently, as unknown fields are.
pub(crate) fn note_misspelled_instruction(fields: &[String]) {
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    let has_one = fields.iter().any(|field| matches!(field.as_str(), "instruct" | "chat_template_kwargs"));
    if !has_one
        && let Some(hint) = hint(fields, &["instruction"])
        && !IS_SAID.swap(true, Ordering::Relaxed)
    {
        tracing::warn!("a request has an unknown field, which is ignored{hint} (said once)");
    }
}
