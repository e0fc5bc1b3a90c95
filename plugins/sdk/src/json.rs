//! Parses JSON text into any serde type, and names the place of an error.
//!
//! It is small rather than fast, and functions are `inline(never)` to keep it small. The usual
//! parser adds 50 KB to a component, most of it for decimal fractions. Here only types with
//! fractions need that code, and an error has its JSON pointer without another crate.

use std::fmt::{self, Display, Write};

use serde::{
    Deserialize, Deserializer,
    de::{
        self, DeserializeOwned, DeserializeSeed, EnumAccess, Expected, IntoDeserializer, MapAccess,
        SeqAccess, Unexpected, VariantAccess, Visitor,
    },
    forward_to_deserialize_any,
};

use crate::Problem;

/// The deepest nesting. Deeper text is refused, so that no text can exhaust the stack.
const DEPTH: usize = 100;

/// Parses JSON text.
///
/// # Errors
///
/// What is wrong with the text, and where.
pub fn parse<T: DeserializeOwned>(text: &str) -> Result<T, Problem> {
    let mut reader = Reader { text, at: 0, depth: 0 };
    let value = T::deserialize(&mut reader).and_then(|value| match reader.peek() {
        None => Ok(value),
        Some(_) => Err(reader.syntax("the end")),
    });
    value.map_err(|Error { path, message }| Problem { path, message })
}

/// A part of a JSON text, unchanged. Only [`parse`] can read it. It does not work within flattened
/// fields or untagged enums of serde.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raw(pub String);

impl Raw {
    /// The name by which a [`Reader`] recognises that the text itself is requested.
    const NAME: &'static str = "$tidegate::Raw";
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = Raw;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("JSON")
            }

            fn visit_str<E>(self, text: &str) -> Result<Raw, E> {
                Ok(Raw(text.to_owned()))
            }
        }
        deserializer.deserialize_newtype_struct(Self::NAME, Text)
    }
}

/// What is wrong, and the JSON pointer to it.
#[derive(Debug)]
struct Error {
    path: String,
    message: String,
}

impl Error {
    /// The same error, in the list that has it at `index`.
    #[inline(never)]
    fn at(self, index: usize) -> Self {
        self.under(&index.to_string())
    }

    /// The same error, in the object that has it under `key`.
    #[inline(never)]
    fn under(mut self, key: &str) -> Self {
        let mut path = String::from('/');
        for character in key.chars() {
            match character {
                '~' => path.push_str("~0"),
                '/' => path.push_str("~1"),
                _ => path.push(character),
            }
        }
        self.path.insert_str(0, &path);
        self
    }
}

impl Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl de::Error for Error {
    #[inline(never)]
    fn custom<T: Display>(message: T) -> Self {
        Self { path: String::new(), message: message.to_string() }
    }

    // The default formats numbers with fractions, which takes 20 KB of code.
    fn invalid_type(unexpected: Unexpected, expected: &dyn Expected) -> Self {
        let found = match unexpected {
            Unexpected::Bool(_) => "true or false",
            Unexpected::Unsigned(_) | Unexpected::Signed(_) => "a whole number",
            Unexpected::Float(_) => "a number with a fraction",
            Unexpected::Char(_) | Unexpected::Str(_) => "a text",
            Unexpected::Unit | Unexpected::Option => "null",
            Unexpected::Seq => "a list",
            Unexpected::Map => "an object",
            _ => "something else",
        };
        Self::custom(format_args!("expected {expected}, not {found}"))
    }

    fn invalid_value(unexpected: Unexpected, expected: &dyn Expected) -> Self {
        match unexpected {
            Unexpected::Unsigned(number) => {
                Self::custom(format_args!("expected {expected}, not {number}"))
            }
            Unexpected::Signed(number) => {
                Self::custom(format_args!("expected {expected}, not {number}"))
            }
            Unexpected::Str(text) => {
                Self::custom(format_args!("expected {expected}, not {text:?}"))
            }
            other => Self::invalid_type(other, expected),
        }
    }
}

/// The position of the parser. It is between two tokens, or before a value.
struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

/// An integer, or the text of any other number.
enum Number<'a> {
    Unsigned(u64),
    Signed(i64),
    Other(&'a str),
}

impl<'a> Reader<'a> {
    /// The next byte that is not a space.
    #[inline(never)]
    fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while matches!(bytes.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
        bytes.get(self.at).copied()
    }

    #[inline(never)]
    fn syntax(&self, expected: &str) -> Error {
        de::Error::custom(format_args!("not JSON: expected {expected} at byte {}", self.at))
    }

    #[inline(never)]
    fn take(&mut self, byte: u8, expected: &str) -> Result<(), Error> {
        if self.peek() == Some(byte) {
            self.at += 1;
            return Ok(());
        }
        Err(self.syntax(expected))
    }

    #[inline(never)]
    fn word(&mut self, word: &str) -> Result<(), Error> {
        if self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            self.at += word.len();
            return Ok(());
        }
        Err(self.syntax("a value"))
    }

    #[inline(never)]
    fn number(&mut self) -> Result<Number<'a>, Error> {
        let rest = &self.text[self.at..];
        let length = rest
            .bytes()
            .take_while(|byte| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'))
            .count();
        let written = &rest[..length];
        if !is_number(written.as_bytes()) {
            return Err(self.syntax("a value"));
        }
        self.at += length;
        Ok(match (written.parse(), written.parse()) {
            (Ok(number), _) => Number::Unsigned(number),
            (_, Ok(number)) => Number::Signed(number),
            _ => Number::Other(written),
        })
    }

    #[inline(never)]
    fn string(&mut self) -> Result<String, Error> {
        self.take(b'"', "a text")?;
        let mut string = String::new();
        loop {
            let rest = &self.text[self.at..];
            let plain =
                rest.bytes().take_while(|byte| !matches!(byte, b'"' | b'\\' | 0..=0x1f)).count();
            string.push_str(&rest[..plain]);
            self.at += plain;
            match rest.as_bytes().get(plain) {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(string);
                }
                Some(b'\\') => {
                    self.at += 1;
                    string.push(self.escaped()?);
                }
                _ => return Err(self.syntax("the end of a text")),
            }
        }
    }

    fn escaped(&mut self) -> Result<char, Error> {
        let byte = self.text.as_bytes().get(self.at).copied();
        self.at += 1;
        let escaped = match byte {
            Some(byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                let mut unit = self.unit()?;
                // A character outside the basic plane is escaped as a pair of units.
                if (0xd800..0xdc00).contains(&unit)
                    && self.text.as_bytes()[self.at..].starts_with(b"\\u")
                {
                    self.at += 2;
                    let low = self.unit()?;
                    unit = 0x10000 + ((unit - 0xd800) << 10) + (low.wrapping_sub(0xdc00) & 0x3ff);
                }
                return char::from_u32(unit).ok_or_else(|| self.syntax("a character"));
            }
            _ => return Err(self.syntax("an escape")),
        };
        Ok(escaped)
    }

    #[inline(never)]
    fn unit(&mut self) -> Result<u32, Error> {
        let digits = self
            .text
            .get(self.at..self.at + 4)
            .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let unit = digits
            .and_then(|digits| u32::from_str_radix(digits, 16).ok())
            .ok_or_else(|| self.syntax("four digits"))?;
        self.at += 4;
        Ok(unit)
    }

    /// Skips a value of any kind.
    #[inline(never)]
    fn skip(&mut self) -> Result<(), Error> {
        match self.peek() {
            Some(b'"') => self.string().map(drop),
            Some(b'{') => self.nested(b'}', |reader, list| {
                while list.member(reader)? {
                    reader.skip()?;
                }
                Ok(())
            }),
            Some(b'[') => self.nested(b']', |reader, list| {
                while list.more(reader)? {
                    reader.skip()?;
                }
                Ok(())
            }),
            Some(b't') => self.word("true"),
            Some(b'f') => self.word("false"),
            Some(b'n') => self.word("null"),
            _ => self.number().map(drop),
        }
    }

    /// Reads a list or an object. The next byte is its first, and `end` is its last.
    fn nested<T>(
        &mut self,
        end: u8,
        read: impl FnOnce(&mut Self, &mut List) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut list = self.enter(end)?;
        let value = read(self, &mut list)?;
        self.leave(&mut list)?;
        Ok(value)
    }

    #[inline(never)]
    fn enter(&mut self, end: u8) -> Result<List, Error> {
        if self.depth == DEPTH {
            return Err(self.syntax("less nesting"));
        }
        self.depth += 1;
        self.at += 1;
        Ok(List { end, count: 0, key: String::new() })
    }

    #[inline(never)]
    fn leave(&mut self, list: &mut List) -> Result<(), Error> {
        self.depth -= 1;
        // A visitor may stop early, for example that of a tuple.
        if list.more(self)? { Err(self.syntax("fewer elements")) } else { Ok(()) }
    }

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

/// Whether the text is a number in the grammar of JSON.
fn is_number(written: &[u8]) -> bool {
    let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut rest = written.strip_prefix(b"-").unwrap_or(written);
    let whole = digits(rest);
    if whole == 0 || (whole > 1 && rest[0] == b'0') {
        return false;
    }
    rest = &rest[whole..];
    if let Some(fraction) = rest.strip_prefix(b".") {
        let length = digits(fraction);
        if length == 0 {
            return false;
        }
        rest = &fraction[length..];
    }
    if let [b'e' | b'E', exponent @ ..] = rest {
        let exponent =
            if let [b'+' | b'-', exponent @ ..] = exponent { exponent } else { exponent };
        let length = digits(exponent);
        return length > 0 && length == exponent.len();
    }
    rest.is_empty()
}

/// The position in the elements of a list or the members of an object.
struct List {
    end: u8,
    /// `usize::MAX` after its end was read.
    count: usize,
    /// The key of the next value.
    key: String,
}

impl List {
    /// Whether another element follows. Reads the comma before it, or the end.
    #[inline(never)]
    fn more(&mut self, reader: &mut Reader) -> Result<bool, Error> {
        if self.count == usize::MAX {
            return Ok(false);
        }
        if reader.peek() == Some(self.end) {
            reader.at += 1;
            self.count = usize::MAX;
            return Ok(false);
        }
        if self.count > 0 {
            reader.take(b',', "`,` or the end of the list")?;
        }
        self.count += 1;
        Ok(true)
    }

    /// Whether another member follows. Reads its key.
    #[inline(never)]
    fn member(&mut self, reader: &mut Reader) -> Result<bool, Error> {
        let more = self.more(reader)?;
        if more {
            self.key = reader.string()?;
            reader.take(b':', "`:`")?;
        }
        Ok(more)
    }
}

struct Elements<'r, 'a, 'l> {
    reader: &'r mut Reader<'a>,
    list: &'l mut List,
}

impl<'de> SeqAccess<'de> for Elements<'_, '_, '_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        if !self.list.more(self.reader)? {
            return Ok(None);
        }
        seed.deserialize(&mut *self.reader).map(Some).map_err(|error| error.at(self.list.count - 1))
    }
}

impl<'de> MapAccess<'de> for Elements<'_, '_, '_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        if !self.list.member(self.reader)? {
            return Ok(None);
        }
        seed.deserialize(Key(&self.list.key)).map(Some).map_err(|error| error.under(&self.list.key))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(&mut *self.reader).map_err(|error| error.under(&self.list.key))
    }
}

/// The key of an object's member: a string, or a number in a string.
struct Key<'k>(&'k str);

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

/// A variant with a value: an object with one member.
struct Variant<'r, 'a> {
    reader: &'r mut Reader<'a>,
    name: &'r str,
}

impl<'de> EnumAccess<'de> for Variant<'_, '_> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Error> {
        let variant = seed.deserialize(Key(self.name)).map_err(|error| error.under(self.name))?;
        Ok((variant, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_, '_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        <()>::deserialize(&mut *self.reader).map_err(|error| error.under(self.name))
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(&mut *self.reader).map_err(|error| error.under(self.name))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.reader.deserialize_seq(visitor).map_err(|error| error.under(self.name))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.reader.deserialize_map(visitor).map_err(|error| error.under(self.name))
    }
}

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

/// `text` as a JSON string.
pub fn quote(text: &str) -> String {
    let mut quoted = String::from('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            // Writing to a string cannot fail.
            '\0'..='\u{1f}' => drop(write!(quoted, "\\u{:04x}", character as u32)),
            _ => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::Value;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Config {
        shares: BTreeMap<String, u32>,
        #[serde(default)]
        steps: Vec<Step>,
        #[serde(default)]
        days: BTreeMap<u8, Option<f64>>,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "snake_case")]
    enum Step {
        Stop,
        Wait(u32),
        Copy { from: String, to: Raw },
    }

    fn problem(text: &str) -> (String, String) {
        let Problem { path, message } = parse::<Config>(text).unwrap_err();
        (path, message)
    }

    #[test]
    fn what_fits_is_read() {
        let text = r#" { "shares": {"e\u00e4\"": 1},
            "steps": ["stop", {"wait": 2}, {"copy": {"from": "a", "to": [1.50, {}] }}],
            "days": {"3": 1.5, "4": null} } "#;
        let steps = vec![
            Step::Stop,
            Step::Wait(2),
            Step::Copy { from: "a".into(), to: Raw("[1.50, {}]".into()) },
        ];
        let days = [(3, Some(1.5)), (4, None)].into();
        assert_eq!(
            parse(text),
            Ok(Config { shares: [("eä\"".to_owned(), 1)].into(), steps, days })
        );
    }

    #[test]
    fn what_does_not_fit_is_told_by_its_pointer() {
        let cases = [
            (r#"{"shares": {"a/b": "x"}}"#, "/shares/a~1b", "expected u32, not a text"),
            (r#"{"shares": {"a": -1}}"#, "/shares/a", "expected u32, not -1"),
            (
                r#"{"shares": {"a": 1.5}}"#,
                "/shares/a",
                "expected u32, not a number with a fraction",
            ),
            (r#"{"shares": {"a": 5000000000}}"#, "/shares/a", "expected u32, not 5000000000"),
            (r#"{"shares": []}"#, "/shares", "expected a map, not a list"),
            ("{}", "", "missing field `shares`"),
            (
                r#"{"share": {}}"#,
                "/share",
                "unknown field `share`, expected one of `shares`, `steps`, `days`",
            ),
            (
                r#"{"steps": [{"wait": 1}, {"wait": null}]}"#,
                "/steps/1/wait",
                "expected u32, not null",
            ),
            (
                r#"{"steps": [{"walk": 1}]}"#,
                "/steps/0/walk",
                "unknown variant `walk`, expected one of `stop`, `wait`, `copy`",
            ),
            (
                r#"{"steps": [{"copy": {"from": 1}}]}"#,
                "/steps/0/copy/from",
                "expected a string, not a whole number",
            ),
            (r#"{"days": {"mon": 1}}"#, "/days/mon", "expected u8, not \"mon\""),
            ("[]", "", "expected struct Config, not a list"),
        ];
        for (text, path, message) in cases {
            assert_eq!(problem(text), (path.to_owned(), message.to_owned()), "{text}");
        }
    }

    #[test]
    fn invalid_json_is_refused_and_valid_json_is_parsed() {
        let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
        let good = [
            "null",
            "[1,-2,3.5,1e3,-0.25E-2,0]",
            r#"{"a":{"b":[true,false,null]}}"#,
            r#""\ud83d\ude00\n\/\u0041""#,
            " [ ] ",
            "{ }",
            "18446744073709551616",
            "[[],{}]",
            deep.as_str(),
        ];
        for text in good {
            assert_eq!(
                parse::<Value>(text),
                Ok(serde_json::from_str::<Value>(text).unwrap()),
                "{text}"
            );
            assert_eq!(parse::<Raw>(text), Ok(Raw(text.trim().to_owned())));
        }
        let deeper = format!("[{deep}]");
        let bad = [
            "",
            "nul",
            "[1,]",
            "[1 2]",
            "{\"a\" 1}",
            "{\"a\":1,}",
            "{a:1}",
            "01",
            "1.",
            ".5",
            "-",
            "1e",
            "+1",
            "\"",
            "\"\\x\"",
            "\"\\ud800\"",
            "\"\u{1}\"",
            "[",
            "{",
            "1 2",
            "[1}",
            "\"\\u12\"",
            "\"\\u+123\"",
            deeper.as_str(),
        ];
        for text in bad {
            assert!(parse::<Value>(text).is_err(), "{text}");
            assert!(parse::<Raw>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_tuple_takes_as_many_as_it_has() {
        assert_eq!(parse("[1, [2, 3]]"), Ok((1u8, (2u8, 3u8))));
        assert!(parse::<(u8, u8)>("[1, 2, 3]").is_err());
        assert!(parse::<(u8, u8)>("[1]").is_err());
    }

    #[test]
    fn a_quoted_text_is_read_back() {
        for text in ["", "plain", "\"\\\n\u{1}ä😀"] {
            assert_eq!(parse(&quote(text)), Ok(text.to_owned()));
        }
    }
}
