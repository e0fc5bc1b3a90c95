//! Events, what triggers did about them, and dead letters.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidegate_core::{
    job::{JobId, TriggerName, TypeName},
    time::Timestamp,
};

use crate::{AnyValue, Problem};

/// An event, in the JSON format of CloudEvents 1.0. In addition it may have up to 32 extensions:
/// their names are small letters and digits, their values texts, whole numbers, true or false.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct CloudEvent {
    /// `1.0`.
    pub specversion: String,
    /// Its id, unique within its source; at most 1024 bytes, as every text here.
    pub id: String,
    /// Where it happened: a URI reference.
    pub source: String,
    /// What kind of thing happened.
    pub r#type: String,
    /// The subject of the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// When it happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// The media type of its data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub datacontenttype: Option<String>,
    /// The schema of its data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataschema: Option<String>,
    /// Its data, kept byte for byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<AnyValue>,
    /// Binary data, in place of `data`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<String>,
    /// Its extensions.
    #[serde(flatten)]
    #[schema(ignore)]
    pub extensions: BTreeMap<String, Value>,
}

/// The outcome of an event: one entry per trigger that matched it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Ingested {
    /// The event's id.
    pub id: String,
    /// Its source.
    pub source: String,
    /// What each trigger did, by name; empty if none matched.
    pub outcomes: Vec<Applied>,
}

/// What a trigger did about an event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Applied {
    /// The trigger.
    #[schema(value_type = String)]
    pub trigger: TriggerName,
    /// What it did.
    #[serde(flatten)]
    pub action: TriggerAction,
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum TriggerAction {
    /// A job was enqueued.
    Enqueued {
        /// The job.
        job: JobId,
        /// Its type.
        #[serde(rename = "type")]
        job_type: TypeName,
    },
    /// The job was enqueued before, by the same event.
    AlreadyEnqueued {
        /// The job.
        job: JobId,
    },
    /// The attempt of a job ended with the event's result.
    Completed {
        /// The job.
        job: JobId,
    },
    /// The job waits for a retry; the failure was recorded, and changes nothing.
    Recorded {
        /// The job.
        job: JobId,
    },
    /// The job processed the same event before.
    AlreadyProcessed {
        /// The job.
        job: JobId,
    },
    /// The job, or the attempt that the event names, had ended. Nothing was changed.
    Late {
        /// The job.
        job: JobId,
    },
    /// There is no such job yet, or its attempt has not started: the reply is kept.
    Pending {
        /// Until when it is kept.
        until: Timestamp,
    },
    /// The trigger could not handle the event: it is a dead letter, to be replayed when the trigger
    /// is fixed.
    DeadLettered {
        /// The dead letter.
        letter: String,
        /// Why.
        reason: String,
    },
    /// The event passed through too many triggers: they would form an endless loop.
    Dropped {
        /// Why.
        reason: String,
    },
}

impl TriggerAction {
    /// The value of `action` in JSON.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Enqueued { .. } => "enqueued",
            Self::AlreadyEnqueued { .. } => "already_enqueued",
            Self::Completed { .. } => "completed",
            Self::Recorded { .. } => "recorded",
            Self::AlreadyProcessed { .. } => "already_processed",
            Self::Late { .. } => "late",
            Self::Pending { .. } => "pending",
            Self::DeadLettered { .. } => "dead_lettered",
            Self::Dropped { .. } => "dropped",
        }
    }
}

/// What a trigger did. It is kept for 30 days after the latest event, over restarts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TriggerStatus {
    /// Since when it is recorded: a start of the server.
    pub since: Timestamp,
    /// How many events matched the trigger since then.
    pub matched: u64,
    /// How many of them enqueued a job.
    pub enqueued: u64,
    /// How many became dead letters.
    pub dead_letters: u64,
    /// When the latest event matched; null: none did.
    pub last_at: Option<Timestamp>,
    /// The latest events that matched, the newest first: at most 20, or as many as were requested.
    /// Those of the last seconds before a crash are missing.
    pub recent: Vec<HandledEvent>,
}

/// An event that a trigger handled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HandledEvent {
    /// When.
    pub at: Timestamp,
    /// The event.
    pub event: EventReference,
    /// What the trigger did.
    #[serde(flatten)]
    pub action: TriggerAction,
}

/// The attributes that identify an event, and its type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EventReference {
    /// Its id.
    pub id: String,
    /// Its source.
    pub source: String,
    /// What kind of thing happened.
    pub r#type: String,
}

/// What a trigger would do about an event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TriggerTrial {
    /// `enqueued`, `completed`, `unmatched` (the filter does not match the event) or
    /// `dead_lettered` (the trigger cannot map it).
    #[schema(value_type = String)]
    pub action: Cow<'static, str>,
    /// The job, as the body of `POST /v1/jobs`; for `completed` the report of a worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<AnyValue>)]
    pub job: Option<Value>,
    /// Why the event would become a dead letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The outcome of each event of a batch, in order.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EventBatch {
    /// One answer per event.
    pub results: Vec<EventResult>,
}

/// The outcome of one event of a batch.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EventResult {
    /// 200, or the status of the problem.
    pub status: u16,
    /// What each trigger did about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<Ingested>,
    /// Why it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Problem>,
}

/// The answer to one event, or to a batch.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(untagged)]
pub enum EventAnswer {
    /// To one.
    One(Ingested),
    /// To a batch.
    Batch(EventBatch),
}

/// An event that a trigger could not handle.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = DeadLetter)]
pub struct DeadLetterView {
    /// Its id here, derived from the trigger and the event.
    pub id: String,
    /// The trigger; absent if no trigger could read it as an event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trigger: Option<TriggerName>,
    /// Why the trigger could not handle it.
    pub reason: String,
    /// When.
    pub failed_at: Timestamp,
    /// The event.
    #[schema(value_type = CloudEvent)]
    pub event: AnyValue,
}

/// A page of dead letters.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct DeadLetterPage {
    /// The dead letters, in no particular order.
    pub dead_letters: Vec<DeadLetterView>,
    /// Where the next page starts; absent on the last. A page may be short, even empty, and still
    /// have a next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// What became of a dead letter that was replayed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(untagged)]
pub enum Replayed {
    /// The trigger was applied: this was done. Unless it failed again, the letter is deleted.
    Applied(TriggerAction),
    /// The trigger no longer matches it: the letter is deleted.
    Unmatched {
        /// `unmatched`.
        #[schema(value_type = String)]
        action: Cow<'static, str>,
    },
}

/// Which dead letters.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ReplayDeadLetters {
    /// Only this trigger's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trigger: Option<TriggerName>,
    /// `next_cursor` of the previous call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// What became of some dead letters.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ReplayedDeadLetters {
    /// How many are deleted: their triggers handled them, or no longer match them.
    pub replayed: u64,
    /// How many remain dead letters.
    pub remaining: u64,
    /// Where the next call starts; absent after the last letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}
