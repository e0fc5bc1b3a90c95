//! Planted bugs: they break the protocol from outside, and the simulation must detect them.

use std::time::Duration;

use tidegate_core::{
    job::{Job, State},
    port::job_store::{DuePage, Expect, ItemKind, Txn, Write},
    time::Timestamp,
};

use super::model::Model;

/// How long a job is due until [`Bug::OldJobsHidden`] hides it.
const HIDDEN_AFTER: Duration = Duration::from_hours(6);

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The ledger is replaced whatever its version is.
    LedgerVersionIgnored,
    /// A job is replaced whatever its revision is.
    RevisionIgnored,
    /// A commit does not require the configuration that it was decided under.
    RequirementDropped,
    /// A store that writes one by one claims that its transactions are atomic.
    AtomicityOverstated,
    /// Jobs are claimed, but their grants are not committed.
    GrantsDropped,
    /// A grant whose hint was lost is never checked.
    AuditDropped,
    /// Revoking an unclaimed grant uses up an attempt.
    RevokeUsesAttempt,
    /// An attempt that was handed back counts.
    HandBackUsesAttempt,
    /// A job is acknowledged but not written.
    JobsDropped,
    /// One engine's clock is an hour ahead.
    ClockAhead,
    /// Hints name jobs that are still at the granted version.
    HintsPremature,
    /// The state of a throttler is not committed with its decisions.
    ThrottlerStateDropped,
    /// A change does not exclude an unclaimed dispatch of its job.
    HoldsIgnored,
    /// A process that lives on forgets its unclaimed dispatches.
    DispatchesForgotten,
    /// A ledger forgets which attempts have started under its rates.
    StartsForgotten,
    /// The unclaimed dispatches of a process that was killed at its timeout count as running.
    KillsUnnoticed,
    /// A message that is minutes late is taken as one about the version that its job is at now.
    LateMessagesTrusted,
    /// Jobs that have been due for hours are not found.
    OldJobsHidden,
    /// Where ticks must be requested, no timer requests one, nor does a sweep.
    TicksUnrequested,
    /// A started job loses its place in a strict order while it waits.
    PlacesForgotten,
}

impl Bug {
    /// Every bug, whether it shows on a store that writes one by one, and the seed that found it last.
    pub const ALL: [(Self, bool, u64); 20] = [
        (Self::LedgerVersionIgnored, false, 0),
        (Self::RevisionIgnored, false, 1),
        (Self::RequirementDropped, true, 2),
        (Self::AtomicityOverstated, true, 2),
        (Self::GrantsDropped, true, 0),
        (Self::AuditDropped, false, 0),
        (Self::RevokeUsesAttempt, false, 0),
        (Self::HandBackUsesAttempt, false, 0),
        (Self::JobsDropped, false, 0),
        (Self::ClockAhead, false, 0),
        (Self::HintsPremature, false, 2),
        (Self::ThrottlerStateDropped, false, 1),
        (Self::HoldsIgnored, true, 0),
        (Self::DispatchesForgotten, true, 2),
        (Self::StartsForgotten, false, 0),
        (Self::KillsUnnoticed, true, 1),
        (Self::LateMessagesTrusted, false, 28),
        (Self::OldJobsHidden, false, 3),
        (Self::TicksUnrequested, false, 44),
        (Self::PlacesForgotten, false, 2),
    ];

    /// The longest write in flight that the store claims.
    pub fn in_flight_write(self, in_flight: Duration) -> Duration {
        if self == Self::AtomicityOverstated { Duration::ZERO } else { in_flight }
    }

    /// Changes a page of due jobs on its way from the store.
    pub fn spoil_page(self, page: &mut DuePage, now: Timestamp) {
        if self == Self::OldJobsHidden {
            let is_old = |job: &Job| job.life.run_at().is_some_and(|at| at + HIDDEN_AFTER < now);
            page.jobs.retain(|job| !is_old(job));
        }
    }

    /// Changes writes on their way to the store.
    pub fn spoil(self, txns: &mut Vec<Txn>, model: &Model) {
        for txn in txns {
            txn.retain(|write| match write {
                Write::RequireItem { kind: ItemKind::Queue, .. } => {
                    self != Self::RequirementDropped
                }
                Write::SetLedger { ledger, .. } => {
                    self != Self::GrantsDropped || ledger.batches.is_empty()
                }
                Write::AddJob(job) => self != Self::JobsDropped || !job.id.as_str().ends_with('7'),
                _ => true,
            });
            for write in txn {
                self.spoil_write(write, model);
            }
        }
    }

    fn spoil_write(self, write: &mut Write, model: &Model) {
        match (self, write) {
            (Self::LedgerVersionIgnored, Write::SetLedger { queue, ledger, was }) => {
                if let Some(there) = model.ledgers.get(queue) {
                    ledger.version = there.version + 1;
                    *was = Expect::Is(there.version);
                }
            }
            (Self::RevisionIgnored, Write::SetJob { job, was, .. }) => {
                if let Some(there) = model.jobs.get(&job.id) {
                    *was = there.life.revision;
                    job.life.revision.0 = was.0 + 1;
                }
            }
            (Self::ThrottlerStateDropped, Write::SetLedger { queue, ledger, .. }) => {
                ledger.policy = model.ledgers.get(queue).and_then(|there| there.policy.clone());
            }
            (Self::StartsForgotten, Write::SetLedger { ledger, .. }) => ledger.starts.clear(),
            (Self::AuditDropped, Write::SetLedger { ledger, .. }) => {
                for batch in &mut ledger.batches {
                    batch.check_at = batch.check_at + Duration::from_hours(10);
                }
            }
            (Self::PlacesForgotten, Write::AddBatch(_, batch)) => {
                let waiting = batch.grants.iter_mut().filter(|grant| grant.waits_until.is_some());
                waiting.for_each(|grant| grant.attributes.clear());
            }
            (Self::HandBackUsesAttempt, Write::SetJob { job, .. }) => job.life.hand_backs = None,
            (Self::RevokeUsesAttempt, Write::SetJob { job, .. }) => {
                let there = model.jobs.get(&job.id);
                let waits = |job: &Job| matches!(job.life.state, State::Scheduled { .. });
                if there.is_some_and(|there| {
                    waits(there) && waits(job) && there.life.run_at() == job.life.run_at()
                }) {
                    job.life.attempt += 1;
                }
            }
            _ => {}
        }
    }
}
