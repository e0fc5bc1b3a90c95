//! Repairs a database: rebuilds what follows from the records, and sets damaged records aside.
//!
//! Nothing is lost that can be read: a record is removed only after it was written to a file. A
//! queue whose configuration was damaged is paused, so that no limit is passed.

use std::{
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use rusqlite::{Connection, OptionalExtension, ToSql, params, types::ValueRef};
use serde_json::{Map, Value, json};

use super::{
    error::Failure,
    file::{self, DirLock, OpenError, backup, database},
    names::Names,
    row::{self, RawText, decode, seal},
    txn::{Effects, Group, JobColumns, RowLocation, Step},
    verify::{Damage, Place, Verified, job_at, verify},
};
use tidegate_core::{
    port::{StoreError, job_store::ItemKind},
    queue::{Ledger, config::QueueItem},
};

/// What a repair has done.
#[derive(Debug)]
pub struct Repaired {
    /// What was damaged.
    pub damage: Vec<Damage>,
    /// What was done, one sentence each.
    pub done: Vec<String>,
    /// What is still damaged.
    pub left: Vec<Damage>,
    /// Whether records were removed, after they were written to `damaged.jsonl`.
    pub removed: bool,
}

/// Repairs the database of the data directory `dir`, which no process may use. The new directory
/// `aside` gets a copy of the database as it was, and the removed records as JSON lines. It is not
/// created if nothing is damaged.
///
/// # Errors
///
/// [`OpenError`] if the directory is in use, or the database cannot be opened, read or written. Then
/// nothing was changed.
pub fn repair(dir: &Path, aside: &Path) -> Result<Repaired, OpenError> {
    let _lock = DirLock::take(dir)?;
    file::expect_database(dir)?;
    let path = database(dir);
    let fault = |Failure(error): Failure| OpenError::Damaged {
        file: path.clone(),
        problem: format!("cannot be repaired: {}", error.chain()),
    };
    let io = |error: std::io::Error| OpenError::Io {
        path: aside.to_owned(),
        message: error.to_string(),
    };
    let db = file::open_writer(&path)?;
    let Verified { damage, .. } = verify(&db).map_err(fault)?;
    if damage.is_empty() {
        return Ok(Repaired { damage, done: Vec::new(), left: Vec::new(), removed: false });
    }
    std::fs::create_dir_all(aside).map_err(io)?;
    backup(dir, &aside.join("tidegate.db"))?;
    let mut repair = Repair { db: &db, export: aside.join("damaged.jsonl"), lines: Vec::new() };
    let done = repair.run(&damage).map_err(fault)?;
    let removed = !repair.lines.is_empty();
    let Verified { damage: left, .. } = verify(&db).map_err(fault)?;
    Ok(Repaired { damage, done, left, removed })
}

struct Repair<'a> {
    db: &'a Connection,
    /// The file for removed records.
    export: PathBuf,
    /// The removed records.
    lines: Vec<Value>,
}

impl Repair<'_> {
    /// Repairs `damage` in one transaction. Returns what was done.
    fn run(&mut self, damage: &[Damage]) -> Result<Vec<String>, Failure> {
        let mut done = Vec::new();
        if damage.iter().any(|damage| damage.place == Place::File) {
            self.db.execute_batch("REINDEX")?;
            done.push("every index was built again from its table".to_owned());
        }
        self.db.execute_batch("BEGIN IMMEDIATE")?;
        let repaired = self.rows(damage, &mut done).and_then(|()| self.write_export());
        self.db.execute_batch(if repaired.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
        repaired.map(|()| done)
    }

    fn rows(&mut self, damage: &[Damage], done: &mut Vec<String>) -> Result<(), Failure> {
        let mut names = Names::read(self.db)?;
        for Damage { place, what } in damage {
            match place {
                Place::File | Place::Counts => {}
                Place::Columns { n } => {
                    self.rebuild(*n, &mut names)?;
                    done.push(format!("{what}: written again from its record"));
                }
                place => {
                    self.set_aside(place, what)?;
                    done.push(consequence(place, what));
                }
            }
        }
        if damage.iter().any(|damage| matches!(damage.place, Place::Item { .. })) {
            self.pause_without_configuration(done)?;
        }
        self.keys(&names)?;
        self.db.execute_batch(
            "DELETE FROM counts; INSERT INTO counts (queue, type, state, jobs) \
             SELECT queue, type, state, count(*) FROM jobs GROUP BY queue, type, state",
        )?;
        if damage.iter().any(|damage| damage.place == Place::Counts) {
            done.push("the jobs were counted again".to_owned());
        }
        Ok(())
    }

    /// Writes the columns of row `n` again from its record.
    fn rebuild(&self, n: i64, names: &mut Names) -> Result<(), Failure> {
        let Some(job) = job_at(self.db, n)? else { return Ok(()) };
        let mut find = self
            .db
            .prepare_cached("SELECT queue, type, state, data_kind FROM jobs WHERE n = ?1")?;
        let at = find.query_row([n], |row| {
            Ok(RowLocation {
                n,
                queue: row.get(0)?,
                job_type: row.get(1)?,
                state: row.get(2)?,
                data_kind: row.get(3)?,
            })
        })?;
        let was = job.life.revision;
        let mut group = Group::new(self.db, names);
        group.write(&Step::SetAll { whole: JobColumns::of(job)?, was }, Some(at))?;
        // The counts are built again as a whole.
        group.effects = Effects::default();
        Ok(())
    }

    /// Removes a damaged record, after it is kept for the export.
    fn set_aside(&mut self, place: &Place, what: &str) -> Result<(), Failure> {
        match place {
            Place::Job { n, id } => {
                self.take(what, "jobs", "n = ?1", &[n])?;
                self.take(what, "bodies", "job = ?1", &[n])?;
                self.take(what, "keys", "job = ?1", &[id])?;
            }
            Place::Body { n } => self.take(what, "bodies", "job = ?1", &[n])?,
            Place::Key { kind, job_type, key } => {
                let key = RawText(key.clone());
                self.take(
                    what,
                    "keys",
                    "kind = ?1 AND type = ?2 AND key = ?3",
                    &[kind, job_type, &key],
                )?;
            }
            Place::Ledger { queue } => {
                self.take(what, "heads", "queue = ?1", &[queue])?;
                self.take(what, "batches", "queue = ?1", &[queue])?;
            }
            Place::Item { kind, name } => {
                let version = self.next_version(kind, name)?;
                self.take(what, "items", "kind = ?1 AND name = ?2", &[kind, name])?;
                if kind == ItemKind::Queue.as_str() {
                    self.pause(name, version)?;
                }
            }
            Place::Record { n } => self.take(what, "records", "n = ?1", &[n])?,
            Place::File | Place::Counts | Place::Columns { .. } => {}
        }
        Ok(())
    }

    /// A version after that of a damaged item and after the one that the ledger of the queue of this
    /// name was decided under.
    fn next_version(&self, kind: &str, name: &str) -> Result<i64, Failure> {
        let stored: i64 = self.db.query_row(
            "SELECT version FROM items WHERE kind = ?1 AND name = ?2",
            [kind, name],
            |row| row.get(0),
        )?;
        let head: Option<Vec<u8>> = self
            .db
            .query_row(
                "SELECT head FROM heads JOIN queue_names ON queue_names.n = heads.queue \
                 WHERE queue_names.name = ?1",
                [name],
                |row| row.get(0),
            )
            .optional()?;
        let ledger: Option<Ledger> = head.and_then(|head| decode(&head, name, String::new).ok());
        let decided_under = ledger.map_or(0, |ledger| ledger.config_version as i64);
        Ok(stored.clamp(0, i64::MAX - 1).max(decided_under) + 1)
    }

    /// Stores a paused queue without limits in place of a damaged configuration.
    fn pause(&self, name: &str, version: i64) -> Result<(), Failure> {
        let item = QueueItem { paused: true, version: version as u64, ..QueueItem::default() };
        let bytes = serde_json::to_vec(&item).map_err(StoreError::corrupt)?;
        let kind = ItemKind::Queue.as_str();
        let sealed = seal(&bytes, &row::item_owner(kind, name, version), 0);
        self.db.execute(
            "INSERT INTO items (kind, name, version, bytes) VALUES (?1, ?2, ?3, ?4)",
            params![kind, name, version, sealed],
        )?;
        Ok(())
    }

    /// Pauses the queues that have a ledger and no configuration: the name of a damaged one may have
    /// been theirs.
    fn pause_without_configuration(&self, done: &mut Vec<String>) -> Result<(), Failure> {
        let mut bare = self.db.prepare(
            "SELECT name, head FROM heads JOIN queue_names ON queue_names.n = heads.queue \
             WHERE name NOT IN (SELECT name FROM items WHERE kind = ?1)",
        )?;
        let mut rows = bare.query([ItemKind::Queue.as_str()])?;
        while let Some(row) = rows.next()? {
            let (name, head): (String, Vec<u8>) = (row.get(0)?, row.get(1)?);
            let ledger: Ledger = decode(&head, &name, || format!("the ledger of queue {name}"))?;
            self.pause(&name, ledger.config_version as i64 + 1)?;
            done.push(format!("queue {name} has no configuration, and is paused: set it again"));
        }
        Ok(())
    }

    /// Keeps the rows of a table for the export, and deletes them.
    fn take(
        &mut self,
        what: &str,
        table: &str,
        filter: &str,
        key: &[&dyn ToSql],
    ) -> Result<(), Failure> {
        let mut find = self.db.prepare(&format!("SELECT * FROM {table} WHERE {filter}"))?;
        let names: Vec<String> = find.column_names().map(str::to_owned).collect();
        let mut rows = find.query(key)?;
        while let Some(row) = rows.next()? {
            let mut columns = Map::new();
            for (index, name) in names.iter().enumerate() {
                columns.insert(name.clone(), shown(row.get_ref(index)?));
            }
            self.lines.push(json!({"table": table, "damage": what, "row": columns}));
        }
        self.db.execute(&format!("DELETE FROM {table} WHERE {filter}"), key)?;
        Ok(())
    }

    /// Adds the correlation and unique keys that live jobs have lost, and removes those of no job.
    fn keys(&self, names: &Names) -> Result<(), Failure> {
        let of_no_job = "DELETE FROM keys WHERE job NOT IN (SELECT id FROM jobs)";
        self.db.execute(of_no_job, [])?;
        let mut live = self.db.prepare("SELECT n, type FROM jobs WHERE state < 2")?;
        let mut rows = live.query([])?;
        while let Some(found) = rows.next()? {
            let (n, job_type): (i64, i64) = (found.get(0)?, found.get(1)?);
            let Some(job) = job_at(self.db, n)? else { continue };
            debug_assert_eq!(names.job_type(&job.spec.job_type), Some(job_type));
            let correlation = job.spec.correlation_key.iter().map(|key| (0i64, key));
            let unique = job.spec.unique.iter().map(|unique| (1i64, &unique.key));
            for (kind, key) in correlation.chain(unique) {
                let sum = row::key_sum(kind, job_type, key.as_bytes(), job.id.as_str().as_bytes());
                self.db
                    .prepare_cached(
                        "INSERT OR IGNORE INTO keys (kind, type, key, job, sum) \
                         VALUES (?1, ?2, ?3, ?4, ?5)",
                    )?
                    .execute(params![kind, job_type, key, job.id.as_str(), sum])?;
            }
        }
        Ok(())
    }

    /// Writes the removed records before they are deleted for good.
    fn write_export(&self) -> Result<(), Failure> {
        if self.lines.is_empty() {
            return Ok(());
        }
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&self.export)?;
            for line in &self.lines {
                writeln!(file, "{line}")?;
            }
            file.sync_all()
        };
        write().map_err(|error| {
            StoreError::unavailable_in("the removed records cannot be written", error).into()
        })
    }
}

/// A column as JSON: bytes as base64, and as text too if they are text behind a checksum.
fn shown(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => number.into(),
        ValueRef::Real(number) => number.into(),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into(),
        ValueRef::Blob(bytes) => {
            let text = bytes.get(4..).and_then(|sealed| std::str::from_utf8(sealed).ok());
            json!({"base64": BASE64_STANDARD.encode(bytes), "text": text})
        }
    }
}

/// What was done about a record that was set aside, and what follows.
fn consequence(place: &Place, what: &str) -> String {
    let then = match place {
        Place::Job { .. } => "set aside; the job does not run: enqueue it again if it must",
        Place::Key { kind: 2, .. } => "set aside; a repeat of its request creates another job",
        Place::Key { .. } => "set aside; the key of a live job was built again",
        Place::Ledger { .. } => {
            "set aside; it is built again from the running jobs, and rates start again"
        }
        Place::Item { kind, .. } if kind == ItemKind::Queue.as_str() => {
            "set aside; the queue is paused: set its configuration again, then resume it"
        }
        Place::Item { .. } => "set aside: set it again",
        Place::Body { .. } | Place::Record { .. } => "set aside",
        Place::File | Place::Counts | Place::Columns { .. } => "kept",
    };
    format!("{what}: {then}")
}
