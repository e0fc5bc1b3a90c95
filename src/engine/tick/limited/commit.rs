//! The writes of a limited tick, in an order that makes any prefix safe.
//!
//! Settled jobs come before the batch, the batch before the ledger that names it, claims and the
//! removal of old batches after the ledger. An atomic store takes all of it in one transaction. On
//! another store there are three commits, and the second one, of the ledger, decides.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use super::LimitedDecision;
use crate::{
    Engine, Error, LedgerView,
    jobs::repeated_leases::lease_records,
    tick::{
        TickCache, TickContext, TickOutcome, claim::MAX_REPEATS, current_job, plan::TickPlan,
        same_claim, search::ReadAhead, settle::KnownJobs, throttle::Throttling, view::Prepared,
    },
};
use tidegate_core::{
    job::{Job, JobId},
    port::{
        Committed, StoreError, Txn, Write,
        job_store::{CurrentRecord, Expect, ItemKind},
    },
    queue::{Ledger, Rule},
    time::Timestamp,
};

/// How long after a failed send granted work is sent again.
const RESEND_AFTER: Duration = Duration::from_secs(1);
/// Rules whose holding time the ledger records at most: a rule may have thousands of values.
const MAX_HELD_RULES: usize = 24;

/// The writes of one limited tick.
struct LimitedWrites {
    /// Settled, fenced, revoked and moved jobs: one transaction each.
    jobs: Vec<Txn>,
    /// The requirements, the new batches and the ledger; empty if the ledger does not change.
    ledger: Txn,
    /// One transaction per claim.
    claims: Vec<Txn>,
    /// Removes the batches that the ledger no longer names.
    garbage: Vec<Write>,
    /// The view after the commit, if the ledger changes.
    prepared: Option<Prepared>,
}

impl Engine {
    /// Commits a limited tick and sends its work. `None` if another process made it obsolete.
    pub(super) async fn commit_limited(
        &self,
        context: &TickContext<'_>,
        cache: &mut TickCache,
        known: &mut KnownJobs,
        mut decision: LimitedDecision,
    ) -> Result<Option<TickOutcome>, Error> {
        let view = cache.view.as_mut().expect("the caller read it");
        let mut writes = self.limited_writes(context, view, &mut decision);
        let LimitedDecision { now, mut plan, answers, .. } = decision;
        let prepared = writes.prepared.take();
        let committed = if self.ports.store.capabilities().atomicity.is_atomic() {
            self.commit_whole(writes, cache, known).await?
        } else {
            self.commit_in_steps(writes, &mut plan, cache, known).await?
        };
        if !committed {
            return Ok(None);
        }
        for change in plan.before.iter().chain(&plan.claims) {
            self.cache_job(&change.job);
        }
        for claim in &plan.claims {
            self.unclaimed.forget(&claim.job.id);
        }
        let unreported = plan.throttling.as_ref().map(|throttling| throttling.unreported().clone());
        cache.unreported = unreported.unwrap_or_default();
        let view = cache.view.as_mut().expect("it was not lost");
        view.note_read(&plan.delta);
        if let Some(prepared) = prepared {
            view.committed(prepared, &plan.delta, context.limits);
        }
        plan.wake(view.next_check());
        if !plan.send.is_empty() || view.ledger.batches.iter().any(|batch| !batch.sent) {
            // The commit holds even if sending fails: the next tick sends the work again.
            let TickContext { queue, catalog, limits, .. } = context;
            if let Err(error) = self.send(queue, cache, &mut plan, catalog, limits).await {
                tracing::warn!(queue = %context.queue, %error, "granted work was not sent");
                cache.view = None;
                plan.wake(Some(now + RESEND_AFTER));
            }
        }
        cache.read_ahead = ReadAhead::after(&mut plan);
        cache.keep_scan(&mut plan, context.limits);
        Ok(Some(plan.into_outcome(answers)))
    }

    /// Returns the writes that commit `decision`. A ledger that changes only what one process needs
    /// is not written, but updated in `view`.
    fn limited_writes(
        &self,
        context: &TickContext<'_>,
        view: &mut LedgerView,
        decision: &mut LimitedDecision,
    ) -> LimitedWrites {
        let (ledger, plan, now) = (&mut decision.ledger, &mut decision.plan, decision.now);
        let (mut ledger_writes, mut prepared) = (Txn::new(), None);
        ledger.held = held_since(plan, ledger, now);
        let changes = self.changes_ledger(context, view, ledger, plan);
        ledger.scan_cursor.clone_from(&plan.scan_cursor);
        ledger.last_partition.clone_from(&plan.last_partition);
        ledger.lap_start.clone_from(&plan.lap_start);
        if changes {
            ledger.version += 1;
            ledger.nonce = self.ports.entropy.bits() as u64;
            ledger.time = now;
            ledger.config_version = ledger.config_version.max(context.limits.version);
            ledger.set_rate_counts(std::mem::take(&mut plan.rate_counts));
            let next = view.prepare(std::mem::take(ledger), &plan.delta);
            let claimed = plan.claimed.iter().map(|claimed| (claimed.demand, &claimed.job));
            // Before the ledger, so that no claim is without its record.
            ledger_writes = lease_records(&context.input.demands, &claimed);
            ledger_writes.append(&mut ledger_txn(context, view, plan, &next));
            prepared = Some(next);
        } else {
            view.ledger.held = std::mem::take(&mut ledger.held);
            view.ledger.scan_cursor = ledger.scan_cursor.take();
            view.ledger.last_partition = ledger.last_partition.take();
            view.ledger.lap_start = ledger.lap_start.take();
        }
        let settled = plan.before.iter();
        let jobs =
            settled.map(|change| self.change_writes(change.was, &change.job, false, now)).collect();
        let claim = |job, was| vec![Write::SetJob { job, was, all: false }];
        let claims = plan.claims.iter().map(|change| claim(change.job.clone(), change.was));
        let removed = prepared.iter().flat_map(|prepared| &prepared.remove);
        LimitedWrites {
            jobs,
            claims: claims.collect(),
            garbage: removed.map(|id| Write::RemoveBatch(context.queue.clone(), *id)).collect(),
            ledger: ledger_writes,
            prepared,
        }
    }

    /// Whether the tick must write the ledger.
    pub(super) fn changes_ledger(
        &self,
        context: &TickContext<'_>,
        view: &LedgerView,
        ledger: &Ledger,
        plan: &TickPlan,
    ) -> bool {
        let (stored, delta) = (&view.ledger, &plan.delta);
        let scan_moved = (&plan.scan_cursor, &plan.last_partition, &plan.lap_start)
            != (&stored.scan_cursor, &stored.last_partition, &stored.lap_start);
        !delta.released.is_empty()
            || !delta.granted.is_empty()
            || !delta.checked.is_empty()
            || delta.policy.is_some()
            || plan.decided
            || ledger.settling_until != stored.settling_until
            // If the store is shared, any process may continue the scan.
            || (scan_moved && !self.ports.store.capabilities().is_exclusive())
            || context.limits.version > stored.config_version
    }

    /// Commits all writes in one transaction. False if it was refused.
    ///
    /// If the answer is lost, the commit is repeated: the jobs that it claimed would run nowhere
    /// until their leases end. A repeat of a commit that had happened is refused, and the first claim
    /// shows that it had.
    async fn commit_whole(
        &self,
        writes: LimitedWrites,
        cache: &mut TickCache,
        known: &mut KnownJobs,
    ) -> Result<bool, Error> {
        let LimitedWrites { jobs, ledger, claims, garbage, .. } = writes;
        let claimed = claims.iter().flatten().find_map(|write| match write {
            Write::SetJob { job, .. } => Some(job.clone()),
            _ => None,
        });
        let jobs = jobs.into_iter().flatten();
        let txn: Txn =
            jobs.chain(ledger).chain(claims.into_iter().flatten()).chain(garbage).collect();
        let mut conflict = self.conflict_of(&txn).await;
        if let Some(claimed) = claimed.filter(|_| self.ports.store.capabilities().shared) {
            for repeat in 0..MAX_REPEATS {
                if !matches!(conflict, Err(Error::Unavailable { .. })) {
                    break;
                }
                self.pause_before(repeat).await;
                conflict = self.conflict_of(&txn).await;
                if matches!(conflict, Ok(Some(_))) {
                    match self.is_claimed(&claimed).await {
                        Ok(true) => return Ok(true),
                        Ok(false) => break,
                        Err(error) => conflict = Err(error),
                    }
                }
            }
        }
        Ok(self.learn(&txn, conflict?, cache, known))
    }

    /// Whether the store has this claim.
    async fn is_claimed(&self, claimed: &Job) -> Result<bool, Error> {
        let stored = self.ports.store.get(std::slice::from_ref(&claimed.id)).await?.pop();
        let stored = stored.and_then(Result::ok).flatten();
        Ok(stored.is_some_and(|stored| same_claim(&stored, claimed)))
    }

    /// Commits the jobs, then the batches, all at once, then the ledger that names them, then the
    /// claims. False if jobs or ledger were refused: its batches are then garbage.
    ///
    /// Refused claims leave the plan. Their grants are revoked when their time to be claimed is
    /// over.
    async fn commit_in_steps(
        &self,
        writes: LimitedWrites,
        plan: &mut TickPlan,
        cache: &mut TickCache,
        known: &mut KnownJobs,
    ) -> Result<bool, Error> {
        let LimitedWrites { jobs, ledger, claims, garbage, .. } = writes;
        let (batches, ledger): (Txn, Txn) =
            ledger.into_iter().partition(|write| matches!(write, Write::AddBatch(..)));
        let committed = self.commit_jobs(jobs, cache, known).await?
            && self.commit_batches(batches).await?
            && self.commit_one(ledger, cache, known).await?;
        if !committed {
            self.reread(plan, known).await?;
            return Ok(false);
        }
        let lost = self.commit_claims(claims, garbage, plan).await?;
        if !lost.is_empty() {
            plan.claims.retain(|claim| !lost.contains(&claim.job.id));
            plan.claimed.retain(|claimed| !lost.contains(&claimed.job.id));
            // An unclaimed dispatch leaves the cache too. There it has the revision of its claim,
            // which is now that of another write, and a late result would replace that one.
            let mut running = self.running.lock();
            for id in &lost {
                self.unclaimed.forget(id);
                running.remove(id);
            }
            plan.again = true;
        }
        Ok(true)
    }

    /// Writes batches, each on its own: without atomic transactions, the writes of one follow each
    /// other, and a large state of a throttler has 64 pages.
    async fn commit_batches(&self, batches: Txn) -> Result<bool, Error> {
        let txns = batches.into_iter().map(|write| vec![write]).collect();
        let outcomes = self.commit_all(txns).await?;
        Ok(outcomes.iter().all(|outcome| matches!(outcome, Committed::All)))
    }

    /// Commits one transaction, which may be empty. False if it was refused.
    async fn commit_one(
        &self,
        txn: Txn,
        cache: &mut TickCache,
        known: &mut KnownJobs,
    ) -> Result<bool, Error> {
        let conflict = self.conflict_of(&txn).await?;
        Ok(self.learn(&txn, conflict, cache, known))
    }

    /// Commits a transaction, which may be empty. If it was refused, the number of the write that was,
    /// and the record that it found.
    async fn conflict_of(&self, txn: &Txn) -> Result<Option<(usize, CurrentRecord)>, Error> {
        if txn.is_empty() {
            return Ok(None);
        }
        match self.ports.store.commit(vec![txn.clone()]).await?.pop() {
            Some(Committed::All) => Ok(None),
            Some(Committed::Conflict { step, current }) => Ok(Some((step, current))),
            None => Err(Error::Internal("the store did not answer a transaction".into())),
        }
    }

    /// Whether `txn` was not refused. Records why it was.
    fn learn(
        &self,
        txn: &Txn,
        conflict: Option<(usize, CurrentRecord)>,
        cache: &mut TickCache,
        known: &mut KnownJobs,
    ) -> bool {
        let Some((step, current)) = conflict else { return true };
        self.on_conflict(&txn[step], current, cache, known);
        false
    }

    /// Commits the changes of jobs, each on its own. False if any was refused.
    async fn commit_jobs(
        &self,
        txns: Vec<Txn>,
        cache: &mut TickCache,
        known: &mut KnownJobs,
    ) -> Result<bool, Error> {
        let mut all_committed = true;
        for (txn, outcome) in txns.iter().zip(self.commit_all(txns.clone()).await?) {
            if let Committed::Conflict { step, current } = outcome {
                self.on_conflict(&txn[step], current, cache, known);
                all_committed = false;
            }
        }
        Ok(all_committed)
    }

    /// Commits `txns`, which may be none.
    async fn commit_all(&self, txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        if txns.is_empty() { Ok(Vec::new()) } else { self.ports.store.commit(txns).await }
    }

    /// Commits the claims of `plan`, each on its own, and removes old batches. Returns the jobs
    /// that were not claimed.
    async fn commit_claims(
        &self,
        claims: Vec<Txn>,
        garbage: Vec<Write>,
        plan: &TickPlan,
    ) -> Result<HashSet<JobId>, Error> {
        let garbage = garbage.into_iter().map(|write| vec![write]).collect();
        let (claimed, removed) =
            futures_util::join!(self.commit_all(claims), self.commit_all(garbage));
        if let Err(error) = removed {
            // Each engine removes what no ledger names once an hour.
            tracing::warn!(%error, "old grant batches were not removed");
        }
        let mut lost = HashSet::new();
        for (claim, outcome) in plan.claims.iter().zip(claimed?) {
            if let Committed::Conflict { current, .. } = outcome
                // A refused claim that finds its own token has succeeded: its first answer was
                // lost.
                && !matches!(&current, CurrentRecord::Job(there) if same_claim(there, &claim.job))
            {
                lost.insert(claim.job.id.clone());
            }
        }
        Ok(lost)
    }

    /// Records why `write` was refused, so that the next attempt starts from the current values.
    fn on_conflict(
        &self,
        write: &Write,
        current: CurrentRecord,
        cache: &mut TickCache,
        known: &mut KnownJobs,
    ) {
        let write = match write {
            Write::Together(writes) => writes.last().unwrap_or(write),
            write => write,
        };
        match write {
            Write::SetJob { job, .. } => {
                self.unclaimed.forget(&job.id);
                self.running.lock().remove(&job.id);
                known.insert(&job.id, current_job(current));
            }
            Write::RequireItem { .. } => self.forget_catalog(),
            _ => {
                tracing::trace!("another engine changed the ledger");
                cache.view = None;
            }
        }
        if !self.ports.store.capabilities().atomicity.is_atomic() {
            cache.view = None;
        }
    }

    /// Reads the settled jobs again: without atomic transactions some of them may be written.
    async fn reread(&self, plan: &TickPlan, known: &mut KnownJobs) -> Result<(), Error> {
        let ids: Vec<JobId> = plan.before.iter().map(|change| change.job.id.clone()).collect();
        for (id, job) in ids.iter().zip(self.ports.store.get(&ids).await?) {
            // If the store still has it as it was dispatched, only the cache knows that it runs.
            let dispatched = self.unclaimed.revision(id);
            let stored = job.as_ref().ok().and_then(Option::as_ref).map(|job| job.life.revision);
            if dispatched.is_some() && dispatched == stored {
                continue;
            }
            self.unclaimed.forget(id);
            self.running.lock().remove(id);
            known.insert(id, job);
        }
        Ok(())
    }
}

/// The transaction that writes the ledger of `next`, under the configuration it was decided with.
fn ledger_txn(
    context: &TickContext<'_>,
    view: &LedgerView,
    plan: &TickPlan,
    next: &Prepared,
) -> Txn {
    let queue = context.queue;
    let mut txn = vec![Write::RequireItem {
        kind: ItemKind::Queue,
        name: queue.clone().into(),
        version: context.limits.version,
    }];
    // The decisions of a plugin version that is no longer live do not count.
    if let Some((plugin, version)) = plan.throttling.as_ref().and_then(Throttling::decided_under) {
        let name = plugin.clone().into();
        txn.push(Write::RequireItem { kind: ItemKind::Plugin, name, version });
    }
    txn.extend(next.add.iter().map(|batch| Write::AddBatch(queue.clone(), batch.clone())));
    txn.push(Write::SetLedger {
        queue: queue.clone(),
        ledger: next.ledger.clone(),
        was: Expect::Is(view.ledger.version),
    });
    txn
}

/// Since when each rule holds jobs. A tick that did not search leaves the recorded rules as they
/// are.
fn held_since(plan: &TickPlan, ledger: &Ledger, now: Timestamp) -> BTreeMap<Rule, Timestamp> {
    if !plan.searched {
        return ledger.held.clone();
    }
    let (recorded, new): (Vec<&Rule>, Vec<&Rule>) =
        plan.held.keys().partition(|rule| ledger.held.contains_key(*rule));
    let rules = recorded.into_iter().chain(new).take(MAX_HELD_RULES);
    rules.map(|rule| (rule.clone(), ledger.held.get(rule).copied().unwrap_or(now))).collect()
}
