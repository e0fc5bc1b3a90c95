//! The events and answers of functions that SQS invokes. Only the fields in use are declared.

use serde::{Deserialize, Serialize};

/// Messages of a queue. An event without messages requests maintenance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct SqsEvent {
    /// The messages.
    #[serde(default, rename = "Records")]
    pub records: Vec<SqsRecord>,
    /// What an event without messages requests.
    #[serde(default, rename = "tidegate")]
    pub request: String,
}

/// A message of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct SqsRecord {
    /// The id that names the message in the answer.
    #[serde(rename = "messageId")]
    pub id: String,
    /// The content.
    pub body: String,
    /// The handle of this receive.
    #[serde(default, rename = "receiptHandle")]
    pub receipt: String,
    /// The ARN of its queue.
    #[serde(default, rename = "eventSourceARN")]
    pub queue: String,
    /// Metadata of the queue.
    #[serde(default)]
    pub attributes: MessageAttributes,
}

/// The metadata of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct MessageAttributes {
    /// How often it was received, as decimal digits.
    #[serde(default, rename = "ApproximateReceiveCount")]
    pub receives: String,
}

/// The messages that SQS must redeliver; the others are done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Failures {
    #[serde(rename = "batchItemFailures")]
    failures: Vec<BatchItemFailure>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct BatchItemFailure {
    #[serde(rename = "itemIdentifier")]
    id: String,
}

impl Failures {
    /// Whether every message is done.
    pub fn is_empty(&self) -> bool {
        self.failures.is_empty()
    }

    /// The ids of the messages that SQS must redeliver.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.failures.iter().map(|failure| failure.id.as_str())
    }

    pub(super) fn add(&mut self, record: &SqsRecord) {
        if !self.ids().any(|id| id == record.id) {
            self.failures.push(BatchItemFailure { id: record.id.clone() });
        }
    }
}
