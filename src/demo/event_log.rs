//! The observations of the workers, recorded without the server.
//!
//! A worker records the start of an attempt before the work begins. It records the end after the
//! work has ended and before it reports. The recorded maximum therefore never exceeds what really
//! ran at once.

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

/// The content of the `event_log`.
#[derive(Clone, Debug, Default)]
pub struct Pages {
    /// Every started attempt, in order.
    pub starts: Vec<Start>,
    /// The weight that runs now, by queue and by tenant.
    pub running: BTreeMap<Scope, u64>,
    /// The maximum of that weight.
    pub most: BTreeMap<Scope, u64>,
    /// The attempts that their workers report as succeeded.
    pub succeeded: HashSet<(String, u16)>,
    /// Pushes with a valid signature, and pushes with an invalid one.
    pub signatures: (u64, u64),
    /// Pushes answered with 503.
    pub turned_away: u64,
    /// Pushes answered with 202, and callbacks that the server accepted.
    pub callbacks: (u64, u64),
    /// Heartbeats that the server accepted.
    pub heartbeats: u64,
    /// Jobs whose worker was stopped by a heartbeat.
    pub stopped_by_heartbeat: Vec<String>,
    /// Late reports, which the server refused.
    pub late_reports: u64,
    /// Attempts that a worker stopped because its heartbeats had no response.
    pub given_up: u64,
}

/// The scope of a weight.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// A queue.
    Queue(&'static str),
    /// A tenant, in the limited queue.
    Tenant(String),
}

/// The start of an attempt.
#[derive(Clone, Debug)]
pub struct Start {
    /// The job.
    pub id: String,
    /// Its kind.
    pub kind: JobKind,
    /// The attempt.
    pub attempt: u16,
    /// When its worker started.
    pub at: Timestamp,
    /// The due time, if one was set.
    pub due_at: Option<Timestamp>,
}

impl EventLog {
    /// Records the start of an attempt. A drop of the returned value records its end.
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

    /// Changes the content.
    pub fn write<T>(&self, note: impl FnOnce(&mut Pages) -> T) -> T {
        note(&mut self.0.lock())
    }

    /// Reads the content.
    pub fn read<T>(&self, look: impl FnOnce(&Pages) -> T) -> T {
        look(&self.0.lock())
    }
}

/// A running attempt.
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
    /// Returns the first start of each job, by id: its place among all starts, and the start.
    pub fn first_starts(&self) -> HashMap<&str, (usize, &Start)> {
        let mut first = HashMap::new();
        for (place, start) in self.starts.iter().enumerate() {
            first.entry(start.id.as_str()).or_insert((place, start));
        }
        first
    }

    /// Returns the lateness of each job with a due time, in milliseconds, ascending. A negative one
    /// started early. Only first attempts count, because a retry is late by design.
    pub fn lateness(&self) -> Vec<i64> {
        let first = self.starts.iter().filter(|start| start.attempt == 1);
        let mut late: Vec<i64> =
            first.filter_map(|start| Some(start.at.millis() - start.due_at?.millis())).collect();
        late.sort_unstable();
        late
    }

    /// Returns the number of attempts after the first of each job.
    pub fn retries(&self) -> usize {
        self.starts.iter().filter(|start| start.attempt > 1).count()
    }
}

/// Returns the value that `percent` of the ascending `values` do not exceed.
pub fn percentile(values: &[i64], percent: usize) -> Option<i64> {
    values.get((values.len() * percent).div_ceil(100).saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maximum_remains_after_the_work_has_ended() {
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
    fn a_percentile_is_one_of_the_values() {
        assert_eq!(percentile(&[], 50), None);
        assert_eq!((percentile(&[7], 1), percentile(&[7], 99)), (Some(7), Some(7)));
        let values: Vec<i64> = (1..=100).collect();
        assert_eq!(
            (percentile(&values, 50), percentile(&values, 99), percentile(&values, 100)),
            (Some(50), Some(99), Some(100))
        );
    }
}
