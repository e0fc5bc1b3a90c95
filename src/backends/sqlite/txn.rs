//! One transaction of the port inside one of SQLite's.
//!
//! Every condition of it is looked at before its first write, so that a refused one has nothing to
//! take back and many share one commit of SQLite's without savepoints. No record is written twice
//! in one transaction, so what was read is still current when it is written.

use std::{collections::HashMap, sync::Arc};

use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use super::error::Failure;
use super::{
    names::Names,
    row::{self, DataColumns, LifeColumns, select_jobs},
};
use tidegate_core::{
    job::{Job, JobId, Revision, Spec},
    port::{
        Txn, Write,
        job_store::{Committed, CurrentRecord, Expect, ItemKind, Key},
    },
};

/// A write whose job is encoded already, by its sender: the writer's time is the scarce one.
pub(super) enum Step {
    Add(Box<Whole>),
    SetLife {
        id: JobId,
        was: Revision,
        life: LifeColumns,
    },
    SetAll {
        whole: Box<Whole>,
        was: Revision,
    },
    Remove {
        id: JobId,
        was: Revision,
    },
    /// Anything that is not about a job.
    Other(Box<Write>),
}

/// Every column of a job.
pub(super) struct Whole {
    pub id: JobId,
    pub spec: Arc<Spec>,
    pub encoded: Vec<u8>,
    pub life: LifeColumns,
    pub data: DataColumns,
}

impl Whole {
    fn of(job: Job) -> Result<Box<Self>, Failure> {
        let life = LifeColumns::of(&job.life, &job.spec)?;
        let encoded = row::encode_spec(&job.spec)?;
        Ok(Box::new(Self {
            id: job.id,
            spec: job.spec,
            encoded,
            life,
            data: DataColumns::of(job.data),
        }))
    }
}

/// `txn` with its jobs encoded.
pub(super) fn encode(txn: Txn) -> Result<Vec<Step>, Failure> {
    let step = |write| {
        Ok(match write {
            Write::AddJob(job) => Step::Add(Whole::of(job)?),
            Write::SetJob { job, was, all: true } => Step::SetAll { whole: Whole::of(job)?, was },
            Write::SetJob { job, was, all: false } => {
                let life = LifeColumns::of(&job.life, &job.spec)?;
                Step::SetLife { id: job.id, was, life }
            }
            Write::RemoveJob { id, was } => Step::Remove { id, was },
            other => Step::Other(Box::new(other)),
        })
    };
    txn.into_iter().map(step).collect()
}

/// The row of a job that is about to change.
#[derive(Clone, Copy)]
pub(super) struct RowLocation {
    pub n: i64,
    pub queue: i64,
    pub job_type: i64,
    pub state: i64,
    pub data_kind: i64,
}

/// What was found where a step is to be taken.
enum Checked {
    /// Its condition holds; the job that it is about stands here.
    Fits(Option<RowLocation>),
    /// It does not: this is the current record.
    Refused(CurrentRecord),
}

/// What one of SQLite's transactions changes in addition to its rows; it takes effect with the commit.
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// By queue, type and state: how many jobs more.
    pub counts: HashMap<(i64, i64, i64), i64>,
    /// Whether a queue or a type got a number.
    pub named: bool,
    /// How many queues and types were configured.
    pub items: u64,
    /// The versions of items as this transaction has them: every claim asks for that of its queue.
    pub versions: HashMap<ItemKind, HashMap<String, Option<u64>>>,
}

/// One of SQLite's transactions, under way.
pub(super) struct Group<'a> {
    pub db: &'a Connection,
    pub names: &'a mut Names,
    pub effects: Effects,
    /// What adds jobs, once one was added: finding it among all statements takes as long as a good part of adding a job.
    pub add: Option<CachedStatement<'a>>,
}

impl<'a> Group<'a> {
    /// A transaction that has begun on `db`.
    pub(super) fn new(db: &'a Connection, names: &'a mut Names) -> Self {
        Self { db, names, effects: Effects::default(), add: None }
    }

    /// Takes every step of `txn`, or none.
    pub(super) fn take(&mut self, txn: &[Step]) -> Result<Committed, Failure> {
        // An insert tells by itself whether the id is taken. Where it comes last, every other
        // condition is known to hold, so it can go first and save the look: the usual enqueue.
        let (looked_at, insert) = match txn.split_last() {
            Some((Step::Add(whole), others)) => (others, Some(whole)),
            _ => (txn, None),
        };
        let mut places = Vec::with_capacity(looked_at.len());
        for (index, step) in looked_at.iter().enumerate() {
            match self.look(step)? {
                Checked::Fits(place) => places.push(place),
                Checked::Refused(standing) => {
                    return Ok(Committed::Conflict { step: index, standing });
                }
            }
        }
        if let Some(whole) = insert
            && !self.add(whole)?
        {
            return Ok(Committed::Conflict {
                step: looked_at.len(),
                standing: self.standing(&whole.id)?,
            });
        }
        for (step, place) in looked_at.iter().zip(places) {
            self.write(step, place)?;
        }
        Ok(Committed::All)
    }

    fn look(&mut self, step: &Step) -> Result<Checked, Failure> {
        match step {
            Step::Add(whole) => Ok(match self.place(&whole.id)? {
                Some(_) => Checked::Refused(self.standing(&whole.id)?),
                None => Checked::Fits(None),
            }),
            Step::SetLife { id, was, .. } | Step::Remove { id, was } => {
                self.look_at_revision(id, *was)
            }
            Step::SetAll { whole, was } => self.look_at_revision(&whole.id, *was),
            Step::Other(write) => {
                Ok(self.look_at_other(write)?.map_or(Checked::Fits(None), Checked::Refused))
            }
        }
    }

    fn look_at_revision(&self, id: &JobId, was: Revision) -> Result<Checked, Failure> {
        Ok(match self.place(id)? {
            Some((place, revision)) if revision == was.0 as i64 => Checked::Fits(Some(place)),
            Some(_) => Checked::Refused(self.standing(id)?),
            None => Checked::Refused(CurrentRecord::Nothing),
        })
    }

    /// The conflict of a write that is not about a job, if there is one.
    fn look_at_other(&mut self, write: &Write) -> Result<Option<CurrentRecord>, Failure> {
        Ok(match write {
            Write::SetKey { key, was, .. } => {
                unless(was, self.key(key)?, |job| CurrentRecord::Key { job, since: None })
            }
            Write::SetLedger { queue, was, .. } => {
                let version = match self.names.queue(queue) {
                    Some(queue) => {
                        self.version("SELECT version FROM heads WHERE queue = ?1", params![queue])?
                    }
                    None => None,
                };
                unless(was, version, CurrentRecord::Version)
            }
            Write::RequireItem { kind, name, version: was }
            | Write::SetItem { kind, name, was, .. } => {
                let now = self.item_version(*kind, name)?;
                let was = if *was == 0 { Expect::Absent } else { Expect::Is(*was) };
                unless(&was, now, CurrentRecord::Version)
            }
            Write::AddBatch(..)
            | Write::RemoveBatch(..)
            | Write::PutRecord(_)
            | Write::RemoveRecord { .. } => None,
            Write::AddJob(_)
            | Write::SetJob { .. }
            | Write::RemoveJob { .. }
            | Write::Together(_) => {
                unreachable!("a step of its own")
            }
        })
    }

    /// Where a job stands, and its revision.
    fn place(&self, id: &JobId) -> Result<Option<(RowLocation, i64)>, Failure> {
        let mut find = self.db.prepare_cached(
            "SELECT n, queue, type, state, data_kind, revision FROM jobs WHERE id = ?1",
        )?;
        let mut rows = find.query([id.as_str()])?;
        let Some(row) = rows.next()? else {
            return Ok(None);
        };
        let place = RowLocation {
            n: row.get(0)?,
            queue: row.get(1)?,
            job_type: row.get(2)?,
            state: row.get(3)?,
            data_kind: row.get(4)?,
        };
        Ok(Some((place, row.get(5)?)))
    }

    fn standing(&self, id: &JobId) -> Result<CurrentRecord, Failure> {
        let mut find = self.db.prepare_cached(select_jobs!("WHERE id = ?1"))?;
        let mut rows = find.query([id.as_str()])?;
        Ok(match rows.next()? {
            Some(row) => CurrentRecord::Job(Box::new(row::job(row)?)),
            None => CurrentRecord::Nothing,
        })
    }

    fn version(&self, sql: &str, params: impl rusqlite::Params) -> Result<Option<u64>, Failure> {
        let version: Option<i64> =
            self.db.prepare_cached(sql)?.query_row(params, |row| row.get(0)).optional()?;
        Ok(version.map(|version| version as u64))
    }

    fn item_version(&mut self, kind: ItemKind, name: &str) -> Result<Option<u64>, Failure> {
        if let Some(version) = self.effects.versions.get(&kind).and_then(|items| items.get(name)) {
            return Ok(*version);
        }
        let version = self.version(
            "SELECT version FROM items WHERE kind = ?1 AND name = ?2",
            params![kind.as_str(), name],
        )?;
        self.effects.versions.entry(kind).or_default().insert(name.to_owned(), version);
        Ok(version)
    }

    fn key(&self, key: &Key) -> Result<Option<JobId>, Failure> {
        key_columns(key, self.names).map_or(Ok(None), |columns| find_key(self.db, columns))
    }
}

/// What stands instead of what was expected; none if that is what stands.
fn unless<T: PartialEq>(
    was: &Expect<T>,
    now: Option<T>,
    standing: impl FnOnce(T) -> CurrentRecord,
) -> Option<CurrentRecord> {
    match (was, now) {
        (Expect::Absent, None) => None,
        (Expect::Is(was), Some(now)) if now == *was => None,
        (_, now) => Some(now.map_or(CurrentRecord::Nothing, standing)),
    }
}

/// A key as its columns have it; none if its type has no number, so that it cannot be there.
pub(super) fn key_columns<'k>(key: &'k Key, names: &Names) -> Option<(i64, i64, &'k str)> {
    Some(match key {
        Key::Correlation(name, key) => (0, names.job_type(name)?, key),
        Key::Unique(name, key) => (1, names.job_type(name)?, key),
        Key::Idempotency(key) => (2, 0, key),
    })
}

/// The job that a key points at.
pub(super) fn find_key(
    db: &Connection,
    (kind, job_type, key): (i64, i64, &str),
) -> Result<Option<JobId>, Failure> {
    let mut find =
        db.prepare_cached("SELECT job FROM keys WHERE kind = ?1 AND type = ?2 AND key = ?3")?;
    let mut rows = find.query(params![kind, job_type, key])?;
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    let id = row::text(row, 0)?;
    id.parse().map(Some).map_err(|_| {
        Failure::corrupt(format!("the key {key:?} points at {id:?}, which is not an id"))
    })
}
