//! Checks grants whose check time has come: after a lease, after the wait for a claim, or each minute.
//!
//! A grant is released only if its job was read and had left the granted version, or if this tick
//! makes it leave.

use std::time::Duration;

use super::{
    lease_over,
    plan::{JobChange, TickPlan},
};
use crate::{Catalog, Engine, Error, View, tick::view::AUDIT};
use tidegate_core::{
    job::{Event, Job, JobId, State},
    port::Work,
    queue::Grant,
    time::Timestamp,
};

/// How long sent work may stay unclaimed before it is sent again.
pub(super) const CLAIM_BY: Duration = Duration::from_secs(6);
/// How often unclaimed work is sent before its grant is revoked.
const MAX_SENDS: u8 = 3;
/// Grants that one tick checks at most, but for the rest of the last batch.
const MAX_CHECKED_GRANTS: usize = 2000;

impl Engine {
    /// Checks the grants of the due batches: releases, fences, sends again or revokes them.
    pub(super) async fn check(
        &self,
        view: &View,
        catalog: &Catalog,
        plan: &mut TickPlan,
        now: Timestamp,
    ) -> Result<(), Error> {
        let mut checked = 0;
        for reference in view.due_checks(now) {
            if checked >= MAX_CHECKED_GRANTS {
                plan.again = true;
                break;
            }
            // Before their check time, grants are left to the receiver or to the tick that claims them.
            let due = reference.check_at <= now;
            let resend = reference.sends > 0 && reference.sends < MAX_SENDS;
            let grants: Vec<&Grant> = view.live_of(reference).collect();
            let ids: Vec<JobId> = grants.iter().map(|grant| grant.job.clone()).collect();
            checked += grants.len();
            let (mut next, mut resent) = (now + AUDIT, false);
            for (grant, job) in grants.into_iter().zip(self.ports.store.get(&ids).await?) {
                let release = (grant.job.clone(), grant.version);
                if plan.delta.released.contains(&release) {
                    continue;
                }
                let Some(job) = job.filter(|job| job.life.version == grant.version) else {
                    plan.delta.released.push(release);
                    continue;
                };
                let event = match &job.life.state {
                    State::Running(run) if run.lease_until <= now => {
                        lease_over(self, catalog, &job)
                    }
                    State::Running(run) => {
                        next = next.min(run.lease_until);
                        continue;
                    }
                    State::Scheduled { .. } if !due => continue,
                    State::Scheduled { .. } if resend => {
                        resent = true;
                        plan.send.push(work(&job, now));
                        continue;
                    }
                    State::Scheduled { .. } => Event::Revoke { version: grant.version },
                    State::Ended { .. } => continue,
                };
                let (was, lapsed) =
                    (job.life.revision, matches!(event, Event::LeaseExpired { .. }));
                if let Ok(job) = job.apply(event, now) {
                    plan.delta.released.push(release);
                    if job.life.ended().is_some() {
                        plan.ended.push(job.id.clone());
                    } else if lapsed {
                        plan.lapsed.push(job.clone());
                    }
                    plan.before.push(JobChange { job, was });
                }
            }
            if resent {
                next = next.min(now + CLAIM_BY);
            }
            plan.delta.read.push(reference.id);
            if due {
                plan.delta.checked.push((reference.id, next, resent));
                plan.wake(Some(next));
            }
        }
        Ok(())
    }
}

fn work(job: &Job, now: Timestamp) -> Work {
    Work {
        queue: job.spec.queue.clone(),
        job: job.id.clone(),
        version: job.life.version,
        run_at: now,
        granted_at: Some(now),
    }
}
