//! A pending reply as it is stored: the name of its record, by which its job finds it, and its
//! content.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use tidegate_core::{
    event::trigger::{Reply, TriggerOutcome, digest, hex},
    job::{Encoding, Payload, lifecycle::ReplyId},
};

/// The common prefix of the names of all replies to one correlation key.
pub(crate) fn prefix_of(job_type: &str, key: &str) -> String {
    format!("{}-", hex(&digest(&[job_type, key])[..16]))
}

/// The name of the record of `reply`. A second delivery has the same name.
pub(crate) fn record_name(reply: &Reply) -> String {
    format!("{}{:032x}", prefix_of(reply.job_type.as_str(), &reply.correlation_key), reply.id.0)
}

/// The content of the record. With a field that this release does not know, it is left to the
/// release that wrote it: without the field it could be another result.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredReply {
    id: String,
    job_type: String,
    correlation_key: String,
    attempt: Option<u16>,
    /// The result, if it succeeded and has one: JSON, or MessagePack in base64.
    result: Option<Box<RawValue>>,
    result_msgpack: Option<String>,
    /// Why it failed, if it did.
    failed: Option<StoredFailure>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredFailure {
    message: Option<String>,
    details: Option<String>,
    retryable: bool,
}

impl StoredReply {
    /// The record content of `reply`.
    pub fn of(reply: &Reply) -> Self {
        let (mut result, mut result_msgpack, mut failed) = (None, None, None);
        match &reply.said {
            TriggerOutcome::Succeeded(None) => {}
            TriggerOutcome::Succeeded(Some(payload)) => match payload.encoding {
                Encoding::Json => result = serde_json::from_slice(&payload.bytes).ok(),
                Encoding::MessagePack => {
                    result_msgpack = Some(BASE64_STANDARD.encode(&payload.bytes));
                }
            },
            TriggerOutcome::Failed { message, details, retryable } => {
                failed = Some(StoredFailure {
                    message: message.clone(),
                    details: details.clone(),
                    retryable: *retryable,
                });
            }
        }
        let (job_type, correlation_key) =
            (reply.job_type.to_string(), reply.correlation_key.clone());
        Self {
            id: format!("{:032x}", reply.id.0),
            job_type,
            correlation_key,
            attempt: reply.attempt,
            result,
            result_msgpack,
            failed,
        }
    }

    /// The reply; `None` if the content is not valid.
    pub fn reply(self) -> Option<Reply> {
        let said = match (self.failed, self.result, self.result_msgpack) {
            (Some(StoredFailure { message, details, retryable }), ..) => {
                TriggerOutcome::Failed { message, details, retryable }
            }
            (None, Some(json), _) => {
                TriggerOutcome::Succeeded(Some(Payload::json(json.get().to_owned())))
            }
            (None, None, Some(packed)) => {
                let bytes = BASE64_STANDARD.decode(packed).ok()?.into();
                TriggerOutcome::Succeeded(Some(Payload { encoding: Encoding::MessagePack, bytes }))
            }
            (None, None, None) => TriggerOutcome::Succeeded(None),
        };
        let id = ReplyId(u128::from_str_radix(&self.id, 16).ok()?);
        Some(Reply {
            id,
            job_type: self.job_type.parse().ok()?,
            correlation_key: self.correlation_key,
            attempt: self.attempt,
            said,
        })
    }
}
