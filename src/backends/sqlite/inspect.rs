//! Inspects a data directory without writing to it or blocking the process that holds it.

use std::{
    collections::HashSet,
    fs::{File, TryLockError},
    path::{Path, PathBuf},
};

use rusqlite::{Connection, OpenFlags, OptionalExtension};

use super::{
    file::{OpenError, database, fault, format, open_reader},
    row,
};
use tidegate_core::{
    job::Lifecycle,
    port::job_store::{Item, ItemKind},
    queue::plugin::PluginItem,
    time::Timestamp,
};

/// A database opened for inspection.
pub struct Inspection {
    db: Connection,
    file: PathBuf,
}

/// A read-only connection that leaves no file behind. Without a log, no process uses the database,
/// so it is opened as immutable.
fn open(file: &Path) -> Result<Connection, rusqlite::Error> {
    let at_rest = !file.with_extension("db-wal").exists();
    let url = file
        .canonicalize()
        .ok()
        .filter(|_| at_rest)
        .and_then(|file| url::Url::from_file_path(file).ok());
    match url {
        Some(mut url) => {
            url.set_query(Some("immutable=1"));
            Connection::open_with_flags(
                url.as_str(),
                OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI,
            )
        }
        None => open_reader(file),
    }
}

/// The process that holds the directory, as it has written it into the lock file; none without one.
///
/// # Errors
///
/// The lock file cannot be read.
pub fn holder(dir: &Path) -> std::io::Result<Option<String>> {
    let path = dir.join("lock");
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    // A shared lock, released at once. A server that starts at this instant finds the directory
    // held.
    match file.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => {
            Ok(Some(std::fs::read_to_string(&path)?.trim().to_owned()))
        }
        Err(TryLockError::Error(error)) => Err(error),
    }
}

impl Inspection {
    /// Opens the database of the data directory `dir`.
    ///
    /// # Errors
    ///
    /// [`OpenError`] if the database does not exist, cannot be read, or was written by another
    /// program or by a later release.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let file = database(dir);
        let db = open(&file).map_err(|error| fault(&file, &error))?;
        format(&db, &file)?;
        Ok(Self { db, file })
    }

    /// SQLite's description of damaged pages, if there are any. Reads the whole file.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn damage(&self) -> Result<Option<String>, OpenError> {
        let report: String = self
            .db
            .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
            .map_err(|error| fault(&self.file, &error))?;
        Ok((report != "ok").then_some(report))
    }

    /// The items of a kind.
    ///
    /// # Errors
    ///
    /// The items cannot be read.
    pub fn items(&self, kind: ItemKind) -> Result<Vec<Item>, OpenError> {
        let read = || {
            let mut all = self
                .db
                .prepare("SELECT name, version, bytes FROM items WHERE kind = ?1 ORDER BY name")?;
            let all = all.query_map([kind.as_str()], |row| {
                Ok(Item {
                    name: row.get(0)?,
                    version: row.get::<_, i64>(1)? as u64,
                    bytes: row.get(2)?,
                })
            })?;
            all.collect::<Result<_, _>>()
        };
        read().map_err(|error| fault(&self.file, &error))
    }

    /// When the job in the newest row was accepted.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn newest_job(&self) -> Result<Option<Timestamp>, OpenError> {
        let newest = self
            .db
            .query_row("SELECT created_at FROM jobs ORDER BY n DESC LIMIT 1", [], |row| row.get(0))
            .optional();
        Ok(newest.map_err(|error| fault(&self.file, &error))?.map(Timestamp::from_millis))
    }

    /// The keys of all objects with the data or result of a job or the code of a plugin. Reads
    /// every job.
    ///
    /// # Errors
    ///
    /// A job cannot be read.
    pub fn object_keys(&self) -> Result<HashSet<String>, OpenError> {
        let mut keys = HashSet::new();
        let mut read = || {
            let mut data =
                self.db.prepare("SELECT CAST(data AS TEXT) FROM jobs WHERE data_kind > 2")?;
            for key in data.query_map([], |row| row.get(0))? {
                keys.insert(key?);
            }
            // Every object key starts with `bodies/`, so this filters out most lifecycles.
            let mut lives = self.db.prepare(
                "SELECT id, life FROM jobs \
                 WHERE state > 1 AND instr(life, CAST('bodies/' AS BLOB)) > 0",
            )?;
            let mut rows = lives.query([])?;
            while let Some(row) = rows.next()? {
                let (id, life) = (row.get_ref(0)?.as_str()?, row.get_ref(1)?.as_blob()?);
                let life = row::decode(life, id, || format!("the lifecycle of job {id}"));
                let life: Lifecycle = match life {
                    Ok(life) => life,
                    Err(error) => return Ok(Err(error.to_string())),
                };
                keys.extend(life.result.and_then(|result| Some(result.object?.0)));
            }
            Ok(Ok(()))
        };
        let read: Result<Result<(), String>, rusqlite::Error> = read();
        read.map_err(|error| fault(&self.file, &error))?.map_err(|problem| OpenError::Damaged {
            file: self.file.clone(),
            problem: format!("has a job that cannot be read ({problem})"),
        })?;
        for item in self.items(ItemKind::Plugin)? {
            // The server reports an unreadable item.
            let plugin: PluginItem = serde_json::from_slice(&item.bytes).unwrap_or_default();
            keys.extend(
                plugin
                    .versions
                    .iter()
                    .flat_map(|version| version.object_keys().collect::<Vec<_>>()),
            );
        }
        Ok(keys)
    }
}
