//! A tick of a queue without a ledger: every change is a transaction of its own, and a refused one
//! is computed again alone.
//!
//! A claim takes effect only while the queue's configuration is the one that was read: the first
//! limit of a queue creates a ledger.

use std::{collections::HashSet, sync::Arc};
use tidegate_core::error_code::ErrorCode;

use super::{
    Candidates, Demand, MAX_TICK_RETRIES, TickCache, TickContext, TickInput, TickOutcome,
    current_job,
    plan::{JobChange, TickPlan},
    same_claim,
    search::{Capacities, Search},
    settle::KnownJobs,
};
use crate::{
    Catalog, Engine, Error,
    jobs::{repeated_leases::lease_records, report::Settled},
    request::Report,
};
use tidegate_core::{
    job::{Job, JobId, QueueName},
    port::{
        Committed, Txn, Work, Write,
        job_store::{CurrentRecord, ItemKind, StoredJob},
    },
    queue::{Admission, Limits, QueueConfig, Usage, rate::RateCounts},
    time::Timestamp,
};

/// The jobs whose transactions were refused.
#[derive(Default)]
struct RefusedJobs {
    /// Jobs that were not claimed.
    claims: HashSet<JobId>,
    /// Jobs that changed since they were read: their reports are settled again.
    changes: HashSet<JobId>,
}

impl Engine {
    /// Claims those of the `named` jobs that are still at the version that was sent.
    pub(crate) async fn tick_named(
        &self,
        queue: &QueueName,
        named: &[Work],
        demand: Demand,
        catalog: &Catalog,
        limits: &Arc<Limits>,
    ) -> Result<TickOutcome, Error> {
        let input = TickInput { demands: vec![demand], ..TickInput::default() };
        let (from_cache, closed) = (false, &[][..]);
        let context = TickContext { queue, input: &input, catalog, limits, from_cache, closed };
        let mut known = KnownJobs::default();
        let cache = &mut TickCache::default();
        self.tick_unlimited(&context, cache, &mut known, Candidates::Named(named)).await
    }

    /// Runs a tick of a queue without a ledger, or one that must not touch it.
    pub(super) async fn tick_unlimited(
        &self,
        context: &TickContext<'_>,
        cache: &mut TickCache,
        known: &mut KnownJobs,
        candidates: Candidates<'_>,
    ) -> Result<TickOutcome, Error> {
        let &TickContext { input, catalog, limits, .. } = context;
        let now = self.now();
        let changes = self.unclaimed.changes();
        let (scan_cursor, lap_start) = (cache.scan_cursor.take(), cache.lap_start.take());
        let capacity = input.demands.iter().map(|demand| demand.capacity).sum();
        let window = cache.spread.window(capacity);
        let window = window.map(|window| (window, self.ports.entropy.fraction()));
        let (mut closed, mut next_start_at, mut pass) = (Vec::new(), None, 0);
        let (mut plan, mut answers) = loop {
            pass += 1;
            let mut plan = TickPlan {
                scan_cursor: scan_cursor.clone(),
                last_partition: cache.last_partition.clone(),
                lap_start: lap_start.clone(),
                ..TickPlan::default()
            };
            let answers = self.settle_all(input, known, catalog, &mut plan, now);
            let attempt = TickContext { closed: &closed, ..*context };
            self.search_unlimited(&attempt, &mut plan, candidates, window, now).await?;
            // What an attempt found for a demand with too few jobs wakes the queue all the same.
            plan.wake_to_start(next_start_at);
            let unmet = plan.unmet(&input.demands, &closed, pass);
            if unmet.is_empty() {
                break (plan, answers);
            }
            next_start_at = plan.next_start_at;
            closed.extend(unmet);
        };
        let refused = self.commit_unlimited(context, &plan, known, now).await?;
        cache.spread.note(plan.claims.len(), refused.claims.len());
        // Refused claims are searched for again.
        plan.again |= !refused.claims.is_empty();
        self.dispatch_unclaimed(&mut plan, catalog, changes).await?;
        for change in plan.before.iter().chain(&plan.claims) {
            if !refused.claims.contains(&change.job.id) {
                self.cache_job(&change.job);
            }
        }
        plan.claimed.retain(|claimed| !refused.claims.contains(&claimed.job.id));
        cache.last_partition.clone_from(&plan.last_partition);
        cache.lap_start.clone_from(&plan.lap_start);
        cache.scan_cursor.clone_from(&plan.scan_cursor);
        cache.keep_scan(&mut plan, limits);
        plan.ended.retain(|id| !refused.changes.contains(id));
        plan.unnamed_objects.retain(|(id, _)| !refused.changes.contains(id));
        // Everything else that the tick did is committed, even if one of these fails.
        for (report, answer) in input.reports.iter().zip(&mut answers) {
            if refused.changes.contains(&report.id) {
                *answer = self.settle_again(report, answer, known, catalog).await;
                plan.wake(answer.as_ref().ok().and_then(|job| job.life.run_at()));
            }
        }
        Ok(plan.into_outcome(answers))
    }

    /// Offers candidates to an admission without limits.
    async fn search_unlimited(
        &self,
        context: &TickContext<'_>,
        plan: &mut TickPlan,
        candidates: Candidates<'_>,
        window: Option<(u32, f64)>,
        now: Timestamp,
    ) -> Result<(), Error> {
        let &TickContext { queue, input, catalog, limits, closed, .. } = context;
        let queue_config =
            QueueConfig { concurrency: None, constraints: Vec::new(), ..limits.queue.clone() };
        let unlimited = Limits { queue: queue_config, ..Limits::default() };
        let search = Search {
            engine: self,
            queue,
            catalog,
            limits,
            now,
            granted: None,
            admission: Admission::new(&unlimited, Usage::default(), RateCounts::default(), now),
            capacities: Capacities::of(input, catalog, closed),
            leave_out: None,
            window,
            plan,
        };
        match candidates {
            Candidates::Due => search.run().await.map(drop),
            Candidates::Named(work) => search.run_named(work).await,
        }
    }

    /// Commits the changes and the claims of `plan`, each on its own. Returns the refused ones.
    async fn commit_unlimited(
        &self,
        context: &TickContext<'_>,
        plan: &TickPlan,
        known: &mut KnownJobs,
        now: Timestamp,
    ) -> Result<RefusedJobs, Error> {
        let require = Write::RequireItem {
            kind: ItemKind::Queue,
            name: context.queue.clone().into(),
            version: context.limits.version,
        };
        let settled = plan.before.iter();
        let mut txns: Vec<Txn> =
            settled.map(|change| self.change_writes(change.was, &change.job, false, now)).collect();
        txns.extend(plan.claims.iter().map(|claim| {
            let job = claim.job.clone();
            vec![require.clone(), Write::SetJob { job, was: claim.was, all: false }]
        }));
        let mut refused = RefusedJobs::default();
        if txns.is_empty() {
            return Ok(refused);
        }
        let claimed = plan.claimed.iter().map(|claimed| (claimed.demand, &claimed.job));
        let records = lease_records(&context.input.demands, &claimed);
        self.write_lease_records(records, &mut txns).await?;
        let outcomes = if plan.claims.is_empty() {
            self.ports.store.commit(txns).await?
        } else {
            self.write_claims(txns).await?
        };
        // Behind the claims there may be a record of them, which is never refused.
        for (index, outcome) in outcomes.into_iter().enumerate() {
            let Committed::Conflict { current, .. } = outcome else {
                continue;
            };
            if let Some(change) = plan.before.get(index) {
                let id = &change.job.id;
                refused.changes.insert(id.clone());
                known.insert(id, current_job(current));
                self.unclaimed.forget(id);
                self.running.lock().remove(id);
            } else {
                let job = &plan.claims[index - plan.before.len()].job;
                // A refused claim that finds its own token has succeeded: its first answer was
                // lost.
                if !matches!(&current, CurrentRecord::Job(there) if same_claim(there, job)) {
                    refused.claims.insert(job.id.clone());
                }
            }
        }
        Ok(refused)
    }

    /// Settles one report again, until its job does not change meanwhile.
    async fn settle_again(
        &self,
        report: &Report,
        answer: &Result<Job, Error>,
        known: &mut KnownJobs,
        catalog: &Catalog,
    ) -> Result<Job, Error> {
        for _ in 0..MAX_TICK_RETRIES {
            let now = self.now();
            let job = known.get(&report.id)?;
            // Another process's write may have led to the same revision. Only the same life is
            // ours.
            if answer.as_ref().is_ok_and(|answered| answered.life == job.life) {
                return Ok(job);
            }
            let Settled::Changed(settled) = self.settle(&job, report, catalog, now)? else {
                return Ok(job);
            };
            let writes = self.change_writes(job.life.revision, &settled, false, now);
            match self.ports.store.commit(vec![writes]).await?.pop() {
                Some(Committed::All) => {
                    self.cache_job(&settled);
                    known.insert(&report.id, Ok(Some((*settled).clone())));
                    return Ok(*settled);
                }
                Some(Committed::Conflict { current, .. }) => {
                    known.insert(&report.id, current_job(current));
                }
                None => break,
            }
        }
        Err(Error::Conflict {
            code: ErrorCode::ConcurrentUpdate,
            message: "the job keeps changing".into(),
            holder: None,
        })
    }

    /// Dispatches the jobs that need no claim, except those that changed since they were read, or
    /// whose configuration did: the next tick searches for these again. `changes` is the value of
    /// [`UnclaimedJobs::changes`](crate::jobs::unclaimed::UnclaimedJobs::changes) before the read.
    async fn dispatch_unclaimed(
        &self,
        plan: &mut TickPlan,
        catalog: &Catalog,
        changes: u64,
    ) -> Result<(), Error> {
        if plan.unclaimed.is_empty() {
            return Ok(());
        }
        let mut lost = self
            .unclaimed
            .dispatch(plan.unclaimed.iter().map(|change| (&change.job.id, change.was)));
        // From here on no other caller of this process changes them.
        let stale = self.stale_unclaimed(plan, catalog, changes).await;
        let forget: Vec<JobId> = match &stale {
            Ok(stale) => stale.clone(),
            Err(_) => plan.unclaimed.iter().map(|change| change.job.id.clone()).collect(),
        };
        for id in &forget {
            self.unclaimed.forget(id);
        }
        lost.extend(stale?);
        plan.again |= !lost.is_empty();
        plan.claimed.retain(|claimed| !lost.contains(&claimed.job.id));
        plan.unclaimed.retain(|change| !lost.contains(&change.job.id));
        let mut running = self.running.lock();
        for change in &plan.unclaimed {
            running.insert_unclaimed(change.job.clone());
        }
        Ok(())
    }

    /// The jobs among those just dispatched that changed since they were read.
    async fn stale_unclaimed(
        &self,
        plan: &TickPlan,
        catalog: &Catalog,
        changes: u64,
    ) -> Result<Vec<JobId>, Error> {
        let ids: Vec<JobId> = plan.unclaimed.iter().map(|change| change.job.id.clone()).collect();
        if !self.is_recent(catalog) && self.ports.store.items_version().await? != catalog.version {
            return Ok(ids);
        }
        if self.unclaimed.changes() == changes {
            return Ok(Vec::new());
        }
        let there = self.ports.store.get(&ids).await?;
        let same = |(change, there): &(&JobChange, StoredJob)| matches!(there, Ok(Some(job)) if job.life.revision == change.was);
        Ok(plan
            .unclaimed
            .iter()
            .zip(there)
            .filter(|pair| !same(pair))
            .map(|(change, _)| change.job.id.clone())
            .collect())
    }
}
