//! Takes the jobs that ran before the ledger existed as grants, so that the limits count them.

use std::collections::HashSet;

use crate::{
    Engine, Error, LedgerView, MAX_RUNNING_PAGE,
    tick::{
        grant,
        plan::{JobChange, TickPlan},
    },
};
use tidegate_core::{
    job::{JobId, QueueName},
    time::Timestamp,
};

impl Engine {
    /// Takes every running job of a queue whose ledger has just settled as a grant. False if one of
    /// them cannot be read: what it takes of the limits is not known, so that none may be admitted.
    pub(super) async fn adopt(
        &self,
        queue: &QueueName,
        view: &LedgerView,
        plan: &mut TickPlan,
        now: Timestamp,
    ) -> Result<bool, Error> {
        let (mut after, mut grants) = (None, Vec::new());
        loop {
            let page = self.ports.store.running(queue, after.as_ref(), MAX_RUNNING_PAGE).await?;
            if page.is_empty() {
                break;
            }
            for job in page {
                let job = match job {
                    Ok(job) => job,
                    Err(unreadable) => {
                        tracing::error!(
                            %queue,
                            job = unreadable.id,
                            reason = unreadable.reason,
                            "the first limit of the queue waits: a job that cannot be read may run"
                        );
                        return Ok(false);
                    }
                };
                after = Some(job.id.clone());
                if view.granted(&job.id).is_none() {
                    grants.push((grant(&job, now), self.first_check(&job, now)));
                }
            }
        }
        for (grant, check_at) in grants {
            plan.delta.granted.push(grant);
            plan.delta.check_by(check_at);
        }
        Ok(true)
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
            if taken.contains(&id) {
                continue;
            }
            let Some(job) = running.get(&id).filter(|job| job.spec.queue == *queue) else {
                continue;
            };
            match view.granted(&id) {
                None => {
                    plan.delta.granted.push(grant(job, now));
                    plan.delta.check_by(self.first_check(job, now));
                }
                // An earlier tick wrote the grant, and failed before the claim.
                Some(version) if version == job.life.version => {}
                Some(_) => continue,
            }
            plan.claims.push(JobChange { job: job.clone(), was });
        }
    }
}
