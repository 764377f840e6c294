//! A text of a decision: a string, or another JSON value.

use std::{fmt, ops::Deref};

use super::flat::{count_flat_bytes, flat_json};

/// Tells the structure of JSON from the content of its strings.
#[derive(Debug, Default)]
pub struct JsonStrings {
    is_inside: bool,
    is_escaped: bool,
}

impl JsonStrings {
    /// Whether the next character of the JSON belongs to no string. Call it for each of them.
    pub fn is_structure(&mut self, character: char) -> bool {
        match character {
            _ if self.is_escaped => self.is_escaped = false,
            '\\' if self.is_inside => self.is_escaped = true,
            '"' => self.is_inside = !self.is_inside,
            _ => return !self.is_inside,
        }
        false
    }
}

/// A text as a model reads it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DecisionText {
    text: String,
    is_json: bool,
}

impl DecisionText {
    /// A value that is not a string, as JSON without spaces.
    pub fn from_json(text: String) -> Self {
        Self { text, is_json: true }
    }

    /// The string, or the JSON without spaces.
    pub fn into_text(self) -> String {
        self.text
    }

    /// The string, or the JSON with a space behind each comma and colon, as Python's `json` writes it.
    pub fn spaced_text(&self) -> String {
        if !self.is_json {
            return self.text.clone();
        }
        let mut spaced = String::with_capacity(self.text.len() + self.text.len() / 8);
        let mut strings = JsonStrings::default();
        for character in self.text.chars() {
            spaced.push(character);
            if strings.is_structure(character) && matches!(character, ',' | ':') {
                spaced.push(' ');
            }
        }
        spaced
    }

    /// At least the bytes of [`Self::flat_text`].
    pub(super) fn count_flat_bytes(&self) -> usize {
        if self.is_json { count_flat_bytes(&self.text) } else { self.text.len() }
    }

    /// The string, or the JSON as lines.
    pub fn flat_text(&self) -> String {
        if self.is_json { flat_json(&self.text) } else { self.text.clone() }
    }
}

impl<T: Into<String>> From<T> for DecisionText {
    fn from(text: T) -> Self {
        Self { text: text.into(), is_json: false }
    }
}

impl Deref for DecisionText {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for DecisionText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_json_gets_spaces_and_only_outside_of_its_strings() {
        let json = r#"{"a,b":[1,"\\",":"],"c\"d:":{}}"#;
        let spaced = r#"{"a,b": [1, "\\", ":"], "c\"d:": {}}"#;
        assert_eq!(DecisionText::from_json(json.to_owned()).spaced_text(), spaced);
        assert_eq!(DecisionText::from(json).spaced_text(), json);
        assert_eq!(DecisionText::from_json(json.to_owned()).into_text(), json);
    }
}
