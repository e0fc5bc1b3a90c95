//! Decisions that the user's own code makes: a throttler's on candidates, a retry strategy's on a failure.
//!
//! A policy is a pure function of its call: whoever has the call can ask again and gets the same answer. It is
//! bounded in time and memory, and never takes the engine down: what goes wrong in it is a [`Fault`].

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use serde::{Serialize, Serializer};

use crate::{
    job::{Attributes, Job, JobId, Payload, PluginName, QueueName, TypeName, payload::MAX_DEPTH},
    queue::{
        Grant, GrantBatch,
        ledger::Bits,
        plugin::{PluginVersion, Role},
    },
    time::Timestamp,
};

/// How far ahead of its call an answer may name a time.
pub const AHEAD: Duration = Duration::from_hours(366 * 24);
/// Bytes of a decision's reason that are kept.
pub const REASON_BYTES: usize = 200;
/// Bytes of a message for people that are kept.
pub const MESSAGE_BYTES: usize = 2000;
/// Bytes of candidates' data, as they were sent, in one call; a single candidate may have more.
pub const DATA_BYTES: usize = 16 << 20;

/// A plugin in one of its versions.
#[derive(Clone, Debug, PartialEq)]
pub struct Plugin {
    /// Its name.
    pub name: PluginName,
    /// Which version.
    pub version: Arc<PluginVersion>,
}

/// A throttler's small memory, by key: at most 64 keys of 128 bytes, 16 KiB in all.
pub type PolicyState = BTreeMap<String, String>;

/// The granted jobs of a queue at one moment, cheap to copy.
#[derive(Clone, Debug, Default)]
pub struct RunningSet {
    /// The batches that the head names, each with those of its grants that are released.
    pub batches: Vec<(Arc<GrantBatch>, Bits)>,
    /// What this round has granted so far.
    pub admitted: Arc<Vec<Grant>>,
}

impl RunningSet {
    /// The grants, the longest granted first.
    pub fn iter(&self) -> impl Iterator<Item = &Grant> {
        let stored = self.batches.iter().flat_map(|(batch, released)| {
            let grants = batch.grants.iter().enumerate();
            grants.filter(|(index, _)| !released.has(*index)).map(|(_, grant)| grant)
        });
        stored.chain(self.admitted.iter())
    }
}

/// An attempt that ended since the last round.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// Whose.
    pub id: JobId,
    /// The job's type.
    pub job_type: TypeName,
    /// The job's attributes.
    pub attributes: Attributes,
    /// Which attempt.
    pub attempt: u16,
    /// Whether it succeeded.
    pub succeeded: bool,
    /// Why it failed.
    pub reason: Option<String>,
    /// The HTTP status its target answered.
    pub status: Option<u16>,
}

/// All that a throttler's decision depends on.
#[derive(Clone, Debug)]
pub struct ThrottleCall {
    /// The queue.
    pub queue: QueueName,
    /// The round's time.
    pub now: Timestamp,
    /// For whoever needs chance.
    pub seed: u64,
    /// JSON text.
    pub config: Arc<str>,
    /// The queue's own concurrency.
    pub concurrency: Option<u32>,
    /// How many jobs workers can take now.
    pub room: u32,
    /// What runs.
    pub running: RunningSet,
    /// The candidates, in order.
    pub candidates: Vec<Job>,
    /// Attempts that ended, if the plugin declares that it wants them.
    pub ended: Arc<Vec<Ended>>,
    /// The state as it was committed last.
    pub state: Arc<PolicyState>,
    /// The candidates' data as JSON text, if the plugin declares that it wants it; no more of it than [`DATA_BYTES`].
    pub data: BTreeMap<JobId, String>,
}

/// What a throttler says of one candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// It starts.
    Run,
    /// It waits where it is, to be asked about again by then at the latest.
    Hold(Option<Timestamp>),
    /// This is its due time: after the call's, within 366 days of it.
    Reschedule(Timestamp),
    /// It ends, as dropped.
    Drop,
}

/// An action, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What is to be done.
    pub action: Action,
    /// For people: at most 200 bytes.
    pub reason: Option<String>,
}

/// What a throttler says.
#[derive(Clone, Debug, PartialEq)]
pub struct ThrottleAnswer {
    /// One per candidate, in order.
    pub decisions: Vec<Decision>,
    /// Whether candidates behind these may run too.
    pub more: bool,
    /// The new state, if it changed.
    pub state: Option<PolicyState>,
}

/// All that a retry strategy's decision depends on.
#[derive(Clone, Debug)]
pub struct RetryCall {
    /// The job's queue.
    pub queue: QueueName,
    /// The time of the decision.
    pub now: Timestamp,
    /// For whoever needs chance.
    pub seed: u64,
    /// JSON text.
    pub config: Arc<str>,
    /// The job; the last entry of its history is the failure that this is about.
    pub job: Job,
    /// The job's data as JSON text, if the plugin declares that it wants it.
    pub data: Option<String>,
    /// Its target asked not to be tried before this.
    pub not_before: Option<Timestamp>,
}

/// A call of a plugin.
#[derive(Clone, Debug)]
pub enum Call {
    /// Of a throttler.
    Throttle(Arc<ThrottleCall>),
    /// Of a retry strategy.
    Retry(Arc<RetryCall>),
}

/// What a retry strategy says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RetryAnswer {
    /// Another attempt.
    Retry {
        /// When it is due, within 366 days of the call; in the past means now.
        at: Timestamp,
        /// JSON text that replaces the job's data.
        data: Option<String>,
        /// Replaces the job's priority.
        priority: Option<i32>,
    },
    /// No more attempts, with a message for people.
    GiveUp(Option<String>),
}

/// What is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// A JSON pointer into it; empty for the whole.
    pub path: String,
    /// What it must be.
    pub message: String,
}

/// What kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// The plugin itself declined.
    Rejected,
    /// It took longer, or more instructions, than it may.
    Timeout,
    /// It wanted more memory, stack, tables or host calls than it may.
    ResourceExhausted,
    /// It trapped or panicked.
    Trapped,
    /// It answered what makes no sense.
    InvalidAnswer,
    /// It could not be loaded, or there is nothing here that runs plugins.
    Unavailable,
}

impl FaultKind {
    /// The kind's name in metrics and answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::Timeout => "timeout",
            Self::ResourceExhausted => "resource_exhausted",
            Self::Trapped => "trapped",
            Self::InvalidAnswer => "invalid_answer",
            Self::Unavailable => "unavailable",
        }
    }
}

/// Why a call gave no answer: for the plugin's author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// What kind.
    pub kind: FaultKind,
    /// A sentence for the plugin's author.
    pub message: String,
}

impl ThrottleAnswer {
    /// The answer, if it may be given to `call`, with its reasons cut to what is kept of them.
    ///
    /// # Errors
    ///
    /// [`FaultKind::InvalidAnswer`] with the decision that makes no sense, and what may be said.
    pub fn validated(mut self, call: &ThrottleCall) -> Result<Self, Fault> {
        let (offered, decided) = (call.candidates.len(), self.decisions.len());
        if offered != decided {
            return invalid(format!(
                "answered {decided} decisions for {offered} candidates: there must be one for each, in their order"
            ));
        }
        for (index, decision) in self.decisions.iter_mut().enumerate() {
            let named = match decision.action {
                Action::Hold(Some(at)) => Some((at, "holds until")),
                Action::Reschedule(at) => Some((at, "reschedules to")),
                Action::Run | Action::Hold(None) | Action::Drop => None,
            };
            if let Some((at, does)) = named {
                let said = || {
                    format!(
                        "decision {} (job {}) {does} {}",
                        index + 1,
                        call.candidates[index].id,
                        shown(at)
                    )
                };
                if at <= call.now {
                    return invalid(format!(
                        "{}, which is not after the time of the call, {}",
                        said(),
                        call.now
                    ));
                }
                soon_enough(at, call.now, said)?;
            }
            decision.reason = decision.reason.take().map(|reason| cut(reason, REASON_BYTES));
        }
        Ok(self)
    }
}

impl RetryAnswer {
    /// The answer, if it may be given to `call`, with its message cut to what is kept of it.
    ///
    /// # Errors
    ///
    /// [`FaultKind::InvalidAnswer`] with what makes no sense, and what may be said.
    pub fn sound(self, call: &RetryCall) -> Result<Self, Fault> {
        Ok(match self {
            Self::GiveUp(message) => {
                Self::GiveUp(message.map(|message| cut(message, MESSAGE_BYTES)))
            }
            Self::Retry { at, data, priority } => {
                soon_enough(at, call.now, || format!("plans the next attempt for {}", shown(at)))?;
                if let Some(Err(error)) =
                    data.as_ref().map(|data| Payload::json(data.clone()).check(MAX_DEPTH))
                {
                    return invalid(format!(
                        "replaces the data by what is no JSON text of at most {MAX_DEPTH} levels: {error}"
                    ));
                }
                Self::Retry { at, data, priority }
            }
        })
    }
}

fn invalid<T>(message: String) -> Result<T, Fault> {
    Err(Fault { kind: FaultKind::InvalidAnswer, message })
}

/// Nothing if `at` is not too far ahead of `now`. `said` names who said it.
fn soon_enough(at: Timestamp, now: Timestamp, said: impl FnOnce() -> String) -> Result<(), Fault> {
    if at > now + AHEAD {
        return invalid(format!(
            "{}, which is more than 366 days after the time of the call, {now}",
            said()
        ));
    }
    Ok(())
}

/// An instant as people read it; what no calendar has is shown as it is.
fn shown(at: Timestamp) -> String {
    if at <= Timestamp::MAX { at.to_string() } else { format!("{} ms after 1970", at.millis()) }
}

/// `text`, cut to at most `most` bytes between two letters.
pub fn cut(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.shrink_to_fit();
    }
    text
}

/// What a call is made for: as whose it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Its answer is done.
    Live,
    /// Its answer is compared with the live version's.
    Shadow,
    /// Its answer is shown to whoever asks why a job waits.
    Explain,
    /// Its answer says whether somebody may give a queue or type this configuration.
    Check,
}

impl Purpose {
    /// The purpose's name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Shadow => "shadow",
            Self::Explain => "explain",
            Self::Check => "check",
        }
    }
}

/// Runs plugins. Whoever asks holds the answer against its call once more (`sound`): not every implementation did.
#[async_trait]
pub trait Policy: Send + Sync {
    /// What the throttler `plugin` says of `call`.
    async fn throttle(
        &self,
        plugin: &Plugin,
        call: Arc<ThrottleCall>,
        purpose: Purpose,
    ) -> Result<ThrottleAnswer, Fault>;

    /// What the retry strategy `plugin` says of `call`.
    async fn retry(
        &self,
        plugin: &Plugin,
        call: Arc<RetryCall>,
        purpose: Purpose,
    ) -> Result<RetryAnswer, Fault>;

    /// What `plugin` finds wrong with a configuration (JSON text) for `role`; empty if nothing.
    async fn check(&self, plugin: &Plugin, role: Role, config: &str)
    -> Result<Vec<Problem>, Fault>;

    /// Takes note of a fault that a live call had for its asker alone, who found that the answer cannot be followed, or could not
    /// ask: it counts and is shown like every other.
    fn report_fault(&self, plugin: &Plugin, call: &Call, fault: &Fault);
}

/// Runs no plugins: every call is a fault.
#[derive(Clone, Copy, Debug)]
pub struct NoPolicy;

impl NoPolicy {
    fn fault<T>() -> Result<T, Fault> {
        Err(Fault { kind: FaultKind::Unavailable, message: "this program runs no plugins".into() })
    }
}

#[async_trait]
impl Policy for NoPolicy {
    async fn throttle(
        &self,
        _: &Plugin,
        _: Arc<ThrottleCall>,
        _: Purpose,
    ) -> Result<ThrottleAnswer, Fault> {
        Self::fault()
    }

    async fn retry(&self, _: &Plugin, _: Arc<RetryCall>, _: Purpose) -> Result<RetryAnswer, Fault> {
        Self::fault()
    }

    async fn check(&self, _: &Plugin, _: Role, _: &str) -> Result<Vec<Problem>, Fault> {
        Self::fault()
    }

    fn report_fault(&self, _: &Plugin, _: &Call, _: &Fault) {}
}

/// What one call used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Fuel; unknown when it ran out of time.
    pub fuel: Option<u64>,
    /// Time, the making of its instance included.
    #[serde(rename = "took_seconds", serialize_with = "seconds")]
    pub took: Duration,
    /// Bytes of memory at its end.
    pub memory_bytes: u64,
    /// Calls of what it imports.
    pub host_calls: u32,
}

fn seconds<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(span.as_secs_f64())
}
