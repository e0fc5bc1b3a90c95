//! Values as bytes in a store, each behind a checksum.
//!
//! A *blob* is a byte with the format, the checksum, and the value in MessagePack. Bodies and JSON
//! are stored as they are behind their checksum. The checksum also covers the name of the record's
//! owner, so the blob of another job or queue is found too. See [`tidegate_core::stored`] for what
//! later releases may add.

use serde::{Serialize, de::DeserializeOwned};

use tidegate_core::{checksum::checksum, port::StoreError};

/// The only format.
const FORMAT: u8 = 2;
/// The bytes before the value.
const HEAD_BYTES: usize = 5;
/// The bytes of the checksum before bytes that are stored as they are.
pub(super) const CHECKSUM_BYTES: usize = 4;
/// Why a value is not read.
const DAMAGED: &str = "its checksum is wrong: it was damaged";

/// `value` as a blob of `owner`, such as a job's id.
pub(super) fn encode<T: Serialize>(value: &T, owner: &str) -> Result<Vec<u8>, StoreError> {
    let mut blob = Vec::with_capacity(160);
    encode_to(&mut blob, value, owner)?;
    Ok(blob)
}

/// Appends `value` to `bytes` as a blob of `owner`.
pub(super) fn encode_to<T: Serialize>(
    bytes: &mut Vec<u8>,
    value: &T,
    owner: &str,
) -> Result<(), StoreError> {
    let start = bytes.len();
    bytes.resize(start + HEAD_BYTES, FORMAT);
    rmp_serde::encode::write(bytes, value)
        .map_err(|error| StoreError::corrupt_in("a value cannot be encoded", error))?;
    let blob = &mut bytes[start..];
    let checksum = checksum(&[owner.as_bytes(), &blob[HEAD_BYTES..]]);
    blob[1..HEAD_BYTES].copy_from_slice(&checksum.to_be_bytes());
    Ok(())
}

/// The value in a `blob` of `owner`; `what` names the value for an error.
pub(super) fn decode<T: DeserializeOwned>(
    blob: &[u8],
    owner: &str,
    what: impl FnOnce() -> String,
) -> Result<T, StoreError> {
    let Some((head, value)) = blob.split_first_chunk::<HEAD_BYTES>() else {
        return Err(StoreError::corrupt_in(what(), "it is too short"));
    };
    let [format, stored @ ..] = *head;
    if format != FORMAT {
        return Err(StoreError::corrupt_in(what(), "unknown format: another release wrote it"));
    }
    if u32::from_be_bytes(stored) != checksum(&[owner.as_bytes(), value]) {
        return Err(StoreError::corrupt_in(what(), DAMAGED));
    }
    rmp_serde::from_slice(value).map_err(|error| StoreError::corrupt_in(what(), error))
}

/// `bytes` of `owner` behind their checksum. `kind` is what else must be right, such as their
/// encoding.
pub(super) fn with_checksum(bytes: &[u8], owner: &str, kind: u8) -> Vec<u8> {
    let mut stored = Vec::with_capacity(CHECKSUM_BYTES + bytes.len());
    add_with_checksum(&mut stored, bytes, owner, kind);
    stored
}

/// Appends `bytes` to `stored` as [`with_checksum`] makes them.
pub(super) fn add_with_checksum(stored: &mut Vec<u8>, bytes: &[u8], owner: &str, kind: u8) {
    stored.extend(checksum(&[owner.as_bytes(), &[kind], bytes]).to_be_bytes());
    stored.extend(bytes);
}

/// The bytes that [`with_checksum`] made `stored` of, if they are whole; `what` names them for an
/// error.
pub(super) fn checked<'a>(
    stored: &'a [u8],
    owner: &str,
    kind: u8,
    what: impl FnOnce() -> String,
) -> Result<&'a [u8], StoreError> {
    match stored.split_first_chunk::<CHECKSUM_BYTES>() {
        Some((stored, bytes))
            if u32::from_be_bytes(*stored) == checksum(&[owner.as_bytes(), &[kind], bytes]) =>
        {
            Ok(bytes)
        }
        _ => Err(StoreError::corrupt_in(what(), DAMAGED)),
    }
}

/// The owner of a record in its checksum. `until` is in milliseconds since 1970.
pub(super) fn record_owner(kind: &str, name: &str, until: i64) -> String {
    format!("{kind} {name} {until}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_of_every_bit_and_the_blob_of_another_owner_are_found() {
        let value = ("text".to_owned(), 7u64, vec![1u8, 2, 3]);
        let blob = encode(&value, "owner").unwrap();
        let read = |blob: &[u8], owner: &str| {
            decode::<(String, u64, Vec<u8>)>(blob, owner, || "the value".to_owned())
        };
        assert_eq!(read(&blob, "owner").unwrap(), value);
        for bit in 0..blob.len() * 8 {
            let mut damaged = blob.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let error = read(&damaged, "owner").unwrap_err().chain().to_string();
            assert!(error.contains("the value"), "{error}");
        }
        for length in 0..blob.len() {
            read(&blob[..length], "owner").unwrap_err();
        }
        let error = read(&blob, "another").unwrap_err().chain().to_string();
        assert!(error.contains("checksum"), "{error}");
    }

    #[test]
    fn damage_of_every_bit_of_plain_bytes_is_found() {
        let stored = with_checksum(b"[100]", "owner", 1);
        let read = |stored: &[u8], owner: &str, kind| {
            checked(stored, owner, kind, || "the body".to_owned()).map(<[u8]>::to_vec)
        };
        assert_eq!(read(&stored, "owner", 1).unwrap(), b"[100]");
        for bit in 0..stored.len() * 8 {
            let mut damaged = stored.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            read(&damaged, "owner", 1).unwrap_err();
        }
        for length in 0..stored.len() {
            read(&stored[..length], "owner", 1).unwrap_err();
        }
        read(&stored, "another", 1).unwrap_err();
        read(&stored, "owner", 0).unwrap_err();
    }
}
