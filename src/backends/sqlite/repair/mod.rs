//! Repairs a database: rebuilds what follows from the records, and sets damaged records aside.
//!
//! Nothing is lost that can be read: a record is removed only after it was written to a file. What
//! a damaged configuration may have limited waits until it is set again ([`items`]).

mod items;

use std::{
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use items::Replaced;
use rusqlite::{Connection, ErrorCode, ToSql, params, types::ValueRef};
use serde_json::{Map, Value, json};

use super::{
    damage::{Damage, Place, Verified},
    error::Failure,
    file::{self, DirLock, OpenError, Upgrade, backup, database},
    log,
    names::Names,
    row::{self, RawText},
    step::Steps,
    txn::{Effects, Group, RowLocation},
    verify::{job_at, verify},
};
use tidegate_core::port::{StoreError, Write};

/// What was done about a damaged log.
const LOG_ENDED: &str = "the log ends before its damage now; the transactions from there on are \
                         gone, and the files as they were are in `before`";

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
/// [`OpenError`] if the directory is in use, if the database cannot be opened, read or written, or
/// if it is the local copy of a log in object storage. Then nothing was changed.
pub fn repair(dir: &Path, aside: &Path) -> Result<Repaired, OpenError> {
    let _lock = DirLock::take(dir)?;
    file::expect_database(dir)?;
    file::refuse_copy_of_log(dir)?;
    let path = database(dir);
    let fault = |Failure(error): Failure| OpenError::Damaged {
        file: path.clone(),
        problem: format!("cannot be repaired: {}", error.chain()),
    };
    let io = |error: std::io::Error| OpenError::Io {
        path: aside.to_owned(),
        message: error.to_string(),
    };
    let has_damaged_log = file::has_damaged_log(&path)?;
    if has_damaged_log {
        // As they were: the open ends the log at its damage.
        let before = aside.join("before");
        std::fs::create_dir_all(&before).map_err(io)?;
        for file in [&path, &log::path(&path)] {
            std::fs::copy(file, before.join(file.file_name().unwrap_or_default())).map_err(io)?;
        }
    }
    let db = file::open_writer_without_lost(&path, Upgrade::AtOpen)?;
    let Verified { mut damage, .. } = verify(&db).map_err(fault)?;
    if has_damaged_log {
        damage.push(Damage::of_log());
    }
    if damage.is_empty() {
        return Ok(Repaired { damage, done: Vec::new(), left: Vec::new(), removed: false });
    }
    std::fs::create_dir_all(aside).map_err(io)?;
    backup(dir, &aside.join("tidegate.db"))?;
    let mut repair = Repair {
        db: &db,
        export: aside.join("damaged.jsonl"),
        lines: Vec::new(),
        replaced: Vec::new(),
        done: has_damaged_log.then(|| LOG_ENDED.to_owned()).into_iter().collect(),
        left: Vec::new(),
    };
    repair.run(&damage).map_err(fault)?;
    let Repair { lines, done, mut left, .. } = repair;
    left.extend(verify(&db).map_err(fault)?.damage);
    Ok(Repaired { damage, done, left, removed: !lines.is_empty() })
}

struct Repair<'a> {
    db: &'a Connection,
    /// The file for removed records.
    export: PathBuf,
    /// The removed records.
    lines: Vec<Value>,
    /// The items that were removed.
    replaced: Vec<Replaced>,
    /// What was done.
    done: Vec<String>,
    /// What cannot be repaired.
    left: Vec<Damage>,
}

impl Repair<'_> {
    /// Repairs `damage` in one transaction.
    fn run(&mut self, damage: &[Damage]) -> Result<(), Failure> {
        self.db.execute_batch("BEGIN IMMEDIATE")?;
        let repaired = self.repair(damage).and_then(|()| self.write_export());
        self.db.execute_batch(if repaired.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
        repaired
    }

    fn repair(&mut self, damage: &[Damage]) -> Result<(), Failure> {
        let is_damaged = |place: &Place| damage.iter().any(|damage| damage.place == *place);
        if is_damaged(&Place::File) {
            self.remove_and_reindex(damage)?;
        } else {
            self.remove(damage)?;
        }
        self.restore(damage)?;
        self.hold_without_configuration(damage)?;
        self.keys()?;
        self.db.execute_batch(
            "DELETE FROM counts; INSERT INTO counts (queue, type, state, jobs) \
             SELECT queue, type, state, count(*) FROM jobs NOT INDEXED GROUP BY queue, type, state",
        )?;
        if is_damaged(&Place::Counts) {
            self.done.push("the jobs were counted again".to_owned());
        }
        Ok(())
    }

    /// Removes the damaged records, and builds every index again. An index cannot be built while
    /// two rows have one key. One of them is damaged, so they are removed first then.
    fn remove_and_reindex(&mut self, damage: &[Damage]) -> Result<(), Failure> {
        let mut problem = self.reindex()?;
        if problem.is_none() {
            self.remove(damage)?;
        } else {
            // Otherwise a row cannot be deleted that an index lacks.
            self.db.execute_batch("PRAGMA writable_schema = ON")?;
            let removed = self.remove(damage);
            self.db.execute_batch("PRAGMA writable_schema = OFF")?;
            removed?;
            problem = self.reindex()?;
        }
        match problem {
            None => self.done.push("every index was built again from its table".to_owned()),
            Some(problem) => {
                let what = format!("the indexes cannot be built again: {problem}");
                self.left.push(Damage { place: Place::File, what });
            }
        }
        Ok(())
    }

    /// Builds every index again from its table, or none: then it returns why.
    fn reindex(&self) -> Result<Option<String>, Failure> {
        self.db.execute_batch("SAVEPOINT indexes")?;
        let problem = match self.db.execute_batch("REINDEX") {
            Ok(()) => None,
            Err(error) => match error.sqlite_error_code() {
                Some(ErrorCode::ConstraintViolation | ErrorCode::DatabaseCorrupt) => {
                    self.db.execute_batch("ROLLBACK TO indexes")?;
                    Some(error.to_string())
                }
                _ => return Err(error.into()),
            },
        };
        self.db.execute_batch("RELEASE indexes")?;
        Ok(problem)
    }

    /// Removes the damaged records.
    fn remove(&mut self, damage: &[Damage]) -> Result<(), Failure> {
        for Damage { place, what } in damage {
            if let Some(then) = self.set_aside(place, what)? {
                self.done.push(format!("{what}: {then}"));
            }
        }
        Ok(())
    }

    /// Writes what follows from records, and what takes the place of damaged configuration.
    fn restore(&mut self, damage: &[Damage]) -> Result<(), Failure> {
        for item in std::mem::take(&mut self.replaced) {
            self.replace(&item)?;
        }
        let mut names = Names::read(self.db)?;
        for Damage { place, what } in damage {
            if let Place::Columns { n } = place {
                self.rebuild(*n, &mut names)?;
                self.done.push(format!("{what}: written again from its record"));
            }
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
        let steps = Steps::of(vec![vec![Write::SetJob { job, was, all: true }]])?;
        let mut group = Group::new(self.db, names);
        for step in steps.txns().flatten() {
            group.write(step, Some(at), steps.blobs())?;
        }
        // The counts are built again as a whole.
        group.effects = Effects::default();
        Ok(())
    }

    /// Removes a damaged record, after it is kept for the export. Returns what follows; none if the
    /// record stays.
    fn set_aside(&mut self, place: &Place, what: &str) -> Result<Option<&'static str>, Failure> {
        Ok(Some(match place {
            Place::File | Place::Counts | Place::Columns { .. } => return Ok(None),
            Place::Name { table, n } => {
                self.take(what, table, "n = ?1", &[n])?;
                "set aside; it is restored from the records of the jobs"
            }
            Place::Job { n, .. } => {
                self.take(what, "jobs", "n = ?1", &[n])?;
                self.take(what, "bodies", "job = ?1", &[n])?;
                "set aside; the job does not run: enqueue it again if it must"
            }
            Place::Body { n } => {
                self.take(what, "bodies", "job = ?1", &[n])?;
                "set aside"
            }
            Place::Key { kind, job_type, key } => {
                let filter = "kind = ?1 AND type = ?2 AND key = ?3";
                self.take(what, "keys", filter, &[kind, job_type, &RawText(key.clone())])?;
                match kind {
                    2 => "set aside; a repeat of its request creates another job",
                    _ => "set aside; the key of a live job was built again",
                }
            }
            Place::Ledger { queue } => {
                self.take(what, "heads", "queue = ?1", &[queue])?;
                self.take(what, "batches", "queue = ?1", &[queue])?;
                "set aside; it is built again from the running jobs, and rates start again"
            }
            Place::Batch { queue, id } => {
                self.take(what, "batches", "queue = ?1 AND id = ?2", &[queue, id])?;
                "set aside; no ledger names it"
            }
            Place::Item { n, kind, name } => {
                let item = Replaced::new(kind, name, self.next_version(*n, name)?);
                self.take(what, "items", "rowid = ?1", &[n])?;
                let then = item.consequence();
                self.replaced.push(item);
                then
            }
            Place::Record { n } => {
                self.take(what, "records", "n = ?1", &[n])?;
                "set aside"
            }
        }))
    }

    /// Keeps the rows of a table for the export, and deletes them. Returns how many they are.
    fn take(
        &mut self,
        what: &str,
        table: &str,
        filter: &str,
        key: &[&dyn ToSql],
    ) -> Result<usize, Failure> {
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
        Ok(self.db.execute(&format!("DELETE FROM {table} WHERE {filter}"), key)?)
    }

    /// Adds the correlation and unique keys that live jobs have lost, and sets those of no job
    /// aside.
    fn keys(&mut self) -> Result<(), Failure> {
        let of_no_job = "job NOT IN (SELECT id FROM jobs NOT INDEXED)";
        let gone = self.take("its job is not stored", "keys", of_no_job, &[])?;
        if gone > 0 {
            self.done.push(format!("{gone} keys whose jobs are not stored: set aside"));
        }
        let mut live = self.db.prepare("SELECT n, type FROM jobs NOT INDEXED WHERE state < 2")?;
        let mut rows = live.query([])?;
        while let Some(found) = rows.next()? {
            let (n, job_type): (i64, i64) = (found.get(0)?, found.get(1)?);
            let Some(job) = job_at(self.db, n)? else { continue };
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
            let text = bytes.get(4..).and_then(|checked| std::str::from_utf8(checked).ok());
            json!({"base64": BASE64_STANDARD.encode(bytes), "text": text})
        }
    }
}
