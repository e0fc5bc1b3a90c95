//! Values as bytes in a store: a byte with the format, a checksum, and the value in MessagePack.
//!
//! The checksum also covers the name of the record's owner, so the blob of another job or queue is
//! found too. See [`tidegate_core::stored`] for what later releases may add.

use serde::{Serialize, de::DeserializeOwned};

use tidegate_core::port::StoreError;

/// The only format.
const FORMAT: u8 = 2;
/// The bytes before the value.
const HEAD_BYTES: usize = 5;

/// `value` as a blob of `owner`, such as a job's id.
pub(super) fn encode<T: Serialize>(value: &T, owner: &str) -> Result<Vec<u8>, StoreError> {
    let mut blob = Vec::with_capacity(160);
    blob.resize(HEAD_BYTES, FORMAT);
    rmp_serde::encode::write(&mut blob, value)
        .map_err(|error| StoreError::corrupt_in("a value cannot be encoded", error))?;
    let checksum = checksum(owner, &blob[HEAD_BYTES..]);
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
    if u32::from_be_bytes(stored) != checksum(owner, value) {
        return Err(StoreError::corrupt_in(what(), "its checksum is wrong: it was damaged"));
    }
    rmp_serde::from_slice(value).map_err(|error| StoreError::corrupt_in(what(), error))
}

/// CRC-32, which finds every damage of up to 32 adjacent bits.
fn checksum(owner: &str, value: &[u8]) -> u32 {
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(owner.as_bytes());
    checksum.update(value);
    checksum.finalize()
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
}
