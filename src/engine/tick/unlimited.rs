//! A round of a queue without a head: every change is a transaction of its own, and a refused one is worked out anew alone.
//!
//! A claim goes through only while the queue is configured as it was seen: the first limit put on a queue makes a head.

use std::collections::{BTreeMap, HashMap, HashSet};
use tidegate_core::error_code::ErrorCode;

use super::{
    Demand, JobChange, KnownJobs, MAX_TICK_RETRIES, TickCache, TickInput, TickOutcome, TickPlan,
    delivery, same_claim,
    search::{Capacities, Search},
    standing_job, ticked,
};
use crate::{Catalog, Engine, Error, jobs::report::Settled, request::Report};
use tidegate_core::{
    job::{Job, JobId, QueueName},
    port::{
        Committed, Txn, Work, Write,
        job_store::{CurrentRecord, ItemKind},
    },
    queue::{Admission, Limits},
};

impl Engine {
    /// A round of a queue without a head: every change on its own.
    pub(super) async fn tick_unlimited(
        &self,
        queue: &QueueName,
        memory: &mut TickCache,
        round: &TickInput,
        known: &mut KnownJobs,
        catalog: &Catalog,
        limits: &Limits,
    ) -> Result<Option<TickOutcome>, Error> {
        self.tick_unlimited_once(queue, memory, round, &[], known, catalog, limits).await
    }

    /// A round of a queue without a head that offers the jobs in `named` alone, each if it is as it was when it was sent.
    pub(crate) async fn tick_named(
        &self,
        queue: &QueueName,
        named: &[Work],
        ask: Demand,
        catalog: &Catalog,
        limits: &Limits,
    ) -> Result<TickOutcome, Error> {
        let round = TickInput { demands: vec![ask], ..TickInput::default() };
        let mut known = KnownJobs { jobs: HashMap::new() };
        let ticked = self
            .tick_unlimited_once(
                queue,
                &mut TickCache::default(),
                &round,
                named,
                &mut known,
                catalog,
                limits,
            )
            .await?;
        Ok(ticked.unwrap_or_default())
    }

    #[allow(clippy::too_many_arguments, reason = "a round is made of many parts")]
    async fn tick_unlimited_once(
        &self,
        queue: &QueueName,
        memory: &mut TickCache,
        round: &TickInput,
        named: &[Work],
        known: &mut KnownJobs,
        catalog: &Catalog,
        limits: &Limits,
    ) -> Result<Option<TickOutcome>, Error> {
        let now = self.now();
        let changes = self.unclaimed.changes();
        let mut plan = TickPlan {
            scan_cursor: memory.scan_cursor.take(),
            last_partition: memory.last_partition.clone(),
            lap_start: memory.lap_start.take(),
            ..TickPlan::default()
        };
        let mut answers = self.settle_all(round, known, catalog, &mut plan, now);
        let free = Limits {
            queue: tidegate_core::queue::QueueConfig {
                concurrency: None,
                constraints: Vec::new(),
                ..limits.queue.clone()
            },
            ..Limits::default()
        };
        let admission =
            Admission::new(&free, tidegate_core::queue::Usage::default(), BTreeMap::new(), now);
        let rooms = Capacities::of(round);
        let search = Search {
            engine: self,
            queue,
            catalog,
            limits,
            now,
            granted: None,
            admission,
            capacities: rooms,
            plan: &mut plan,
        };
        if named.is_empty() {
            search.run().await?;
        } else {
            search.run_named(named).await?;
        }

        let require = Write::RequireItem {
            kind: ItemKind::Queue,
            name: queue.to_string(),
            version: limits.version,
        };
        let before = plan.before.len();
        let mut txns: Vec<Txn> = plan
            .before
            .iter()
            .map(|change| self.change(change.was, &change.job, false, now))
            .collect();
        txns.extend(plan.claims.iter().map(|claim| {
            vec![
                require.clone(),
                Write::SetJob { job: claim.job.clone(), was: claim.was, all: false },
            ]
        }));
        let committed =
            if txns.is_empty() { Vec::new() } else { self.ports.store.commit(txns).await? };
        let (mut lost, mut stale) = (HashSet::new(), HashSet::new());
        for (index, outcome) in committed.into_iter().enumerate() {
            let Committed::Conflict { standing, .. } = outcome else {
                continue;
            };
            if index >= before {
                let job = &plan.claims[index - before].job;
                // A refused claim that finds its own token has succeeded: its first answer was lost.
                if !matches!(&standing, CurrentRecord::Job(there) if same_claim(there, job)) {
                    lost.insert(job.id.clone());
                }
                continue;
            }
            let id = &plan.before[index].job.id;
            stale.insert(id.clone());
            known.jobs.insert(id.clone(), standing_job(standing));
            self.unclaimed.forget(id);
            self.running.lock().remove(id);
        }
        // What was not claimed because something changed is looked for anew.
        plan.again |= !lost.is_empty();
        self.dispatch_unclaimed(&mut plan, catalog, changes).await?;
        for change in
            plan.before.iter().chain(&plan.claims).filter(|change| !lost.contains(&change.job.id))
        {
            self.cache_job(&change.job);
        }
        plan.claimed.retain(|claimed| !lost.contains(&claimed.job.id));
        memory.last_partition.clone_from(&plan.last_partition);
        memory.lap_start.clone_from(&plan.lap_start);
        memory.scan_cursor.clone_from(&plan.scan_cursor);
        memory.keep_scan(&mut plan, limits);
        plan.ended.retain(|id| !stale.contains(id));
        // What else the round did stands, whatever becomes of these.
        for (report, answer) in
            round.reports.iter().zip(&mut answers).filter(|(report, _)| stale.contains(&report.id))
        {
            *answer = self.settle_again(report, answer, known, catalog).await;
            plan.wake(answer.as_ref().ok().and_then(|job| job.life.run_at()));
        }
        Ok(Some(ticked(plan, answers)))
    }

    /// Settles one report again, until what it was worked out from stands still.
    async fn settle_again(
        &self,
        report: &Report,
        answer: &Result<Job, Error>,
        known: &mut KnownJobs,
        catalog: &Catalog,
    ) -> Result<Job, Error> {
        for _ in 0..MAX_TICK_RETRIES {
            let now = self.now();
            let job = known
                .jobs
                .get(&report.id)
                .cloned()
                .flatten()
                .ok_or_else(|| Error::no_job(&report.id))?;
            // Somebody else's write may have led to the same revision: only the same life is ours.
            if answer.as_ref().is_ok_and(|answered| answered.life == job.life) {
                return Ok(job);
            }
            let Settled::Changed(settled) =
                self.settle(&job, report, delivery(catalog, &job), now)?
            else {
                return Ok(job);
            };
            let writes = self.change(job.life.revision, &settled, false, now);
            match self.ports.store.commit(vec![writes]).await?.pop() {
                Some(Committed::All) => {
                    self.cache_job(&settled);
                    known.jobs.insert(report.id.clone(), Some((*settled).clone()));
                    return Ok(*settled);
                }
                Some(Committed::Conflict { standing, .. }) => {
                    drop(known.jobs.insert(report.id.clone(), standing_job(standing)))
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

    /// Hands on the jobs that need no claim, but for those that changed, or whose configuration did, since they were read: these
    /// are looked for anew. `changes` is what [`Plain::changes`](crate::jobs::unclaimed::Plain::changes) was before the read.
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
        // From here on nobody else changes them.
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
        running.extend(
            plan.unclaimed.iter().map(|change| (change.job.id.clone(), change.job.clone())),
        );
        Ok(())
    }

    /// Which of the jobs that were just handed on are not any more what they were when they were read.
    async fn stale_unclaimed(
        &self,
        plan: &TickPlan,
        catalog: &Catalog,
        changes: u64,
    ) -> Result<Vec<JobId>, Error> {
        let ids: Vec<JobId> = plan.unclaimed.iter().map(|change| change.job.id.clone()).collect();
        if self.ports.store.items_version().await? != catalog.version {
            return Ok(ids);
        }
        if self.unclaimed.changes() == changes {
            return Ok(Vec::new());
        }
        let there = self.ports.store.get(&ids).await?;
        let same = |(change, there): &(&JobChange, Option<Job>)| {
            there.as_ref().is_some_and(|job| job.life.revision == change.was)
        };
        Ok(plan
            .unclaimed
            .iter()
            .zip(there)
            .filter(|pair| !same(pair))
            .map(|(change, _)| change.job.id.clone())
            .collect())
    }
}
