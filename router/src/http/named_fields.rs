//! An object, and the names of its fields.
//!
//! Input: a deserializer. Output: [`WithNames`]. What must hold: the object is read once.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IntoDeserializer, MapAccess, Visitor, value::MapAccessDeserializer},
};

/// An object as `T`, and the names of its fields, from one reading. A list is refused: serde would take its
/// items for the fields in their order.
#[derive(Debug)]
pub(crate) struct WithNames<T> {
    /// The names, in the order of the object.
    pub(crate) names: Vec<String>,
    /// The object.
    pub(crate) body: T,
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for WithNames<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(WithNamesVisitor(PhantomData))
    }
}

struct WithNamesVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for WithNamesVisitor<T> {
    type Value = WithNames<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<WithNames<T>, A::Error> {
        let mut noted = NotedFields { fields, names: Vec::new() };
        let body = T::deserialize(MapAccessDeserializer::new(&mut noted))?;
        Ok(WithNames { names: noted.names, body })
    }
}

/// Passes fields on, and keeps their names.
struct NotedFields<A> {
    fields: A,
    names: Vec<String>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for NotedFields<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        let Some(name) = self.fields.next_key::<String>()? else { return Ok(None) };
        let key = seed.deserialize(name.as_str().into_deserializer())?;
        self.names.push(name);
        Ok(Some(key))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.fields.next_value_seed(seed)
    }
}
