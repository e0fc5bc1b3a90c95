//! A tick of a queue with a ledger: it takes effect only if no other process changed the ledger.
//!
//! Read in this order: this file (what a tick decides), [`commit`] (the writes and their order),
//! [`adopt`] (jobs that ran before the ledger existed), [`send`] (granted dispatch).

mod adopt;
mod commit;
mod send;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use super::{
    TickCache, TickContext, TickInput, TickOutcome,
    plan::TickPlan,
    search::{Capacities, Search},
    settle::KnownJobs,
    throttle::Throttling,
};
use crate::{Engine, Error, LedgerView};
use tidegate_core::{
    job::{Job, JobId, QueueName, Version},
    port::{Committed, Txn, Write, job_store::Expect},
    queue::{Admission, Ledger, Limits, ledger::BatchId},
    time::Timestamp,
};

/// When a ledger that cannot adopt a running job tries again.
const ADOPTION_RETRY: Duration = Duration::from_secs(10);
/// How often an engine removes the batches of a queue that its ledger does not name.
const COLLECTION_INTERVAL: Duration = Duration::from_hours(1);
/// Failed throttler calls that one tick reports at most.
const MAX_REPORTED_FAULTS: usize = 16;

/// A limited tick's decisions, before they are committed.
struct LimitedDecision {
    /// The instant of the tick: never before the ledger's.
    now: Timestamp,
    /// The ledger that the tick would write.
    ledger: Ledger,
    plan: TickPlan,
    /// One answer per report.
    answers: Vec<Result<Job, Error>>,
}

impl Engine {
    /// Returns the stored ledger of `queue`; creates it if the queue has a limit and no ledger.
    pub(super) async fn view(
        &self,
        queue: &QueueName,
        limits: &Limits,
    ) -> Result<Option<LedgerView>, Error> {
        let now = self.now();
        if let Some((ledger, batches)) = self.ports.store.ledger(queue).await? {
            if let Err(error) = self.remove_unreferenced_batches(queue, &ledger).await {
                tracing::warn!(%queue, %error, "unreferenced grant batches were not removed");
            }
            return LedgerView::whole(ledger, batches).map(Some);
        }
        if !limits.any() {
            return Ok(None);
        }
        let max_in_flight = self.ports.store.capabilities().atomicity.max_in_flight_write();
        let ledger = Ledger {
            version: 1,
            config_version: limits.version,
            time: now,
            settling_until: Some(now + max_in_flight),
            ..Ledger::default()
        };
        let write =
            Write::SetLedger { queue: queue.clone(), ledger: ledger.clone(), was: Expect::Absent };
        match self.ports.store.commit(vec![vec![write]]).await?.pop() {
            Some(Committed::All) => Ok(Some(LedgerView::new(ledger, Vec::new()))),
            _ => self
                .ports
                .store
                .ledger(queue)
                .await?
                .map(|(ledger, batches)| LedgerView::whole(ledger, batches))
                .transpose(),
        }
    }

    /// Removes the batches of ticks that crashed between writing a batch and the ledger that names
    /// it. A tick that is about to name its batch wrote it for a later version of the ledger, or
    /// its commit will be refused.
    ///
    /// It reads every batch, so an engine does it once an hour for each queue.
    async fn remove_unreferenced_batches(
        &self,
        queue: &QueueName,
        ledger: &Ledger,
    ) -> Result<(), Error> {
        if self.ports.store.capabilities().atomicity.is_atomic() {
            return Ok(());
        }
        let now = self.now();
        let is_recent = |at: &Timestamp| now < *at + COLLECTION_INTERVAL;
        if self.batches_collected.lock().get(queue).is_some_and(is_recent) {
            return Ok(());
        }
        let stored = self.ports.store.batches(queue).await?;
        let referenced: HashSet<BatchId> = ledger.referenced_batches().collect();
        let garbage = stored
            .into_iter()
            .filter(|(id, version)| *version < ledger.version && !referenced.contains(id));
        let txns: Vec<Txn> =
            garbage.map(|(id, _)| vec![Write::RemoveBatch(queue.clone(), id)]).collect();
        if !txns.is_empty() {
            self.ports.store.commit(txns).await?;
        }
        let mut collected = self.batches_collected.lock();
        collected.retain(|_, at| is_recent(at));
        collected.insert(queue.clone(), now);
        Ok(())
    }

    /// Runs one attempt of a tick of a queue with a ledger. `None` if its commit was refused.
    pub(super) async fn tick_limited(
        &self,
        context: &TickContext<'_>,
        cache: &mut TickCache,
        known: &mut KnownJobs,
    ) -> Result<Option<TickOutcome>, Error> {
        let limits = context.limits;
        let mut may_be_old = context.from_cache;
        let (mut closed, mut next_start_at, mut pass) = (Vec::new(), None, 0);
        loop {
            pass += 1;
            let context = &TickContext { closed: &closed, ..*context };
            let decided_under = cache.view().map_or(0, |view| view.ledger.config_version);
            // At version 0 the queue has no configuration. The commit requires that it still has
            // none.
            if limits.version > 0 && limits.version < decided_under {
                // Another process has read a newer configuration: this snapshot is old.
                self.forget_catalog();
                cache.view = None;
                return Ok(None);
            }
            let mut decision = self.decide_limited(context, cache, known).await?;
            // What an attempt found for a demand with too few jobs wakes the queue all the same.
            decision.plan.wake_to_start(next_start_at);
            let unmet = decision.plan.unmet(&context.input.demands, context.closed, pass);
            if !unmet.is_empty() {
                next_start_at = decision.plan.next_start_at;
                closed.extend(unmet);
                continue;
            }
            if may_be_old && let Some(newer) = self.newer_view(context, cache, &decision).await? {
                (cache.view, may_be_old) = (Some(newer), false);
                closed.clear();
                continue;
            }
            return self.commit_limited(context, cache, known, decision).await;
        }
    }

    /// Decides what a tick does on the view in `cache`.
    async fn decide_limited(
        &self,
        context: &TickContext<'_>,
        cache: &mut TickCache,
        known: &KnownJobs,
    ) -> Result<LimitedDecision, Error> {
        let mut decision = self.settle_limited(context, cache, known).await?;
        // Another attempt reads: these are in the one that was refused.
        decision.plan.read_ahead = std::mem::take(&mut cache.read_ahead);
        let view = cache.view.as_mut().expect("the caller read it");
        self.admit_limited(context, view, &mut decision).await?;
        // The plugin failed, even if this tick does not commit.
        cache.open_circuit = decision.plan.open_circuit.take();
        let message = decision.plan.faults.last();
        let message = message.and_then(|call| Some(call.answer.as_ref().err()?.to_string()));
        self.failed_throttlers.set(context.queue, cache.open_circuit.as_ref(), message);
        cache.faults.append(&mut decision.plan.faults);
        cache.faults.truncate(MAX_REPORTED_FAULTS);
        Ok(decision)
    }

    /// The ledger of another process's tick, if `decision` holds jobs on an older view. A decision
    /// that changes the ledger needs no such read: its commit compares the version.
    async fn newer_view(
        &self,
        context: &TickContext<'_>,
        cache: &TickCache,
        decision: &LimitedDecision,
    ) -> Result<Option<LedgerView>, Error> {
        let LimitedDecision { ledger, plan, .. } = decision;
        let view = cache.view().expect("the caller read it");
        let is_alone = self.ports.store.capabilities().is_exclusive();
        if is_alone || plan.held.is_empty() || self.changes_ledger(context, view, ledger, plan) {
            return Ok(None);
        }
        let newer = self.ports.store.newer_ledger(context.queue, view.ledger.version).await?;
        newer.map(|(ledger, batches)| LedgerView::whole(ledger, batches)).transpose()
    }

    /// Settles the reports, releases and checks grants, and adopts the jobs that run without one.
    async fn settle_limited(
        &self,
        context: &TickContext<'_>,
        cache: &TickCache,
        known: &KnownJobs,
    ) -> Result<LimitedDecision, Error> {
        let &TickContext { queue, input, catalog, limits, .. } = context;
        let view = cache.view().expect("the caller read it");
        let now = self.now().max(view.ledger.time);
        let mut plan = TickPlan {
            scan_cursor: view.ledger.scan_cursor.clone(),
            reserved: cache.reserved(view, limits),
            last_partition: view.ledger.last_partition.clone(),
            lap_start: view.ledger.lap_start.clone(),
            lap: cache.lap(view, limits),
            ..TickPlan::default()
        };
        plan.delta.sent = true;
        let answers = self.settle_all(input, known, catalog, &mut plan, now);
        plan.release(view, input);
        self.check(view, catalog, limits, &mut plan, now).await?;
        self.keep_places(limits, &mut plan, now).await?;
        if !plan.delta.released.is_empty() {
            plan.note_free_slot();
        }
        plan.throttling = Throttling::of(
            catalog,
            limits,
            view,
            cache.open_circuit.as_ref(),
            &cache.unreported,
            now,
        );
        plan.open_circuit.clone_from(&cache.open_circuit);
        self.collect_ended(view, &mut plan).await?;

        let mut ledger = view.ledger.clone();
        match ledger.settling_until {
            Some(until) if now < until => plan.wake_to_start(Some(until)),
            Some(_) if self.adopt(queue, view, &mut plan, now).await? => {
                ledger.settling_until = None;
            }
            Some(_) => plan.wake(Some(now + ADOPTION_RETRY)),
            None => {}
        }
        if ledger.settling_until.is_none() {
            self.adopt_unclaimed(queue, view, &mut plan, now);
        }
        Ok(LimitedDecision { now, ledger, plan, answers })
    }

    /// Admits candidates over the grants that `decision` leaves. While the ledger settles, none.
    ///
    /// On a store without transactions none in a tick that claims unclaimed dispatches either:
    /// after a crash between ledger and claims, the work of this tick's grants is sent.
    async fn admit_limited(
        &self,
        context: &TickContext<'_>,
        view: &mut LedgerView,
        decision: &mut LimitedDecision,
    ) -> Result<(), Error> {
        let &TickContext { queue, input, catalog, limits, closed, .. } = context;
        let LimitedDecision { now, ledger, plan, .. } = decision;
        if limits.unreadable {
            // What its limits count, and its throttler's state, stay for who can read them.
            plan.rate_counts = ledger.rate_counts();
            return Ok(());
        }
        let mut usage = view.usage(limits).clone();
        let released: HashMap<JobId, Version> = plan.delta.released.iter().cloned().collect();
        for grant in view.live().filter(|grant| released.contains_key(&grant.job)) {
            usage.remove(limits, grant);
        }
        for grant in &plan.delta.granted {
            usage.add(limits, grant);
        }
        let admission = Admission::new(limits, usage, ledger.rate_counts(), *now);
        let is_atomic = self.ports.store.capabilities().atomicity.is_atomic();
        let claims_alone = !is_atomic && !plan.claims.is_empty();
        plan.again |= claims_alone;
        plan.rate_counts = if ledger.settling_until.is_none() && !claims_alone {
            // Only a store whose index is separate from its records reads granted jobs in vain.
            let leave_out = (!is_atomic).then(|| {
                let live = view.live().filter(|grant| !released.contains_key(&grant.job));
                Arc::new(live.map(|grant| (grant.job.clone(), grant.granted_at)).collect())
            });
            let search = Search {
                engine: self,
                queue,
                catalog,
                limits,
                now: *now,
                granted: Some((&*view, released)),
                admission,
                capacities: Capacities::of(input, catalog, closed),
                leave_out,
                window: None,
                plan: &mut *plan,
            };
            search.run().await?
        } else {
            admission.finish().1
        };
        let new_state = plan.throttling.as_ref().and_then(|throttling| throttling.new_state(view));
        plan.delta.policy = new_state.or_else(|| view.forgotten_state(limits));
        Ok(())
    }
}

impl TickPlan {
    /// Releases the grants of settled jobs, and the live grants that hints name.
    fn release(&mut self, view: &LedgerView, hints: &TickInput) {
        for change in &self.before {
            let granted = view.granted(&change.job.id);
            if let Some(version) = granted.filter(|version| *version < change.job.life.version) {
                self.delta.released.push((change.job.id.clone(), version));
            }
        }
        let live =
            hints.released.iter().filter(|(job, version)| view.granted(job) == Some(*version));
        self.delta.released.extend(live.cloned());
        if !hints.released_digests.is_empty() {
            let live = view.live().filter(|grant| hints.released_digests.contains(&grant.digest()));
            self.delta.released.extend(live.map(|grant| (grant.job.clone(), grant.version)));
        }
    }
}
