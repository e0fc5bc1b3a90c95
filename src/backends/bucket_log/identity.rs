//! The identity of a log: an object that the first process creates, and that each later one reads.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{bucket::Edge, create::Created, error::LogError, key::Key, object::LogId};

/// The only format of a log.
const FORMAT: u32 = 1;

/// The content of the object, as JSON, because a person may want to read it.
#[derive(Debug, Serialize, Deserialize)]
struct Identity {
    /// The id of the log in hexadecimal digits.
    log: String,
    /// The format of all objects.
    format: u32,
}

/// The id of the log in a bucket. It is drawn if the bucket has no log.
///
/// # Errors
///
/// [`LogError::Object`] if the object is not an identity of this format.
pub async fn identify(edge: &Edge) -> Result<LogId, LogError> {
    let key = Key::Identity;
    let there = edge.read(&key).await;
    let bytes = if let Some(there) = there { there } else { create(edge, &key).await? };
    parse(&bytes).map_err(|problem| LogError::object(&key, problem))
}

/// Creates the identity of a new log, unless another process does so at the same time.
async fn create(edge: &Edge, key: &Key) -> Result<Bytes, LogError> {
    let drawn = Identity { log: format!("{:032x}", edge.entropy.bits()), format: FORMAT };
    let drawn = serde_json::to_vec(&drawn).map_err(|error| LogError::object(key, error))?;
    let drawn = Bytes::from(drawn);
    Ok(match edge.create(key, &drawn).await {
        Created::Own => drawn,
        Created::Other(bytes) => bytes,
    })
}

fn parse(bytes: &[u8]) -> Result<LogId, String> {
    let Identity { log, format } =
        serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if format != FORMAT {
        return Err(format!("it has format {format}: a later release wrote it"));
    }
    u128::from_str_radix(&log, 16).map(LogId).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_of_another_format_is_refused() {
        let written = |format| {
            let log = format!("{:032x}", 0xabc);
            serde_json::to_vec(&Identity { log, format }).unwrap()
        };
        assert_eq!(parse(&written(FORMAT)), Ok(LogId(0xabc)));
        parse(&written(FORMAT + 1)).unwrap_err();
        parse(b"{}").unwrap_err();
        parse(br#"{"log": "no number", "format": 1}"#).unwrap_err();
    }
}
