//! A schedule: the jobs that it makes, when, and its progress. Plain data, and one decision on it.
//!
//! ```text
//!     skipped, or made late (`missed`)     made at their time, or as soon as possible     later
//!   ├──────────────────────────────────┤├──────────────────────────────────────────────┤├─────▶
//!   upto                         now - GRACE                                          horizon
//! ```
//!
//! A schedule stores the instant **up to** which its occurrences are done. The next step follows
//! from that instant and its rule alone. So nothing drifts, and the same decision is made after a
//! crash.

mod ids;
#[cfg(test)]
mod tests;

use std::time::Duration;

use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use self::ids::{occurrence_id, run_id};
use crate::calendar::{
    recurrence::{Cron, Recurrence, RecurrenceRule},
    window::Zone,
};
use crate::{
    job::{
        Encoding, JobId, Payload, ScheduleName, TypeName,
        options::{JobOptions, Split},
    },
    stored::UnknownNames,
    time::{Seconds, Timestamp},
};

/// How late an occurrence may be without counting as missed.
pub(crate) const GRACE: Duration = Duration::from_mins(1);
/// How far a schedule may be ahead of the clock. Beyond this, the clock is assumed to have been
/// wrong.
pub const FAR_AHEAD: Duration = Duration::from_hours(1);
/// Most schedules of a server.
pub const MAX_SCHEDULES: usize = 10_000;
/// Most bytes of a schedule's data.
pub const SCHEDULE_DATA_BYTES: usize = 64 << 10;
/// Most missed occurrences that still make jobs.
pub(crate) const MAX_MISSED: u32 = 1000;
/// Most occurrences of one step that are counted as skipped.
pub const COUNTED: usize = 1000;

/// When a schedule occurs, and the job that each occurrence makes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct ScheduleConfig {
    /// The type of its jobs.
    #[serde(rename = "type")]
    pub job_type: TypeName,
    /// A cron pattern: minute, hour, day of the month, month, day of the week; or those after a
    /// second. At most 256 bytes. Either this or `every_seconds` must be given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub cron: Option<Cron>,
    /// The IANA name of the time zone of `cron` (default UTC).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub tz: Option<Zone>,
    /// The span from one occurrence to the next (1 to 31536000).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_seconds: Option<Seconds>,
    /// An instant from which every occurrence is a multiple of `every_seconds` away (default
    /// `starts_at`, else the epoch).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anchor: Option<Timestamp>,
    /// No occurrence before this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<Timestamp>,
    /// No occurrence after this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<Timestamp>,
    /// What follows for occurrences that are over a minute late (default `one`).
    #[serde(default)]
    pub missed: Missed,
    /// With `missed: all`, how many of the latest missed occurrences make jobs (default 100; 1 to
    /// 1000).
    #[serde(default = "usual_missed")]
    pub max_missed: u32,
    /// Whether nothing occurs. Occurrences during the pause make no jobs later. A PUT without it
    /// leaves a schedule paused or not, as it is; the default of a new one is false.
    #[serde(default)]
    pub paused: bool,
    /// Most time between an occurrence and the start of its job (0.001 to 315360000).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_after_seconds: Option<Seconds>,
    /// The options of its jobs.
    #[serde(flatten, skip_deserializing)]
    #[schema(ignore)]
    pub options: JobOptions,
}

impl<'de> Deserialize<'de> for ScheduleConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut options = JobOptions::default();
        let config = Self::deserialize(Split::new(deserializer, &mut options))?;
        Ok(Self { options, ..config })
    }
}

impl Serialize for ScheduleConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

fn usual_missed() -> u32 {
    100
}

/// What follows for occurrences that are over a minute late, because the server was down or the
/// type did not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Missed {
    /// No job.
    Skip,
    /// One job for all of them, with the instant of the latest.
    #[default]
    One,
    /// One job for each of the latest `max_missed` of them.
    All,
}

impl ScheduleConfig {
    /// A schedule of jobs of `job_type` by a cron pattern in UTC, with defaults otherwise.
    pub fn cron(job_type: TypeName, cron: Cron) -> Self {
        Self { cron: Some(cron), every_seconds: None, ..Self::every(job_type, Seconds::default()) }
    }

    /// A schedule of a job of `job_type` every `span`, with defaults otherwise.
    pub fn every(job_type: TypeName, span: Seconds) -> Self {
        Self {
            job_type,
            cron: None,
            tz: None,
            every_seconds: Some(span),
            anchor: None,
            starts_at: None,
            ends_at: None,
            missed: Missed::default(),
            max_missed: usual_missed(),
            paused: false,
            expires_after_seconds: None,
            options: JobOptions::default(),
        }
    }

    /// The same schedule after `set` has changed the options of its jobs.
    #[must_use]
    pub fn with_options(mut self, set: impl FnOnce(&mut JobOptions)) -> Self {
        set(&mut self.options);
        self
    }

    /// When it occurs; none while it is paused, or without a pattern and a span, which checks
    /// refuse.
    pub fn recurrence(&self) -> Option<Recurrence> {
        let (starts_at, ends_at) = (self.starts_at, self.ends_at);
        let rule = match (&self.cron, self.every_seconds) {
            (Some(cron), _) => RecurrenceRule::Cron(cron.clone(), self.tz.unwrap_or_default()),
            (None, Some(span)) => RecurrenceRule::Every {
                span,
                anchor: self.anchor.or(starts_at).unwrap_or(Timestamp::EPOCH),
            },
            (None, None) => return None,
        };
        Some(Recurrence { rule, starts_at, ends_at }).filter(|_| !self.paused)
    }

    /// How many missed occurrences make jobs.
    fn made_up_for(&self) -> usize {
        match self.missed {
            Missed::Skip => 0,
            Missed::One => 1,
            Missed::All => self.max_missed as usize,
        }
    }
}

/// A schedule as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScheduleItem {
    /// Its configuration.
    pub config: ScheduleConfig,
    /// The data of its jobs.
    #[serde(with = "stored")]
    pub data: Payload,
    /// Raised by every change.
    pub version: u64,
    /// The version at which it restarted: it was created, its rule changed, it was paused or
    /// resumed, or jobs made ahead had to be replaced. Its jobs store this number, which
    /// distinguishes them from earlier ones.
    pub rule: u64,
    /// When it restarted: only later occurrences count.
    pub since: Timestamp,
    /// The previous configuration, whose jobs made ahead are being removed. Until they are, nothing
    /// occurs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced: Option<Box<Replaced>>,
}

/// A schedule as it was before its jobs made ahead had to be removed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Replaced {
    /// Its configuration.
    pub config: ScheduleConfig,
    /// The data of its jobs.
    #[serde(with = "stored")]
    pub data: Payload,
    /// The rule number of these jobs.
    pub rule: u64,
    /// Occurrences up to this one were done.
    pub upto: Timestamp,
    /// Whether the schedule is removed: its item stays only until its jobs are removed.
    pub removed: bool,
}

/// The progress of a schedule. Stored separately, because it changes with every occurrence.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScheduleState {
    /// The rule number that `upto` belongs to.
    pub rule: u64,
    /// Occurrences up to this one are done.
    pub upto: Timestamp,
    /// The latest occurrence that made a job or found its job stored already.
    pub last_occurrence: Option<Timestamp>,
    /// That job.
    pub last_job: Option<JobId>,
    /// Why the next occurrence has not made a job yet.
    pub last_error: Option<ScheduleError>,
    /// How many missed occurrences made no job; at most 1000 are counted in one step.
    pub missed: u64,
    /// The fields that a newer release added.
    #[serde(flatten)]
    pub unknown: UnknownNames,
}

/// Why an occurrence makes no job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ScheduleError {
    /// The occurrence.
    pub occurrence: Timestamp,
    /// When it first failed with this error.
    pub at: Timestamp,
    /// The reason, for people.
    pub message: String,
}

/// What a schedule does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The occurrence that makes a job; none if the step only skips missed ones.
    pub occurrence: Option<Timestamp>,
    /// How many earlier occurrences are skipped, at most [`COUNTED`].
    pub skipped: u64,
    /// Occurrences up to this one are done after the step.
    pub upto: Timestamp,
}

impl ScheduleItem {
    /// The current state, given the stored one: after a change of the rule it restarts at `since`.
    pub fn state(&self, stored: ScheduleState) -> ScheduleState {
        let upto = if stored.rule == self.rule { stored.upto } else { self.since };
        ScheduleState { rule: self.rule, upto, ..stored }
    }

    /// When it occurs; none while it is paused, or while replaced jobs are being removed.
    pub fn recurrence(&self) -> Option<Recurrence> {
        self.config.recurrence().filter(|_| self.replaced.is_none())
    }

    /// The latest `most` occurrences until `now` since it was created or restarted, newest first.
    /// Missed ones among them may have made no job.
    pub fn previous(&self, state: &ScheduleState, now: Timestamp, most: usize) -> Vec<Timestamp> {
        let running = ScheduleConfig { paused: false, ..self.config.clone() };
        let recurrence = running.recurrence();
        let latest =
            |recurrence: Recurrence| recurrence.latest(self.since, state.upto.min(now), most);
        let mut previous = recurrence.map(latest).unwrap_or_default();
        previous.reverse();
        previous
    }

    /// Whether it is removed, and its item stays only until its jobs are removed.
    pub fn is_removed(&self) -> bool {
        self.replaced.as_ref().is_some_and(|replaced| replaced.removed)
    }

    /// The next step at `now`, if occurrences up to `upto` are done and those up to `horizon` are
    /// due.
    ///
    /// None if there is nothing to do.
    pub fn step(&self, upto: Timestamp, now: Timestamp, horizon: Timestamp) -> Option<Step> {
        let recurrence = self.recurrence()?;
        let first = recurrence.after(upto).filter(|first| *first <= horizon)?;
        // The latest instant at which an occurrence is missed.
        let missed = now - GRACE - Duration::from_millis(1);
        if first > missed {
            return Some(Step { occurrence: Some(first), skipped: 0, upto: first });
        }
        let made_up_for =
            recurrence.latest(upto, missed, self.config.made_up_for()).first().copied();
        let passed = made_up_for.unwrap_or(missed + Duration::from_millis(1));
        let skipped =
            recurrence.all_after(upto).take_while(|at| *at < passed).take(COUNTED).count() as u64;
        let occurrence =
            made_up_for.or_else(|| recurrence.after(missed).filter(|next| *next <= horizon));
        Some(Step { occurrence, skipped, upto: occurrence.unwrap_or(missed) })
    }
}

impl ScheduleState {
    /// The state after `step` has succeeded.
    #[must_use]
    pub fn after(&self, schedule: &ScheduleName, step: Step) -> Self {
        let last_job = step.occurrence.map(|at| occurrence_id(schedule, at));
        Self {
            rule: self.rule,
            upto: step.upto,
            last_occurrence: step.occurrence.or(self.last_occurrence),
            last_job: last_job.or_else(|| self.last_job.clone()),
            last_error: None,
            missed: self.missed + step.skipped,
            unknown: self.unknown.clone(),
        }
    }

    /// The state after `occurrence` failed to make a job at `now`; none if the state shows this
    /// error already.
    pub fn failed(&self, occurrence: Timestamp, message: &str, now: Timestamp) -> Option<Self> {
        let known = |last: &ScheduleError| last.occurrence == occurrence && last.message == message;
        if self.last_error.as_ref().is_some_and(known) {
            return None;
        }
        Some(Self {
            last_error: Some(ScheduleError { occurrence, at: now, message: message.to_owned() }),
            ..self.clone()
        })
    }
}

/// The stored form of a payload in an item, which is JSON: JSON text is readable, MessagePack is
/// base64.
mod stored {
    use serde::{Deserializer, Serializer, de::Error as _};

    use super::{BASE64, Deserialize, Encoding, Payload, Serialize};
    use base64::Engine as _;

    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Stored {
        Json(String),
        MsgPack(String),
    }

    pub fn serialize<S: Serializer>(payload: &Payload, serializer: S) -> Result<S::Ok, S::Error> {
        let stored = match payload.encoding {
            Encoding::Json => Stored::Json(String::from_utf8_lossy(&payload.bytes).into_owned()),
            Encoding::MessagePack => Stored::MsgPack(BASE64.encode(&payload.bytes)),
        };
        stored.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Payload, D::Error> {
        Ok(match Stored::deserialize(deserializer)? {
            Stored::Json(text) => Payload::json(text),
            Stored::MsgPack(text) => {
                let bytes = BASE64.decode(text).map_err(D::Error::custom)?;
                Payload { encoding: Encoding::MessagePack, bytes: bytes.into() }
            }
        })
    }
}
