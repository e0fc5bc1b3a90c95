//! `explain`: why a job waits, found by deciding again without committing.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    vec::IntoIter,
};

use crate::{
    Engine, Error, LedgerView,
    request::{Explanation, HeldBy},
    tick::Turns,
};
use tidegate_core::{
    job::{
        Job, JobId, Phase, QueueName, State, TypeName,
        lifecycle::{self, Waiting},
        retry::Retry,
    },
    port::job_store::DueQuery,
    queue::{
        Admission, AdmissionDecision, Candidate, Limits, Rule, Usage, admission::Hold,
        config::SCAN_BOUND, order::Order,
    },
    time::Timestamp,
};

impl Engine {
    /// Explains why a job waits. `is_requested` says whether a worker takes jobs of its type at
    /// present.
    ///
    /// # Errors
    ///
    /// 404 `job_not_found`; the store's.
    pub async fn explain(
        &self,
        id: &JobId,
        job_type: Option<&TypeName>,
        is_requested: impl Fn(&Job) -> bool,
    ) -> Result<Explanation, Error> {
        let job = self.job(id, job_type).await?;
        let now = self.now();
        let State::Scheduled { run_at, waiting } = job.life.state else {
            return Ok(started(&job));
        };
        if waiting == Waiting::RetryDecision {
            return Ok(awaits_retry_decision(&job));
        }
        if run_at > now {
            let phase = Phase::of(&job.life, now);
            return self.explain_not_due(&job, phase, run_at, waiting).await;
        }
        self.explain_due(&job, run_at, is_requested, now).await
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
            Waiting::Due => ("due_time", "its due time has not come"),
            Waiting::Window { .. } => ("window", "its windows are closed"),
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
        Ok(held(job, phase, HeldBy { kind, name }, Some(since), reason, Some(run_at)))
    }

    /// Explains a job that is due since `run_at`.
    async fn explain_due(
        &self,
        job: &Job,
        run_at: Timestamp,
        is_requested: impl Fn(&Job) -> bool,
        now: Timestamp,
    ) -> Result<Explanation, Error> {
        let catalog = self.catalog().await?;
        let limits = catalog.limits(&job.spec.queue);
        let view = self
            .ports
            .store
            .ledger(&job.spec.queue)
            .await?
            .map(|(ledger, batches)| LedgerView::new(ledger, batches));
        let held_since = view.as_ref().map(|view| view.ledger.held.clone()).unwrap_or_default();
        let since = |rule: &Rule| held_since.get(rule).copied().or(Some(run_at));
        if view.as_ref().is_some_and(|view| view.granted(&job.id) == Some(job.life.version)) {
            let reason = "it is admitted, and is about to start";
            return Ok(held(job, Phase::Ready, unnamed("worker"), Some(run_at), reason, Some(now)));
        }
        if let Some(reason) = limits.pause_reason() {
            let since = since(&Rule::Paused);
            return Ok(held(job, Phase::Ready, unnamed("paused"), since, reason, None));
        }
        let due = Some(run_at);
        Ok(match self.decide(job, &limits, view, &is_requested, now).await? {
            Some(AdmissionDecision::Hold(hold)) => held(
                job,
                Phase::Ready,
                held_by(&hold),
                since(&hold.rule),
                hold.reason,
                hold.earliest_at,
            ),
            Some(AdmissionDecision::Move(at)) => {
                held(job, Phase::Ready, unnamed("window"), due, "its windows are closed", Some(at))
            }
            // Last, because it is what the job meets last: while a limit holds it, no worker helps.
            Some(AdmissionDecision::Run) if !is_requested(job) => {
                let reason = if self.is_dispatched(&catalog, &job.spec.job_type) {
                    "every delivery slot of its queue is in use"
                } else {
                    "no worker requests jobs of its type at this moment"
                };
                held(job, Phase::Ready, unnamed("worker"), due, reason, None)
            }
            Some(AdmissionDecision::Run) => {
                let reason = "nothing holds it: it is about to start";
                held(job, Phase::Ready, unnamed("worker"), due, reason, Some(now))
            }
            None => held(job, Phase::Ready, unnamed("order"), due, "other jobs go before it", None),
        })
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
        limits: &Arc<Limits>,
        mut view: Option<LedgerView>,
        is_requested: impl Fn(&Job) -> bool,
        now: Timestamp,
    ) -> Result<Option<AdmissionDecision>, Error> {
        let (usage, buckets) = match &mut view {
            Some(view) => (view.usage(limits).clone(), view.ledger.buckets.clone()),
            None => (Usage::default(), BTreeMap::new()),
        };
        let mut admission = Admission::new(limits, usage, buckets, now);
        let last_partition = view.as_ref().and_then(|view| view.ledger.last_partition.as_deref());
        let mut partitions = self.due_partitions(job, limits, last_partition, now).await?;
        let throttled = limits.queue.throttler.as_ref().filter(|_| !job.spec.critical).and(view);
        // A tick reads only jobs that a worker takes.
        let mut taken: HashMap<TypeName, bool> = HashMap::from([(job.spec.job_type.clone(), true)]);
        let is_candidate = |other: &Job| {
            !other.life.awaits_retry_decision()
                && match taken.get(&other.spec.job_type) {
                    Some(taken) => *taken,
                    None => *taken
                        .entry(other.spec.job_type.clone())
                        .or_insert_with(|| is_requested(other)),
                }
        };
        let candidates = Turns::of(&mut partitions).filter(is_candidate);
        let Some(view) = throttled else {
            return Ok(decide_in_turn(&mut admission, candidates, job));
        };
        match check_in_turn(&mut admission, candidates, job, &view) {
            Some((AdmissionDecision::Run, page)) => {
                let held =
                    self.explain_throttler(limits, &view, &job.spec.queue, &page, now).await?;
                Ok(Some(held.map_or(AdmissionDecision::Run, AdmissionDecision::Hold)))
            }
            Some((decision, _)) => Ok(Some(decision)),
            None => Ok(decide_last(&mut admission, job)),
        }
    }

    /// The due jobs that a tick reads together with `job`: one list for each partition in turn, or
    /// one list if the queue has no partitions.
    async fn due_partitions(
        &self,
        job: &Job,
        limits: &Limits,
        last_partition: Option<&str>,
        now: Timestamp,
    ) -> Result<Vec<IntoIter<Job>>, Error> {
        let types: Vec<TypeName> =
            self.catalog().await?.types_of(&job.spec.queue).map(|(name, _)| name.clone()).collect();
        let query = DueQuery {
            queue: job.spec.queue.clone(),
            critical: job.spec.critical,
            types: if types.contains(&job.spec.job_type) {
                types
            } else {
                vec![job.spec.job_type.clone()]
            },
            partition: None,
            order: Order::of(&limits.queue),
            until: now,
            after: None,
            limit: SCAN_BOUND,
        };
        let by_turns = limits.queue.partition_by.is_some() && !job.spec.critical;
        let queries = if by_turns {
            // A job of another partition that goes first may reserve what this one needs.
            let names =
                self.partitions_in_turn(&job.spec.queue, &query.types, last_partition).await?;
            let limit = (SCAN_BOUND / names.len().max(1) as u32).max(1);
            names
                .into_iter()
                .map(|name| DueQuery { partition: Some(name), limit, ..query.clone() })
                .collect()
        } else {
            vec![query]
        };
        let pages = self.ports.store.due(&queries).await?;
        Ok(pages.into_iter().map(|page| page.jobs.into_iter()).collect())
    }
}

/// Admits the candidates up to `job`, in order. Returns the decision on `job`; `None` if it would
/// run but is not among the candidates.
fn decide_in_turn(
    admission: &mut Admission<'_>,
    candidates: impl Iterator<Item = Job>,
    job: &Job,
) -> Option<AdmissionDecision> {
    for other in candidates {
        let decision = admission.try_admit(Candidate::of(&other.spec));
        if other.id == job.id {
            return Some(decision);
        }
    }
    decide_last(admission, job)
}

/// Checks the candidates up to `job` one by one, as a tick does for a throttler. Returns the
/// decision on `job`, and those that fit the limits alone; `None` if `job` is not among the
/// candidates.
fn check_in_turn(
    admission: &mut Admission<'_>,
    candidates: impl Iterator<Item = Job>,
    job: &Job,
    view: &LedgerView,
) -> Option<(AdmissionDecision, Vec<Job>)> {
    let mut fitting = Vec::new();
    for other in candidates {
        let decision = admission.check(Candidate::of(&other.spec));
        let is_last = other.id == job.id;
        if decision == AdmissionDecision::Run && view.granted(&other.id) != Some(other.life.version)
        {
            fitting.push(other);
        }
        if is_last {
            return Some((decision, fitting));
        }
    }
    None
}

/// What would hold `job` if its turn came now. `None` if nothing would: only the jobs before it
/// keep it waiting, and they are more than a tick reads.
fn decide_last(admission: &mut Admission<'_>, job: &Job) -> Option<AdmissionDecision> {
    match admission.try_admit(Candidate::of(&job.spec)) {
        AdmissionDecision::Run => None,
        decision => Some(decision),
    }
}

/// The explanation of a job that runs or has ended.
fn started(job: &Job) -> Explanation {
    let reason =
        if job.life.running().is_some() { "an attempt is under way" } else { "it has ended" };
    Explanation {
        state: lifecycle::word(&job.life.state),
        phase: lifecycle::word(&job.life.state),
        held_by: None,
        since: job.life.started_at,
        reason: reason.into(),
        earliest_at: None,
    }
}

fn awaits_retry_decision(job: &Job) -> Explanation {
    let name = match &job.spec.retry {
        Retry::Plugin(name, _) => Some(name.to_string()),
        Retry::Exponential(_) => None,
    };
    let since = job.life.history.last().map(|entry| entry.ended_at);
    let reason = "its retry plugin has not decided about the next attempt yet";
    held(job, Phase::Retrying, HeldBy { kind: "retry", name }, since, reason, None)
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
    }
}

fn unnamed(kind: &'static str) -> HeldBy {
    HeldBy { kind, name: None }
}

fn held_by(hold: &Hold) -> HeldBy {
    match &hold.rule {
        _ if hold.reserved => unnamed("order"),
        Rule::Paused => unnamed("paused"),
        Rule::Concurrency => unnamed("concurrency"),
        Rule::TypeConcurrency(name) => {
            HeldBy { kind: "type_concurrency", name: Some(name.to_string()) }
        }
        Rule::Constraint(name, None) => HeldBy { kind: "constraint", name: Some(name.clone()) },
        Rule::Constraint(name, Some(value)) => {
            HeldBy { kind: "constraint", name: Some(format!("{name} ({value})")) }
        }
        Rule::Throttler(name) => HeldBy { kind: "throttler", name: Some(name.to_string()) },
    }
}
