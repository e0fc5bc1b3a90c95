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

/// The jobs of a page.
#[derive(Default)]
pub(super) struct Page {
    /// Those that fit the limits alone.
    candidates: Vec<Job>,
    places: Vec<PagePlace>,
}

/// The jobs of a page that the throttler was called about. The candidates are those of its first
/// call, so that it copies none of them.
pub(super) struct OfferedPage {
    first: Arc<ThrottleCall>,
    places: Vec<PagePlace>,
}

/// A job of a page.
enum PagePlace {
    /// It is the candidate at `index`, and takes these bytes of the budget.
    Candidate { index: usize, bytes: usize },
    /// It exceeds the limits by itself.
    OverLimits(Box<Job>),
}

impl Page {
    /// An empty page with room for so many jobs.
    pub(super) fn with_capacity(jobs: usize) -> Self {
        Self { candidates: Vec::with_capacity(jobs), places: Vec::with_capacity(jobs) }
    }

    /// Adds a job that fits the limits alone, and takes these bytes of the budget.
    pub(super) fn add_candidate(&mut self, job: Job, bytes: usize) {
        self.places.push(PagePlace::Candidate { index: self.candidates.len(), bytes });
        self.candidates.push(job);
    }

    /// Adds a job that exceeds the limits by itself.
    pub(super) fn add_over_limits(&mut self, job: Job) {
        self.places.push(PagePlace::OverLimits(Box::new(job)));
    }

    /// Whether it has no job for the throttler to decide on.
    pub(super) fn has_no_candidate(&self) -> bool {
        self.candidates.is_empty()
    }
}

impl OfferedPage {
    /// The jobs in their order, each with the bytes of the budget that it takes; none for one that
    /// exceeds the limits by itself.
    pub(super) fn jobs(&self) -> impl Iterator<Item = (&Job, Option<usize>)> {
        self.places.iter().map(|place| match place {
            PagePlace::Candidate { index, bytes } => (&self.first.candidates[*index], Some(*bytes)),
            PagePlace::OverLimits(job) => (&**job, None),
        })
    }

    /// The number of candidates.
    pub(super) fn candidates(&self) -> usize {
        self.first.candidates.len()
    }

    /// The job at a place.
    fn job(&self, place: usize) -> &Job {
        match &self.places[place] {
            PagePlace::Candidate { index, .. } => &self.first.candidates[*index],
            PagePlace::OverLimits(job) => job,
        }
    }
}

/// The result of a page's calls.
pub(super) enum Reconciled {
    /// Everything that runs fits together.
    Agreed(Agreed),
    /// The call failed.
    Failed(OfferedPage, Box<ThrottlerCall>),
}

/// The last call of a page, under whose answer everything that runs fits.
pub(super) struct Agreed {
    pub(super) page: OfferedPage,
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
    /// The places of the candidates that run.
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
    pub(super) async fn reconcile(&mut self, page: Page) -> Result<Reconciled, Error> {
        let Page { candidates, places } = page;
        let data = self.page_data(&candidates).await?;
        let mut call = self.throttle_call(candidates, &data);
        let page = OfferedPage { first: Arc::clone(&call), places };
        let mut outcomes: Vec<CandidateOutcome> =
            page.places.iter().map(|_| CandidateOutcome::OverLimits).collect();
        let is_candidate =
            |(_, place): &(usize, &PagePlace)| matches!(place, PagePlace::Candidate { .. });
        let candidates = page.places.iter().enumerate().filter(is_candidate);
        let mut candidates: Vec<usize> = candidates.map(|(place, _)| place).collect();
        let mut full = false;
        let mut is_first = true;
        loop {
            let mut answer = match self.call_throttler(&call, data.fault.as_ref()).await {
                Ok(answer) => answer,
                Err(failed) => return Ok(Reconciled::Failed(page, failed)),
            };
            for (place, decision) in candidates.iter().zip(self.decisions_of(&mut answer)) {
                outcomes[*place] = CandidateOutcome::Decided(decision);
            }
            let trial = self.try_together(&page, &mut outcomes);
            full |= trial.capacities.full;
            if trial.misfits == 0 {
                self.admission = trial.admission;
                if trial.would_fit && self.capacities.total() as usize > trial.ran.len() {
                    // A candidate that was left out fits now: the jobs in its way do not run.
                    self.plan.wake(Some(self.now + FIRST_WAIT));
                }
                return Ok(Reconciled::Agreed(Agreed { page, call, answer, outcomes, full }));
            }
            if is_first {
                candidates
                    .retain(|place| !matches!(outcomes[*place], CandidateOutcome::LeftOut(_)));
            } else {
                keep_earlier_decisions(&candidates, &mut outcomes);
                candidates = trial.ran;
            }
            is_first = false;
            let jobs = candidates.iter().map(|place| page.job(*place).clone()).collect();
            call = self.throttle_call(jobs, &data);
        }
    }

    /// Reads the data of the candidates, if the plugin needs it.
    async fn page_data(&self, candidates: &[Job]) -> Result<PageData, Error> {
        let throttling = self.plan.throttling.as_ref().expect("the caller has a throttler");
        match self.engine.data_for(throttling, candidates.iter()).await {
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

    /// The call about `candidates`.
    fn throttle_call(&mut self, candidates: Vec<Job>, data: &PageData) -> Arc<ThrottleCall> {
        let throttling = self.plan.throttling.as_mut().expect("the caller has a throttler");
        let waiting = throttling.groups(&self.limits.queue);
        let throttling = self.plan.throttling.as_ref().expect("the caller has a throttler");
        let texts = candidates.iter().filter_map(|job| data.texts.get_key_value(&job.id));
        let texts = texts.map(|(id, text)| (id.clone(), text.clone())).collect();
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
            data: texts,
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
    fn try_together(&self, page: &OfferedPage, outcomes: &mut [CandidateOutcome]) -> Trial<'a> {
        let mut trial = Trial {
            admission: self.admission.clone(),
            capacities: self.capacities.clone(),
            ran: Vec::new(),
            misfits: 0,
            would_fit: false,
        };
        for (place, ((job, bytes), outcome)) in page.jobs().zip(outcomes).enumerate() {
            let candidate = Candidate::of(&job.spec);
            match outcome {
                // It reserves the capacity that it lacks from the candidates behind it.
                CandidateOutcome::OverLimits => drop(trial.admission.check(candidate)),
                CandidateOutcome::LeftOut(_) => {
                    trial.would_fit |= trial.admission.check(candidate) == AdmissionDecision::Run;
                }
                CandidateOutcome::Decided(Decision { action: Action::Run, .. }) => {
                    match trial.run(job, bytes.unwrap_or_default()) {
                        Ok(()) => trial.ran.push(place),
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
    /// Admits a candidate of `bytes`, or returns what holds it: nothing if no worker takes it any more, or if
    /// it exceeds the bytes that are left.
    fn run(&mut self, job: &Job, bytes: usize) -> Result<(), Option<Hold>> {
        let demand = self.capacities.find(job).ok_or(None)?;
        let candidate = Candidate::of(&job.spec);
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
    for place in candidates {
        if let CandidateOutcome::Decided(decision) = &outcomes[*place]
            && decision.action != Action::Run
        {
            outcomes[*place] = CandidateOutcome::DecidedEarlier(decision.clone());
        }
    }
}
