//! Values that servers in Python accept because their checks convert them: `"true"` for a boolean, `"2"` and
//! `2.0` for a number. Clients were written against such servers.
//!
//! Input: a field of a body with `documents` or `input`; TEI's bodies are exact. Output: the value, or
//! nothing for null. What must hold: the message about another value is the one that an exact field has.

use std::str::FromStr;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error},
};

use crate::http::json::{JsonText, without_position};

/// A boolean, also as text.
pub(super) fn lenient_bool<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<bool>, D::Error> {
    read_converted(deserializer, str::to_lowercase)
}

/// A number from 0, also as text or with the fraction 0.
pub(super) fn lenient_count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    read_converted(deserializer, |text| text.strip_suffix(".0").unwrap_or(text).to_owned())
}

/// The value whose plain form `as_plain` makes of a text or number.
fn read_converted<'de, D, T>(deserializer: D, as_plain: fn(&str) -> String) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr + DeserializeOwned,
{
    let json = JsonText::deserialize(deserializer)?;
    match as_plain(json.as_str().trim_matches('"')).parse() {
        Ok(value) => Ok(Some(value)),
        Err(_) => {
            serde_json::from_str(json.as_str()).map_err(|error| D::Error::custom(without_position(&error)))
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn values_are_converted_or_refused_with_the_expected_type() {
        for (value, expected) in [
            (json!(true), Ok(Some(true))),
            (json!("true"), Ok(Some(true))),
            (json!("False"), Ok(Some(false))),
            (Value::Null, Ok(None)),
            (json!("yes"), Err("invalid type: string \"yes\", expected a boolean")),
            (json!(1), Err("invalid type: integer `1`, expected a boolean")),
        ] {
            let found = lenient_bool(&value).map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned), "{value}");
        }
        for (value, expected) in [
            (json!(2), Ok(Some(2))),
            (json!("2"), Ok(Some(2))),
            (json!(2.0), Ok(Some(2))),
            (Value::Null, Ok(None)),
            (json!(-1), Err("invalid value: integer `-1`, expected usize")),
            (json!(2.5), Err("invalid type: floating point `2.5`, expected usize")),
            (json!(-2.0), Err("invalid type: floating point `-2.0`, expected usize")),
            (json!([2]), Err("invalid type: sequence, expected usize")),
            (json!("two"), Err("invalid type: string \"two\", expected usize")),
            (json!(true), Err("invalid type: boolean `true`, expected usize")),
        ] {
            let found = lenient_count(&value).map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned), "{value}");
        }
        let read: Value = serde_json::from_str("2.0").unwrap();
        assert_eq!(lenient_count(read).unwrap(), Some(2));
    }
}
