//! The tokens of a JSON text, and its nesting.

use serde::de;

use super::{error::Error, list::List};

/// The deepest nesting. Deeper text is refused, so that no text can exhaust the stack.
const DEPTH: usize = 100;

/// The position of the parser. It is between two tokens, or before a value.
pub(super) struct Reader<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
    depth: usize,
}

/// An integer, or the text of any other number.
pub(super) enum Number<'a> {
    Unsigned(u64),
    Signed(i64),
    Other(&'a str),
}

impl<'a> Reader<'a> {
    /// A parser at the start of `text`.
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0, depth: 0 }
    }

    /// The next byte that is not a space.
    #[inline(never)]
    pub(super) fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while matches!(bytes.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
        bytes.get(self.at).copied()
    }

    #[inline(never)]
    pub(super) fn syntax(&self, expected: &str) -> Error {
        de::Error::custom(format_args!("not JSON: expected {expected} at byte {}", self.at))
    }

    #[inline(never)]
    pub(super) fn take(&mut self, byte: u8, expected: &str) -> Result<(), Error> {
        if self.peek() == Some(byte) {
            self.at += 1;
            return Ok(());
        }
        Err(self.syntax(expected))
    }

    #[inline(never)]
    pub(super) fn word(&mut self, word: &str) -> Result<(), Error> {
        if self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            self.at += word.len();
            return Ok(());
        }
        Err(self.syntax("a value"))
    }

    #[inline(never)]
    pub(super) fn number(&mut self) -> Result<Number<'a>, Error> {
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
    pub(super) fn string(&mut self) -> Result<String, Error> {
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
    pub(super) fn skip(&mut self) -> Result<(), Error> {
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
    pub(super) fn nested<T>(
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
        Ok(List::new(end))
    }

    #[inline(never)]
    fn leave(&mut self, list: &mut List) -> Result<(), Error> {
        self.depth -= 1;
        // A visitor may stop early, for example that of a tuple.
        if list.more(self)? { Err(self.syntax("fewer elements")) } else { Ok(()) }
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
