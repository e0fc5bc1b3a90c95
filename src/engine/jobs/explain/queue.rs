//! `explain` of a queue: why it is idle or slow, in one answer.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
};

use super::next_tick::{Blocked, CallPart, DueJobs, NextTick, by_jobs_before};
use crate::{
    Engine, Error, LedgerView,
    config::constraint_usage,
    explanation::{DRAIN_TARGET, HeldBy, HeldJobs, QueueExplanation, TypeUse, WorkerStatus},
};
use tidegate_core::{
    job::{Job, QueueName, TypeName},
    port::{
        StoreError,
        job_store::{Depth, DueQuery, StateFilter},
    },
    queue::{AdmissionDecision, Candidate, Order, startable},
    time::Timestamp,
};

/// Most types of running jobs that an explanation lists.
const MAX_RUNNING_TYPES: usize = 100;
/// Most pages of jobs that cannot be read which a search for the oldest due job skips. A page of a
/// store has about a thousand of them.
const MAX_UNREADABLE_PAGES: usize = 100;
/// Most instants at which an explanation looks for the first job that is due later.
const MAX_LOOKS: usize = 32;

impl Engine {
    /// Explains why a queue is idle or slow, from the first `most` of its due jobs (1 to
    /// [`SCAN_BOUND`](tidegate_core::queue::config::SCAN_BOUND)). `depths` has how many jobs of
    /// each type wait; `workers` is the status of the workers of a type.
    ///
    /// # Errors
    ///
    /// 404 `queue_not_found`; the store's.
    pub async fn explain_queue(
        &self,
        queue: &QueueName,
        depths: &[Depth],
        most: u32,
        workers: &(dyn Fn(&TypeName) -> WorkerStatus + Sync),
    ) -> Result<QueueExplanation, Error> {
        let item = self.queue(queue).await?;
        let now = self.now();
        let next = NextTick::read(self, queue, now).await?;
        let catalog = self.catalog().await?;
        let mut types: BTreeMap<TypeName, WorkerStatus> =
            catalog.types_of(queue).map(|(name, _)| (name.clone(), workers(name))).collect();
        for depth in depths.iter().filter(|depth| {
            depth.queue == *queue && depth.state == StateFilter::Scheduled && depth.jobs > 0
        }) {
            types.entry(depth.job_type.clone()).or_insert_with(|| workers(&depth.job_type));
        }
        let names: Vec<TypeName> = types.keys().cloned().collect();
        let mut due = if names.is_empty() {
            DueJobs::default()
        } else {
            next.due(self, &names, true, most).await?
        };
        let left = most - due.jobs.len() as u32;
        if left > 0 && !names.is_empty() {
            let ordinary = next.due(self, &names, false, left).await?;
            due.jobs.extend(ordinary.jobs);
            due.more |= ordinary.more;
            due.next_due = due.next_due.into_iter().chain(ordinary.next_due).min();
        } else if left == 0 {
            due.more |= !next.due(self, &names, false, 1).await?.jobs.is_empty();
        }
        let next_due_at = match due.next_due.filter(|_| due.jobs.is_empty()) {
            Some(at) => self.first_due(queue, &names, at).await?,
            None => None,
        };
        let held = self.held_jobs(&next, &due.jobs, &types).await?;
        let running = running_types(&next);
        let constraints = constraint_usage::of(&next.usage, &next.limits);
        let held_back = next.held_back(&due.jobs);
        let backlog = due.jobs.iter().filter(|job| !held_back.contains(&job.id));
        let backlog = backlog.map(|job| Candidate::of(&job.spec));
        let startable = startable(&next.limits, backlog, DRAIN_TARGET, now);
        let mut explanation = QueueExplanation {
            reason: String::new(),
            examined: due.jobs.len() as u64,
            more: due.more,
            held,
            next_due_at,
            running,
            constraints,
            workers: types,
            startable,
        };
        explanation.reason = reason(&explanation, item.paused, now);
        Ok(explanation)
    }

    /// When the first job of `types` is due, if there is one and none is due before `from`: a store
    /// may know no more than its hour, or that of a job of another type.
    async fn first_due(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        from: Timestamp,
    ) -> Result<Option<Timestamp>, StoreError> {
        let mut until = from;
        for _ in 0..MAX_LOOKS {
            let queries = [true, false].map(|critical| DueQuery {
                queue: queue.clone(),
                critical,
                types: types.to_vec(),
                partition: None,
                order: Order::Time { step_millis: 0 },
                until,
                after: None,
                limit: 1,
                granted: None,
            });
            let pages = self.ports.store.due(&queries).await?;
            let jobs = pages.iter().flat_map(|page| &page.jobs);
            if let Some(first) = jobs.filter_map(|job| job.life.run_at()).min() {
                return Ok(Some(first));
            }
            let Some(next) = pages.iter().filter_map(|page| page.next_due).min() else {
                return Ok(None);
            };
            until = next;
        }
        Ok(Some(until))
    }

    /// Since when the oldest due job of each queue has been due at `now`, among jobs of these
    /// types. Jobs that cannot be read do not count.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn oldest_due(
        &self,
        types: BTreeMap<QueueName, Vec<TypeName>>,
        now: Timestamp,
    ) -> Result<BTreeMap<QueueName, Option<Timestamp>>, StoreError> {
        let order = Order::Time { step_millis: 0 };
        let mut queries = Vec::with_capacity(types.len() * 2);
        for (queue, types) in types {
            for critical in [true, false] {
                queries.push(DueQuery {
                    queue: queue.clone(),
                    critical,
                    types: types.clone(),
                    partition: None,
                    order,
                    until: now,
                    after: None,
                    limit: 1,
                    granted: None,
                });
            }
        }
        let mut oldest: BTreeMap<QueueName, Option<Timestamp>> = BTreeMap::new();
        for _ in 0..MAX_UNREADABLE_PAGES {
            let mut rest = Vec::new();
            for (query, page) in queries.iter().zip(self.ports.store.due(&queries).await?) {
                let first = page.jobs.first().and_then(|job| job.life.run_at());
                let of_queue = oldest.entry(query.queue.clone()).or_default();
                *of_queue = of_queue.iter().copied().chain(first).min();
                if page.jobs.is_empty() && page.next.is_some() {
                    rest.push(DueQuery { after: page.next, ..query.clone() });
                }
            }
            if rest.is_empty() {
                break;
            }
            queries = rest;
        }
        Ok(oldest)
    }

    /// The groups of `jobs` by what holds them. A job that nothing holds is in none.
    async fn held_jobs(
        &self,
        next: &NextTick,
        jobs: &[Job],
        types: &BTreeMap<TypeName, WorkerStatus>,
    ) -> Result<Vec<HeldJobs>, Error> {
        let unknown = WorkerStatus::default();
        let workers = |job: &Job| types.get(&job.spec.job_type).unwrap_or(&unknown);
        let is_paused = next.limits.pause_reason().is_some();
        let held_back = next.held_back(jobs);
        let is_candidate = |job: &&Job| {
            !job.life.awaits_retry_decision()
                && !next.is_granted(job)
                && !held_back.contains(&job.id)
        };
        let candidates: Vec<Job> = jobs.iter().filter(is_candidate).cloned().collect();
        let is_taken = |job: &Job| is_paused || workers(job).exist();
        let (decisions, _) =
            next.decide(self, &candidates, &is_taken, CallPart::First, None).await?;
        let mut decided = candidates.iter().map(|job| &job.id).zip(decisions).peekable();
        let blocked = next.blocked.as_ref().filter(|_| !is_paused);
        let mut running = next.admission();
        let mut groups: Vec<HeldJobs> = Vec::new();
        let mut places: HashMap<HeldBy, usize> = HashMap::new();
        for job in jobs {
            let decision = decided.next_if(|(id, _)| **id == job.id).map(|(_, decision)| decision);
            let due_at = job.life.run_at();
            let (by, since, reason, earliest_at) = match (decision, blocked) {
                (None, _) if job.life.awaits_retry_decision() => {
                    (HeldBy::unnamed("retry"), due_at, super::NO_RETRY_DECISION.into(), None)
                }
                (None, None) if held_back.contains(&job.id) => {
                    let reason = "another job of the same partition goes first".to_owned();
                    (HeldBy::unnamed("order"), due_at, reason, None)
                }
                // It has a grant.
                (None, _) => continue,
                (Some(_), Some(Blocked { reason, until })) => {
                    (HeldBy::unnamed("ledger"), due_at, reason.clone(), *until)
                }
                (Some(AdmissionDecision::Hold(hold)), None) => {
                    let hold = by_jobs_before(&mut running, job, hold);
                    let since = next.held_since(&hold.rule).or(due_at);
                    (HeldBy::from(&hold), since, hold.reason, hold.earliest_at)
                }
                (Some(AdmissionDecision::Move(at)), None) => {
                    (HeldBy::unnamed("window"), due_at, super::WINDOWS_CLOSED.into(), Some(at))
                }
                (Some(AdmissionDecision::Run), None) if workers(job).has_room() => continue,
                (Some(AdmissionDecision::Run), None) => {
                    (HeldBy::unnamed("worker"), due_at, workers(job).reason(next.now), None)
                }
            };
            let place = *places.entry(by.clone()).or_insert(groups.len());
            if place == groups.len() {
                let (jobs, types) = (0, BTreeMap::new());
                groups.push(HeldJobs { by, jobs, types, since, reason, earliest_at });
            }
            let group = &mut groups[place];
            group.jobs += 1;
            *group.types.entry(job.spec.job_type.clone()).or_default() += 1;
            group.since = group.since.into_iter().chain(since).min();
        }
        Ok(groups)
    }
}

/// What runs under the grants of the queue, the heaviest type first.
fn running_types(next: &NextTick) -> Vec<TypeUse> {
    let mut types: BTreeMap<&TypeName, (u64, u64)> = BTreeMap::new();
    let live = next.view.iter().flat_map(LedgerView::live);
    for grant in live.filter(|grant| grant.waits_until.is_none()) {
        let (jobs, weight) = types.entry(&grant.job_type).or_default();
        *jobs += 1;
        *weight += if grant.critical { 0 } else { u64::from(grant.weight) };
    }
    let mut running: Vec<TypeUse> = types
        .into_iter()
        .map(|(name, (jobs, weight))| TypeUse {
            job_type: name.clone(),
            jobs,
            weight,
            limit: next.limits.types.get(name).copied(),
        })
        .collect();
    running.sort_by_key(|one| Reverse((one.weight, one.jobs)));
    running.truncate(MAX_RUNNING_TYPES);
    running
}

/// The explanation for people: what holds the first due job, or why there is none.
fn reason(explanation: &QueueExplanation, paused: bool, now: Timestamp) -> String {
    let QueueExplanation { examined, more, held, next_due_at, .. } = explanation;
    let due = if *more { format!("more than {examined}") } else { examined.to_string() };
    match (held.first(), next_due_at) {
        (Some(first), _) => {
            format!("{} of {due} due jobs wait: {}", first.jobs, first.reason)
        }
        (None, _) if *examined > 0 => format!("nothing holds the {due} due jobs: they start now"),
        (None, _) if paused => "the queue is paused, and nothing is due".into(),
        (None, Some(at)) => {
            format!("nothing is due until {at}, in {:.0} s", at.since(now).as_secs_f64())
        }
        (None, None) => "nothing is scheduled".into(),
    }
}
