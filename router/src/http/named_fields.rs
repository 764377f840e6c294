//! An object, and notes about its fields, such as their names.
//!
//! Input: a deserializer. Output: [`Noted`]. What must hold: the object is read once.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IntoDeserializer, MapAccess, Visitor, value::MapAccessDeserializer},
};

/// Notes about the fields of an object.
pub(crate) trait FieldNotes: Default {
    /// Names the object in the error for another type of value.
    const EXPECTED: &'static str = "an object";

    /// Notes the next field, whose value `fields` has. True if its value was read: then the object does not
    /// get the field.
    fn take_field<'de, A: MapAccess<'de>>(&mut self, _: &str, _: &mut A) -> Result<bool, A::Error> {
        Ok(false)
    }
}

/// The names, in the order of the object.
impl FieldNotes for Vec<String> {
    fn take_field<'de, A: MapAccess<'de>>(&mut self, name: &str, _: &mut A) -> Result<bool, A::Error> {
        self.push(name.to_owned());
        Ok(false)
    }
}

/// No notes.
impl FieldNotes for () {}

/// An object as `T`, and notes about its fields, from one reading. A list is refused: serde would take its
/// items for the fields in their order.
#[derive(Debug)]
pub(crate) struct Noted<N, T> {
    pub(crate) notes: N,
    /// The object.
    pub(crate) body: T,
}

/// An object, and the names of its fields.
pub(crate) type WithNames<T> = Noted<Vec<String>, T>;

/// An object, and not a list of its values.
pub(crate) type ObjectOnly<T> = Noted<(), T>;

impl<'de, N: FieldNotes, T: Deserialize<'de>> Deserialize<'de> for Noted<N, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(NotedVisitor(PhantomData))
    }
}

struct NotedVisitor<N, T>(PhantomData<(N, T)>);

impl<'de, N: FieldNotes, T: Deserialize<'de>> Visitor<'de> for NotedVisitor<N, T> {
    type Value = Noted<N, T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(N::EXPECTED)
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Noted<N, T>, A::Error> {
        let mut noted = NotedFields { fields, notes: N::default() };
        let body = T::deserialize(MapAccessDeserializer::new(&mut noted))?;
        Ok(Noted { notes: noted.notes, body })
    }
}

/// Passes fields on, and takes notes.
struct NotedFields<A, N> {
    fields: A,
    notes: N,
}

impl<'de, A: MapAccess<'de>, N: FieldNotes> MapAccess<'de> for NotedFields<A, N> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        while let Some(name) = self.fields.next_key::<String>()? {
            if !self.notes.take_field(&name, &mut self.fields)? {
                return seed.deserialize(name.into_deserializer()).map(Some);
            }
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.fields.next_value_seed(seed)
    }
}
