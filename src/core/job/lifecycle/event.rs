//! What may happen to a job, and the refusal of what may not.

use std::time::Duration;

use super::{Failure, HandBack, Progress, ResultBody, State, Token, Version, Waiting, word};
use crate::{job::JobId, time::Timestamp};

/// What follows a failed attempt, as the retry strategy decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryDecision {
    /// Another attempt, after this wait at least.
    Wait(Duration),
    /// A plugin decides. Another attempt comes after this wait at least.
    AskPlugin(Duration),
    /// No further attempt.
    GiveUp,
}

/// The decision of a retry plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PluginRetry {
    /// Another attempt at this time, moved into the job's windows.
    Retry(Timestamp),
    /// The end, with a message for people.
    GiveUp(Option<String>),
}

/// What may happen to a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A grant decided on `version`, or a queue without a ledger, starts an attempt.
    Claim {
        /// The version that the decision was made on.
        version: Version,
        /// The attempt's secret. If the running attempt already has it, the claim succeeded before.
        token: Token,
        /// The worker's name.
        worker: Option<String>,
        /// How long the lease lasts without a heartbeat.
        lease: Duration,
        /// Whether a grant counts it.
        granted: bool,
        /// When the decision was made. A job that was due then is due now.
        decided_at: Timestamp,
    },
    /// The worker is alive, or the target answered that the result comes later.
    Heartbeat {
        /// The attempt that the heartbeat names.
        attempt: u16,
        /// The lease's new end, cut at the timeout.
        until: Timestamp,
        /// The progress, if reported.
        progress: Option<Progress>,
    },
    /// The attempt succeeded.
    Succeed {
        /// The attempt that the report names.
        attempt: u16,
        /// Its result.
        result: Option<ResultBody>,
    },
    /// The attempt failed.
    Fail {
        /// The attempt that the report names.
        attempt: u16,
        /// Why it failed.
        failure: Failure,
        /// The decision of the retry strategy, ignored if no attempt is left.
        next: RetryDecision,
    },
    /// The worker hands the attempt back unharmed, or never received its lease. It does not count
    /// against `max_attempts`, unless too many before it were handed back without progress: then it
    /// fails as `not_delivered`.
    HandBack {
        /// The attempt that the report names.
        attempt: u16,
        /// Whether its worker received the lease. Those that were not received are counted apart.
        received: bool,
        /// Until when, and why.
        hand_back: HandBack,
        /// Whether the job must not be started twice, so that the attempt has not begun.
        at_most_once: bool,
        /// Most hand-backs of this kind in a row without progress.
        max_in_a_row: u16,
        /// The decision of the retry strategy, if the attempt fails instead.
        next: RetryDecision,
    },
    /// The latest attempt succeeded after it was given up, while the next one waits. The job
    /// succeeds, and the next attempt does not start.
    SucceedLate {
        /// Its result.
        result: Option<ResultBody>,
    },
    /// A failure of the latest attempt was reported while the next one waits. It is only recorded.
    FailLate {
        /// Why it failed.
        failure: Failure,
    },
    /// No heartbeat or report came before the lease or the timeout ended.
    LeaseExpired {
        /// The decision of the retry strategy, ignored if no attempt is left or the job must not
        /// be started twice.
        next: RetryDecision,
        /// Whether the job must not be started twice.
        at_most_once: bool,
    },
    /// It was started before, and its type now forbids a second start.
    MustNotRunTwice,
    /// A grant was not claimed in time: it becomes void, and the job waits for admission again.
    Revoke {
        /// The version that was granted.
        version: Version,
    },
    /// It waits for another time: its window closed, or the throttler deferred it.
    Move {
        /// The version that the decision was made on.
        version: Version,
        /// Its new due time.
        run_at: Timestamp,
        /// What it waits for.
        waiting: Waiting,
        /// The reason, for people.
        reason: Option<String>,
    },
    /// Its retry plugin decided what follows its latest attempt.
    DecideRetry {
        /// The version that the decision was made on.
        version: Version,
        /// The decision.
        plan: PluginRetry,
    },
    /// A caller changed its spec (`apply` gets the new one), its due time, or both. The due time is
    /// moved into its windows.
    Patch {
        /// The new due time; in the past means now.
        run_at: Option<Timestamp>,
    },
    /// A caller cancels it.
    Cancel {
        /// Whether a running attempt ends at once.
        force: bool,
    },
    /// The throttler or a purge drops it.
    Drop {
        /// The reason, for people.
        reason: String,
    },
    /// `expires_at` has come.
    Expire,
    /// `deadline_at` has come.
    Deadline,
    /// Its result was taken, or is no longer kept.
    ForgetResult,
    /// Another job replays it.
    Replayed {
        /// That job.
        by: JobId,
    },
}

/// An answer, not a fault: the event cannot follow the state, and repeating it cannot help.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("cannot happen to a job that is {}, attempt {attempt}", word(state))]
pub struct Refused {
    /// The state of the job.
    pub state: State,
    /// Its latest attempt.
    pub attempt: u16,
}
