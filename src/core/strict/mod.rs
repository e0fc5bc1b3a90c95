//! Reads structs from objects only, and typed lists up to a bound.
//!
//! The readers that serde derives also take a list for a struct, field by field. PHP and Lua write
//! an empty object as an empty list, and such a body would be read as an object of defaults: a
//! `PUT` with `[]` would remove every limit. Behind [`Strict`] no struct of any depth is read from
//! a list. A list with more than [`MAX_ITEMS`] items is refused while it is read, so that a small
//! body of many empty items takes no memory. The JSON of requests and of trigger rules is read
//! through it; scenarios, which may have a million jobs, are not.

#[cfg(test)]
mod tests;

use std::fmt;

use serde::{
    Deserializer,
    de::{
        DeserializeSeed, EnumAccess, Error, MapAccess, SeqAccess, Unexpected, VariantAccess,
        Visitor,
    },
};

/// Most items of a list of a request.
pub const MAX_ITEMS: usize = 1000;

/// A deserializer, or a part of one, that is strict about all values within.
#[derive(Debug)]
pub struct Strict<T>(pub T);

/// What the reader asked for.
#[derive(Clone, Copy, PartialEq)]
enum Wanted {
    /// A struct or a map, which is read from an object only.
    Object,
    /// A list of items of one type.
    List,
    /// Anything else, such as a value of any type.
    Other,
}

/// A visitor that passes on what `wanted` allows.
struct StrictVisitor<V> {
    visitor: V,
    wanted: Wanted,
}

impl<V> StrictVisitor<V> {
    fn other(visitor: V) -> Self {
        Self { visitor, wanted: Wanted::Other }
    }
}

macro_rules! pass_on {
    ($($method:ident($($argument:ident: $kind:ty),*))*) => {
        $(
            fn $method<V: Visitor<'de>>(self, $($argument: $kind,)* visitor: V)
                -> Result<V::Value, D::Error>
            {
                self.0.$method($($argument,)* StrictVisitor::other(visitor))
            }
        )*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Strict<D> {
    type Error = D::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let visitor = StrictVisitor { visitor, wanted: Wanted::Object };
        self.0.deserialize_struct(name, fields, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(StrictVisitor { visitor, wanted: Wanted::Object })
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_seq(StrictVisitor { visitor, wanted: Wanted::List })
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }

    pass_on! {
        deserialize_any()
        deserialize_bool()
        deserialize_i8()
        deserialize_i16()
        deserialize_i32()
        deserialize_i64()
        deserialize_i128()
        deserialize_u8()
        deserialize_u16()
        deserialize_u32()
        deserialize_u64()
        deserialize_u128()
        deserialize_f32()
        deserialize_f64()
        deserialize_char()
        deserialize_str()
        deserialize_string()
        deserialize_bytes()
        deserialize_byte_buf()
        deserialize_option()
        deserialize_unit()
        deserialize_unit_struct(name: &'static str)
        deserialize_newtype_struct(name: &'static str)
        deserialize_tuple(len: usize)
        deserialize_tuple_struct(name: &'static str, len: usize)
        deserialize_enum(name: &'static str, variants: &'static [&'static str])
        deserialize_identifier()
        deserialize_ignored_any()
    }
}

macro_rules! pass_on_values {
    ($($method:ident($kind:ty))*) => {
        $(
            fn $method<E: Error>(self, value: $kind) -> Result<V::Value, E> {
                self.visitor.$method(value)
            }
        )*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for StrictVisitor<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.wanted {
            Wanted::Object => f.write_str("an object"),
            Wanted::List => f.write_str("a list"),
            Wanted::Other => self.visitor.expecting(f),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<V::Value, A::Error> {
        match self.wanted {
            Wanted::Object => Err(A::Error::invalid_type(Unexpected::Seq, &self)),
            Wanted::List => self.visitor.visit_seq(Items { list, left: MAX_ITEMS }),
            Wanted::Other => self.visitor.visit_seq(Items { list, left: usize::MAX }),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_map(Strict(map))
    }

    fn visit_some<D: Deserializer<'de>>(self, value: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_some(Strict(value))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, value: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_newtype_struct(Strict(value))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, value: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_enum(Strict(value))
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_unit()
    }

    pass_on_values! {
        visit_bool(bool)
        visit_i8(i8)
        visit_i16(i16)
        visit_i32(i32)
        visit_i64(i64)
        visit_i128(i128)
        visit_u8(u8)
        visit_u16(u16)
        visit_u32(u32)
        visit_u64(u64)
        visit_u128(u128)
        visit_f32(f32)
        visit_f64(f64)
        visit_char(char)
        visit_str(&str)
        visit_borrowed_str(&'de str)
        visit_string(String)
        visit_bytes(&[u8])
        visit_borrowed_bytes(&'de [u8])
        visit_byte_buf(Vec<u8>)
    }
}

/// The items of a list. `left` more are read.
struct Items<A> {
    list: A,
    left: usize,
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Items<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let item = self.list.next_element_seed(Strict(seed))?;
        if item.is_some() {
            let left = self.left.checked_sub(1);
            self.left = left.ok_or_else(|| {
                A::Error::custom(format_args!("must have at most {MAX_ITEMS} items"))
            })?;
        }
        Ok(item)
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(Strict(seed))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Strict<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Strict(deserializer))
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Strict<A> {
    type Error = A::Error;
    type Variant = Strict<A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), A::Error> {
        let (variant, content) = self.0.variant_seed(seed)?;
        Ok((variant, Strict(content)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.0.newtype_variant_seed(Strict(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(len, StrictVisitor::other(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        let visitor = StrictVisitor { visitor, wanted: Wanted::Object };
        self.0.struct_variant(fields, visitor)
    }
}
