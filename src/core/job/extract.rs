//! Attributes: the values that limits, partitions and searches compare, given by the job's sender
//! or extracted from its data by JSON pointers.
//!
//! The data is read once, and only the extracted values are built. They win over given ones,
//! because the type's owner wrote the pointers.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use rmpv::ValueRef;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

use super::{
    Attributes, Encoding, Payload, Value,
    payload::{DECODER_DEPTH, Malformed},
};

/// Most attributes of a job, and most pointers of a type.
pub(crate) const MAX_ATTRIBUTES: usize = 16;
/// Most bytes of an attribute's name.
pub const NAME_BYTES: usize = 64;
/// Most bytes of an attribute's text.
pub const TEXT_BYTES: usize = 256;

/// Whether `text` is a JSON pointer of RFC 6901: empty, or tokens that each follow a `/`, with `~`
/// only as `~0` and `~1`.
pub(crate) fn is_pointer(text: &str) -> bool {
    let escaped = |(at, _): (usize, &str)| matches!(text.as_bytes().get(at + 1), Some(b'0' | b'1'));
    (text.is_empty() || text.starts_with('/')) && text.match_indices('~').all(escaped)
}

/// The attributes at `pointers` (name to JSON pointer) in `data`, which is well formed.
///
/// A boolean becomes `"true"` or `"false"`. A text over `text_bytes` (for a job: [`TEXT_BYTES`]),
/// null, a list, a map, binary and a missing value are no attribute. An invalid pointer finds
/// nothing.
///
/// The caller replaces given attributes by these, and then checks all of them (`check_attributes`),
/// which refuses a text over 256 bytes.
///
/// # Errors
///
/// [`Malformed`] if `data` cannot be read, which never happens for a checked payload.
pub fn extract(
    pointers: &BTreeMap<String, String>,
    data: &Payload,
    text_bytes: usize,
) -> Result<Attributes, Malformed> {
    if pointers.is_empty() {
        return Ok(Attributes::new());
    }
    let paths = pointers.values().map(|pointer| tokens(pointer)).collect();
    let mut walk = Walk { paths, found: vec![None; pointers.len()], text_bytes };
    let every = (0..pointers.len()).filter(|index| walk.paths[*index].is_some()).collect();
    match data.encoding {
        Encoding::Json => {
            let mut json = serde_json::Deserializer::from_slice(&data.bytes);
            PlaceSeed { walk: &mut walk, depth: 0, here: every }
                .deserialize(&mut json)
                .map_err(Malformed::new)?;
        }
        Encoding::MessagePack => {
            let value =
                rmpv::decode::read_value_ref_with_max_depth(&mut &data.bytes[..], DECODER_DEPTH)
                    .map_err(Malformed::new)?;
            walk.visit(&value, 0, &every);
        }
    }
    let found = pointers.keys().zip(walk.found);
    Ok(found.filter_map(|(name, value)| Some((name.clone(), value?))).collect())
}

/// The tokens of a pointer, unescaped.
fn tokens(pointer: &str) -> Option<Vec<Cow<'_, str>>> {
    let plain = |token| match token {
        token if !str::contains(token, '~') => Cow::Borrowed(token),
        token => Cow::Owned(token.replace("~1", "/").replace("~0", "~")),
    };
    is_pointer(pointer).then(|| pointer.split('/').skip(1).map(plain).collect())
}

/// The index that a token names in a list.
fn index_of(token: &str) -> Option<usize> {
    let canonical = token == "0" || !token.starts_with(['0', '+']);
    canonical.then(|| token.parse().ok()).flatten()
}

/// The pointers, and the value that each has found so far.
struct Walk<'a> {
    paths: Vec<Option<Vec<Cow<'a, str>>>>,
    found: Vec<Option<Value>>,
    text_bytes: usize,
}

impl Walk<'_> {
    fn token(&self, pointer: usize, depth: usize) -> Option<&str> {
        self.paths[pointer].as_ref()?.get(depth).map(Cow::as_ref)
    }

    /// The pointers of `here` that continue with the next token.
    ///
    /// The last of several equal keys counts, so a value found below an earlier one is discarded.
    fn under(&mut self, here: &[usize], depth: usize, leads: impl Fn(&str) -> bool) -> Vec<usize> {
        let next: Vec<_> = here
            .iter()
            .copied()
            .filter(|pointer| self.token(*pointer, depth).is_some_and(&leads))
            .collect();
        for pointer in &next {
            self.found[*pointer] = None;
        }
        next
    }

    /// Stores `value` for the pointers that end `here`.
    fn found(&mut self, here: &[usize], depth: usize, value: &Value) {
        for pointer in here {
            if self.token(*pointer, depth).is_none() {
                self.found[*pointer] = Some(value.clone());
            }
        }
    }

    fn text(&mut self, here: &[usize], depth: usize, text: &str) {
        if text.len() <= self.text_bytes {
            self.found(here, depth, &Value::Text(text.to_owned()));
        }
    }

    /// None is a number that JSON cannot express, which is no attribute.
    fn number(&mut self, here: &[usize], depth: usize, number: Option<Number>) {
        if let Some(number) = number {
            self.found(here, depth, &Value::Number(number));
        }
    }

    fn visit(&mut self, value: &ValueRef<'_>, depth: usize, here: &[usize]) {
        match value {
            _ if here.is_empty() => {}
            ValueRef::Boolean(value) => {
                self.text(here, depth, if *value { "true" } else { "false" });
            }
            ValueRef::String(text) => self.text(here, depth, text.as_str().unwrap_or_default()),
            ValueRef::Integer(number) => {
                let whole = number.as_i64().map_or_else(
                    || number.as_u64().map(Number::from),
                    |number| Some(number.into()),
                );
                self.number(here, depth, whole);
            }
            ValueRef::F32(number) => self.number(here, depth, Number::from_f64(f64::from(*number))),
            ValueRef::F64(number) => self.number(here, depth, Number::from_f64(*number)),
            ValueRef::Array(list) => {
                for (index, value) in list.iter().enumerate() {
                    let next = self.under(here, depth, |token| index_of(token) == Some(index));
                    self.visit(value, depth + 1, &next);
                }
            }
            ValueRef::Map(map) => {
                for (key, value) in map {
                    let ValueRef::String(key) = key else { continue };
                    let next = self.under(here, depth, |token| key.as_str() == Some(token));
                    self.visit(value, depth + 1, &next);
                }
            }
            ValueRef::Nil | ValueRef::Binary(_) | ValueRef::Ext(..) => {}
        }
    }
}

/// A position in JSON that is read next, and the pointers that lead through it.
struct PlaceSeed<'w, 'a> {
    walk: &'w mut Walk<'a>,
    depth: usize,
    here: Vec<usize>,
}

impl<'de> DeserializeSeed<'de> for PlaceSeed<'_, '_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.here.is_empty() {
            deserializer.deserialize_ignored_any(IgnoredAny).map(|_| ())
        } else {
            deserializer.deserialize_any(self)
        }
    }
}

impl<'de> Visitor<'de> for PlaceSeed<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.walk.text(&self.here, self.depth, if value { "true" } else { "false" });
        Ok(())
    }

    fn visit_i64<E>(self, number: i64) -> Result<(), E> {
        self.walk.number(&self.here, self.depth, Some(number.into()));
        Ok(())
    }

    fn visit_u64<E>(self, number: u64) -> Result<(), E> {
        self.walk.number(&self.here, self.depth, Some(number.into()));
        Ok(())
    }

    fn visit_f64<E>(self, number: f64) -> Result<(), E> {
        self.walk.number(&self.here, self.depth, Number::from_f64(number));
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.walk.text(&self.here, self.depth, text);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let (walk, depth) = (self.walk, self.depth);
        for index in 0.. {
            let here = walk.under(&self.here, depth, |token| index_of(token) == Some(index));
            if list.next_element_seed(PlaceSeed { walk, depth: depth + 1, here })?.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let (walk, depth) = (self.walk, self.depth);
        while let Some(here) = map.next_key_seed(KeySeed { walk, depth, here: &self.here })? {
            map.next_value_seed(PlaceSeed { walk, depth: depth + 1, here })?;
        }
        Ok(())
    }
}

/// A key that is read next: yields the pointers that continue through it.
struct KeySeed<'w, 'a> {
    walk: &'w mut Walk<'a>,
    depth: usize,
    here: &'w [usize],
}

impl<'de> DeserializeSeed<'de> for KeySeed<'_, '_> {
    type Value = Vec<usize>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<usize>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for KeySeed<'_, '_> {
    type Value = Vec<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Vec<usize>, E> {
        Ok(self.walk.under(self.here, self.depth, |token| token == key))
    }
}
