//! The life of a job, as a pure state machine.
//!
//! ```text
//!                 ┌────────────── revoke, patch, move ──────────────┐
//!                 ▼                                                 │
//!   accepted ─▶ Scheduled ──Claim──▶ Running ──Succeed──▶ succeeded │
//!                 ▲  │                 │ │ └──Deadline, Fail, LeaseExpired──▶ failed
//!                 │  │                 │ │                         (no attempts left)
//!                 │  │                 │ └──Cancel marks; its end or a forced cancel──▶ cancelled
//!                 │  └──Cancel, Expire, Deadline, Drop──▶ ended     │
//!                 └───── attempts left: Fail, LeaseExpired ◀────────┘
//!                 └───── HandBack: the attempt does not count
//!
//!   SucceedLate while the next attempt waits: succeeded.
//!   A retry plugin: Scheduled until DecideRetry, then for the next attempt, or failed.
//! ```
//!
//! [`Lifecycle::apply`] is the only code that moves a job. It does no I/O and reads no clock, so
//! every store, the simulator and the dashboard agree on what may follow what. Two numbers guard
//! it: the *version* is raised by every change that makes a grant void; the *revision* is raised by
//! every write, and conditional writes of the store compare it.
//!
//! Read in this order: [`state`], [`failure`], [`result_body`], [`history`] (the parts), [`event`]
//! (what may happen), `transition` (**what follows**), `hand_back` (of a hand-back), `replies`
//! (duplicate replies), `wake` (when the maintenance sweep processes a job).

pub mod event;
pub mod failure;
mod hand_back;
pub mod history;
mod replies;
pub mod result_body;
pub mod state;
mod transition;
mod wake;

pub use event::{Event, PluginRetry, Refused, RetryDecision};
pub use failure::{Failure, Reason};
pub use history::{
    AttemptRecord, EndedAs, HandBack, HandBacks, MAX_HAND_BACKS_IN_HISTORY, MAX_HISTORY,
    MAX_HISTORY_BYTES,
};
pub use replies::{MAX_PROCESSED_REPLIES, ReplyId};
pub use result_body::ResultBody;
pub use state::{Outcome, Progress, Revision, Running, State, Token, Version, Waiting, word};

use crate::{job::JobId, record, stored::UnknownFields, time::Timestamp};

/// A job's state, with everything that decides its future.
#[derive(Clone, Debug, PartialEq)]
pub struct Lifecycle {
    /// Raised by every write.
    pub revision: Revision,
    /// Raised by every change that makes a grant void.
    pub version: Version,
    /// The current state.
    pub state: State,
    /// The number of attempts started so far; only a claim raises it.
    pub attempt: u16,
    /// When its latest attempt was claimed.
    pub started_at: Option<Timestamp>,
    /// Its result, while it is kept.
    pub result: Option<ResultBody>,
    /// The latest failure.
    pub error: Option<Failure>,
    /// Its finished attempts, at most [`MAX_HISTORY`].
    pub history: Vec<AttemptRecord>,
    /// The throttler's reason for deferring it, while it waits for that time.
    pub deferral_reason: Option<String>,
    /// The latest processed replies that are not in its history, at most [`MAX_PROCESSED_REPLIES`]:
    /// those that came too late, and those of the previous job with its correlation key.
    pub processed_replies: Vec<ReplyId>,
    /// When its latest attempt was due, since that attempt was claimed. Of a job that ended before
    /// any attempt, when it was due.
    pub due_at: Option<Timestamp>,
    /// Its attempts that were handed back; none if there are none.
    pub hand_backs: Option<HandBacks>,
    /// What its next attempt needs to go on, as the worker of an attempt stored it. A success clears
    /// it.
    pub checkpoint: Option<ResultBody>,
    /// The latest job that replays it.
    pub replayed_by: Option<JobId>,
    /// When it was first due, once that follows neither from its state nor from `due_at`: since its
    /// second attempt began, or since it was moved before the first one.
    pub first_due_at: Option<Timestamp>,
    /// The fields that a newer release added.
    pub unknown: UnknownFields,
}

record!(Lifecycle {
    revision,
    version,
    state,
    attempt,
    started_at,
    result,
    error,
    history,
    deferral_reason,
    processed_replies;
    due_at,
    hand_backs,
    checkpoint,
    replayed_by,
    first_due_at
});

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
            due_at: None,
            hand_backs: None,
            checkpoint: None,
            replayed_by: None,
            first_due_at: None,
            unknown: UnknownFields::default(),
        }
    }

    /// The attempts that were handed back.
    fn handed_back(&self) -> u16 {
        self.hand_backs.as_ref().map_or(0, |backs| backs.total)
    }

    /// The number of its attempts that count against `max_attempts`: those that were not handed
    /// back.
    pub fn counted_attempts(&self) -> u16 {
        self.attempt.saturating_sub(self.handed_back())
    }

    /// Whether an attempt may have begun. While its type was `at_most_once`, an attempt that was
    /// handed back had not.
    pub fn may_have_begun(&self) -> bool {
        self.attempt > self.hand_backs.as_ref().map_or(0, |backs| backs.not_begun)
    }

    /// Stores a checkpoint of the running attempt. It is written with the event that follows.
    pub fn keep_checkpoint(&mut self, checkpoint: ResultBody) {
        if let State::Running(run) = &mut self.state {
            let is_same =
                self.checkpoint.as_ref().is_some_and(|old| old.has_content_of(&checkpoint));
            run.has_advanced |= !is_same;
            self.checkpoint = Some(checkpoint);
        }
    }

    /// What the worker of the latest attempt said, if it handed the attempt back and the job waits
    /// until the time that follows from that.
    pub fn latest_hand_back(&self) -> Option<&HandBack> {
        let entry = self.history.last().filter(|entry| entry.attempt == self.attempt)?;
        entry
            .hand_back
            .as_ref()
            .filter(|_| self.run_at().is_some() && self.run_at() == entry.retry_at)
    }

    /// Whether it waits for the decision of its retry plugin.
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

    /// The due time of a scheduled job, or else of its latest attempt; of a job that ended before any
    /// attempt, the due time that it had. None if an earlier build made that change.
    pub fn latest_due_at(&self) -> Option<Timestamp> {
        // A release without the field may have started a later attempt.
        let is_of_latest = |due: &Timestamp| self.started_at.is_none_or(|started| *due <= started);
        self.run_at().or(self.due_at.filter(is_of_latest))
    }

    /// The running attempt.
    pub fn running(&self) -> Option<&Running> {
        match &self.state {
            State::Running(run) => Some(run),
            _ => None,
        }
    }

    /// How it ended, if it has.
    pub fn ended(&self) -> Option<Outcome> {
        match self.state {
            State::Ended { outcome, .. } => Some(outcome),
            _ => None,
        }
    }
}
