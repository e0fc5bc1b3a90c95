//! The job store in one SQLite file: what production runs on, on one machine.
//!
//! ```text
//!   commit ──▶ encode (caller) ──▶ channel ──▶ one writer: all that waits, one COMMIT, then answers
//!   reads  ──▶ a connection of the pool, on the calling thread
//! ```
//!
//! The one thing to know: an answer is given after the disk has the commit (`synchronous=FULL`), and
//! one wait for the disk serves everybody who waited. Read in this order: `migrations/` (the tables
//! and what each index is for), [`row`] (what is in a blob), [`txn`], [`mod@write`], [`writer`], [`due`], [`list`].

mod due;
mod error;
mod file;
mod inspect;
mod list;
mod names;
mod record;
mod row;
mod txn;
mod write;
mod writer;

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use parking_lot::{Mutex, RwLock};
use rusqlite::{Connection, OptionalExtension, params};

use error::Failure;
pub use file::{OpenError, backup, database};
pub use inspect::{Inspection, holder};
use names::Names;
use row::select_jobs;
use tidegate_core::{
    job::{Job, JobId, Payload, QueueName, Spec, TypeName},
    port::job_store::{
        Atomicity, Committed, Depth, DuePage, DueQuery, Item, ItemKind, JobStore, Key, ListPage,
        ListQuery, Purged, Record, RecordKind, RecordQuery, StoreCapabilities, StoreError, Txn,
        Write, flatten,
    },
    queue::{GrantBatch, Ledger, ledger::BatchId},
    time::Timestamp,
};

/// How many jobs there are by queue, type and state, as their numbers.
type Counts = HashMap<(i64, i64, i64), u64>;

/// What the writer tells the readers, after each commit and before its answers.
#[derive(Debug)]
struct Shared {
    names: RwLock<Arc<Names>>,
    counts: Mutex<Counts>,
    items: AtomicU64,
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
        for (place, more) in effects.counts {
            let count = counts.entry(place).or_default();
            *count = count.saturating_add_signed(more);
        }
        drop(counts);
        self.items.fetch_add(effects.items, Ordering::Release);
    }
}

/// Jobs in a SQLite file.
///
/// Dropping it writes what was sent, folds the log into the file, and frees the directory.
pub struct SqliteStore {
    // Dropped in this order: the last connection to go folds the log in, and it must be the one that can write.
    readers: Arc<Readers>,
    writer: writer::Writer,
    shared: Arc<Shared>,
    _temporary: Option<TemporaryDir>,
    _lock: file::DirLock,
}

impl SqliteStore {
    /// The store in `DIR/tidegate.db`, made if it is not there.
    ///
    /// # Errors
    ///
    /// [`OpenError`] if another process serves the directory or the file cannot be used. Only the head
    /// of the file is looked at: a damaged page is reported by the call that reads it, as [`StoreError::Corrupt`].
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        Self::start(dir, None, None)
    }

    /// The same, with a file that never has more than `pages` pages of 4 KiB: beyond it, writes are answered as on a full disk.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn open_bounded(dir: &Path, pages: u32) -> Result<Self, OpenError> {
        Self::start(dir, Some(pages), None)
    }

    /// An empty store in a directory of its own that goes when the store is dropped: for tests.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn open_temporary() -> Result<Self, OpenError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("tidegate-{}-{number}", std::process::id()));
        Self::start(&dir, None, Some(TemporaryDir(dir.clone())))
    }

    fn start(
        dir: &Path,
        pages: Option<u32>,
        temporary: Option<TemporaryDir>,
    ) -> Result<Self, OpenError> {
        let lock = file::DirLock::take(dir)?;
        let file = database(dir);
        let db = file::open_writer(&file)?;
        let fault = |Failure(error): Failure| OpenError::Damaged {
            file: file.clone(),
            problem: error.to_string(),
        };
        if let Some(pages) = pages {
            db.pragma_update(None, "max_page_count", pages).map_err(|error| fault(error.into()))?;
        }
        if temporary.is_some() {
            // Nothing outlives it, so nothing waits for the disk.
            db.pragma_update(None, "synchronous", "OFF").map_err(|error| fault(error.into()))?;
        }
        let names = Names::read(&db).map_err(fault)?;
        let counts = read_counts(&db).map_err(fault)?;
        let shared = Arc::new(Shared {
            names: RwLock::new(Arc::new(names.clone())),
            counts: Mutex::new(counts),
            items: AtomicU64::new(1),
        });
        let writer = writer::Writer::start(db, names, Arc::clone(&shared))
            .map_err(|error| OpenError::Io { path: file.clone(), message: error.to_string() })?;
        let readers = Arc::new(Readers { file, idle: Mutex::default() });
        Ok(Self { readers, writer, shared, _temporary: temporary, _lock: lock })
    }

    fn names(&self) -> Arc<Names> {
        Arc::clone(&self.shared.names.read())
    }
}

/// Connections that only read, as many as were ever needed at once.
struct Readers {
    file: PathBuf,
    idle: Mutex<Vec<Connection>>,
}

impl Readers {
    /// What `read` answers, on a connection of the pool and as of one instant.
    ///
    /// It runs on the calling thread: a read by index takes tens of microseconds, no more than parsing
    /// the JSON of a request, and handing it to another thread would cost as much again.
    fn read<T>(
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
        // Where the end fails the answer tells why, and the connection is not used again.
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

/// A directory that goes with its store.
struct TemporaryDir(PathBuf);

impl Drop for TemporaryDir {
    fn drop(&mut self) {
        // What is left of it is in the system's own temporary place.
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

fn jobs(mut rows: rusqlite::Rows<'_>) -> Result<Vec<Job>, Failure> {
    let mut jobs = Vec::new();
    while let Some(row) = rows.next()? {
        jobs.extend(row::readable(row)?);
    }
    Ok(jobs)
}

#[async_trait]
impl JobStore for SqliteStore {
    async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        let (txns, steps): (Vec<Txn>, Vec<Vec<usize>>) = txns.into_iter().map(flatten).unzip();
        let answers = self.writer.commit(txns).await?;
        Ok(answers.into_iter().zip(steps).map(|(answer, steps)| answer.regrouped(&steps)).collect())
    }

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities { atomicity: Atomicity::Atomic, expires_natively: false }
    }

    fn assign_id(&self, id: JobId, _: &Spec, _: Timestamp) -> JobId {
        id
    }

    async fn get(&self, ids: &[JobId]) -> Result<Vec<Option<Job>>, StoreError> {
        self.readers.read(|db| {
            let mut find = db.prepare_cached(select_jobs!("WHERE id = ?1"))?;
            let mut found = Vec::with_capacity(ids.len());
            for id in ids {
                let mut rows = find.query([id.as_str()])?;
                found.push(rows.next()?.map(row::job).transpose()?);
            }
            Ok(found)
        })
    }

    async fn bodies(&self, ids: &[JobId]) -> Result<Vec<Option<Payload>>, StoreError> {
        self.readers.read(|db| {
            let mut find = db.prepare_cached("SELECT encoding, bytes FROM jobs JOIN bodies ON bodies.job = jobs.n WHERE jobs.id = ?1")?;
            let mut found = Vec::with_capacity(ids.len());
            for id in ids {
                let mut rows = find.query([id.as_str()])?;
                found.push(match rows.next()? {
                    Some(row) => {
                        let bytes = bytes::Bytes::copy_from_slice(row::blob(row, 1)?);
                        Some(Payload { encoding: row::encoding_of(row.get(0)?), bytes })
                    }
                    None => None,
                });
            }
            Ok(found)
        })
    }

    async fn due(&self, queries: &[DueQuery]) -> Result<Vec<DuePage>, StoreError> {
        let names = self.names();
        self.readers.read(|db| queries.iter().map(|query| due::page(db, &names, query)).collect())
    }

    async fn count_due(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        until: Timestamp,
        most: u32,
    ) -> Result<BTreeMap<TypeName, u64>, StoreError> {
        self.readers.read(|db| due::count(db, &self.names(), queue, types, until, most))
    }

    async fn partitions(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        let names = self.names();
        self.readers.read(|db| due::partitions(db, &names, queue, types, after, limit))
    }

    async fn overdue(
        &self,
        until: Timestamp,
        limit: u32,
    ) -> Result<(Vec<Job>, Option<Timestamp>), StoreError> {
        self.readers.read(|db| {
            let mut late = db.prepare_cached(select_jobs!("INDEXED BY jobs_wake WHERE wake_at <= ?1 ORDER BY wake_at LIMIT ?2"))?;
            let late = jobs(late.query(params![until.millis(), limit])?)?;
            let next: Option<i64> = db
                .prepare_cached("SELECT wake_at FROM jobs INDEXED BY jobs_wake WHERE wake_at > ?1 ORDER BY wake_at LIMIT 1")?
                .query_row([until.millis()], |row| row.get(0))
                .optional()?;
            Ok((late, next.map(Timestamp::from_millis)))
        })
    }

    async fn running(
        &self,
        queue: &QueueName,
        after: Option<&JobId>,
        limit: u32,
    ) -> Result<Vec<Job>, StoreError> {
        let Some(queue) = self.names().queue(queue) else {
            return Ok(Vec::new());
        };
        self.readers.read(|db| {
            // No id is empty, so all of them come after the empty text.
            let after = after.map_or("", JobId::as_str);
            let mut find =
                db.prepare_cached(select_jobs!("INDEXED BY jobs_running WHERE state = 1 AND queue = ?1 AND id > ?2 ORDER BY id LIMIT ?3"))?;
            jobs(find.query(params![queue, after, limit])?)
        })
    }

    async fn ledger(
        &self,
        queue: &QueueName,
    ) -> Result<Option<(Ledger, Vec<GrantBatch>)>, StoreError> {
        let Some(number) = self.names().queue(queue) else {
            return Ok(None);
        };
        self.readers.read(|db| {
            let mut find = db.prepare_cached("SELECT head FROM heads WHERE queue = ?1")?;
            let mut rows = find.query([number])?;
            let Some(row) = rows.next()? else {
                return Ok(None);
            };
            let head: Ledger =
                row::decode(row::blob(row, 0)?, || format!("the head of queue {queue}"))?;
            let mut find =
                db.prepare_cached("SELECT batch FROM batches WHERE queue = ?1 AND id = ?2")?;
            let mut batches = Vec::with_capacity(head.batches.len());
            for id in head.referenced_batches() {
                let mut rows = find.query(params![number, id.0 as i64])?;
                if let Some(row) = rows.next()? {
                    batches.push(row::decode(row::blob(row, 0)?, || {
                        format!("batch {} of queue {queue}", id.0)
                    })?);
                }
            }
            Ok(Some((head, batches)))
        })
    }

    async fn batches(&self, queue: &QueueName) -> Result<Vec<(BatchId, u64)>, StoreError> {
        let Some(queue) = self.names().queue(queue) else {
            return Ok(Vec::new());
        };
        self.readers.read(|db| {
            let mut all =
                db.prepare_cached("SELECT id, for_head FROM batches WHERE queue = ?1 ORDER BY id")?;
            let all = all.query_map([queue], |row| {
                Ok((BatchId(row.get::<_, i64>(0)? as u64), row.get::<_, i64>(1)? as u64))
            })?;
            Ok(all.collect::<Result<_, _>>()?)
        })
    }

    async fn keys(&self, keys: &[Key]) -> Result<Vec<Option<JobId>>, StoreError> {
        let names = self.names();
        let find = |db: &Connection, key| {
            txn::key_columns(key, &names).map_or(Ok(None), |columns| txn::find_key(db, columns))
        };
        self.readers.read(|db| keys.iter().map(|key| find(db, key)).collect())
    }

    async fn list(&self, query: &ListQuery) -> Result<ListPage, StoreError> {
        // The one read that may take long, so the one that has a thread to itself.
        let (readers, shared, names, query) =
            (Arc::clone(&self.readers), Arc::clone(&self.shared), self.names(), query.clone());
        let page = tokio::task::spawn_blocking(move || {
            readers.read(|db| list::page(db, &names, &shared, &query))
        });
        page.await
            .map_err(|error| StoreError::unavailable_in("the list was not finished", error))?
    }

    async fn depth(&self) -> Result<Vec<Depth>, StoreError> {
        let names = self.names();
        let depth = |((queue, job_type, state), jobs): ((i64, i64, i64), u64)| -> Option<Depth> {
            let (queue, job_type) =
                (names.queue_name(queue)?.clone(), names.type_name(job_type)?.clone());
            Some(Depth { queue, job_type, state: row::state_of(state)?, jobs })
        };
        Ok(self.shared.counts().into_iter().filter_map(depth).collect())
    }

    async fn items(&self, kind: ItemKind) -> Result<Vec<Item>, StoreError> {
        self.readers.read(|db| {
            let mut all = db.prepare_cached(
                "SELECT name, version, bytes FROM items WHERE kind = ?1 ORDER BY name",
            )?;
            let all = all.query_map([kind.as_str()], |row| {
                Ok(Item {
                    name: row.get(0)?,
                    version: row.get::<_, i64>(1)? as u64,
                    bytes: row.get(2)?,
                })
            })?;
            Ok(all.collect::<Result<_, _>>()?)
        })
    }

    async fn items_version(&self) -> Result<u64, StoreError> {
        Ok(self.shared.items.load(Ordering::Acquire))
    }

    async fn records(&self, queries: &[RecordQuery]) -> Result<Vec<Vec<Record>>, StoreError> {
        self.readers.read(|db| queries.iter().map(|query| record::page(db, query)).collect())
    }

    async fn purge(
        &self,
        kind: RecordKind,
        now: Timestamp,
        keep: u64,
        limit: u32,
    ) -> Result<Purged, StoreError> {
        let (drop, purged) = self.readers.read(|db| record::ripe(db, kind, now, keep, limit))?;
        if !drop.is_empty() {
            // A record that was replaced meanwhile has another time, and stays.
            let remove = |(name, until)| Write::RemoveRecord { kind, name, until: Some(until) };
            self.writer.commit(vec![drop.into_iter().map(remove).collect()]).await?;
        }
        Ok(purged)
    }
}
