//! A field that holds one text, or a list.
//!
//! Input: a deserializer. Output: the list; a single text is a list of one. What must hold: a mistake is
//! found while its item is read, so that the message can name its place.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{Error, SeqAccess, Visitor, value::SeqAccessDeserializer},
};

/// Reads the field. The error about any other value names `expected`.
pub(crate) fn one_or_many<'de, T, D>(deserializer: D, expected: &'static str) -> Result<Vec<T>, D::Error>
where
    T: From<String> + Deserialize<'de>,
    D: Deserializer<'de>,
{
    deserializer.deserialize_any(OneOrMany { expected, items: PhantomData })
}

struct OneOrMany<T> {
    expected: &'static str,
    items: PhantomData<T>,
}

impl<'de, T: From<String> + Deserialize<'de>> Visitor<'de> for OneOrMany<T> {
    type Value = Vec<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Vec<T>, E> {
        Ok(vec![text.to_owned().into()])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Vec<T>, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list))
    }
}
