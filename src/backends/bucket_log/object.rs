//! What an object of the log contains: a header, a body, and the hash of both.
//!
//! ```text
//!   TDGL format kind │ log id │ epoch seq │ nonce │ time │ hash of the object before │ length │ body │ SHA-256
//! ```
//!
//! The header names the log and the slot, so an object of another log or of another slot is not
//! taken for the wanted one. The hash of the object before it makes the log a chain: a reader that
//! follows another history finds out at the first object that it does not share.

use std::fmt::{self, Debug, Display, Formatter};

use bytes::{BufMut as _, Bytes, BytesMut};
use sha2::{Digest as _, Sha256};
use tidegate_core::time::Timestamp;

use super::key::{Epoch, Slot};
use crate::sealed::object::key_of;

/// The first bytes of every object.
const MAGIC: &[u8; 4] = b"TDGL";
/// The only format.
const FORMAT: u8 = 1;
/// What a reader gets in place of an object that must be encrypted and is not.
pub(super) const CLEAR: &[u8] = b"TDGC";
/// Bytes of a hash.
const HASH_BYTES: usize = 32;
/// Bytes before the body.
const HEADER_BYTES: usize = 98;

/// The identity of a log. Objects of another log are never read as those of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogId(pub u128);

/// The SHA-256 of an object.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hash(pub [u8; HASH_BYTES]);

impl Hash {
    /// What the first object of a log has as the hash of the object before it.
    pub const NONE: Self = Self([0; HASH_BYTES]);

    /// The hash of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

impl Display for Hash {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Debug for Hash {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}{:02x}{:02x}{:02x}", self.0[0], self.0[1], self.0[2], self.0[3])
    }
}

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A process claims an epoch.
    Claim = 1,
    /// The first record of an epoch: its leader has sealed all epochs before it.
    Start = 2,
    /// The transactions of one group commit.
    Record = 3,
    /// The end of an epoch.
    Seal = 4,
    /// The list of the parts of a snapshot.
    Manifest = 5,
}

impl Kind {
    fn of(number: u8) -> Option<Self> {
        [Self::Claim, Self::Start, Self::Record, Self::Seal, Self::Manifest]
            .into_iter()
            .find(|kind| *kind as u8 == number)
    }
}

/// What each object starts with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub kind: Kind,
    /// The log that it belongs to.
    pub log: LogId,
    /// Its slot. A claim and a manifest have the first one of their epoch.
    pub slot: Slot,
    /// The life of the process that wrote it.
    pub nonce: u128,
    /// When it was written. It decides nothing; in the log it never goes back.
    pub time: Timestamp,
    /// The hash of the object before it; [`Hash::NONE`] in a claim.
    pub previous: Hash,
}

/// An object, encoded once: the same bytes are sent whenever it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its header.
    pub header: Header,
    /// Its body.
    pub body: Bytes,
    bytes: Bytes,
}

/// Why bytes are not the wanted object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReadable {
    /// They are not what was written.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    /// They are not encrypted, and every object must be.
    #[error("it is not encrypted, and every object must be")]
    Clear,
    /// They are encrypted with the key of this id, which the reader does not have, or they were changed.
    #[error("it is encrypted with key {0}, which is not given, or it was changed")]
    Encrypted(String),
    /// A later release wrote them.
    #[error("it has format {0}: a later release wrote it")]
    Newer(u8),
}

impl Object {
    /// Encodes an object.
    pub fn new(header: Header, body: &Bytes) -> Self {
        let mut bytes = BytesMut::with_capacity(HEADER_BYTES + body.len() + HASH_BYTES);
        bytes.put_slice(MAGIC);
        bytes.put_u8(FORMAT);
        bytes.put_u8(header.kind as u8);
        bytes.put_u128(header.log.0);
        bytes.put_u64(header.slot.epoch.number());
        bytes.put_u64(header.slot.seq);
        bytes.put_u128(header.nonce);
        bytes.put_i64(header.time.millis());
        bytes.put_slice(&header.previous.0);
        bytes.put_u32(body.len() as u32);
        debug_assert_eq!(bytes.len(), HEADER_BYTES);
        bytes.put_slice(body);
        let hash = Hash::of(&bytes);
        bytes.put_slice(&hash.0);
        let bytes = bytes.freeze();
        let body = bytes.slice(HEADER_BYTES..HEADER_BYTES + body.len());
        Self { header, body, bytes }
    }

    /// Decodes an object.
    ///
    /// # Errors
    ///
    /// [`NotReadable`] if a bit is not as it was written, they are encrypted or must be, or a later release
    /// wrote them.
    pub fn decode(bytes: Bytes) -> Result<Self, NotReadable> {
        use NotReadable::Damaged;
        if bytes == CLEAR {
            return Err(NotReadable::Clear);
        }
        if let Some(key) = key_of(&bytes) {
            return Err(NotReadable::Encrypted(key));
        }
        if bytes.len() < HEADER_BYTES + HASH_BYTES {
            return Err(Damaged("it is too short"));
        }
        let (content, hash) = bytes.split_at(bytes.len() - HASH_BYTES);
        if Hash::of(content).0 != hash {
            return Err(Damaged("its hash is wrong"));
        }
        let mut at = Reader(content);
        if at.take() != *MAGIC {
            return Err(Damaged("it is no object of a log"));
        }
        let [format] = at.take();
        if format != FORMAT {
            return Err(NotReadable::Newer(format));
        }
        let [kind] = at.take();
        let kind = Kind::of(kind).ok_or(NotReadable::Newer(format))?;
        let log = LogId(u128::from_be_bytes(at.take()));
        let epoch = Epoch::new(u64::from_be_bytes(at.take())).ok_or(Damaged("it has no epoch"))?;
        let slot = Slot { epoch, seq: u64::from_be_bytes(at.take()) };
        let nonce = u128::from_be_bytes(at.take());
        let time = Timestamp::from_millis(i64::from_be_bytes(at.take()));
        let previous = Hash(at.take());
        let length = u32::from_be_bytes(at.take()) as usize;
        if length != at.0.len() {
            return Err(Damaged("its length is wrong"));
        }
        let body = bytes.slice(HEADER_BYTES..HEADER_BYTES + length);
        let header = Header { kind, log, slot, nonce, time, previous };
        Ok(Self { header, body, bytes })
    }

    /// The bytes that are stored.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The hash that the next object names.
    pub fn hash(&self) -> Hash {
        let mut hash = Hash::NONE;
        hash.0.copy_from_slice(&self.bytes[self.bytes.len() - HASH_BYTES..]);
        hash
    }
}

/// The bytes that are still to be read. The caller has checked that there are enough.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (first, rest) = self.0.split_first_chunk().expect("the header has a fixed length");
        self.0 = rest;
        *first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(kind: Kind) -> Object {
        let header = Header {
            kind,
            log: LogId(77),
            slot: Slot { epoch: Epoch::FIRST.next(), seq: 9 },
            nonce: 5,
            time: Timestamp::from_millis(1_000),
            previous: Hash::of(b"before"),
        };
        Object::new(header, &Bytes::from_static(b"body"))
    }

    #[test]
    fn objects_of_each_kind_are_read_as_written() {
        for kind in [Kind::Claim, Kind::Start, Kind::Record, Kind::Seal, Kind::Manifest] {
            let object = object(kind);
            let read = Object::decode(object.bytes().clone()).unwrap();
            assert_eq!(read, object);
            assert_eq!(read.hash(), Hash::of(&read.bytes()[..read.bytes().len() - HASH_BYTES]));
        }
    }

    #[test]
    fn damage_of_every_bit_and_every_cut_is_found() {
        let bytes = object(Kind::Record).bytes().clone();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let error = Object::decode(damaged.into()).unwrap_err();
            assert!(matches!(error, NotReadable::Damaged(_)), "bit {bit}: {error}");
        }
        for length in 0..bytes.len() {
            Object::decode(bytes.slice(..length)).unwrap_err();
        }
    }

    #[test]
    fn an_object_of_a_later_format_is_not_damaged() {
        let bytes = object(Kind::Record).bytes().clone();
        for (at, value) in [(4, FORMAT + 1), (5, 99)] {
            let mut later = bytes[..bytes.len() - HASH_BYTES].to_vec();
            later[at] = value;
            let hash = Hash::of(&later);
            later.extend(hash.0);
            let error = Object::decode(later.into()).unwrap_err();
            assert!(matches!(error, NotReadable::Newer(_)), "{error}");
        }
    }
}
