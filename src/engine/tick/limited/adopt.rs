//! Takes the jobs that ran before the ledger existed as grants, so that the limits count them.

use std::collections::HashSet;

use crate::{
    Engine, Error, LedgerView,
    tick::{
        grant,
        plan::{JobChange, TickPlan},
    },
};
use tidegate_core::{
    job::{JobId, QueueName},
    time::Timestamp,
};

/// Running jobs that one read returns at most.
const MAX_RUNNING_PAGE: u32 = 1000;

impl Engine {
    /// Takes every running job of a queue whose ledger has just settled as a grant.
    pub(super) async fn adopt(
        &self,
        queue: &QueueName,
        view: &LedgerView,
        plan: &mut TickPlan,
        now: Timestamp,
    ) -> Result<(), Error> {
        let mut after = None;
        loop {
            let page = self.ports.store.running(queue, after.as_ref(), MAX_RUNNING_PAGE).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.id.clone());
            for job in page.iter().filter(|job| view.granted(&job.id).is_none()) {
                plan.delta.granted.push(grant(job, now));
                plan.delta.check_by(self.first_check(job, now));
            }
        }
        Ok(())
    }

    /// Claims the unclaimed dispatches of this engine, and takes them as grants: limits count them
    /// from now on.
    ///
    /// They were dispatched before the queue had a ledger. No other engine knows of them.
    pub(super) fn adopt_unclaimed(
        &self,
        queue: &QueueName,
        view: &LedgerView,
        plan: &mut TickPlan,
        now: Timestamp,
    ) {
        let dispatched = self.unclaimed.dispatched();
        if dispatched.is_empty() {
            return;
        }
        let settled = plan.before.iter().map(|change| &change.job.id);
        let adopted = plan.delta.granted.iter().map(|grant| &grant.job);
        let taken: HashSet<JobId> = settled.chain(adopted).cloned().collect();
        let mut running = self.running.lock();
        for (id, was) in dispatched {
            if taken.contains(&id) || view.granted(&id).is_some() {
                continue;
            }
            let Some(job) = running.get(&id).filter(|job| job.spec.queue == *queue) else {
                continue;
            };
            plan.delta.granted.push(grant(job, now));
            plan.delta.check_by(self.first_check(job, now));
            plan.claims.push(JobChange { job: job.clone(), was });
        }
    }
}
