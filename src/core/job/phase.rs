//! The phase of a job: its state, with `scheduled` divided by what the job waits for.
//!
//! The state is stored. The phase also depends on the time: a scheduled job becomes ready when its
//! due time comes, without a write. So it is derived wherever a job is shown or a list is filtered.

use std::str::FromStr;

use super::{Lifecycle, Outcome, State, lifecycle::Waiting};
use crate::time::Timestamp;

/// The phase of a job at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// It is due later: at its due time, when a window opens, or when its throttler said.
    Scheduled,
    /// It is due, and waits for admission or for a worker.
    Ready,
    /// An attempt failed and the next one is due later, or its retry strategy has yet to decide.
    Retrying,
    /// An attempt runs.
    Running,
    /// It ended.
    Ended(Outcome),
}

impl Phase {
    /// Every phase, in the order of a job's life.
    pub const ALL: [Self; 9] = [
        Self::Scheduled,
        Self::Ready,
        Self::Retrying,
        Self::Running,
        Self::Ended(Outcome::Succeeded),
        Self::Ended(Outcome::Failed),
        Self::Ended(Outcome::Expired),
        Self::Ended(Outcome::Cancelled),
        Self::Ended(Outcome::Dropped),
    ];

    /// The phase of a job with this life at `now`.
    pub fn of(life: &Lifecycle, now: Timestamp) -> Self {
        match life.state {
            State::Scheduled { waiting: Waiting::RetryDecision, .. } => Self::Retrying,
            State::Scheduled { run_at, .. } if run_at <= now => Self::Ready,
            State::Scheduled { waiting: Waiting::Retry, .. } => Self::Retrying,
            State::Scheduled { .. } => Self::Scheduled,
            State::Running(_) => Self::Running,
            State::Ended { outcome, .. } => Self::Ended(outcome),
        }
    }

    /// The phase as the API shows it, in lower case.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Ready => "ready",
            Self::Retrying => "retrying",
            Self::Running => "running",
            Self::Ended(outcome) => outcome.as_str(),
        }
    }
}

/// A text that names no phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be scheduled, ready, retrying, running, succeeded, failed, expired, cancelled or dropped"
)]
pub struct NotAPhase;

impl FromStr for Phase {
    type Err = NotAPhase;

    fn from_str(text: &str) -> Result<Self, NotAPhase> {
        Self::ALL.into_iter().find(|phase| phase.as_str() == text).ok_or(NotAPhase)
    }
}

#[cfg(test)]
mod tests {
    use crate::stored::UnknownFields;
    use rstest::rstest;

    use super::*;
    use crate::job::lifecycle::{Running, Token};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn running() -> State {
        State::Running(Running {
            token: Token::new(1),
            started_at: at(10),
            lease_until: at(20),
            timeout_at: at(30),
            worker: None,
            granted: false,
            cancel: false,
            progress: None,
            has_advanced: false,
            unknown: UnknownFields::default(),
        })
    }

    fn scheduled(run_at: i64, waiting: Waiting) -> State {
        State::Scheduled { run_at: at(run_at), waiting }
    }

    /// At 100 s.
    #[rstest]
    #[case::due_later(scheduled(101, Waiting::Due), "scheduled")]
    #[case::due(scheduled(100, Waiting::Due), "ready")]
    #[case::closed_window(scheduled(101, Waiting::Window { due: at(1) }), "scheduled")]
    #[case::open_window(scheduled(99, Waiting::Window { due: at(1) }), "ready")]
    #[case::deferred(scheduled(101, Waiting::Throttler), "scheduled")]
    #[case::retry_later(scheduled(101, Waiting::Retry), "retrying")]
    #[case::retry_due(scheduled(100, Waiting::Retry), "ready")]
    #[case::undecided_retry(scheduled(99, Waiting::RetryDecision), "retrying")]
    #[case::running(running(), "running")]
    #[case::ended(State::Ended { at: at(50), outcome: Outcome::Dropped }, "dropped")]
    fn the_phase_follows_from_state_and_time(#[case] state: State, #[case] phase: &str) {
        let life = Lifecycle { state, ..Lifecycle::new(at(0), Waiting::Due) };
        assert_eq!(Phase::of(&life, at(100)).as_str(), phase);
    }

    #[test]
    fn every_phase_is_read_as_it_is_written() {
        for phase in Phase::ALL {
            assert_eq!(phase.as_str().parse(), Ok(phase));
        }
        assert_eq!("ended".parse::<Phase>(), Err(NotAPhase));
    }
}
