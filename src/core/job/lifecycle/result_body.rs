//! The result of a job, or its checkpoint, as its record stores it.

use serde::{Deserialize, Serialize};

use crate::job::payload::{Body, Encoding, Payload};

/// Where a result is stored: the same shapes as [`Body`], serialisable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultBody {
    /// How to read the bytes.
    pub encoding: Encoding,
    /// The bytes, unless they are an object.
    pub bytes: bytes::Bytes,
    /// The object's key and length, if they are.
    pub object: Option<(String, u32)>,
}

impl ResultBody {
    /// The result with the content of `body`; none for [`Body::Separate`], which a result never is.
    pub fn of(body: &Body) -> Option<Self> {
        match body {
            Body::Inline(payload) => Some(Self {
                encoding: payload.encoding,
                bytes: payload.bytes.clone(),
                object: None,
            }),
            Body::Object { encoding, key, len } => Some(Self {
                encoding: *encoding,
                bytes: bytes::Bytes::new(),
                object: Some((key.clone(), *len)),
            }),
            Body::Separate(_) => None,
        }
    }

    /// Whether `other` has the same content, also if both are objects with different keys, which end
    /// with a checksum of the content.
    pub(super) fn has_content_of(&self, other: &Self) -> bool {
        let object = |body: &Self| {
            let (key, len) = body.object.as_ref()?;
            Some((key.rsplit_once('-').map(|(_, sum)| sum.to_owned()), *len))
        };
        self.encoding == other.encoding
            && self.bytes == other.bytes
            && object(self) == object(other)
    }

    /// The result as a body.
    pub fn body(&self) -> Body {
        match &self.object {
            Some((key, len)) => {
                Body::Object { encoding: self.encoding, key: key.clone(), len: *len }
            }
            None => Body::Inline(Payload { encoding: self.encoding, bytes: self.bytes.clone() }),
        }
    }
}
