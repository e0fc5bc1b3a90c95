//! Planted bugs: ways to break the protocol from outside, which the simulation must detect.

use std::time::Duration;

use tidegate_core::{
    job::State,
    port::job_store::{Expect, ItemKind, Txn, Write},
};

use super::model::Model;

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The ledger is replaced whatever its version is.
    HeadVersionIgnored,
    /// A job is replaced whatever its revision is.
    RevisionIgnored,
    /// A commit does not require the configuration that it was decided under.
    RequirementDropped,
    /// A store that writes one by one says that its transactions are atomic.
    FlightDenied,
    /// Jobs are claimed, and their grants are not committed.
    GrantsForgotten,
    /// A grant whose hint was lost is never checked.
    AuditDropped,
    /// Revoking an unclaimed grant uses up an attempt.
    RevokeUsesAttempt,
    /// A job is acknowledged and not written.
    JobsForgotten,
    /// One engine's clock is an hour ahead.
    ClockLies,
    /// Hints name jobs that are still at the granted version.
    HintsLie,
    /// What a throttler remembers is not committed with what it decided.
    StateForgotten,
}

impl Bug {
    /// Every one of them, and whether it shows on a store that writes one by one.
    pub const ALL: [(Self, bool); 11] = [
        (Self::HeadVersionIgnored, false),
        (Self::RevisionIgnored, false),
        (Self::RequirementDropped, true),
        (Self::FlightDenied, true),
        (Self::GrantsForgotten, true),
        (Self::AuditDropped, false),
        (Self::RevokeUsesAttempt, false),
        (Self::JobsForgotten, false),
        (Self::ClockLies, false),
        (Self::HintsLie, false),
        (Self::StateForgotten, false),
    ];

    /// What the store says of its writes.
    pub fn flight(self, flight: Duration) -> Duration {
        if self == Self::FlightDenied { Duration::ZERO } else { flight }
    }

    /// Changes writes on their way to the store.
    pub fn spoil(self, txns: &mut Vec<Txn>, model: &Model) {
        for txn in txns {
            txn.retain(|write| match write {
                Write::RequireItem { kind: ItemKind::Queue, .. } => {
                    self != Self::RequirementDropped
                }
                Write::SetLedger { head, .. } => {
                    self != Self::GrantsForgotten || head.batches.is_empty()
                }
                Write::AddJob(job) => {
                    self != Self::JobsForgotten || !job.id.as_str().ends_with('7')
                }
                _ => true,
            });
            for write in txn {
                self.spoil_write(write, model);
            }
        }
    }

    fn spoil_write(self, write: &mut Write, model: &Model) {
        match (self, write) {
            (Self::HeadVersionIgnored, Write::SetLedger { queue, head, was }) => {
                if let Some(there) = model.heads.get(queue) {
                    head.version = there.version + 1;
                    *was = Expect::Is(there.version);
                }
            }
            (Self::RevisionIgnored, Write::SetJob { job, was, .. }) => {
                if let Some(there) = model.jobs.get(&job.id) {
                    *was = there.life.revision;
                    job.life.revision.0 = was.0 + 1;
                }
            }
            (Self::StateForgotten, Write::SetLedger { queue, head, .. }) => {
                head.policy = model.heads.get(queue).and_then(|there| there.policy.clone());
            }
            (Self::AuditDropped, Write::SetLedger { head, .. }) => {
                for batch in &mut head.batches {
                    batch.check_at = batch.check_at + Duration::from_hours(10);
                }
            }
            (Self::RevokeUsesAttempt, Write::SetJob { job, .. }) => {
                let there = model.jobs.get(&job.id);
                let waits = |job: &tidegate_core::job::Job| {
                    matches!(job.life.state, State::Scheduled { .. })
                };
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
