//! What a throttler would say of a job that waits, without its saying it: for `explain`.

use std::sync::Arc;

use super::{Throttling, over};
use crate::{Engine, Error, View};
use tidegate_core::{
    job::{Job, QueueName},
    port::policy::{Action, Decision, Purpose, RunningSet, ThrottleCall},
    queue::{Limits, Rule, admission::Hold, plugin::OnFailure},
    time::Timestamp,
};

impl Engine {
    /// What the throttler would say of the last of `jobs`, which fit the limits alone; none if it would run.
    pub(crate) async fn ask_about(
        &self,
        limits: &Limits,
        view: &View,
        queue: &QueueName,
        jobs: &[Job],
        now: Timestamp,
    ) -> Result<Option<Hold>, Error> {
        let Some(throttler) = &limits.queue.throttler else {
            return Ok(None);
        };
        let rule = Rule::Throttler(throttler.plugin.clone());
        let held = |reason: String, earliest_at| {
            Ok(Some(Hold { rule: rule.clone(), reason, reserved: false, earliest_at }))
        };
        let failed =
            |why: &dyn std::fmt::Display| format!("plugin {} failed: {why}", throttler.plugin);
        let catalog = self.catalog().await?;
        let Some(throttling) = Throttling::of(&catalog, limits, view, None, &Arc::default(), now)
        else {
            return Ok(None);
        };
        let Some(plugin) = throttling.plugin.clone() else {
            return if throttler.on_failure == OnFailure::Run {
                Ok(None)
            } else {
                held(failed(&"there is no such plugin"), None)
            };
        };
        // A call has so much data and no more: then as it would be asked about the last of them.
        let most = if throttling.says().is_some_and(|says| says.needs_data) {
            over(jobs.iter().rev())
        } else {
            None
        };
        let jobs = &jobs[most.map_or(0, |most| jobs.len() - most)..];
        let call = Arc::new(ThrottleCall {
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
            data: self.data_for(&throttling, jobs.iter()).await?,
        });
        let answer = self.ports.policy.throttle(&plugin, Arc::clone(&call), Purpose::Explain).await;
        let answer = answer.and_then(|answer| answer.validated(&call));
        let decision = match answer {
            Ok(mut answer) => answer.decisions.pop(),
            Err(fault) if throttler.on_failure == OnFailure::Hold => {
                return held(failed(&fault), None);
            }
            Err(_) => None,
        };
        let Some(Decision { action, reason }) = decision else {
            return Ok(None);
        };
        let name = &throttler.plugin;
        match action {
            Action::Run => Ok(None),
            Action::Hold(until) => held(
                reason.unwrap_or_else(|| format!("{name} holds it")),
                until.filter(|at| *at > now),
            ),
            Action::Reschedule(at) => {
                held(reason.unwrap_or_else(|| format!("{name} gives it a later time")), Some(at))
            }
            Action::Drop => held(reason.unwrap_or_else(|| format!("{name} drops it")), None),
        }
    }
}
