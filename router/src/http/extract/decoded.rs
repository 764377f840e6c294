//! The body as JSON, and the mistakes in it.
//!
//! Input: bytes and their format. Output: [`DecodedBody`], which is read as the type that a route takes, or
//! an [`ApiError`] with the place of the mistake. What must hold: all text is UTF-8.

use std::{collections::HashMap, fmt, str};

use serde::{
    Deserializer,
    de::{DeserializeOwned, IgnoredAny, MapAccess, Visitor},
};
use serde_json::error::Category;

use crate::http::{
    error::ApiError,
    format::{BodyFormat, read_message_pack},
    json::{JsonText, without_position},
    named_fields::WithNames,
    near_misses::hint,
    unknown_fields::{IgnoredPaths, UnknownFields},
};

/// The start of the message about a field of the body that is not there.
const MISSING_FIELD: &str = "invalid request: missing field `";
/// UTF-8's byte order mark, with which some programs on Windows begin a text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// The words for the parser's types of numbers, which are Rust's.
const NUMBER_WORDS: [(&str, &str); 6] = [
    ("expected usize", "expected a whole number from 0"),
    ("expected u32", "expected a whole number from 0"),
    ("expected u64", "expected a whole number from 0"),
    ("expected i64", "expected a whole number"),
    ("expected f32", "expected a number"),
    ("expected f64", "expected a number"),
];
/// The parser's message about a value of another type where it expects one of a few words. It is in the class
/// of errors in the notation, although the body may be JSON.
const NO_WORD: &str = "expected value";
/// Its message about too many values within values, and their greatest depth.
const TOO_DEEP: &str = "recursion limit exceeded";
const MAX_DEPTH: usize = 127;

/// A body as JSON. `MessagePack` is written as JSON, without a tree of its values.
pub(crate) struct DecodedBody {
    json: Vec<u8>,
    /// The client's format.
    format: BodyFormat,
    /// Takes the fields that readers pass over.
    unknown: UnknownFields,
    /// The number of times that the whole body was read.
    #[cfg(test)]
    pub(crate) readings: std::sync::atomic::AtomicUsize,
}

impl DecodedBody {
    /// A body of these bytes. Fails if the format is `MessagePack` and the bytes are not. Malformed JSON is
    /// an error of the parsing methods.
    pub(crate) fn new(mut bytes: Vec<u8>, format: BodyFormat) -> Result<Self, ApiError> {
        let json = match format {
            BodyFormat::Json => {
                if bytes.starts_with(BYTE_ORDER_MARK) {
                    bytes.drain(..BYTE_ORDER_MARK.len());
                }
                bytes
            }
            BodyFormat::MessagePack => {
                read_message_pack(&bytes).map_err(BodyMistake::Malformed)?.into_bytes()
            }
        };
        Ok(Self {
            json,
            format,
            unknown: UnknownFields::default(),
            #[cfg(test)]
            readings: std::sync::atomic::AtomicUsize::new(0),
        })
    }

    /// The same body, whose readers note the fields that they pass over in `unknown`.
    pub(super) fn noting_unknown(self, unknown: UnknownFields) -> Self {
        Self { unknown, ..self }
    }

    /// The names of the fields in their order. A repeated field is there repeatedly.
    pub(crate) fn fields(&self) -> Result<Vec<String>, ApiError> {
        let named = parse(&self.json, self.format).map_err(|mistake| self.with_hint(mistake));
        Ok(named.map(|(WithNames::<IgnoredAny> { notes, .. }, _)| notes)?)
    }

    /// The first field that is one of `names`. The rest of the body is not read, and may not even be JSON.
    pub(crate) fn first_of(&self, names: &[&'static str]) -> Option<&'static str> {
        let mut found = None;
        let visitor = FirstOf { names, found: &mut found };
        // A visitor that leaves fields unread ends in an error, which means nothing here.
        drop(serde_json::Deserializer::from_slice(&self.json).deserialize_map(visitor));
        found
    }

    /// The body as `T`, and the result of `check` for the names of all its fields. The body is read once. If
    /// that fails, the names are read on their own. Unknown fields are ignored. Fails if the body is not an
    /// object, or as `check` says. A mistake in a field's value is in [`Checked::body`].
    pub(crate) fn check<T: DeserializeOwned, F>(
        &self,
        check: impl Fn(&[String]) -> Result<F, String>,
    ) -> Result<Checked<F, T>, ApiError> {
        let (names, body) = match self.parse() {
            Ok(WithNames { notes, body }) => (notes, Ok(body)),
            // `check` needs the names after the mistake too: its error has priority.
            Err(error) => (self.fields()?, Err(error)),
        };
        Ok(Checked { found: check(&names).map_err(ApiError::invalid)?, body })
    }

    /// The body as `read` reads it. If it is refused, it is read again without its fields of these `names`
    /// that are null: clients that are made from a schema send every field of it. The error is the one of the
    /// whole body.
    pub(crate) fn read_without_nulls<F, T>(
        &self,
        names: &[&str],
        read: impl Fn(&Self) -> Result<Checked<F, T>, ApiError>,
    ) -> Result<Checked<F, T>, ApiError> {
        let first = read(self);
        if matches!(&first, Ok(Checked { body: Ok(_), .. })) {
            return first;
        }
        let Some(json) = without_nulls(&self.json, names) else { return first };
        let shorter = Self {
            json,
            format: self.format,
            unknown: self.unknown.clone(),
            #[cfg(test)]
            readings: std::sync::atomic::AtomicUsize::new(0),
        };
        match read(&shorter) {
            Ok(Checked { found, body: Ok(body) }) => Ok(Checked { found, body: Ok(body) }),
            _ => first,
        }
    }

    /// The body as `T`. Unknown fields are ignored. Fails if the body is not a `T`: 400 if it is not JSON,
    /// else 422 with the place.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        #[cfg(test)]
        self.readings.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let read = parse(&self.json, self.format).map_err(|mistake| self.with_hint(mistake));
        let (body, ignored) = read?;
        self.unknown.take_paths(ignored).map_err(BodyMistake::Invalid)?;
        Ok(body)
    }

    /// The same mistake. If a field is missing and another one may be meant, it ends with a question.
    fn with_hint(&self, mistake: BodyMistake) -> BodyMistake {
        let BodyMistake::Invalid(message) = mistake else { return mistake };
        let name = message.strip_prefix(MISSING_FIELD).and_then(|rest| rest.split('`').next());
        let Some(name) = name else { return BodyMistake::Invalid(message) };
        let question = match parse::<WithNames<IgnoredAny>>(&self.json, self.format) {
            Ok((WithNames { notes, .. }, _)) => hint(&notes, &[name]),
            Err(_) => None,
        };
        BodyMistake::Invalid(message + &question.unwrap_or_default())
    }
}

/// An object without its fields of these names that are null, if there are any.
fn without_nulls(json: &[u8], names: &[&str]) -> Option<Vec<u8>> {
    let WithNames { notes: fields, body }: WithNames<HashMap<String, Option<JsonText>>> =
        serde_json::from_slice(json).ok()?;
    let mut nulls = names.to_vec();
    nulls.retain(|name| body.get(*name).is_some_and(Option::is_none));
    // A field that is there twice is refused elsewhere.
    if fields.len() > body.len() || nulls.is_empty() {
        return None;
    }
    let kept = fields.iter().filter(|name| !nulls.contains(&name.as_str())).map(|name| {
        let value = body.get(name).and_then(Option::as_ref).map_or("null", JsonText::as_str);
        format!("{}:{value}", JsonText::from_string(name).as_str())
    });
    Some(format!("{{{}}}", kept.collect::<Vec<_>>().join(",")).into_bytes())
}

/// A mistake in a body.
#[derive(Debug, PartialEq, Eq)]
enum BodyMistake {
    /// It is not in its format; or, as in text-embeddings-inference, a value is no text where a field takes
    /// one of a few words, or values are nested too deep.
    Malformed(String),
    /// It is in its format, but the route does not take it.
    Invalid(String),
}

impl From<BodyMistake> for ApiError {
    fn from(mistake: BodyMistake) -> Self {
        match mistake {
            BodyMistake::Malformed(message) => Self::malformed(in_plain_words(&message)),
            BodyMistake::Invalid(message) => Self::invalid(in_plain_words(&message)),
        }
    }
}

/// A body whose fields' names were checked.
pub(crate) struct Checked<F, T> {
    /// The result of the check.
    pub(crate) found: F,
    /// The body, or the first mistake in a field's value.
    pub(crate) body: Result<T, ApiError>,
}

impl<F, T> Checked<F, T> {
    /// The same with the request that `build` makes of the body, or with the reason why it makes none.
    pub(crate) fn build<U>(self, build: impl FnOnce(T) -> Result<U, String>) -> Checked<F, U> {
        Checked { found: self.found, body: self.body.and_then(|body| build(body).map_err(ApiError::invalid)) }
    }
}

/// Reads up to the first field with one of the names.
struct FirstOf<'a> {
    names: &'a [&'static str],
    found: &'a mut Option<&'static str>,
}

impl<'de> Visitor<'de> for FirstOf<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        while let Some(name) = fields.next_key::<String>()? {
            *self.found = self.names.iter().copied().find(|wanted| *wanted == name);
            if self.found.is_some() {
                break;
            }
            fields.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

/// The message for a well-formed body that the route does not take.
fn invalid(path: &serde_path_to_error::Path, problem: &impl fmt::Display) -> String {
    match path.to_string().as_str() {
        "." => format!("invalid request: {problem}"),
        path => format!("invalid request: `{path}`: {problem}"),
    }
}

/// A body as `T`, and the fields that `T` does not have.
fn parse<T: DeserializeOwned>(bytes: &[u8], format: BodyFormat) -> Result<(T, IgnoredPaths), BodyMistake> {
    let text = str::from_utf8(bytes).map_err(|error| {
        BodyMistake::Malformed(format!(
            "the request body is not UTF-8: byte {} is wrong",
            error.valid_up_to()
        ))
    })?;
    let malformed = |error: &serde_json::Error| {
        // serde_json means the first half of a pair of surrogates, as Python writes it of a damaged text.
        let problem =
            error.to_string().replacen("unexpected end of hex escape", "lone surrogate in hex escape", 1);
        BodyMistake::Malformed(format!("the request body is not JSON: {problem}"))
    };
    // Serde would accept a list as the values of a struct's fields in their order.
    if text.trim_start().starts_with(|first| first != '{') {
        return Err(match serde_json::from_str::<IgnoredAny>(text) {
            Ok(_) if format == BodyFormat::MessagePack => {
                BodyMistake::Invalid("the request body is not a map".to_owned())
            }
            Ok(_) => BodyMistake::Invalid("the request body is not a JSON object".to_owned()),
            Err(error) => malformed(&error),
        });
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let mut ignored = IgnoredPaths::default();
    let value = serde_path_to_error::deserialize(serde_ignored::Deserializer::new(
        &mut deserializer,
        &mut |path: serde_ignored::Path<'_>| ignored.add_path(&path),
    ))
    .map_err(|error| {
        match error.inner().classify() {
            // The client has not seen the text, and its positions mean nothing.
            Category::Data if format == BodyFormat::MessagePack => {
                BodyMistake::Invalid(invalid(error.path(), &without_position(error.inner())))
            }
            Category::Data => BodyMistake::Invalid(invalid(error.path(), error.inner())),
            _ => {
                not_understood(text, error.path(), error.inner()).unwrap_or_else(|| malformed(error.inner()))
            }
        }
    })?;
    deserializer.end().map_err(|error| malformed(&error))?;
    Ok((value, ignored))
}

/// The mistake in a body that is JSON although the parser cannot read it.
fn not_understood(
    text: &str,
    path: &serde_path_to_error::Path,
    error: &serde_json::Error,
) -> Option<BodyMistake> {
    let problem = without_position(error);
    let message = match problem.as_str() {
        // The path would be as deep.
        TOO_DEEP => format!("invalid request: values are nested more than {MAX_DEPTH} deep"),
        NO_WORD => invalid(path, &"expected a text, one of those that this field takes"),
        _ => return None,
    };
    // Passing over a value has no greatest depth.
    serde_json::from_str::<IgnoredAny>(text).is_ok().then_some(BodyMistake::Malformed(message))
}

/// The message in words of JSON.
fn in_plain_words(message: &str) -> String {
    NUMBER_WORDS.iter().fold(message.to_owned(), |message, (word, plain)| message.replace(word, plain))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::http::rerank::RerankBody;
    use text_embeddings_core::error::MAX_MESSAGE;

    #[test]
    fn values_that_are_nested_too_deep_are_called_that() {
        let nested = |depth: usize| format!("{{\"a\":{}1{}}}", "[".repeat(depth), "]".repeat(depth));
        let read = |depth| {
            parse::<serde_json::Value>(nested(depth).as_bytes(), BodyFormat::Json).map(drop).unwrap_err()
        };
        assert!(parse::<serde_json::Value>(nested(126).as_bytes(), BodyFormat::Json).is_ok());
        let expected = "invalid request: values are nested more than 127 deep".to_owned();
        assert_eq!(read(127), BodyMistake::Malformed(expected));
    }

    #[test]
    fn the_search_for_a_field_ends_where_it_is() {
        let names = ["texts", "documents"];
        let table: [(&[u8], Option<&str>); 8] = [
            (br#"{"query":"q","documents":[],"texts":[]}"#, Some("documents")),
            (br#"{"query":{"texts":[1]},"texts":[]}"#, Some("texts")),
            // Nothing after the name is read.
            (br#"{"query":"q","texts":]]"#, Some("texts")),
            (b"{\"texts\":\"\xff\"}", Some("texts")),
            (br#"{"query":"q"}"#, None),
            (br#"{"query":"texts","#, None),
            (br#"["texts"]"#, None),
            (b"", None),
        ];
        for (bytes, expected) in table {
            let body = DecodedBody::new(bytes.to_vec(), BodyFormat::Json).ok().unwrap();
            assert_eq!(body.first_of(&names), expected, "{}", String::from_utf8_lossy(bytes));
            assert_eq!(body.readings.into_inner(), 0);
        }
        let packed = rmp_serde::to_vec_named(&serde_json::json!({"query": "q", "texts": []})).unwrap();
        let body = DecodedBody::new(packed, BodyFormat::MessagePack).ok().unwrap();
        assert_eq!(body.first_of(&names), Some("texts"));
    }

    #[test]
    fn a_long_message_keeps_both_ends() {
        let body = format!(r#"{{"query":"q","texts":"{}"}}"#, "é".repeat(5000));
        let error = ApiError::from(parse::<RerankBody>(body.as_bytes(), BodyFormat::Json).err().unwrap());
        let message = error.message();
        assert!(
            message.starts_with("invalid request: `texts`") && message.ends_with("line 1 column 10023"),
            "{message}"
        );
        assert_eq!(message.chars().count(), MAX_MESSAGE + 3);
    }
}
