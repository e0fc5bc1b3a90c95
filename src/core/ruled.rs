//! Deserializers that apply a rule to every value within a value.
//!
//! The readers that serde derives decide alone what they accept. A rule decides first, on every
//! level: [`strict`](crate::strict) refuses what comes from outside and is no object, and
//! [`document`](crate::document) takes unknown fields aside.

use std::fmt;

use serde::{
    Deserializer,
    de::{DeserializeSeed, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor},
};

/// What a reader asked for.
#[derive(Clone, Copy, Debug)]
pub enum Requested {
    /// A struct of this name with these fields.
    Struct(&'static str, &'static [&'static str]),
    /// A map.
    Map,
    /// A list of items of one type.
    List,
    /// Anything else, such as a value of any type.
    Other,
}

/// What happens to lists and objects before a reader gets them.
pub trait ReadRule: Copy {
    /// What a reader accepts under this rule, if that differs from its own words.
    fn expecting(self, requested: Requested) -> Option<&'static str>;

    /// Passes a list to `visitor`.
    ///
    /// # Errors
    ///
    /// The reader's, or the rule's.
    fn list<'de, V: Visitor<'de>, A: SeqAccess<'de>>(
        self,
        requested: Requested,
        visitor: Ruled<V, Self>,
        list: A,
    ) -> Result<V::Value, A::Error>;

    /// Passes an object to `visitor`.
    ///
    /// # Errors
    ///
    /// The reader's, or the rule's.
    fn object<'de, V: Visitor<'de>, A: MapAccess<'de>>(
        self,
        requested: Requested,
        visitor: Ruled<V, Self>,
        object: A,
    ) -> Result<V::Value, A::Error>;
}

/// A deserializer, or a part of one, whose values are all read under a rule.
#[derive(Debug)]
pub struct Ruled<T, R> {
    inner: T,
    rule: R,
}

impl<T, R> Ruled<T, R> {
    /// `inner` under `rule`.
    pub fn new(inner: T, rule: R) -> Self {
        Self { inner, rule }
    }
}

impl<V, R: ReadRule> Ruled<V, R> {
    /// Passes a list to the reader, its items under the rule.
    ///
    /// # Errors
    ///
    /// The reader's.
    pub fn visit_list<'de, A: SeqAccess<'de>>(self, list: A) -> Result<V::Value, A::Error>
    where
        V: Visitor<'de>,
    {
        self.inner.visit_seq(Ruled::new(list, self.rule))
    }

    /// Passes an object to the reader, its values under the rule.
    ///
    /// # Errors
    ///
    /// The reader's.
    pub fn visit_object<'de, A: MapAccess<'de>>(self, object: A) -> Result<V::Value, A::Error>
    where
        V: Visitor<'de>,
    {
        self.inner.visit_map(Ruled::new(object, self.rule))
    }
}

/// A reader that gets what the rule passes on.
struct Reader<V, R> {
    visitor: V,
    rule: R,
    requested: Requested,
}

macro_rules! pass_on {
    ($($method:ident($($argument:ident: $kind:ty),*))*) => {
        $(
            fn $method<V: Visitor<'de>>(self, $($argument: $kind,)* visitor: V)
                -> Result<V::Value, D::Error>
            {
                let visitor = Reader { visitor, rule: self.rule, requested: Requested::Other };
                self.inner.$method($($argument,)* visitor)
            }
        )*
    };
}

impl<'de, D: Deserializer<'de>, R: ReadRule> Deserializer<'de> for Ruled<D, R> {
    type Error = D::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let visitor =
            Reader { visitor, rule: self.rule, requested: Requested::Struct(name, fields) };
        self.inner.deserialize_struct(name, fields, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let visitor = Reader { visitor, rule: self.rule, requested: Requested::Map };
        self.inner.deserialize_map(visitor)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let visitor = Reader { visitor, rule: self.rule, requested: Requested::List };
        self.inner.deserialize_seq(visitor)
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
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

impl<'de, V: Visitor<'de>, R: ReadRule> Visitor<'de> for Reader<V, R> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rule.expecting(self.requested) {
            Some(words) => f.write_str(words),
            None => self.visitor.expecting(f),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<V::Value, A::Error> {
        self.rule.list(self.requested, Ruled::new(self.visitor, self.rule), list)
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<V::Value, A::Error> {
        self.rule.object(self.requested, Ruled::new(self.visitor, self.rule), object)
    }

    fn visit_some<D: Deserializer<'de>>(self, value: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_some(Ruled::new(value, self.rule))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, value: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_newtype_struct(Ruled::new(value, self.rule))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, value: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_enum(Ruled::new(value, self.rule))
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

impl<'de, A: SeqAccess<'de>, R: ReadRule> SeqAccess<'de> for Ruled<A, R> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.inner.next_element_seed(Ruled::new(seed, self.rule))
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, A: MapAccess<'de>, R: ReadRule> MapAccess<'de> for Ruled<A, R> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.inner.next_key_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.inner.next_value_seed(Ruled::new(seed, self.rule))
    }
}

impl<'de, S: DeserializeSeed<'de>, R: ReadRule> DeserializeSeed<'de> for Ruled<S, R> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(Ruled::new(deserializer, self.rule))
    }
}

impl<'de, A: EnumAccess<'de>, R: ReadRule> EnumAccess<'de> for Ruled<A, R> {
    type Error = A::Error;
    type Variant = Ruled<A::Variant, R>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), A::Error> {
        let (variant, content) = self.inner.variant_seed(seed)?;
        Ok((variant, Ruled::new(content, self.rule)))
    }
}

impl<'de, A: VariantAccess<'de>, R: ReadRule> VariantAccess<'de> for Ruled<A, R> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.inner.newtype_variant_seed(Ruled::new(seed, self.rule))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        let visitor = Reader { visitor, rule: self.rule, requested: Requested::Other };
        self.inner.tuple_variant(len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        let visitor = Reader { visitor, rule: self.rule, requested: Requested::Struct("", fields) };
        self.inner.struct_variant(fields, visitor)
    }
}
