//! The identity of a log: an object that the first process creates, and that each later one reads.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tidegate_core::checksum::checksum;

use super::{
    bucket::Edge,
    create::Created,
    error::LogError,
    key::{Epoch, ObjectKey},
    object::LogId,
};

/// The only format of a log.
const FORMAT: u32 = 1;

/// The content of the object, as JSON, because a person may want to read it.
#[derive(Debug, Serialize, Deserialize)]
struct Identity {
    /// The id of the log in hexadecimal digits.
    log: String,
    /// The format of all objects.
    format: u32,
    /// The checksum of both.
    sum: u32,
}

impl Identity {
    fn new(log: LogId) -> Self {
        let log = format!("{:032x}", log.0);
        Self { sum: Self::sum(&log, FORMAT), log, format: FORMAT }
    }

    fn sum(log: &str, format: u32) -> u32 {
        checksum(&[log.as_bytes(), &format.to_be_bytes()])
    }
}

/// The id of the log in a bucket. It is drawn if the bucket has no log.
///
/// # Errors
///
/// [`LogError::Object`] if the object is not an identity of this format.
pub async fn identify(edge: &Edge) -> Result<LogId, LogError> {
    let key = ObjectKey::Identity;
    let there = edge.read(&key).await;
    let bytes = match there {
        Some(there) => there,
        None => create(edge, &key).await?,
    };
    parse(&bytes).map_err(|problem| LogError::object(&key, problem))
}

/// Creates the identity of a new log, unless another process does so at the same time.
///
/// # Errors
///
/// [`LogError::Object`] if there is a log, and its identity was lost.
async fn create(edge: &Edge, key: &ObjectKey) -> Result<Bytes, LogError> {
    if edge.read(&ObjectKey::Claim(Epoch::FIRST)).await.is_some() {
        let created = edge.read(key).await;
        return created.ok_or_else(|| LogError::gone(key));
    }
    let drawn = encode(LogId(edge.entropy.bits()));
    Ok(match edge.create(key, &drawn).await {
        Created::Own => drawn,
        Created::Other(bytes) => bytes,
    })
}

/// The bytes of the identity of a log.
pub(super) fn encode(log: LogId) -> Bytes {
    serde_json::to_vec(&Identity::new(log)).expect("an identity is plain data").into()
}

/// The id of the log in the bytes of its identity.
pub(super) fn parse(bytes: &[u8]) -> Result<LogId, String> {
    let Identity { log, format, sum } =
        serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if sum != Identity::sum(&log, format) {
        return Err("it is damaged: its checksum is wrong".into());
    }
    if format != FORMAT {
        return Err(format!("it has format {format}: a later release wrote it"));
    }
    u128::from_str_radix(&log, 16).map(LogId).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_that_is_damaged_or_of_another_format_is_refused() {
        let whole = serde_json::to_vec(&Identity::new(LogId(0xabc))).unwrap();
        assert_eq!(parse(&whole), Ok(LogId(0xabc)));
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            parse(&damaged).unwrap_err();
        }
        let (log, format) = ("0abc".to_owned(), FORMAT + 1);
        let later = Identity { sum: Identity::sum(&log, format), log, format };
        let error = parse(&serde_json::to_vec(&later).unwrap()).unwrap_err();
        assert!(error.contains("later release"), "{error}");
    }
}
