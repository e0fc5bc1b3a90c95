//! What a job carries and what it answers: bytes in one of two encodings, kept as they came.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

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

/// A payload, or where it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Here.
    Inline(Payload),
    /// In the job store beside its job, to be read when somebody needs it; this many bytes.
    Beside(u32),
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
            Self::Beside(len) | Self::Object { len, .. } => *len as usize,
        }
    }

    /// Whether the payload has no bytes, which no well-formed value has.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The payload, if it is here.
    pub fn inline(&self) -> Option<&Payload> {
        match self {
            Self::Inline(payload) => Some(payload),
            Self::Beside(_) | Self::Object { .. } => None,
        }
    }
}
