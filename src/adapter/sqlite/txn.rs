//! One transaction of the port inside one of SQLite's.
//!
//! Every condition of it is looked at before its first write, so that a refused one has nothing to
//! take back and many share one commit of SQLite's without savepoints. No record is written twice
//! in one transaction, so what was seen still stands when it is written.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension, params};

use super::{
    names::Names,
    row::{self, BodyChange, DataColumns, LifeColumns, select_jobs},
};
use crate::{
    job::{Job, JobId, Revision, Spec},
    port::{
        StoreError, Txn, Write,
        job_store::{Committed, Expect, ItemKind, Key, Standing},
    },
};

/// A write whose job is encoded already, by its sender: the writer's time is the scarce one.
pub(super) enum Step {
    Add(Box<Whole>),
    SetLife { id: JobId, was: Revision, life: LifeColumns },
    SetAll { whole: Box<Whole>, was: Revision },
    Other(Write),
}

/// Every column of a job.
pub(super) struct Whole {
    id: JobId,
    spec: std::sync::Arc<Spec>,
    encoded: Vec<u8>,
    life: LifeColumns,
    data: DataColumns,
}

impl Whole {
    fn of(job: Job) -> Result<Box<Self>, StoreError> {
        let life = LifeColumns::of(&job.life, &job.spec)?;
        let encoded = row::encode_spec(&job.spec)?;
        Ok(Box::new(Self { id: job.id, spec: job.spec, encoded, life, data: DataColumns::of(job.data) }))
    }
}

/// `txn` with its jobs encoded.
pub(super) fn encode(txn: Txn) -> Result<Vec<Step>, StoreError> {
    let step = |write| {
        Ok(match write {
            Write::AddJob(job) => Step::Add(Whole::of(job)?),
            Write::SetJob { job, was, all: true } => Step::SetAll { whole: Whole::of(job)?, was },
            Write::SetJob { job, was, all: false } => {
                let life = LifeColumns::of(&job.life, &job.spec)?;
                Step::SetLife { id: job.id, was, life }
            }
            other => Step::Other(other),
        })
    };
    txn.into_iter().map(step).collect()
}

/// Where a job that is about to change stands.
#[derive(Clone, Copy)]
struct Place {
    n: i64,
    queue: i64,
    job_type: i64,
    state: i64,
    data_kind: i64,
}

/// What one of SQLite's transactions changes beside its rows; it takes effect with the commit.
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// By queue, type and state: how many jobs more.
    pub counts: HashMap<(i64, i64, i64), i64>,
    /// Whether a queue or a type got a number.
    pub named: bool,
    /// How many queues and types were configured.
    pub items: u64,
}

/// One of SQLite's transactions, under way.
pub(super) struct Group<'a> {
    pub db: &'a Connection,
    pub names: &'a mut Names,
    pub effects: Effects,
}

impl Group<'_> {
    /// Takes every step of `txn`, or none.
    pub(super) fn take(&mut self, txn: &[Step]) -> Result<Committed, StoreError> {
        // An insert tells by itself whether the id is taken. Where it comes last, every other
        // condition is known to hold, so it can go first and save the look: the usual enqueue.
        let (looked_at, insert) = match txn.split_last() {
            Some((Step::Add(whole), others)) => (others, Some(whole)),
            _ => (txn, None),
        };
        let mut places = Vec::with_capacity(looked_at.len());
        for (step, write) in looked_at.iter().enumerate() {
            match self.look(write)? {
                Ok(place) => places.push(place),
                Err(standing) => return Ok(Committed::Refused { step, standing }),
            }
        }
        if let Some(whole) = insert
            && !self.add(whole)?
        {
            return Ok(Committed::Refused { step: looked_at.len(), standing: self.standing(&whole.id)? });
        }
        for (write, place) in looked_at.iter().zip(places) {
            self.write(write, place)?;
        }
        Ok(Committed::All)
    }

    /// Writes the counts, last of all.
    pub(super) fn finish(self) -> Result<Effects, StoreError> {
        let mut add = self.db.prepare_cached(
            "INSERT INTO counts (queue, type, state, jobs) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO UPDATE SET jobs = jobs + excluded.jobs",
        )?;
        for ((queue, job_type, state), more) in &self.effects.counts {
            if *more != 0 {
                add.execute([queue, job_type, state, more])?;
            }
        }
        Ok(self.effects)
    }

    /// Whether the condition of `step` holds: where its job stands (if it is about one), or what stands in the way.
    fn look(&mut self, step: &Step) -> Result<Result<Option<Place>, Standing>, StoreError> {
        Ok(match step {
            Step::Add(whole) => match self.place(&whole.id)? {
                Some(_) => Err(self.standing(&whole.id)?),
                None => Ok(None),
            },
            Step::SetLife { id, was, .. } | Step::Other(Write::RemoveJob { id, was }) => self.at_revision(id, *was)?,
            Step::SetAll { whole, was } => self.at_revision(&whole.id, *was)?,
            Step::Other(Write::SetKey { key, was, .. }) => {
                let now = self.key(key)?;
                match (was, now) {
                    (Expect::Absent, None) => Ok(None),
                    (Expect::Is(job), Some(now)) if now == *job => Ok(None),
                    (_, now) => Err(now.map_or(Standing::Nothing, Standing::Key)),
                }
            }
            Step::Other(Write::SetHead { queue, was, .. }) => {
                let now = match self.names.queue(queue) {
                    Some(queue) => self.version("SELECT version FROM heads WHERE queue = ?1", params![queue])?,
                    None => None,
                };
                match (was, now) {
                    (Expect::Absent, None) => Ok(None),
                    (Expect::Is(was), Some(now)) if now == *was => Ok(None),
                    (_, now) => Err(now.map_or(Standing::Nothing, Standing::Version)),
                }
            }
            Step::Other(Write::RequireItem { kind, name, version: was } | Write::SetItem { kind, name, was, .. }) => {
                let now = self.version("SELECT version FROM items WHERE kind = ?1 AND name = ?2", params![kind.as_str(), name])?;
                if now.unwrap_or(0) == *was { Ok(None) } else { Err(now.map_or(Standing::Nothing, Standing::Version)) }
            }
            Step::Other(Write::AddBatch(..) | Write::RemoveBatch(..) | Write::AddJob(_) | Write::SetJob { .. }) => Ok(None),
        })
    }

    fn at_revision(&self, id: &JobId, was: Revision) -> Result<Result<Option<Place>, Standing>, StoreError> {
        Ok(match self.place(id)? {
            Some((place, revision)) if revision == was.0 as i64 => Ok(Some(place)),
            Some(_) => Err(self.standing(id)?),
            None => Err(Standing::Nothing),
        })
    }

    fn place(&self, id: &JobId) -> Result<Option<(Place, i64)>, StoreError> {
        let mut find = self.db.prepare_cached("SELECT n, queue, type, state, data_kind, revision FROM jobs WHERE id = ?1")?;
        let mut rows = find.query([id.as_str()])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let place = Place { n: row.get(0)?, queue: row.get(1)?, job_type: row.get(2)?, state: row.get(3)?, data_kind: row.get(4)? };
        Ok(Some((place, row.get(5)?)))
    }

    fn standing(&self, id: &JobId) -> Result<Standing, StoreError> {
        let mut find = self.db.prepare_cached(select_jobs!("WHERE id = ?1"))?;
        let mut rows = find.query([id.as_str()])?;
        Ok(match rows.next()? {
            Some(row) => Standing::Job(Box::new(row::job(row)?)),
            None => Standing::Nothing,
        })
    }

    fn version(&self, sql: &str, params: impl rusqlite::Params) -> Result<Option<u64>, StoreError> {
        let version: Option<i64> = self.db.prepare_cached(sql)?.query_row(params, |row| row.get(0)).optional()?;
        Ok(version.map(|version| version as u64))
    }

    fn key(&self, key: &Key) -> Result<Option<JobId>, StoreError> {
        key_columns(key, self.names).map_or(Ok(None), |columns| find_key(self.db, columns))
    }

    fn count(&mut self, queue: i64, job_type: i64, state: i64, more: i64) {
        *self.effects.counts.entry((queue, job_type, state)).or_default() += more;
    }

    /// Inserts a job; false if its id is taken.
    fn add(&mut self, whole: &Whole) -> Result<bool, StoreError> {
        let (queue, job_type) = self.numbers(&whole.spec)?;
        let (spec, life, data) = (&whole.spec, &whole.life, &whole.data);
        let added = self
            .db
            .prepare_cached(
                "INSERT INTO jobs (id, queue, type, state, revision, run_at, wake_at, created_at, priority, critical, partition, \
                 data_kind, data_bytes, data, spec, life) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16) \
                 ON CONFLICT (id) DO NOTHING",
            )?
            .execute(params![
                whole.id.as_str(),
                queue,
                job_type,
                life.state,
                life.revision,
                life.run_at,
                life.wake_at,
                spec.created_at.millis(),
                spec.priority,
                spec.critical,
                spec.partition,
                data.kind,
                data.bytes,
                data.data.as_deref(),
                whole.encoded,
                life.life,
            ])?;
        if added == 0 {
            return Ok(false);
        }
        self.body(self.db.last_insert_rowid(), &data.body, None)?;
        self.count(queue, job_type, life.state, 1);
        Ok(true)
    }

    fn write(&mut self, step: &Step, place: Option<Place>) -> Result<(), StoreError> {
        match (step, place) {
            (Step::Add(whole), _) => {
                self.add(whole)?;
            }
            (Step::SetLife { life, .. }, Some(place)) => {
                self.db
                    .prepare_cached("UPDATE jobs SET state = ?2, revision = ?3, run_at = ?4, wake_at = ?5, life = ?6 WHERE n = ?1")?
                    .execute(params![place.n, life.state, life.revision, life.run_at, life.wake_at, life.life])?;
                if life.state != place.state {
                    self.count(place.queue, place.job_type, place.state, -1);
                    self.count(place.queue, place.job_type, life.state, 1);
                }
            }
            (Step::SetAll { whole, .. }, Some(place)) => self.set_all(whole, place)?,
            (Step::Other(Write::RemoveJob { id, .. }), Some(place)) => {
                self.db.prepare_cached("DELETE FROM jobs WHERE n = ?1")?.execute([place.n])?;
                self.body(place.n, &BodyChange::Gone, Some(place.data_kind))?;
                self.db.prepare_cached("DELETE FROM keys WHERE job = ?1")?.execute([id.as_str()])?;
                self.count(place.queue, place.job_type, place.state, -1);
            }
            (Step::Other(write), _) => self.write_other(write)?,
            (Step::SetLife { .. } | Step::SetAll { .. }, None) => unreachable!("a job that may be set has a place"),
        }
        Ok(())
    }

    fn set_all(&mut self, whole: &Whole, place: Place) -> Result<(), StoreError> {
        let (queue, job_type) = self.numbers(&whole.spec)?;
        let (spec, life, data) = (&whole.spec, &whole.life, &whole.data);
        self.db
            .prepare_cached(
                "UPDATE jobs SET queue = ?2, type = ?3, state = ?4, revision = ?5, run_at = ?6, wake_at = ?7, created_at = ?8, \
                 priority = ?9, critical = ?10, partition = ?11, data_kind = ?12, data_bytes = ?13, data = ?14, spec = ?15, life = ?16 \
                 WHERE n = ?1",
            )?
            .execute(params![
                place.n,
                queue,
                job_type,
                life.state,
                life.revision,
                life.run_at,
                life.wake_at,
                spec.created_at.millis(),
                spec.priority,
                spec.critical,
                spec.partition,
                data.kind,
                data.bytes,
                data.data.as_deref(),
                whole.encoded,
                life.life,
            ])?;
        self.body(place.n, &data.body, Some(place.data_kind))?;
        self.count(place.queue, place.job_type, place.state, -1);
        self.count(queue, job_type, life.state, 1);
        Ok(())
    }

    /// Changes what lies beside job `n`, whose data was of kind `was`.
    fn body(&self, n: i64, change: &BodyChange, was: Option<i64>) -> Result<(), StoreError> {
        match change {
            BodyChange::New(payload) => {
                self.db.prepare_cached("INSERT OR REPLACE INTO bodies (job, encoding, bytes) VALUES (?1, ?2, ?3)")?.execute(params![
                    n,
                    row::encoding_number(payload.encoding),
                    &payload.bytes[..]
                ])?;
            }
            BodyChange::Gone if was == Some(row::BESIDE) => {
                self.db.prepare_cached("DELETE FROM bodies WHERE job = ?1")?.execute([n])?;
            }
            BodyChange::Gone | BodyChange::Kept => {}
        }
        Ok(())
    }

    fn write_other(&mut self, write: &Write) -> Result<(), StoreError> {
        match write {
            Write::SetKey { key, job, .. } => {
                if let Key::Correlation(name, _) | Key::Unique(name, _) = key {
                    self.effects.named |= self.names.intern_type(self.db, name)?.1;
                }
                let (kind, job_type, key) = key_columns(key, self.names).expect("its type has a number now");
                self.db.prepare_cached("INSERT OR REPLACE INTO keys (kind, type, key, job) VALUES (?1, ?2, ?3, ?4)")?.execute(params![
                    kind,
                    job_type,
                    key,
                    job.as_str()
                ])?;
            }
            Write::AddBatch(queue, batch) => {
                let queue = self.queue(queue)?;
                self.db
                    .prepare_cached("INSERT OR REPLACE INTO batches (queue, id, for_head, batch) VALUES (?1, ?2, ?3, ?4)")?
                    .execute(params![queue, batch.id.0 as i64, batch.for_head as i64, row::encode(batch)?])?;
            }
            Write::RemoveBatch(queue, id) => {
                let queue = self.queue(queue)?;
                self.db.prepare_cached("DELETE FROM batches WHERE queue = ?1 AND id = ?2")?.execute(params![queue, id.0 as i64])?;
            }
            Write::SetHead { queue, head, .. } => {
                let queue = self.queue(queue)?;
                self.db.prepare_cached("INSERT OR REPLACE INTO heads (queue, version, head) VALUES (?1, ?2, ?3)")?.execute(params![
                    queue,
                    head.version as i64,
                    row::encode(head)?
                ])?;
            }
            Write::SetItem { kind, name, version, bytes, .. } => {
                match bytes {
                    Some(bytes) => self
                        .db
                        .prepare_cached("INSERT OR REPLACE INTO items (kind, name, version, bytes) VALUES (?1, ?2, ?3, ?4)")?
                        .execute(params![kind.as_str(), name, *version as i64, bytes])?,
                    None => {
                        self.db.prepare_cached("DELETE FROM items WHERE kind = ?1 AND name = ?2")?.execute(params![kind.as_str(), name])?
                    }
                };
                self.effects.items += u64::from(matches!(kind, ItemKind::Queue | ItemKind::Type));
            }
            Write::RequireItem { .. } => {}
            Write::AddJob(_) | Write::SetJob { .. } | Write::RemoveJob { .. } => unreachable!("jobs are encoded, or have a place"),
        }
        Ok(())
    }

    fn queue(&mut self, name: &crate::job::QueueName) -> Result<i64, StoreError> {
        let (number, new) = self.names.intern_queue(self.db, name)?;
        self.effects.named |= new;
        Ok(number)
    }

    fn numbers(&mut self, spec: &Spec) -> Result<(i64, i64), StoreError> {
        let queue = self.queue(&spec.queue)?;
        let (job_type, new) = self.names.intern_type(self.db, &spec.job_type)?;
        self.effects.named |= new;
        Ok((queue, job_type))
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
pub(super) fn find_key(db: &Connection, (kind, job_type, key): (i64, i64, &str)) -> Result<Option<JobId>, StoreError> {
    let mut find = db.prepare_cached("SELECT job FROM keys WHERE kind = ?1 AND type = ?2 AND key = ?3")?;
    let mut rows = find.query(params![kind, job_type, key])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let id = row::text(row, 0)?;
    id.parse().map(Some).map_err(|_| StoreError::Corrupt(format!("the key {key:?} points at {id:?}, which is not an id")))
}
