//! Applies records: the same transactions in the same order give the same database, on every
//! machine and in groups of every size.

use std::sync::atomic::Ordering;

use rusqlite::{Connection, backup::Backup};

use super::{
    super::{
        error::Failure, file::MIGRATIONS, names::Names, read_counts, step::Steps, writer::State,
    },
    position,
    snapshot::Copy,
    wire,
};
use crate::bucket_log::{Durable, Tail, body, object::Kind};
use tidegate_core::port::{StoreError, job_store::Committed};

/// Pages that are copied at once.
const PAGES_AT_ONCE: i32 = 4096;

impl State {
    /// Applies `objects` in one SQLite transaction, with the tail behind them: one list of answers
    /// per object.
    pub(super) fn apply(
        &mut self,
        objects: &[Durable],
    ) -> Result<(Vec<Vec<Committed>>, Option<Tail>), Failure> {
        let mut groups = Vec::with_capacity(objects.len());
        for object in objects {
            groups.push(steps(object)?);
        }
        let tail = objects.last().map(|last| Tail::after(last.object()));
        let answers = self.transaction(|group| {
            group.is_replica = true;
            let mut answers = Vec::with_capacity(objects.len());
            for (object, steps) in objects.iter().zip(&groups) {
                let header = &object.object().header;
                if header.kind == Kind::Seal {
                    position::seal(group.db, header.slot)?;
                }
                answers.push(group.execute_all(steps)?);
            }
            if let Some(tail) = &tail {
                position::write(group.db, tail)?;
            }
            Ok(answers)
        })?;
        Ok((answers, tail))
    }

    /// Replaces the database by a copy of another one.
    pub(super) fn replace_by_copy(&mut self, copy: &Copy) -> Result<Tail, Failure> {
        self.replace(&copy.open()?)
    }

    /// Replaces the database by that before the first record.
    pub(super) fn replace_by_nothing(&mut self) -> Result<Tail, Failure> {
        let empty = Connection::open_in_memory()?;
        for name in ["application_id", "user_version"] {
            let number: i64 = self.db.pragma_query_value(None, name, |row| row.get(0))?;
            empty.pragma_update(None, name, number)?;
        }
        for migration in MIGRATIONS {
            empty.execute_batch(migration)?;
        }
        empty.execute_batch(position::TABLES)?;
        self.replace(&empty)
    }

    /// Readers see the database before or the one after.
    fn replace(&mut self, source: &Connection) -> Result<Tail, Failure> {
        let tail = position::read(source)?
            .ok_or_else(|| Failure::corrupt("the snapshot has no position in the log".into()))?;
        self.db.flush_prepared_statement_cache();
        let copy = Backup::new(source, &mut self.db)?;
        while copy.step(PAGES_AT_ONCE)? == rusqlite::backup::StepResult::More {}
        drop(copy);
        self.names = Names::read(&self.db)?;
        *self.shared.counts.lock() = read_counts(&self.db)?;
        *self.shared.names.write() = std::sync::Arc::new(self.names.clone());
        self.shared.items.fetch_add(1, Ordering::Release);
        Ok(tail)
    }
}

/// The transactions of an object.
fn steps(object: &Durable) -> Result<Steps, Failure> {
    let object = object.object();
    if object.header.kind != Kind::Record {
        return Steps::of(Vec::new());
    }
    let slot = object.header.slot;
    let unreadable = |error: &dyn std::error::Error| {
        Failure(StoreError::corrupt_in(format!("the record {slot} of the log"), error.to_string()))
    };
    let commands = body::unpack(&object.body).map_err(|error| unreadable(&error))?;
    let txns = commands.iter().map(|command| wire::decode(command));
    let txns = txns.collect::<Result<Vec<_>, _>>().map_err(|error| unreadable(&error))?;
    Steps::of(txns)
}
