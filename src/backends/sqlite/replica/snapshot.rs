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
use futures_util::future::join;
use rusqlite::Connection;

use super::{
    super::{damage::Damage, error::Failure, file, verify::verify},
    digest, position,
};
use crate::bucket_log::{Frozen, NextPart, ReplicaError, SnapshotParts, Tail, body::StateDigest};
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

    /// The digest of the rows. Without a copy, SQLite's own log grows until it is computed.
    fn digest(&self) -> Result<StateDigest, StoreError> {
        let Some(source) = &self.source else {
            let copy = Connection::open(&self.copy.0).map_err(Failure::from)?;
            return Ok(digest::of(&copy)?);
        };
        Ok(digest::of(source)?)
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

    async fn digest(&mut self) -> Result<Option<StateDigest>, ReplicaError> {
        let Some(database) = self.database.take() else { return Ok(None) };
        let read = tokio::task::spawn_blocking(move || {
            let digest = database.digest();
            (database, digest)
        });
        let (database, digest) = read.await.map_err(ReplicaError::new)?;
        self.database = Some(database);
        digest.map(Some).map_err(unread)
    }
}

/// Why a state could not be read. Only what was read proves damage: a request that the disk did not answer,
/// or a file that could not be opened, may pass.
pub(super) fn unread(error: StoreError) -> ReplicaError {
    if matches!(error, StoreError::Corrupt(_)) {
        ReplicaError::damaged(error)
    } else {
        ReplicaError::new(error)
    }
}

/// A database that was downloaded.
pub(super) struct Downloaded {
    pub(super) db: Connection,
    _copy: Copy,
}

/// The database in `parts`, in a copy next to the database `file`; none if a part is gone, or if the
/// parts are not accepted. The disk and the processor work on a thread of their own.
pub(super) async fn download(
    file: &Path,
    parts: &mut dyn SnapshotParts,
) -> Result<Option<Downloaded>, ReplicaError> {
    let copy = Copy::next_to(file);
    let mut to = crate::private::open(&copy.0).map_err(ReplicaError::new)?;
    let mut next = parts.next().await;
    loop {
        match next {
            NextPart::Part(part) => {
                let write = blocking(move || write_part(&mut to, &part).map(|()| to));
                let (written, after) = join(write, parts.next()).await;
                to = written?.map_err(ReplicaError::new)?;
                next = after;
            }
            NextPart::End => break,
            NextPart::Gone => return Ok(None),
        }
    }
    let opened = blocking(move || open(copy)).await?;
    let (downloaded, tail) = opened.map_err(ReplicaError::new)?;
    Ok(parts.accepts(&tail).then_some(downloaded))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ReplicaError> {
    tokio::task::spawn_blocking(work).await.map_err(ReplicaError::new)
}

fn write_part(to: &mut File, part: &[u8]) -> std::io::Result<()> {
    let plain = &mut DeflateDecoder::new(part).take(PART_BYTES + 1);
    if std::io::copy(plain, to)? > PART_BYTES {
        return Err(std::io::Error::other("a part of the snapshot is too large"));
    }
    Ok(())
}

/// The database in `copy`, after SQLite has checked it, and its tail.
fn open(copy: Copy) -> Result<(Downloaded, Tail), StoreError> {
    let unusable = |error| StoreError::corrupt_in("the snapshot cannot be used", error);
    let db = file::open_copy(&copy.0).map_err(unusable)?;
    let check = db.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0));
    let check = check.map_err(Failure::from)?;
    if check != "ok" {
        return Err(StoreError::corrupt_in("the copy of the database is damaged", check));
    }
    let tail = position::read(&db)?;
    let tail = tail.ok_or_else(|| StoreError::corrupt("the snapshot has no position in a log"))?;
    Ok((Downloaded { db, _copy: copy }, tail))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;
    use tidegate_core::error_chain::ErrorChain;

    use super::*;
    use crate::{
        bucket_log::{Replica as _, Restored},
        sqlite::SqliteReplica,
    };

    /// The parts of a snapshot, last first.
    struct Parts(Vec<Bytes>, bool);

    #[async_trait]
    impl SnapshotParts for Parts {
        async fn next(&mut self) -> NextPart {
            self.0.pop().map_or(NextPart::End, NextPart::Part)
        }

        fn accepts(&mut self, _: &Tail) -> bool {
            self.1
        }
    }

    /// The parts of the database of `replica`, last first.
    async fn parts(replica: &SqliteReplica) -> Result<Vec<Bytes>, ReplicaError> {
        let (mut frozen, mut parts) = (replica.freeze().await?, Vec::new());
        while let Some(part) = frozen.next().await? {
            parts.insert(0, part);
        }
        Ok(parts)
    }

    fn replica() -> (TempDir, SqliteReplica) {
        let dir = TempDir::new().unwrap();
        let replica = SqliteReplica::open(dir.path()).unwrap();
        (dir, replica)
    }

    fn execute(replica: &SqliteReplica, sql: &str) {
        Connection::open(replica.store().file()).unwrap().execute_batch(sql).unwrap();
    }

    fn shown(error: &ReplicaError) -> String {
        ErrorChain(error).to_string()
    }

    fn queues(replica: &SqliteReplica) -> i64 {
        let db = Connection::open(replica.store().file()).unwrap();
        db.query_row("SELECT count(*) FROM queue_names", [], |row| row.get(0)).unwrap()
    }

    const QUEUE: &str = "INSERT INTO queue_names (name) VALUES ('mail')";

    #[tokio::test]
    async fn a_damaged_database_makes_no_snapshot() {
        let (_dir, replica) = replica();
        parts(&replica).await.unwrap();
        let damage =
            "INSERT INTO items (kind, name, version, bytes) VALUES ('queue', 'mail', 1, x'00')";
        execute(&replica, damage);
        let error = shown(&parts(&replica).await.unwrap_err());
        assert!(error.contains("the queue mail"), "{error}");
    }

    #[tokio::test]
    async fn a_state_has_one_digest_before_and_after_its_copy() {
        let (_dir, replica) = replica();
        execute(&replica, QUEUE);
        let mut frozen = replica.freeze().await.unwrap();
        let before = frozen.digest().await.unwrap();
        while frozen.next().await.unwrap().is_some() {}
        assert!(before.is_some());
        assert_eq!(frozen.digest().await.unwrap(), before);
    }

    #[tokio::test]
    async fn a_digest_fails_by_damage_or_by_the_machine() {
        let (_dir, replica) = replica();
        execute(&replica, QUEUE);
        execute(&replica, "INSERT INTO heads (queue, version, head) VALUES (1, 1, x'00')");
        let damaged = replica.freeze().await.unwrap().digest().await.unwrap_err();
        assert!(matches!(damaged, ReplicaError::Damaged(_)), "{damaged:?}");
        execute(&replica, "INSERT OR REPLACE INTO log_tail VALUES (1, 0, 0, zeroblob(32), 0)");
        let damaged = replica.freeze().await.map(drop).unwrap_err();
        assert!(matches!(damaged, ReplicaError::Damaged(_)), "{damaged:?}");
        for code in [rusqlite::ffi::SQLITE_IOERR_READ, rusqlite::ffi::SQLITE_NOMEM] {
            let failed = rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
            let failed = unread(Failure::from(failed).into());
            assert!(matches!(failed, ReplicaError::Failed(_)), "{failed:?}");
        }
    }

    #[tokio::test]
    async fn a_state_of_another_tail_does_not_replace_the_database() {
        let ((_dir, source), (_other, target)) = (replica(), replica());
        execute(&source, QUEUE);
        let all = parts(&source).await.unwrap();
        let refused = target.restore(&mut Parts(all.clone(), false)).await.unwrap();
        assert_eq!((refused, queues(&target)), (Restored::Gone, 0));
        let restored = target.restore(&mut Parts(all, true)).await.unwrap();
        assert_eq!((restored, queues(&target)), (Restored::Done, 1));
    }

    #[tokio::test]
    async fn a_snapshot_of_a_later_release_is_refused() {
        let ((_dir, source), (_other, target)) = (replica(), replica());
        execute(&source, &format!("{QUEUE}; PRAGMA user_version = 99"));
        let all = parts(&source).await.unwrap();
        let error = shown(&target.restore(&mut Parts(all, true)).await.unwrap_err());
        assert!(error.contains("format 99"), "{error}");
        assert_eq!(queues(&target), 0);
    }

    #[tokio::test]
    async fn a_part_that_is_too_large_is_refused() {
        let (_dir, target) = replica();
        let mut part = DeflateEncoder::new(Vec::new(), Compression::fast());
        part.write_all(&vec![0; PART_BYTES as usize + 1]).unwrap();
        let part = part.finish().unwrap().into();
        let error = shown(&target.restore(&mut Parts(vec![part], true)).await.unwrap_err());
        assert!(error.contains("too large"), "{error}");
    }
}
