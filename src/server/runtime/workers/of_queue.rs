//! The workers of one queue: how many share it, and what they have room for.

use std::time::Duration;

use super::registry::Takes;
use tidegate_core::{
    job::{QueueName, TypeName},
    time::Timestamp,
};
use tidegate_engine::{Catalog, request::WorkerStatus};

/// How long after its last call an idle worker counts as one that shares a queue.
const ACTIVE_WORKER_AGE: Duration = Duration::from_mins(1);

/// A caller that takes jobs of a queue.
pub(super) struct Taker {
    pub(super) takes: Takes,
    pub(super) capacity: Option<u32>,
    pub(super) seen_at: Timestamp,
    /// How many of its requests wait for jobs.
    pub(super) polls: u64,
    pub(super) named: bool,
    pub(super) draining: bool,
    /// How many jobs it runs.
    pub(super) runs: u64,
}

impl Taker {
    /// How many workers it is.
    fn count(&self) -> u64 {
        if self.named { 1 } else { self.polls.max(1) }
    }
}

/// The callers that take jobs of one queue.
pub(in crate::runtime) struct QueueWorkers {
    pub(super) queue: QueueName,
    pub(super) takers: Vec<Taker>,
}

impl QueueWorkers {
    /// How many of them wait for jobs, run some, or called within a minute.
    pub(in crate::runtime) fn active(&self, catalog: &Catalog, now: Timestamp) -> u64 {
        let is_of_queue = |name: &TypeName| {
            catalog.types.get(name).is_some_and(|item| item.config.queue == self.queue)
        };
        let is_active = |taker: &&Taker| {
            let is_recent = now.since(taker.seen_at) < ACTIVE_WORKER_AGE;
            let types = &taker.takes.types;
            (types.is_empty() || types.iter().any(is_of_queue))
                && !taker.draining
                && (taker.polls > 0 || taker.runs > 0 || is_recent)
        };
        self.takers.iter().filter(is_active).map(Taker::count).sum()
    }

    /// The status of those that take jobs of a type. `unnamed` is how many of its jobs run at
    /// workers without a name.
    pub(in crate::runtime) fn status(&self, job_type: &TypeName, unnamed: u64) -> WorkerStatus {
        let mut status = WorkerStatus { in_use: unnamed, ..WorkerStatus::default() };
        let [mut known, mut polling, mut busy, mut draining] = [0; 4];
        let mut capacity = Some(0);
        for taker in self.takers.iter().filter(|taker| taker.takes.has(&self.queue, job_type)) {
            let Taker { capacity: most, polls, named, draining: is_draining, runs, .. } = taker;
            let count = taker.count();
            known += count;
            status.in_use += runs;
            status.last_seen_at = status.last_seen_at.max(Some(taker.seen_at));
            if *is_draining {
                draining += count;
                continue;
            }
            let room = most.map(|most| u64::from(most).saturating_sub(*runs));
            capacity = capacity.zip(*most).map(|(sum, most)| sum + u64::from(most));
            let runs_some = *runs > 0 || (!named && unnamed > 0);
            if room == Some(0) || (runs_some && *polls == 0 && room.is_none()) {
                busy += count;
            } else if *polls > 0 {
                polling += count;
            }
        }
        status.capacity = capacity.filter(|_| known > draining);
        WorkerStatus {
            known: Some(known),
            polling: Some(polling),
            busy: Some(busy),
            draining: Some(draining),
            ..status
        }
    }
}
