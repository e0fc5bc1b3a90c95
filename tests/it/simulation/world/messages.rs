//! The messages between processes, and the work queue that loses and repeats them.

use std::collections::BTreeSet;

use tidegate_core::{
    job::{JobId, QueueName, Version},
    port::{Hint, HintKind, Timer, Work, WorkQueue, job_store::StoreError},
    queue::GrantDigest,
    time::Timestamp,
};
use tidegate_engine::request::Report;

use super::{super::model::ProcessNumber, World};

/// The messages in flight between processes, with their times of arrival.
#[derive(Default)]
pub(super) struct InFlight {
    pub work: Vec<(Timestamp, Work)>,
    /// Jobs that were granted to a waiting worker.
    pub offers: Vec<(Timestamp, Work)>,
    pub hints: Vec<(Timestamp, (JobId, Version))>,
    pub reports: Vec<(Timestamp, Report)>,
    /// Results of unclaimed dispatches, each to the process that made the call.
    pub responses: Vec<(Timestamp, (ProcessNumber, Report))>,
    pub jobs: Vec<JobId>,
}

/// Removes and returns the messages that have arrived by `now`.
pub(super) fn arrived<T>(in_flight: &mut Vec<(Timestamp, T)>, now: Timestamp) -> Vec<T> {
    let (here, later) = std::mem::take(in_flight).into_iter().partition(|(at, _)| *at <= now);
    *in_flight = later;
    let here: Vec<(Timestamp, T)> = here;
    here.into_iter().map(|(_, item)| item).collect()
}

/// A work queue that delays, loses and repeats messages.
pub(super) struct Messages(pub std::sync::Weak<World>);

#[async_trait::async_trait]
impl WorkQueue for Messages {
    async fn send(&self, work: &[Work]) -> Result<(), StoreError> {
        let Some(world) = self.0.upgrade() else {
            return Ok(());
        };
        world.scheduler.step().await;
        let fails = world.fault_happens(0.05);
        for piece in work {
            world.model.lock().check_sent(&piece.job);
            if fails && world.scheduler.happens(0.5) {
                return Err(StoreError::unavailable("a message was not taken"));
            }
            let copies = if world.fault_happens(0.3) {
                0
            } else {
                1 + usize::from(world.fault_happens(0.2))
            };
            for _ in 0..copies {
                let late = if world.fault_happens(0.2) { 20.0 } else { 0.3 };
                let at = world.scheduler.now() + world.scheduler.span(late);
                world.in_flight.lock().work.push((at, piece.clone()));
            }
        }
        Ok(())
    }

    async fn hint(&self, hints: &[Hint]) -> Result<(), StoreError> {
        let Some(world) = self.0.upgrade() else {
            return Ok(());
        };
        let left = hints.iter().filter_map(|hint| {
            if let HintKind::Released(job, version) = &hint.kind {
                Some((job.clone(), *version))
            } else {
                None
            }
        });
        let now = world.scheduler.now();
        world.in_flight.lock().hints.extend(left.map(|left| (now, left)));
        Ok(())
    }

    async fn take_releases(&self, _: &QueueName) -> Result<BTreeSet<GrantDigest>, StoreError> {
        Ok(BTreeSet::new())
    }

    /// Timers are not needed: the ticks of the simulation scan the queue periodically.
    async fn set_timers(&self, _: &[Timer]) -> Result<(), StoreError> {
        Ok(())
    }
}
