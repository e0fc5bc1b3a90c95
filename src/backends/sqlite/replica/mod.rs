//! The SQLite store as the local state of a replicated log.
//!
//! ```text
//!   commit ──▶ command ──▶ the log: durable ──▶ one writer applies records in order ──▶ answer
//!   reads  ──▶ the database, which has some prefix of the log
//! ```
//!
//! The log is the durable copy. The database is a cache whose position is exact, because it is
//! committed with what was applied: so SQLite need not wait for the disk, and a crash only sets the
//! database back to an earlier position. Its tables change with the start record of a later release, at the
//! same position on every machine, and not when it is opened.
//!
//! [`wire`] is the form of a transaction in the log, [`position`] how far it was applied, [`apply`] the
//! application, [`snapshot`] the parts of a snapshot, [`digest`] what two replicas compare, [`attach`] the
//! begin and the end of all this for a database.

mod apply;
mod attach;
mod digest;
mod position;
mod snapshot;
#[cfg(test)]
mod upgrade;
mod wire;

use std::{
    collections::BTreeMap,
    ops::RangeInclusive,
    path::Path,
    sync::{Arc, OnceLock, atomic::Ordering},
};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;

pub use self::apply::transactions;
use super::{Durability, OpenError, SqliteStore, error::Failure, file, writer::State};
use crate::bucket_log::{
    Durable, Frozen, Handle, LogRefusal, Replica, ReplicaError, Restored, SnapshotParts, Tail,
    body::{MAX_GROUP_BYTES, plain_bytes},
    key::{Epoch, Slot},
};
use tidegate_core::port::{StoreError, Txn, job_store::Committed};

/// The way from a store to its log. Before a node is connected, nothing can be committed.
pub(super) struct LogConnection(OnceLock<Handle<Committed>>);

impl LogConnection {
    pub(super) async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        if txns.is_empty() {
            return Ok(Vec::new());
        }
        let handle = self.0.get().ok_or_else(|| refused(LogRefusal::NotLeader, None))?;
        let commands = txns.into_iter().map(wire::encode).collect::<Result<Vec<_>, _>>();
        let commands = commands.map_err(StoreError::corrupt)?;
        if commands.iter().any(|one| plain_bytes(std::slice::from_ref(one)) > MAX_GROUP_BYTES) {
            return Err(refused(LogRefusal::TooLarge, None));
        }
        let mut answers = Vec::with_capacity(commands.len());
        for commands in divide(commands) {
            match handle.submit(commands).await {
                Ok(more) => answers.extend(more),
                // Those before it were executed.
                Err(refusal) if !answers.is_empty() => {
                    let message = format!("a part of it was made, and then {refusal}");
                    return Err(StoreError::OutcomeUnknown { message });
                }
                Err(refusal) => return Err(refused(refusal, handle.leader())),
            }
        }
        Ok(answers)
    }
}

/// Divides `commands` into lists that fit in a record, as every one of them does. Transactions are
/// independent of each other, so they need no common record.
fn divide(commands: Vec<Bytes>) -> Vec<Vec<Bytes>> {
    let (mut lists, mut bytes) = (Vec::<Vec<Bytes>>::new(), 0);
    for command in commands {
        let more = plain_bytes(std::slice::from_ref(&command));
        match lists.last_mut() {
            Some(last) if bytes + more <= MAX_GROUP_BYTES => {
                bytes += more;
                last.push(command);
            }
            _ => {
                bytes = more;
                lists.push(vec![command]);
            }
        }
    }
    lists
}

/// What the store's port has for `refused`; `leader` is the address of the leader, if it is known.
fn refused(refused: LogRefusal, leader: Option<String>) -> StoreError {
    match refused {
        LogRefusal::NotLeader => StoreError::NotLeader { leader },
        LogRefusal::OutcomeUnknown => {
            let message = "the server lost the log before its record was decided".to_owned();
            StoreError::OutcomeUnknown { message }
        }
        // A repeat cannot help.
        LogRefusal::TooLarge => {
            StoreError::corrupt_in("a transaction cannot be written to the log", refused)
        }
    }
}

/// A SQLite store that applies a log.
pub struct SqliteReplica {
    store: Arc<SqliteStore>,
    /// That of the database. The writer thread sets it with each change, so that it is right even
    /// after a call whose caller has stopped waiting.
    tail: Arc<watch::Sender<Tail>>,
    /// Those of this release. A database that follows a log has the first of them, up to the number in the
    /// last start record.
    migrations: &'static [&'static str],
}

impl SqliteReplica {
    /// The replica in `dir`, which is created if it does not exist. A database that is lost or
    /// cannot be used is no reason to stop, because the log has its content: a damaged one is moved
    /// aside.
    ///
    /// # Errors
    ///
    /// As [`SqliteStore::open`]; and if the directory has a database that replicates no log.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        match file::forget_database(dir) {
            Ok(()) | Err(OpenError::NotNew { .. }) => {}
            Err(error) => return Err(error),
        }
        match Self::open_database(dir) {
            // A database that is the only copy of its data is left as it is.
            Err(damaged @ OpenError::Damaged { .. }) if !file::is_marked(dir) => {
                let aside = file::set_aside(dir)?;
                let aside = aside.display();
                tracing::error!(error = %damaged, %aside, "the log restores a damaged database");
                Self::open_database(dir)
            }
            opened => opened,
        }
    }

    fn open_database(dir: &Path) -> Result<Self, OpenError> {
        let mut store = SqliteStore::start(dir, None, None, Durability::Log)?;
        // This process holds the directory now, so no other one uses them.
        snapshot::remove_files(dir);
        let tail = prepare(store.file()).map_err(|Failure(error)| OpenError::Damaged {
            file: store.file().to_owned(),
            problem: error.chain().to_string(),
        })?;
        let tail = tail.ok_or_else(|| OpenError::NotOfLog { dir: dir.to_owned() })?;
        file::unmark(dir)?;
        store.log = Some(LogConnection(OnceLock::new()));
        let (store, tail) = (Arc::new(store), Arc::new(watch::Sender::new(tail)));
        Ok(Self { store, tail, migrations: &file::MIGRATIONS })
    }

    /// The same replica in a release with these migrations.
    #[cfg(test)]
    fn of_release(self, migrations: &'static [&'static str]) -> Self {
        Self { migrations, ..self }
    }

    /// The store. Its commits go to the log once [`Self::connect`] was called.
    pub fn store(&self) -> Arc<SqliteStore> {
        Arc::clone(&self.store)
    }

    /// A number that rises whenever a record, or another state, may have changed which callers have access.
    /// It has risen before the position shows the change.
    pub fn tokens_version(&self) -> u64 {
        self.store.shared.tokens.load(Ordering::Acquire)
    }

    /// Ends once the state has all of the log before `slot`, which may be never.
    pub async fn reached(&self, slot: Slot) {
        // The sender is a part of this value, so it is not gone.
        let _ = self.tail.subscribe().wait_for(|tail| tail.next >= slot).await;
    }

    /// Connects the store to the node of this replica.
    pub fn connect(&self, handle: Handle<Committed>) {
        if let Some(log) = &self.store.log {
            // A replica has one node in its life.
            let _ = log.0.set(handle);
        }
    }
}

/// The tail of the database in `file`, whose tables are made if it is empty; none if it has data
/// and replicates no log.
fn prepare(file: &Path) -> Result<Option<Tail>, Failure> {
    let db = rusqlite::Connection::open(file)?;
    if let Some(tail) = position::read(&db)? {
        return Ok(Some(tail));
    }
    let is_empty: bool = db.query_row(
        "SELECT NOT EXISTS (SELECT 1 FROM jobs) AND NOT EXISTS (SELECT 1 FROM items) \
         AND NOT EXISTS (SELECT 1 FROM records)",
        [],
        |row| row.get(0),
    )?;
    if is_empty {
        db.execute_batch(position::TABLES)?;
    }
    Ok(is_empty.then_some(Tail::START))
}

#[async_trait]
impl Replica for SqliteReplica {
    type Answer = Committed;

    fn schema(&self) -> u64 {
        self.migrations.len() as u64
    }

    fn tail(&self) -> Tail {
        *self.tail.borrow()
    }

    fn bytes(&self) -> u64 {
        std::fs::metadata(self.store.file()).map_or(0, |file| file.len())
    }

    async fn apply(&self, objects: Vec<Durable>) -> Result<Vec<Vec<Committed>>, ReplicaError> {
        let (tail, migrations) = (Arc::clone(&self.tail), self.migrations);
        let apply = move |state: &mut State| {
            let (answers, behind) = state.apply(&objects, migrations)?;
            if let Some(behind) = behind {
                tail.send_replace(behind);
            }
            Ok::<_, Failure>(answers)
        };
        let applied = self.store.writer.run(apply).await;
        applied.and_then(|applied| applied.map_err(StoreError::from)).map_err(ReplicaError::new)
    }

    async fn sealed(
        &self,
        epochs: RangeInclusive<Epoch>,
    ) -> Result<BTreeMap<Epoch, u64>, ReplicaError> {
        self.store.readers.read(|db| position::sealed(db, &epochs)).map_err(ReplicaError::new)
    }

    async fn freeze(&self) -> Result<Box<dyn Frozen>, ReplicaError> {
        let frozen = snapshot::freeze(self.store.file()).map_err(StoreError::from);
        Ok(Box::new(frozen.map_err(snapshot::unread)?))
    }

    async fn restore(&self, parts: &mut dyn SnapshotParts) -> Result<Restored, ReplicaError> {
        let Some(copy) = snapshot::download(self.store.file(), parts).await? else {
            return Ok(Restored::Gone);
        };
        self.replace(move |state| state.replace_by_copy(&copy)).await?;
        Ok(Restored::Done)
    }

    async fn clear(&self) -> Result<(), ReplicaError> {
        self.replace(State::replace_by_nothing).await
    }
}

impl SqliteReplica {
    async fn replace(
        &self,
        replace: impl FnOnce(&mut State) -> Result<Tail, Failure> + Send + 'static,
    ) -> Result<(), ReplicaError> {
        let tail = Arc::clone(&self.tail);
        let replace = move |state: &mut State| {
            let behind = replace(state)?;
            tail.send_replace(behind);
            Ok::<_, Failure>(())
        };
        let replaced = self.store.writer.run(replace).await;
        replaced.and_then(|replaced| replaced.map_err(StoreError::from)).map_err(ReplicaError::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_state_is_that_of_its_database() {
        let dir = tempfile::TempDir::new().unwrap();
        let replica = SqliteReplica::open(dir.path()).unwrap();
        let file = std::fs::metadata(replica.store.file()).unwrap();
        assert!(replica.bytes() > 0);
        assert_eq!(replica.bytes(), file.len());
    }

    #[test]
    fn a_refusal_says_whether_a_change_may_have_been_made() {
        let leader = || Some("http://b".to_owned());
        let not_done = refused(LogRefusal::NotLeader, leader());
        assert!(matches!(not_done, StoreError::NotLeader { .. }), "{not_done:?}");
        let shown = "this server does not lead the log; its leader is at http://b";
        assert_eq!(not_done.to_string(), shown);
        let unnamed = refused(LogRefusal::NotLeader, None).to_string();
        assert_eq!(unnamed, "this server does not lead the log");
        let maybe_done = refused(LogRefusal::OutcomeUnknown, leader());
        assert!(matches!(maybe_done, StoreError::OutcomeUnknown { .. }), "{maybe_done:?}");
        let too_large = refused(LogRefusal::TooLarge, leader());
        assert!(matches!(too_large, StoreError::Corrupt(_)), "{too_large:?}");
    }

    #[test]
    fn commands_are_divided_into_records_that_they_fit_in() {
        let half = Bytes::from(vec![0; MAX_GROUP_BYTES / 2 - 4]);
        let divided = |commands: &[&Bytes]| -> Vec<usize> {
            let lists = divide(commands.iter().copied().cloned().collect());
            lists.iter().map(Vec::len).collect()
        };
        let small = Bytes::from_static(b"1");
        assert_eq!(divided(&[]), [0; 0]);
        assert_eq!(divided(&[&small, &small]), [2]);
        assert_eq!(divided(&[&half, &half]), [2]);
        assert_eq!(divided(&[&half, &half, &small, &half]), [2, 2]);
        assert_eq!(divided(&[&small, &half, &half]), [2, 1]);
    }
}
