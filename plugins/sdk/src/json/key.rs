//! The keys of objects.

use serde::{
    Deserializer,
    de::{self, IntoDeserializer, Unexpected, Visitor},
    forward_to_deserialize_any,
};

use super::error::Error;

/// The key of an object's member: a string, or a number in a string.
pub(super) struct Key<'k>(pub(super) &'k str);

macro_rules! integer_keys {
    ($($method:ident $visit:ident)*) => { $(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            match self.0.parse() {
                Ok(number) => visitor.$visit(number),
                Err(_) => Err(de::Error::invalid_value(Unexpected::Str(self.0), &visitor)),
            }
        }
    )* };
}

impl<'de> Deserializer<'de> for Key<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str(self.0)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_enum(self.0.into_deserializer())
    }

    integer_keys! {
        deserialize_u8 visit_u8 deserialize_u16 visit_u16
        deserialize_u32 visit_u32 deserialize_u64 visit_u64
        deserialize_i8 visit_i8 deserialize_i16 visit_i16
        deserialize_i32 visit_i32 deserialize_i64 visit_i64
    }

    forward_to_deserialize_any! {
        bool f32 f64 i128 u128 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier ignored_any
    }
}
