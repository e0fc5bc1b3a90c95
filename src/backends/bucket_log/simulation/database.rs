//! The real replica in the simulated world: a SQLite database of each node, whose commits go through
//! its store. A command is a transaction with a record of the write and a versioned item.
//!
//! No virtual time passes while a database works, so the seed still determines a run. A crash of a
//! node loses an end of the write-ahead log, as one of the machine does.

use std::{
    collections::BTreeMap,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use rusqlite::{Connection, OpenFlags, types::Value};

use super::{
    bugs::Bug,
    kv::{Command, State},
    node::{OpenNode, retire},
    world::World,
};
use crate::{
    bucket_log::{
        Durable, Frozen, Handle, LogRefusal, Replica, ReplicaError, Restored, SnapshotParts, Tail,
        immediate::Immediate, key::Epoch, object::Object,
    },
    sqlite::{OpenError, SqliteReplica, copy_after_crash, database, transactions},
};
use tidegate_core::{
    port::{
        StoreError, Txn, Write,
        job_store::{Committed, Expect, ItemKind, JobStore, Record, RecordKind},
    },
    time::Timestamp,
};

/// `command` as a transaction: its first write is refused if the command was made before, and its
/// second one if it cannot be made.
fn transaction(command: Command) -> Txn {
    let Command { write, attempt, key, was } = command;
    let record = Record {
        kind: RecordKind::Reply,
        name: write.to_string(),
        until: Timestamp::from_millis(1),
        bytes: attempt.to_string().into_bytes(),
    };
    let item = Write::SetItem {
        kind: ItemKind::Token,
        name: key.to_string(),
        was,
        version: was + 1,
        bytes: Some(write.to_string().into_bytes()),
    };
    vec![Write::SwapRecord { record, was: Expect::Absent }, item]
}

/// The commands of an object.
pub fn commands(object: &Object) -> Vec<Command> {
    let txns = transactions(object).expect("its commands are transactions");
    txns.iter().map(|txn| command(txn).expect("a client made the transaction")).collect()
}

fn command(txn: &[Write]) -> Option<Command> {
    let [Write::SwapRecord { record, .. }, Write::SetItem { name, was, .. }] = txn else {
        return None;
    };
    let attempt = std::str::from_utf8(&record.bytes).ok()?.parse().ok()?;
    let (write, key) = (record.name.parse().ok()?, name.parse().ok()?);
    Some(Command { write, attempt, key, was: *was })
}

/// The replica of a node.
pub struct DatabaseReplica {
    // Dropped first, so that the last connection is the one of the writer.
    rows: Mutex<Connection>,
    inner: Immediate<SqliteReplica>,
    node: usize,
    world: Option<Arc<World>>,
}

impl DatabaseReplica {
    /// The replica in `dir`. One without a world is for the oracle.
    ///
    /// # Errors
    ///
    /// As [`SqliteReplica::open`].
    pub fn open(node: usize, dir: &Path, world: Option<Arc<World>>) -> Result<Self, OpenError> {
        let inner = Immediate(SqliteReplica::open(dir)?);
        let rows = Connection::open_with_flags(database(dir), OpenFlags::SQLITE_OPEN_READ_ONLY);
        let rows = Mutex::new(rows.expect("the database is open"));
        Ok(Self { rows, inner, node, world })
    }

    /// What the rows mean.
    pub fn state(&self) -> State {
        let db = self.rows.lock();
        let read = || -> rusqlite::Result<State> {
            let values = db
                .prepare_cached(
                    "SELECT CAST(name AS INTEGER), version, \
                     CAST(CAST(substr(bytes, 5) AS TEXT) AS INTEGER) \
                     FROM items WHERE kind = 'token'",
                )?
                .query_map([], |row| {
                    let (key, version, write): (i64, i64, i64) =
                        (row.get(0)?, row.get(1)?, row.get(2)?);
                    Ok((key as u8, (version as u64, write as u64)))
                })?
                .collect::<rusqlite::Result<BTreeMap<_, _>>>()?;
            let done = db
                .prepare_cached("SELECT CAST(name AS INTEGER) FROM records WHERE kind = 'reply'")?
                .query_map([], |row| Ok((row.get::<_, i64>(0)? as u64, true)))?
                .collect::<rusqlite::Result<BTreeMap<_, _>>>()?;
            let seals = db
                .prepare_cached("SELECT epoch, records FROM log_seals")?
                .query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)? as u64)))?
                .collect::<rusqlite::Result<Vec<_>>>()?;
            let epoch = |number: i64| Epoch::new(number as u64).expect("an epoch");
            let seals = seals.into_iter().map(|(number, records)| (epoch(number), records));
            Ok(State { values, done, seals: seals.collect(), tail: self.inner.tail() })
        };
        read().expect("the rows can be read")
    }

    /// Every row of every table, in an order of their own.
    pub fn rows(&self) -> Vec<String> {
        let db = self.rows.lock();
        let read = || -> rusqlite::Result<Vec<String>> {
            let tables = db
                .prepare_cached("SELECT name FROM sqlite_schema WHERE type = 'table'")?
                .query_map([], |row| row.get(0))?
                .collect::<rusqlite::Result<Vec<String>>>()?;
            let mut dump = Vec::new();
            for table in tables {
                let mut all = db.prepare(&format!("SELECT * FROM {table}"))?;
                let columns = all.column_count();
                let mut rows = all.query([])?;
                while let Some(row) = rows.next()? {
                    let values = (0..columns)
                        .map(|column| row.get(column))
                        .collect::<rusqlite::Result<Vec<Value>>>()?;
                    dump.push(format!("{table} {values:?}"));
                }
            }
            dump.sort_unstable();
            Ok(dump)
        };
        read().expect("the rows can be read")
    }

    fn write_past_log(&self) {
        let db = Connection::open(self.inner.0.store().file()).expect("a connection");
        let written = db.execute("INSERT OR IGNORE INTO queue_names (name) VALUES ('local')", []);
        written.expect("a row");
    }

    fn crash(&self, dir: &Path, part: f64) {
        let copied = copy_after_crash(self.inner.0.store().file(), dir, part);
        copied.expect("a copy of the database");
    }
}

#[async_trait]
impl Replica for DatabaseReplica {
    type Answer = Committed;

    fn schema(&self) -> u64 {
        self.inner.schema()
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn tail(&self) -> Tail {
        self.inner.tail()
    }

    async fn apply(&self, objects: Vec<Durable>) -> Result<Vec<Vec<Committed>>, ReplicaError> {
        if let Some(world) = &self.world {
            let mut oracle = world.oracle.lock();
            for one in &objects {
                oracle.note_applied(self.node, one.object());
            }
            if world.bug == Some(Bug::WrittenPastLog) && self.node == 0 {
                self.write_past_log();
            }
        }
        self.inner.apply(objects).await
    }

    async fn sealed(
        &self,
        epochs: RangeInclusive<Epoch>,
    ) -> Result<BTreeMap<Epoch, u64>, ReplicaError> {
        self.inner.sealed(epochs).await
    }

    async fn freeze(&self) -> Result<Box<dyn Frozen>, ReplicaError> {
        self.inner.freeze().await
    }

    async fn restore(&self, parts: &mut dyn SnapshotParts) -> Result<Restored, ReplicaError> {
        self.inner.restore(parts).await
    }

    async fn clear(&self) -> Result<(), ReplicaError> {
        self.inner.clear().await
    }
}

/// A node with a database.
pub struct OpenDatabase {
    handle: Handle<Committed>,
    replica: Arc<DatabaseReplica>,
}

impl OpenDatabase {
    /// Connects the store of `replica` to its node.
    pub fn new(handle: Handle<Committed>, replica: Arc<DatabaseReplica>) -> Self {
        replica.inner.0.connect(handle.clone());
        Self { handle, replica }
    }
}

#[async_trait]
impl OpenNode for OpenDatabase {
    fn epoch(&self) -> Option<Epoch> {
        self.handle.epoch()
    }

    fn difference(&self) -> Option<Epoch> {
        self.handle.difference()
    }

    async fn prove_leadership(&self) -> Result<(), LogRefusal> {
        self.handle.prove_leadership().await
    }

    async fn retire(&self) {
        retire(&self.handle).await;
    }

    async fn submit(&self, command: Command) -> Result<bool, LogRefusal> {
        let store = self.replica.inner.0.store();
        match store.commit(vec![transaction(command)]).await {
            // A repeat is refused by its record.
            Ok(answers) => {
                Ok(matches!(answers[..], [Committed::All | Committed::Conflict { step: 0, .. }]))
            }
            Err(StoreError::NotLeader { .. }) => Err(LogRefusal::NotLeader),
            Err(_) => Err(LogRefusal::OutcomeUnknown),
        }
    }

    fn state(&self) -> State {
        self.replica.state()
    }

    fn rows(&self) -> Vec<String> {
        self.replica.rows()
    }

    fn execute_early(&self, _: Command) -> bool {
        unreachable!("bugs are planted in nodes without a database")
    }

    fn crash(&self, dir: PathBuf, part: f64) {
        self.replica.crash(&dir, part);
    }
}
