//! The input of a tick: reports, hints, and the demands of workers.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use crate::{RepeatableCall, request::Report};
use tidegate_core::{
    job::{Job, JobId, TypeName, Version},
    queue::GrantDigest,
    time::Seconds,
};

/// A request for jobs of some types.
#[derive(Clone, Debug)]
pub struct Demand {
    /// The requested types.
    pub types: Vec<TypeName>,
    /// How many jobs at most.
    pub capacity: u32,
    /// How many jobs at least: it takes none in a tick that has fewer for it. 0 is the same as 1.
    pub min: u32,
    /// The worker's name.
    pub worker: Option<String>,
    /// How long its leases last; absent: the type's setting.
    pub lease: Option<Seconds>,
    /// What happens to the admitted jobs.
    pub dispatch: Dispatch,
    /// The lease call that claims them, if its worker may repeat it.
    pub call: Option<Arc<RepeatableCall>>,
}

/// What happens to an admitted job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dispatch {
    /// It is claimed in the same commit and returned to the caller.
    Claim,
    /// It is sent through the work queue, and its receiver claims it.
    Queue,
    /// It is granted and returned to the caller, which passes it on to the worker with this demand.
    /// The receiver claims it. A grant that is not claimed in time is revoked. The demands of a
    /// tick are all of this kind, or none of them is. It needs a ledger.
    Offer,
}

/// The input of a tick.
#[derive(Clone, Debug, Default)]
pub struct TickInput {
    /// Results of attempts.
    pub reports: Vec<Report>,
    /// Hints: jobs that left the version at which they were granted.
    pub released: Vec<(JobId, Version)>,
    /// The same hints, each by the digest of the grant that the job left.
    pub released_digests: BTreeSet<GrantDigest>,
    /// Requests for jobs.
    pub demands: Vec<Demand>,
    /// How many more jobs each worker with a capacity takes, in all its demands.
    pub workers: BTreeMap<String, u32>,
    /// Whether a job arrived or a slot became free since the last tick. A scan in progress may have
    /// passed it, so another scan follows.
    pub queue_changed: bool,
    /// Whether the caller has learned of no change of the queue's jobs since the tick before, apart from
    /// the reports here. Then candidates that the latest tick has read for this one are offered, unless
    /// they are over 20 ms old.
    pub unchanged: bool,
    /// How old the read may be that found the configuration to be the current one; absent: the tick
    /// reads it. For calls that have read it themselves, the latest of these reads suffices.
    pub catalog_age: Option<Duration>,
    /// How many bytes the claimed jobs may have together; absent: any.
    pub byte_budget: Option<ByteBudget>,
    /// How many bytes the jobs of each demand may have together, in the order of `demands`; empty:
    /// any. They are estimated from the data.
    pub budgets: Vec<usize>,
    /// The version of the configuration from which the demands were computed; absent: any. Under
    /// another one the tick takes nothing for them, and its outcome is outdated.
    pub catalog_version: Option<u64>,
    /// Whether the tick ends at the first race that it loses. Others tick the queue then, and more
    /// attempts would only disturb them.
    pub yields: bool,
}

/// A budget of bytes for jobs: a response may have a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteBudget {
    /// The bytes that are left.
    pub left: usize,
    /// The whole budget. A larger job counts as this much: it is taken alone, so that it does not
    /// wait forever, and the caller decides what happens to it.
    pub most: usize,
    /// What counts.
    pub counts: CountedBytes,
}

/// What of a job a budget counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedBytes {
    /// All that an answer shows of it. That serializes the job.
    Shown,
    /// Its data and its checkpoint, which are most of it where it matters.
    Data,
}

impl ByteBudget {
    /// The budget that is left after `job`, if it fits.
    #[must_use]
    pub fn after(self, job: &Job) -> Option<Self> {
        let left = self.left.checked_sub(self.bytes(job))?;
        Some(Self { left, ..self })
    }

    /// The bytes that `job` takes.
    pub(super) fn bytes(self, job: &Job) -> usize {
        let bytes = match self.counts {
            CountedBytes::Shown => job.bytes(),
            CountedBytes::Data => job.input_bytes(),
        };
        bytes.min(self.most)
    }
}
