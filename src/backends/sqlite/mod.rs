//! The job store in one SQLite file, for production on one machine.
//!
//! ```text
//!   commit ──▶ encode (caller) ──▶ channel ──▶ one writer: all requests, one COMMIT, then answers
//!   reads  ──▶ a connection of the pool, on the calling thread
//! ```
//!
//! A commit is answered after it is on the disk (`synchronous=FULL`), and one wait for the disk
//! serves every waiting caller. Read in this order: `migrations/` (the tables and the purpose of
//! each index), [`row`] (the columns of a job), [`step`], [`txn`], [`mod@write`], [`writer`],
//! [`readers`], [`due`], [`list`], [`job_store`], [`movable`].

#[cfg(all(feature = "bucket", any(test, feature = "testkit")))]
mod crash;
mod cursor;
mod damage;
mod due;
mod error;
mod file;
mod inspect;
mod job_store;
mod list;
mod log;
mod movable;
mod names;
mod readers;
mod record;
mod repair;
#[cfg(feature = "bucket")]
mod replica;
mod row;
mod step;
mod txn;
mod verify;
mod write;
mod writer;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::{Mutex, RwLock};
use rusqlite::Connection;
use tidegate_core::port::{StoreError, Txn, job_store::Committed};

#[cfg(all(feature = "bucket", any(test, feature = "testkit")))]
pub use crash::copy_after_crash;
pub use damage::{Damage, NamedObject, Place, Verified};
use error::Failure;
pub use file::{OpenError, backup, database, forget_database};
pub use inspect::{Inspection, holder};
use names::Names;
use readers::Readers;
pub use repair::{Repaired, repair};
#[cfg(feature = "bucket")]
pub use replica::{SqliteReplica, transactions};

/// The number of jobs by the numbers of queue, type and state.
type Counts = HashMap<(i64, i64, i64), u64>;

/// State that the writer shares with readers, updated after each commit and before its answers.
#[derive(Debug)]
struct Shared {
    names: RwLock<Arc<Names>>,
    counts: Mutex<Counts>,
    items: AtomicU64,
    /// Rises with each change that may decide which callers have access.
    tokens: AtomicU64,
}

impl Shared {
    fn names(&self) -> Names {
        Names::clone(&self.names.read())
    }

    fn counts(&self) -> Counts {
        self.counts.lock().clone()
    }

    fn publish(&self, names: &Names, effects: txn::Effects) {
        if effects.named {
            *self.names.write() = Arc::new(names.clone());
        }
        let mut counts = self.counts.lock();
        for (key, change) in effects.counts {
            let count = counts.entry(key).or_default();
            *count = count.saturating_add_signed(change);
        }
        drop(counts);
        self.items.fetch_add(effects.items, Ordering::Release);
        self.tokens.fetch_add(effects.tokens, Ordering::Release);
    }
}

/// Jobs in a SQLite file.
///
/// Dropping it writes all sent transactions, checkpoints the log, and unlocks the directory.
pub struct SqliteStore {
    // Dropped in this order: the last connection checkpoints the log, so it must be the writer's.
    readers: Arc<Readers>,
    writer: writer::Writer,
    shared: Arc<Shared>,
    cursor_key: Arc<cursor::CursorKey>,
    /// The log that commits go to, in a store that replicates one.
    #[cfg(feature = "bucket")]
    log: Option<replica::LogConnection>,
    _temporary: Option<TemporaryDir>,
    _lock: file::DirLock,
}

impl SqliteStore {
    /// The store in `DIR/tidegate.db`, which is created if it does not exist.
    ///
    /// # Errors
    ///
    /// [`OpenError`] if another process holds the directory, if the file cannot be used or is the
    /// local copy of a log in object storage, or if there was one and is none now
    /// ([`forget_database`] allows that). Opening checks only the header of the file: a call that
    /// reads a damaged page returns [`StoreError::Corrupt`].
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        Self::start(dir, None, None, Durability::Disk)
    }

    /// Like [`Self::open`], with a file of at most `pages` pages of 4 KiB. A write beyond them
    /// fails as on a full disk.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn open_bounded(dir: &Path, pages: u32) -> Result<Self, OpenError> {
        Self::start(dir, Some(pages), None, Durability::Disk)
    }

    /// An empty store for tests, in its own directory, which is removed when the store is dropped.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn open_temporary() -> Result<Self, OpenError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("tidegate-{}-{number}", std::process::id()));
        Self::start(&dir, None, Some(TemporaryDir(dir.clone())), Durability::Process)
    }

    fn start(
        dir: &Path,
        pages: Option<u32>,
        temporary: Option<TemporaryDir>,
        durability: Durability,
    ) -> Result<Self, OpenError> {
        let lock = file::DirLock::take(dir)?;
        file::expect_database(dir)?;
        let file = database(dir);
        let db = match durability {
            Durability::Log => file::open_writer_without_lost(&file, file::Upgrade::ByLog)?,
            Durability::Disk | Durability::Process => {
                file::refuse_copy_of_log(dir)?;
                let db = file::open_writer(&file)?;
                file::mark_database(dir)?;
                db
            }
        };
        let fault = |Failure(error): Failure| OpenError::Damaged {
            file: file.clone(),
            problem: error.chain().to_string(),
        };
        if let Some(pages) = pages {
            db.pragma_update(None, "max_page_count", pages).map_err(|error| fault(error.into()))?;
        }
        db.pragma_update(None, "synchronous", durability.synchronous())
            .map_err(|error| fault(error.into()))?;
        let names = Names::read(&db).map_err(fault)?;
        let counts = read_counts(&db).map_err(fault)?;
        let shared = Arc::new(Shared {
            names: RwLock::new(Arc::new(names.clone())),
            counts: Mutex::new(counts),
            items: AtomicU64::new(1),
            tokens: AtomicU64::new(0),
        });
        let writer = writer::Writer::start(db, names, Arc::clone(&shared))
            .map_err(|error| OpenError::Io { path: file.clone(), message: error.to_string() })?;
        let readers = Arc::new(Readers::new(file));
        let cursor_key = Arc::new(cursor::CursorKey::of(dir));
        Ok(Self {
            readers,
            writer,
            shared,
            cursor_key,
            #[cfg(feature = "bucket")]
            log: None,
            _temporary: temporary,
            _lock: lock,
        })
    }

    /// Commits `txns`, through the log if there is one.
    async fn write(&self, txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        #[cfg(feature = "bucket")]
        if let Some(log) = &self.log {
            return log.commit(txns).await;
        }
        self.writer.commit(txns).await
    }

    /// The database.
    pub fn file(&self) -> &Path {
        self.readers.file()
    }

    fn names(&self) -> Arc<Names> {
        Arc::clone(&self.shared.names.read())
    }
}

/// What a write survives once it is answered.
#[derive(Clone, Copy, Debug)]
enum Durability {
    /// A crash of the machine: each write waits for the disk.
    Disk,
    /// A crash of the process. After one of the machine, the file is as it was some writes before,
    /// and a log in object storage has the rest. So the file may also be lost.
    #[cfg_attr(not(feature = "bucket"), allow(dead_code, reason = "only a replica has a log"))]
    Log,
    /// Nothing: the data need not survive the process.
    Process,
}

impl Durability {
    fn synchronous(self) -> &'static str {
        match self {
            Self::Disk => "FULL",
            Self::Log => "NORMAL",
            Self::Process => "OFF",
        }
    }
}

/// A directory that is removed with its store.
struct TemporaryDir(PathBuf);

impl Drop for TemporaryDir {
    fn drop(&mut self) {
        // A failure leaves files in the system's temporary folder, which is harmless.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn read_counts(db: &Connection) -> Result<Counts, Failure> {
    let mut all = db.prepare("SELECT queue, type, state, jobs FROM counts")?;
    let mut rows = all.query([])?;
    let mut counts = Counts::new();
    while let Some(row) = rows.next()? {
        let jobs: i64 = row.get(3)?;
        counts.insert((row.get(0)?, row.get(1)?, row.get(2)?), jobs.max(0) as u64);
    }
    Ok(counts)
}
