//! Offers one candidate: it is skipped, ended, moved, held, or granted and claimed.

use super::Search;
use crate::tick::{
    Claimed, Dispatch, check::CLAIM_TIMEOUT, delivery, grant, lease::lease, overdue,
    plan::JobChange,
};
use tidegate_core::{
    job::{
        Event, Job, Token,
        type_config::{Delivery, Start, TypeConfig},
    },
    port::Work,
    queue::{AdmissionDecision, Candidate},
};

impl Search<'_> {
    /// Offers one job. Returns whether it was admitted.
    pub(in crate::tick) fn try_admit(&mut self, job: &Job) -> bool {
        let Some(demand) = self.consider(job) else {
            return false;
        };
        let bytes = self.capacities.bytes(job);
        match self.capacities.try_admit(&mut self.admission, Candidate::of(&job.spec), bytes) {
            Some(AdmissionDecision::Hold(hold)) => self.plan.hold(hold),
            Some(AdmissionDecision::Move(opening)) => {
                self.plan.await_window(job, opening, self.now);
            }
            Some(AdmissionDecision::Run) => {
                self.admit(demand, job, bytes);
                return true;
            }
            None => {}
        }
        false
    }

    /// The demand that would take `job`, if it is a candidate: not offered before in this tick,
    /// without a grant, not overdue.
    pub(in crate::tick) fn consider(&mut self, job: &Job) -> Option<usize> {
        if !self.plan.seen.insert(job.id.clone())
            || self.is_granted(job)
            || self.engine.unclaimed.is_dispatched(&job.id)
        {
            return None;
        }
        if let Some((view, _)) = &self.granted
            && let Some(older) =
                view.grant(&job.id).filter(|grant| grant.version < job.life.version)
        {
            // This read proves that the job left the granted version. Its slot is free once the
            // release is committed.
            let release = (job.id.clone(), older.version);
            if !self.plan.delta.released.contains(&release) {
                self.plan.delta.released.push(release);
                // This tick still counts it as taken: the next one uses it at once.
                self.plan.again = true;
                if let Some(throttling) = &mut self.plan.throttling {
                    throttling.record_ended(older, job);
                }
            }
        }
        let demand = self.capacities.find(job)?;
        if let Some(ended) = overdue(job, self.now) {
            self.plan.end(job, ended);
            return None;
        }
        // A job whose type cannot be read waits.
        if delivery(self.catalog, job).ok()? == Delivery::AtMostOnce
            && let Ok(ended) = job.apply(Event::MustNotRunTwice, self.now)
        {
            self.plan.end(job, ended);
            return None;
        }
        // A job that awaits its retry decision is no candidate.
        (!job.life.awaits_retry_decision()).then_some(demand)
    }

    /// Grants and claims (or sends) an admitted job of `bytes`.
    pub(in crate::tick) fn admit(&mut self, demand_index: usize, job: &Job, bytes: usize) {
        let now = self.now;
        let demand = &self.capacities.demands[demand_index];
        let granted = self.granted.is_some();
        if demand.dispatch == Dispatch::Offer && !granted {
            // The queue's limit was removed before it had a ledger. The call that waits claims by
            // itself.
            return;
        }
        if let Some((view, _)) = &self.granted
            && let Some(waiting) = view.grant(&job.id).filter(|one| one.waits_until.is_some())
        {
            // Its place becomes the right to start it.
            self.plan.delta.released.push((job.id.clone(), waiting.version));
        }
        if demand.dispatch != Dispatch::Claim && granted {
            self.plan.delta.granted.push(grant(job, now));
            let work = Work::of(job, now, Some(now));
            if demand.dispatch == Dispatch::Queue {
                self.plan.delta.sent = false;
                self.plan.send.push(work);
            } else {
                self.plan.offers.push((demand_index, work));
            }
            self.plan.delta.check_by(now + CLAIM_TIMEOUT);
            self.plan.wake(Some(now + CLAIM_TIMEOUT));
            self.capacities.take(demand_index, bytes);
            return;
        }
        let config = self.catalog.types.get(&job.spec.job_type).map(|item| &item.config);
        let push = config.is_some_and(|config| self.engine.is_pushed(config));
        let lease = lease(config, push, demand, job);
        let event = Event::Claim {
            version: job.life.version,
            token: match &demand.call {
                Some(call) => call.next_token(job),
                None => Token::new(self.engine.ports.entropy.bits()),
            },
            worker: demand.worker.clone(),
            lease,
            granted,
            decided_at: now,
        };
        let was = job.life.revision;
        let Ok(claimed) = job.apply(event, now) else {
            return;
        };
        if granted {
            self.plan.delta.granted.push(grant(job, now));
            self.plan.delta.check_by(self.engine.first_check(&claimed, now));
        }
        let may_be_unclaimed = !granted && push && self.engine.rules.start_unclaimed;
        let is_unclaimed = may_be_unclaimed && config.is_some_and(is_unclaimed);
        let change = JobChange { job: claimed.clone(), was };
        if is_unclaimed {
            self.plan.unclaimed.push(change);
        } else {
            self.plan.claims.push(change);
        }
        self.plan.claimed.push(Claimed {
            demand: demand_index,
            run_at: job.life.run_at().unwrap_or(now),
            job: claimed,
        });
        self.capacities.take(demand_index, bytes);
    }
}

/// Whether jobs of this push type start by unclaimed dispatch.
fn is_unclaimed(config: &TypeConfig) -> bool {
    config.start == Start::Plain && config.delivery == Delivery::AtLeastOnce
}
