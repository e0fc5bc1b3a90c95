//! One transaction of the port within one of SQLite's.
//!
//! All its conditions are checked before its first write. A refused transaction therefore has
//! nothing to undo, and many of them share one SQLite commit without savepoints. No record is
//! written twice in one transaction, so a checked record is still current when it is written.

use std::collections::HashMap;

use rusqlite::{CachedStatement, Connection, params};

use super::error::Failure;
use super::{
    names::Names,
    record::{self, Damaged},
    row::{self, RawText, select_jobs},
    step::{Blobs, Step, Steps},
};
use crate::unreadable::unreadable;
use tidegate_core::{
    job::{JobId, Lifecycle, QueueName, Revision},
    port::{
        StoreError, Write,
        job_store::{Committed, CurrentRecord, Expect, ItemKind, Key, UnreadableJob},
    },
    queue::Ledger,
};

/// The row of a job before it changes.
#[derive(Clone, Copy)]
pub(super) struct RowLocation {
    pub n: i64,
    pub queue: i64,
    pub job_type: i64,
    pub state: i64,
    pub data_kind: i64,
}

/// The statement that finds the row of a job, with further columns.
macro_rules! find_job {
    ($more:literal) => {
        concat!(
            "SELECT n, queue, type, state, data_kind, revision",
            $more,
            " FROM jobs WHERE id = ?1"
        )
    };
}

/// The result of checking a step.
enum Checked {
    /// Its condition holds; the row of its job, if it has one.
    Holds(Option<RowLocation>),
    /// Its condition does not hold; the current record.
    Refused(CurrentRecord),
}

impl Checked {
    /// The result for a write that is not about a job.
    fn of(conflict: Option<CurrentRecord>) -> Self {
        conflict.map_or(Self::Holds(None), Self::Refused)
    }
}

/// What a SQLite transaction changes in addition to rows. It takes effect with the commit.
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// The change of the number of jobs by queue, type and state.
    pub counts: HashMap<(i64, i64, i64), i64>,
    /// Whether a queue or a type was given a number.
    pub named: bool,
    /// How many items that engines cache were written, which raises the items version.
    pub items: u64,
    /// How many items were written that decide which callers have access.
    pub tokens: u64,
    /// The versions of items in this transaction, because every claim checks the one of its queue.
    pub versions: HashMap<ItemKind, HashMap<String, Option<u64>>>,
}

/// The statements of the usual steps, each after its first use. Finding one among the cached
/// statements takes an allocation, and a considerable part of the time of such a step.
#[derive(Default)]
pub(super) struct Statements<'a> {
    /// Finds the row of a job.
    find: Option<CachedStatement<'a>>,
    /// Adds a job.
    pub add: Option<CachedStatement<'a>>,
    /// Writes the lifecycle of a job.
    pub set_life: Option<CachedStatement<'a>>,
}

/// The statement `kept`, which is `sql`.
pub(super) fn prepared<'s, 'a>(
    kept: &'s mut Option<CachedStatement<'a>>,
    db: &'a Connection,
    sql: &str,
) -> Result<&'s mut CachedStatement<'a>, Failure> {
    Ok(match kept {
        Some(statement) => statement,
        none => none.insert(db.prepare_cached(sql)?),
    })
}

/// An open SQLite transaction.
pub(super) struct Group<'a> {
    pub db: &'a Connection,
    pub names: &'a mut Names,
    pub effects: Effects,
    pub statements: Statements<'a>,
    /// The rows of the jobs that the current transaction changes, by its steps.
    rows: Vec<Option<RowLocation>>,
    /// Whether damaged data fails the transaction, where it would otherwise decide a condition.
    /// Every node that applies a log must come to the same end, and damage is that of one machine.
    pub is_replica: bool,
}

impl<'a> Group<'a> {
    /// The transaction that was begun on `db`.
    pub(super) fn new(db: &'a Connection, names: &'a mut Names) -> Self {
        Self {
            db,
            names,
            effects: Effects::default(),
            statements: Statements::default(),
            rows: Vec::new(),
            is_replica: false,
        }
    }

    /// Executes the transactions of `steps`, each whole or not at all.
    pub(super) fn execute_all(&mut self, steps: &Steps) -> Result<Vec<Committed>, Failure> {
        steps.txns().map(|txn| self.execute(txn, steps.blobs())).collect()
    }

    /// Executes every step of `txn`, or none. The steps name bytes in `blobs`.
    fn execute(&mut self, txn: &[Step], blobs: &Blobs) -> Result<Committed, Failure> {
        // An insert checks its own condition. If it is the last step, every other condition has
        // been checked, so it can be executed first without a separate check: the usual enqueue.
        let (checked, insert) = match txn.split_last() {
            Some((Step::Add(whole), others)) => (others, Some(whole)),
            _ => (txn, None),
        };
        self.rows.clear();
        for (index, step) in checked.iter().enumerate() {
            match self.check(step)? {
                Checked::Holds(row) => self.rows.push(row),
                Checked::Refused(current) => {
                    return Ok(Committed::Conflict { step: index, current });
                }
            }
        }
        if let Some(whole) = insert
            && !self.add(whole, blobs)?
        {
            return Ok(Committed::Conflict {
                step: checked.len(),
                current: self.current(&whole.id)?,
            });
        }
        for (index, step) in checked.iter().enumerate() {
            self.write(step, self.rows[index], blobs)?;
        }
        Ok(Committed::All)
    }

    /// Checks the condition of `step`.
    fn check(&mut self, step: &Step) -> Result<Checked, Failure> {
        match step {
            Step::Add(whole) => Ok(match self.row_of(&whole.id)? {
                Some(_) => Checked::Refused(self.current(&whole.id)?),
                None => Checked::Holds(None),
            }),
            Step::SetLife { id, was, .. } | Step::Remove { id, was } => {
                self.check_revision(id, *was)
            }
            Step::SetAll { whole, was } => self.check_revision(&whole.id, *was),
            Step::Require { kind, name, version } => {
                Ok(Checked::of(self.conflict_of_item(*kind, name, *version)?))
            }
            Step::Other(write) => Ok(Checked::of(self.conflict_of(write)?)),
        }
    }

    fn check_revision(&mut self, id: &JobId, was: Revision) -> Result<Checked, Failure> {
        Ok(match self.row_of(id)? {
            Some((row, revision)) if revision == was.0 as i64 => Checked::Holds(Some(row)),
            Some(_) => Checked::Refused(self.current(id)?),
            None => Checked::Refused(CurrentRecord::Nothing),
        })
    }

    /// The conflict of a write that is not about a job, if there is one.
    fn conflict_of(&mut self, write: &Write) -> Result<Option<CurrentRecord>, Failure> {
        Ok(match write {
            Write::SetKey { key, was, .. } => match self.key(key)?.transpose() {
                Ok(job) => unless(was, job, |job| CurrentRecord::Key { job, since: None }),
                Err(unreadable) if self.is_replica => {
                    return Err(Failure(StoreError::corrupt(unreadable)));
                }
                Err(unreadable) => Some(CurrentRecord::Unreadable(unreadable)),
            },
            Write::SetLedger { queue, was, .. } => {
                let version = match self.names.queue(queue) {
                    Some(number) => self.ledger_version(queue, number)?,
                    None => None,
                };
                unless(was, version, CurrentRecord::Version)
            }
            Write::SetItem { kind, name, was, .. } => self.conflict_of_item(*kind, name, *was)?,
            Write::SwapRecord { record, was } => {
                let damaged = if self.is_replica { Damaged::Fails } else { Damaged::IsAbsent };
                let now = record::named(self.db, record.kind, &record.name, damaged)?;
                unless(was, now, |_| CurrentRecord::Record)
            }
            // There is no inbox.
            Write::TakeRequest(_) => Some(CurrentRecord::Nothing),
            Write::AddBatch(..)
            | Write::RemoveBatch(..)
            | Write::PutRecord(_)
            | Write::RemoveRecord { .. } => None,
            Write::AddJob(_)
            | Write::SetJob { .. }
            | Write::RemoveJob { .. }
            | Write::RequireItem { .. }
            | Write::Together(_) => {
                unreachable!("it is a step of its own")
            }
        })
    }

    /// The conflict if an item does not have version `was`; 0 means that it is absent.
    fn conflict_of_item(
        &mut self,
        kind: ItemKind,
        name: &str,
        was: u64,
    ) -> Result<Option<CurrentRecord>, Failure> {
        let now = self.item_version(kind, name)?;
        let was = if was == 0 { Expect::Absent } else { Expect::Is(was) };
        Ok(unless(&was, now, CurrentRecord::Version))
    }

    /// The row of a job, and its revision.
    fn row_of(&mut self, id: &JobId) -> Result<Option<(RowLocation, i64)>, Failure> {
        let sql = if self.is_replica { find_job!(", life") } else { find_job!("") };
        let find = prepared(&mut self.statements.find, self.db, sql)?;
        let mut rows = find.query([id.as_str()])?;
        let Some(row) = rows.next()? else {
            return Ok(None);
        };
        let location = RowLocation {
            n: row.get(0)?,
            queue: row.get(1)?,
            job_type: row.get(2)?,
            state: row.get(3)?,
            data_kind: row.get(4)?,
        };
        let revision: i64 = row.get(5)?;
        // If the lifecycle cannot be read, that is what was damaged, and the column is whole.
        if self.is_replica
            && let Ok(life) = row::decode::<Lifecycle>(row::blob(row, 6)?, id.as_str(), String::new)
        {
            same_version(life.revision.0, revision, || format!("job {id}"))?;
        }
        Ok(Some((location, revision)))
    }

    /// The current record of a job.
    fn current(&self, id: &JobId) -> Result<CurrentRecord, Failure> {
        let mut find = self.db.prepare_cached(select_jobs!("WHERE id = ?1"))?;
        let mut rows = find.query([id.as_str()])?;
        Ok(match rows.next()? {
            Some(row) => match row::stored(row)? {
                Ok(job) => CurrentRecord::Job(Box::new(job)),
                Err(unreadable) => CurrentRecord::Unreadable(unreadable),
            },
            None => CurrentRecord::Nothing,
        })
    }

    /// The version of the ledger of `queue`, which has the number `number`.
    fn ledger_version(&self, queue: &QueueName, number: i64) -> Result<Option<u64>, Failure> {
        let mut find =
            self.db.prepare_cached("SELECT version, head FROM heads WHERE queue = ?1")?;
        let mut rows = find.query([number])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let version: i64 = row.get(0)?;
        if self.is_replica {
            let what = || format!("the ledger of queue {queue}");
            let ledger: Ledger = row::decode(row::blob(row, 1)?, queue.as_str(), what)?;
            same_version(ledger.version, version, what)?;
        }
        Ok(Some(version as u64))
    }

    fn item_version(&mut self, kind: ItemKind, name: &str) -> Result<Option<u64>, Failure> {
        if let Some(version) = self.effects.versions.get(&kind).and_then(|items| items.get(name)) {
            return Ok(*version);
        }
        let mut find = self
            .db
            .prepare_cached("SELECT version, bytes FROM items WHERE kind = ?1 AND name = ?2")?;
        let mut rows = find.query([kind.as_str(), name])?;
        let version = match rows.next()? {
            Some(row) => {
                let version: i64 = row.get(0)?;
                if self.is_replica {
                    let owner = row::item_owner(kind.as_str(), name, version);
                    row::checked(row::blob(row, 1)?, &owner, 0, || {
                        format!("the {} {name}", kind.as_str())
                    })?;
                }
                Some(version as u64)
            }
            None => None,
        };
        self.effects.versions.entry(kind).or_default().insert(name.to_owned(), version);
        Ok(version)
    }

    fn key(&self, key: &Key) -> Result<Option<Result<JobId, UnreadableJob>>, Failure> {
        key_columns(key, self.names).map_or(Ok(None), |columns| find_key(self.db, columns))
    }
}

/// Checks that the column with the version of a record has that of the record.
fn same_version(
    version: u64,
    column: i64,
    what: impl FnOnce() -> String,
) -> Result<(), StoreError> {
    if version == column as u64 {
        return Ok(());
    }
    Err(StoreError::corrupt_in(what(), "its row has another version"))
}

/// The current record if it is not the expected one.
fn unless<T: PartialEq>(
    was: &Expect<T>,
    now: Option<T>,
    record: impl FnOnce(T) -> CurrentRecord,
) -> Option<CurrentRecord> {
    match (was, now) {
        (Expect::Absent, None) => None,
        (Expect::Is(was), Some(now)) if now == *was => None,
        (_, now) => Some(now.map_or(CurrentRecord::Nothing, record)),
    }
}

/// The columns of a key; none if its type has no number, because such a key cannot be stored.
pub(super) fn key_columns<'k>(key: &'k Key, names: &Names) -> Option<(i64, i64, &'k str)> {
    Some(match key {
        Key::Correlation(name, key) => (0, names.job_type(name)?, key),
        Key::Unique(name, key) => (1, names.job_type(name)?, key),
        Key::Idempotency(key) => (2, 0, key),
    })
}

/// The job that a key leads to; or that its row is damaged, which is logged.
pub(super) fn find_key(
    db: &Connection,
    (kind, job_type, key): (i64, i64, &str),
) -> Result<Option<Result<JobId, UnreadableJob>>, Failure> {
    let mut find =
        db.prepare_cached("SELECT job, sum FROM keys WHERE kind = ?1 AND type = ?2 AND key = ?3")?;
    let mut rows = find.query(params![kind, job_type, key])?;
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    let (job, sum): (RawText, i64) = (row.get(0)?, row.get(1)?);
    let id = String::from_utf8_lossy(&job.0);
    let is_whole = row::key_sum(kind, job_type, key.as_bytes(), &job.0) == sum;
    Ok(Some(id.parse().ok().filter(|_| is_whole).ok_or_else(|| {
        unreadable(&*id, &StoreError::corrupt(format!("the key {key:?} of it is damaged")))
    })))
}
