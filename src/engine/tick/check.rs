//! Checks grants whose check time has come: after a lease, after the wait for a claim, or every
//! minute.
//!
//! A grant is released only if its job was read and had left the granted version, or if this tick
//! makes it leave.

use std::time::Duration;

use super::{
    lease_expired,
    line::keeps_place,
    plan::{JobChange, TickPlan},
};
use crate::{Catalog, Engine, Error, LedgerView, tick::view::AUDIT_INTERVAL};
use tidegate_core::{
    job::{Event, Job, JobId, State},
    port::{Work, job_store::StoredJob},
    queue::{Grant, Limits},
    time::Timestamp,
};

/// How long sent work may stay unclaimed before it is sent again.
///
/// The next times, it waits twice as long each: work may lie in the work queue until its receivers
/// have time, and then more messages delay it further. The first message stays valid.
pub(super) const CLAIM_TIMEOUT: Duration = Duration::from_secs(6);
/// How many of these waits are twice as long as the one before.
const DOUBLINGS: u8 = 7;
/// How often work is sent again after those.
const RESEND_INTERVAL: Duration = Duration::from_mins(10);
/// How often work is sent, which takes a day, before its grant is revoked: its messages may be
/// older than the work queue keeps them.
const MAX_SENDS: u8 = 150;
/// Grants that one tick checks at most, not counting the rest of the last batch.
const MAX_CHECKED_GRANTS: usize = 2000;

/// The check of one batch.
struct BatchCheck {
    /// Whether its check time has come. Before that, grants are left to the receiver or to the tick
    /// that claims them.
    is_due: bool,
    /// How often its work was sent.
    sends: u8,
    /// When it is checked next.
    next: Timestamp,
    /// How often its work was sent after this check, if it is sent again.
    resent: Option<u8>,
    /// Whether the queue has strict order, so that waiting grants stay.
    is_in_line: bool,
}

/// How long after its grant work that was sent `sends` times is sent again.
fn resend_age(sends: u8) -> Duration {
    let after_first = sends.saturating_sub(1);
    CLAIM_TIMEOUT * 2u32.pow(after_first.min(DOUBLINGS).into())
        + RESEND_INTERVAL * u32::from(after_first.saturating_sub(DOUBLINGS))
}

/// The number of sends after one at this age. Those that a late check missed count as done.
fn sends_at(age: Duration) -> u8 {
    (2..MAX_SENDS).find(|sends| resend_age(*sends) > age).unwrap_or(MAX_SENDS)
}

impl Engine {
    /// When a grant of `job`, which runs or is claimed by this tick, is checked first.
    ///
    /// Without atomic transactions the grant may be written and the claim not. An earlier check by
    /// another process would revoke the grant before the claim is written.
    pub(super) fn first_check(&self, job: &Job, now: Timestamp) -> Timestamp {
        let flight = self.ports.store.capabilities().atomicity.max_in_flight_write();
        let claim_by = if flight.is_zero() { AUDIT_INTERVAL } else { CLAIM_TIMEOUT.max(flight) };
        job.life.running().map_or(now, |run| run.lease_until).min(now + claim_by)
    }

    /// Checks the grants of the due batches: releases, fences, sends again or revokes them.
    pub(super) async fn check(
        &self,
        view: &LedgerView,
        catalog: &Catalog,
        limits: &Limits,
        plan: &mut TickPlan,
        now: Timestamp,
    ) -> Result<(), Error> {
        let mut checked = 0;
        for reference in view.due_checks(now) {
            if checked >= MAX_CHECKED_GRANTS {
                plan.again = true;
                break;
            }
            let mut batch = BatchCheck {
                is_due: reference.check_at <= now,
                sends: reference.sends,
                next: now + AUDIT_INTERVAL,
                resent: None,
                is_in_line: limits.queue.strict_order,
            };
            let grants: Vec<&Grant> = view.live_of(reference).collect();
            let ids: Vec<JobId> = grants.iter().map(|grant| grant.job.clone()).collect();
            checked += grants.len();
            for (grant, job) in grants.into_iter().zip(self.ports.store.get(&ids).await?) {
                self.check_grant(grant, job, &mut batch, catalog, plan, now);
            }
            plan.delta.read.push(reference.id);
            if batch.is_due {
                plan.delta.checked.push((reference.id, batch.next, batch.resent));
                plan.wake(Some(batch.next));
            }
        }
        Ok(())
    }

    /// Checks one grant against its job as it was just read. The grant of a job that cannot be read
    /// keeps its slot, because the job may run.
    fn check_grant(
        &self,
        grant: &Grant,
        job: StoredJob,
        batch: &mut BatchCheck,
        catalog: &Catalog,
        plan: &mut TickPlan,
        now: Timestamp,
    ) {
        let release = (grant.job.clone(), grant.version);
        if plan.delta.released.contains(&release) {
            return;
        }
        let Ok(job) = job else { return };
        let Some(job) = job.filter(|job| job.life.version == grant.version) else {
            plan.delta.released.push(release);
            return;
        };
        if grant.waits_until.is_some() {
            if !batch.is_in_line || !keeps_place(&job) {
                plan.delta.released.push(release);
            }
            return;
        }
        // A tick may grant work that it sends, and jobs that were offered to a pull worker: those are
        // never sent.
        let is_sent =
            (1..MAX_SENDS).contains(&batch.sends) && !self.is_leased(catalog, &job.spec.job_type);
        let event = match &job.life.state {
            State::Running(run) if run.lease_until <= now => {
                let Some(event) = lease_expired(self, catalog, &job) else { return };
                event
            }
            State::Running(run) => {
                batch.next = batch.next.min(run.lease_until);
                return;
            }
            State::Scheduled { .. } if !batch.is_due => return,
            State::Scheduled { .. } if is_sent => {
                let age = now.since(grant.granted_at);
                let mut sends = batch.sends;
                if resend_age(sends) <= age {
                    sends = sends_at(age);
                    batch.resent = batch.resent.max(Some(sends));
                    plan.send.push(Work::of(&job, now, Some(now)));
                }
                // The grants of a batch may have different ages: they are not checked one by one.
                let next = (grant.granted_at + resend_age(sends)).max(now + CLAIM_TIMEOUT);
                batch.next = batch.next.min(next);
                return;
            }
            // A merged batch may be checked too early for some of its grants.
            State::Scheduled { .. } if now < grant.granted_at + CLAIM_TIMEOUT => {
                batch.next = batch.next.min(grant.granted_at + CLAIM_TIMEOUT);
                return;
            }
            State::Scheduled { .. } => Event::Revoke { version: grant.version },
            State::Ended { .. } => return,
        };
        let (was, lapsed) = (job.life.revision, matches!(event, Event::LeaseExpired { .. }));
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_sent_again_after_twice_the_time_up_to_ten_minutes() {
        let ages: Vec<u64> = (1..=10).map(|sends| resend_age(sends).as_secs()).collect();
        assert_eq!(ages, [6, 12, 24, 48, 96, 192, 384, 768, 1368, 1968]);
        assert_eq!(resend_age(MAX_SENDS).as_secs() / 3600, 23);
        // A check in time counts one send, and one after an hour all that it missed.
        for (age, sends) in [(6, 2), (11, 2), (12, 3), (3600, 13), (90_000, MAX_SENDS)] {
            assert_eq!(sends_at(Duration::from_secs(age)), sends, "{age}");
        }
    }
}
