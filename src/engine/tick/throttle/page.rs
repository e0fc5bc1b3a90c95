//! A page of candidates that the throttler decides on.

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use super::{
    ThrottlerCall, Throttling, first_call_len,
    reconcile::{Agreed, CandidateOutcome, OfferedPage, Page, Reconciled},
};
use crate::{
    Error,
    plugins::{MIN_DEFERRAL, circuit_breaker::OpenCircuit},
    tick::search::Search,
};
use tidegate_core::{
    job::{Event, Job, lifecycle::Waiting},
    port::policy::{Action, Decision},
    queue::{AdmissionDecision, Candidate, Rule, order::Position, plugin::OnFailure},
};

/// How long a tick lets the throttler decide, because reports of the queue's workers wait for the
/// tick. After this time it begins no further page, except the one at the scan's cursor, so that
/// the scan makes progress. One call takes a quarter of this at most; reading the candidates' data
/// comes in addition.
const MAX_THROTTLING_TIME: Duration = Duration::from_secs(1);

impl Search<'_> {
    /// Lets the throttler decide on the first `size` candidates of `line`. Undecided ones stay in
    /// the line.
    ///
    /// Returns whether the scan continues with the candidates behind them; if not because the tick
    /// has used up its time, the position of the last candidate that was decided on.
    pub(crate) async fn throttle(
        &mut self,
        line: &mut std::vec::IntoIter<Job>,
        size: usize,
    ) -> Result<ControlFlow<Option<Position>>, Error> {
        let mut left = size.min(line.len());
        while left > 0 {
            let call = first_call_len(self.plan.throttling.as_ref(), &line.as_slice()[..left]);
            let jobs: Vec<Job> = line.take(call).collect();
            left -= jobs.len();
            let last = jobs.last().map(Position::of);
            if !Box::pin(self.throttle_at_once(jobs)).await? {
                return Ok(ControlFlow::Break(None));
            }
            let late = self.engine.now() >= self.now + MAX_THROTTLING_TIME;
            // The next scan starts with the undecided candidates again.
            if (late || left > 0) && (self.admission.closed(false) || self.capacities.total() == 0)
            {
                return Ok(ControlFlow::Break(None));
            }
            if late {
                return Ok(ControlFlow::Break(last));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Records that `job` was admitted, so that the partition after its own is next.
    fn set_last_partition(&mut self, job: &Job) {
        if self.limits.queue.partition_by.is_some() {
            self.plan.last_partition = Some(job.spec.partition.clone());
        }
    }

    /// Lets the throttler decide on as many candidates as one call may have. Returns whether the
    /// scan continues.
    async fn throttle_at_once(&mut self, jobs: Vec<Job>) -> Result<bool, Error> {
        if !self.plan.may_call_throttler() {
            // It has failed since, and its owner lets the limits alone decide.
            for job in &jobs {
                if self.try_admit(job) {
                    self.set_last_partition(job);
                }
            }
            return Ok(true);
        }
        // A reservation concerns only the candidates behind it, so the page starts again from here.
        let base = self.admission.clone();
        let mut page = Page::with_capacity(jobs.len());
        for job in jobs {
            if self.consider(&job).is_none() {
                continue;
            }
            match self.admission.check(Candidate::of(&job.spec)) {
                AdmissionDecision::Hold(hold) => {
                    self.plan.hold(hold);
                    page.add_over_limits(job);
                }
                AdmissionDecision::Move(opening) => self.plan.await_window(&job, opening, self.now),
                AdmissionDecision::Run => {
                    let bytes = self.capacities.bytes(&job);
                    page.add_candidate(job, bytes);
                }
            }
        }
        if page.has_no_candidate() {
            return Ok(true);
        }
        self.admission = base;
        self.apply_throttler(page).await
    }

    /// Reports ended attempts to a throttler that wants them, if no candidates led to a call.
    pub(crate) async fn report_ended(&mut self) -> Result<(), Error> {
        if self.plan.throttling.as_ref().is_some_and(|throttling: &Throttling| {
            throttling.may_be_called() && !throttling.ended.is_empty()
        }) {
            self.estimate_waiting(&[], &[], None).await?;
            self.apply_throttler(Page::default()).await?;
        }
        Ok(())
    }

    /// Calls the throttler about the jobs that fit the limits, and applies its decisions. The other
    /// jobs keep what they reserve. Returns whether the scan continues.
    async fn apply_throttler(&mut self, page: Page) -> Result<bool, Error> {
        let agreed = match self.reconcile(page).await? {
            Reconciled::Agreed(agreed) => agreed,
            Reconciled::Failed(page, call) => return Ok(self.apply_failure(&page, *call)),
        };
        let Agreed { page, call, answer, outcomes, full } = agreed;
        let throttling = self.plan.throttling.as_mut().expect("it was just called");
        throttling.answered = true;
        (throttling.ended, throttling.ended_detail_bytes) = (Arc::default(), 0);
        if let Some(state) = &answer.state {
            let mut state = state.clone();
            state.balance();
            throttling.state = Arc::new(state);
        }
        let rule = throttling.rule();
        let shadowed = throttling.plugin.clone().filter(|_| throttling.shadowed);
        self.plan.open_circuit = None;
        let mut held = 0;
        for ((job, bytes), outcome) in page.jobs().zip(outcomes) {
            let decision = match outcome {
                CandidateOutcome::OverLimits | CandidateOutcome::LeftOut(None) => continue,
                CandidateOutcome::LeftOut(Some(hold)) => {
                    self.plan.hold(hold);
                    continue;
                }
                CandidateOutcome::Decided(decision) => decision,
                CandidateOutcome::DecidedEarlier(decision) => held_again(decision),
            };
            held += u64::from(matches!(decision.action, Action::Hold(_)));
            self.apply_decision(job, bytes.unwrap_or_default(), decision, &rule);
        }
        self.capacities.full |= full;
        if held > 0 {
            *self.plan.held.entry(rule).or_default() += held;
        }
        let more = answer.more;
        if let Some(plugin) = shadowed {
            self.plan.shadowed_calls.push(ThrottlerCall { plugin, call, answer: Ok(answer) });
        }
        Ok(more)
    }

    /// Applies the plugin's decision on one job of `bytes`.
    fn apply_decision(&mut self, job: &Job, bytes: usize, decision: Decision, rule: &Rule) {
        let Decision { action, reason } = decision;
        let now = self.now;
        match action {
            Action::Run => {
                let demand = self.capacities.find(job).expect("the trial found a worker for it");
                self.admit(demand, job, bytes);
                self.set_last_partition(job);
                if let Some(throttling) = &mut self.plan.throttling {
                    throttling.record_started(&self.limits.queue, job);
                }
            }
            // Called again at once, the plugin would decide the same.
            Action::Hold(until) => {
                let later = until.filter(|at| *at > now);
                self.plan.wake(later.map(|at| at.max(now + MIN_DEFERRAL)));
            }
            Action::Reschedule(at) => {
                let at = at.max(now + MIN_DEFERRAL);
                self.plan.decided = true;
                self.plan.put_off(job, at, Waiting::Throttler, reason, now);
            }
            Action::Drop => {
                self.plan.decided = true;
                let reason =
                    reason.unwrap_or_else(|| format!("throttler {} dropped it", call_name(rule)));
                if let Ok(dropped) = job.apply(Event::Drop { reason }, now) {
                    self.plan.end(job, dropped);
                }
            }
        }
    }

    /// Handles a failed call: the page is held, or the limits alone decide. Returns whether the
    /// scan continues.
    fn apply_failure(&mut self, page: &OfferedPage, call: ThrottlerCall) -> bool {
        let throttling = self.plan.throttling.as_mut().expect("it was just called");
        throttling.failed = true;
        let circuit = OpenCircuit::after(
            self.plan.open_circuit.take(),
            &call.plugin,
            &throttling.text,
            self.now,
        );
        let until = circuit.until;
        self.plan.open_circuit = Some(circuit);
        let (hold, rule) = (throttling.on_failure == OnFailure::Hold, throttling.rule());
        self.plan.wake(Some(until));
        self.plan.faults.push(call);
        if hold {
            *self.plan.held.entry(rule).or_default() += page.candidates() as u64;
            return false;
        }
        for (job, bytes) in page.jobs() {
            let Some(bytes) = bytes else {
                self.admission.check(Candidate::of(&job.spec));
                continue;
            };
            // The job was found to be a candidate before, but other jobs may have used up its
            // demand.
            let Some(demand) = self.capacities.find(job) else {
                continue;
            };
            match self.capacities.try_admit(&mut self.admission, Candidate::of(&job.spec), bytes) {
                Some(AdmissionDecision::Hold(hold)) => self.plan.hold(hold),
                Some(AdmissionDecision::Run) => {
                    self.admit(demand, job, bytes);
                    self.set_last_partition(job);
                }
                Some(AdmissionDecision::Move(_)) | None => {}
            }
        }
        true
    }
}

/// An earlier decision on a job that the last call was not about: the job is held.
fn held_again(decision: Decision) -> Decision {
    match decision.action {
        Action::Hold(_) => decision,
        _ => Decision { action: Action::Hold(None), ..decision },
    }
}

fn call_name(rule: &Rule) -> String {
    if let Rule::Throttler(name) = rule { name.to_string() } else { rule.to_string() }
}
