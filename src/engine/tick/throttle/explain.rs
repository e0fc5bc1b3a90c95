//! The throttler's decision on a waiting job, without committing it: for `explain`.

use std::sync::Arc;

use super::{Throttling, call_bound};
use crate::{Engine, Error, LedgerView};
use tidegate_core::{
    job::{Job, QueueName},
    port::policy::{Action, Decision, Purpose, RunningSet, ThrottleCall},
    queue::{
        Limits, Rule,
        admission::Hold,
        plugin::{OnFailure, Throttler},
    },
    time::Timestamp,
};

impl Engine {
    /// Returns how the throttler would hold the last of `jobs`, which fit the limits alone. None if
    /// that job would run.
    pub(crate) async fn explain_throttler(
        &self,
        limits: &Limits,
        view: &LedgerView,
        queue: &QueueName,
        jobs: &[Job],
        now: Timestamp,
    ) -> Result<Option<Hold>, Error> {
        let Some(throttler) = &limits.queue.throttler else {
            return Ok(None);
        };
        let catalog = self.catalog().await?;
        let Some(throttling) = Throttling::of(&catalog, limits, view, None, &Arc::default(), now)
        else {
            return Ok(None);
        };
        let Some(plugin) = throttling.plugin.clone() else {
            return Ok(failure(throttler, &"there is no such plugin"));
        };
        let call = self.explain_call(&throttling, limits, view, queue, jobs, now).await?;
        let answer = self.ports.policy.throttle(&plugin, Arc::clone(&call), Purpose::Explain).await;
        let decision = match answer.and_then(|answer| answer.validated(&call)) {
            Ok(mut answer) => answer.decisions.pop(),
            Err(fault) => return Ok(failure(throttler, &fault)),
        };
        Ok(decision.and_then(|decision| hold_of(throttler, decision, now)))
    }

    /// The call about `jobs`. If the plugin needs data, it is about the last of them only: as many
    /// as one call may have.
    async fn explain_call(
        &self,
        throttling: &Throttling,
        limits: &Limits,
        view: &LedgerView,
        queue: &QueueName,
        jobs: &[Job],
        now: Timestamp,
    ) -> Result<Arc<ThrottleCall>, Error> {
        let most = if throttling.description().is_some_and(|description| description.needs_data) {
            call_bound(jobs.iter().rev())
        } else {
            None
        };
        let jobs = &jobs[most.map_or(0, |most| jobs.len() - most)..];
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
        }))
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
