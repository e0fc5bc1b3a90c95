//! The data and the result of a job: bytes in one of two encodings, kept as they arrived.
//!
//! A reader of the other encoding gets an equal value. [`crate::job::transcode`] shows how it
//! expresses values that the encoding lacks.

use std::{
    cell::Cell,
    fmt::{self, Display},
};

use bytes::Bytes;
use serde::{
    Deserialize, Serialize,
    de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor},
};

use crate::job::transcode;

/// Most levels of lists and maps in a payload.
pub const MAX_DEPTH: usize = 64;

/// The depth limit for the MessagePack decoder, which counts a list or a map as two levels, and any
/// other value as up to four.
pub(super) const DECODER_DEPTH: usize = 2 * MAX_DEPTH + 4;

/// How the bytes of a payload are to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Encoding {
    /// JSON text in UTF-8.
    #[default]
    Json,
    /// MessagePack.
    MessagePack,
}

/// One value, byte for byte as its sender wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// How to read the bytes.
    pub encoding: Encoding,
    /// The value itself; well formed in its encoding.
    pub bytes: Bytes,
}

impl Payload {
    /// A payload of JSON text that is known to be well formed.
    pub fn json(text: impl Into<Bytes>) -> Self {
        Self { encoding: Encoding::Json, bytes: text.into() }
    }

    /// The JSON value `null`.
    pub fn null() -> Self {
        Self::json(&b"null"[..])
    }
}

/// The bytes are not a value in their encoding, or not one within the bounds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Malformed {
    why: String,
    deep: bool,
}

impl Malformed {
    pub(super) fn new(why: impl Display) -> Self {
        Self { why: why.to_string(), deep: false }
    }

    fn too_deep(most: usize) -> Self {
        Self { why: format!("must have at most {most} levels"), deep: true }
    }

    /// Whether it has too many levels, and is well formed as far as it was read.
    pub fn is_too_deep(&self) -> bool {
        self.deep
    }
}

impl Payload {
    /// Checks that the bytes are one well-formed value of at most `max_depth` (up to [`MAX_DEPTH`])
    /// nested lists and maps, that its texts are UTF-8 and that its numbers fit a double.
    ///
    /// Builds no value, and stops at the first level that is too deep.
    ///
    /// # Errors
    ///
    /// [`Malformed`] with the reason.
    pub fn check(&self, max_depth: usize) -> Result<(), Malformed> {
        match self.encoding {
            Encoding::Json => {
                let mut json = serde_json::Deserializer::from_slice(&self.bytes);
                let deep = Cell::new(false);
                let level = Level { left: max_depth, deep: &deep };
                let read = level.deserialize(&mut json).and_then(|()| json.end());
                read.map_err(|error| {
                    if deep.get() { Malformed::too_deep(max_depth) } else { Malformed::new(error) }
                })
            }
            Encoding::MessagePack => check_message_pack(&self.bytes, max_depth),
        }
    }

    /// The value as JSON; the bytes themselves if they are JSON.
    ///
    /// # Errors
    ///
    /// [`Malformed`] if they are not well formed.
    pub fn to_json(&self) -> Result<Bytes, Malformed> {
        match self.encoding {
            Encoding::Json => Ok(self.bytes.clone()),
            Encoding::MessagePack => {
                let value =
                    rmpv::decode::read_value_with_max_depth(&mut &self.bytes[..], DECODER_DEPTH)
                        .map_err(Malformed::new)?;
                Ok(serde_json::to_vec(&transcode::json_of(value)).map_err(Malformed::new)?.into())
            }
        }
    }

    /// The value as MessagePack; the bytes themselves if they are MessagePack.
    ///
    /// # Errors
    ///
    /// [`Malformed`] if they are not well formed.
    pub fn to_msgpack(&self) -> Result<Bytes, Malformed> {
        match self.encoding {
            Encoding::MessagePack => Ok(self.bytes.clone()),
            Encoding::Json => {
                let mut bytes = Vec::with_capacity(self.bytes.len());
                let value = transcode::message_pack_of(
                    serde_json::from_slice(&self.bytes).map_err(Malformed::new)?,
                );
                rmpv::encode::write_value(&mut bytes, &value).map_err(Malformed::new)?;
                Ok(bytes.into())
            }
        }
    }
}

/// A JSON value that is read next, and how many levels it may have.
#[derive(Clone, Copy)]
struct Level<'a> {
    left: usize,
    /// Set when the value has more levels.
    deep: &'a Cell<bool>,
}

impl Level<'_> {
    fn deeper<E: serde::de::Error>(self) -> Result<Self, E> {
        let left = self.left.checked_sub(1).ok_or_else(|| {
            self.deep.set(true);
            E::custom("is too deep")
        })?;
        Ok(Self { left, ..self })
    }
}

impl<'de> DeserializeSeed<'de> for Level<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Level<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        while list.next_element_seed(inner)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        while map.next_key_seed(inner)?.is_some() {
            map.next_value_seed(inner)?;
        }
        Ok(())
    }
}

/// Checks MessagePack with a count of the values that are left on each level.
fn check_message_pack(bytes: &[u8], max_depth: usize) -> Result<(), Malformed> {
    fn take<'a>(rest: &mut &'a [u8], n: usize) -> Result<&'a [u8], Malformed> {
        let (taken, left) = rest
            .split_at_checked(n)
            .ok_or_else(|| Malformed::new("ends in the middle of a value"))?;
        *rest = left;
        Ok(taken)
    }
    fn length(rest: &mut &[u8], n: usize) -> Result<usize, Malformed> {
        Ok(take(rest, n)?.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)))
    }
    let mut rest = bytes;
    let mut levels: Vec<usize> = Vec::new();
    loop {
        let marker = usize::from(take(&mut rest, 1)?[0]);
        // After the marker: bytes of a text, bytes to skip, and the number of inner values.
        let (text, skip, inner) = match marker {
            0x80..=0x8f => (0, 0, Some((marker & 0xf) * 2)),
            0x90..=0x9f => (0, 0, Some(marker & 0xf)),
            0xa0..=0xbf => (marker & 0x1f, 0, None),
            0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => (0, 0, None),
            0xc4..=0xc6 => (0, length(&mut rest, 1 << (marker - 0xc4))?, None),
            0xc7..=0xc9 => (0, length(&mut rest, 1 << (marker - 0xc7))? + 1, None),
            0xca | 0xcb => (0, 4 << (marker - 0xca), None),
            0xcc..=0xcf => (0, 1 << (marker - 0xcc), None),
            0xd0..=0xd3 => (0, 1 << (marker - 0xd0), None),
            0xd4..=0xd8 => (0, (1 << (marker - 0xd4)) + 1, None),
            0xd9..=0xdb => (length(&mut rest, 1 << (marker - 0xd9))?, 0, None),
            0xdc | 0xdd => (0, 0, Some(length(&mut rest, 2 << (marker - 0xdc))?)),
            0xde | 0xdf => (0, 0, Some(length(&mut rest, 2 << (marker - 0xde))?.saturating_mul(2))),
            _ => return Err(Malformed::new("has a byte that starts no value")),
        };
        std::str::from_utf8(take(&mut rest, text)?)
            .map_err(|_| Malformed::new("has a text that is not UTF-8"))?;
        take(&mut rest, skip)?;
        if let Some(left) = levels.last_mut() {
            *left -= 1;
        }
        if let Some(inner) = inner {
            if levels.len() == max_depth {
                return Err(Malformed::too_deep(max_depth));
            }
            levels.push(inner);
        }
        while levels.last() == Some(&0) {
            levels.pop();
        }
        if levels.is_empty() {
            return if rest.is_empty() {
                Ok(())
            } else {
                Err(Malformed::new("has more bytes after its value"))
            };
        }
    }
}

/// A payload, or where it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// The payload itself.
    Inline(Payload),
    /// In the job store, separate from its job, with this many bytes. It is read when it is needed.
    Separate(u32),
    /// In the object store under `key`, `len` bytes.
    Object {
        /// How to read the bytes.
        encoding: Encoding,
        /// The object's key.
        key: String,
        /// How many bytes it has.
        len: u32,
    },
}

impl Body {
    /// How many bytes the payload has.
    pub fn len(&self) -> usize {
        match self {
            Self::Inline(payload) => payload.bytes.len(),
            Self::Separate(len) | Self::Object { len, .. } => *len as usize,
        }
    }

    /// Whether the payload has no bytes, which no well-formed value has.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The payload, if it is inline.
    pub fn inline(&self) -> Option<&Payload> {
        match self {
            Self::Inline(payload) => Some(payload),
            Self::Separate(_) | Self::Object { .. } => None,
        }
    }
}
