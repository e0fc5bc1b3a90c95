//! Values as bytes in a store: compact MessagePack after a byte with the format, which later
//! releases check.

use serde::{Serialize, de::DeserializeOwned};

use tidegate_core::{job::Spec, port::StoreError};

/// The only format.
const FORMAT: u8 = 1;

/// `value` as a blob.
pub(super) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, StoreError> {
    let mut blob = Vec::with_capacity(160);
    blob.push(FORMAT);
    rmp_serde::encode::write(&mut blob, value)
        .map_err(|error| StoreError::corrupt_in("a value cannot be encoded", error))?;
    Ok(blob)
}

/// `spec` as a blob. Windows may omit optional fields, so a spec with windows is written with the
/// names of its fields instead of their positions. Reading accepts both.
pub(super) fn encode_spec(spec: &Spec) -> Result<Vec<u8>, StoreError> {
    if spec.windows.is_empty() {
        return encode(spec);
    }
    let mut blob = vec![FORMAT];
    rmp_serde::encode::write_named(&mut blob, spec)
        .map_err(|error| StoreError::corrupt_in("a value cannot be encoded", error))?;
    Ok(blob)
}

/// The value in `blob`; `what` names it for an error.
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
