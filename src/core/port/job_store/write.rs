//! Conditional writes, transactions of them, and their answers.

use std::sync::Arc;

use super::{ItemKind, Record, RecordKind, UnreadableJob};
use crate::{
    job::{Job, JobId, QueueName, Revision, TypeName},
    queue::{GrantBatch, Ledger, ledger::BatchId},
    time::Timestamp,
};

/// The condition of a write: what must be stored before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect<T> {
    /// Nothing.
    Absent,
    /// This.
    Is(T),
}

/// A name that points at a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A correlation key, unique among the live jobs of a type.
    Correlation(TypeName, String),
    /// A unique key of a type.
    Unique(TypeName, String),
    /// A client's `Idempotency-Key`.
    Idempotency(String),
}

/// A conditional write of one record.
#[derive(Clone, Debug)]
pub enum Write {
    /// Adds a job, unless its id is taken.
    AddJob(Job),
    /// Replaces a job's record if its revision is `was`.
    SetJob {
        /// The new record; its revision is not `was`.
        job: Job,
        /// The revision that the new record was made from.
        was: Revision,
        /// Whether the spec or the data changed too; false if only the lifecycle did.
        all: bool,
    },
    /// Removes a job, with its body and the keys that point at it, if its revision is `was`.
    RemoveJob {
        /// The job.
        id: JobId,
        /// The revision that was read.
        was: Revision,
    },
    /// Points a key at a job.
    SetKey {
        /// The key.
        key: Key,
        /// The job.
        job: JobId,
        /// The job that the key must point at before.
        was: Expect<JobId>,
    },
    /// Adds a grant batch. Batches are never changed, so no condition is needed.
    AddBatch(QueueName, GrantBatch),
    /// Removes a batch that the ledger does not name.
    RemoveBatch(QueueName, BatchId),
    /// Replaces a queue's ledger if its version is `was`; absent if there is no ledger yet.
    SetLedger {
        /// The queue.
        queue: QueueName,
        /// The new ledger; its version is that of the old one plus one.
        ledger: Ledger,
        /// The version that the new ledger was made from.
        was: Expect<u64>,
    },
    /// Continues only if the item has this version; 0 means that it is absent.
    RequireItem {
        /// The kind of item.
        kind: ItemKind,
        /// Its name. It is shared, because all jobs of a batch may require the same item.
        name: Arc<str>,
        /// The version.
        version: u64,
    },
    /// Writes or removes an item of configuration if it has version `was`; 0 means that it is
    /// absent.
    SetItem {
        /// The kind of item.
        kind: ItemKind,
        /// Its name.
        name: String,
        /// The version that was read.
        was: u64,
        /// The new version.
        version: u64,
        /// JSON; none removes it.
        bytes: Option<Vec<u8>>,
    },
    /// Writes a record, and replaces the one of its kind and name. A repeat writes the same record,
    /// so no condition is needed.
    PutRecord(Record),
    /// Writes a record if the one of its kind and name is `was`, as it was read. A record that
    /// cannot be read is absent.
    SwapRecord {
        /// The new record; it is not `was`.
        record: Record,
        /// The record that the new one was made from.
        was: Expect<Record>,
    },
    /// Removes a record. If there is none, or its time is not `until`, nothing happens and the
    /// write counts as done.
    RemoveRecord {
        /// Its kind.
        kind: RecordKind,
        /// Its name.
        name: String,
        /// The time that it must have; none for any.
        until: Option<Timestamp>,
    },
    /// Removes a request from the [inbox](crate::port::Inbox) of the store, which must have it. A
    /// store without an inbox has none.
    TakeRequest(JobId),
    /// All of these or none, in every store: one step of its transaction. At most ten, of jobs.
    Together(Vec<Write>),
}

/// Conditional writes, in an order such that any prefix is safe. It writes no record twice.
pub type Txn = Vec<Write>;

/// Shows `see` each write of `writes`, and in place of [`Write::Together`] those in it.
pub fn each_write<'a>(writes: &'a [Write], see: &mut impl FnMut(&'a Write)) {
    for write in writes {
        match write {
            Write::Together(together) => each_write(together, see),
            write => see(write),
        }
    }
}

/// `txn` without [`Write::Together`], whose writes take its place; and the step of each write.
///
/// For a store that makes a transaction atomic as a whole. The steps are empty if every write is
/// its own step.
pub fn flatten(txn: Txn) -> (Txn, Vec<usize>) {
    if !txn.iter().any(|write| matches!(write, Write::Together(_))) {
        return (txn, Vec::new());
    }
    let mut steps = Vec::new();
    let mut writes = Txn::new();
    for (step, write) in txn.into_iter().enumerate() {
        match write {
            Write::Together(together) => writes.extend(together),
            write => writes.push(write),
        }
        steps.resize(writes.len(), step);
    }
    (writes, steps)
}

/// The answer to a [`Txn`].
#[derive(Clone, Debug)]
pub enum Committed {
    /// Every write happened, and is durable.
    All,
    /// The condition of write `step` did not hold. An atomic store wrote nothing; another store
    /// wrote the steps before it.
    Conflict {
        /// The index of the write.
        step: usize,
        /// What is stored there instead.
        current: CurrentRecord,
    },
}

impl Committed {
    /// The answer for the transaction that [`flatten`] split into `steps`.
    #[must_use]
    pub fn regrouped(self, steps: &[usize]) -> Self {
        match self {
            Self::Conflict { step, current } => {
                Self::Conflict { step: steps.get(step).copied().unwrap_or(step), current }
            }
            Self::All => Self::All,
        }
    }
}

/// What is stored where a write was refused.
#[derive(Clone, Debug)]
pub enum CurrentRecord {
    /// Nothing.
    Nothing,
    /// This job.
    Job(Box<Job>),
    /// A job that cannot be read.
    Unreadable(UnreadableJob),
    /// A key.
    Key {
        /// The job that it points at.
        job: JobId,
        /// Since when it points there, in a store without atomic transactions; none if unknown. The
        /// writer of the key may still be about to add the job.
        since: Option<Timestamp>,
    },
    /// A ledger or an item of this version.
    Version(u64),
    /// Another record, which a read finds.
    Record,
}
