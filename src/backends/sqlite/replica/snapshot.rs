//! The database in parts: a consistent copy, checked, compressed part by part.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use async_trait::async_trait;
use bytes::Bytes;
use flate2::{Compression, read::DeflateDecoder, write::DeflateEncoder};
use rusqlite::Connection;

use super::{
    super::{damage::Damage, error::Failure, file, verify::verify},
    position,
};
use crate::bucket_log::{Frozen, NextPart, ReplicaError, SnapshotParts, Tail};
use tidegate_core::port::StoreError;

/// Bytes of the database in a part, before compression.
const PART_BYTES: u64 = 16 << 20;
/// The start of the names of copies in a data directory.
const COPY: &str = "log-copy-";

/// A copy of a database next to it, which is removed with this value.
pub(super) struct Copy(PathBuf);

impl Copy {
    /// A new name next to the database `file`.
    fn next_to(file: &Path) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self(file.with_file_name(format!("{COPY}{number}")))
    }

    /// A connection to it, after SQLite has checked it.
    pub(super) fn open(&self) -> Result<Connection, Failure> {
        let db = Connection::open(&self.0)?;
        let check: String = db.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        if check != "ok" {
            return Err(Failure::corrupt(format!("the copy of the database is damaged: {check}")));
        }
        Ok(db)
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // What is left is removed at the next start.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Removes the copies that an earlier process has left in `dir`.
pub(super) fn remove_files(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(COPY) {
            // It only takes room.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// The database `file` as it is now.
pub(super) fn freeze(file: &Path) -> Result<FrozenDatabase, Failure> {
    let db = file::open_reader(file)?;
    // The first read fixes what this connection sees.
    db.execute_batch("BEGIN")?;
    let tail = position::read(&db)?
        .ok_or_else(|| Failure::corrupt("the database has no position in a log".into()))?;
    let database = Database { source: Some(db), copy: Copy::next_to(file), reader: None };
    Ok(FrozenDatabase { tail, database: Some(database) })
}

/// A database as it was.
pub(super) struct FrozenDatabase {
    tail: Tail,
    /// None while a part of it is read.
    database: Option<Database>,
}

struct Database {
    /// The connection that sees it, until it is copied.
    source: Option<Connection>,
    copy: Copy,
    reader: Option<File>,
}

impl Database {
    /// The next part of the state at `tail`.
    fn part(&mut self, tail: &Tail) -> Result<Option<Bytes>, StoreError> {
        let io = |error: std::io::Error| {
            StoreError::unavailable_in("the database cannot be copied", error)
        };
        if let Some(source) = self.source.take() {
            crate::private::create_file(&self.copy.0).map_err(io)?;
            file::copy_pages(&source, &self.copy.0).map_err(Failure::from)?;
            drop(source);
            let copy = Connection::open(&self.copy.0).map_err(Failure::from)?;
            if position::read(&copy)? != Some(*tail) {
                return Err(StoreError::corrupt("the copy of the database is not complete"));
            }
            // It will be the only durable copy.
            if let Some(Damage { what, .. }) = verify(&copy)?.damage.into_iter().next() {
                return Err(StoreError::corrupt_in("the database is damaged", what));
            }
        }
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => none.insert(File::open(&self.copy.0).map_err(io)?),
        };
        let mut plain = Vec::new();
        reader.take(PART_BYTES).read_to_end(&mut plain).map_err(io)?;
        if plain.is_empty() {
            return Ok(None);
        }
        let mut part = DeflateEncoder::new(Vec::new(), Compression::fast());
        part.write_all(&plain).map_err(io)?;
        Ok(Some(part.finish().map_err(io)?.into()))
    }
}

#[async_trait]
impl Frozen for FrozenDatabase {
    fn tail(&self) -> Tail {
        self.tail
    }

    async fn next(&mut self) -> Result<Option<Bytes>, ReplicaError> {
        let Some(mut database) = self.database.take() else { return Ok(None) };
        // Copying and compressing takes seconds, in which the leader goes on.
        let tail = self.tail;
        let read = tokio::task::spawn_blocking(move || {
            let part = database.part(&tail);
            (database, part)
        });
        let (database, part) = read.await.map_err(ReplicaError::new)?;
        self.database = Some(database);
        part.map_err(ReplicaError::new)
    }
}

/// A copy of the database in `parts`, next to the database `file`; none if a part is gone.
pub(super) async fn download(
    file: &Path,
    parts: &mut dyn SnapshotParts,
) -> Result<Option<Copy>, ReplicaError> {
    let copy = Copy::next_to(file);
    let mut to = crate::private::open(&copy.0).map_err(ReplicaError::new)?;
    loop {
        match parts.next().await {
            NextPart::Part(bytes) => {
                let mut plain = Vec::new();
                DeflateDecoder::new(&bytes[..])
                    .take(PART_BYTES)
                    .read_to_end(&mut plain)
                    .and_then(|_| to.write_all(&plain))
                    .map_err(ReplicaError::new)?;
            }
            NextPart::End => return Ok(Some(copy)),
            NextPart::Gone => return Ok(None),
        }
    }
}
