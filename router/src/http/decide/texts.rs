//! The texts in a body of decisions. Where the dialects expect a text, any JSON may stand.
//!
//! Input: a value as JSON. Output: the text that the model reads: a string as it is, anything else as JSON
//! without spaces. What must hold: an error names the path of the value.

use serde::de::DeserializeOwned;
use text_embeddings_core::service::{DecisionText, JsonStrings};

use crate::http::json::JsonText;

/// The deepest nesting of a value.
const MAX_DEPTH: usize = 32;

/// The message about a value at this path.
pub(super) fn invalid_at(path: &str, problem: &str) -> String {
    format!("invalid request: `{path}`: {problem}")
}

/// The value as `T`.
pub(super) fn parse_at<T: DeserializeOwned>(path: &str, json: &JsonText) -> Result<T, String> {
    json.parse(|inner, problem| match inner.to_string().as_str() {
        "." => invalid_at(path, &problem),
        inner if inner.starts_with('[') => invalid_at(&format!("{path}{inner}"), &problem),
        inner => invalid_at(&format!("{path}.{inner}"), &problem),
    })
}

/// The object as `T`. Serde would accept a list as the values of the fields in their order.
pub(super) fn parse_object<T: DeserializeOwned>(path: &str, json: &JsonText) -> Result<T, String> {
    if json.is_object() { parse_at(path, json) } else { Err(invalid_at(path, "it must be an object")) }
}

/// The text of a value; `None` for null and for an absent value.
pub(super) fn optional_text(json: Option<&JsonText>, path: &str) -> Result<Option<DecisionText>, String> {
    match json {
        None => Ok(None),
        Some(json) if json.as_str() == "null" => Ok(None),
        Some(json) if json.as_str().starts_with('"') => {
            parse_at::<String>(path, json).map(|text| Some(text.into()))
        }
        Some(json) if nesting_depth(json.as_str()) > MAX_DEPTH => {
            Err(invalid_at(path, &format!("it is nested more than {MAX_DEPTH} deep")))
        }
        Some(json) => Ok(Some(DecisionText::from_json(json.as_str().to_owned()))),
    }
}

/// The text of a value that must not be null.
pub(super) fn any_text(json: &JsonText, path: &str) -> Result<DecisionText, String> {
    optional_text(Some(json), path)?.ok_or_else(|| invalid_at(path, "it is null: give it a text"))
}

/// How many lists and objects are in each other, in JSON that is known to be whole.
fn nesting_depth(json: &str) -> usize {
    let (mut now, mut deepest, mut strings) = (0_usize, 0, JsonStrings::default());
    for character in json.chars().filter(|character| strings.is_structure(*character)) {
        match character {
            '[' | '{' => {
                now += 1;
                deepest = deepest.max(now);
            }
            ']' | '}' => now -= 1,
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

    use super::*;

    #[test]
    fn strings_stay_and_other_values_become_json() {
        let cases = [
            (r#""a \"b\" {[""#, Some(r#"a "b" {["#)),
            (r#"{ "é" : [1, 2.50, null, true ] }"#, Some(r#"{"é":[1,2.5,null,true]}"#)),
            ("null", None),
            ("0", Some("0")),
            (r#""""#, Some("")),
            ("[]", Some("[]")),
        ];
        for (json, expected) in cases {
            let json: JsonText = serde_json::from_str(json).unwrap();
            assert_eq!(optional_text(Some(&json), "x").unwrap().as_deref(), expected);
        }
    }

    #[test]
    fn nesting_is_bounded_at_32() {
        let nested = |depth: usize| {
            let json = format!("{}\"]]]\\\"\"{}", "[".repeat(depth), "]".repeat(depth));
            serde_json::from_str::<JsonText>(&json).unwrap()
        };
        assert!(any_text(&nested(32), "state").is_ok());
        let message = any_text(&nested(33), "state").unwrap_err();
        assert_eq!(message, "invalid request: `state`: it is nested more than 32 deep");
    }
}
