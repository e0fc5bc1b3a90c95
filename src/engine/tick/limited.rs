//! A round of a queue with a head: one transaction, which goes through only if nobody else moved the head.
//!
//! Settled jobs come before the batch, the batch before the head that names it, claims and garbage after it: any prefix is safe.
//! On an atomic store that is one transaction; on another three commits, of which the second is the one that decides.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use super::{
    JobChange, KnownJobs, Throttling, TickCache, TickInput, TickOutcome, TickPlan, grant,
    same_claim,
    search::{Capacities, Search},
    standing_job, ticked,
};
use crate::{
    Catalog, Engine, Error, View,
    tick::view::{Delta, Prepared},
};
use tidegate_core::{
    job::{Job, JobId, QueueName, Version},
    port::{
        Committed, Txn, Work, Write,
        job_store::{CurrentRecord, Expect, ItemKind},
    },
    queue::{Admission, Ledger, Limits, Rule, ledger::BatchId},
    time::Timestamp,
};

/// The wait before work is handed on again that the work queue did not take.
const RESEND: Duration = Duration::from_secs(1);
/// Of most this many rules the head remembers since when they hold somebody: a rule may have thousands of values.
const HELD: usize = 24;
/// Most failed calls that one round tells of.
const FAULTS: usize = 16;

impl Engine {
    /// The head of `queue` as it stands; a new one if the queue needs one and has none.
    pub(super) async fn view(
        &self,
        queue: &QueueName,
        limits: &Limits,
    ) -> Result<Option<View>, Error> {
        let now = self.now();
        if let Some((head, batches)) = self.ports.store.ledger(queue).await? {
            self.collect(queue, &head).await?;
            return View::whole(head, batches).map(Some);
        }
        if !limits.any() {
            return Ok(None);
        }
        let flight = self.ports.store.max_in_flight_write();
        let head = Ledger {
            version: 1,
            config_version: limits.version,
            time: now,
            settling_until: Some(now + flight),
            ..Ledger::default()
        };
        let write =
            Write::SetLedger { queue: queue.clone(), head: head.clone(), was: Expect::Absent };
        match self.ports.store.commit(vec![vec![write]]).await?.pop() {
            Some(Committed::All) => Ok(Some(View::new(head, Vec::new()))),
            _ => self
                .ports
                .store
                .ledger(queue)
                .await?
                .map(|(head, batches)| View::whole(head, batches))
                .transpose(),
        }
    }

    /// Removes the batches of ticks that died between writing one and naming it. A tick that still means to name
    /// one wrote it for a later head than this, or will be refused.
    async fn collect(&self, queue: &QueueName, head: &Ledger) -> Result<(), Error> {
        if self.ports.store.max_in_flight_write().is_zero() {
            return Ok(());
        }
        let stored = self.ports.store.batches(queue).await?;
        let named: HashSet<BatchId> = head.referenced_batches().collect();
        let garbage = stored
            .into_iter()
            .filter(|(id, for_head)| *for_head < head.version && !named.contains(id));
        let txns: Vec<Txn> =
            garbage.map(|(id, _)| vec![Write::RemoveBatch(queue.clone(), id)]).collect();
        if !txns.is_empty() {
            self.ports.store.commit(txns).await?;
        }
        Ok(())
    }

    /// A round of a queue with a head: one transaction. `None` if it was refused.
    pub(super) async fn tick_limited(
        &self,
        queue: &QueueName,
        memory: &mut TickCache,
        round: &TickInput,
        known: &mut KnownJobs,
        catalog: &Catalog,
        limits: &Arc<Limits>,
    ) -> Result<Option<TickOutcome>, Error> {
        let reserved =
            memory.view.as_ref().map(|view| memory.reserved(view, limits)).unwrap_or_default();
        let view = memory.view.as_mut().expect("the caller read it");
        let now = self.now().max(view.head.time);
        // Version 0: nobody configures the queue (any more), which the commit requires to be so still.
        if limits.version > 0 && limits.version < view.head.config_version {
            // Somebody else has seen a newer configuration: this snapshot is old.
            self.catalog.store(Arc::default());
            memory.view = None;
            return Ok(None);
        }
        let (look, turn, lap) = (
            view.head.scan_cursor.clone(),
            view.head.last_partition.clone(),
            view.head.lap_start.clone(),
        );
        let mut plan = TickPlan {
            scan_cursor: look,
            reserved,
            last_partition: turn,
            lap_start: lap,
            ..TickPlan::default()
        };
        plan.delta.sent = true;
        let answers = self.settle_all(round, known, catalog, &mut plan, now);
        for change in &plan.before {
            if let Some(version) =
                view.granted(&change.job.id).filter(|version| *version < change.job.life.version)
            {
                plan.delta.released.push((change.job.id.clone(), version));
            }
        }
        plan.delta.released.extend(
            round
                .released
                .iter()
                .filter(|(job, version)| view.granted(job) == Some(*version))
                .cloned(),
        );
        self.check(view, catalog, &mut plan, now).await?;
        plan.throttling =
            Throttling::of(catalog, limits, view, memory.trouble.as_ref(), &memory.unreported, now);
        plan.trouble.clone_from(&memory.trouble);
        self.note_ended(view, &mut plan).await?;

        let mut head = view.head.clone();
        if let Some(until) = head.settling_until {
            if now < until {
                plan.wake(Some(until));
            } else {
                self.adopt(queue, view, &mut plan, now).await?;
                head.settling_until = None;
            }
        }
        if head.settling_until.is_none() {
            self.adopt_unclaimed(queue, view, &mut plan, now);
        }
        let mut usage = view.usage(limits).clone();
        let released: HashSet<&JobId> = plan.delta.released.iter().map(|(job, _)| job).collect();
        for grant in view.live().filter(|grant| released.contains(&grant.job)) {
            usage.remove(limits, grant);
        }
        for grant in &plan.delta.granted {
            usage.add(limits, grant);
        }
        let admission = Admission::new(limits, usage, head.buckets.clone(), now);
        plan.buckets = if head.settling_until.is_none() {
            let gone: HashMap<JobId, Version> = plan.delta.released.iter().cloned().collect();
            let (granted, rooms) = (Some((&*view, gone)), Capacities::of(round));
            Search {
                engine: self,
                queue,
                catalog,
                limits,
                now,
                granted,
                admission,
                capacities: rooms,
                plan: &mut plan,
            }
            .run()
            .await?
        } else {
            admission.finish().1
        };
        plan.delta.policy = match &plan.throttling {
            Some(throttling) => throttling.new_state(view),
            None => None,
        }
        .or_else(|| view.forgotten_state(limits));
        // Whatever becomes of the round, a plugin that failed did.
        memory.trouble = plan.trouble.take();
        memory.faults.append(&mut plan.faults);
        memory.faults.truncate(FAULTS);
        self.commit_limited(queue, memory, head, plan, known, limits, answers, now).await
    }

    /// Commits a round of a queue with a head.
    #[allow(
        clippy::too_many_arguments,
        reason = "the last step of one function, split for its length"
    )]
    async fn commit_limited(
        &self,
        queue: &QueueName,
        memory: &mut TickCache,
        mut head: Ledger,
        mut plan: TickPlan,
        known: &mut KnownJobs,
        limits: &Arc<Limits>,
        answers: Vec<Result<Job, Error>>,
        now: Timestamp,
    ) -> Result<Option<TickOutcome>, Error> {
        let view = memory.view.as_mut().expect("the caller read it");
        // What nobody looked at is held as before.
        let since: BTreeMap<Rule, Timestamp> = if plan.searched {
            let (old, new): (Vec<&Rule>, Vec<&Rule>) =
                plan.held.keys().partition(|rule| head.held.contains_key(*rule));
            let rules = old.into_iter().chain(new).take(HELD);
            rules.map(|rule| (rule.clone(), head.held.get(rule).copied().unwrap_or(now))).collect()
        } else {
            head.held.clone()
        };
        let atomic = self.ports.store.max_in_flight_write().is_zero();
        let moved = (&plan.scan_cursor, &plan.last_partition, &plan.lap_start)
            != (&view.head.scan_cursor, &view.head.last_partition, &view.head.lap_start);
        let changes_head = !plan.delta.released.is_empty()
            || !plan.delta.granted.is_empty()
            || !plan.delta.checked.is_empty()
            || plan.delta.policy.is_some()
            || plan.decided
            || head.settling_until != view.head.settling_until
            // A scan that goes on in this process needs no write; on a table it may go on in another.
            || (moved && !atomic)
            || limits.version > view.head.config_version;
        let before: Vec<Txn> = plan
            .before
            .iter()
            .map(|change| self.change(change.was, &change.job, false, now))
            .collect();
        let mut writes: Txn = Vec::new();
        let mut prepared = None;
        if changes_head {
            head.version += 1;
            head.nonce = self.ports.entropy.bits() as u64;
            head.time = now;
            head.config_version = head.config_version.max(limits.version);
            head.scan_cursor.clone_from(&plan.scan_cursor);
            head.last_partition.clone_from(&plan.last_partition);
            head.lap_start.clone_from(&plan.lap_start);
            head.buckets = std::mem::take(&mut plan.buckets);
            head.held = since;
            let ready = view.prepare(head, &plan.delta);
            let require = Write::RequireItem {
                kind: ItemKind::Queue,
                name: queue.to_string(),
                version: limits.version,
            };
            writes.push(require);
            // A version that is live no more decides nothing.
            if let Some((plugin, version)) =
                plan.throttling.as_ref().and_then(Throttling::decided_under)
            {
                writes.push(Write::RequireItem {
                    kind: ItemKind::Plugin,
                    name: plugin.to_string(),
                    version,
                });
            }
            writes.extend(
                ready.add.iter().map(|batch| Write::AddBatch(queue.clone(), batch.clone())),
            );
            writes.push(Write::SetLedger {
                queue: queue.clone(),
                head: ready.head.clone(),
                was: Expect::Is(view.head.version),
            });
            prepared = Some(ready);
        } else {
            let head = &mut view.head;
            (head.held, head.scan_cursor, head.last_partition, head.lap_start) = (
                since,
                plan.scan_cursor.clone(),
                plan.last_partition.clone(),
                plan.lap_start.clone(),
            );
        }
        let untold = plan
            .throttling
            .as_ref()
            .map(|throttling| Arc::clone(throttling.untold()))
            .unwrap_or_default();
        let claims: Vec<Txn> = plan
            .claims
            .iter()
            .map(|claim| vec![Write::SetJob { job: claim.job.clone(), was: claim.was, all: false }])
            .collect();
        let garbage = prepared
            .iter()
            .flat_map(|ready| &ready.remove)
            .map(|id| Write::RemoveBatch(queue.clone(), *id));
        if atomic {
            let whole: Txn = before
                .into_iter()
                .flatten()
                .chain(writes)
                .chain(claims.into_iter().flatten())
                .chain(garbage)
                .collect();
            if !whole.is_empty() {
                match self.ports.store.commit(vec![whole.clone()]).await?.pop() {
                    Some(Committed::All) => {}
                    Some(Committed::Conflict { step, standing }) => {
                        self.refused(&whole[step], standing, known, memory, prepared.as_ref());
                        return Ok(None);
                    }
                    None => return Err(unanswered()),
                }
            }
        } else {
            if !self
                .one_after_another(before, writes, &plan, known, memory, prepared.as_ref())
                .await?
            {
                return Ok(None);
            }
            let lost = self.claim_all(claims, &plan, garbage.collect()).await?;
            if !lost.is_empty() {
                // The round stands, but for these claims. Their grants are taken back when their time to be claimed is over.
                plan.claims.retain(|claim| !lost.contains(&claim.job.id));
                plan.claimed.retain(|claimed| !lost.contains(&claimed.job.id));
                for id in &lost {
                    self.unclaimed.forget(id);
                }
                plan.again = true;
            }
        }
        let view = memory.view.as_mut().expect("it was not lost");
        for change in plan.before.iter().chain(&plan.claims) {
            self.cache_job(&change.job);
        }
        for claim in &plan.claims {
            self.unclaimed.forget(&claim.job.id);
        }
        memory.unreported = untold;
        view.note_read(&plan.delta);
        if let Some(prepared) = prepared {
            view.committed(prepared, &plan.delta, limits);
        }
        plan.wake(view.next_check());
        if !plan.send.is_empty() || view.head.batches.iter().any(|batch| !batch.sent) {
            // What was committed stands, whatever becomes of the messages: they are sent again.
            if let Err(error) = self.send(queue, memory, &mut plan, limits).await {
                tracing::warn!(%queue, %error, "granted work was not handed on");
                memory.view = None;
                plan.wake(Some(now + RESEND));
            }
        }
        memory.keep_scan(&mut plan, limits);
        Ok(Some(ticked(plan, answers)))
    }

    /// Commits a round, but for its claims, where transactions are not atomic: the changes of jobs, each on its own, and once they
    /// stand the head. False if something was refused.
    async fn one_after_another(
        &self,
        before: Vec<Txn>,
        writes: Txn,
        plan: &TickPlan,
        known: &mut KnownJobs,
        memory: &mut TickCache,
        prepared: Option<&Prepared>,
    ) -> Result<bool, Error> {
        if !before.is_empty() {
            let mut whole = true;
            for (txn, answer) in before.iter().zip(self.ports.store.commit(before.clone()).await?) {
                if let Committed::Conflict { step, standing } = answer {
                    self.refused(&txn[step], standing, known, memory, prepared);
                    whole = false;
                }
            }
            if !whole {
                self.reread(plan, known).await?;
                return Ok(false);
            }
        }
        if writes.is_empty() {
            return Ok(true);
        }
        match self.ports.store.commit(vec![writes.clone()]).await?.pop() {
            Some(Committed::All) => Ok(true),
            Some(Committed::Conflict { step, standing }) => {
                self.refused(&writes[step], standing, known, memory, prepared);
                self.reread(plan, known).await?;
                Ok(false)
            }
            None => Err(unanswered()),
        }
    }

    /// Claims what was granted, each on its own, and removes what the head names no more. The jobs that were not claimed.
    async fn claim_all(
        &self,
        claims: Vec<Txn>,
        plan: &TickPlan,
        garbage: Vec<Write>,
    ) -> Result<HashSet<JobId>, Error> {
        let txns: Vec<Txn> =
            claims.into_iter().chain(garbage.into_iter().map(|write| vec![write])).collect();
        if txns.is_empty() {
            return Ok(HashSet::new());
        }
        let mut lost = HashSet::new();
        for (claim, answer) in plan.claims.iter().zip(self.ports.store.commit(txns).await?) {
            if let Committed::Conflict { standing, .. } = answer
                // A refused claim that finds its own token has succeeded: its first answer was lost.
                && !matches!(&standing, CurrentRecord::Job(there) if same_claim(there, &claim.job))
            {
                lost.insert(claim.job.id.clone());
            }
        }
        Ok(lost)
    }

    /// Takes note of why a transaction was refused, so that the next try sees what stands.
    fn refused(
        &self,
        write: &Write,
        standing: CurrentRecord,
        known: &mut KnownJobs,
        memory: &mut TickCache,
        prepared: Option<&Prepared>,
    ) {
        let write = match write {
            Write::Together(writes) => writes.last().unwrap_or(write),
            write => write,
        };
        match write {
            Write::SetJob { job, .. } => {
                self.unclaimed.forget(&job.id);
                self.running.lock().remove(&job.id);
                known.jobs.insert(job.id.clone(), standing_job(standing));
            }
            Write::RequireItem { .. } => self.catalog.store(Arc::default()),
            _ => {
                tracing::trace!(
                    nonce = prepared.map(|prepared| prepared.head.nonce),
                    "another engine moved the head"
                );
                memory.view = None;
            }
        }
        if !self.ports.store.max_in_flight_write().is_zero() {
            memory.view = None;
        }
    }

    /// Reads the settled jobs anew: without atomic transactions some of them are written by now.
    async fn reread(&self, plan: &TickPlan, known: &mut KnownJobs) -> Result<(), Error> {
        if self.ports.store.max_in_flight_write().is_zero() {
            return Ok(());
        }
        let ids: Vec<JobId> = plan.before.iter().map(|change| change.job.id.clone()).collect();
        for (id, job) in ids.iter().zip(self.ports.store.get(&ids).await?) {
            self.running.lock().remove(id);
            known.jobs.insert(id.clone(), job);
        }
        Ok(())
    }

    /// Takes every running job of a queue that just got its head as a grant.
    async fn adopt(
        &self,
        queue: &QueueName,
        view: &View,
        plan: &mut TickPlan,
        now: Timestamp,
    ) -> Result<(), Error> {
        let mut after = None;
        loop {
            let page = self.ports.store.running(queue, after.as_ref(), 1000).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.id.clone());
            let fresh = page.iter().filter(|job| view.granted(&job.id).is_none());
            plan.delta.granted.extend(fresh.map(|job| grant(job, now)));
        }
        if !plan.delta.granted.is_empty() {
            plan.delta.check_at = now;
        }
        Ok(())
    }

    /// Claims the jobs that this engine handed on without a claim, and takes them as grants: limits count them from here on.
    ///
    /// They were handed on before the queue had a head. No other engine knows of them.
    fn adopt_unclaimed(&self, queue: &QueueName, view: &View, plan: &mut TickPlan, now: Timestamp) {
        let plain = self.unclaimed.dispatched();
        if plain.is_empty() {
            return;
        }
        let running = self.running.lock();
        let taken: HashSet<JobId> = plan
            .before
            .iter()
            .map(|change| &change.job.id)
            .chain(plan.delta.granted.iter().map(|grant| &grant.job))
            .cloned()
            .collect();
        let fresh =
            plain.iter().filter(|(id, _)| !taken.contains(id) && view.granted(id).is_none());
        let fresh = fresh.filter_map(|(id, was)| {
            Some((running.get(id).filter(|job| job.spec.queue == *queue)?, *was))
        });
        for (job, was) in fresh {
            plan.delta.granted.push(grant(job, now));
            plan.delta.check_at = now;
            plan.claims.push(JobChange { job: job.clone(), was });
        }
    }

    /// Hands admitted work on, and then says in the head that it went out.
    async fn send(
        &self,
        queue: &QueueName,
        memory: &mut TickCache,
        plan: &mut TickPlan,
        limits: &Arc<Limits>,
    ) -> Result<(), Error> {
        let view = memory.view.as_mut().expect("only a queue with a head sends");
        let mut work = std::mem::take(&mut plan.send);
        let sent: Vec<BatchId> =
            view.head.batches.iter().filter(|batch| !batch.sent).map(|batch| batch.id).collect();
        for grant in view
            .head
            .batches
            .iter()
            .filter(|batch| !batch.sent)
            .flat_map(|batch| view.live_of(batch))
        {
            let (job, version, run_at) = (grant.job.clone(), grant.version, view.head.time);
            work.push(Work {
                queue: queue.clone(),
                job,
                version,
                run_at,
                granted_at: Some(run_at),
            });
        }
        if work.is_empty() {
            return Ok(());
        }
        self.ports.work.send(&work).await?;
        plan.sent = work.len();
        plan.delta = Delta { sent_batches: sent, ..Delta::default() };
        let mut head = view.head.clone();
        head.version += 1;
        head.nonce = self.ports.entropy.bits() as u64;
        let prepared = view.prepare(head, &plan.delta);
        let mut writes: Txn = prepared
            .add
            .iter()
            .map(|batch| Write::AddBatch(queue.clone(), batch.clone()))
            .collect();
        writes.push(Write::SetLedger {
            queue: queue.clone(),
            head: prepared.head.clone(),
            was: Expect::Is(view.head.version),
        });
        writes.extend(prepared.remove.iter().map(|id| Write::RemoveBatch(queue.clone(), *id)));
        match self.ports.store.commit(vec![writes]).await?.pop() {
            Some(Committed::All) => {
                view.committed(prepared, &plan.delta, limits);
            }
            _ => memory.view = None,
        }
        Ok(())
    }
}

fn unanswered() -> Error {
    Error::Internal("the store did not answer a transaction".into())
}
