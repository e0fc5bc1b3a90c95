//! Ids that follow from a trigger and an event, so that a second delivery makes the same ones.

use sha2::{Digest as _, Sha256};

use super::Trigger;
use crate::{
    event::value::Event,
    job::{JobId, TriggerName, lifecycle::ReplyId},
};

impl Trigger {
    /// The id of the job that it makes of `event`: the same for a second delivery.
    pub(crate) fn job_id(&self, event: &Event) -> JobId {
        format!("ev-{}", hex(&self.digest(event)[..20]))
            .parse()
            .expect("hexadecimal digits make an id")
    }

    /// The id of the reply that it makes of `event`: the same for a second delivery.
    pub(super) fn reply_id(&self, event: &Event) -> ReplyId {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&self.digest(event)[..16]);
        ReplyId(u128::from_be_bytes(bytes))
    }

    fn digest(&self, event: &Event) -> [u8; 32] {
        digest(&[self.name.as_str(), &event.source, &event.id])
    }
}

/// The name of the dead letter for `event` and the trigger `name`; none if no trigger saw the
/// event.
pub fn letter_id(name: Option<&TriggerName>, event: &Event) -> String {
    hex(&digest(&[name.map_or("", TriggerName::as_str), &event.source, &event.id])[..20])
}

/// A digest of texts. The length of each is part of it, so that no two lists have the same digest.
pub fn digest(texts: &[&str]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text.as_bytes());
    }
    hash.finalize().into()
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        text.extend(
            [byte >> 4, byte & 15].map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)])),
        );
        text
    })
}
