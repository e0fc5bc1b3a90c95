//! Inspects a data directory without writing to it or blocking the process that holds it.

use std::{
    collections::{HashMap, HashSet},
    fs::{File, TryLockError},
    io::Read as _,
    path::{Path, PathBuf},
};

use rusqlite::{Connection, OptionalExtension};

use super::{
    damage::{Damage, Verified},
    error::Failure,
    file::{
        ANOTHER_PROCESS, OpenError, database, fault, follows_log, format, has_damaged_log,
        is_copy_of_log, open_at_rest,
    },
    row,
    verify::{objects, verify},
};
use crate::private;
use tidegate_core::{
    port::job_store::{Item, ItemKind},
    queue::plugin::PluginItem,
    time::Timestamp,
};

/// A database opened for inspection.
pub struct Inspection {
    db: Connection,
    file: PathBuf,
    /// Whether the log lacks transactions that were on the disk.
    log_is_damaged: bool,
}

/// The process that holds the directory, as it has written it into the file `lock`.
///
/// # Errors
///
/// The directory or the file cannot be read.
pub fn holder(dir: &Path) -> std::io::Result<Option<String>> {
    // A shared lock, released at once. A server that starts at this instant finds the directory
    // held.
    match File::open(dir)?.try_lock_shared() {
        Ok(()) => return Ok(None),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let mut by = String::new();
    match private::read(&dir.join("lock")) {
        Ok(mut file) => drop(file.read_to_string(&mut by)?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(Some(if by.is_empty() { ANOTHER_PROCESS.to_owned() } else { by.trim().to_owned() }))
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
        // A server that runs has taken what it reads from the log, and writes to it.
        let is_held = holder(dir).is_ok_and(|holder| holder.is_some());
        // That of a replica may have gaps, and what it lacks is in object storage.
        let log_is_damaged = !is_held && has_damaged_log(&file)? && !is_copy_of_log(dir)?;
        let db = open_at_rest(&file).map_err(|error| fault(&file, &error))?;
        format(&db, &file)?;
        Ok(Self { db, file, log_is_damaged })
    }

    /// Whether the database follows a replicated log, whose bucket has the data and the large
    /// bodies.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn follows_log(&self) -> Result<bool, OpenError> {
        follows_log(&self.db).map_err(|error| fault(&self.file, &error))
    }

    /// Checks every row, and SQLite's own structures. Reads the whole file.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn verify(&self) -> Result<Verified, OpenError> {
        let mut verified = verify(&self.db).map_err(|failure| self.damaged(&failure))?;
        if self.log_is_damaged {
            verified.damage.push(Damage::of_log());
        }
        Ok(verified)
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
            let all = all.query_map([kind.as_str()], |row| row::item(row, kind))?;
            all.collect::<Result<_, _>>()
        };
        read().map_err(|error| fault(&self.file, &error))
    }

    /// How many jobs of each queue are scheduled.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn waiting(&self) -> Result<HashMap<String, u64>, OpenError> {
        let read = || {
            let mut counts = self.db.prepare(
                "SELECT queue_names.name, sum(counts.jobs) FROM counts \
                 JOIN queue_names ON queue_names.n = counts.queue \
                 WHERE counts.state = 0 GROUP BY counts.queue",
            )?;
            let counts =
                counts.query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)? as u64)))?;
            counts.collect::<Result<_, _>>()
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
    /// every job; those that cannot be read are left out.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn object_keys(&self) -> Result<HashSet<String>, OpenError> {
        let objects = objects(&self.db).map_err(|failure| self.damaged(&failure))?;
        let keys = objects.into_iter().map(|(_, (key, _))| key);
        Ok(keys.chain(self.plugin_objects()?).collect())
    }

    fn damaged(&self, Failure(error): &Failure) -> OpenError {
        let problem = format!("is damaged ({})", error.chain());
        OpenError::Damaged { file: self.file.clone(), problem }
    }

    /// The keys of the objects with the code of plugins.
    ///
    /// # Errors
    ///
    /// The items cannot be read.
    pub fn plugin_objects(&self) -> Result<Vec<String>, OpenError> {
        // The server reports an unreadable item.
        let plugin = |item: &Item| item.read::<PluginItem>().unwrap_or_default();
        let items = self.items(ItemKind::Plugin)?;
        let plugins: Vec<PluginItem> = items.iter().map(plugin).collect();
        let versions = plugins.iter().flat_map(|plugin| &plugin.versions);
        Ok(versions.flat_map(|version| version.object_keys().collect::<Vec<_>>()).collect())
    }
}
