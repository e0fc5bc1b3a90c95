//! Values as bytes in a store, each behind a checksum.
//!
//! A *blob* is a byte with the format, the checksum, and the value in MessagePack. *Sealed* bytes
//! are the checksum and the bytes as they are: bodies and JSON. The checksum also covers the name of
//! the record's owner, so the blob of another job or queue is found too. See
//! [`tidegate_core::stored`] for what later releases may add.

use serde::{Serialize, de::DeserializeOwned};

use tidegate_core::{checksum::checksum, port::StoreError};

/// The only format.
const FORMAT: u8 = 2;
/// The bytes before the value.
const HEAD_BYTES: usize = 5;
/// The bytes before sealed bytes.
pub(super) const SEAL_BYTES: usize = 4;
/// Why a value is not read.
const DAMAGED: &str = "its checksum is wrong: it was damaged";

/// `value` as a blob of `owner`, such as a job's id.
pub(super) fn encode<T: Serialize>(value: &T, owner: &str) -> Result<Vec<u8>, StoreError> {
    let mut blob = Vec::with_capacity(160);
    blob.resize(HEAD_BYTES, FORMAT);
    rmp_serde::encode::write(&mut blob, value)
        .map_err(|error| StoreError::corrupt_in("a value cannot be encoded", error))?;
    let checksum = checksum(&[owner.as_bytes(), &blob[HEAD_BYTES..]]);
    blob[1..HEAD_BYTES].copy_from_slice(&checksum.to_be_bytes());
    Ok(blob)
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

/// `bytes` of `owner`, sealed. `kind` is what else must be right, such as their encoding.
pub(super) fn seal(bytes: &[u8], owner: &str, kind: u8) -> Vec<u8> {
    let mut sealed = Vec::with_capacity(SEAL_BYTES + bytes.len());
    sealed.extend(checksum(&[owner.as_bytes(), &[kind], bytes]).to_be_bytes());
    sealed.extend(bytes);
    sealed
}

/// The bytes that [`seal`] made `sealed` of; `what` names them for an error.
pub(super) fn unseal<'a>(
    sealed: &'a [u8],
    owner: &str,
    kind: u8,
    what: impl FnOnce() -> String,
) -> Result<&'a [u8], StoreError> {
    match sealed.split_first_chunk::<SEAL_BYTES>() {
        Some((stored, bytes))
            if u32::from_be_bytes(*stored) == checksum(&[owner.as_bytes(), &[kind], bytes]) =>
        {
            Ok(bytes)
        }
        _ => Err(StoreError::corrupt_in(what(), DAMAGED)),
    }
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
    fn damage_of_every_bit_of_sealed_bytes_is_found() {
        let sealed = seal(b"[100]", "owner", 1);
        let read = |sealed: &[u8], owner: &str, kind| {
            unseal(sealed, owner, kind, || "the body".to_owned()).map(<[u8]>::to_vec)
        };
        assert_eq!(read(&sealed, "owner", 1).unwrap(), b"[100]");
        for bit in 0..sealed.len() * 8 {
            let mut damaged = sealed.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            read(&damaged, "owner", 1).unwrap_err();
        }
        for length in 0..sealed.len() {
            read(&sealed[..length], "owner", 1).unwrap_err();
        }
        read(&sealed, "another", 1).unwrap_err();
        read(&sealed, "owner", 0).unwrap_err();
    }
}
