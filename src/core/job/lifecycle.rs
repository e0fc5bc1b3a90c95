//! The life of a job, as a pure state machine.
//!
//! ```text
//!                 ┌────────────── revoke, patch, move ──────────────┐
//!                 ▼                                                 │
//!   accepted ─▶ Scheduled ──Claim──▶ Running ──Succeed──▶ succeeded │
//!                 ▲  │                 │ │ └──Deadline, Fail, LeaseExpired──▶ failed (no attempts left)
//!                 │  │                 │ └──Cancel marks; its end or a forced cancel──▶ cancelled
//!                 │  └──Cancel, Expire, Deadline, Drop──▶ ended     │
//!                 └───── attempts left: Fail, LeaseExpired ◀────────┘
//!                        (SucceedLate while the next attempt waits: succeeded)
//!                        (a plugin's strategy: Scheduled until DecideRetry, then for the next attempt, or failed)
//! ```
//!
//! [`Lifecycle::apply`] is the only code that moves a job. It does no I/O and reads no clock, so every
//! store, the simulator and the dashboard agree on what may follow what. Two numbers guard it:
//! the *version*, raised by everything that makes a grant void, and the *revision*, raised by
//! every write, on which the store compares.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Spec, payload::Body, spec::KeepResult};
use crate::{calendar::window, time::Timestamp};

/// The version on which a grant is decided. PATCH, cancel of a scheduled job, revoke, retry
/// decision, retry and end raise it, and nothing else. A grant decided on an older one is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version(pub u64);

/// How often a job was written: what a conditional write compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Revision(pub u64);

/// The secret of one attempt: a worker that presents it holds the attempt.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Token(pub u128);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The event that brought a reply, by which its second delivery is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReplyId(pub u128);

/// Why a scheduled job waits for its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Waiting {
    /// For the due time it was given, or for admission once that has come.
    Due,
    /// For a window to open.
    Window {
        /// When it was due without its windows; what a change of them starts from.
        due: Timestamp,
    },
    /// For its next attempt.
    Retry,
    /// For the time that its queue's throttler set.
    Throttler,
    /// For the decision of its retry strategy about its latest attempt; no candidate until then.
    RetryDecision,
}

/// An attempt under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// The attempt's secret.
    pub token: Token,
    /// When it was claimed.
    pub started_at: Timestamp,
    /// Without a heartbeat or report by then, the lease expires.
    pub lease_until: Timestamp,
    /// After this instant the attempt fails with reason `timeout`.
    pub timeout_at: Timestamp,
    /// The name that its worker gives itself.
    pub worker: Option<String>,
    /// Whether a grant in the queue's ledger counts it.
    pub granted: bool,
    /// Cancel was requested; the response to the next heartbeat says so.
    pub cancel: bool,
    /// The latest progress that its worker reported.
    pub progress: Option<Progress>,
}

/// The progress of an attempt, as its worker reports it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Progress {
    /// 0 to 100.
    pub percent: f64,
    /// A note for people.
    pub note: Option<String>,
}

impl Eq for Progress {}

/// How a job ended.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// An attempt succeeded.
    Succeeded,
    /// Every attempt failed, or the deadline came: a dead letter. Only a replay follows it.
    Failed,
    /// It was not started in time.
    Expired,
    /// It was cancelled.
    Cancelled,
    /// The throttler, or a purge, dropped it.
    Dropped,
}

/// Where a job stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// Waits: for `run_at`, and then for admission.
    Scheduled {
        /// The earliest it may start.
        run_at: Timestamp,
        /// What for.
        waiting: Waiting,
    },
    /// An attempt is under way.
    Running(Running),
    /// Over; nothing changes it.
    Ended {
        /// When.
        at: Timestamp,
        /// How.
        outcome: Outcome,
    },
}

/// Why an attempt failed. Serialised in lower case with underscores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The worker said so.
    Failed,
    /// No result within its time.
    Timeout,
    /// Its lease ended without a heartbeat or a report.
    LeaseExpired,
    /// The call to its target broke after the request was sent.
    ConnectionLost,
    /// It never reached a worker.
    NotDelivered,
    /// It may or may not have run, and may not run twice.
    OutcomeUnknown,
    /// The job's deadline came.
    Deadline,
}

impl Reason {
    /// The reason in its serialised form.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Timeout => "timeout",
            Self::LeaseExpired => "lease_expired",
            Self::ConnectionLost => "connection_lost",
            Self::NotDelivered => "not_delivered",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::Deadline => "deadline",
        }
    }
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Why, as one of a few words.
    pub reason: Reason,
    /// For people, at most 4 KiB.
    pub message: Option<String>,
    /// What the worker sent along: JSON text, at most 16 KiB.
    pub details: Option<String>,
    /// The HTTP status that its target answered, where there was one.
    #[serde(default)]
    pub status: Option<u16>,
}

impl Failure {
    /// A failure with a reason and a message.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: Some(message.into()), details: None, status: None }
    }
}

/// One finished attempt, or a decision that ended one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// Which attempt, from 1.
    pub attempt: u16,
    /// When it was claimed.
    pub started_at: Timestamp,
    /// When its result came or it was given up.
    pub ended_at: Timestamp,
    /// `succeeded`, `failed` or `cancelled`.
    pub outcome: Outcome,
    /// What went wrong.
    pub error: Option<Failure>,
    /// When the next attempt was planned for, if one was.
    pub retry_at: Option<Timestamp>,
    /// The attempt's secret, so that a repeated report is known for one.
    pub token: Token,
    /// The event that brought the result, if one did.
    #[serde(default)]
    pub reply: Option<ReplyId>,
}

/// How many entries of history a job keeps: the first, and the latest of the rest.
pub const MAX_HISTORY: usize = 100;
/// How many replies a job knows besides those in its history.
pub const MAX_PROCESSED_REPLIES: usize = 16;
/// Most bytes of what went wrong in all of them but the latest: the older lose their details first, and then their messages. A job is one
/// record, which some stores bound, and are paid for by the kilobyte at each change.
pub const MAX_HISTORY_BYTES: usize = 64 << 10;

/// A job's state, with all that decides its future.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lifecycle {
    /// Raised by every write.
    pub revision: Revision,
    /// Raised by every change that makes a grant void.
    pub version: Version,
    /// Where it stands.
    pub state: State,
    /// Attempts started so far; only a claim raises it.
    pub attempt: u16,
    /// When its latest attempt was claimed.
    pub started_at: Option<Timestamp>,
    /// Its result, while it is kept.
    pub result: Option<ResultBody>,
    /// What went wrong last.
    pub error: Option<Failure>,
    /// What happened so far.
    pub history: Vec<AttemptRecord>,
    /// The throttler's reason for deferring it, while it waits for that time.
    #[serde(default)]
    pub deferral_reason: Option<String>,
    /// The replies that it knows besides those in its history: those that came too late for it, and what the job knew that had
    /// its correlation key before. The latest, at most [`MAX_PROCESSED_REPLIES`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processed_replies: Vec<ReplyId>,
}

/// Where a result is: the same shapes as [`Body`], serialisable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultBody {
    /// How to read the bytes.
    pub encoding: super::payload::Encoding,
    /// The bytes, unless they are an object.
    pub bytes: bytes::Bytes,
    /// The object's key and length, if they are.
    pub object: Option<(String, u32)>,
}

impl ResultBody {
    /// The result that `body` is; none if it is kept beside a job, which results never are.
    pub fn of(body: &Body) -> Option<Self> {
        match body {
            Body::Inline(payload) => Some(Self {
                encoding: payload.encoding,
                bytes: payload.bytes.clone(),
                object: None,
            }),
            Body::Object { encoding, key, len } => Some(Self {
                encoding: *encoding,
                bytes: bytes::Bytes::new(),
                object: Some((key.clone(), *len)),
            }),
            Body::Beside(_) => None,
        }
    }

    /// The result as a body.
    pub fn body(&self) -> Body {
        match &self.object {
            Some((key, len)) => {
                Body::Object { encoding: self.encoding, key: key.clone(), len: *len }
            }
            None => Body::Inline(super::payload::Payload {
                encoding: self.encoding,
                bytes: self.bytes.clone(),
            }),
        }
    }
}

/// What follows a failed attempt, as its retry strategy and its windows decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryDecision {
    /// Another attempt after this long at least.
    Wait(Duration),
    /// A plugin decides: the job waits for its decision. Another attempt comes after this long at least.
    AskPlugin(Duration),
    /// Nothing: it must not be tried again.
    GiveUp,
}

/// The decision of a plugin's retry strategy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PluginRetry {
    /// Another attempt, due then; its windows apply.
    Retry(Timestamp),
    /// The end, with a message for people.
    GiveUp(Option<String>),
}

/// What may happen to a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A grant decided on `version` (or a queue that needs none) starts an attempt.
    Claim {
        /// The version the decision was made on.
        version: Version,
        /// The attempt's secret: the same token claiming again has succeeded before.
        token: Token,
        /// Who has it.
        worker: Option<String>,
        /// How long its worker may be silent.
        lease: Duration,
        /// Whether a grant counts it.
        granted: bool,
        /// The instant the decision was made at: due then is due now.
        decided_at: Timestamp,
    },
    /// Its worker is alive, or has answered that the result comes later.
    Heartbeat {
        /// The attempt it speaks of.
        attempt: u16,
        /// The lease's new end, cut at the timeout.
        until: Timestamp,
        /// How far it is.
        progress: Option<Progress>,
    },
    /// The attempt succeeded.
    Succeed {
        /// Which.
        attempt: u16,
        /// With this.
        result: Option<ResultBody>,
    },
    /// The attempt failed.
    Fail {
        /// Which.
        attempt: u16,
        /// Why.
        failure: Failure,
        /// What its strategy says; not asked when the attempts are spent.
        next: RetryDecision,
    },
    /// The latest attempt succeeded after all, while the next one waits: there will be none.
    SucceedLate {
        /// With this.
        result: Option<ResultBody>,
    },
    /// The latest attempt is said to have failed while the next one waits for its time: recorded, and nothing else.
    FailLate {
        /// Why.
        failure: Failure,
    },
    /// No heartbeat or report came before the lease or the timeout ended.
    LeaseExpired {
        /// What its strategy says.
        next: RetryDecision,
        /// Whether it must not be started twice.
        at_most_once: bool,
    },
    /// It was started before, and its type says now that nothing may start twice.
    MustNotRunTwice,
    /// A grant was not claimed in time: void it, and let the job ask again.
    Revoke {
        /// The version it was granted at.
        version: Version,
    },
    /// It waits for another time: a window closed, or the throttler said so.
    Move {
        /// The version the decision was made on.
        version: Version,
        /// Its new due time.
        run_at: Timestamp,
        /// What for.
        waiting: Waiting,
        /// Why, for people.
        reason: Option<String>,
    },
    /// Its retry strategy said what follows its latest attempt.
    DecideRetry {
        /// The version it was asked about.
        version: Version,
        /// What it said.
        plan: PluginRetry,
    },
    /// Somebody changed it: what it is (the spec that is given is the new one), or its due time, or both. It is moved
    /// into its windows.
    Patch {
        /// The new due time; in the past means now.
        run_at: Option<Timestamp>,
    },
    /// A caller cancels it.
    Cancel {
        /// At once, even while it runs.
        force: bool,
    },
    /// The throttler or a purge drops it.
    Drop {
        /// Why, for people.
        reason: String,
    },
    /// `expires_at` has come.
    Expire,
    /// `deadline_at` has come.
    Deadline,
    /// Its result was taken, or its time is over.
    ForgetResult,
}

/// An answer, not a fault: the event cannot follow the state, and repeating it cannot help.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("cannot happen to a job that is {}, attempt {attempt}", word(state))]
pub struct Refused {
    /// Where the job stands.
    pub state: State,
    /// Its latest attempt.
    pub attempt: u16,
}

/// The word of SPEC for a state.
pub fn word(state: &State) -> &'static str {
    match state {
        State::Scheduled { .. } => "scheduled",
        State::Running(_) => "running",
        State::Ended { outcome, .. } => match outcome {
            Outcome::Succeeded => "succeeded",
            Outcome::Failed => "failed",
            Outcome::Expired => "expired",
            Outcome::Cancelled => "cancelled",
            Outcome::Dropped => "dropped",
        },
    }
}

impl Lifecycle {
    /// The life of a job that was just accepted.
    pub fn new(run_at: Timestamp, waiting: Waiting) -> Self {
        Self {
            revision: Revision(1),
            version: Version(1),
            state: State::Scheduled { run_at, waiting },
            attempt: 0,
            started_at: None,
            result: None,
            error: None,
            history: Vec::new(),
            deferral_reason: None,
            processed_replies: Vec::new(),
        }
    }

    /// Where `event`, happening at `now`, takes a job that is `spec`.
    ///
    /// A result must name the running attempt and a claim the version its grant was decided on,
    /// so a late report or a claim under a revoked grant is refused.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate_core::{
    ///     job::{
    ///         Event, JobOptions, Lifecycle, Outcome, Token, Version,
    ///         lifecycle::Waiting, type_config::TypeConfig,
    ///     },
    ///     time::Timestamp,
    /// };
    ///
    /// let now = Timestamp::EPOCH;
    /// let spec = JobOptions::default().resolve(&"mail".parse()?, &TypeConfig::default(), now);
    /// let claim = Event::Claim {
    ///     version: Version(1),
    ///     token: Token(7),
    ///     worker: None,
    ///     lease: Duration::from_secs(30),
    ///     granted: false,
    ///     decided_at: now,
    /// };
    /// let running = Lifecycle::new(now, Waiting::Due).apply(&spec, claim, now)?;
    /// assert_eq!(running.attempt, 1);
    ///
    /// // A result must name the running attempt.
    /// let late = Event::Succeed { attempt: 2, result: None };
    /// assert!(running.apply(&spec, late, now).is_err());
    /// let report = Event::Succeed { attempt: 1, result: None };
    /// let ended = running.apply(&spec, report, now)?;
    /// assert_eq!(ended.ended(), Some(Outcome::Succeeded));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Refused`] if `event` cannot follow the current state.
    #[allow(clippy::result_large_err, reason = "what it returns otherwise is larger")]
    pub fn apply(&self, spec: &Spec, event: Event, now: Timestamp) -> Result<Self, Refused> {
        use {Event as E, State as S};
        let mut life = self.clone();
        life.revision.0 += 1;
        match (&self.state, event) {
            (
                S::Scheduled { run_at, waiting },
                E::Claim { version, token, worker, lease, granted, decided_at },
            ) if version == self.version
                && *waiting != Waiting::RetryDecision
                && *run_at <= now.max(decided_at)
                && spec.expires_at.into_iter().chain(spec.deadline_at).all(|end| now < end) =>
            {
                life.attempt += 1;
                life.deferral_reason = None;
                life.started_at = Some(now);
                let timeout_at = now + spec.timeout.duration();
                let lease_until = (now + lease).min(timeout_at);
                let running = Running {
                    token,
                    started_at: now,
                    lease_until,
                    timeout_at,
                    worker,
                    granted,
                    cancel: false,
                    progress: None,
                };
                life.state = S::Running(running);
                return Ok(life);
            }
            (S::Running(run), E::Heartbeat { attempt, until, progress })
                if attempt == self.attempt =>
            {
                let mut run = run.clone();
                run.lease_until = until.max(run.lease_until).min(run.timeout_at);
                run.progress = progress.or(run.progress);
                life.state = S::Running(run);
                return Ok(life);
            }
            (S::Running(run), E::Cancel { force: false }) => {
                life.state = S::Running(Running { cancel: true, ..run.clone() });
                return Ok(life);
            }
            (S::Scheduled { run_at, .. }, E::FailLate { failure }) if self.attempt > 0 => {
                life.record_late(now, Outcome::Failed, Some(failure), Some(*run_at));
                return Ok(life);
            }
            (S::Ended { .. }, E::ForgetResult) => {
                life.result = None;
                return Ok(life);
            }
            (S::Running(run), E::Succeed { attempt, result }) if attempt == self.attempt => {
                // The history keeps what became of the attempt, even when nobody wants the job any more.
                let outcome = if run.cancel { Outcome::Cancelled } else { Outcome::Succeeded };
                life.record(run, now, Outcome::Succeeded, None, None);
                life.error = None;
                life.result =
                    if spec.keep_result == KeepResult::None || run.cancel { None } else { result };
                life.end(now, outcome);
            }
            (S::Scheduled { .. }, E::SucceedLate { result }) if self.attempt > 0 => {
                life.record_late(now, Outcome::Succeeded, None, None);
                life.error = None;
                life.result = if spec.keep_result == KeepResult::None { None } else { result };
                life.end(now, Outcome::Succeeded);
            }
            (S::Running(run), E::Fail { attempt, failure, next }) if attempt == self.attempt => {
                life.fail(run, spec, failure, next, now);
            }
            (S::Running(run), E::LeaseExpired { next, at_most_once }) if run.lease_until <= now => {
                let failure = if at_most_once {
                    Failure::new(
                        Reason::OutcomeUnknown,
                        "its worker was not heard of; it may have run, and must not run twice",
                    )
                } else if run.timeout_at <= now {
                    Failure::new(
                        Reason::Timeout,
                        format!("no result within {} s", spec.timeout.as_f64()),
                    )
                } else {
                    Failure::new(
                        Reason::LeaseExpired,
                        "its worker was not heard of until the lease ended",
                    )
                };
                life.fail(
                    run,
                    spec,
                    failure,
                    if at_most_once { RetryDecision::GiveUp } else { next },
                    now,
                );
            }
            (S::Running(run), E::Cancel { force: true }) => {
                life.record(run, now, Outcome::Cancelled, None, None);
                life.end(now, Outcome::Cancelled);
            }
            (S::Running(run), E::Deadline) if spec.deadline_at.is_some_and(|at| at <= now) => {
                let failure = Failure::new(Reason::Deadline, "its deadline came while it ran");
                life.record(run, now, Outcome::Failed, Some(failure.clone()), None);
                life.error = Some(failure);
                life.end(now, Outcome::Failed);
            }
            (S::Scheduled { .. }, E::Deadline) if spec.deadline_at.is_some_and(|at| at <= now) => {
                life.error =
                    Some(Failure::new(Reason::Deadline, "its deadline came while it waited"));
                life.end(now, Outcome::Failed);
            }
            (S::Scheduled { .. }, E::MustNotRunTwice) if self.attempt > 0 => {
                life.error = Some(Failure::new(
                    Reason::OutcomeUnknown,
                    "it was started before its type became one whose jobs start once at most",
                ));
                life.end(now, Outcome::Failed);
            }
            (S::Scheduled { .. }, E::Expire) if spec.expires_at.is_some_and(|at| at <= now) => {
                life.end(now, Outcome::Expired);
            }
            (S::Scheduled { .. }, E::Cancel { .. }) => life.end(now, Outcome::Cancelled),
            (S::Scheduled { .. }, E::Drop { reason }) => {
                life.error = Some(Failure::new(Reason::Failed, reason));
                life.end(now, Outcome::Dropped);
            }
            (S::Scheduled { run_at, waiting }, E::Revoke { version })
                if version == self.version =>
            {
                life.state = S::Scheduled { run_at: *run_at, waiting: *waiting };
            }
            (S::Scheduled { waiting: was, .. }, E::Move { version, run_at, waiting, reason })
                if version == self.version && *was != Waiting::RetryDecision =>
            {
                life.state = S::Scheduled { run_at, waiting };
                life.deferral_reason = reason;
            }
            (
                S::Scheduled { run_at, waiting: Waiting::RetryDecision },
                E::DecideRetry { version, plan },
            ) if version == self.version => {
                match plan {
                    PluginRetry::Retry(at) => {
                        // What the target asked for stands, whatever the strategy says.
                        let run_at = window::next_opening(&spec.windows, at.max(*run_at).max(now));
                        life.state = S::Scheduled { run_at, waiting: Waiting::Retry };
                        if let Some(entry) = life.history.last_mut() {
                            entry.retry_at = Some(run_at);
                        }
                    }
                    PluginRetry::GiveUp(message) => {
                        if let (Some(error), Some(_)) = (&mut life.error, &message) {
                            error.message = message;
                        }
                        life.end(now, Outcome::Failed);
                    }
                }
            }
            (S::Scheduled { run_at: was, waiting }, E::Patch { run_at: wanted }) => {
                // What it was due for before a window made it wait longer.
                let (asked, windowed) = match waiting {
                    Waiting::Window { due } => (*due, true),
                    _ => (*was, false),
                };
                // A new due time in the past means now; the old one keeps its place in the order.
                let asked = wanted.map_or(asked, |at| at.max(now));
                let due = asked.max(now);
                let opening = window::next_opening(&spec.windows, due);
                life.state = if *waiting == Waiting::RetryDecision && wanted.is_none() {
                    S::Scheduled { run_at: *was, waiting: Waiting::RetryDecision }
                } else if opening > due {
                    S::Scheduled { run_at: opening, waiting: Waiting::Window { due: asked } }
                } else if wanted.is_some() {
                    S::Scheduled { run_at: asked, waiting: Waiting::Due }
                } else if windowed {
                    S::Scheduled { run_at: due.min(*was), waiting: Waiting::Due }
                } else {
                    S::Scheduled { run_at: *was, waiting: *waiting }
                };
            }
            _ => {
                return Err(Refused { state: self.state.clone(), attempt: self.attempt });
            }
        }
        life.version.0 += 1;
        if !matches!(life.state, S::Scheduled { waiting: Waiting::Throttler, .. }) {
            life.deferral_reason = None;
        }
        Ok(life)
    }

    /// Ends the running attempt as failed: another one if that is allowed, else the end.
    fn fail(
        &mut self,
        run: &Running,
        spec: &Spec,
        failure: Failure,
        next: RetryDecision,
        now: Timestamp,
    ) {
        self.error = Some(failure.clone());
        let retry_at = match next {
            RetryDecision::Wait(wait) if !run.cancel && self.attempt < spec.max_attempts => {
                Some(window::next_opening(&spec.windows, now + wait))
            }
            RetryDecision::AskPlugin(wait) if !run.cancel && self.attempt < spec.max_attempts => {
                self.record(run, now, Outcome::Failed, Some(failure), None);
                self.state =
                    State::Scheduled { run_at: now + wait, waiting: Waiting::RetryDecision };
                return;
            }
            _ => None,
        };
        self.record(run, now, Outcome::Failed, Some(failure), retry_at);
        match retry_at {
            Some(run_at) => self.state = State::Scheduled { run_at, waiting: Waiting::Retry },
            None => self.end(now, if run.cancel { Outcome::Cancelled } else { Outcome::Failed }),
        }
    }

    fn end(&mut self, at: Timestamp, outcome: Outcome) {
        self.state = State::Ended { at, outcome };
    }

    fn record(
        &mut self,
        run: &Running,
        ended_at: Timestamp,
        outcome: Outcome,
        error: Option<Failure>,
        retry_at: Option<Timestamp>,
    ) {
        let (attempt, token) = (self.attempt, run.token);
        self.enter(AttemptRecord {
            attempt,
            started_at: run.started_at,
            ended_at,
            outcome,
            error,
            retry_at,
            token,
            reply: None,
        });
    }

    /// Records what is heard of the latest attempt after it was over.
    fn record_late(
        &mut self,
        at: Timestamp,
        outcome: Outcome,
        error: Option<Failure>,
        retry_at: Option<Timestamp>,
    ) {
        let token = self.history.last().map_or(Token(0), |entry| entry.token);
        let (attempt, started_at) = (self.attempt, self.started_at.unwrap_or(at));
        self.enter(AttemptRecord {
            attempt,
            started_at,
            ended_at: at,
            outcome,
            error,
            retry_at,
            token,
            reply: None,
        });
    }

    fn enter(&mut self, entry: AttemptRecord) {
        if self.history.len() >= MAX_HISTORY {
            self.history.remove(1);
        }
        self.history.push(entry);
        let Some((_, older)) = self.history.split_last_mut() else {
            return;
        };
        let said = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let mut bytes: usize = older
            .iter()
            .filter_map(|entry| entry.error.as_ref())
            .map(|error| said(&error.details) + said(&error.message))
            .sum();
        for part in
            [|error: &mut Failure| error.details.take(), |error: &mut Failure| error.message.take()]
        {
            for error in older.iter_mut().filter_map(|entry| entry.error.as_mut()) {
                if bytes <= MAX_HISTORY_BYTES {
                    return;
                }
                bytes -= said(&part(error));
            }
        }
    }

    /// Notes that what happened last was said by `reply`.
    pub fn record_reply(&mut self, reply: ReplyId) {
        if let Some(entry) = self.history.last_mut() {
            entry.reply = Some(reply);
        }
    }

    /// Notes that `reply` came too late. Nothing else of it changes, and so it may happen to a job that has ended.
    pub fn record_late_reply(&mut self, reply: ReplyId) {
        self.processed_replies.push(reply);
        self.forget_oldest();
    }

    /// Takes over what the job knows that had its correlation key before: a second delivery of its answer says nothing of this one.
    pub fn inherit_replies(&mut self, before: &Self) {
        let answers = before.history.iter().filter_map(|entry| entry.reply);
        self.processed_replies.extend(before.processed_replies.iter().copied().chain(answers));
        self.forget_oldest();
    }

    fn forget_oldest(&mut self) {
        self.processed_replies
            .drain(..self.processed_replies.len().saturating_sub(MAX_PROCESSED_REPLIES));
    }

    /// Whether `reply` was processed before, by this job or by one that had its correlation key before.
    pub fn has_processed(&self, reply: ReplyId) -> bool {
        self.processed_replies.contains(&reply)
            || self.history.iter().any(|entry| entry.reply == Some(reply))
    }

    /// When a job that is `spec` needs attention without a request: it expires, its
    /// deadline comes, its lease ends without a grant to watch it, its result or itself is dropped.
    pub fn wake_at(&self, spec: &Spec) -> Option<Timestamp> {
        match &self.state {
            State::Scheduled { run_at, waiting } => {
                // The sweep finds a job that waits for a retry decision; no tick does.
                let failed_at = || self.history.last().map_or(*run_at, |entry| entry.ended_at);
                let decision = (*waiting == Waiting::RetryDecision).then(failed_at);
                spec.expires_at.into_iter().chain(spec.deadline_at).chain(decision).min()
            }
            State::Running(run) => {
                let lease = (!run.granted).then_some(run.lease_until);
                spec.deadline_at.into_iter().chain(lease).min()
            }
            State::Ended { at, .. } => {
                self.result_until(spec).into_iter().chain([*at + spec.retention.duration()]).min()
            }
        }
    }

    /// How long the result of a job that is `spec` is kept, if it ended with one.
    pub fn result_until(&self, spec: &Spec) -> Option<Timestamp> {
        let State::Ended { at, .. } = &self.state else {
            return None;
        };
        self.result.is_some().then(|| match spec.keep_result {
            KeepResult::None => *at,
            KeepResult::Once => *at + Duration::from_hours(1),
            KeepResult::For(seconds) => *at + seconds.duration(),
        })
    }

    /// Whether it waits for its retry strategy to be asked.
    pub fn awaits_retry_decision(&self) -> bool {
        matches!(self.state, State::Scheduled { waiting: Waiting::RetryDecision, .. })
    }

    /// The due time of a scheduled job.
    pub fn run_at(&self) -> Option<Timestamp> {
        match self.state {
            State::Scheduled { run_at, .. } => Some(run_at),
            _ => None,
        }
    }

    /// The attempt under way.
    pub fn running(&self) -> Option<&Running> {
        match &self.state {
            State::Running(run) => Some(run),
            _ => None,
        }
    }

    /// Whether nothing can change it any more.
    pub fn ended(&self) -> Option<Outcome> {
        match self.state {
            State::Ended { outcome, .. } => Some(outcome),
            _ => None,
        }
    }
}
