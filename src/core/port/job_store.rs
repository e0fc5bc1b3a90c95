//! Durable jobs, heads and configuration.
//!
//! A store keeps and compares; it never decides. Every write is conditional, every call takes and
//! returns many, and a job is **found by its own record**: by [`JobStore::due`] from its `run_at`
//! on while it is scheduled, and by [`JobStore::overdue`] from its `wake_at` on in every state. A
//! store whose index is apart from the record writes the index entry first.

use std::{collections::BTreeMap, error::Error, sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{
    error_chain::ErrorChain,
    job::{Body, Job, JobId, Outcome, Payload, QueueName, Revision, Spec, TypeName, Value},
    queue::{
        GrantBatch, Ledger,
        ledger::BatchId,
        order::{Order, Position},
    },
    time::Timestamp,
};

/// Why a store could not do as asked. One variant per thing the caller would do about it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The store is over its capacity or out of room; nothing was written. Repeat after `retry_after`.
    #[error("the store takes no more writes now: {message}")]
    Throttled {
        /// How long to wait.
        retry_after: Duration,
        /// What is short.
        message: String,
    },
    /// No answer: the write may or may not have happened. Repeat what is idempotent.
    #[error("the store did not answer")]
    Unavailable(#[source] ErrorSource),
    /// The stored data is not what was written. Repeating cannot help; an operator must act.
    #[error("the store holds damaged data")]
    Corrupt(#[source] ErrorSource),
}

impl StoreError {
    /// [`StoreError::Unavailable`], caused by `source`: an error or a message.
    pub fn unavailable(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unavailable(Arc::from(source.into()))
    }

    /// [`StoreError::Corrupt`], caused by `source`: an error or a message.
    pub fn corrupt(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Corrupt(Arc::from(source.into()))
    }

    /// [`StoreError::Unavailable`], caused by `source` while the store did what `context` names.
    pub fn unavailable_in(
        context: impl Into<String>,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::unavailable(InContext { context: context.into(), source: source.into() })
    }

    /// [`StoreError::Corrupt`], caused by `source` while the store read or wrote what `context` names.
    pub fn corrupt_in(
        context: impl Into<String>,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::corrupt(InContext { context: context.into(), source: source.into() })
    }

    /// Displays the error with its causes.
    pub fn chain(&self) -> ErrorChain<'_> {
        ErrorChain(self)
    }
}

/// The cause of a [`StoreError`], shared because one failure may answer several calls.
pub type ErrorSource = Arc<dyn Error + Send + Sync>;

/// An error with the name of what it befell.
#[derive(Debug, thiserror::Error)]
#[error("{context}")]
struct InContext {
    context: String,
    source: Box<dyn Error + Send + Sync>,
}

/// What must stand in a place for a write to happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect<T> {
    /// Nothing.
    Absent,
    /// This.
    Is(T),
}

/// A name that leads to a job.
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
    /// Replaces a job's record if its revision is `was`. `all` is false when only its life changed.
    SetJob {
        /// The new record; its revision is not `was`.
        job: Job,
        /// The revision it was made from.
        was: Revision,
        /// Whether what it is or carries changed too.
        all: bool,
    },
    /// Removes a job, with its body and the keys that point at it, if its revision is `was`.
    RemoveJob {
        /// Which.
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
        /// What the key must point at now.
        was: Expect<JobId>,
    },
    /// Writes a grant batch; batches are never changed, so no condition is needed.
    AddBatch(QueueName, GrantBatch),
    /// Removes a batch that no head names.
    RemoveBatch(QueueName, BatchId),
    /// Replaces a queue's head if its version is the given one (absent: there is none yet).
    SetLedger {
        /// The queue.
        queue: QueueName,
        /// The new head; its version is one more than that of the old.
        head: Ledger,
        /// The version it was made from.
        was: Expect<u64>,
    },
    /// Goes on only if the item `key` of `kind` has this version (0: is absent).
    RequireItem {
        /// The kind of item.
        kind: ItemKind,
        /// Its name.
        name: String,
        /// The version.
        version: u64,
    },
    /// Puts (or with no bytes removes) an item of configuration if it has version `was` (0: is absent).
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
    /// Writes a record, in place of one of its kind and name. Whoever repeats it writes the same, so no condition is needed.
    PutRecord(Record),
    /// Removes a record. If there is none, or `until` is given and is not its time, nothing happens, which is no refusal.
    RemoveRecord {
        /// Its kind.
        kind: RecordKind,
        /// Its name.
        name: String,
        /// The time that it must have.
        until: Option<Timestamp>,
    },
    /// All of these or none, in every store: one step of its transaction. At most ten, of jobs.
    Together(Vec<Write>),
}

/// Something small that is kept for a time and then dropped, beside the jobs: found by the beginning of its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What kind of thing it is.
    pub kind: RecordKind,
    /// Its name among those of its kind: 1 to 128 of `a-z 0-9 -`.
    pub name: String,
    /// From when on it may be dropped. Until it is, readers still find it.
    pub until: Timestamp,
    /// What it is, at most [`RECORD_BYTES`].
    pub bytes: Vec<u8>,
}

/// Most bytes of a record's content. A store whose items are smaller puts what is over elsewhere.
pub const RECORD_BYTES: usize = 2 << 20;

/// The kinds of [`Record`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecordKind {
    /// A reply that waits for its job, or for an attempt of it.
    Reply,
    /// An event of which a trigger could make nothing: a dead letter.
    DeadLetter,
}

impl RecordKind {
    /// Every kind.
    pub const ALL: [Self; 2] = [Self::Reply, Self::DeadLetter];

    /// The kind's name where it is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reply => "reply",
            Self::DeadLetter => "dead_letter",
        }
    }
}

/// A question for records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordQuery {
    /// Of this kind.
    pub kind: RecordKind,
    /// With names that begin so; empty means all.
    pub prefix: String,
    /// Only with names after this one.
    pub after: Option<String>,
    /// At most this many (1 to 1000).
    pub limit: u32,
}

/// What a purge dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Records whose time was over.
    pub expired: u64,
    /// Records dropped because there were too many: those whose time is over first.
    pub over: u64,
    /// How many are left.
    pub left: u64,
}

/// The kinds of small named records that are read whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ItemKind {
    /// [`crate::queue::config::QueueItem`].
    Queue,
    /// [`crate::job::type_config::TypeItem`].
    Type,
    /// A token's hash and scopes.
    Token,
    /// A background operation.
    Operation,
    /// [`crate::queue::plugin::PluginItem`].
    Plugin,
    /// How far ahead jobs were handed on.
    Horizon,
    /// [`crate::schedule::ScheduleItem`].
    Schedule,
    /// [`crate::schedule::ScheduleState`]: how far a schedule has come, apart from what its owner said of it.
    ScheduleState,
    /// A rule for events, as JSON.
    Trigger,
    /// A pull worker that is to get no more jobs: since when, as JSON.
    Drain,
}

impl ItemKind {
    /// The kind's name where it is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Type => "type",
            Self::Token => "token",
            Self::Operation => "operation",
            Self::Plugin => "plugin",
            Self::Horizon => "horizon",
            Self::Schedule => "schedule",
            Self::ScheduleState => "schedule_state",
            Self::Trigger => "trigger",
            Self::Drain => "drain",
        }
    }

    /// Whether it is configuration that engines keep a copy of, so that a change of it shows in [`JobStore::items_version`].
    pub fn is_decided_under(self) -> bool {
        matches!(
            self,
            Self::Queue | Self::Type | Self::Plugin | Self::Schedule | Self::Trigger | Self::Drain
        )
    }
}

/// Conditional writes, in an order of which any prefix is safe. No record is written twice in one.
pub type Txn = Vec<Write>;

/// `txn` with the writes of every [`Write::Together`] among the others, for a store that takes a transaction as a whole anyway;
/// and which step each belongs to, if that is not its own place.
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

/// What became of a [`Txn`].
#[derive(Clone, Debug)]
pub enum Committed {
    /// Every write happened, and is durable.
    All,
    /// The condition of write `step` did not hold. An atomic store wrote nothing; another wrote what comes before.
    Conflict {
        /// Which write.
        step: usize,
        /// What stands there instead.
        standing: CurrentRecord,
    },
}

impl Committed {
    /// The same answer for the transaction that [`flatten`] took apart.
    #[must_use]
    pub fn regrouped(self, steps: &[usize]) -> Self {
        match self {
            Self::Conflict { step, standing } => {
                Self::Conflict { step: steps.get(step).copied().unwrap_or(step), standing }
            }
            Self::All => Self::All,
        }
    }
}

/// What stands where a write was refused.
#[derive(Clone, Debug)]
pub enum CurrentRecord {
    /// Nothing.
    Nothing,
    /// This job.
    Job(Box<Job>),
    /// A key.
    Key {
        /// The job that it points at.
        job: JobId,
        /// Since when, where transactions are not atomic: whoever pointed it there may still be about to add the job. None is not known.
        since: Option<Timestamp>,
    },
    /// A head or item of this version.
    Version(u64),
}

/// A question for due jobs of one queue.
#[derive(Clone, Debug)]
pub struct DueQuery {
    /// The queue.
    pub queue: QueueName,
    /// Only critical jobs, or only the others.
    pub critical: bool,
    /// Only jobs of these types.
    pub types: Vec<TypeName>,
    /// Only this partition; none means all, merged in order.
    pub partition: Option<String>,
    /// How they are ordered.
    pub order: Order,
    /// Only jobs due at this instant or before.
    pub until: Timestamp,
    /// Only jobs after this place in the order.
    pub after: Option<Position>,
    /// At most this many (1 to 1000).
    pub limit: u32,
}

/// Due jobs, in order.
#[derive(Clone, Debug, Default)]
pub struct DuePage {
    /// The jobs. A body over 1 KiB is [`Body::Beside`].
    pub jobs: Vec<Job>,
    /// Whether there are more.
    pub more: bool,
    /// The earliest `run_at` after `until` of the types asked for, if there is any.
    pub next_due: Option<Timestamp>,
}

/// A question for a list of jobs, newest first by creation.
#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    /// Only this type.
    pub job_type: Option<TypeName>,
    /// Only this queue.
    pub queue: Option<QueueName>,
    /// Only these states; empty means every one.
    pub states: Vec<StateFilter>,
    /// Only with these attribute values.
    pub attributes: BTreeMap<String, Value>,
    /// Only created at this instant or later.
    pub from: Option<Timestamp>,
    /// Only created before this instant.
    pub to: Option<Timestamp>,
    /// Go on after this job of the page before.
    pub cursor: Option<String>,
    /// At most this many (1 to 1000).
    pub limit: u32,
}

/// A state to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StateFilter {
    /// Waiting.
    Scheduled,
    /// Under way.
    Running,
    /// Ended so.
    Ended(Outcome),
}

/// A page of a list. May be short, even empty, and yet have a cursor, so that a rare match takes several calls.
#[derive(Clone, Debug, Default)]
pub struct ListPage {
    /// The jobs.
    pub jobs: Vec<Job>,
    /// Where the next page starts; none on the last.
    pub next_cursor: Option<String>,
}

/// How many jobs there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Of this queue.
    pub queue: QueueName,
    /// Of this type.
    pub job_type: TypeName,
    /// In this state.
    pub state: StateFilter,
    /// This many.
    pub jobs: u64,
}

/// A stored item of configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: u64,
    /// JSON.
    pub bytes: Vec<u8>,
}

/// What a store guarantees beyond the port, so that the engine can skip what the store makes unnecessary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreCapabilities {
    /// How much of a transaction is visible when it is cut short.
    pub atomicity: Atomicity,
    /// Whether the store itself drops results and ended jobs at the end of their retention. Then
    /// [`JobStore::overdue`] omits ended jobs, and reads hide whatever is past its retention.
    pub expires_natively: bool,
}

/// How much of a transaction is visible when it is cut short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomicity {
    /// Every write of a transaction happens, or none.
    Atomic,
    /// Writes happen one by one in their order, so that any prefix of a transaction may remain.
    Steps {
        /// The longest time between the check of a write's condition and the write. Not zero.
        max_in_flight_write: Duration,
    },
}

impl Atomicity {
    /// Atomic if `max_in_flight_write` is zero, otherwise in steps.
    pub fn from_max_in_flight_write(max_in_flight_write: Duration) -> Self {
        if max_in_flight_write.is_zero() {
            Self::Atomic
        } else {
            Self::Steps { max_in_flight_write }
        }
    }

    /// Whether transactions are atomic.
    pub fn is_atomic(self) -> bool {
        self == Self::Atomic
    }

    /// The longest time between the check of a write's condition and the write; zero if atomic.
    pub fn max_in_flight_write(self) -> Duration {
        match self {
            Self::Atomic => Duration::ZERO,
            Self::Steps { max_in_flight_write } => max_in_flight_write,
        }
    }
}

/// Durable jobs, one writer at a time per record.
///
/// After `Ok`, a write is durable and every later read sees it. Wrappers (metrics, faults) implement
/// every method, so that none is bypassed by a default.
#[async_trait]
pub trait JobStore: Send + Sync {
    /// Takes each transaction on its own, in the order given: one answer per transaction.
    ///
    /// Within one, writes are taken in order and stop at the first refused. After
    /// [`StoreError::Unavailable`] each may or may not have happened.
    async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError>;

    /// What the store guarantees. It never changes during the life of a store.
    fn capabilities(&self) -> StoreCapabilities;

    /// Returns the id to store a new job under, given the generated `id`.
    ///
    /// A store may append the job's location after a dot. A store without atomic transactions always
    /// does, which distinguishes a generated id from one that a client chose; those are never changed.
    fn assign_id(&self, id: JobId, spec: &Spec, run_at: Timestamp) -> JobId;

    /// The jobs with these ids, in their order. A body over 1 KiB is [`Body::Beside`].
    async fn get(&self, ids: &[JobId]) -> Result<Vec<Option<Job>>, StoreError>;

    /// The bodies that are kept beside these jobs, in their order.
    async fn bodies(&self, ids: &[JobId]) -> Result<Vec<Option<Payload>>, StoreError>;

    /// Due jobs: one page per question. Several callers may be given the same job; `commit` lets one of them win.
    async fn due(&self, queries: &[DueQuery]) -> Result<Vec<DuePage>, StoreError>;

    /// How many jobs of each of `types` of `queue` are due at `until`, critical ones too; counted until they are `most` (1 to 10000) in
    /// all. A type without any may be missing.
    async fn count_due(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        until: Timestamp,
        most: u32,
    ) -> Result<BTreeMap<TypeName, u64>, StoreError>;

    /// The partitions in which jobs of `types` of `queue` are scheduled: at most `limit`, in their order from after `after` on.
    async fn partitions(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, StoreError>;

    /// At most `limit` jobs whose `wake_at` is `until` or before, earliest first; and the earliest `wake_at` after it, which
    /// a full page need not say.
    async fn overdue(
        &self,
        until: Timestamp,
        limit: u32,
    ) -> Result<(Vec<Job>, Option<Timestamp>), StoreError>;

    /// At most `limit` running jobs of `queue`, by id from after `after` on.
    async fn running(
        &self,
        queue: &QueueName,
        after: Option<&JobId>,
        limit: u32,
    ) -> Result<Vec<Job>, StoreError>;

    /// A queue's head with the batches that it names, if it has one.
    async fn ledger(
        &self,
        queue: &QueueName,
    ) -> Result<Option<(Ledger, Vec<GrantBatch>)>, StoreError>;

    /// The batches stored for `queue`, named or not.
    async fn batches(&self, queue: &QueueName) -> Result<Vec<(BatchId, u64)>, StoreError>;

    /// What these keys point at, in their order.
    async fn keys(&self, keys: &[Key]) -> Result<Vec<Option<JobId>>, StoreError>;

    /// A page of jobs. A cursor that is not a [`super::listing::Cursor`] gets an empty one.
    async fn list(&self, query: &ListQuery) -> Result<ListPage, StoreError>;

    /// How many jobs there are by queue, type and state; none are left out, zeros may be.
    async fn depth(&self) -> Result<Vec<Depth>, StoreError>;

    /// Every item of a kind, by name.
    async fn items(&self, kind: ItemKind) -> Result<Vec<Item>, StoreError>;

    /// A number that changes whenever a queue, a type, a plugin, a schedule, a trigger or a drain does.
    async fn items_version(&self) -> Result<u64, StoreError>;

    /// Records by name: one page per question, in their order. One that was dropped meanwhile may be missing, one just
    /// written is not.
    async fn records(&self, queries: &[RecordQuery]) -> Result<Vec<Vec<Record>>, StoreError>;

    /// Drops records of `kind`: those whose time is over at `now`, then, those with the least time left first, what is more
    /// than `keep`; at most `limit` (1 to 10000) in one call. A store may leave some for a later call, and may count what is
    /// left as of a minute ago.
    async fn purge(
        &self,
        kind: RecordKind,
        now: Timestamp,
        keep: u64,
        limit: u32,
    ) -> Result<Purged, StoreError>;
}

/// A store that is shared.
pub type SharedStore = Arc<dyn JobStore>;

/// Whether a body is kept beside its job rather than in it.
pub const INLINE_BYTES: usize = 1024;

/// Whether `body` is too large to be kept in its job's record.
pub fn is_stored_apart(body: &Body) -> bool {
    body.inline().is_some_and(|payload| payload.bytes.len() > INLINE_BYTES)
}
