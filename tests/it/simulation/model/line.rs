//! The order of the jobs of a partition.

use tidegate_core::job::{Job, State, lifecycle::Waiting};

use super::Model;

impl Model {
    /// Checks that no other job of the partition of `job`, which starts, has started and holds the
    /// partition: it runs, or it waits for its next attempt and was not moved aside.
    pub(super) fn check_line(&mut self, job: &Job) {
        let queue = &job.spec.queue;
        let is_strict = |item: &tidegate_core::queue::config::QueueItem| item.config.strict_order;
        if job.spec.critical || !self.queues.get(queue).is_some_and(is_strict) {
            return;
        }
        let Some(tenant) = job.spec.attributes.get("tenant") else { return };
        let is_ahead = |other: &&Job| {
            other.id != job.id
                && other.spec.queue == *queue
                && !other.spec.critical
                && other.spec.attributes.get("tenant") == Some(tenant)
                && holds(other)
        };
        let ahead = self.jobs.values().find(is_ahead).map(|ahead| ahead.id.clone());
        if job.life.attempt > 0 {
            self.count("held places");
        }
        if let Some(ahead) = ahead {
            self.fault(format!("{} started, and {ahead} of its partition has not ended", job.id));
        }
    }
}

/// Whether `job` has started and holds back the jobs behind it.
fn holds(job: &Job) -> bool {
    match job.life.state {
        State::Running(_) => true,
        State::Scheduled { run_at, waiting } => {
            let planned = job.life.history.last().and_then(|entry| entry.retry_at);
            let due = match waiting {
                Waiting::Due => Some(run_at),
                Waiting::Window { due } => Some(due),
                Waiting::Retry | Waiting::Throttler | Waiting::RetryDecision => None,
            };
            // A caller that postpones it moves it aside.
            job.life.attempt > 0 && due.is_none_or(|due| planned.is_some_and(|at| due <= at))
        }
        State::Ended { .. } => false,
    }
}
