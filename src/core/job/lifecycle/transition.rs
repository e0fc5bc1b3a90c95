//! What follows when an event happens to a job.

use std::time::Duration;

use super::{
    Event, Failure, Lifecycle, Outcome, PluginRetry, Reason, Refused, ResultBody, RetryDecision,
    Running, State, Token, Waiting,
};
use crate::{
    calendar::window,
    job::{Spec, spec::KeepResult},
    stored::UnknownFields,
    time::Timestamp,
};

impl Lifecycle {
    /// The life of a job with this `spec` after `event`, which happens at `now`.
    ///
    /// A result must name the running attempt, and a claim the version that its grant was decided
    /// on. So a late report and a claim under a revoked grant are refused.
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
    ///     token: Token::new(7),
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
    #[allow(clippy::result_large_err, reason = "the value of success is larger")]
    pub fn apply(&self, spec: &Spec, event: Event, now: Timestamp) -> Result<Self, Refused> {
        let keeps_grants = self.keeps_grants(&event);
        let mut life = self.clone();
        self.transition(&mut life, spec, event, now)?;
        life.revision.0 += 1;
        if !keeps_grants {
            life.version.0 += 1;
            if !matches!(life.state, State::Scheduled { waiting: Waiting::Throttler, .. }) {
                life.deferral_reason = None;
            }
        }
        Ok(life)
    }

    /// Whether grants of the job stay valid after `event`, so that its version stays.
    fn keeps_grants(&self, event: &Event) -> bool {
        match event {
            Event::Claim { .. }
            | Event::Heartbeat { .. }
            | Event::FailLate { .. }
            | Event::ForgetResult
            | Event::Replayed { .. } => true,
            Event::Cancel { force: false } => matches!(self.state, State::Running(_)),
            _ => false,
        }
    }

    /// The rules: changes `life`, a copy of `self`, as `event` demands.
    #[allow(clippy::result_large_err, reason = "the value of success is larger")]
    fn transition(
        &self,
        life: &mut Self,
        spec: &Spec,
        event: Event,
        now: Timestamp,
    ) -> Result<(), Refused> {
        use {Event as E, State as S};
        let passed = |at: Option<Timestamp>| at.is_some_and(|at| at <= now);
        match (&self.state, event) {
            (
                S::Scheduled { run_at, waiting },
                E::Claim { version, token, worker, lease, granted, decided_at },
            ) if version == self.version
                && *waiting != Waiting::RetryDecision
                && *run_at <= now.max(decided_at)
                && !passed(spec.expires_at)
                && !passed(spec.deadline_at) =>
            {
                life.start(spec, token, worker, lease, granted, now);
            }
            (S::Running(run), E::Heartbeat { attempt, until, progress })
                if attempt == self.attempt =>
            {
                let lease_until = until.max(run.lease_until).min(run.timeout_at);
                let progress = progress.or_else(|| run.progress.clone());
                life.state = S::Running(Running { lease_until, progress, ..run.clone() });
            }
            (S::Running(run), E::Succeed { attempt, result }) if attempt == self.attempt => {
                life.succeed(run, spec, result, now);
            }
            (S::Running(run), E::Fail { attempt, failure, next }) if attempt == self.attempt => {
                life.fail(run, spec, failure, next, now);
            }
            (
                S::Running(run),
                E::HandBack { attempt, received, hand_back, at_most_once, max_in_a_row, next },
            ) if attempt == self.attempt => {
                let in_a_row = self.hand_backs_in_a_row(received);
                let is_spinning = !run.has_advanced && in_a_row >= max_in_a_row;
                if !run.cancel && (is_spinning || attempt == u16::MAX) {
                    let failure = self.handed_back_too_often(hand_back, received);
                    life.fail(run, spec, failure, next, now);
                } else {
                    life.hand_back(run, spec, hand_back, received, at_most_once, now);
                }
            }
            (S::Running(run), E::LeaseExpired { next, at_most_once }) if run.lease_until <= now => {
                life.lose(run, spec, next, at_most_once, now);
            }
            (S::Running(run), E::Cancel { force: false }) => {
                life.state = S::Running(Running { cancel: true, ..run.clone() });
            }
            (S::Running(run), E::Cancel { force: true }) => {
                life.record(run, now, Outcome::Cancelled, None, None);
                life.end(now, Outcome::Cancelled);
            }
            (S::Running(run), E::Deadline) if passed(spec.deadline_at) => {
                let failure = Failure::new(Reason::Deadline, "its deadline came while it ran");
                life.record(run, now, Outcome::Failed, Some(failure.clone()), None);
                life.end_failed(now, failure);
            }
            (S::Scheduled { .. }, E::Deadline) if passed(spec.deadline_at) => life.end_failed(
                now,
                Failure::new(Reason::Deadline, "its deadline came while it waited"),
            ),
            (S::Scheduled { .. }, E::Expire) if passed(spec.expires_at) => {
                life.end(now, Outcome::Expired);
            }
            (S::Scheduled { .. }, E::SucceedLate { result }) if self.attempt > 0 => {
                life.succeed_late(spec, result, now);
            }
            (S::Scheduled { run_at, .. }, E::FailLate { failure }) if self.attempt > 0 => {
                life.record_late(now, Outcome::Failed, Some(failure), Some(*run_at));
            }
            (S::Scheduled { .. }, E::MustNotRunTwice) if self.may_have_begun() => life.end_failed(
                now,
                Failure::new(
                    Reason::OutcomeUnknown,
                    "it was already started, and its type now forbids a second start",
                ),
            ),
            (S::Scheduled { .. }, E::Cancel { .. }) => life.end(now, Outcome::Cancelled),
            (S::Scheduled { .. }, E::Drop { reason }) => {
                life.error = Some(Failure::new(Reason::Failed, reason));
                life.end(now, Outcome::Dropped);
            }
            // The state stays; its new version makes the grant void.
            (S::Scheduled { .. }, E::Revoke { version }) if version == self.version => {}
            (
                S::Scheduled { run_at: due, waiting: was },
                E::Move { version, run_at, waiting, reason },
            ) if version == self.version && *was != Waiting::RetryDecision => {
                if self.attempt == 0 && *due <= now {
                    life.first_due_at = self.first_due_at.or(Some(*due));
                }
                life.state = S::Scheduled { run_at, waiting };
                life.deferral_reason = reason;
            }
            (
                S::Scheduled { run_at, waiting: Waiting::RetryDecision },
                E::DecideRetry { version, plan },
            ) if version == self.version => life.decide_retry(*run_at, spec, plan, now),
            (S::Scheduled { run_at, waiting }, E::Patch { run_at: wanted }) => {
                life.state = patched(*run_at, *waiting, wanted, spec, now);
                if wanted.is_some() && self.attempt == 0 {
                    life.first_due_at = None;
                }
            }
            (S::Ended { .. }, E::ForgetResult) => life.result = None,
            (S::Running(_) | S::Ended { .. }, E::Replayed { by }) => life.replayed_by = Some(by),
            _ => return Err(Refused { state: self.state.clone(), attempt: self.attempt }),
        }
        Ok(())
    }

    /// Starts the next attempt.
    fn start(
        &mut self,
        spec: &Spec,
        token: Token,
        worker: Option<String>,
        lease: Duration,
        granted: bool,
        now: Timestamp,
    ) {
        if self.attempt == 1 {
            self.first_due_at = self.first_due_at.or(self.due_at);
        }
        self.attempt += 1;
        self.due_at = self.run_at();
        self.deferral_reason = None;
        self.started_at = Some(now);
        let timeout_at = now + spec.timeout.duration();
        self.state = State::Running(Running {
            token,
            started_at: now,
            lease_until: (now + lease).min(timeout_at),
            timeout_at,
            worker,
            granted,
            cancel: false,
            progress: None,
            has_advanced: false,
            unknown: UnknownFields::default(),
        });
    }

    /// Ends the job with the success of the running attempt.
    fn succeed(&mut self, run: &Running, spec: &Spec, result: Option<ResultBody>, now: Timestamp) {
        // The attempt succeeded, even if the job was to be cancelled.
        self.record(run, now, Outcome::Succeeded, None, None);
        self.error = None;
        self.checkpoint = None;
        self.result = result.filter(|_| spec.keep_result != KeepResult::None && !run.cancel);
        self.end(now, if run.cancel { Outcome::Cancelled } else { Outcome::Succeeded });
    }

    /// Ends the job with the success of its latest attempt, while the next one waits.
    fn succeed_late(&mut self, spec: &Spec, result: Option<ResultBody>, now: Timestamp) {
        self.record_late(now, Outcome::Succeeded, None, None);
        self.error = None;
        self.checkpoint = None;
        self.result = result.filter(|_| spec.keep_result != KeepResult::None);
        self.end(now, Outcome::Succeeded);
    }

    /// Ends the running attempt as failed: plans another one if that is allowed, else ends the job.
    fn fail(
        &mut self,
        run: &Running,
        spec: &Spec,
        failure: Failure,
        next: RetryDecision,
        now: Timestamp,
    ) {
        self.error = Some(failure.clone());
        if let Some(backs) = &mut self.hand_backs {
            (backs.in_a_row, backs.not_received) = (0, 0);
        }
        let is_last = self.counted_attempts() >= spec.max_attempts || self.attempt == u16::MAX;
        let retry_at = match next {
            RetryDecision::Wait(wait) if !run.cancel && !is_last => {
                Some(window::next_opening(&spec.windows, now + wait))
            }
            RetryDecision::AskPlugin(wait) if !run.cancel && !is_last => {
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

    /// Fails the running attempt because its lease or its timeout ended.
    fn lose(
        &mut self,
        run: &Running,
        spec: &Spec,
        next: RetryDecision,
        at_most_once: bool,
        now: Timestamp,
    ) {
        let (failure, next) = if at_most_once {
            let message =
                "its lease ended without a heartbeat; it may have run, and must not run twice";
            (Failure::new(Reason::OutcomeUnknown, message), RetryDecision::GiveUp)
        } else if run.timeout_at <= now {
            let message = format!("no result within {} s", spec.timeout.as_f64());
            (Failure::new(Reason::Timeout, message), next)
        } else {
            let message = "its lease ended without a heartbeat or a report";
            (Failure::new(Reason::LeaseExpired, message), next)
        };
        self.fail(run, spec, failure, next, now);
    }

    /// Follows the decision of the retry plugin about a job that waits until `earliest` at least.
    fn decide_retry(
        &mut self,
        earliest: Timestamp,
        spec: &Spec,
        plan: PluginRetry,
        now: Timestamp,
    ) {
        match plan {
            PluginRetry::Retry(at) => {
                // The wait that the target requested is the least, whatever the plugin decides.
                let run_at = window::next_opening(&spec.windows, at.max(earliest).max(now));
                self.state = State::Scheduled { run_at, waiting: Waiting::Retry };
                if let Some(entry) = self.history.last_mut() {
                    entry.retry_at = Some(run_at);
                }
            }
            PluginRetry::GiveUp(message) => {
                if let (Some(error), Some(_)) = (&mut self.error, &message) {
                    error.message = message;
                }
                self.end(now, Outcome::Failed);
            }
        }
    }

    fn end_failed(&mut self, at: Timestamp, failure: Failure) {
        self.error = Some(failure);
        self.end(at, Outcome::Failed);
    }

    pub(super) fn end(&mut self, at: Timestamp, outcome: Outcome) {
        if self.attempt == 0 {
            self.due_at = self.run_at();
        }
        self.state = State::Ended { at, outcome };
    }
}

/// The state of a scheduled job after a patch: `wanted` is the new due time, if there is one.
fn patched(
    was: Timestamp,
    waiting: Waiting,
    wanted: Option<Timestamp>,
    spec: &Spec,
    now: Timestamp,
) -> State {
    // Its due time without windows.
    let (requested, windowed) = match waiting {
        Waiting::Window { due } => (due, true),
        _ => (was, false),
    };
    // A job that is due, and is to run now, keeps its position in the order.
    let awaits_decision = waiting == Waiting::RetryDecision;
    let wanted = wanted.filter(|at| awaits_decision || *at > now || requested > now);
    // A new due time in the past means now.
    let requested = wanted.map_or(requested, |at| at.max(now));
    let due = requested.max(now);
    let opening = window::next_opening(&spec.windows, due);
    let (run_at, waiting) = if awaits_decision && wanted.is_none() {
        (was, Waiting::RetryDecision)
    } else if opening > due {
        (opening, Waiting::Window { due: requested })
    } else if wanted.is_some() {
        (requested, Waiting::Due)
    } else if windowed && requested < now {
        // Its due time without windows stays known: it has its place in a strict order by it.
        (due.min(was), Waiting::Window { due: requested })
    } else if windowed {
        (due.min(was), Waiting::Due)
    } else {
        (was, waiting)
    };
    State::Scheduled { run_at, waiting }
}
