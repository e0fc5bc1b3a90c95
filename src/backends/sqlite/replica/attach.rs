//! A database that begins to follow a new log, or leaves its log.

use std::path::Path;

use rusqlite::Connection;

use super::{
    super::{
        OpenError, database,
        file::{fault, refuse_copy_of_log},
    },
    SqliteReplica, position,
};
#[cfg(doc)]
use crate::sqlite::SqliteStore;

impl SqliteReplica {
    /// The replica of a new log, which begins with the data in `dir`. Only a log accepts the directory
    /// after that.
    ///
    /// # Errors
    ///
    /// As [`SqliteStore::open`].
    pub fn attach(dir: &Path) -> Result<Self, OpenError> {
        refuse_copy_of_log(dir)?;
        change(&database(dir), position::TABLES)?;
        Self::open_database(dir)
    }

    /// Closes the database as one without a log, which [`SqliteStore::open`] accepts. The caller syncs
    /// the file.
    ///
    /// # Errors
    ///
    /// [`OpenError`] if the database cannot be changed.
    pub fn detach(self) -> Result<(), OpenError> {
        let file = self.store.file().to_owned();
        // Its writer ends before the tables go that it writes to.
        drop(self);
        change(&file, position::DROP_TABLES)
    }
}

/// Runs `sql` on a database that no other connection uses. The last one moves its frames into the file.
fn change(file: &Path, sql: &str) -> Result<(), OpenError> {
    let changed = Connection::open(file).and_then(|db| {
        db.execute_batch("PRAGMA synchronous = FULL")?;
        db.execute_batch(sql)?;
        db.close().map_err(|(_, error)| error)
    });
    changed.map_err(|error| fault(file, &error))
}
