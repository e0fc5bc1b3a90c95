//! The times of a job that are derived when it is read: when it was due, and how long each attempt
//! waited.
//!
//! ```text
//!   due_at      start 1   end 1            start 2   end 2
//!     |--waited---|--took---|-----waited-----|--took---|
//! ```
//!
//! So the waits and the durations of all attempts add up to the time from `due_at` to the last end.

use std::time::Duration;

use super::{Job, State, lifecycle::AttemptRecord};
use crate::time::Timestamp;

impl Job {
    /// When it may start, in every state: the due time of a scheduled job; else that of its latest
    /// attempt; and of a job that ended before any attempt, the due time that it had.
    pub fn run_at(&self) -> Timestamp {
        // A record of an earlier build may lack it.
        self.life.latest_due_at().or(self.life.started_at).unwrap_or(self.spec.created_at)
    }

    /// When it was first due. A deferral by a throttler, a closed window and a retry do not change
    /// it; a PATCH of `run_at` before the first attempt does.
    pub fn due_at(&self) -> Timestamp {
        let life = &self.life;
        let first_start =
            || Some(life.history.first().filter(|entry| entry.attempt == 1)?.started_at);
        let of_first_attempt = match life.attempt {
            0 => Some(self.run_at()),
            1 => life.due_at.or(life.started_at),
            // A record of an earlier build lacks it.
            _ => first_start(),
        };
        life.first_due_at.or(of_first_attempt).unwrap_or_else(|| self.run_at())
    }

    /// When it ended; none if it has not.
    pub fn ended_at(&self) -> Option<Timestamp> {
        match self.life.state {
            State::Ended { at, .. } => Some(at),
            _ => None,
        }
    }

    /// When its latest error came; none if it has none.
    pub fn failed_at(&self) -> Option<Timestamp> {
        let error = self.life.error.as_ref()?;
        let failed = self.life.history.iter().rev().find(|entry| entry.error.is_some());
        let of_attempt = failed.filter(|entry| entry.error.as_ref() == Some(error));
        // A deadline ends a job between two attempts, with an error of its own. The message of an old
        // attempt may have been dropped.
        let at = |entry: &AttemptRecord| entry.ended_at;
        of_attempt.map(at).or(self.ended_at()).or(failed.map(at))
    }

    /// How long the running attempt had waited when it started; see [`Job::waits`].
    pub fn running_wait(&self) -> Option<Duration> {
        let run = self.life.running()?;
        self.wait(self.life.history.len(), self.life.attempt, run.started_at)
    }

    /// How long the attempt of each entry of the history had waited when it started: the first one
    /// since [`Job::due_at`], each later one since the end of the attempt before it. None if the
    /// history no longer has that attempt.
    pub fn waits(&self) -> impl Iterator<Item = Option<Duration>> {
        let entries = self.life.history.iter().enumerate();
        entries.map(|(index, entry)| self.wait(index, entry.attempt, entry.started_at))
    }

    /// The wait of `attempt`, which follows the first `index` entries of the history.
    fn wait(&self, index: usize, attempt: u16, started_at: Timestamp) -> Option<Duration> {
        if attempt <= 1 {
            return Some(started_at.since(self.due_at()));
        }
        let before = attempt - 1;
        // A late report has an entry of its own, after the one that ended its attempt.
        let entries = self.life.history[..index].iter().rev();
        let latest = entries.take_while(|entry| entry.attempt >= before);
        let ended = latest.filter(|entry| entry.attempt == before).last()?.ended_at;
        Some(started_at.since(ended))
    }
}
