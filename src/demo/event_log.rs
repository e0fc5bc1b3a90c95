//! What the workers see, written down by themselves: the server has no part in it.
//!
//! An attempt is in the event log from before its work begins until after its work has ended. Its end is
//! written before the worker reports it. So the most that the event log ever counted at
//! once was truly at work at once.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use parking_lot::Mutex;

use super::plan::{JobKind, PlannedJob, RANKED, SHOP};
use tidegate_backends::system::SystemClock;
use tidegate_core::{port::Clock as _, time::Timestamp};

/// The `event_log` of all workers.
#[derive(Debug, Default)]
pub struct EventLog(Mutex<Pages>);

/// What is in the `event_log`.
#[derive(Clone, Debug, Default)]
pub struct Pages {
    /// Every attempt begun, in order.
    pub starts: Vec<Start>,
    /// The weight at work now, by queue and by tenant.
    pub running: BTreeMap<Scope, u64>,
    /// The most of it there ever was at once.
    pub most: BTreeMap<Scope, u64>,
    /// The attempts that their workers say succeeded.
    pub succeeded: HashSet<(String, u16)>,
    /// Pushes whose signature fits, and pushes whose does not.
    pub signatures: (u64, u64),
    /// Pushes answered with 503.
    pub turned_away: u64,
    /// Pushes answered with 202, and callbacks that the server took.
    pub callbacks: (u64, u64),
    /// Heartbeats that the server took.
    pub heartbeats: u64,
    /// Jobs whose worker was stopped by a heartbeat.
    pub told_to_stop: Vec<String>,
    /// Reports that came too late, and were refused.
    pub late_reports: u64,
    /// Attempts that a worker gave up because its heartbeats had no response.
    pub given_up: u64,
}

/// What weight is counted by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// A queue.
    Queue(&'static str),
    /// A tenant, in the limited queue.
    Tenant(String),
}

/// The begin of an attempt.
#[derive(Clone, Debug)]
pub struct Start {
    /// The job.
    pub id: String,
    /// Its kind.
    pub kind: JobKind,
    /// The attempt.
    pub attempt: u16,
    /// When its worker began.
    pub at: Timestamp,
    /// The due time, if one was set.
    pub due_at: Option<Timestamp>,
}

impl EventLog {
    /// Writes down that a worker begins an attempt; it ends when what is returned is dropped.
    pub fn begin(
        self: &Arc<Self>,
        kind: JobKind,
        id: &str,
        attempt: u16,
        errand: &PlannedJob,
    ) -> AtWork {
        let mut scopes = Vec::new();
        if kind.queue() == SHOP {
            scopes.extend([Scope::Queue(SHOP), Scope::Tenant(errand.tenant.clone())]);
        } else if kind.queue() == RANKED {
            scopes.push(Scope::Queue(RANKED));
        }
        let start = Start {
            id: id.to_owned(),
            kind,
            attempt,
            at: SystemClock.now(),
            due_at: errand.due_at,
        };
        self.write(|pages| {
            pages.starts.push(start);
            for scope in &scopes {
                let running = pages.running.entry(scope.clone()).or_default();
                *running += errand.weight;
                let most = pages.most.entry(scope.clone()).or_default();
                *most = (*most).max(*running);
            }
        });
        AtWork { event_log: Arc::clone(self), scopes, weight: errand.weight }
    }

    /// Writes something down.
    pub fn write<T>(&self, note: impl FnOnce(&mut Pages) -> T) -> T {
        note(&mut self.0.lock())
    }

    /// Reads something.
    pub fn read<T>(&self, look: impl FnOnce(&Pages) -> T) -> T {
        look(&self.0.lock())
    }
}

/// An attempt at work.
#[derive(Debug)]
pub struct AtWork {
    event_log: Arc<EventLog>,
    scopes: Vec<Scope>,
    weight: u64,
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.event_log.write(|pages| {
            for scope in &self.scopes {
                if let Some(running) = pages.running.get_mut(scope) {
                    *running -= self.weight;
                }
            }
        });
    }
}

impl Pages {
    /// The first start of each job, by id: its place among all starts, and the start.
    pub fn first_starts(&self) -> HashMap<&str, (usize, &Start)> {
        let mut first = HashMap::new();
        for (place, start) in self.starts.iter().enumerate() {
            first.entry(start.id.as_str()).or_insert((place, start));
        }
        first
    }

    /// How late each job of a certain time began, in milliseconds, ascending; a negative one began early.
    /// Only first attempts count: a retry is late on purpose.
    pub fn lateness(&self) -> Vec<i64> {
        let first = self.starts.iter().filter(|start| start.attempt == 1);
        let mut late: Vec<i64> =
            first.filter_map(|start| Some(start.at.millis() - start.due_at?.millis())).collect();
        late.sort_unstable();
        late
    }

    /// Attempts after a job's first.
    pub fn retries(&self) -> usize {
        self.starts.iter().filter(|start| start.attempt > 1).count()
    }
}

/// The value that `percent` of the ascending `values` do not exceed.
pub fn percentile(values: &[i64], percent: usize) -> Option<i64> {
    values.get((values.len() * percent).div_ceil(100).saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_at_once_is_kept_after_the_work_has_ended() {
        let event_log = Arc::new(EventLog::default());
        let errand = |tenant: &str, weight| PlannedJob {
            tenant: tenant.to_owned(),
            weight,
            ..PlannedJob::default()
        };
        let first = event_log.begin(JobKind::Call, "a", 1, &errand("acme", 3));
        let second = event_log.begin(JobKind::Crunch, "b", 1, &errand("blue", 4));
        drop(first);
        let third = event_log.begin(JobKind::Call, "c", 1, &errand("acme", 2));
        drop((second, third));
        let pages = event_log.read(Pages::clone);
        assert_eq!(pages.most[&Scope::Queue(SHOP)], 7);
        assert_eq!(pages.most[&Scope::Tenant("acme".to_owned())], 3);
        assert!(pages.running.values().all(|weight| *weight == 0));
    }

    #[test]
    fn a_percentile_is_a_value_that_was_seen() {
        assert_eq!(percentile(&[], 50), None);
        assert_eq!((percentile(&[7], 1), percentile(&[7], 99)), (Some(7), Some(7)));
        let values: Vec<i64> = (1..=100).collect();
        assert_eq!(
            (percentile(&values, 50), percentile(&values, 99), percentile(&values, 100)),
            (Some(50), Some(99), Some(100))
        );
    }
}
