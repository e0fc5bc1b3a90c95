//! Calls the throttler about a page until everything that it runs fits together.

use std::{collections::BTreeMap, sync::Arc};

use super::ThrottlerCall;
use crate::{
    Error,
    plugins::circuit_breaker::FIRST_WAIT,
    tick::search::{Capacities, Search},
};
use tidegate_core::{
    job::{Job, JobId},
    port::policy::{
        Action, Call, Decision, Fault, FaultKind, Purpose, RunningSet, ThrottleAnswer, ThrottleCall,
    },
    queue::{Admission, AdmissionDecision, Candidate, admission::Hold},
};

/// A job of a page.
pub(super) struct PageJob {
    pub(super) job: Job,
    /// How many bytes of the budget it takes; none if it exceeds the limits by itself.
    pub(super) fits: Option<usize>,
}

/// The result of a page's calls.
pub(super) enum Reconciled {
    /// Everything that runs fits together.
    Agreed(Agreed),
    /// The call failed.
    Failed(Box<ThrottlerCall>),
}

/// The last call of a page, under whose answer everything that runs fits.
pub(super) struct Agreed {
    pub(super) call: Arc<ThrottleCall>,
    /// Without its decisions, unless a shadow version is to be compared with them.
    pub(super) answer: ThrottleAnswer,
    /// One outcome per job of the page.
    pub(super) outcomes: Vec<CandidateOutcome>,
    /// Whether a job that was to run exceeds the bytes that are left.
    pub(super) full: bool,
}

/// The decision on a job of a page.
pub(super) enum CandidateOutcome {
    /// It exceeds the limits by itself; the plugin did not decide on it.
    OverLimits,
    /// The plugin's decision in the last call.
    Decided(Decision),
    /// The plugin runs it, but it does not fit together with those before it.
    LeftOut(Option<Hold>),
    /// The plugin's decision in an earlier call. The last call was about those that run.
    DecidedEarlier(Decision),
}

/// What was read for a page's calls.
struct PageData {
    /// The candidates' data as JSON text, if the plugin needs it.
    texts: BTreeMap<JobId, String>,
    /// Why the data cannot be read now.
    fault: Option<Fault>,
}

/// A copy of the admission, on which the candidates that the plugin runs are tried.
struct Trial<'a> {
    admission: Admission<'a>,
    capacities: Capacities<'a>,
    /// The indices of the candidates that run.
    ran: Vec<usize>,
    /// How many candidates were to run and do not fit.
    misfits: usize,
    /// Whether a candidate that was left out before would fit now.
    would_fit: bool,
}

impl<'a> Search<'a> {
    /// Calls the throttler until everything that it runs fits together: at most three times.
    ///
    /// The second call leaves out the candidates that did not fit. The third is only about those
    /// that ran and fitted. Each of them is offered at the same place as before, and no additional
    /// job is admitted before it, so all of them fit again.
    pub(super) async fn reconcile(&mut self, page: &[PageJob]) -> Result<Reconciled, Error> {
        let data = self.page_data(page).await?;
        let mut outcomes: Vec<CandidateOutcome> =
            page.iter().map(|_| CandidateOutcome::OverLimits).collect();
        let mut candidates: Vec<usize> =
            (0..page.len()).filter(|index| page[*index].fits.is_some()).collect();
        let mut full = false;
        let mut is_first = true;
        loop {
            let call = self.throttle_call(page, &candidates, &data);
            let mut answer = match self.call_throttler(&call, data.fault.as_ref()).await {
                Ok(answer) => answer,
                Err(failed) => return Ok(Reconciled::Failed(failed)),
            };
            for (index, decision) in candidates.iter().zip(self.decisions_of(&mut answer)) {
                outcomes[*index] = CandidateOutcome::Decided(decision);
            }
            let trial = self.try_together(page, &mut outcomes);
            full |= trial.capacities.full;
            if trial.misfits == 0 {
                self.admission = trial.admission;
                if trial.would_fit && self.capacities.total() as usize > trial.ran.len() {
                    // A candidate that was left out fits now: the jobs in its way do not run.
                    self.plan.wake(Some(self.now + FIRST_WAIT));
                }
                return Ok(Reconciled::Agreed(Agreed { call, answer, outcomes, full }));
            }
            if is_first {
                candidates
                    .retain(|index| !matches!(outcomes[*index], CandidateOutcome::LeftOut(_)));
            } else {
                keep_earlier_decisions(&candidates, &mut outcomes);
                candidates = trial.ran;
            }
            is_first = false;
        }
    }

    /// Reads the data of the candidates, if the plugin needs it.
    async fn page_data(&self, page: &[PageJob]) -> Result<PageData, Error> {
        let throttling = self.plan.throttling.as_ref().expect("the caller has a throttler");
        let wanted = page.iter().filter(|page_job| page_job.fits.is_some());
        match self.engine.data_for(throttling, wanted.map(|page_job| &page_job.job)).await {
            Ok(texts) => Ok(PageData { texts, fault: None }),
            // A job that needs no data, a critical one for example, does not wait for it.
            Err(Error::Unavailable { message, .. }) => {
                let message = format!("it needs data, and {message}");
                let fault = Some(Fault { kind: FaultKind::Unavailable, message });
                Ok(PageData { texts: BTreeMap::new(), fault })
            }
            Err(error) => Err(error),
        }
    }

    /// The call about `candidates`, which are indices into `page`.
    fn throttle_call(
        &mut self,
        page: &[PageJob],
        candidates: &[usize],
        data: &PageData,
    ) -> Arc<ThrottleCall> {
        let throttling = self.plan.throttling.as_mut().expect("the caller has a throttler");
        let waiting = throttling.groups(&self.limits.queue);
        let throttling = self.plan.throttling.as_ref().expect("the caller has a throttler");
        let text = |index: &usize| data.texts.get_key_value(&page[*index].job.id);
        let texts = candidates.iter().filter_map(text);
        let candidates: Vec<Job> =
            candidates.iter().map(|index| page[*index].job.clone()).collect();
        Arc::new(ThrottleCall {
            queue: self.queue.clone(),
            now: self.now,
            seed: self.engine.ports.entropy.bits() as u64,
            config: Arc::clone(&throttling.text),
            concurrency: self.limits.queue.concurrency,
            room: self.capacities.total(),
            running: self.running(),
            waiting: waiting.covering(&candidates),
            candidates,
            ended: Arc::clone(&throttling.ended),
            state: Arc::clone(&throttling.state),
            data: texts.map(|(id, text)| (id.clone(), text.clone())).collect(),
            hosts: Arc::clone(&self.catalog.hosts),
        })
    }

    /// The running jobs: the grants that this tick has not released, and those it has admitted.
    fn running(&self) -> RunningSet {
        let delta = &self.plan.delta;
        let batches = self
            .granted
            .as_ref()
            .map(|(view, _)| view.running(&delta.released))
            .unwrap_or_default();
        RunningSet { batches, admitted: Arc::new(delta.granted.clone()) }
    }

    /// Calls the plugin, or reports `fault` to it in place of a call.
    async fn call_throttler(
        &self,
        call: &Arc<ThrottleCall>,
        fault: Option<&Fault>,
    ) -> Result<ThrottleAnswer, Box<ThrottlerCall>> {
        let throttling = self.plan.throttling.as_ref().expect("the caller has a throttler");
        let plugin = throttling.plugin.clone().expect("the plugin may be called");
        let policy = &self.engine.ports.policy;
        let answer = if let Some(fault) = fault {
            policy.report_fault(&plugin, &Call::Throttle(Arc::clone(call)), fault);
            Err(fault.clone())
        } else {
            let answer = policy.throttle(&plugin, Arc::clone(call), Purpose::Live).await;
            answer.and_then(|answer| answer.validated(call))
        };
        answer.map_err(|fault| {
            Box::new(ThrottlerCall { plugin, call: Arc::clone(call), answer: Err(fault) })
        })
    }

    /// The decisions of `answer`. They stay in it only if a shadow version is compared with them.
    fn decisions_of(&self, answer: &mut ThrottleAnswer) -> Vec<Decision> {
        if self.plan.throttling.as_ref().is_some_and(|throttling| throttling.shadowed) {
            answer.decisions.clone()
        } else {
            std::mem::take(&mut answer.decisions)
        }
    }

    /// Applies the candidates that run to a copy of the admission, in their order.
    fn try_together(&self, page: &[PageJob], outcomes: &mut [CandidateOutcome]) -> Trial<'a> {
        let mut trial = Trial {
            admission: self.admission.clone(),
            capacities: self.capacities.clone(),
            ran: Vec::new(),
            misfits: 0,
            would_fit: false,
        };
        for (index, (page_job, outcome)) in page.iter().zip(outcomes).enumerate() {
            let candidate = Candidate::of(&page_job.job.spec);
            match outcome {
                // It reserves the capacity that it lacks from the candidates behind it.
                CandidateOutcome::OverLimits => drop(trial.admission.check(candidate)),
                CandidateOutcome::LeftOut(_) => {
                    trial.would_fit |= trial.admission.check(candidate) == AdmissionDecision::Run;
                }
                CandidateOutcome::Decided(Decision { action: Action::Run, .. }) => {
                    match trial.run(page_job) {
                        Ok(()) => trial.ran.push(index),
                        Err(hold) => {
                            *outcome = CandidateOutcome::LeftOut(hold);
                            trial.misfits += 1;
                        }
                    }
                }
                CandidateOutcome::Decided(_) | CandidateOutcome::DecidedEarlier(_) => {}
            }
        }
        trial
    }
}

impl Trial<'_> {
    /// Admits a candidate, or returns what holds it: nothing if no worker takes it any more, or if
    /// it exceeds the bytes that are left.
    fn run(&mut self, page_job: &PageJob) -> Result<(), Option<Hold>> {
        let bytes = page_job.fits.unwrap_or_default();
        let demand = self.capacities.find(&page_job.job).ok_or(None)?;
        let candidate = Candidate::of(&page_job.job.spec);
        match self.capacities.try_admit(&mut self.admission, candidate, bytes) {
            Some(AdmissionDecision::Run) => {
                self.capacities.take(demand, bytes);
                Ok(())
            }
            Some(AdmissionDecision::Hold(hold)) => Err(Some(hold)),
            // Windows were checked before.
            Some(AdmissionDecision::Move(_)) | None => Err(None),
        }
    }
}

/// Keeps the decisions on candidates that do not run: the next call is not about them.
fn keep_earlier_decisions(candidates: &[usize], outcomes: &mut [CandidateOutcome]) {
    for index in candidates {
        if let CandidateOutcome::Decided(decision) = &outcomes[*index]
            && decision.action != Action::Run
        {
            outcomes[*index] = CandidateOutcome::DecidedEarlier(decision.clone());
        }
    }
}
