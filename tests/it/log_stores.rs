//! The SQLite store behind a log keeps the contract of the job store, whatever has the log: a directory, a
//! stand-in for Google Cloud Storage, an emulator of S3, or Azurite. The tests of the adapter do the same in
//! memory.
//!
//! Epochs are short here, so longer clauses also make snapshots and remove what these replace.

use std::{
    future::{Ready, ready},
    sync::Arc,
    time::Duration,
};

use tempfile::TempDir;
use tidegate_backends::{
    bucket_log::{BucketAddress, BucketClients, Edge, Node, NodeSettings, Pace},
    sqlite::{SqliteReplica, SqliteStore},
    system::{SystemClock, SystemEntropy},
};
use tidegate_core::{
    job::JobId,
    port::{JobStore, StoreLayer},
};
use tidegate_engine::job_store_conformance;
use tokio::runtime::{self, Runtime};

use crate::e2e::{
    bucket::{
        clouds::CloudLog,
        new_log_in_s3,
        stand_in::{Conditions, StandIn},
    },
    serve::text,
};

/// The records of an epoch.
const RECORDS: u64 = 20;

/// A store on an empty disk, whose node leads a new log.
struct Machine<B> {
    store: Arc<SqliteStore>,
    /// It runs the node. The store that has the log outlives it.
    _runtime: Runtime,
    _dir: TempDir,
    /// What has the log, as long as the node runs.
    _bucket: B,
}

impl<B> Machine<B> {
    /// The machine, once its node leads the log that `connect` makes in `bucket`.
    fn start(bucket: B, connect: impl AsyncFnOnce(&B) -> BucketClients) -> Self {
        let dir = TempDir::new().unwrap();
        let replica = Arc::new(SqliteReplica::open(dir.path()).unwrap());
        let store = replica.store();
        let runtime =
            runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let edge = Edge {
                bucket: Arc::new(connect(&bucket).await.log),
                clock: Arc::new(SystemClock),
                entropy: Arc::new(SystemEntropy),
            };
            let settings = NodeSettings {
                pace: Pace::Latency { interval: Duration::ZERO },
                rollover_records: RECORDS,
                kept_snapshots: 1,
                leads_at_start: true,
                ..NodeSettings::default()
            };
            let (node, handle) = Node::open(edge, Arc::clone(&replica), settings).await.unwrap();
            replica.connect(handle.clone());
            let mut running = tokio::spawn(async move { node.run_once().await });
            let mut leadership = handle.leadership();
            tokio::select! {
                led = leadership.wait_for(Option::is_some) => drop(led.unwrap()),
                ended = &mut running => panic!("the node stopped: {ended:?}"),
            }
        });
        Self { store, _runtime: runtime, _dir: dir, _bucket: bucket }
    }
}

impl Machine<TempDir> {
    fn in_directory() -> Self {
        Self::start(TempDir::new().unwrap(), async |dir: &TempDir| {
            let url = format!("file://{}/log", text(dir.path())).parse().unwrap();
            BucketAddress::parse(&url).unwrap().connect().unwrap()
        })
    }
}

impl Machine<StandIn> {
    fn in_google_storage() -> Self {
        let store = StandIn::start(Conditions::Obeyed);
        Self::start(store, async |store: &StandIn| CloudLog::google(store).connect())
    }
}

impl Machine<()> {
    fn in_s3() -> Self {
        Self::start((), async |(): &()| {
            let url = new_log_in_s3().await.parse().unwrap();
            BucketAddress::parse(&url).unwrap().connect().unwrap()
        })
    }

    fn in_azurite() -> Self {
        Self::start((), async |(): &()| CloudLog::azurite().await.connect())
    }
}

impl<B: Send + Sync> StoreLayer for Machine<B> {
    fn inner(&self) -> &dyn JobStore {
        &*self.store
    }
}

/// Makes a job of the store unreadable.
fn damage<B>(machine: &Machine<B>, id: &JobId) -> Ready<()> {
    let change = "UPDATE jobs SET life = x'0255aa' WHERE id = ?1";
    let db = rusqlite::Connection::open(machine.store.file()).unwrap();
    assert_eq!(db.execute(change, [id.as_str()]).unwrap(), 1);
    ready(())
}

job_store_conformance!(in_a_directory, Machine::in_directory(), damage);
job_store_conformance!(in_google_storage, Machine::in_google_storage(), damage);
job_store_conformance!(
    #[ignore = "needs a local stack; cargo xtask check --full runs it"]
    on_a_local_stack_in_s3,
    Machine::in_s3(),
    damage
);
job_store_conformance!(
    #[ignore = "needs Azurite; tests/azurite/check starts it"]
    on_azurite,
    Machine::in_azurite(),
    damage
);
