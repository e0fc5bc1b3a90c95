//! The statements that write: the execution of a step whose condition holds.

use rusqlite::params;

use super::error::Failure;
use super::{
    row::{self, with_checksum},
    step::{Blobs, BodyChange, JobColumns, Step},
    txn::{Effects, Group, RowLocation, key_columns, prepared},
};
use tidegate_core::{
    job::{JobId, QueueName, Spec},
    port::{
        Write,
        job_store::{ItemKind, Key, Record},
    },
    time::Timestamp,
};

/// Adds a job, unless its id is taken.
const ADD: &str = "INSERT INTO jobs (id, queue, type, state, revision, run_at, wake_at, \
     created_at, priority, critical, partition, data_kind, data_bytes, data, spec, life) \
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16) \
     ON CONFLICT (id) DO NOTHING";

/// Writes the lifecycle of a job.
const SET_LIFE: &str = "UPDATE jobs SET state = ?2, revision = ?3, run_at = ?4, wake_at = ?5, \
     life = ?6 WHERE n = ?1";

impl Group<'_> {
    /// Inserts a job; false if its id is taken.
    pub(super) fn add(&mut self, whole: &JobColumns, blobs: &Blobs) -> Result<bool, Failure> {
        let (queue, job_type) = self.numbers(&whole.spec)?;
        let (spec, life, data) = (&whole.spec, &whole.life, &whole.data);
        let add = prepared(&mut self.statements.add, self.db, ADD)?;
        let added = add.execute(params![
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
            data.data.map(|data| blobs.get(data)),
            blobs.get(whole.encoded_spec),
            blobs.get(whole.encoded_life),
        ])?;
        if added == 0 {
            return Ok(false);
        }
        self.body(self.db.last_insert_rowid(), &data.body, None)?;
        self.count(queue, job_type, life.state, 1);
        Ok(true)
    }

    /// Executes `step`; `at` is the row of its job.
    pub(super) fn write(
        &mut self,
        step: &Step,
        at: Option<RowLocation>,
        blobs: &Blobs,
    ) -> Result<(), Failure> {
        match (step, at) {
            (Step::Add(whole), _) => {
                self.add(whole, blobs)?;
            }
            (Step::SetLife { life, encoded, .. }, Some(at)) => {
                prepared(&mut self.statements.set_life, self.db, SET_LIFE)?.execute(params![
                    at.n,
                    life.state,
                    life.revision,
                    life.run_at,
                    life.wake_at,
                    blobs.get(*encoded),
                ])?;
                if life.state != at.state {
                    self.count(at.queue, at.job_type, at.state, -1);
                    self.count(at.queue, at.job_type, life.state, 1);
                }
            }
            (Step::SetAll { whole, .. }, Some(at)) => self.set_all(whole, at, blobs)?,
            (Step::Remove { id, .. }, Some(at)) => {
                self.db.prepare_cached("DELETE FROM jobs WHERE n = ?1")?.execute([at.n])?;
                self.body(at.n, &BodyChange::Deleted, Some(at.data_kind))?;
                self.db
                    .prepare_cached("DELETE FROM keys WHERE job = ?1")?
                    .execute([id.as_str()])?;
                self.count(at.queue, at.job_type, at.state, -1);
            }
            (Step::Require { .. }, _) => {}
            (Step::Other(write), _) => self.write_other(write)?,
            (Step::SetLife { .. } | Step::SetAll { .. } | Step::Remove { .. }, None) => {
                unreachable!("the check of a change returns its row")
            }
        }
        Ok(())
    }

    /// Writes the counts, as the last statement.
    pub(super) fn finish(self) -> Result<Effects, Failure> {
        let mut add = self.db.prepare_cached(
            "INSERT INTO counts (queue, type, state, jobs) VALUES (?1, ?2, ?3, ?4) \
             ON CONFLICT DO UPDATE SET jobs = jobs + excluded.jobs",
        )?;
        for ((queue, job_type, state), change) in &self.effects.counts {
            if *change != 0 {
                add.execute([queue, job_type, state, change])?;
            }
        }
        Ok(self.effects)
    }

    fn set_all(
        &mut self,
        whole: &JobColumns,
        at: RowLocation,
        blobs: &Blobs,
    ) -> Result<(), Failure> {
        let (queue, job_type) = self.numbers(&whole.spec)?;
        let (spec, life, data) = (&whole.spec, &whole.life, &whole.data);
        self.db
            .prepare_cached(
                "UPDATE jobs SET queue = ?2, type = ?3, state = ?4, revision = ?5, run_at = ?6, \
                 wake_at = ?7, created_at = ?8, priority = ?9, critical = ?10, partition = ?11, \
                 data_kind = ?12, data_bytes = ?13, data = ?14, spec = ?15, life = ?16 \
                 WHERE n = ?1",
            )?
            .execute(params![
                at.n,
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
                data.data.map(|data| blobs.get(data)),
                blobs.get(whole.encoded_spec),
                blobs.get(whole.encoded_life),
            ])?;
        self.body(at.n, &data.body, Some(at.data_kind))?;
        self.count(at.queue, at.job_type, at.state, -1);
        self.count(queue, job_type, life.state, 1);
        Ok(())
    }

    /// Changes the separate body of the job in row `n`, whose data was of kind `was`.
    fn body(&self, n: i64, change: &BodyChange, was: Option<i64>) -> Result<(), Failure> {
        match change {
            BodyChange::New { encoding, stored } => {
                self.db
                    .prepare_cached(
                        "INSERT OR REPLACE INTO bodies (job, encoding, bytes) VALUES (?1, ?2, ?3)",
                    )?
                    .execute(params![n, encoding, stored])?;
            }
            BodyChange::Deleted if was == Some(row::SEPARATE) => {
                self.db.prepare_cached("DELETE FROM bodies WHERE job = ?1")?.execute([n])?;
            }
            BodyChange::Deleted | BodyChange::Unchanged => {}
        }
        Ok(())
    }

    fn write_other(&mut self, write: &Write) -> Result<(), Failure> {
        match write {
            Write::SetKey { key, job, .. } => self.set_key(key, job)?,
            Write::AddBatch(name, batch) => {
                let queue = self.queue(name)?;
                let mut put = self.db.prepare_cached(
                    "INSERT OR REPLACE INTO batches (queue, id, for_head, batch) \
                     VALUES (?1, ?2, ?3, ?4)",
                )?;
                let (id, ledger) = (batch.id.0 as i64, batch.ledger_version as i64);
                let batch = row::encode(batch, name.as_str())?;
                put.execute(params![queue, id, ledger, batch])?;
            }
            Write::RemoveBatch(queue, id) => {
                let queue = self.queue(queue)?;
                self.db
                    .prepare_cached("DELETE FROM batches WHERE queue = ?1 AND id = ?2")?
                    .execute(params![queue, id.0 as i64])?;
            }
            Write::SetLedger { queue: name, ledger, .. } => {
                let queue = self.queue(name)?;
                let head = row::encode(ledger, name.as_str())?;
                self.db
                    .prepare_cached(
                        "INSERT OR REPLACE INTO heads (queue, version, head) VALUES (?1, ?2, ?3)",
                    )?
                    .execute(params![queue, ledger.version as i64, head])?;
            }
            Write::SetItem { kind, name, version, bytes, .. } => {
                self.set_item(*kind, name, *version, bytes.as_deref())?;
            }
            Write::PutRecord(record) | Write::SwapRecord { record, .. } => {
                self.put_record(record)?;
            }
            Write::RemoveRecord { kind, name, until } => {
                let mut remove = self.db.prepare_cached(
                    "DELETE FROM records \
                     WHERE kind = ?1 AND name = ?2 AND until = ifnull(?3, until)",
                )?;
                remove.execute(params![kind.as_str(), name, until.map(Timestamp::millis)])?;
            }
            Write::AddJob(_)
            | Write::SetJob { .. }
            | Write::RemoveJob { .. }
            | Write::RequireItem { .. }
            | Write::Together(_) => {
                unreachable!("it is a step of its own")
            }
            Write::TakeRequest(_) => unreachable!("it was refused"),
        }
        Ok(())
    }

    fn set_key(&mut self, key: &Key, job: &JobId) -> Result<(), Failure> {
        if let Key::Correlation(name, _) | Key::Unique(name, _) = key {
            self.effects.named |= self.names.intern_type(self.db, name)?.1;
        }
        let (kind, job_type, key) =
            key_columns(key, self.names).expect("its type was given a number above");
        self.db
            .prepare_cached(
                "INSERT OR REPLACE INTO keys (kind, type, key, job, sum) \
                 VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![
                kind,
                job_type,
                key,
                job.as_str(),
                row::key_sum(kind, job_type, key.as_bytes(), job.as_str().as_bytes())
            ])?;
        Ok(())
    }

    /// Writes an item of the configuration, or deletes it without `bytes`.
    fn set_item(
        &mut self,
        kind: ItemKind,
        name: &str,
        version: u64,
        bytes: Option<&[u8]>,
    ) -> Result<(), Failure> {
        match bytes {
            Some(bytes) => self
                .db
                .prepare_cached(
                    "INSERT OR REPLACE INTO items (kind, name, version, bytes) \
                     VALUES (?1, ?2, ?3, ?4)",
                )?
                .execute(params![
                    kind.as_str(),
                    name,
                    version as i64,
                    with_checksum(bytes, &row::item_owner(kind.as_str(), name, version as i64), 0)
                ])?,
            None => self
                .db
                .prepare_cached("DELETE FROM items WHERE kind = ?1 AND name = ?2")?
                .execute(params![kind.as_str(), name])?,
        };
        let versions = self.effects.versions.entry(kind).or_default();
        versions.insert(name.to_owned(), bytes.is_some().then_some(version));
        self.effects.items += u64::from(kind.is_decided_under());
        self.effects.tokens += u64::from(matches!(kind, ItemKind::Token | ItemKind::Closed));
        Ok(())
    }

    fn put_record(&self, record: &Record) -> Result<(), Failure> {
        let mut put = self.db.prepare_cached(
            "INSERT INTO records (kind, name, until, bytes) VALUES (?1, ?2, ?3, ?4) \
             ON CONFLICT (kind, name) DO UPDATE \
             SET until = excluded.until, bytes = excluded.bytes",
        )?;
        let until = record.until.millis();
        let owner = row::record_owner(record.kind.as_str(), &record.name, until);
        let stored = with_checksum(&record.bytes, &owner, 0);
        put.execute(params![record.kind.as_str(), record.name, until, stored])?;
        Ok(())
    }

    fn count(&mut self, queue: i64, job_type: i64, state: i64, change: i64) {
        *self.effects.counts.entry((queue, job_type, state)).or_default() += change;
    }

    fn queue(&mut self, name: &QueueName) -> Result<i64, Failure> {
        let (number, new) = self.names.intern_queue(self.db, name)?;
        self.effects.named |= new;
        Ok(number)
    }

    fn numbers(&mut self, spec: &Spec) -> Result<(i64, i64), Failure> {
        let queue = self.queue(&spec.queue)?;
        let (job_type, new) = self.names.intern_type(self.db, &spec.job_type)?;
        self.effects.named |= new;
        Ok((queue, job_type))
    }
}
