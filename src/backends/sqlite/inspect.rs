//! Inspects a data directory that another process may be serving: writes nothing and blocks no process.

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

/// A database that is only looked at.
pub struct Inspection {
    db: Connection,
    file: PathBuf,
}

/// A connection that only reads, and leaves no file behind: a database without a log is at rest, and is read as it lies.
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

/// What process serves the directory, in its own words; none if no process does.
///
/// # Errors
///
/// The lock cannot be looked at.
pub fn holder(dir: &Path) -> std::io::Result<Option<String>> {
    let path = dir.join("lock");
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    // Shared, and let go at once: whoever starts a server at this very instant is told that it is held.
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
    /// [`OpenError`] if it is not there, cannot be read, is not ours, or of a later release.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let file = database(dir);
        let db = open(&file).map_err(|error| fault(&file, &error))?;
        format(&db, &file)?;
        Ok(Self { db, file })
    }

    /// What is wrong with the file's pages, in SQLite's words; reads all of it.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub fn damage(&self) -> Result<Option<String>, OpenError> {
        let said: String = self
            .db
            .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
            .map_err(|error| fault(&self.file, &error))?;
        Ok((said != "ok").then_some(said))
    }

    /// The records of a kind.
    ///
    /// # Errors
    ///
    /// They cannot be read.
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

    /// When the job that was written last was accepted.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub fn newest_job(&self) -> Result<Option<Timestamp>, OpenError> {
        let newest = self
            .db
            .query_row("SELECT created_at FROM jobs ORDER BY n DESC LIMIT 1", [], |row| row.get(0))
            .optional();
        Ok(newest.map_err(|error| fault(&self.file, &error))?.map(Timestamp::from_millis))
    }

    /// The keys of all objects that jobs name, as their data or their result, and that plugins are made of; reads every job.
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
            // Every key starts with this word; few lives have it otherwise, in a result that is kept inside.
            let mut lives = self.db.prepare("SELECT life FROM jobs WHERE state > 1 AND instr(life, CAST('bodies/' AS BLOB)) > 0")?;
            let mut rows = lives.query([])?;
            while let Some(row) = rows.next()? {
                let life: Lifecycle =
                    match row::decode(row.get_ref(0)?.as_blob()?, || "a job's life".to_owned()) {
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
            // One that cannot be read is the server's to complain of.
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
