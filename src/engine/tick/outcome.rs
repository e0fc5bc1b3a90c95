//! The result of a tick.

use std::collections::{BTreeMap, HashSet};

use super::ThrottlerCall;
use crate::Error;
use tidegate_core::{
    job::{Job, JobId, Version},
    port::Work,
    queue::Rule,
    time::Timestamp,
};

/// A claimed job.
#[derive(Clone, Debug, PartialEq)]
pub struct Claimed {
    /// For which demand: an index into [`TickInput::demands`](super::TickInput::demands).
    pub demand: usize,
    /// The job, running.
    pub job: Job,
    /// When it was due.
    pub run_at: Timestamp,
}

/// The result of a tick.
#[expect(clippy::struct_excessive_bools, reason = "each is an answer to its caller")]
#[derive(Debug, Default)]
pub struct TickOutcome {
    /// One answer per report, in order: the job after it.
    pub reports: Vec<Result<Job, Error>>,
    /// Which of the reports repeated a known result.
    pub repeated: HashSet<usize>,
    /// The jobs that were claimed.
    pub claimed: Vec<Claimed>,
    /// Jobs that were granted and are not claimed, each with the index of its demand.
    pub offers: Vec<(usize, Work)>,
    /// Whether the tick admitted nothing because other processes wrote the ledger.
    pub lost: bool,
    /// Whether the demands were computed from another configuration, so that the tick took nothing
    /// for them.
    pub outdated: bool,
    /// How many jobs were sent through the work queue.
    pub sent: usize,
    /// Jobs that ended in this tick without a report.
    pub ended: Vec<Job>,
    /// Jobs whose lease expired and that are retried.
    pub lapsed: Vec<Job>,
    /// How many candidates each rule held.
    pub held: BTreeMap<Rule, u64>,
    /// When the next tick is due even if nothing happens.
    pub next_at: Option<Timestamp>,
    /// When the next job may start, as far as the tick has seen: it is due, or its rule lets it go.
    pub next_start_at: Option<Timestamp>,
    /// Whether the scan is in progress: tick again at once.
    pub again: bool,
    /// Hints that this tick could not take, including its own: for the next one.
    pub left: Vec<(JobId, Version)>,
    /// The objects that settled jobs named before, and no longer do.
    pub unnamed_objects: Vec<String>,
    /// Whether jobs await a retry decision: sweep at once.
    pub pending: bool,
    /// The throttler's calls, page by page, if it has a shadow version.
    pub shadowed_calls: Vec<ThrottlerCall>,
    /// Failed calls of the throttler.
    pub faults: Vec<ThrottlerCall>,
}

impl TickOutcome {
    /// The jobs whose reports were new.
    pub fn settled(&self) -> impl Iterator<Item = &Job> {
        self.reports
            .iter()
            .enumerate()
            .filter(|(index, _)| !self.repeated.contains(index))
            .filter_map(|(_, report)| report.as_ref().ok())
    }
}
