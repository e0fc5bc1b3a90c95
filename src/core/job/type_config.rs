//! The configuration of a job type: plain data in the shapes of the API.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use url::Url;

use super::{QueueName, retry::Retry, spec::KeepResult};
use crate::{
    calendar::window::Window,
    target::{Secrets, TargetConfig},
    time::Seconds,
};

/// How jobs of one kind are run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TypeConfig {
    /// The queue of its jobs (default `default`).
    pub queue: QueueName,
    /// Where its jobs go (default: the server's default target, or pull workers).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<TargetConfig>,
    /// Whether a job may be started twice (default `at_least_once`).
    pub delivery: Delivery,
    /// Most attempts (default 3, with `at_most_once` 1; 1 to 65535).
    pub max_attempts: Option<u16>,
    /// Most attempts in a row that workers hand back (`released`, `snoozed`) without progress. A
    /// further one fails as `not_delivered` and counts against `max_attempts` (default 100; 0 to
    /// 65535).
    pub max_releases: u16,
    /// Most weight of this type that runs at once.
    pub concurrency: Option<u32>,
    /// From claim to result (default 86400; 0.001 to 31536000).
    pub timeout_seconds: Seconds,
    /// How long a push target may take to answer (default 30; 0.001 to 31536000).
    pub response_timeout_seconds: Seconds,
    /// How long a lease of a pull worker lasts without a heartbeat (default 30; 0.001 to 31536000).
    pub lease_seconds: Seconds,
    /// From a job's creation to its end, at most (0.001 to 315360000).
    pub deadline_seconds: Option<Seconds>,
    /// What follows a failed attempt.
    pub retry: Retry,
    /// Other URLs that a retry strategy may choose for the next attempt, by name: at most 16, of the
    /// form of `target.url`. Headers, credentials and signature are those of `target`, which must have
    /// a `url`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub retry_targets: BTreeMap<String, String>,
    /// Its jobs' priority (default 100).
    pub priority: i32,
    /// Its jobs' weight (default 1).
    pub weight: u32,
    /// Attributes extracted from the data, at most 16: a name of 1 to 64 bytes, and a JSON pointer
    /// of at most 1024 bytes.
    pub attributes: BTreeMap<String, String>,
    /// When its jobs may start: at most 32.
    pub windows: Vec<Window>,
    /// How long a result can be read (default 86400 s; 0 to 315360000).
    pub keep_result: KeepResult,
    /// How long an ended job is kept (default 30 days; 0 to 315360000, 0 deletes it at its end).
    /// One with a correlation key is kept for `reply_wait_seconds` at least, so that a second
    /// delivery of its reply is recognised.
    pub retention_seconds: Seconds,
    /// What frees a job's slot (default `lease_end`).
    pub hold_slot_until: HoldSlotUntil,
    /// Whether a push is claimed before it is sent (default `claim`). `plain` needs a push target,
    /// `at_least_once`, `on_response_timeout: fail` and no `concurrency`.
    pub start: Start,
    /// What follows when no response comes in time (default `fail`).
    pub on_response_timeout: OnResponseTimeout,
    /// Whether a push that was under way when the server stopped is retried at its next start
    /// (default false: it keeps its slot until its response timeout, because its worker may still
    /// work or call back). True needs a push target, `at_least_once`, `hold_slot_until: lease_end`
    /// and `on_response_timeout: fail`. Without effect on AWS.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub retry_after_restart: bool,
    /// The URL that is notified when a job ends: http or https, without credentials, at most 2048
    /// bytes.
    pub callback_url: Option<Url>,
    /// The secret that signs the notifications to `callback_url`, or two during a rotation;
    /// write-only. It has the form of a target's `signing_secret`, and should differ from it.
    #[serde(skip_serializing_if = "Secrets::is_empty")]
    pub callback_signing_secret: Secrets,
    /// Passed on to the worker: at most 32, names of 1 to 128 bytes, values of at most 4096 bytes
    /// of visible ASCII. Headers that frame the request are refused, and so are credentials
    /// (`authorization`, `proxy-authorization`, `cookie`), `webhook-` and `tidegate-` ones. A
    /// header of the target has precedence.
    pub headers: BTreeMap<String, String>,
}

impl TypeConfig {
    /// The default of `max_releases`.
    pub const DEFAULT_MAX_RELEASES: u16 = 100;
}

impl Default for TypeConfig {
    fn default() -> Self {
        Self {
            queue: "default".parse().expect("the default name is valid"),
            target: None,
            delivery: Delivery::AtLeastOnce,
            max_attempts: None,
            max_releases: Self::DEFAULT_MAX_RELEASES,
            concurrency: None,
            timeout_seconds: Seconds::new(86_400),
            response_timeout_seconds: Seconds::new(30),
            lease_seconds: Seconds::new(30),
            deadline_seconds: None,
            retry: Retry::default(),
            retry_targets: BTreeMap::new(),
            priority: 100,
            weight: 1,
            attributes: BTreeMap::new(),
            windows: Vec::new(),
            keep_result: KeepResult::default(),
            retention_seconds: Seconds::new(30 * 86_400),
            hold_slot_until: HoldSlotUntil::LeaseEnd,
            start: Start::Claim,
            on_response_timeout: OnResponseTimeout::Fail,
            retry_after_restart: false,
            callback_url: None,
            callback_signing_secret: Secrets::None,
            headers: BTreeMap::new(),
        }
    }
}

/// Whether a job may be started twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// Retried until it succeeds or no attempt is left.
    #[default]
    AtLeastOnce,
    /// Started at most once. If its outcome is unknown, it ends `failed` with reason
    /// `outcome_unknown`.
    AtMostOnce,
}

/// What frees the slot of a worker without a heartbeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HoldSlotUntil {
    /// The end of its lease.
    #[default]
    LeaseEnd,
    /// A report or `timeout_seconds`, so that work which ignores its lease never overlaps the next
    /// attempt.
    Report,
}

/// Whether a push is claimed before it is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Start {
    /// Yes: the job is `running` while its target works.
    #[default]
    Claim,
    /// No: one write less for synchronous push without limits. If its queue has or had limits, a
    /// rate or a pause, a job is claimed nevertheless, because a limit counts only claimed jobs.
    ///
    /// The first limit on a queue counts the jobs that were already dispatched: the process that
    /// dispatched them claims them in its first tick under the limit. Each of several processes on
    /// one store does so in its own next tick, at most 5 s later. Until then the limit does not
    /// count the jobs of the other processes.
    Plain,
}

/// What follows when no response comes in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnResponseTimeout {
    /// The attempt failed with reason `timeout`.
    #[default]
    Fail,
    /// The attempt continues until its callback or its timeout.
    Wait,
}

/// A job type as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TypeItem {
    /// Its configuration.
    pub config: TypeConfig,
    /// Raised by every change.
    pub version: u64,
    /// Whether a request is checking for live jobs, in order to move or remove the type. An enqueue
    /// clears this mark before it adds a job, and the request is then refused.
    #[serde(default)]
    pub leaving: bool,
}
