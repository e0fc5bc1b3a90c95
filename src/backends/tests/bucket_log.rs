//! The SQLite store behind a log in object storage: it keeps the contract of the job store, and an
//! empty machine restores all of it.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue must fail")]

use std::{fmt::Write as _, path::Path, sync::Arc, thread::JoinHandle, time::Duration};

use futures_util::{StreamExt as _, future::join_all};
use object_store::{ObjectStore, memory::InMemory};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tempfile::TempDir;
use tidegate_backends::{
    bucket_log::{Edge, LogReader, Node, NodeSettings, Pace, RestoreError, StoreBucket, seed},
    sqlite::{OpenError, SqliteReplica, SqliteStore, repair},
    system::{SystemClock, SystemEntropy},
};
use tidegate_core::{
    job::{Encoding, Job, JobId, Revision},
    port::{
        Clock as _, JobStore, StoreError, StoreLayer, Txn, Write,
        job_store::{Committed, Expect, ItemKind, Key, Record, RecordKind},
    },
    queue::{GrantBatch, Ledger, ledger::BatchId},
    stored::UnknownFields,
    time::Timestamp,
};
use tidegate_engine::{
    job_store_conformance,
    testkit::{
        builders::{at, job, name},
        conformance::run,
    },
};
use tokio::sync::oneshot;

/// A store with the node that leads its log, on a thread of its own.
struct Machine {
    store: Arc<SqliteStore>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    dir: TempDir,
}

impl Machine {
    /// A machine with an empty disk, once it leads the log in `bucket`.
    fn start(bucket: &Arc<InMemory>, rollover_records: u64) -> Self {
        Self::start_in(TempDir::new().unwrap(), bucket, rollover_records)
    }

    /// A machine whose disk has `dir`.
    fn start_in(dir: TempDir, bucket: &Arc<InMemory>, rollover_records: u64) -> Self {
        let replica = Arc::new(SqliteReplica::open(dir.path()).unwrap());
        let store = replica.store();
        let bucket = Arc::clone(bucket) as Arc<dyn ObjectStore>;
        let (stop, stopped) = oneshot::channel();
        let (leads, led) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let node = async move {
                let edge = Edge {
                    bucket: Arc::new(StoreBucket::new(bucket, "prefix".into())),
                    clock: Arc::new(SystemClock),
                    entropy: Arc::new(SystemEntropy),
                };
                let settings = NodeSettings {
                    pace: Pace::Latency { interval: Duration::ZERO },
                    rollover_records,
                    kept_snapshots: 1,
                    poll_interval: Duration::from_millis(1),
                    patience: (Duration::ZERO, Duration::ZERO),
                    ..NodeSettings::default()
                };
                let opened = Node::open(edge, Arc::clone(&replica), settings).await;
                let (node, handle) = opened.unwrap();
                replica.connect(handle.clone());
                let until_stopped = async {
                    while handle.submit(Vec::new()).await.is_err() {
                        tokio::task::yield_now().await;
                    }
                    leads.send(()).unwrap();
                    stopped.await
                };
                tokio::select! {
                    ended = node.run() => panic!("the node stopped: {ended:?}"),
                    _ = until_stopped => {}
                }
            };
            run(node);
        });
        led.recv().expect("the node leads");
        Self { store, stop: Some(stop), thread: Some(thread), dir }
    }

    /// Stops the node in the middle of what it does, and returns what is in the database. The disk
    /// is lost.
    fn lose(mut self) -> Content {
        self.stop();
        content(self.dir.path())
    }

    fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the node did not fail");
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.stop();
    }
}

impl StoreLayer for Machine {
    fn inner(&self) -> &dyn JobStore {
        &*self.store
    }
}

job_store_conformance!(
    logged,
    Machine::start(&Arc::default(), 1_000),
    async |machine: &Machine, id: &JobId| {
        let change = "UPDATE jobs SET life = x'0255aa' WHERE id = ?1";
        let db = rusqlite::Connection::open(machine.store.file()).unwrap();
        assert_eq!(db.execute(change, [id.as_str()]).unwrap(), 1);
    }
);

/// What is in a database that replicates a log.
#[derive(Debug)]
struct Content {
    /// Every row, except the position in the log and the seals: a takeover moves and adds those.
    rows: String,
    /// The number of records of each epoch that has ended.
    seals: Vec<(i64, i64)>,
}

impl Content {
    /// Whether it is that of another machine, perhaps behind further takeovers.
    fn continues(&self, other: &Self) -> bool {
        self.rows == other.rows && self.seals.starts_with(&other.seals)
    }
}

/// What is in the database in `dir`.
fn content(dir: &Path) -> Content {
    let db = rusqlite::Connection::open(dir.join("tidegate.db")).unwrap();
    let texts = |sql: &str| -> Vec<String> {
        let mut all = db.prepare(sql).unwrap();
        all.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    let mut content = String::new();
    for table in texts(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'log_%' ORDER BY name",
    ) {
        let columns = texts(&format!("SELECT name FROM pragma_table_xinfo('{table}')"));
        let quoted: Vec<String> = columns.iter().map(|column| format!("quote({column})")).collect();
        for row in texts(&format!("SELECT {} FROM {table} ORDER BY 1", quoted.join(" || ', ' || ")))
        {
            writeln!(content, "{table}: {row}").unwrap();
        }
    }
    let mut seals = db.prepare("SELECT epoch, records FROM log_seals ORDER BY epoch").unwrap();
    let seals = seals.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    let seals = seals.map(Result::unwrap).collect();
    Content { rows: content, seals }
}

/// Random transactions. Many are refused.
struct Mix(StdRng);

impl Mix {
    fn below(&mut self, bound: u64) -> u64 {
        self.0.random_range(0..bound)
    }

    fn job(&mut self) -> Job {
        let bytes = [1, 40, 2_000, 60_000][self.below(4) as usize];
        job(&format!("job-{}", self.below(300)))
            .queue(&format!("queue-{}", self.below(5)))
            .of_type(&format!("type-{}", self.below(5)))
            .due(self.below(1_000) as i64)
            .data(Encoding::Json, vec![b'1'; bytes])
            .build()
    }

    fn record(&mut self) -> Record {
        Record {
            kind: RecordKind::ALL[self.below(12) as usize],
            name: format!("record-{}", self.below(20)),
            until: Timestamp::from_millis(self.below(1_000) as i64),
            bytes: format!("[{}]", self.below(1_000)).into_bytes(),
        }
    }

    fn expected(&mut self) -> Expect<u64> {
        match self.below(4) {
            0 => Expect::Absent,
            version => Expect::Is(version),
        }
    }

    fn write(&mut self) -> Write {
        let queue = name(&format!("queue-{}", self.below(5)));
        let item = format!("item-{}", self.below(4));
        let (kind, version) = (ItemKind::ALL[self.below(13) as usize], self.below(4));
        match self.below(15) {
            0..3 => Write::AddJob(self.job()),
            3 | 4 => {
                let mut job = self.job();
                let was = Revision(self.below(3));
                job.life.revision = Revision(was.0 + 1);
                Write::SetJob { job, was, all: version > 1 }
            }
            5 => Write::RemoveJob { id: self.job().id, was: Revision(self.below(3)) },
            6 => {
                let key = match version {
                    0 => Key::Idempotency(item),
                    1 => Key::Unique(name("type-1"), item),
                    _ => Key::Correlation(name("type-2"), item),
                };
                let was = match self.below(2) {
                    0 => Expect::Absent,
                    _ => Expect::Is(self.job().id),
                };
                Write::SetKey { key, job: self.job().id, was }
            }
            7 => {
                let batch = GrantBatch {
                    id: BatchId(self.below(5)),
                    ledger_version: version,
                    grants: Vec::new(),
                    state: None,
                    unknown: UnknownFields::default(),
                };
                Write::AddBatch(queue, batch)
            }
            8 => Write::RemoveBatch(queue, BatchId(self.below(5))),
            9 => {
                let was = self.expected();
                let version = if let Expect::Is(version) = was { version + 1 } else { 1 };
                Write::SetLedger { queue, ledger: Ledger { version, ..Ledger::default() }, was }
            }
            10 => Write::RequireItem { kind, name: item.into(), version },
            11 => {
                let bytes = (version > 0).then(|| b"{}".to_vec());
                Write::SetItem { kind, name: item, was: version, version: version + 1, bytes }
            }
            12 => Write::PutRecord(self.record()),
            13 => Write::SwapRecord { record: self.record(), was: Expect::Absent },
            _ => {
                let Record { kind, name, .. } = self.record();
                Write::RemoveRecord { kind, name, until: None }
            }
        }
    }

    /// A commit. A transaction writes no record twice, so those of each are of one write, or of a
    /// condition and a job.
    fn commit(&mut self) -> Vec<Txn> {
        let mut txns = Vec::new();
        for _ in 0..=self.below(3) {
            let mut txn = vec![self.write()];
            if !matches!(txn[0], Write::AddJob(_) | Write::SetJob { .. } | Write::RemoveJob { .. })
            {
                txn.push(Write::AddJob(self.job()));
            }
            txns.push(txn);
        }
        txns
    }
}

/// Commits `commits` of `mix`, several at once: how many transactions were executed and refused.
async fn commit_all(store: &Machine, mix: &mut Mix, commits: u32) -> (usize, usize) {
    let (mut executed, mut refused) = (0, 0);
    for _ in 0..commits {
        let commits: Vec<Vec<Txn>> = (0..8).map(|_| mix.commit()).collect();
        let answers = join_all(commits.into_iter().map(|txns| JobStore::commit(store, txns))).await;
        for answer in answers.into_iter().flat_map(|answers| answers.expect("the node leads")) {
            match answer {
                Committed::All => executed += 1,
                Committed::Conflict { .. } => refused += 1,
            }
        }
        let kind = RecordKind::ALL[mix.below(12) as usize];
        JobStore::purge(store, kind, at(mix.below(500) as i64), 15, 10).await.unwrap();
    }
    (executed, refused)
}

/// A batch of jobs is one commit, and may have more bytes than a record.
#[test]
fn a_commit_that_exceeds_a_record_is_divided() {
    let machine = Machine::start(&Arc::default(), 1_000);
    let add = |id: String, mib: usize| {
        vec![Write::AddJob(job(&id).data(Encoding::Json, vec![b'1'; mib << 20]).build())]
    };
    run(async {
        let txns: Vec<Txn> = (0..9).map(|number| add(format!("job-{number}"), 8)).collect();
        let answers = machine.store.commit(txns).await.unwrap();
        assert_eq!(answers.len(), 9);
        assert!(answers.iter().all(|answer| matches!(answer, Committed::All)), "{answers:?}");
        let refused = machine.store.commit(vec![add("a".into(), 1), add("b".into(), 65)]).await;
        let error = refused.unwrap_err();
        assert!(matches!(error, StoreError::Corrupt(_)), "a repeat cannot help: {error}");
        assert_eq!(machine.store.get(&[name("a")]).await.unwrap(), [Ok(None)]);
    });
}

/// The names of the objects in the bucket.
async fn names(bucket: &InMemory) -> Vec<String> {
    let listed: Vec<_> = bucket.list(None).collect().await;
    listed.into_iter().map(|object| object.unwrap().location.to_string()).collect()
}

#[test]
fn an_empty_machine_restores_what_was_committed() {
    let (bucket, mut mix) = (Arc::<InMemory>::default(), Mix(StdRng::seed_from_u64(1)));
    let mut lost: Option<Content> = None;
    for round in 0..4 {
        let machine = Machine::start(&bucket, 12);
        if let Some(lost) = &lost {
            let restored = content(machine.dir.path());
            assert!(
                restored.continues(lost),
                "round {round}: the restored database is another one"
            );
        }
        run(async {
            let (executed, refused) = commit_all(&machine, &mut mix, 12).await;
            assert!(executed > 20 && refused > 20, "{executed} executed, {refused} refused");
        });
        lost = Some(machine.lose());
    }
    run(async {
        let names = names(&bucket).await;
        let has = |part: &str| names.iter().any(|name| name.contains(part));
        assert!(has("/manifest"), "there are snapshots");
        assert!(!has("log/0000000001/000000000001"), "the log before them is removed");
        assert!(has("epoch/0000000001"), "no claim is removed");
    });
}

/// An instant after all requests so far, and before all others.
async fn instant() -> Timestamp {
    let at = SystemClock.now();
    while SystemClock.now() <= at {
        tokio::task::yield_now().await;
    }
    at
}

/// The log in `bucket`.
fn edge(bucket: &Arc<InMemory>) -> (Edge, Arc<StoreBucket>) {
    let store = Arc::clone(bucket) as Arc<dyn ObjectStore>;
    let log = Arc::new(StoreBucket::new(store, "prefix".into()));
    let edge = Edge {
        bucket: Arc::clone(&log) as _,
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
    };
    (edge, log)
}

/// The database as of `at`, in a directory without a log.
async fn restored(
    bucket: &Arc<InMemory>,
    at: Timestamp,
) -> Result<(TempDir, Content), RestoreError> {
    let (edge, log) = edge(bucket);
    let reader = LogReader::open(edge, log).await?.expect("there is a log");
    let dir = TempDir::new().unwrap();
    let replica = SqliteReplica::open(dir.path()).unwrap();
    reader.restore(&replica, at).await?;
    let restored = content(dir.path());
    replica.detach().unwrap();
    Ok((dir, restored))
}

#[test]
fn the_database_of_an_instant_is_restored_without_its_log() {
    let (bucket, mut mix) = (Arc::<InMemory>::default(), Mix(StdRng::seed_from_u64(4)));
    let machine = Machine::start(&bucket, 1_000);
    run(async {
        let before = instant().await;
        let mut known = Vec::new();
        for _ in 0..3 {
            commit_all(&machine, &mut mix, 4).await;
            known.push((instant().await, content(machine.dir.path())));
        }
        let add = vec![Write::AddJob(job("after").build())];
        machine.store.commit(vec![add]).await.unwrap();
        for (at, content) in &known {
            let (dir, found) = restored(&bucket, *at).await.unwrap();
            assert_eq!(found.rows, content.rows, "at {at}");
            let store = SqliteStore::open(dir.path()).unwrap();
            assert_eq!(store.get(&[name("after")]).await.unwrap(), [Ok(None)]);
            let add = vec![Write::AddJob(job("after").build())];
            assert!(matches!(store.commit(vec![add]).await.unwrap()[..], [Committed::All]));
        }
        let early = restored(&bucket, before - Duration::from_hours(1)).await;
        assert!(matches!(early, Err(RestoreError::TooEarly { .. })));
        let late = restored(&bucket, Timestamp::MAX).await;
        assert!(matches!(late, Err(RestoreError::TooLate { .. })));
    });
}

#[test]
fn a_log_begins_with_the_data_of_a_directory() {
    let (first, second) = (Arc::<InMemory>::default(), Arc::<InMemory>::default());
    let mut mix = Mix(StdRng::seed_from_u64(5));
    let machine = Machine::start(&first, 1_000);
    let (dir, known) = run_to_end(async {
        commit_all(&machine, &mut mix, 4).await;
        let at = instant().await;
        let add = vec![Write::AddJob(job("after").build())];
        machine.store.commit(vec![add]).await.unwrap();
        restored(&first, at).await.unwrap()
    });
    drop(SqliteStore::open(dir.path()).unwrap());
    let replica = SqliteReplica::attach(dir.path()).unwrap();
    run(async {
        seed(&edge(&second).0, &replica).await.unwrap();
    });
    drop(replica);
    for _ in 0..2 {
        let machine = Machine::start(&second, 1_000);
        assert_eq!(machine.lose().rows, known.rows, "an empty machine has the data");
    }
}

/// The output of `work`.
fn run_to_end<T>(work: impl Future<Output = T>) -> T {
    let mut output = None;
    run(async { output = Some(work.await) });
    output.expect("it has ended")
}

/// A change of one copy alone would make it differ from the others, at the same position.
#[test]
fn a_replica_is_not_served_or_repaired_without_its_log() {
    let dir = TempDir::new().unwrap();
    drop(SqliteReplica::open(dir.path()).unwrap());
    let aside = dir.path().join("aside");
    for error in [SqliteStore::open(dir.path()).err(), repair(dir.path(), &aside).err()] {
        assert!(matches!(error, Some(OpenError::CopyOfLog { .. })), "{error:?}");
    }
    assert!(!aside.exists());
    drop(SqliteReplica::open(dir.path()).unwrap());
}

/// Frames of the log of SQLite reach the disk in any order, because a replica waits for none.
#[test]
fn a_replica_goes_on_before_a_gap_in_its_frames() {
    let (bucket, mut mix) = (Arc::<InMemory>::default(), Mix(StdRng::seed_from_u64(2)));
    let (machine, dir) = (Machine::start(&bucket, 1_000), TempDir::new().unwrap());
    run(async {
        commit_all(&machine, &mut mix, 4).await;
    });
    for name in ["tidegate.db", "tidegate.db-wal"] {
        std::fs::copy(machine.dir.path().join(name), dir.path().join(name)).unwrap();
    }
    let lost = machine.lose();
    let frames = dir.path().join("tidegate.db-wal");
    let mut bytes = std::fs::read(&frames).unwrap();
    let middle = 32 + (bytes.len() / 4120 / 2) * 4120;
    bytes[middle..middle + 4120].fill(0);
    std::fs::write(frames, bytes).unwrap();
    let machine = Machine::start_in(dir, &bucket, 1_000);
    assert!(content(machine.dir.path()).continues(&lost), "it has applied the log again");
}

#[test]
fn a_damaged_replica_is_moved_aside_and_restored() {
    let (bucket, mut mix) = (Arc::<InMemory>::default(), Mix(StdRng::seed_from_u64(3)));
    let machine = Machine::start(&bucket, 1_000);
    run(async {
        commit_all(&machine, &mut mix, 4).await;
    });
    let lost = machine.lose();
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("tidegate.db"), vec![7; 8192]).unwrap();
    let machine = Machine::start_in(dir, &bucket, 1_000);
    assert!(content(machine.dir.path()).continues(&lost), "it has restored the log");
    assert_eq!(std::fs::read(machine.dir.path().join("damaged.db")).unwrap(), [7; 8192]);
}

#[test]
fn a_damaged_database_without_a_log_stays_where_it_is() {
    let dir = TempDir::new().unwrap();
    drop(SqliteStore::open(dir.path()).unwrap());
    std::fs::write(dir.path().join("tidegate.db"), vec![7; 8192]).unwrap();
    let error = SqliteReplica::open(dir.path()).err();
    assert!(matches!(error, Some(OpenError::Damaged { .. })), "{error:?}");
    assert_eq!(std::fs::read(dir.path().join("tidegate.db")).unwrap(), [7; 8192]);
}

#[test]
fn a_database_without_a_log_is_not_taken_for_a_replica() {
    let dir = TempDir::new().unwrap();
    let store = SqliteStore::open(dir.path()).unwrap();
    run(async { drop(store.commit(vec![vec![Write::AddJob(job("a").build())]]).await.unwrap()) });
    drop(store);
    let error = SqliteReplica::open(dir.path()).err().unwrap().to_string();
    assert!(error.contains("has a database"), "{error}");
}

#[test]
fn a_store_that_does_not_lead_writes_nothing() {
    let dir = TempDir::new().unwrap();
    let replica = SqliteReplica::open(dir.path()).unwrap();
    run(async {
        let store = replica.store();
        let refused = store.commit(vec![vec![Write::AddJob(job("a").build())]]).await.unwrap_err();
        assert!(matches!(refused, StoreError::NotLeader { leader: None }), "{refused:?}");
        assert_eq!(store.get(&[name("a")]).await.unwrap(), [Ok(None)]);
    });
}
