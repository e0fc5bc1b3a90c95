//! Queues with strict order: the jobs of a partition start one after another.
//!
//! The running jobs of such a queue are grants of its ledger, and so a tick knows which partitions
//! are busy. A job that waits for its next attempt would leave the ledger, and the jobs behind it
//! would pass. So the commit that releases its grant gives it a **waiting grant**: it starts
//! nothing, takes nothing of the limits, and names when the job is due. A tick finds the job by it,
//! and reads no job of its partition until then.
//!
//! A job keeps its place until it ends, or until a change of its due time moves it aside.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::{grant, plan::TickPlan, search::Search, view::AUDIT_INTERVAL};
use crate::{Engine, Error, LedgerView};
use tidegate_core::{
    job::{Attributes, Job, JobId, State, Version, lifecycle::Waiting},
    port::job_store::DueQuery,
    queue::{Grant, Limits, config::MAX_RUNNING, order::Order},
    time::Timestamp,
};

/// Waiting grants whose jobs one tick reads at most: of twice as many jobs as it can start, and a
/// few.
const MAX_HEADS: usize = 256;
const MORE_HEADS: usize = 8;

/// Whether `job` has started, and holds back the jobs behind it while it waits.
///
/// A caller that postpones a job that waits for its next attempt moves it aside: it is due later
/// than its latest attempt left it for.
pub(crate) fn keeps_place(job: &Job) -> bool {
    let State::Scheduled { run_at, waiting } = job.life.state else { return false };
    let planned = job.life.history.last().and_then(|entry| entry.retry_at);
    let is_postponed = match waiting {
        Waiting::Due => planned.is_none_or(|planned| run_at > planned),
        Waiting::Window { due } => planned.is_none_or(|planned| due > planned),
        Waiting::Retry | Waiting::Throttler | Waiting::RetryDecision => false,
    };
    job.life.attempt > 0 && !job.spec.critical && !is_postponed
}

/// The partition that a job with `attributes` holds back. None without strict order, or without the
/// attribute.
pub(crate) fn place_of(limits: &Limits, attributes: &Attributes) -> Option<String> {
    let by = limits.queue.partition_by.as_ref().filter(|_| limits.queue.strict_order)?;
    attributes.get(by).map(tidegate_core::job::Value::text).filter(|text| !text.is_empty())
}

/// The waiting grant of a job that keeps its place.
fn waiting_grant(limits: &Limits, job: &Job, now: Timestamp) -> Option<Grant> {
    place_of(limits, &job.spec.attributes).filter(|_| keeps_place(job))?;
    Some(Grant { weight: 0, waits_until: job.life.run_at(), ..grant(job, now) })
}

impl TickPlan {
    /// Grants `job`, whose grant is released, its place while it waits for its next attempt.
    /// Returns whether it has one.
    fn keep_place(&mut self, limits: &Limits, job: &Job, now: Timestamp) -> bool {
        let Some(grant) = waiting_grant(limits, job, now) else { return false };
        self.again |= grant.waits_until.is_some_and(|at| at <= now);
        self.wake_to_start(grant.waits_until);
        self.delta.granted.push(grant);
        self.delta.check_by(now + AUDIT_INTERVAL);
        true
    }
}

impl Engine {
    /// Keeps the places of those jobs whose grants `plan` releases and that have not ended.
    pub(super) async fn keep_places(
        &self,
        limits: &Limits,
        plan: &mut TickPlan,
        now: Timestamp,
    ) -> Result<(), Error> {
        if !limits.queue.strict_order || plan.delta.released.is_empty() {
            return Ok(());
        }
        let changed: HashMap<JobId, Job> =
            plan.before.iter().map(|change| (change.job.id.clone(), change.job.clone())).collect();
        let released: HashSet<JobId> =
            plan.delta.released.iter().map(|(id, _)| id.clone()).collect();
        let mut unknown: Vec<JobId> =
            released.iter().filter(|id| !changed.contains_key(*id)).cloned().collect();
        unknown.sort_unstable();
        let read =
            if unknown.is_empty() { Vec::new() } else { self.ports.store.get(&unknown).await? };
        let (mut jobs, mut unreadable) = (Vec::new(), HashSet::new());
        for (id, job) in unknown.iter().zip(read) {
            match job {
                Ok(job) => jobs.extend(job),
                Err(_) => {
                    unreadable.insert(id);
                }
            }
        }
        // One that cannot be read keeps its grant, and with it its place.
        plan.delta.released.retain(|(id, _)| !unreadable.contains(id));
        jobs.extend(changed.into_values().filter(|job| released.contains(&job.id)));
        jobs.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        for job in jobs {
            plan.keep_place(limits, &job, now);
        }
        Ok(())
    }
}

/// The live grants of a view without those that this tick has released.
fn live<'a>(
    view: &'a LedgerView,
    released: &'a HashMap<JobId, Version>,
) -> impl Iterator<Item = &'a Grant> {
    view.live().filter(|grant| released.get(&grant.job) != Some(&grant.version))
}

impl Search<'_> {
    /// Offers the first job of each partition that no started job holds back.
    pub(super) async fn scan_in_line(&mut self) -> Result<(), Error> {
        // Of the scan before the queue had strict order.
        self.plan.scan_cursor = None;
        if self.capacities.types().is_empty() || self.admission.closed(false) {
            self.held_if_closed(false);
            return Ok(());
        }
        let Some((view, released)) = self.granted.clone() else { return Ok(()) };
        let place = |grant: &Grant| {
            let attributes = (!grant.critical).then_some(&grant.attributes)?;
            place_of(self.limits, attributes)
        };
        let new = self.plan.delta.granted.iter();
        let mut taken: BTreeSet<String> =
            live(view, &released).chain(new).filter_map(place).collect();
        let mut heads: Vec<&Grant> =
            live(view, &released).filter(|grant| grant.waits_until.is_some()).collect();
        let later = heads.iter().filter_map(|grant| grant.waits_until).filter(|at| *at > self.now);
        self.plan.wake_to_start(later.min());
        heads.retain(|grant| grant.waits_until.is_some_and(|at| at <= self.now));
        let types = self.capacities.types();
        heads.retain(|grant| {
            types.contains(&grant.job_type) && !self.admission.closed_to(&grant.job_type)
        });
        heads.sort_by_key(|grant| (grant.waits_until, &grant.job));
        // Jobs that started before the queue had strict order, or whose partition has changed
        // since, may share a place: only one of them starts, and none while another one runs.
        let running = live(view, &released).chain(self.plan.delta.granted.iter());
        let mut busy: BTreeSet<String> =
            running.filter(|grant| grant.waits_until.is_none()).filter_map(place).collect();
        heads.retain(|grant| place(grant).is_none_or(|place| busy.insert(place)));
        let most = MAX_HEADS.min(2 * self.wanted(false) as usize + MORE_HEADS);
        if heads.len() > most {
            // Those that a limit holds do not hide the others for ever.
            let first = heads.len() as f64 * self.engine.ports.entropy.fraction();
            let first = (first as usize).min(heads.len());
            heads.rotate_left(first);
            heads.truncate(most);
        }
        self.offer_heads(&heads).await?;
        // Each started job of a partition may need a place, so their number has the same bound.
        if live(view, &released).count() as u64 >= MAX_RUNNING {
            return Ok(());
        }
        self.offer_first_of_each(&mut taken).await
    }

    /// Offers the jobs of waiting grants whose time has come.
    async fn offer_heads(&mut self, heads: &[&Grant]) -> Result<(), Error> {
        if heads.is_empty() {
            return Ok(());
        }
        let ids: Vec<JobId> = heads.iter().map(|grant| grant.job.clone()).collect();
        let jobs = self.engine.ports.store.get(&ids).await?;
        for (head, job) in heads.iter().zip(jobs) {
            // One that cannot be read keeps its place.
            let Ok(job) = job else { continue };
            let before = self.plan.before.len();
            let changed = match job {
                Some(job) if job.life.version == head.version => {
                    self.try_admit(&job);
                    self.plan.before[before..].first().map(|change| Some(change.job.clone()))
                }
                // It has changed since, or is gone.
                other => Some(other),
            };
            if let Some(changed) = changed {
                self.plan.delta.released.push((head.job.clone(), head.version));
                let keeps =
                    changed.is_some_and(|job| self.plan.keep_place(self.limits, &job, self.now));
                // The next tick finds its partition free.
                self.plan.again |= !keeps;
            }
            if self.admission.closed(false) || self.capacities.total() == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Gives `job` its place if it has started and has no grant: its partition has changed, or the
    /// queue got its strict order later. The next tick offers it. Returns whether it has one now.
    fn gives_place(&mut self, job: &Job) -> bool {
        let older = self.granted.as_ref().and_then(|(view, _)| view.grant(&job.id));
        if older.is_some_and(|older| older.version >= job.life.version) {
            return false;
        }
        let older = older.map(|older| (job.id.clone(), older.version));
        let has_place = self.plan.keep_place(self.limits, job, self.now);
        if has_place
            && let Some(older) = older
            && !self.plan.delta.released.contains(&older)
        {
            self.plan.delta.released.push(older);
        }
        has_place
    }

    /// Offers the first job of each partition that is not in `taken`, in turn. The jobs of all
    /// types count, also those that no worker takes.
    async fn offer_first_of_each(&mut self, taken: &mut BTreeSet<String>) -> Result<(), Error> {
        if self.admission.closed(false) || self.capacities.total() == 0 {
            return Ok(());
        }
        let types: Vec<_> =
            self.catalog.types_of(self.queue).map(|(name, _)| name.clone()).collect();
        let last = self.plan.last_partition.clone();
        let engine = self.engine;
        let turn =
            engine.partitions_in_turn(self.queue, &types, self.now, last.as_deref(), taken).await?;
        self.plan.wake_to_start(turn.next_due);
        let queries: Vec<DueQuery> = turn
            .names
            .iter()
            .map(|name| DueQuery {
                queue: self.queue.clone(),
                critical: false,
                types: types.clone(),
                partition: Some(name.clone()),
                order: Order::of(&self.limits.queue),
                until: self.now,
                after: None,
                // Jobs without the attribute have no order.
                limit: if name.is_empty() { self.wanted(false).clamp(1, 1000) } else { 1 },
                granted: self.leave_out.clone(),
            })
            .collect();
        let pages = if queries.is_empty() {
            Vec::new()
        } else {
            self.engine.ports.store.due(&queries).await?
        };
        for page in pages {
            self.plan.wake_to_start(page.next_due);
            for job in page.jobs {
                let place = place_of(self.limits, &job.spec.attributes);
                if place.as_ref().is_some_and(|place| taken.contains(place)) {
                    continue;
                }
                if self.gives_place(&job) {
                    taken.extend(place);
                } else if self.try_admit(&job) {
                    self.plan.last_partition = Some(job.spec.partition.clone());
                    taken.extend(place);
                }
            }
            if self.admission.closed(false) || self.capacities.total() == 0 {
                self.plan.lap_start = None;
                return Ok(());
            }
        }
        self.advance_lap(last.as_deref(), turn.end);
        Ok(())
    }
}
