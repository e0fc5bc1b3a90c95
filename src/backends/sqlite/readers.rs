//! The connections that read.

use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rusqlite::Connection;

use super::{error::Failure, file};
use tidegate_core::port::StoreError;

/// A pool of read-only connections, which grows to the maximum of concurrent reads.
pub(super) struct Readers {
    file: PathBuf,
    idle: Mutex<Vec<Connection>>,
}

impl Readers {
    /// A pool for the database `file`, without connections.
    pub(super) fn new(file: PathBuf) -> Self {
        Self { file, idle: Mutex::default() }
    }

    /// The database.
    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// Runs `read` on a connection of the pool, with a consistent snapshot.
    ///
    /// It runs on the calling thread. A read by index takes tens of microseconds, as much as
    /// parsing the JSON of a request. Another thread would double that.
    pub(super) fn read<T>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let pooled = self.idle.lock().pop();
        let db = match pooled {
            Some(db) => db,
            None => file::open_reader(&self.file).map_err(Failure::from)?,
        };
        begin(&db)?;
        let answer = read(&db);
        // If the end fails, the answer has the cause, and the connection is dropped.
        let ended = db.prepare_cached("COMMIT").and_then(|mut end| end.execute([]));
        if ended.is_ok() {
            self.idle.lock().push(db);
        }
        Ok(answer?)
    }
}

fn begin(db: &Connection) -> Result<(), Failure> {
    db.prepare_cached("BEGIN")?.execute([])?;
    Ok(())
}
