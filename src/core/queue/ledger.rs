//! The head: one record per limited queue, in which its admissions are decided.
//!
//! It is a write-ahead log: *commit the grant, then start the work*. Whoever reads it knows the whole
//! running set; whoever writes it wins only if nobody wrote since (its version). What a grant names is
//! kept in [`GrantBatch`]es, written before the head that names them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{matcher::Subject, order::Position};
use crate::{
    job::{Attributes, JobId, PluginName, TypeName, Version},
    time::Timestamp,
};

/// The number of a grant batch: drawn, so that ticks that race for a head never write the same batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BatchId(pub u64);

/// One queue's admissions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    /// Raised by every commit; a commit names the version it read.
    pub version: u64,
    /// Drawn for every commit, so that one whose answer was lost can be recognised.
    pub nonce: u64,
    /// The configuration the latest commit was decided under; never goes back.
    pub config_version: u64,
    /// The latest tick's time; never goes back.
    pub time: Timestamp,
    /// Until then running jobs that nobody granted may still appear: nothing is admitted.
    pub settling_until: Option<Timestamp>,
    /// Where the current round of looking stopped.
    pub scan_cursor: Option<Position>,
    /// The partition that was served last.
    pub last_partition: Option<String>,
    /// Where the way through more partitions than one round visits began.
    pub lap_start: Option<String>,
    /// Token buckets that are not full, by constraint and value.
    pub buckets: BTreeMap<(String, String), Bucket>,
    /// The batches of live grants.
    pub batches: Vec<BatchRef>,
    /// Since when each rule holds somebody.
    pub held: BTreeMap<Rule, Timestamp>,
    /// What the queue's throttler remembers.
    #[serde(default)]
    pub policy: Option<KeptPolicyState>,
}

impl Ledger {
    /// The batches that it names: what must be stored with it, and is read with it.
    pub fn referenced_batches(&self) -> impl Iterator<Item = BatchId> {
        let state = self.policy.as_ref().and_then(|policy| match policy.state {
            StateLocation::Batch(id) => Some(id),
            StateLocation::Inline(_) => None,
        });
        self.batches.iter().map(|reference| reference.id).chain(state)
    }
}

/// What a throttler remembers from round to round, committed with the head and so with the decisions it goes with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeptPolicyState {
    /// Whose.
    pub plugin: PluginName,
    /// Its shape: a version of the plugin that has another starts empty.
    pub state_version: u32,
    /// The state itself, or where it is.
    pub state: StateLocation,
}

/// Where a throttler's state is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum StateLocation {
    /// In the head: it is small.
    Inline(BTreeMap<String, String>),
    /// In this batch, which has no grants.
    Batch(BatchId),
}

/// What the head knows of a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchRef {
    /// Which.
    pub id: BatchId,
    /// How many grants it was written with.
    pub count: u32,
    /// One bit per released grant.
    pub released: Bits,
    /// When its grants are looked at next: claim-by, lease end, or the minute's audit.
    pub check_at: Timestamp,
    /// Whether its work is known to be sent (always, where admission claims).
    pub sent: bool,
    /// How often its unclaimed grants were sent.
    pub sends: u8,
}

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
    /// Adds `n`; whether it was new.
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

/// A token bucket that is not full.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// Tokens in it at `at`; fractions count.
    pub tokens: f64,
    /// When it was filled last.
    pub at: Timestamp,
}

/// The grants of one commit; or, apart from any, a throttler's state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GrantBatch {
    /// Its number.
    pub id: BatchId,
    /// The head version it was written for: garbage once the head is past it and does not name it.
    pub for_head: u64,
    /// The grants, in order.
    pub grants: Vec<Grant>,
    /// A throttler's state that is too large for the head.
    #[serde(default)]
    pub state: Option<BTreeMap<String, String>>,
}

/// The committed right to start one attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Grant {
    /// Whose.
    pub job: JobId,
    /// The job version it was decided on.
    pub version: Version,
    /// The job's type.
    pub job_type: TypeName,
    /// The job's priority.
    pub priority: i32,
    /// What it counts; 0 for a critical job.
    pub weight: u32,
    /// Whether the job is critical.
    pub critical: bool,
    /// The attributes that limits look at.
    pub attributes: Attributes,
    /// When it was decided.
    #[serde(default)]
    pub granted_at: Timestamp,
}

impl Grant {
    /// What limits look at.
    pub fn subject(&self) -> Subject<'_> {
        Subject { job_type: &self.job_type, priority: self.priority, attributes: &self.attributes }
    }
}

/// What holds a candidate.
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
