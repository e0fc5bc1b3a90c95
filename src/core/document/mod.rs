//! Stored JSON documents, which a newer release may have extended.
//!
//! Configuration has the shapes of the API, whose readers refuse unknown fields. A stored document
//! is read without them, and a change of it leaves them as they are.
//!
//! Some objects mean something else without a part of them: conditions, limits, targets, and how
//! long results are kept. With an unknown field these make their document unreadable, so that
//! what they limit or select waits.

#[cfg(test)]
mod tests;

use std::cell::Cell;

use serde::{
    Serialize,
    de::{
        DeserializeOwned, DeserializeSeed, IgnoredAny, IntoDeserializer, MapAccess, SeqAccess,
        Visitor,
    },
};
use serde_json::{Map, Value};

use crate::{
    job::JobOptions,
    ruled::{ReadRule, Requested, Ruled},
};

/// The structs that are read with all their fields or not at all.
const CLOSED: [&str; 8] =
    ["Matcher", "Filter", "Test", "Constraint", "Rate", "Throttler", "Window", "Unique"];
/// The fields by which an item of a list is known, before and after a change of it.
const IDENTITY: [&str; 2] = ["number", "name"];

/// The struct that also has the options of a job, which its reader takes aside.
const SPLIT: &str = "ScheduleConfig";

/// A stored document with fields that this release does not know.
#[derive(Clone, Debug)]
pub struct Document {
    /// As it is stored.
    stored: Value,
    /// What this release knows of it.
    known: Value,
}

/// The value in stored JSON, and the document if it has fields that this release does not know.
///
/// # Errors
///
/// The text is not JSON, or it has a value that this release does not know.
pub fn read<T: DeserializeOwned + Serialize>(
    json: &[u8],
) -> Result<(T, Option<Document>), serde_json::Error> {
    let is_extended = Cell::new(false);
    let rule = Lenient { is_extended: &is_extended };
    let mut reader = serde_json::Deserializer::from_slice(json);
    let value = T::deserialize(Ruled::new(&mut reader, rule))?;
    reader.end()?;
    let document = if is_extended.get() {
        Some(Document {
            stored: serde_json::from_slice(json)?,
            known: serde_json::to_value(&value)?,
        })
    } else {
        None
    };
    Ok((value, document))
}

impl Document {
    /// `new`, which this release made of the document, with the fields that it does not know.
    ///
    /// An object keeps its unknown fields while one of its known fields is still there. An item of
    /// a list keeps them while it is unchanged, or has the same number or name.
    pub fn updated(&self, new: Value) -> Value {
        merged(&self.stored, &self.known, new)
    }
}

fn merged(stored: &Value, known: &Value, new: Value) -> Value {
    if *known == new {
        return stored.clone();
    }
    match (stored, known, new) {
        (Value::Object(stored), Value::Object(known), Value::Object(new)) => {
            Value::Object(merged_objects(stored, known, new))
        }
        (Value::Array(stored), Value::Array(known), Value::Array(new))
            if stored.len() == known.len() =>
        {
            Value::Array(merged_lists(stored, known, new))
        }
        (_, _, new) => new,
    }
}

fn merged_objects(
    stored: &Map<String, Value>,
    known: &Map<String, Value>,
    new: Map<String, Value>,
) -> Map<String, Value> {
    let unknown = stored.iter().filter(|(name, _)| !known.contains_key(*name));
    let unknown: Map<String, Value> =
        unknown.map(|(name, value)| (name.clone(), value.clone())).collect();
    let is_same_object = known.is_empty() || new.keys().any(|name| known.contains_key(name));
    let mut all: Map<String, Value> = new
        .into_iter()
        .map(|(name, value)| match (stored.get(&name), known.get(&name)) {
            (Some(stored), Some(known)) => {
                let value = merged(stored, known, value);
                (name, value)
            }
            _ => (name, value),
        })
        .collect();
    if is_same_object {
        for (name, value) in unknown {
            all.entry(name).or_insert(value);
        }
    }
    all
}

fn merged_lists(stored: &[Value], known: &[Value], new: Vec<Value>) -> Vec<Value> {
    let mut left: Vec<(&Value, &Value)> = known.iter().zip(stored).collect();
    let is_same = |known: &Value, value: &Value| {
        *known == *value
            || IDENTITY.iter().any(|name| {
                known.get(name).is_some_and(|identity| value.get(name) == Some(identity))
            })
    };
    let whole = |value: Value| match left.iter().position(|(known, _)| is_same(known, &value)) {
        Some(at) => {
            let (known, stored) = left.remove(at);
            merged(stored, known, value)
        }
        None => value,
    };
    new.into_iter().map(whole).collect()
}

/// Takes unknown fields of structs aside, and notes that there were some.
#[derive(Clone, Copy)]
struct Lenient<'a> {
    is_extended: &'a Cell<bool>,
}

impl ReadRule for Lenient<'_> {
    fn expecting(self, _: Requested) -> Option<&'static str> {
        None
    }

    fn list<'de, V: Visitor<'de>, A: SeqAccess<'de>>(
        self,
        _: Requested,
        visitor: Ruled<V, Self>,
        list: A,
    ) -> Result<V::Value, A::Error> {
        visitor.visit_list(list)
    }

    fn object<'de, V: Visitor<'de>, A: MapAccess<'de>>(
        self,
        requested: Requested,
        visitor: Ruled<V, Self>,
        object: A,
    ) -> Result<V::Value, A::Error> {
        match requested {
            Requested::Struct(name, fields) if !CLOSED.contains(&name) => {
                let options = if name == SPLIT { &JobOptions::NAMES[..] } else { &[] };
                visitor.visit_object(Known {
                    object,
                    names: [fields, options],
                    is_extended: self.is_extended,
                })
            }
            _ => visitor.visit_object(object),
        }
    }
}

/// The known fields of an object.
struct Known<'a, A> {
    object: A,
    names: [&'static [&'static str]; 2],
    is_extended: &'a Cell<bool>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Known<'_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        while let Some(name) = self.object.next_key::<String>()? {
            if self.names.iter().any(|names| names.contains(&name.as_str())) {
                return seed.deserialize(name.into_deserializer()).map(Some);
            }
            self.object.next_value::<IgnoredAny>()?;
            self.is_extended.set(true);
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.object.next_value_seed(seed)
    }
}
