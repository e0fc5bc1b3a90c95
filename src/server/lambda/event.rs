//! What functions are called with, and what they answer: as much of it as is looked at.

use serde::{Deserialize, Serialize};

/// Messages of a queue, or (without any) the minute's round.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Event {
    /// The messages.
    #[serde(default, rename = "Records")]
    pub records: Vec<Record>,
}

/// A message of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Record {
    /// Names it in the answer.
    #[serde(rename = "messageId")]
    pub id: String,
    /// What stands in it.
    pub body: String,
    /// Names this receive of it to its queue.
    #[serde(default, rename = "receiptHandle")]
    pub receipt: String,
    /// The ARN of its queue.
    #[serde(default, rename = "eventSourceARN")]
    pub queue: String,
    /// What its queue says of it.
    #[serde(default)]
    pub attributes: Attributes,
}

/// What a queue says of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Attributes {
    /// How often it was received, as a text.
    #[serde(default, rename = "ApproximateReceiveCount")]
    pub receives: String,
}

/// The messages that are to come again; the others are done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Failures {
    #[serde(rename = "batchItemFailures")]
    failures: Vec<Failure>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Failure {
    #[serde(rename = "itemIdentifier")]
    id: String,
}

impl Failures {
    /// Whether every message is done.
    pub fn is_empty(&self) -> bool {
        self.failures.is_empty()
    }

    /// The ids of the messages that are to come again.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.failures.iter().map(|failure| failure.id.as_str())
    }

    pub(super) fn add(&mut self, record: &Record) {
        if !self.ids().any(|id| id == record.id) {
            self.failures.push(Failure { id: record.id.clone() });
        }
    }
}
