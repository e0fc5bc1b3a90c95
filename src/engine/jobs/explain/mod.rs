//! `explain`: why a job or a queue waits, found by deciding again without committing.

mod next_tick;
mod queue;

pub(crate) use next_tick::CallPart;

use std::collections::BTreeMap;

use self::next_tick::{Blocked, NextTick, by_jobs_before};
use crate::{
    Engine, Error,
    explanation::goes_first,
    request::{Explanation, HeldBy, WorkerStatus},
};
use tidegate_core::{
    job::{
        Job, Phase, QueueName, State, TypeName,
        lifecycle::{self, Waiting},
        retry::Retry,
    },
    queue::{AdmissionDecision, Rule, config::SCAN_BOUND},
    time::Timestamp,
};

/// Why a job waits for its windows.
const WINDOWS_CLOSED: &str = "its windows are closed";
/// Why a failed job waits for its retry plugin.
const NO_RETRY_DECISION: &str = "its retry plugin has not decided about the next attempt yet";

impl Engine {
    /// Explains why `job` waits. `workers` is the status of the workers of a type.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn explain(
        &self,
        job: &Job,
        workers: &(dyn Fn(&TypeName) -> WorkerStatus + Sync),
    ) -> Result<Explanation, Error> {
        let now = self.now();
        let State::Scheduled { run_at, waiting } = job.life.state else {
            let catalog = self.catalog().await?;
            let config = catalog.types.get(&job.spec.job_type).map(|item| &item.config);
            let retried = config.is_some_and(|config| config.retry_after_restart);
            return Ok(started(job, self.unanswered_until(&catalog, job), retried));
        };
        let status = workers(&job.spec.job_type);
        let explanation = if waiting == Waiting::RetryDecision {
            awaits_retry_decision(job)
        } else if run_at > now {
            let phase = Phase::of(&job.life, now);
            self.explain_not_due(job, phase, run_at, waiting).await?
        } else {
            self.explain_due(job, run_at, workers, &status, now).await?
        };
        Ok(Explanation { workers: Some(status), ..explanation })
    }

    /// Explains a job that is due at `run_at`, in the future.
    async fn explain_not_due(
        &self,
        job: &Job,
        phase: Phase,
        run_at: Timestamp,
        waiting: Waiting,
    ) -> Result<Explanation, Error> {
        let (kind, reason) = match waiting {
            Waiting::Due => match job.life.latest_hand_back() {
                Some(snoozed) => {
                    ("snoozed", snoozed.message.as_deref().unwrap_or("its worker snoozed it"))
                }
                None => ("due_time", "its due time has not come"),
            },
            Waiting::Window { .. } => ("window", WINDOWS_CLOSED),
            Waiting::Retry | Waiting::RetryDecision => {
                ("retry", "its next attempt is planned for later")
            }
            Waiting::Throttler => (
                "throttler",
                job.life.deferral_reason.as_deref().unwrap_or("the throttler gave it a later time"),
            ),
        };
        let name = if waiting == Waiting::Throttler {
            self.throttler_of(&job.spec.queue).await?
        } else {
            None
        };
        let since = job.life.history.last().map_or(job.spec.created_at, |entry| entry.ended_at);
        let by = HeldBy { name, ..HeldBy::unnamed(kind) };
        Ok(held(job, phase, by, Some(since), reason, Some(run_at)))
    }

    /// Explains a job that is due since `run_at`.
    async fn explain_due(
        &self,
        job: &Job,
        run_at: Timestamp,
        workers: &(dyn Fn(&TypeName) -> WorkerStatus + Sync),
        status: &WorkerStatus,
        now: Timestamp,
    ) -> Result<Explanation, Error> {
        let next = NextTick::read(self, &job.spec.queue, now).await?;
        let since = |rule: &Rule| next.held_since(rule).or(Some(run_at));
        let (by_worker, due) = (HeldBy::unnamed("worker"), Some(run_at));
        if next.is_granted(job) {
            let reason = "it is admitted, and is about to start";
            return Ok(held(job, Phase::Ready, by_worker, due, reason, Some(now)));
        }
        if let Some(reason) = next.limits.pause_reason() {
            let since = since(&Rule::Paused);
            return Ok(held(job, Phase::Ready, HeldBy::unnamed("paused"), since, reason, None));
        }
        if let Some(Blocked { reason, until }) = &next.blocked {
            return Ok(held(job, Phase::Ready, HeldBy::unnamed("ledger"), due, reason, *until));
        }
        if let Some(ahead) = next.ahead_in_line(self, job).await? {
            let by = HeldBy { name: Some(ahead.to_string()), ..HeldBy::unnamed("order") };
            let reason = goes_first(&format!("job {ahead}"));
            return Ok(held(job, Phase::Ready, by, due, reason, None));
        }
        Ok(match self.decide(job, &next, workers).await? {
            Some(AdmissionDecision::Hold(hold)) => {
                let hold = by_jobs_before(&mut next.admission(), job, hold);
                let since = since(&hold.rule);
                let by = HeldBy::from(&hold);
                held(job, Phase::Ready, by, since, hold.reason, hold.earliest_at)
            }
            Some(AdmissionDecision::Move(at)) => {
                held(job, Phase::Ready, HeldBy::unnamed("window"), due, WINDOWS_CLOSED, Some(at))
            }
            // Last, because it is what the job meets last: while a limit holds it, no worker helps.
            Some(AdmissionDecision::Run) if !status.has_room() => {
                held(job, Phase::Ready, by_worker, due, status.reason(now), None)
            }
            Some(AdmissionDecision::Run) if status.is_unknown() && self.is_pulled(job).await? => {
                let reason = "no rule holds it: it starts when a worker requests it";
                held(job, Phase::Ready, by_worker, due, reason, None)
            }
            Some(AdmissionDecision::Run) => {
                let reason = "nothing holds it: it is about to start";
                held(job, Phase::Ready, by_worker, due, reason, Some(now))
            }
            None => {
                let by = HeldBy::unnamed("order");
                held(job, Phase::Ready, by, due, "other jobs go before it", None)
            }
        })
    }

    /// Whether workers lease `job`.
    async fn is_pulled(&self, job: &Job) -> Result<bool, Error> {
        let catalog = self.catalog().await?;
        let item = catalog.types.get(&job.spec.job_type);
        Ok(!item.is_some_and(|item| self.is_pushed(&item.config)))
    }

    /// The name of the plugin that throttles `queue`.
    async fn throttler_of(&self, queue: &QueueName) -> Result<Option<String>, Error> {
        let limits = self.catalog().await?.limits(queue);
        Ok(limits.queue.throttler.as_ref().map(|throttler| throttler.plugin.to_string()))
    }

    /// The decision of the next tick on `job`, after the candidates before it that a worker takes.
    /// `None` if more of them go before it than a tick reads.
    async fn decide(
        &self,
        job: &Job,
        next: &NextTick,
        workers: &(dyn Fn(&TypeName) -> WorkerStatus + Sync),
    ) -> Result<Option<AdmissionDecision>, Error> {
        let mut types: Vec<TypeName> =
            self.catalog().await?.types_of(&job.spec.queue).map(|(name, _)| name.clone()).collect();
        if !types.contains(&job.spec.job_type) {
            types = vec![job.spec.job_type.clone()];
        }
        let due = next.due(self, &types, job.spec.critical, SCAN_BOUND).await?;
        // A tick reads only jobs that a worker takes.
        let mut taken = BTreeMap::from([(job.spec.job_type.clone(), true)]);
        let mut is_taken = |name: &TypeName| match taken.get(name) {
            Some(taken) => *taken,
            None => *taken.entry(name.clone()).or_insert_with(|| workers(name).exist()),
        };
        let held_back = next.held_back(&due.jobs);
        let mut candidates = Vec::new();
        let mut is_among = false;
        for other in due.jobs {
            is_among = other.id == job.id;
            if !other.life.awaits_retry_decision()
                && !next.is_granted(&other)
                && !held_back.contains(&other.id)
                && is_taken(&other.spec.job_type)
            {
                candidates.push(other);
            }
            if is_among {
                break;
            }
        }
        let behind = Some(job).filter(|_| !is_among);
        let (mut decisions, last) =
            next.decide(self, &candidates, &|_| true, CallPart::Last, behind).await?;
        Ok(match last {
            None => decisions.pop(),
            // Only the jobs before it keep it waiting, and they are more than a tick reads.
            Some(AdmissionDecision::Run) => None,
            Some(held) => Some(held),
        })
    }
}

/// The explanation of a job that runs or has ended. `unanswered_until` is for a push whose
/// target and worker have sent nothing yet; it may be `retried` after a restart.
fn started(job: &Job, unanswered_until: Option<Timestamp>, retried: bool) -> Explanation {
    let reason = match (job.life.running(), unanswered_until) {
        (Some(_), Some(until)) => {
            let restart = if retried {
                "; after a restart of the server it is retried"
            } else {
                ", after a restart of the server too"
            };
            format!(
                "a call to its target is under way; without a response it keeps its slot until \
                 {until}{restart}"
            )
        }
        (Some(run), None) => {
            let until = run.lease_until;
            format!(
                "an attempt is under way; it keeps its slot until {until}, or a later heartbeat"
            )
        }
        (None, _) => "it has ended".to_owned(),
    };
    Explanation {
        state: lifecycle::word(&job.life.state),
        phase: lifecycle::word(&job.life.state),
        held_by: None,
        since: job.life.started_at,
        reason,
        earliest_at: None,
        workers: None,
    }
}

fn awaits_retry_decision(job: &Job) -> Explanation {
    let name = match &job.spec.retry {
        Retry::Plugin(name, _) => Some(name.to_string()),
        Retry::Exponential(_) => None,
    };
    let since = job.life.history.last().map(|entry| entry.ended_at);
    let by = HeldBy { name, ..HeldBy::unnamed("retry") };
    held(job, Phase::Retrying, by, since, NO_RETRY_DECISION, None)
}

/// The explanation of a job that something holds.
fn held(
    job: &Job,
    phase: Phase,
    by: HeldBy,
    since: Option<Timestamp>,
    reason: impl Into<String>,
    earliest_at: Option<Timestamp>,
) -> Explanation {
    Explanation {
        state: lifecycle::word(&job.life.state),
        phase: phase.as_str(),
        held_by: Some(by),
        since,
        reason: reason.into(),
        earliest_at,
        workers: None,
    }
}
