//! The ledger: one record per limited queue, in which its admissions are decided.
//!
//! It is a write-ahead log: *commit the grant, then start the work*. A reader of the ledger knows
//! the whole running set. A write succeeds only if the version is still the one that was read.
//! Grants are stored in [`GrantBatch`]es, which are written before the ledger that names them.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    matcher::Subject,
    order::Position,
    plugin_state::StatePage,
    rate::{Bucket, RateCounts, RecentStarts},
};
use crate::{
    job::{Attributes, Job, JobId, PluginName, TypeName, Version},
    record,
    stored::UnknownFields,
    time::Timestamp,
};

/// The number of a grant batch. It is random, so that ticks that race never write the same batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BatchId(pub u64);

/// The record of one queue's admissions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ledger {
    /// Raised by every commit; a commit names the version it read.
    pub version: u64,
    /// Random in every commit, so that a commit whose answer was lost can be recognised.
    pub nonce: u64,
    /// The configuration version of the latest commit; it never decreases.
    pub config_version: u64,
    /// The latest tick's time; it never decreases.
    pub time: Timestamp,
    /// Until then, running jobs without a grant may still appear, and nothing is admitted.
    pub settling_until: Option<Timestamp>,
    /// Where the current scan of the queue stopped.
    pub scan_cursor: Option<Position>,
    /// The partition that was served last.
    pub last_partition: Option<String>,
    /// Where the current pass over the partitions started, if it takes more than one tick.
    pub lap_start: Option<String>,
    /// Token buckets that are not full, by constraint and value: rates with a burst.
    pub buckets: BTreeMap<(String, String), Bucket>,
    /// The batches of live grants.
    pub batches: Vec<BatchRef>,
    /// Since when each rule holds a job.
    pub held: BTreeMap<Rule, Timestamp>,
    /// The state of the queue's throttler.
    pub policy: Option<KeptPolicyState>,
    /// The starts in the windows of rates, by constraint and value: rates without a burst.
    pub starts: BTreeMap<(String, String), RecentStarts>,
    /// The fields that a newer release added.
    pub unknown: UnknownFields,
}

record!(Ledger {
    version,
    nonce,
    config_version,
    time,
    settling_until,
    scan_cursor,
    last_partition,
    lap_start,
    buckets,
    batches,
    held,
    policy;
    starts
});

impl Ledger {
    /// What its rates have counted.
    pub fn rate_counts(&self) -> RateCounts {
        RateCounts { starts: self.starts.clone(), buckets: self.buckets.clone() }
    }

    /// Replaces what its rates have counted.
    pub fn set_rate_counts(&mut self, counts: RateCounts) {
        let RateCounts { starts, buckets } = counts;
        (self.starts, self.buckets) = (starts, buckets);
    }

    /// The batches that it names, which are stored and read with it.
    pub fn referenced_batches(&self) -> impl Iterator<Item = BatchId> {
        let pages = self.policy.iter().flat_map(|policy| policy.state.pages());
        self.batches.iter().map(|reference| reference.id).chain(pages.copied())
    }
}

/// The state of a throttler between ticks. It is committed with the ledger, and so with its
/// decisions.
#[derive(Clone, Debug, PartialEq)]
pub struct KeptPolicyState {
    /// The plugin.
    pub plugin: PluginName,
    /// The format of the state: a plugin version with another one starts with an empty state.
    pub state_version: u32,
    /// The state itself, or where it is.
    pub state: StateLocation,
    /// The fields that a newer release added.
    pub unknown: UnknownFields,
}

record!(KeptPolicyState { plugin, state_version, state });

/// Where a throttler's state is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum StateLocation {
    /// In the ledger, if it is small.
    Inline(StatePage),
    /// In this batch, which has no grants: its only page.
    Batch(BatchId),
    /// In these batches, one page in each.
    Pages(Vec<BatchId>),
}

impl StateLocation {
    /// The state whose pages these batches have.
    pub fn of_pages(pages: Vec<BatchId>) -> Self {
        if let [only] = pages[..] { Self::Batch(only) } else { Self::Pages(pages) }
    }

    /// The batches that have its pages, in their order; none if it is in the ledger.
    pub fn pages(&self) -> &[BatchId] {
        match self {
            Self::Inline(_) => &[],
            Self::Batch(id) => std::slice::from_ref(id),
            Self::Pages(ids) => ids,
        }
    }
}

/// The entry of a batch in the ledger.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchRef {
    /// The batch.
    pub id: BatchId,
    /// How many grants it was written with.
    pub count: u32,
    /// One bit per released grant.
    pub released: Bits,
    /// When its grants are checked next: at the latest time of a claim, at the end of a lease, or
    /// a minute after the last check (the audit).
    pub check_at: Timestamp,
    /// Whether its work was sent; always true if admission claims.
    pub sent: bool,
    /// How often its unclaimed grants were sent.
    pub sends: u8,
    /// The fields that a newer release added.
    pub unknown: UnknownFields,
}

record!(BatchRef { id, count, released, check_at, sent, sends });

/// A set of small numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bits(#[serde(with = "bits")] Vec<u8>);

mod bits {
    use serde::{Deserializer, Serializer};
    pub(super) fn serialize<S: Serializer>(bits: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bits)
    }
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<u8>, D::Error> {
        use serde::Deserialize;
        bytes::Bytes::deserialize(deserializer).map(|bytes| bytes.to_vec())
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Paused => f.write_str("paused"),
            Self::Concurrency => f.write_str("concurrency"),
            Self::TypeConcurrency(name) => write!(f, "type_concurrency {name}"),
            Self::Constraint(name, None) => write!(f, "constraint {name}"),
            Self::Constraint(name, Some(value)) => write!(f, "constraint {name} ({value})"),
            Self::Throttler(name) => write!(f, "throttler {name}"),
        }
    }
}

impl Bits {
    /// Adds `n`, and returns whether it was new.
    pub fn set(&mut self, n: usize) -> bool {
        let new = !self.has(n);
        if self.0.len() <= n / 8 {
            self.0.resize(n / 8 + 1, 0);
        }
        self.0[n / 8] |= 1 << (n % 8);
        new
    }

    /// Whether `n` is in it.
    pub fn has(&self, n: usize) -> bool {
        self.0.get(n / 8).is_some_and(|byte| byte & (1 << (n % 8)) != 0)
    }

    /// How many numbers are in it.
    pub fn count(&self) -> usize {
        self.0.iter().map(|byte| byte.count_ones() as usize).sum()
    }
}

/// The grants of one commit, or a page of a throttler's state without grants.
#[derive(Clone, Debug, PartialEq)]
pub struct GrantBatch {
    /// Its number.
    pub id: BatchId,
    /// The ledger version that it was written for. It is garbage if a later ledger does not name
    /// it.
    pub ledger_version: u64,
    /// The grants, in order.
    pub grants: Vec<Grant>,
    /// A page of a throttler's state that is too large for the ledger.
    pub state: Option<Arc<StatePage>>,
    /// The fields that a newer release added.
    pub unknown: UnknownFields,
}

record!(GrantBatch { id, ledger_version, grants, state });

/// The committed right to start one attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant {
    /// The job.
    pub job: JobId,
    /// The job version it was decided on.
    pub version: Version,
    /// The job's type.
    pub job_type: TypeName,
    /// The job's priority.
    pub priority: i32,
    /// The weight that it takes; 0 for a critical job.
    pub weight: u32,
    /// Whether the job is critical.
    pub critical: bool,
    /// The attributes that limits compare.
    pub attributes: Attributes,
    /// When it was decided.
    pub granted_at: Timestamp,
    /// When the next attempt of the job is due, if this grant starts none: in a queue with strict
    /// order it keeps the place of a job that has started, and takes nothing of the limits.
    pub waits_until: Option<Timestamp>,
    /// The fields that a newer release added.
    pub unknown: UnknownFields,
}

record!(Grant {
    job, version, job_type, priority, weight, critical, attributes, granted_at; waits_until
});

impl Grant {
    /// Whether it is the right to start `job` as it is.
    pub fn starts(&self, job: &Job) -> bool {
        self.job == job.id && self.version == job.life.version && self.waits_until.is_none()
    }

    /// The values that limits compare.
    pub fn subject(&self) -> Subject<'_> {
        Subject { job_type: &self.job_type, priority: self.priority, attributes: &self.attributes }
    }

    /// The digest that names it.
    pub fn digest(&self) -> GrantDigest {
        GrantDigest::of(&self.job, self.version)
    }
}

/// A digest of the job and the version of a grant: it names the grant in twelve bytes.
///
/// A false match would take 2^48 chosen ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantDigest(pub [u8; 12]);

impl GrantDigest {
    /// The digest of a grant of `job` at `version`.
    pub fn of(job: &JobId, version: Version) -> Self {
        let mut hash = Sha256::new();
        hash.update(version.0.to_be_bytes());
        hash.update(job.as_str());
        let mut first = [0; 12];
        first.copy_from_slice(&hash.finalize()[..12]);
        Self(first)
    }
}

/// The rule that holds a candidate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Rule {
    /// The queue is paused.
    Paused,
    /// The queue's concurrency, or the bound on live grants.
    Concurrency,
    /// The concurrency of this type.
    TypeConcurrency(TypeName),
    /// This constraint, for this value.
    Constraint(String, Option<String>),
    /// The queue's throttler, by its plugin's name.
    Throttler(PluginName),
}
