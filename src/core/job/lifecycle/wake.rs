//! When the maintenance sweep has something to do with a job.

use std::time::Duration;

use super::{Lifecycle, State, Waiting};
use crate::{
    job::{Spec, spec::KeepResult},
    time::Timestamp,
};

impl Lifecycle {
    /// When a job with this `spec` next needs the maintenance sweep.
    ///
    /// That is the earliest of these instants: it expires, its deadline comes, its lease ends
    /// without a grant that watches it, its retry plugin has a decision to make, its result or the
    /// job itself is removed.
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
            State::Ended { .. } => {
                self.result_until(spec).into_iter().chain(self.kept_until(spec)).min()
            }
        }
    }

    /// Until when an ended job with this `spec` is kept; none for a live one.
    pub fn kept_until(&self, spec: &Spec) -> Option<Timestamp> {
        match &self.state {
            State::Ended { at, .. } => Some(*at + spec.retention.duration()),
            State::Scheduled { .. } | State::Running(_) => None,
        }
    }

    /// Until when the result of a job with this `spec` is kept; none without a result.
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
}
