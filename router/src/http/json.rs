//! Values of a body that are kept as JSON text, without a tree.
//!
//! Input: a value in any format. Output: a [`JsonText`], which can be read again in part and written in any
//! format. What must hold: a value takes no more memory than its text, whatever it is made of; a value
//! without a counterpart in JSON (bytes, a key that is not text, NaN) is an error.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeOwned, DeserializeSeed, Error, MapAccess, SeqAccess, Visitor},
};
use serde_path_to_error::Path;

/// A value as JSON without spaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JsonText(String);

impl JsonText {
    /// The text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// A string as JSON.
    pub(crate) fn from_string(text: &str) -> Self {
        Self(serde_json::Value::from(text).to_string())
    }

    /// The text of an object whose fields are still to be read.
    pub(crate) fn from_fields<'de, A: MapAccess<'de>>(fields: A) -> Result<Self, A::Error> {
        let mut text = String::new();
        JsonWriter(&mut text).visit_map(fields)?;
        Ok(Self(text))
    }

    /// The text's bytes.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0.into_bytes()
    }

    /// Whether the value is an object.
    pub(crate) fn is_object(&self) -> bool {
        self.0.starts_with('{')
    }

    /// The value as `T`, or the mistake in it as `describe` words it.
    pub(crate) fn parse<T: DeserializeOwned>(
        &self,
        describe: impl FnOnce(&Path, String) -> String,
    ) -> Result<T, String> {
        let mut deserializer = serde_json::Deserializer::from_str(&self.0);
        serde_path_to_error::deserialize(&mut deserializer)
            .map_err(|error| describe(error.path(), without_position(error.inner())))
    }
}

/// The message of an error in a text that the client did not write, so that its lines and columns mean
/// nothing.
pub(crate) fn without_position(error: &serde_json::Error) -> String {
    let mut message = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    if let Some(length) = message.strip_suffix(&position).map(str::len) {
        message.truncate(length);
    }
    message
}

impl<'de> Deserialize<'de> for JsonText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut text = String::new();
        JsonWriter(&mut text).deserialize(deserializer)?;
        Ok(Self(text))
    }
}

impl Serialize for JsonText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde_transcode::transcode(&mut serde_json::Deserializer::from_str(&self.0), serializer)
    }
}

/// Writes a value behind a text.
struct JsonWriter<'a>(&'a mut String);

impl JsonWriter<'_> {
    fn write<E: Error, T: Serialize + ?Sized>(self, value: &T) -> Result<(), E> {
        self.0.push_str(&serde_json::to_string(value).map_err(E::custom)?);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for JsonWriter<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for JsonWriter<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any valid JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.0.push_str("null");
        Ok(())
    }

    fn visit_none<E: Error>(self) -> Result<(), E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, value: D) -> Result<(), D::Error> {
        self.deserialize(value)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.write(&value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.write(&value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.write(&value)
    }

    // JSON has no infinity: it is written as null.
    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        if value.is_finite() {
            self.write(&value)
        } else {
            Err(E::custom("NaN and infinite numbers have no JSON"))
        }
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        self.write(value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        self.0.push('[');
        let start = self.0.len();
        loop {
            let length = self.0.len();
            if length > start {
                self.0.push(',');
            }
            if list.next_element_seed(JsonWriter(self.0))?.is_none() {
                self.0.truncate(length);
                self.0.push(']');
                return Ok(());
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        self.0.push('{');
        let start = self.0.len();
        while let Some(name) = fields.next_key::<String>()? {
            if self.0.len() > start {
                self.0.push(',');
            }
            JsonWriter(self.0).write(&name)?;
            self.0.push(':');
            fields.next_value_seed(JsonWriter(self.0))?;
        }
        self.0.push('}');
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_value_keeps_its_meaning_and_order() {
        for text in [
            r#"{"b":1,"a":[null,true,-2,2.5,18446744073709551615,"\u0001\"é"],"c":{},"d":[]}"#,
            r#"[[],[[]],{"a":{"a":0}}]"#,
            "\"text\"",
            "null",
        ] {
            let read: JsonText = serde_json::from_str(&format!(" {text} ")).unwrap();
            assert_eq!(read.as_str(), text);
            assert_eq!(serde_json::to_string(&read).unwrap(), text);
            let packed = rmp_serde::to_vec_named(&read).unwrap();
            let value: Value = serde_json::from_str(text).unwrap();
            assert_eq!(rmp_serde::from_slice::<Value>(&packed).unwrap(), value);
            assert_eq!(rmp_serde::from_slice::<JsonText>(&packed).unwrap(), read);
        }
    }

    #[test]
    fn mistakes_in_a_kept_value_have_no_position() {
        let read: JsonText = serde_json::from_value(json!({"a": [1, "x"]})).unwrap();
        let mistake = read.parse::<std::collections::HashMap<String, Vec<u8>>>(|path, problem| {
            format!("{path}: {problem}")
        });
        assert_eq!(mistake.unwrap_err(), "a[1]: invalid type: string \"x\", expected u8");
    }
}
