//! Values as bytes in a store: compact MessagePack after a byte that names the format, so that a later release can tell
//! what it reads.

use serde::{Serialize, de::DeserializeOwned};

use tidegate_core::{job::Spec, port::StoreError};

/// The one format that there is so far.
const FORMAT: u8 = 1;

/// `value` as a blob.
pub(super) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, StoreError> {
    let mut blob = Vec::with_capacity(160);
    blob.push(FORMAT);
    rmp_serde::encode::write(&mut blob, value)
        .map_err(|error| StoreError::corrupt_in("a value cannot be encoded", error))?;
    Ok(blob)
}

/// `spec` as a blob. Types that people write, windows above all, may leave fields out where they are
/// not needed; with names instead of places that does no harm, and reading takes both.
pub(super) fn encode_spec(spec: &Spec) -> Result<Vec<u8>, StoreError> {
    if spec.windows.is_empty() {
        return encode(spec);
    }
    let mut blob = vec![FORMAT];
    rmp_serde::encode::write_named(&mut blob, spec)
        .map_err(|error| StoreError::corrupt_in("a value cannot be encoded", error))?;
    Ok(blob)
}

/// The value that `blob` holds.
pub(super) fn decode<T: DeserializeOwned>(
    blob: &[u8],
    what: impl FnOnce() -> String,
) -> Result<T, StoreError> {
    match blob.split_first() {
        Some((&FORMAT, rest)) => {
            rmp_serde::from_slice(rest).map_err(|error| StoreError::corrupt_in(what(), error))
        }
        _ => Err(StoreError::corrupt_in(what(), "unknown format")),
    }
}
