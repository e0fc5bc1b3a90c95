//! Reads structs from objects only, and typed lists up to a bound.
//!
//! The readers that serde derives also take a list for a struct, field by field. PHP and Lua write
//! an empty object as an empty list, and such a body would be read as an object of defaults: a
//! `PUT` with `[]` would remove every limit. Behind [`strict`] no struct of any depth is read from
//! a list. A list or a map with more than [`MAX_ITEMS`] items is refused while it is read, so that
//! a small body of many empty items takes no memory. The JSON of requests and of trigger rules is
//! read through it; scenarios, which may have a million jobs, are not.

#[cfg(test)]
mod tests;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, MapAccess, SeqAccess, Unexpected, Visitor},
};

use crate::ruled::{ReadRule, Requested, Ruled};

/// Most items of a list or a map of a request.
pub const MAX_ITEMS: usize = 1000;

/// `deserializer`, strict about all values within.
pub fn strict<D>(deserializer: D) -> Ruled<D, Strict> {
    Ruled::new(deserializer, Strict)
}

/// Reads a field so that null is its default, as if it were absent.
///
/// # Errors
///
/// As the field's own type.
pub fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Reads a field so that an absent one differs from one that is null.
///
/// # Errors
///
/// As the field's own type.
pub fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// The rule of [`strict`].
#[derive(Clone, Copy, Debug)]
pub struct Strict;

impl ReadRule for Strict {
    fn expecting(self, requested: Requested) -> Option<&'static str> {
        match requested {
            Requested::Struct(..) | Requested::Map => Some("an object"),
            Requested::List => Some("a list"),
            Requested::Other => None,
        }
    }

    fn list<'de, V: Visitor<'de>, A: SeqAccess<'de>>(
        self,
        requested: Requested,
        visitor: Ruled<V, Self>,
        list: A,
    ) -> Result<V::Value, A::Error> {
        match requested {
            Requested::Struct(..) | Requested::Map => {
                Err(A::Error::invalid_type(Unexpected::Seq, &"an object"))
            }
            Requested::List => visitor.visit_list(BoundedItems { list, left: MAX_ITEMS }),
            Requested::Other => visitor.visit_list(list),
        }
    }

    fn object<'de, V: Visitor<'de>, A: MapAccess<'de>>(
        self,
        requested: Requested,
        visitor: Ruled<V, Self>,
        object: A,
    ) -> Result<V::Value, A::Error> {
        match requested {
            Requested::Map => visitor.visit_object(Entries { object, left: MAX_ITEMS }),
            _ => visitor.visit_object(object),
        }
    }
}

/// The items of a list. `left` more are read.
struct BoundedItems<A> {
    list: A,
    left: usize,
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for BoundedItems<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let item = self.list.next_element_seed(seed)?;
        if item.is_some() {
            let left = self.left.checked_sub(1);
            self.left = left.ok_or_else(|| {
                A::Error::custom(format_args!("must have at most {MAX_ITEMS} items"))
            })?;
        }
        Ok(item)
    }
}

/// The entries of a map. `left` more are read.
struct Entries<A> {
    object: A,
    left: usize,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Entries<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let key = self.object.next_key_seed(seed)?;
        if key.is_some() {
            let left = self.left.checked_sub(1);
            self.left = left.ok_or_else(|| {
                A::Error::custom(format_args!("must have at most {MAX_ITEMS} entries"))
            })?;
        }
        Ok(key)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.object.next_value_seed(seed)
    }
}
