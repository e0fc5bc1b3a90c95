//! The writes of a transaction, encoded by the caller that sends them; and the records that they
//! name.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher, Hash, RandomState},
    sync::LazyLock,
};

use super::{
    connect::Readers,
    due::{DuePlace, Stream, WAKES},
    names::{Known, Names},
    row::{BodyChange, EndColumns, JobColumns, LifeColumns},
    text,
};
use crate::blob::{encode, record_owner, with_checksum};
use tidegate_core::{
    job::{Job, JobId, QueueName, Revision, TypeName},
    port::{
        StoreError, Txn, Write,
        job_store::{Expect, ItemKind, Key, Record, RecordKind},
    },
    time::Timestamp,
};

/// An encoded write.
pub(super) enum Step {
    Add(Box<JobColumns>),
    SetLife {
        id: JobId,
        was: Revision,
        life: LifeColumns,
        end: Option<EndColumns>,
        due: Option<Box<DuePlace>>,
    },
    SetAll {
        whole: Box<JobColumns>,
        was: Revision,
    },
    Remove {
        id: JobId,
        was: Revision,
    },
    SetKey {
        key: KeyColumns,
        job: JobId,
        was: Expect<JobId>,
    },
    AddBatch {
        queue: i32,
        id: i64,
        for_head: i64,
        batch: Vec<u8>,
    },
    RemoveBatch {
        queue: i32,
        id: i64,
    },
    SetLedger {
        queue: i32,
        version: i64,
        head: Vec<u8>,
        was: Expect<u64>,
    },
    RequireItem {
        kind: ItemKind,
        name: String,
        version: i64,
    },
    SetItem {
        kind: ItemKind,
        name: String,
        was: i64,
        version: i64,
        bytes: Option<Vec<u8>>,
    },
    PutRecord(RecordColumns),
    SwapRecord {
        record: RecordColumns,
        was: Expect<Record>,
    },
    RemoveRecord {
        kind: RecordKind,
        name: String,
        until: Option<i64>,
    },
    TakeRequest(JobId),
}

/// The columns of a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct KeyColumns {
    pub kind: i16,
    pub job_type: i32,
    pub key: String,
}

/// The columns of a record.
pub(super) struct RecordColumns {
    pub kind: RecordKind,
    pub name: String,
    pub until: i64,
    pub bytes: Vec<u8>,
}

impl RecordColumns {
    /// Those of `record`.
    pub(super) fn of(record: &Record) -> Self {
        let until = record.until.millis();
        let owner = record_owner(record.kind.as_str(), &record.name, until);
        let bytes = with_checksum(&record.bytes, &owner, 0);
        Self { kind: record.kind, name: record.name.clone(), until, bytes }
    }
}

/// The owner of an item in its checksum.
pub(super) fn item_owner(kind: ItemKind, name: &str, version: i64) -> String {
    format!("{} {name} {version}", kind.as_str())
}

/// The columns of `key`; none if its type has no number, because such a key cannot be stored.
pub(super) fn key_columns(key: &Key, names: &Known) -> Option<KeyColumns> {
    let (kind, job_type, key) = match key {
        Key::Correlation(name, key) => (0, names.job_type(name)?, key),
        Key::Unique(name, key) => (1, names.job_type(name)?, key),
        Key::Idempotency(key) => (2, 0, key),
    };
    Some(KeyColumns { kind, job_type, key: text::stored(key).into_owned() })
}

/// `txns` with their jobs encoded. Their queues and types get numbers first.
pub(super) async fn encode_all(
    txns: Vec<Txn>,
    names: &Names,
    readers: &Readers,
) -> Result<Vec<Vec<Step>>, StoreError> {
    let known = {
        let (mut queues, mut types) = (HashSet::new(), HashSet::new());
        for write in txns.iter().flatten() {
            collect_names(write, &mut queues, &mut types);
        }
        names.interned(readers, &queues, &types).await?
    };
    let step = |write| encoded(write, &known);
    txns.into_iter().map(|txn| txn.into_iter().map(step).collect()).collect()
}

/// The names that `write` stores.
fn collect_names<'a>(
    write: &'a Write,
    queues: &mut HashSet<&'a QueueName>,
    types: &mut HashSet<&'a TypeName>,
) {
    match write {
        Write::AddJob(job) | Write::SetJob { job, .. } => {
            queues.insert(&job.spec.queue);
            types.insert(&job.spec.job_type);
        }
        Write::AddBatch(queue, _)
        | Write::RemoveBatch(queue, _)
        | Write::SetLedger { queue, .. } => {
            queues.insert(queue);
        }
        Write::SetKey { key: Key::Correlation(name, _) | Key::Unique(name, _), .. } => {
            types.insert(name);
        }
        _ => {}
    }
}

fn encoded(write: Write, names: &Known) -> Result<Step, StoreError> {
    let queue = |name: &QueueName| {
        names.queue(name).ok_or_else(|| StoreError::corrupt("a queue has no number"))
    };
    let whole = |job: &Job| JobColumns::of(job, names).map(Box::new);
    Ok(match write {
        Write::AddJob(job) => Step::Add(whole(&job)?),
        Write::SetJob { job, was, all: true } => Step::SetAll { whole: whole(&job)?, was },
        Write::SetJob { job, was, all: false } => {
            let life = LifeColumns::of(&job.id, &job.life, &job.spec)?;
            let (end, due) = (EndColumns::of(&job), due_place(&job, names).map(Box::new));
            Step::SetLife { id: job.id, was, life, end, due }
        }
        Write::RemoveJob { id, was } => Step::Remove { id, was },
        Write::SetKey { key, job, was } => {
            let key = key_columns(&key, names);
            Step::SetKey { key: key.expect("its type was given a number"), job, was }
        }
        Write::AddBatch(name, batch) => Step::AddBatch {
            queue: queue(&name)?,
            id: batch.id.0 as i64,
            for_head: batch.ledger_version as i64,
            batch: encode(&batch, name.as_str())?,
        },
        Write::RemoveBatch(name, id) => Step::RemoveBatch { queue: queue(&name)?, id: id.0 as i64 },
        Write::SetLedger { queue: name, ledger, was } => Step::SetLedger {
            queue: queue(&name)?,
            version: ledger.version as i64,
            head: encode(&ledger, name.as_str())?,
            was,
        },
        Write::RequireItem { kind, name, version } => {
            Step::RequireItem { kind, name: (*name).to_owned(), version: version as i64 }
        }
        Write::SetItem { kind, name, was, version, bytes } => {
            let version = version as i64;
            let owner = item_owner(kind, &name, version);
            let bytes = bytes.map(|bytes| with_checksum(&bytes, &owner, 0));
            // An item of version 0 is absent.
            let version = if bytes.is_some() { version } else { 0 };
            Step::SetItem { kind, name, was: was as i64, version, bytes }
        }
        Write::PutRecord(record) => Step::PutRecord(RecordColumns::of(&record)),
        Write::SwapRecord { record, was } => {
            Step::SwapRecord { record: RecordColumns::of(&record), was }
        }
        Write::RemoveRecord { kind, name, until } => {
            Step::RemoveRecord { kind, name, until: until.map(Timestamp::millis) }
        }
        Write::TakeRequest(id) => Step::TakeRequest(id),
        Write::Together(_) => unreachable!("it was flattened"),
    })
}

/// Where `job` is due, if it is scheduled.
fn due_place(job: &Job, names: &Known) -> Option<DuePlace> {
    let spec = &job.spec;
    Some(DuePlace {
        queue: names.queue(&spec.queue)?,
        critical: spec.critical,
        stream: Stream {
            partition: text::stored(&spec.partition).into_owned(),
            job_type: names.job_type(&spec.job_type)?,
            priority: spec.priority,
        },
        place: (job.life.run_at()?.millis(), job.id.to_string()),
    })
}

impl Step {
    /// Where the job that it writes is due and must be checked, as far as it is.
    pub(super) fn places(&self) -> impl Iterator<Item = DuePlace> + use<> {
        let wake = self.wake_at().map(|wake_at| DuePlace {
            queue: WAKES.0,
            critical: WAKES.1,
            stream: Stream::default(),
            place: (wake_at, String::new()),
        });
        self.due().into_iter().chain(wake)
    }

    /// When the job that it writes must be checked.
    fn wake_at(&self) -> Option<i64> {
        let (life, end) = match self {
            Self::SetLife { life, end, .. } => (life, end.as_ref()),
            Self::Add(whole) | Self::SetAll { whole, .. } => (&whole.life, whole.end.as_ref()),
            _ => return None,
        };
        end.map_or(life.wake_at, |end| end.wake_at)
    }

    /// Where the job that it writes is due, if it is scheduled then.
    fn due(&self) -> Option<DuePlace> {
        match self {
            Self::SetLife { due, .. } => due.as_deref().cloned(),
            Self::Add(whole) | Self::SetAll { whole, .. } => Some(DuePlace {
                queue: whole.queue,
                critical: whole.critical,
                stream: Stream {
                    partition: whole.partition.clone(),
                    job_type: whole.job_type,
                    priority: whole.priority,
                },
                place: (whole.life.run_at?, whole.id.to_string()),
            }),
            _ => None,
        }
    }

    /// About how many bytes it sends.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Add(whole) | Self::SetAll { whole, .. } => {
                let body = match &whole.data.body {
                    BodyChange::New { stored, .. } => stored.len(),
                    BodyChange::Deleted | BodyChange::Unchanged => 0,
                };
                let data = whole.data.data.as_ref().map_or(0, Vec::len);
                whole.spec.len() + whole.life.life.len() + data + body
            }
            Self::SetLife { life, .. } => life.life.len(),
            Self::AddBatch { batch, .. } => batch.len(),
            Self::SetLedger { head, .. } => head.len(),
            Self::SetItem { bytes, .. } => bytes.as_ref().map_or(0, Vec::len),
            Self::PutRecord(record) => record.bytes.len(),
            Self::SwapRecord { record, was } => {
                let was = match was {
                    Expect::Is(was) => was.bytes.len(),
                    Expect::Absent => 0,
                };
                record.bytes.len() + was
            }
            _ => 0,
        }
    }

    /// The job whose row it writes.
    pub(super) fn job(&self) -> Option<&JobId> {
        match self {
            Self::Add(whole) | Self::SetAll { whole, .. } => Some(&whole.id),
            Self::SetLife { id, .. } | Self::Remove { id, .. } => Some(id),
            _ => None,
        }
    }
}

/// The records that some transactions name, as hashes. Two records of one hash only wait for each
/// other.
#[derive(Debug, Default)]
pub(super) struct Refs {
    written: HashSet<u64>,
    /// Items that must not change, with their versions, and how many transactions require each.
    required: HashMap<u64, (i64, usize)>,
}

/// The hashes of this process.
static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The hash of a record: of a kind, and what names it within the kind.
fn hash_of(kind: u8, name: impl Hash) -> u64 {
    HASHES.hash_one((kind, name))
}

impl Refs {
    /// Those of `txn`.
    pub(super) fn of(txn: &[Step]) -> Self {
        let mut refs = Self::default();
        for step in txn {
            let written = match step {
                Step::Add(_) | Step::SetLife { .. } | Step::SetAll { .. } | Step::Remove { .. } => {
                    hash_of(0, step.job().map(JobId::as_str))
                }
                Step::SetKey { key, job, was } => {
                    // A removal of one of the jobs removes the key.
                    let was = match was {
                        Expect::Is(was) => Some(was),
                        Expect::Absent => None,
                    };
                    for job in was.into_iter().chain([job]) {
                        refs.written.insert(hash_of(0, Some(job.as_str())));
                    }
                    hash_of(1, key)
                }
                Step::AddBatch { queue, id, .. } | Step::RemoveBatch { queue, id } => {
                    hash_of(2, (queue, id))
                }
                Step::SetLedger { queue, .. } => hash_of(3, queue),
                Step::RequireItem { kind, name, version } => {
                    let entry = refs.required.entry(hash_of(4, (kind, name)));
                    entry.or_insert((*version, 1));
                    continue;
                }
                Step::SetItem { kind, name, .. } => hash_of(4, (kind, name)),
                Step::PutRecord(RecordColumns { kind, name, .. })
                | Step::SwapRecord { record: RecordColumns { kind, name, .. }, .. }
                | Step::RemoveRecord { kind, name, .. } => hash_of(5, (kind, name)),
                Step::TakeRequest(id) => hash_of(6, id.as_str()),
            };
            refs.written.insert(written);
        }
        refs
    }

    /// Whether a transaction with `others` must wait for those with these.
    pub(super) fn conflict(&self, others: &Self) -> bool {
        let has_read = |refs: &Self, hash| refs.required.contains_key(hash);
        others.written.iter().any(|hash| self.written.contains(hash) || has_read(self, hash))
            || others.required.iter().any(|(hash, (version, _))| {
                self.written.contains(hash)
                    || self.required.get(hash).is_some_and(|(other, _)| other != version)
            })
    }

    /// Adds those of a transaction.
    pub(super) fn add(&mut self, others: &Self) {
        self.written.extend(&others.written);
        for (hash, (version, _)) in &others.required {
            self.required.entry(*hash).or_insert((*version, 0)).1 += 1;
        }
    }

    /// Takes away those of a transaction that was added.
    pub(super) fn remove(&mut self, others: &Self) {
        for hash in &others.written {
            self.written.remove(hash);
        }
        for hash in others.required.keys() {
            if let Some((_, count)) = self.required.get_mut(hash) {
                *count -= 1;
                if *count == 0 {
                    self.required.remove(hash);
                }
            }
        }
    }
}
