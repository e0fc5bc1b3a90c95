//! Reads a value of any type that serde requests.

use serde::{
    Deserializer,
    de::{self, Expected, IntoDeserializer, Unexpected, Visitor},
};

use super::{
    error::Error,
    list::Elements,
    raw::Raw,
    reader::{Number, Reader},
    variant::Variant,
};

macro_rules! integers {
    ($($method:ident)*) => { $(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.integer(visitor)
        }
    )* };
}

impl<'de> Deserializer<'de> for &mut Reader<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.peek() {
            Some(b'"') => self.deserialize_str(visitor),
            Some(b'{') => self.deserialize_map(visitor),
            Some(b'[') => self.deserialize_seq(visitor),
            Some(b't' | b'f') => self.deserialize_bool(visitor),
            Some(b'n') => self.deserialize_unit(visitor),
            _ => match self.number()? {
                Number::Unsigned(number) => visitor.visit_u64(number),
                Number::Signed(number) => visitor.visit_i64(number),
                Number::Other(written) => {
                    visitor.visit_f64(written.parse().map_err(de::Error::custom)?)
                }
            },
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.peek() {
            Some(b't') => self.word("true").and_then(|()| visitor.visit_bool(true)),
            Some(b'f') => self.word("false").and_then(|()| visitor.visit_bool(false)),
            _ => Err(self.unexpected(&visitor)),
        }
    }

    integers! {
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if matches!(self.peek(), Some(b'-' | b'0'..=b'9')) {
            self.deserialize_any(visitor)
        } else {
            Err(self.unexpected(&visitor))
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.peek() == Some(b'"') {
            visitor.visit_string(self.string()?)
        } else {
            Err(self.unexpected(&visitor))
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.peek() == Some(b'n') {
            self.word("null").and_then(|()| visitor.visit_none())
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.peek() == Some(b'n') {
            self.word("null").and_then(|()| visitor.visit_unit())
        } else {
            Err(self.unexpected(&visitor))
        }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        if name != Raw::NAME {
            return visitor.visit_newtype_struct(self);
        }
        self.peek();
        let start = self.at;
        self.skip()?;
        visitor.visit_str(&self.text[start..self.at])
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.peek() != Some(b'[') {
            return Err(self.unexpected(&visitor));
        }
        self.nested(b']', |reader, list| visitor.visit_seq(Elements { reader, list }))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.peek() != Some(b'{') {
            return Err(self.unexpected(&visitor));
        }
        self.nested(b'}', |reader, list| visitor.visit_map(Elements { reader, list }))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_map(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.peek() {
            Some(b'"') => {
                let name: String = self.string()?;
                visitor.visit_enum(name.into_deserializer())
            }
            Some(b'{') => self.nested(b'}', |reader, list| {
                if !list.member(reader)? {
                    return Err(reader.syntax("one member"));
                }
                visitor.visit_enum(Variant { reader, name: &list.key })
            }),
            _ => Err(self.unexpected(&visitor)),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.skip()?;
        visitor.visit_unit()
    }
}

impl Reader<'_> {
    /// Describes the next value, for an error that expected another kind.
    #[inline(never)]
    fn unexpected(&mut self, expected: &dyn Expected) -> Error {
        let found = match self.peek() {
            Some(b'"') => Unexpected::Str(""),
            Some(b'{') => Unexpected::Map,
            Some(b'[') => Unexpected::Seq,
            Some(b't' | b'f') => Unexpected::Bool(true),
            Some(b'n') => Unexpected::Unit,
            Some(b'-' | b'0'..=b'9') => match self.number() {
                Ok(Number::Other(_)) => Unexpected::Float(0.0),
                Ok(_) => Unexpected::Unsigned(0),
                Err(error) => return error,
            },
            _ => return self.syntax("a value"),
        };
        de::Error::invalid_type(found, expected)
    }

    fn integer<'de, V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, Error> {
        if matches!(self.peek(), Some(b'-' | b'0'..=b'9')) {
            let start = self.at;
            match self.number()? {
                Number::Unsigned(number) => return visitor.visit_u64(number),
                Number::Signed(number) => return visitor.visit_i64(number),
                Number::Other(_) => self.at = start,
            }
        }
        Err(self.unexpected(&visitor))
    }
}
