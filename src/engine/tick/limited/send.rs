//! Granted dispatch: sends granted work through the work queue, then marks its batches as sent.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use crate::{
    Catalog, Engine, Error, LedgerView,
    tick::{TickCache, plan::TickPlan, view::Delta},
};
use tidegate_core::{
    job::{JobId, QueueName, State, TypeName, Version},
    port::{Committed, Txn, Work, Write, job_store::Expect},
    queue::{Limits, ledger::BatchId},
};

impl Engine {
    /// Sends the granted work that is unsent, and marks its batches as sent in the ledger.
    ///
    /// A refused mark only costs a second message: the next tick sends the work again.
    pub(super) async fn send(
        &self,
        queue: &QueueName,
        cache: &mut TickCache,
        plan: &mut TickPlan,
        catalog: &Catalog,
        limits: &Arc<Limits>,
    ) -> Result<(), Error> {
        let view = cache.view.as_mut().expect("only a queue with a ledger sends");
        let mut work = std::mem::take(&mut plan.send);
        let unsent = self.unsent_work(view, &work).await?;
        if work.is_empty() && unsent.is_empty() {
            return Ok(());
        }
        // A batch may also have grants of jobs that workers lease, which are never sent.
        let sent = unsent.into_iter().filter(|(_, job_type)| !self.is_leased(catalog, job_type));
        work.extend(sent.map(|(work, _)| work));
        let sent: Vec<BatchId> =
            view.ledger.batches.iter().filter(|batch| !batch.sent).map(|batch| batch.id).collect();
        if !work.is_empty() {
            self.ports.work.send(&work).await?;
        }
        plan.sent = work.len();
        plan.delta = Delta { sent_batches: sent, ..Delta::default() };
        let mut ledger = view.ledger.clone();
        ledger.version += 1;
        ledger.nonce = self.ports.entropy.bits() as u64;
        let prepared = view.prepare(ledger, &plan.delta);
        let add = prepared.add.iter().cloned();
        let mut writes: Txn = add.map(|batch| Write::AddBatch(queue.clone(), batch)).collect();
        writes.push(Write::SetLedger {
            queue: queue.clone(),
            ledger: prepared.ledger.clone(),
            was: Expect::Is(view.ledger.version),
        });
        writes.extend(prepared.remove.iter().map(|id| Write::RemoveBatch(queue.clone(), *id)));
        match self.ports.store.commit(vec![writes]).await?.pop() {
            Some(Committed::All) => view.committed(prepared, &plan.delta, limits),
            _ => cache.view = None,
        }
        Ok(())
    }

    /// The work of every live grant in a batch that is not marked as sent, other than `known`, with
    /// the types of the jobs: a process died before it sent them.
    async fn unsent_work(
        &self,
        view: &LedgerView,
        known: &[Work],
    ) -> Result<Vec<(Work, TypeName)>, Error> {
        let known: HashSet<&JobId> = known.iter().map(|work| &work.job).collect();
        let unsent = view.ledger.batches.iter().filter(|batch| !batch.sent);
        let grants: BTreeMap<JobId, Version> = unsent
            .flat_map(|batch| view.live_of(batch))
            .filter(|grant| !known.contains(&grant.job) && grant.waits_until.is_none())
            .map(|grant| (grant.job.clone(), grant.version))
            .collect();
        if grants.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<JobId> = grants.keys().cloned().collect();
        let jobs = self.ports.store.get(&ids).await?;
        let granted_at = view.ledger.time;
        Ok(jobs
            .into_iter()
            .flatten()
            .flatten()
            .filter(|job| grants.get(&job.id) == Some(&job.life.version))
            .filter(|job| matches!(job.life.state, State::Scheduled { .. }))
            .map(|job| {
                let work = Work::of(&job, granted_at, Some(granted_at));
                (work, job.spec.job_type.clone())
            })
            .collect())
    }
}
