//! The throttler's decisions on waiting jobs, without committing them: for `explain`.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use super::{Throttling, call_bound};
use crate::{Engine, Error, LedgerView, jobs::explain::CallPart};
use tidegate_core::{
    job::{Job, JobId, QueueName},
    port::policy::{Action, Decision, Purpose, RunningSet, ThrottleCall},
    queue::{
        Limits, Rule,
        admission::Hold,
        plugin::{OnFailure, Throttler},
    },
    time::Timestamp,
};

/// The throttler's answer about one job.
pub(crate) enum ThrottlerAnswer {
    /// It runs, within the limits.
    Runs,
    /// It waits.
    Holds(Hold),
    /// One call cannot be about all jobs, and this one was left out.
    NotAsked(Rule),
}

impl Engine {
    /// The throttler's answers about `jobs` of one queue, which fit the limits alone. Empty if the
    /// limits alone decide.
    pub(crate) async fn explain_throttler(
        &self,
        limits: &Limits,
        view: &LedgerView,
        jobs: &[Job],
        part: CallPart,
        now: Timestamp,
    ) -> Result<BTreeMap<JobId, ThrottlerAnswer>, Error> {
        let (Some(throttler), Some(first)) = (&limits.queue.throttler, jobs.first()) else {
            return Ok(BTreeMap::new());
        };
        let each_holds = |hold: Option<Hold>| {
            let answer = |hold: Hold| {
                let holds = |job: &Job| (job.id.clone(), ThrottlerAnswer::Holds(hold.clone()));
                jobs.iter().map(holds).collect()
            };
            hold.map_or_else(BTreeMap::new, answer)
        };
        let catalog = self.catalog().await?;
        let failed = self.failed_throttlers.of(&first.spec.queue);
        let circuit = failed.as_ref().map(|failed| &failed.circuit);
        let Some(mut throttling) =
            Throttling::of(&catalog, limits, view, circuit, &Arc::default(), now)
        else {
            return Ok(BTreeMap::new());
        };
        let Some(plugin) = throttling.plugin.clone() else {
            let hold = failure(throttler, &"there is no such plugin");
            return Ok(each_holds(hold));
        };
        if let Some(failed) = failed.as_ref().filter(|_| throttling.failed) {
            // A tick calls it again only then.
            let earliest_at = Some(failed.circuit.until);
            let hold = failure(throttler, &failed.message);
            return Ok(each_holds(hold.map(|hold| Hold { earliest_at, ..hold })));
        }
        let asked = asked(&throttling, jobs, part);
        if throttling.needs_estimate() {
            let mut estimate = (*self.waiting(&first.spec.queue).await?).clone();
            estimate.cover(jobs);
            throttling.set_estimate(estimate);
        }
        let call = self
            .explain_call(
                &mut throttling,
                limits,
                view,
                &first.spec.queue,
                &jobs[asked.clone()],
                now,
            )
            .await?;
        let answer = self.ports.policy.throttle(&plugin, Arc::clone(&call), Purpose::Explain).await;
        let answer = match answer.and_then(|answer| answer.validated(&call)) {
            Ok(answer) => answer,
            Err(fault) => return Ok(each_holds(failure(throttler, &fault))),
        };
        let mut decisions = answer.decisions.into_iter();
        let answers = jobs.iter().enumerate().map(|(index, job)| {
            let answer = if asked.contains(&index) {
                let hold = decisions.next().and_then(|decision| hold_of(throttler, decision, now));
                hold.map_or(ThrottlerAnswer::Runs, ThrottlerAnswer::Holds)
            } else {
                ThrottlerAnswer::NotAsked(throttling.rule())
            };
            (job.id.clone(), answer)
        });
        Ok(answers.collect())
    }

    /// The call about `jobs`.
    async fn explain_call(
        &self,
        throttling: &mut Throttling,
        limits: &Limits,
        view: &LedgerView,
        queue: &QueueName,
        jobs: &[Job],
        now: Timestamp,
    ) -> Result<Arc<ThrottleCall>, Error> {
        Ok(Arc::new(ThrottleCall {
            queue: queue.clone(),
            now,
            seed: self.ports.entropy.bits() as u64,
            config: Arc::clone(&throttling.text),
            concurrency: limits.queue.concurrency,
            room: jobs.len() as u32,
            running: RunningSet { batches: view.running(&[]), admitted: Arc::default() },
            candidates: jobs.to_vec(),
            ended: Arc::default(),
            state: Arc::clone(&throttling.state),
            data: self.data_for(throttling, jobs.iter()).await?,
            hosts: Arc::clone(&self.catalog().await?.hosts),
            waiting: throttling.groups(&limits.queue).covering(jobs),
        }))
    }
}

/// Which of `jobs` one call is about. If the plugin needs data, as many as one call may have.
fn asked(throttling: &Throttling, jobs: &[Job], part: CallPart) -> Range<usize> {
    let needs_data = throttling.description().is_some_and(|description| description.needs_data);
    let most = match part {
        _ if !needs_data => None,
        CallPart::First => call_bound(jobs.iter()),
        CallPart::Last => call_bound(jobs.iter().rev()),
    };
    let most = most.unwrap_or(jobs.len());
    match part {
        CallPart::First => 0..most,
        CallPart::Last => jobs.len() - most..jobs.len(),
    }
}

/// How a throttler that failed holds the job. None if its owner lets the limits alone decide.
fn failure(throttler: &Throttler, why: &dyn std::fmt::Display) -> Option<Hold> {
    let reason = format!("plugin {} failed: {why}", throttler.plugin);
    (throttler.on_failure == OnFailure::Hold).then(|| hold(throttler, reason, None))
}

/// How `decision` holds the job. None if the job runs.
fn hold_of(throttler: &Throttler, decision: Decision, now: Timestamp) -> Option<Hold> {
    let Decision { action, reason } = decision;
    let name = &throttler.plugin;
    let (default_reason, earliest_at) = match action {
        Action::Run => return None,
        Action::Hold(until) => (format!("{name} holds it"), until.filter(|at| *at > now)),
        Action::Reschedule(at) => (format!("{name} gives it a later time"), Some(at)),
        Action::Drop => (format!("{name} drops it"), None),
    };
    Some(hold(throttler, reason.unwrap_or(default_reason), earliest_at))
}

fn hold(throttler: &Throttler, reason: String, earliest_at: Option<Timestamp>) -> Hold {
    Hold { rule: Rule::Throttler(throttler.plugin.clone()), reason, reserved: false, earliest_at }
}
