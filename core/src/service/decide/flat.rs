//! JSON as lines, in the form of any2jev (`any2jev/schema.py`, `render`).
//!
//! Input: JSON. Output: `key: value` and `- item` on lines of their own, values inside of others two spaces
//! deeper. Null is nothing. What must hold: keys stay in the order of the text.

use std::fmt;

use super::text::JsonStrings;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// The lines of a JSON text; of another text, the text.
pub(super) fn flat_json(json: &str) -> String {
    let mut deserializer = serde_json::Deserializer::from_str(json);
    match (Flat { indent: 0 }).deserialize(&mut deserializer) {
        Ok(FlatValue { text, .. }) => text,
        Err(_) => json.to_owned(),
    }
}

/// At least the bytes of the lines of a JSON text: each value may begin a line, as deep as the value.
pub(super) fn count_flat_bytes(json: &str) -> usize {
    let (mut depth, mut bytes, mut strings) = (0_usize, json.len(), JsonStrings::default());
    for character in json.chars().filter(|character| strings.is_structure(*character)) {
        match character {
            '[' | '{' => {
                depth += 1;
                bytes += 2 * depth;
            }
            ']' | '}' => depth = depth.saturating_sub(1),
            ',' => bytes += 2 * depth + 2,
            _ => {}
        }
    }
    bytes
}

/// Reads a value that is `indent` levels deep.
#[derive(Clone, Copy)]
struct Flat {
    indent: usize,
}

/// A value as lines.
struct FlatValue {
    text: String,
    /// Whether it is an object or a list, which begins on a line of its own behind a key.
    is_nested: bool,
}

impl FlatValue {
    fn plain_value(text: &impl ToString) -> Self {
        Self { text: text.to_string(), is_nested: false }
    }
}

impl<'de> DeserializeSeed<'de> for Flat {
    type Value = FlatValue;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<FlatValue, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Flat {
    type Value = FlatValue;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<FlatValue, E> {
        Ok(FlatValue::plain_value(&""))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<FlatValue, E> {
        Ok(FlatValue::plain_value(&value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<FlatValue, E> {
        Ok(FlatValue::plain_value(&value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<FlatValue, E> {
        Ok(FlatValue::plain_value(&value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<FlatValue, E> {
        // Debug writes the point that Python writes.
        Ok(FlatValue::plain_value(&format_args!("{value:?}")))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<FlatValue, E> {
        Ok(FlatValue::plain_value(&value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<FlatValue, A::Error> {
        let mut lines = Vec::new();
        while let Some(item) = list.next_element_seed(Self { indent: self.indent + 1 })? {
            lines.push(format!("{}- {}", "  ".repeat(self.indent), item.text.trim_start()));
        }
        Ok(FlatValue { text: lines.join("\n"), is_nested: true })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FlatValue, A::Error> {
        let mut lines = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value_seed(Self { indent: self.indent + 1 })?;
            let between = if value.is_nested { ":\n" } else { ": " };
            lines.push([&"  ".repeat(self.indent), key.as_str(), between, &value.text].concat());
        }
        Ok(FlatValue { text: lines.join("\n"), is_nested: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values that `render` of any2jev 0.1.0 gives.
    #[test]
    fn values_become_the_lines_of_the_authors_package() {
        for (json, expected) in [
            (
                r#"{"b":1,"a":[null,"  x",{"k":true,"l":[]}],"e":{},"f":2.5}"#,
                "b: 1\na:\n  - \n  - x\n  - k: true\n    l:\n\ne:\n\nf: 2.5",
            ),
            (r#"[["a"],"b\n c",{"d":"e"}]"#, "- - a\n- b\n c\n- d: e"),
            ("0", "0"),
            ("1.0", "1.0"),
            ("false", "false"),
            ("[]", ""),
        ] {
            assert_eq!(flat_json(json), expected, "{json}");
            assert!(expected.len() <= count_flat_bytes(json), "{json}");
        }
        let deep = format!("{}{}{}", "[".repeat(32), "1,".repeat(999) + "1", "]".repeat(32));
        let (lines, counted) = (flat_json(&deep).len(), count_flat_bytes(&deep));
        assert!((60_000..=counted).contains(&lines) && counted < 80_000, "{lines} {counted}");
    }
}
